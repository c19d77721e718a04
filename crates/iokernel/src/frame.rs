//! Ethernet, IPv4, IPv6 and ARP as far as a switch reads them: addresses, offsets and lengths.
//!
//! Owns the [`Mac`] type and the numbers of the wire formats. Never allocates. RFC 894 (IPv4 over Ethernet), RFC 826 (ARP),
//! RFC 791 (IPv4), RFC 2464 (IPv6 over Ethernet), RFC 8200 (IPv6).

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of an Ethernet header plus an ARP packet for IPv4.
pub const ARP_FRAME: usize = ETHERNET_HEADER + 28;
/// Bytes of an Ethernet header plus an IPv4 header without options.
pub const IPV4_FRAME: usize = ETHERNET_HEADER + 20;
/// Bytes of an Ethernet header plus the fixed IPv6 header.
pub const IPV6_FRAME: usize = ETHERNET_HEADER + 40;
/// Leading bits of an IPv6 network: what is left is an interface identifier (RFC 4291 section 2.5.1).
pub const PREFIX_LEN6: u8 = 64;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherTypes of VLAN tags: customer, service (IEEE 802.1Q), and the older numbers of stacked tags.
pub const ETHERTYPES_VLAN: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];
/// Least EtherType; smaller numbers are lengths of IEEE 802.3 frames.
pub const LEAST_ETHERTYPE: u16 = 0x0600;

/// An Ethernet (MAC) address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The address derived from an IPv4 address when none is asked for: locally administered, the letter `t`, the address.
    pub const fn derived(ip: Ipv4Addr) -> Self {
        let [a, b, c, d] = ip.octets();
        Self([0x02, b't', a, b, c, d])
    }

    /// The group address of an IPv6 multicast address: its last four bytes after 33:33 (RFC 2464 section 7).
    pub const fn of_ipv6_group(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// The link-local IPv6 address formed from this one (RFC 4291 appendix A, RFC 2464 section 5).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Whether it addresses a group: multicast or broadcast (IEEE 802, the I/G bit).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// As a number below 2^48, for tables.
    #[inline(always)]
    pub(crate) const fn key(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_addresses_are_unicast_local_and_distinct() {
        let a = Mac::derived(Ipv4Addr::new(10, 77, 0, 2));
        assert!(!a.is_multicast());
        assert_eq!(a.0[0] & 2, 2, "{a} is not locally administered");
        assert_ne!(a, Mac::derived(Ipv4Addr::new(10, 77, 0, 3)));
        assert_eq!(a.to_string(), "02:74:0a:4d:00:02");
    }

    #[test]
    fn ipv6_addresses_follow_from_the_mac_address() {
        // The example of RFC 2464 section 4, and a group of section 7.
        let mac = Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(mac.link_local().to_string(), "fe80::3656:78ff:fe9a:bcde");
        let group = "ff02::1:ff9a:bcde".parse().unwrap();
        assert_eq!(Mac::of_ipv6_group(group).to_string(), "33:33:ff:9a:bc:de");
    }

    #[test]
    fn group_addresses_are_told_apart() {
        assert!(Mac::BROADCAST.is_multicast());
        assert!(Mac([1, 0, 0x5e, 0, 0, 1]).is_multicast());
    }
}
