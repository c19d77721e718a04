//! What IPv4 and IPv6 packets have in common: a pair of addresses, a protocol, a few fields, and headers to be written in place.

use super::checksum::Sum;
use super::ethernet::{ETHERNET_HEADER, EtherType, EthernetHeader, MacAddr};
use super::ipv4::{IPV4_HEADER, IpProtocol, Ipv4Header};
use super::ipv6::{FRAGMENT_HEADER, FragmentHeader, IPV6_HEADER, Ipv6Header};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// Source and destination of a packet, of one family by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// From whom.
        source: Ipv4Addr,
        /// To whom.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// From whom.
        source: Ipv6Addr,
        /// To whom.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// The pair, if both are of one family.
    #[inline]
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 { source, destination }),
            _ => None,
        }
    }

    /// From whom.
    #[inline]
    pub fn source(&self) -> IpAddr {
        match *self {
            Self::V4 { source, .. } => source.into(),
            Self::V6 { source, .. } => source.into(),
        }
    }

    /// To whom.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        match *self {
            Self::V4 { destination, .. } => destination.into(),
            Self::V6 { destination, .. } => destination.into(),
        }
    }

    /// The pair of an answer.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        match *self {
            Self::V4 { source, destination } => Self::V4 { source: destination, destination: source },
            Self::V6 { source, destination } => Self::V6 { source: destination, destination: source },
        }
    }

    /// Bytes of an IP header without options or extensions.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V4 { .. } => IPV4_HEADER,
            Self::V6 { .. } => IPV6_HEADER,
        }
    }

    /// The part of a checksum that `len` bytes of `protocol` borrow from the IP header: the pseudo-header of RFC 768 and RFC 9293
    /// section 3.1 for IPv4, of RFC 8200 section 8.1 for IPv6.
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
        // Packets have at most 65 535 bytes: the upper half of IPv6's length is zero.
        sum.word(protocol.0.into()).word(len as u16)
    }
}

/// Whether a packet is, or may become, a piece of a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragmenting {
    /// It is whole and stays so: "don't fragment" is set where there is such a flag.
    Forbidden,
    /// It is whole; IPv4 routers may break it up.
    Allowed {
        /// What its pieces would have in common. IPv4 carries the lower half.
        identification: u32,
    },
    /// It is a piece.
    Piece {
        /// What the pieces have in common. IPv4 carries the lower half.
        identification: u32,
        /// Where its payload belongs, a multiple of eight.
        offset: usize,
        /// Whether it is not the last.
        more: bool,
    },
}

/// The fields of a packet that leaves, except for its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketInfo {
    /// From whom, to whom.
    pub addresses: Addresses,
    /// What the payload is.
    pub protocol: IpProtocol,
    /// Hops it may take: "time to live" in IPv4.
    pub hop_limit: u8,
    /// Differentiated services (RFC 2474) in the upper six bits, ECN (RFC 3168) in the lower two.
    pub traffic_class: u8,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Headers<H> {
    ethernet: EthernetHeader,
    ip: H,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct PieceHeaders {
    ethernet: EthernetHeader,
    ip: Ipv6Header,
    fragment: FragmentHeader,
}

impl PacketInfo {
    /// Bytes of Ethernet and IP header before the payload of a packet that is no piece.
    #[inline]
    pub const fn overhead(&self) -> usize {
        ETHERNET_HEADER + self.addresses.header_len()
    }

    /// Bytes of Ethernet and IP header, with the extension that makes it a piece, before the payload.
    #[inline]
    pub const fn overhead_of(&self, fragmenting: Fragmenting) -> usize {
        let extension = match (self.addresses, fragmenting) {
            (Addresses::V6 { .. }, Fragmenting::Piece { .. }) => FRAGMENT_HEADER,
            _ => 0,
        };
        self.overhead() + extension
    }

    /// Writes Ethernet and IP header for `len` bytes of payload.
    ///
    /// # Panics
    /// If `out` is not [`overhead_of`](Self::overhead_of) bytes long, or the packet would exceed 65 535: callers check
    /// against the MTU first.
    #[inline]
    pub fn write_headers(&self, out: &mut [u8], stations: Stations, fragmenting: Fragmenting, len: usize) {
        let Stations { source, destination } = stations;
        let ethernet = |ethertype| EthernetHeader { destination, source, ethertype };
        match (self.addresses, fragmenting) {
            (Addresses::V4 { .. }, _) => {
                let ip = Ipv4Header::of(self, fragmenting, len);
                out.copy_from_slice(Headers { ethernet: ethernet(EtherType::IPV4), ip }.as_bytes());
            }
            (Addresses::V6 { .. }, Fragmenting::Piece { identification, offset, more }) => {
                let ip = Ipv6Header::of(self, IpProtocol::FRAGMENT, FRAGMENT_HEADER + len);
                let fragment = FragmentHeader::new(self.protocol, identification, offset, more);
                let ethernet = ethernet(EtherType::IPV6);
                out.copy_from_slice(PieceHeaders { ethernet, ip, fragment }.as_bytes());
            }
            (Addresses::V6 { .. }, _) => {
                let ip = Ipv6Header::of(self, self.protocol, len);
                out.copy_from_slice(Headers { ethernet: ethernet(EtherType::IPV6), ip }.as_bytes());
            }
        }
    }
}

/// Between which stations of the link a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stations {
    /// From whom.
    pub source: MacAddr,
    /// To whom.
    pub destination: MacAddr,
}
