//! Configuration of a stack: addresses, prefixes, gateways, sizes.

use core::net::{Ipv4Addr, Ipv6Addr};
use tailwater_wire::{IPV6_MIN_MTU, MIN_REASSEMBLY, MacAddr};

/// Longest IP packet in a frame, in bytes.
pub const MAX_MTU: u16 = 9000;
/// Bytes of datagrams that wait in one UDP socket unless configured otherwise, including 8 bytes of
/// bookkeeping for each (24 for IPv6).
pub const DEFAULT_UDP_RECEIVE_BYTES: usize = 256 * 1024;

/// TCP connections open at once unless configured otherwise.
pub const DEFAULT_CONNECTIONS: u32 = 1_000_000;

/// Whether there is a network beyond the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Frames leave through an outlet.
    Attached,
    /// Only the stack's own addresses are reachable.
    Standalone,
}

/// A stack's address in an IPv6 network, besides ::1 and the link-local address formed from its MAC
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Config {
    /// Its address.
    pub ip: Ipv6Addr,
    /// Length of the network prefix in bits, 0 to 128.
    pub prefix: u8,
    /// Gateway to other networks; may be a link-local address. `None` if there are no others.
    pub gateway: Option<Ipv6Addr>,
}

/// Configuration of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetConfig {
    /// Its address besides 127.0.0.0/8; within that network only standalone.
    pub ip: Ipv4Addr,
    /// Length of the network prefix in bits, 0 to 32.
    pub prefix: u8,
    /// Gateway to other networks; `None` if there are no others.
    pub gateway: Option<Ipv4Addr>,
    /// Its address in an IPv6 network; `None` if only ::1 is reachable.
    pub ipv6: Option<Ipv6Config>,
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// Longest IP packet on the link in bytes, 576 (with IPv6: 1280) to [`MAX_MTU`].
    pub mtu: u16,
    /// Longest IP packet, in bytes, to a peer whose frames arrive with vouched checksums, one on
    /// this machine: `mtu` to [`MAX_MTU`]. TCP uses it.
    pub local_mtu: u16,
    /// Whether there is a link.
    pub mode: Mode,
    /// Bytes of datagrams that wait in one UDP socket, 4 KiB to 1 GiB; others are dropped and
    /// counted.
    pub udp_receive_bytes: usize,
    /// Bytes of window for the peers whose frames arrive with vouched checksums, those on this
    /// machine, which fill whatever window they are offered within microseconds: what TCP offers
    /// one of them at most, and several together once a connection has shown a gap, 3 KiB each at
    /// least. `u32::MAX` is no limit.
    pub machine_window: u32,
    /// TCP connections open at once, those in TIME-WAIT not counted.
    pub tcp_connections: u32,
}

impl NetConfig {
    /// Makes the configuration of a stack without a network: 127.0.0.0/8, ::1 and `ip`, which may
    /// be within that network.
    pub fn standalone(ip: Ipv4Addr) -> Self {
        Self {
            ip,
            prefix: 32,
            gateway: None,
            ipv6: None,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            local_mtu: MAX_MTU,
            mode: Mode::Standalone,
            udp_receive_bytes: DEFAULT_UDP_RECEIVE_BYTES,
            machine_window: u32::MAX,
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
    #[error("an MTU of {0} bytes: {MIN_REASSEMBLY} to {MAX_MTU} are allowed")]
    Mtu(u16),
    /// Outside the limits.
    #[error("an MTU of {local} bytes on this machine: {mtu}, which the link has, to {MAX_MTU} are allowed")]
    LocalMtu {
        /// Longest packet on this machine.
        local: u16,
        /// The link's.
        mtu: u16,
    },
    /// Too short for IPv6 (RFC 8200 section 5).
    #[error("an MTU of {0} bytes with IPv6, which needs {IPV6_MIN_MTU} at least")]
    Mtu6(u16),
    /// Outside the limits.
    #[error("a UDP receive buffer of {0} bytes: 4 KiB to 1 GiB are allowed")]
    UdpReceiveBytes(usize),
}
