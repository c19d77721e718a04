//! Who the stack is: addresses, prefix, gateway, and where a destination is to be found.

use crate::net::wire::{MIN_REASSEMBLY, MacAddr};
use core::net::Ipv4Addr;

/// Longest IP packet a frame of the packet rings carries, in bytes.
pub const MAX_MTU: u16 = 9000;
/// Bytes of datagrams, with 8 bytes each of bookkeeping, that wait in one UDP socket unless configured otherwise.
pub const DEFAULT_UDP_RECEIVE_BYTES: usize = 256 * 1024;

/// Whether there is a network beyond the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Frames leave through the rings of an IOKernel.
    Attached,
    /// Only the stack's own addresses can be reached.
    Standalone,
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
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// Longest IP packet on the link in bytes, 576 to [`MAX_MTU`].
    pub mtu: u16,
    /// Whether there is a link at all.
    pub mode: Mode,
    /// Bytes of datagrams that wait in one UDP socket; more are dropped and counted. 4 KiB to 1 GiB.
    pub udp_receive_bytes: usize,
}

impl NetConfig {
    /// A stack without a network: 127.0.0.0/8, and `ip` (which may be within that).
    pub fn standalone(ip: Ipv4Addr) -> Self {
        Self {
            ip,
            prefix: 32,
            gateway: None,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            mode: Mode::Standalone,
            udp_receive_bytes: DEFAULT_UDP_RECEIVE_BYTES,
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
            mac: welcome.mac,
            mtu: welcome.mtu,
            mode: Mode::Attached,
            udp_receive_bytes: DEFAULT_UDP_RECEIVE_BYTES,
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
    /// A group address, or zero.
    #[error("{0} cannot be a station's MAC address: choose one with an even first byte, not all zeros")]
    Mac(MacAddr),
    /// Outside the limits.
    #[error("an MTU of {0} bytes: {MIN_REASSEMBLY} to {MAX_MTU} are possible")]
    Mtu(u16),
    /// Outside the limits.
    #[error("a UDP receive buffer of {0} bytes: 4 KiB to 1 GiB are possible")]
    UdpReceiveBytes(usize),
}

/// Where a destination is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// In this stack.
    Local,
    /// Everywhere on the link.
    Broadcast,
    /// At this neighbour: the destination itself, or the gateway.
    Via(Ipv4Addr),
    /// Nowhere that this stack knows.
    Unreachable,
}

/// A checked configuration and the questions asked of it for every packet.
#[derive(Debug)]
pub struct Addressing {
    config: NetConfig,
    mask: u32,
}

impl Addressing {
    /// Checks `config`.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn new(config: NetConfig) -> Result<Self, ConfigError> {
        let (ip, prefix, mac) = (config.ip, config.prefix, MacAddr(config.mac));
        if prefix > 32 {
            return Err(ConfigError::Prefix(prefix));
        }
        let this = Self { mask: u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0), config };
        let loopback = this.config.mode == Mode::Standalone && ip.is_loopback();
        if !(is_host(ip) && !this.is_broadcast(ip) || loopback) {
            return Err(ConfigError::Ip(ip));
        }
        if !mac.is_station() {
            return Err(ConfigError::Mac(mac));
        }
        if !(MIN_REASSEMBLY as u16..=MAX_MTU).contains(&this.config.mtu) {
            return Err(ConfigError::Mtu(this.config.mtu));
        }
        if !(4096..=1 << 30).contains(&this.config.udp_receive_bytes) {
            return Err(ConfigError::UdpReceiveBytes(this.config.udp_receive_bytes));
        }
        match this.config.gateway {
            Some(gateway) if gateway == ip || !is_host(gateway) || !this.is_on_link(gateway) => {
                Err(ConfigError::Gateway { gateway, ip, prefix })
            }
            _ => Ok(this),
        }
    }

    /// The configuration as given.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// The stack's address.
    #[inline]
    pub fn ip(&self) -> Ipv4Addr {
        self.config.ip
    }

    /// The stack's link-layer address.
    #[inline]
    pub fn mac(&self) -> MacAddr {
        MacAddr(self.config.mac)
    }

    /// Longest IP packet on the link in bytes.
    #[inline]
    pub fn mtu(&self) -> usize {
        self.config.mtu.into()
    }

    /// Whether `ip` shares the stack's network prefix.
    #[inline]
    pub fn is_on_link(&self, ip: Ipv4Addr) -> bool {
        (u32::from(ip) ^ u32::from(self.config.ip)) & self.mask == 0
    }

    /// Whether `ip` means every host on the link: limited or directed broadcast (RFC 919 section 7). Networks of one or two
    /// addresses have no directed broadcast (RFC 3021 section 2.1).
    #[inline]
    pub fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip == Ipv4Addr::BROADCAST
            || (self.config.prefix < 31 && self.is_on_link(ip) && u32::from(ip) | self.mask == u32::MAX)
    }

    /// Whether one host other than this one can have sent a packet with source `ip` (RFC 1122 section 3.2.1.3).
    #[inline]
    pub fn is_peer(&self, ip: Ipv4Addr) -> bool {
        is_host(ip) && ip != self.config.ip && !self.is_broadcast(ip)
    }

    /// Where to find `destination`. The unspecified address means this host, as it does on Linux.
    #[inline]
    pub fn route(&self, destination: Ipv4Addr) -> Route {
        if destination == self.config.ip || destination.is_loopback() || destination.is_unspecified() {
            Route::Local
        } else if self.config.mode == Mode::Standalone {
            Route::Unreachable
        } else if self.is_broadcast(destination) {
            Route::Broadcast
        } else if !is_host(destination) {
            Route::Unreachable
        } else if self.is_on_link(destination) {
            Route::Via(destination)
        } else {
            self.config.gateway.map_or(Route::Unreachable, Route::Via)
        }
    }

    /// The address a packet to `destination` comes from when its socket has not chosen one.
    #[inline]
    pub fn source_for(&self, destination: Ipv4Addr) -> Ipv4Addr {
        if destination.is_loopback() || destination.is_unspecified() {
            Ipv4Addr::LOCALHOST
        } else {
            self.config.ip
        }
    }
}

/// Whether `ip` can belong to one host: not in 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/4 or 240.0.0.0/4 (RFC 1122 section
/// 3.2.1.3, RFC 1112 section 4).
#[inline]
fn is_host(ip: Ipv4Addr) -> bool {
    !matches!(ip.octets()[0], 0 | 127 | 224..=255)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> NetConfig {
        NetConfig {
            ip: Ipv4Addr::new(10, 1, 2, 3),
            prefix: 24,
            gateway: Some(Ipv4Addr::new(10, 1, 2, 1)),
            mode: Mode::Attached,
            ..NetConfig::standalone(Ipv4Addr::LOCALHOST)
        }
    }

    fn route(config: &NetConfig, to: &str) -> Route {
        Addressing::new(config.clone()).unwrap().route(to.parse().unwrap())
    }

    #[test]
    fn destinations_are_found_where_they_are() {
        let c = config();
        let gateway = Route::Via(Ipv4Addr::new(10, 1, 2, 1));
        for (to, expected) in [
            ("10.1.2.3", Route::Local),
            ("127.0.0.1", Route::Local),
            ("127.9.9.9", Route::Local),
            ("0.0.0.0", Route::Local),
            ("10.1.2.9", Route::Via(Ipv4Addr::new(10, 1, 2, 9))),
            ("10.1.3.9", gateway),
            ("192.0.2.1", gateway),
            ("10.1.2.255", Route::Broadcast),
            ("255.255.255.255", Route::Broadcast),
            ("224.0.0.1", Route::Unreachable),
            ("0.1.2.3", Route::Unreachable),
            ("250.0.0.1", Route::Unreachable),
        ] {
            assert_eq!(route(&c, to), expected, "{to}");
        }
        assert_eq!(route(&NetConfig { gateway: None, ..c }, "192.0.2.1"), Route::Unreachable);
    }

    #[test]
    fn standalone_reaches_only_itself() {
        let c = NetConfig { mode: Mode::Standalone, ..config() };
        assert_eq!(route(&c, "10.1.2.3"), Route::Local);
        assert_eq!(route(&c, "127.0.0.1"), Route::Local);
        for elsewhere in ["10.1.2.9", "192.0.2.1", "255.255.255.255"] {
            assert_eq!(route(&c, elsewhere), Route::Unreachable);
        }
    }

    #[test]
    fn prefixes_from_nothing_to_everything_work() {
        let c = config();
        let with = |prefix, gateway| NetConfig { prefix, gateway, ..c.clone() };
        assert_eq!(route(&with(0, None), "192.0.2.1"), Route::Via(Ipv4Addr::new(192, 0, 2, 1)));
        assert_eq!(route(&with(32, None), "10.1.2.4"), Route::Unreachable);
        assert_eq!(route(&with(31, None), "10.1.2.2"), Route::Via(Ipv4Addr::new(10, 1, 2, 2)));
        assert_eq!(route(&with(29, None), "10.1.2.7"), Route::Broadcast);
    }

    #[test]
    fn impossible_configurations_are_refused() {
        let ip = |s: &str| NetConfig { ip: s.parse().unwrap(), gateway: None, ..config() };
        for bad in ["0.0.0.0", "127.0.0.1", "224.1.1.1", "255.255.255.255", "10.1.2.255"] {
            assert_eq!(Addressing::new(ip(bad)).unwrap_err(), ConfigError::Ip(bad.parse().unwrap()));
        }
        let refused = |change: fn(&mut NetConfig)| {
            let mut c = config();
            change(&mut c);
            Addressing::new(c).unwrap_err()
        };
        assert_eq!(refused(|c| c.prefix = 33), ConfigError::Prefix(33));
        assert_eq!(refused(|c| c.mac[0] = 1), ConfigError::Mac(MacAddr([1, 0, 0, 0, 0, 1])));
        assert_eq!(refused(|c| c.mac = [0; 6]), ConfigError::Mac(MacAddr::ZERO));
        assert_eq!(refused(|c| c.mtu = 575), ConfigError::Mtu(575));
        assert_eq!(refused(|c| c.mtu = 9001), ConfigError::Mtu(9001));
        assert_eq!(refused(|c| c.udp_receive_bytes = 100), ConfigError::UdpReceiveBytes(100));
        for gateway in ["10.1.3.1", "10.1.2.3", "127.0.0.1"] {
            let mut c = config();
            c.gateway = Some(gateway.parse().unwrap());
            assert!(matches!(Addressing::new(c), Err(ConfigError::Gateway { .. })), "{gateway}");
        }
    }
}
