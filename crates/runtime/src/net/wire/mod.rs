//! Frames as bytes: views over what arrived, builders for what leaves.
//!
//! Owns: the layouts of Ethernet II, ARP, IPv4, IPv6, ICMP, ICMPv6 and UDP headers and every rule about a single packet that
//! needs no other state. Never keeps anything, never decides whom a packet is for.
//!
//! # Contract of every parser
//! * Total: any bytes give a view or a [`WireError`]; nothing panics and nothing past the end is read.
//! * A view's lengths have been checked against the bytes that are there; fields without a rule are passed on as they are.
//! * What follows the length a header claims is padding and is cut off (RFC 894: frames may be longer than their packet).
//!
//! Headers are `zerocopy` structs of unaligned big-endian fields, so that a view is a reference into the frame: frames lie
//! in rings at offsets that suit no alignment.

pub mod arp;
pub mod checksum;
pub mod error;
pub mod ethernet;
pub mod icmp;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod udp;

pub use arp::{ARP_PACKET, ArpOperation, ArpPacket};
pub use checksum::{Sum, checksum};
pub use error::{Layer, WireError};
pub use ethernet::{ETHERNET_HEADER, EtherType, EthernetHeader, MacAddr};
pub use icmp::{ICMP_HEADER, IcmpHeader, IcmpMessage, Report, Undelivered};
pub use icmpv6::{Icmpv6Header, Icmpv6Message, ND_HOP_LIMIT, ND_MESSAGE, Neighbour};
pub use ip::{Addresses, Fragmenting, PacketInfo, Stations};
pub use ipv4::{Checksums, DEFAULT_TTL, IPV4_HEADER, IpProtocol, Ipv4Header, Ipv4Packet, MIN_REASSEMBLY};
pub use ipv6::{
    ExtensionError, FRAGMENT_HEADER, FragmentHeader, IPV6_HEADER, IPV6_MIN_MTU, Ipv6Header, Ipv6Packet,
    UpperLayer, upper_layer, upper_layer_unchecked,
};
pub use udp::{UDP_HEADER, UdpDatagram, UdpHeader};

#[cfg(test)]
pub mod tests;
#[cfg(test)]
mod tests6;
