//! Properties that IPv4 and IPv6 packets have in common: a pair of addresses, a protocol, a few
//! fields.
//!
//! Owns the types that describe a packet of either family. Their headers are in [`crate::ipv4`] and
//! [`crate::ipv6`], and are written by [`crate::headers`].

use crate::checksum::Sum;
use crate::layout::newtypes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hops a packet may take unless the socket chooses another limit (RFC 1700, "IP time to live").
pub const DEFAULT_TTL: u8 = 64;

/// The protocol of an IP packet's payload (IANA protocol-numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// IPv6 hop-by-hop options (RFC 8200 section 4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// IPv6 routing header (RFC 8200 section 4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 section 4.5).
    pub const FRAGMENT: Self = Self(44);
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: Self = Self(51);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// IPv6: nothing follows (RFC 8200 section 4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options (RFC 8200 section 4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// IPv6 mobility header (RFC 6275).
    pub const MOBILITY: Self = Self(135);
    /// Host identity protocol (RFC 7401).
    pub const HIP: Self = Self(139);
    /// Shim6 protocol (RFC 5533).
    pub const SHIM6: Self = Self(140);

    /// Returns the offset of the checksum in a TCP or UDP header; `None` for other protocols.
    #[inline]
    pub const fn checksum_offset(self) -> Option<usize> {
        match self {
            Self::TCP => Some(16),
            Self::UDP => Some(6),
            _ => None,
        }
    }
}

newtypes! { IpProtocol(u8) }

/// Source and destination of a packet, of one family by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Address of the sender.
        source: Ipv4Addr,
        /// Address of the receiver.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Address of the sender.
        source: Ipv6Addr,
        /// Address of the receiver.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// Returns the pair if both are of one family.
    #[inline]
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 { source, destination }),
            _ => None,
        }
    }

    /// Returns the address of the sender.
    #[inline]
    pub fn source(&self) -> IpAddr {
        match *self {
            Self::V4 { source, .. } => source.into(),
            Self::V6 { source, .. } => source.into(),
        }
    }

    /// Returns the address of the receiver.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        match *self {
            Self::V4 { destination, .. } => destination.into(),
            Self::V6 { destination, .. } => destination.into(),
        }
    }

    /// Returns the pair of a packet in the other direction.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        match *self {
            Self::V4 { source, destination } => Self::V4 { source: destination, destination: source },
            Self::V6 { source, destination } => Self::V6 { source: destination, destination: source },
        }
    }

    /// Returns the sum of the pseudo-header that the checksum of `len` bytes of `protocol` covers:
    /// that of RFC 768 and RFC 9293 section 3.1 for IPv4, of RFC 8200 section 8.1 for IPv6.
    #[inline]
    pub fn pseudo_header(&self, protocol: IpProtocol, len: usize) -> Sum {
        let sum = match self {
            Self::V4 { source, destination } => {
                Sum::new().bytes(&source.octets()).bytes(&destination.octets())
            }
            Self::V6 { source, destination } => {
                Sum::new().bytes(&source.octets()).bytes(&destination.octets())
            }
        };
        // Packets have at most 65,535 bytes: the upper half of IPv6's length is zero.
        sum.word(protocol.0.into()).word(len as u16)
    }
}

/// Whether a packet is, or may become, a fragment of a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragmenting {
    /// It is whole and stays whole: "don't fragment" is set if the family has that flag.
    Forbidden,
    /// It is whole, and IPv4 routers may fragment it.
    Allowed {
        /// The identification its fragments would share. IPv4 carries the lower half.
        identification: u32,
    },
    /// It is a fragment.
    Piece {
        /// The identification that the fragments share. IPv4 carries the lower half.
        identification: u32,
        /// Offset of its payload in the whole, a multiple of eight.
        offset: usize,
        /// True if it is not the last.
        more: bool,
    },
}

/// The fields of a packet to be sent, except for its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketInfo {
    /// Source and destination.
    pub addresses: Addresses,
    /// Protocol of the payload.
    pub protocol: IpProtocol,
    /// Hops it may take: "time to live" in IPv4.
    pub hop_limit: u8,
    /// Differentiated services (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two.
    pub traffic_class: u8,
}
