//! Ethernet II frames (RFC 894): fourteen bytes of header, then the payload and perhaps padding.

use super::error::{Layer, WireError};
use core::fmt;
use core::net::Ipv6Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of header.
pub const ETHERNET_HEADER: usize = 14;

/// A 48-bit link-layer address.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// No station: what ARP carries for an address not yet known.
    pub const ZERO: Self = Self([0; 6]);

    /// The group address of an IPv6 multicast address (RFC 2464 section 7).
    #[inline]
    pub const fn of_group(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Whether the group bit is set (IEEE 802, section 8.2): multicast or broadcast.
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether one station can have this address: neither a group nor all zeros.
    #[inline]
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Self::ZERO
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a frame's payload is (IANA ieee-802-numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EtherType(pub U16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(U16::new(0x0800));
    /// ARP (RFC 826).
    pub const ARP: Self = Self(U16::new(0x0806));
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(U16::new(0x86dd));
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EthernetHeader {
    /// To whom.
    pub destination: MacAddr,
    /// From whom.
    pub source: MacAddr,
    /// What follows.
    pub ethertype: EtherType,
}

const _: () = assert!(size_of::<EthernetHeader>() == ETHERNET_HEADER);

impl EthernetHeader {
    /// Splits `frame` into header and payload; the payload may end in padding.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below fourteen bytes.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(&Self, &[u8]), WireError> {
        Self::ref_from_prefix(frame).map_err(|_| WireError::Truncated {
            layer: Layer::Ethernet,
            need: ETHERNET_HEADER,
            have: frame.len(),
        })
    }
}
