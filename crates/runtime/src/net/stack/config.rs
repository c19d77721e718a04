//! What a stack is made from: addresses, prefixes, gateways, sizes.

use super::tcp::DEFAULT_CONNECTIONS;
use crate::config::DEFAULT_RING;
use crate::net::wire::{IPV6_MIN_MTU, MIN_REASSEMBLY, MacAddr};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Longest IP packet a frame of the packet rings carries, in bytes.
pub const MAX_MTU: u16 = 9000;
/// Bytes of datagrams, with 8 bytes each of bookkeeping (24 from IPv6), that wait in one UDP socket unless configured otherwise.
pub const DEFAULT_UDP_RECEIVE_BYTES: usize = 256 * 1024;

/// Whether there is a network beyond the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Frames leave through the rings of an IOKernel.
    Attached,
    /// Only the stack's own addresses can be reached.
    Standalone,
}

/// A stack's place in an IPv6 network, besides ::1 and the link-local address that it makes of its MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Config {
    /// Its address.
    pub ip: Ipv6Addr,
    /// Length of the network prefix in bits, 0 to 128.
    pub prefix: u8,
    /// Where packets for other networks go; `None` when there are no others. May be a link-local address.
    pub gateway: Option<Ipv6Addr>,
}

/// What a stack is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetConfig {
    /// Its address, besides 127.0.0.0/8; within that only standalone.
    pub ip: Ipv4Addr,
    /// Length of the network prefix in bits, 0 to 32.
    pub prefix: u8,
    /// Where packets for other networks go; `None` when there are no others.
    pub gateway: Option<Ipv4Addr>,
    /// Its place in an IPv6 network; `None` where there is none: then only ::1 can be reached.
    pub ipv6: Option<Ipv6Config>,
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// Longest IP packet on the link in bytes, 576 (with IPv6: 1280) to [`MAX_MTU`].
    pub mtu: u16,
    /// Whether there is a link at all.
    pub mode: Mode,
    /// Bytes of datagrams that wait in one UDP socket; more are dropped and counted. 4 KiB to 1 GiB.
    pub udp_receive_bytes: usize,
    /// Bytes of an ingress ring, which bound what TCP offers to peers on this machine. Meaningless standalone.
    pub ring_bytes: u32,
    /// TCP connections open at once, those in TIME-WAIT not counted.
    pub tcp_connections: u32,
}

impl NetConfig {
    /// A stack without a network: 127.0.0.0/8, ::1, and `ip` (which may be within that).
    pub fn standalone(ip: Ipv4Addr) -> Self {
        Self {
            ip,
            prefix: 32,
            gateway: None,
            ipv6: None,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            mode: Mode::Standalone,
            udp_receive_bytes: DEFAULT_UDP_RECEIVE_BYTES,
            ring_bytes: DEFAULT_RING,
            tcp_connections: DEFAULT_CONNECTIONS,
        }
    }
}

impl From<&tailwater_shm::control::Welcome> for NetConfig {
    /// A stack with the addresses that an IOKernel assigned.
    fn from(welcome: &tailwater_shm::control::Welcome) -> Self {
        Self {
            ip: welcome.ip,
            prefix: welcome.prefix_len,
            gateway: welcome.gateway,
            ipv6: welcome.ipv6.map(|place| Ipv6Config {
                ip: place.ip,
                prefix: place.prefix_len,
                gateway: place.gateway,
            }),
            mac: welcome.mac,
            mtu: welcome.mtu,
            mode: Mode::Attached,
            udp_receive_bytes: DEFAULT_UDP_RECEIVE_BYTES,
            ring_bytes: DEFAULT_RING,
            tcp_connections: DEFAULT_CONNECTIONS,
        }
    }
}

/// Why a [`NetConfig`] cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No single host can have the address.
    #[error("{0} cannot be a host's address on a network: choose a unicast address outside 127.0.0.0/8")]
    Ip(Ipv4Addr),
    /// More bits than an address has.
    #[error("a prefix of {0} bits: an IPv4 prefix has 0 to 32")]
    Prefix(u8),
    /// The gateway cannot be reached without a gateway.
    #[error("the gateway {gateway} is not in the network {ip}/{prefix}: choose one that is, or none")]
    Gateway {
        /// The gateway.
        gateway: Ipv4Addr,
        /// The stack's address.
        ip: Ipv4Addr,
        /// The prefix length.
        prefix: u8,
    },
    /// No single host can have the IPv6 address.
    #[error(
        "{0} cannot be a host's address on a network: choose a unicast address beyond the link, not an IPv4-mapped one"
    )]
    Ip6(Ipv6Addr),
    /// More bits than an IPv6 address has.
    #[error("a prefix of {0} bits: an IPv6 prefix has 0 to 128")]
    Prefix6(u8),
    /// The IPv6 gateway cannot be reached without a gateway.
    #[error("the gateway {gateway} is not in the network {ip}/{prefix}: choose one that is, or none")]
    Gateway6 {
        /// The gateway.
        gateway: Ipv6Addr,
        /// The stack's address.
        ip: Ipv6Addr,
        /// The prefix length.
        prefix: u8,
    },
    /// A group address, or zero.
    #[error("{0} cannot be a station's MAC address: choose one with an even first byte, not all zeros")]
    Mac(MacAddr),
    /// Outside the limits.
    #[error("an MTU of {0} bytes: {MIN_REASSEMBLY} to {MAX_MTU} are possible")]
    Mtu(u16),
    /// Too short for IPv6 (RFC 8200 section 5).
    #[error("an MTU of {0} bytes with IPv6, which needs {IPV6_MIN_MTU} at least")]
    Mtu6(u16),
    /// Outside the limits.
    #[error("a UDP receive buffer of {0} bytes: 4 KiB to 1 GiB are possible")]
    UdpReceiveBytes(usize),
}
