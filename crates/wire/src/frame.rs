//! Lengths and EtherTypes as plain numbers, for code that reads frames at fixed offsets: the
//! switch, ports and their eBPF programs.
//!
//! Owns only names. The headers themselves are [`ethernet`](crate::ethernet)'s,
//! [`ipv4`](crate::ipv4)'s and [`ipv6`](crate::ipv6)'s.

use crate::arp::ARP_PACKET;
use crate::ethernet::{ETHERNET_HEADER, EtherType};
use crate::ipv4::IPV4_HEADER;
use crate::ipv6::IPV6_HEADER;

/// Length of an Ethernet header and an ARP packet for IPv4.
pub const ARP_FRAME: usize = ETHERNET_HEADER + ARP_PACKET;
/// Length of an Ethernet header and an IPv4 header without options.
pub const IPV4_FRAME: usize = ETHERNET_HEADER + IPV4_HEADER;
/// Length of an Ethernet header and the fixed IPv6 header.
pub const IPV6_FRAME: usize = ETHERNET_HEADER + IPV6_HEADER;
/// Length of an IPv6 network's prefix; the rest is an interface identifier (RFC 4291 section
/// 2.5.1).
pub const PREFIX_LEN6: u8 = 64;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = EtherType::IPV4.0;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = EtherType::ARP.0;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = EtherType::IPV6.0;
/// EtherTypes of VLAN tags: customer, service (IEEE 802.1Q), and the older numbers of stacked tags.
pub const ETHERTYPES_VLAN: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];
/// Lowest EtherType; smaller numbers are lengths of IEEE 802.3 frames.
pub const MIN_ETHERTYPE: u16 = 0x0600;
