//! Ethernet II frames (RFC 894): fourteen bytes of header, then the payload and perhaps padding.

use crate::error::{Layer, WireError};
use crate::layout::{layout, newtypes};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of header.
pub const ETHERNET_HEADER: usize = 14;

/// A 48-bit link-layer address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// No station: ARP carries it for an address not yet known.
    pub const ZERO: Self = Self([0; 6]);

    /// Returns the address made from an IPv4 address: locally administered, then the letter `t`,
    /// then the IPv4 address.
    pub const fn derived(ip: Ipv4Addr) -> Self {
        let [a, b, c, d] = ip.octets();
        Self([0x02, b't', a, b, c, d])
    }

    /// Returns the link-local IPv6 address formed from this one: fe80::/64 and the modified EUI-64
    /// (RFC 4291 section 2.5.6 and appendix A, RFC 2464 section 5).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the address from which [`link_local`](Self::link_local) forms this IPv6 address;
    /// `None` if it forms it from none.
    pub const fn from_link_local(ip: Ipv6Addr) -> Option<Self> {
        match ip.octets() {
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
                Some(Self([a ^ 2, b, c, d, e, f]))
            }
            _ => None,
        }
    }

    /// Returns the address as a number below 2^48, the first byte lowest: a key for tables.
    #[inline]
    pub const fn key(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Returns the group address of an IPv6 multicast address: its last four bytes after 33:33 (RFC
    /// 2464 section 7).
    #[inline]
    pub const fn of_group(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Returns the group address of a multicast address of either family: for IPv4 its last 23 bits
    /// after 01:00:5e (RFC 1112 section 6.4), for IPv6 that of [`of_group`](Self::of_group).
    #[inline]
    pub const fn of_ip_group(group: IpAddr) -> Self {
        match group {
            IpAddr::V4(group) => {
                let [_, b, c, d] = group.octets();
                Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            IpAddr::V6(group) => Self::of_group(group),
        }
    }

    /// True for multicast and broadcast: the I/G bit is set (IEEE 802 section 8.2).
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether one station can have this address: it is neither a group nor all zeros.
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

/// The protocol of a frame's payload (IANA ieee-802-numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
}

newtypes! { MacAddr([u8; 6]) EtherType(u16) }

layout! {
    /// The header of a frame.
    pub struct EthernetHeader[ETHERNET_HEADER] {
        /// Station or group the frame is for.
        pub destination: MacAddr,
        /// Station that sent the frame.
        pub source: MacAddr,
        /// Protocol of the payload.
        pub ethertype: EtherType,
    }
}

impl EthernetHeader {
    /// Splits `frame` into header and payload; the payload may end in padding.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below fourteen bytes.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), WireError> {
        Self::split(frame).ok_or(WireError::Truncated {
            layer: Layer::Ethernet,
            need: ETHERNET_HEADER,
            have: frame.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_addresses_are_unicast_local_and_distinct() {
        let a = MacAddr::derived(Ipv4Addr::new(10, 77, 0, 2));
        assert!(a.is_station() && !a.is_group());
        assert_eq!(a.0[0] & 2, 2, "{a} is not locally administered");
        assert_ne!(a, MacAddr::derived(Ipv4Addr::new(10, 77, 0, 3)));
        assert_eq!(a.to_string(), "02:74:0a:4d:00:02");
        assert_eq!(a.key(), 0x0200_4d0a_7402);
    }

    #[test]
    fn ipv6_addresses_follow_from_the_mac_address() {
        // The example of RFC 2464 section 4, and a group of section 7.
        let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(mac.link_local().to_string(), "fe80::3656:78ff:fe9a:bcde");
        let group = "ff02::1:ff9a:bcde".parse().unwrap();
        assert_eq!(MacAddr::of_group(group).to_string(), "33:33:ff:9a:bc:de");
    }

    #[test]
    fn group_addresses_are_told_apart() {
        assert!(MacAddr::BROADCAST.is_group());
        assert!(MacAddr([1, 0, 0x5e, 0, 0, 1]).is_group());
    }
}
