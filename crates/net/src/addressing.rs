//! Routes to destinations, and the source addresses of packets to them.
//!
//! Owns the checked configuration and the decisions taken from it for every packet. Both families
//! stand side by side; neither is translated into the other.

use crate::config::{ConfigError, Ipv6Config, MAX_MTU, Mode, NetConfig};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_wire::{IPV6_MIN_MTU, MIN_REASSEMBLY, MacAddr};

/// Every IPv6 node on the link (RFC 4291 section 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the solicited-node group of `ip` (RFC 4291 section 2.7.1).
#[inline]
pub const fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a as u16, (b as u16) << 8 | c as u16)
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To this stack.
    Local,
    /// To all hosts on the link; IPv4 only.
    Broadcast,
    /// To the hosts of this group on the link.
    Group,
    /// To this neighbour: the destination or the gateway, of the destination's family.
    Via(IpAddr),
    /// No route.
    Unreachable,
}

/// IPv6 beyond ::1.
#[derive(Debug)]
struct Ipv6 {
    ip: Ipv6Addr,
    link_local: Ipv6Addr,
    mask: u128,
    gateway: Option<Ipv6Addr>,
}

impl Ipv6 {
    fn new(config: &Ipv6Config, mac: MacAddr) -> Result<Self, ConfigError> {
        let Ipv6Config { ip, prefix, gateway } = *config;
        if prefix > 128 {
            return Err(ConfigError::Prefix6(prefix));
        }
        if !is_host6(ip) || ip.is_unicast_link_local() {
            return Err(ConfigError::Ip6(ip));
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        let this = Self { ip, link_local: mac.link_local(), mask, gateway };
        match gateway {
            Some(gateway) if this.has(gateway) || !is_host6(gateway) || !this.is_on_link(gateway) => {
                Err(ConfigError::Gateway6 { gateway, ip, prefix })
            }
            _ => Ok(this),
        }
    }

    #[inline]
    fn has(&self, ip: Ipv6Addr) -> bool {
        ip == self.ip || ip == self.link_local
    }

    #[inline]
    fn is_on_link(&self, ip: Ipv6Addr) -> bool {
        (ip.to_bits() ^ self.ip.to_bits()) & self.mask == 0 || ip.is_unicast_link_local()
    }
}

/// A checked configuration.
#[derive(Debug)]
pub struct Addressing {
    config: NetConfig,
    mask: u32,
    ipv6: Option<Ipv6>,
}

impl Addressing {
    /// Checks `config`.
    ///
    /// # Errors
    /// The first error found.
    pub fn new(config: NetConfig) -> Result<Self, ConfigError> {
        let (ip, prefix, mac) = (config.ip, config.prefix, MacAddr(config.mac));
        if prefix > 32 {
            return Err(ConfigError::Prefix(prefix));
        }
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let ipv6 = config.ipv6.as_ref().map(|ipv6| Ipv6::new(ipv6, mac)).transpose()?;
        let this = Self { mask, ipv6, config };
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
        if !(this.config.mtu..=MAX_MTU).contains(&this.config.local_mtu) {
            return Err(ConfigError::LocalMtu { local: this.config.local_mtu, mtu: this.config.mtu });
        }
        if this.ipv6.is_some() && this.mtu() < IPV6_MIN_MTU {
            return Err(ConfigError::Mtu6(this.config.mtu));
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

    /// Returns the configuration as given.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// Returns the stack's address.
    #[inline]
    pub fn ip(&self) -> Ipv4Addr {
        self.config.ip
    }

    /// Returns the stack's link-layer address.
    #[inline]
    pub fn mac(&self) -> MacAddr {
        MacAddr(self.config.mac)
    }

    /// Longest IP packet on the link in bytes.
    #[inline]
    pub fn mtu(&self) -> usize {
        self.config.mtu.into()
    }

    /// Returns whether `ip` has the stack's network prefix.
    #[inline]
    pub fn is_on_link(&self, ip: Ipv4Addr) -> bool {
        (u32::from(ip) ^ u32::from(self.config.ip)) & self.mask == 0
    }

    /// Returns whether `ip` addresses every host on the link: limited or directed broadcast (RFC
    /// 919 section 7). Networks of one or two addresses have no directed broadcast (RFC 3021
    /// section 2.1).
    #[inline]
    pub fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip == Ipv4Addr::BROADCAST
            || (self.config.prefix < 31 && self.is_on_link(ip) && u32::from(ip) | self.mask == u32::MAX)
    }

    /// Returns whether one host other than this one can have sent a packet with source `ip` (RFC
    /// 1122 section 3.2.1.3).
    #[inline]
    pub fn is_peer(&self, ip: Ipv4Addr) -> bool {
        is_host(ip) && ip != self.config.ip && !self.is_broadcast(ip)
    }

    /// Returns the stack's IPv6 address, if it has one beyond ::1.
    #[inline]
    pub fn ip6(&self) -> Option<Ipv6Addr> {
        self.ipv6.as_ref().map(|ipv6| ipv6.ip)
    }

    /// Returns the stack's IPv6 addresses on the link: the assigned one, and the link-local one.
    pub fn link_ips6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.ipv6.iter().flat_map(|ipv6| [ipv6.ip, ipv6.link_local])
    }

    /// Returns whether `ip` is an address of this host on the link.
    #[inline]
    pub fn has_ip6(&self, ip: Ipv6Addr) -> bool {
        self.ipv6.as_ref().is_some_and(|ipv6| ipv6.has(ip))
    }

    /// Returns whether `ip` is reached without a gateway.
    #[inline]
    pub fn is_on_link6(&self, ip: Ipv6Addr) -> bool {
        self.ipv6.as_ref().is_some_and(|ipv6| ipv6.is_on_link(ip))
    }

    /// Returns whether this host belongs to the group `ip`: all nodes, and the solicited-node
    /// groups of its addresses.
    #[inline]
    pub fn is_group_member(&self, ip: Ipv6Addr) -> bool {
        self.ipv6.is_some() && (ip == ALL_NODES || self.link_ips6().any(|own| solicited_node(own) == ip))
    }

    /// Returns whether frames to `mac`, a group address, may be for this host.
    #[inline]
    pub fn hears(&self, mac: MacAddr) -> bool {
        mac == MacAddr::BROADCAST
            || (self.ipv6.is_some()
                && (mac == MacAddr::of_group(ALL_NODES)
                    || self.link_ips6().any(|own| MacAddr::of_group(solicited_node(own)) == mac)))
    }

    /// Returns whether one host other than this one can have sent a packet with source `ip`.
    #[inline]
    pub fn is_peer6(&self, ip: Ipv6Addr) -> bool {
        is_host6(ip) && !self.has_ip6(ip)
    }

    /// Returns whether `ip` is an address of this host.
    #[inline]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip == self.config.ip || ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback() || self.has_ip6(ip),
        }
    }

    /// Returns the route to `destination`. An unspecified address means this host, as on Linux.
    #[inline]
    pub fn route(&self, destination: IpAddr) -> Route {
        if destination.is_unspecified() || self.is_local(destination) {
            Route::Local
        } else if destination.is_multicast() {
            Route::Group
        } else if self.config.mode == Mode::Standalone {
            Route::Unreachable
        } else {
            match destination {
                IpAddr::V4(ip) => self.route4(ip),
                IpAddr::V6(ip) => self.route6(ip),
            }
        }
    }

    #[inline]
    fn route4(&self, destination: Ipv4Addr) -> Route {
        if self.is_broadcast(destination) {
            Route::Broadcast
        } else if !is_host(destination) {
            Route::Unreachable
        } else if self.is_on_link(destination) {
            Route::Via(destination.into())
        } else {
            self.config.gateway.map_or(Route::Unreachable, |gateway| Route::Via(gateway.into()))
        }
    }

    #[inline]
    fn route6(&self, destination: Ipv6Addr) -> Route {
        match &self.ipv6 {
            Some(ipv6) if is_host6(destination) => {
                let hop = if ipv6.is_on_link(destination) { Some(destination) } else { ipv6.gateway };
                hop.map_or(Route::Unreachable, |hop| Route::Via(hop.into()))
            }
            _ => Route::Unreachable,
        }
    }

    /// Returns the source address of a packet to `destination` whose socket has not chosen one. For
    /// IPv6 RFC 6724 section 5, as far as two addresses can differ: the destination itself (rule
    /// 1), else the address of its scope (rule 2).
    #[inline]
    pub fn source_for(&self, destination: IpAddr) -> IpAddr {
        match destination {
            IpAddr::V4(ip) if ip.is_loopback() || ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V4(_) => self.config.ip.into(),
            IpAddr::V6(ip) => self.source_for6(ip).into(),
        }
    }

    /// As [`source_for`](Self::source_for).
    #[inline]
    pub fn source_for6(&self, destination: Ipv6Addr) -> Ipv6Addr {
        let link_scope = destination.is_unicast_link_local()
            // Interface-local and link-local groups (RFC 4291 section 2.7).
            || (destination.is_multicast() && destination.octets()[1] & 0xf <= 2);
        match &self.ipv6 {
            None => Ipv6Addr::LOCALHOST,
            Some(_) if destination.is_loopback() || destination.is_unspecified() => Ipv6Addr::LOCALHOST,
            Some(ipv6) if link_scope => ipv6.link_local,
            Some(ipv6) => ipv6.ip,
        }
    }
}

/// Returns whether `ip` can belong to one host: not in 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/4 or
/// 240.0.0.0/4 (RFC 1122 section 3.2.1.3, RFC 1112 section 4).
#[inline]
fn is_host(ip: Ipv4Addr) -> bool {
    !matches!(ip.octets()[0], 0 | 127 | 224..=255)
}

/// Returns whether `ip` can belong to one host on a network: neither unspecified, nor ::1, nor a
/// group (RFC 4291 section 2.4), nor IPv4-mapped, which no packet may carry (RFC 4038 section 4.2
/// on the checks it would evade).
#[inline]
fn is_host6(ip: Ipv6Addr) -> bool {
    !ip.is_multicast() && !matches!(ip.segments(), [0, 0, 0, 0, 0, 0 | 0xffff, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn config() -> NetConfig {
        NetConfig {
            ip: Ipv4Addr::new(10, 1, 2, 3),
            prefix: 24,
            gateway: Some(Ipv4Addr::new(10, 1, 2, 1)),
            ipv6: Some(Ipv6Config { ip: ip6("fd00::1:3"), prefix: 64, gateway: Some(ip6("fd00::1:1")) }),
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
        let gateway = Route::Via([10, 1, 2, 1].into());
        for (to, expected) in [
            ("10.1.2.3", Route::Local),
            ("127.0.0.1", Route::Local),
            ("127.9.9.9", Route::Local),
            ("0.0.0.0", Route::Local),
            ("10.1.2.9", Route::Via([10, 1, 2, 9].into())),
            ("10.1.3.9", gateway),
            ("192.0.2.1", gateway),
            ("10.1.2.255", Route::Broadcast),
            ("255.255.255.255", Route::Broadcast),
            ("224.0.0.1", Route::Group),
            ("0.1.2.3", Route::Unreachable),
            ("250.0.0.1", Route::Unreachable),
        ] {
            assert_eq!(route(&c, to), expected, "{to}");
        }
        assert_eq!(route(&NetConfig { gateway: None, ..c }, "192.0.2.1"), Route::Unreachable);
    }

    #[test]
    fn ipv6_destinations_are_found_where_they_are() {
        let c = config();
        let via = |ip: &str| Route::Via(ip6(ip).into());
        for (to, expected) in [
            ("fd00::1:3", Route::Local),
            ("fe80::ff:fe00:1", Route::Local),
            ("::1", Route::Local),
            ("::", Route::Local),
            ("fd00::9", via("fd00::9")),
            ("fe80::9", via("fe80::9")),
            ("fd00:0:0:1::9", via("fd00::1:1")),
            ("2001:db8::1", via("fd00::1:1")),
            ("ff02::1", Route::Group),
            ("::ffff:10.1.2.9", Route::Unreachable),
            ("::2", Route::Unreachable),
        ] {
            assert_eq!(route(&c, to), expected, "{to}");
        }
        let without = NetConfig { ipv6: None, ..c };
        assert_eq!(route(&without, "::1"), Route::Local);
        for elsewhere in ["fd00::9", "fe80::9", "fe80::ff:fe00:1"] {
            assert_eq!(route(&without, elsewhere), Route::Unreachable, "{elsewhere}");
        }
    }

    #[test]
    fn a_packet_comes_from_the_address_of_its_destinations_scope() {
        let addressing = Addressing::new(config()).unwrap();
        let link_local = MacAddr([2, 0, 0, 0, 0, 1]).link_local();
        assert_eq!(link_local, ip6("fe80::ff:fe00:1"));
        for (to, from) in [
            ("10.1.2.9", "10.1.2.3"),
            ("127.0.0.9", "127.0.0.1"),
            ("::1", "::1"),
            ("fd00::1:3", "fd00::1:3"),
            ("fd00::9", "fd00::1:3"),
            ("2001:db8::1", "fd00::1:3"),
            ("fe80::9", "fe80::ff:fe00:1"),
            ("fe80::ff:fe00:1", "fe80::ff:fe00:1"),
            ("ff02::1", "fe80::ff:fe00:1"),
            ("ff0e::1", "fd00::1:3"),
        ] {
            let from: IpAddr = from.parse().unwrap();
            assert_eq!(addressing.source_for(to.parse().unwrap()), from, "{to}");
        }
    }

    #[test]
    fn groups_are_those_of_our_addresses_and_everybodys() {
        let addressing = Addressing::new(config()).unwrap();
        for (group, mac, member) in [
            ("ff02::1", [0x33, 0x33, 0, 0, 0, 1], true),
            ("ff02::1:ff01:3", [0x33, 0x33, 0xff, 1, 0, 3], true),
            ("ff02::1:ff00:1", [0x33, 0x33, 0xff, 0, 0, 1], true),
            ("ff02::1:ff00:2", [0x33, 0x33, 0xff, 0, 0, 2], false),
            ("ff02::2", [0x33, 0x33, 0, 0, 0, 2], false),
        ] {
            let group = ip6(group);
            assert_eq!(MacAddr::of_group(group).0, mac);
            assert_eq!(
                (addressing.is_group_member(group), addressing.hears(MacAddr(mac))),
                (member, member),
                "{group}"
            );
        }
        assert!(addressing.hears(MacAddr::BROADCAST));
    }

    #[test]
    fn standalone_reaches_only_itself() {
        let c = NetConfig { mode: Mode::Standalone, ..config() };
        assert_eq!(route(&c, "10.1.2.3"), Route::Local);
        assert_eq!(route(&c, "127.0.0.1"), Route::Local);
        assert_eq!(route(&c, "::1"), Route::Local);
        for elsewhere in ["fd00::9", "fe80::9", "10.1.2.9", "192.0.2.1", "255.255.255.255"] {
            assert_eq!(route(&c, elsewhere), Route::Unreachable);
        }
    }

    #[test]
    fn prefixes_from_nothing_to_everything_work() {
        let c = config();
        let with = |prefix, gateway| NetConfig { prefix, gateway, ..c.clone() };
        assert_eq!(route(&with(0, None), "192.0.2.1"), Route::Via([192, 0, 2, 1].into()));
        assert_eq!(route(&with(32, None), "10.1.2.4"), Route::Unreachable);
        assert_eq!(route(&with(31, None), "10.1.2.2"), Route::Via([10, 1, 2, 2].into()));
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
        let local_mtu = |local, mtu| ConfigError::LocalMtu { local, mtu };
        assert_eq!(refused(|c| c.local_mtu = 1499), local_mtu(1499, 1500));
        assert_eq!(refused(|c| c.local_mtu = 9001), local_mtu(9001, 1500));
        assert_eq!(refused(|c| c.mtu = 1279), ConfigError::Mtu6(1279));
        let refused6 = |change: fn(&mut Ipv6Config)| {
            let mut c = config();
            c.ipv6.as_mut().map(change).unwrap();
            Addressing::new(c).unwrap_err()
        };
        assert_eq!(refused6(|c| c.prefix = 129), ConfigError::Prefix6(129));
        for bad in ["::", "::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1"] {
            let mut c = config();
            c.ipv6 = Some(Ipv6Config { ip: ip6(bad), prefix: 64, gateway: None });
            assert_eq!(Addressing::new(c).unwrap_err(), ConfigError::Ip6(ip6(bad)));
        }
        for gateway in ["fd00:0:0:1::1", "fd00::1:3", "ff02::1", "::1"] {
            let mut c = config();
            c.ipv6.as_mut().unwrap().gateway = Some(ip6(gateway));
            assert!(matches!(Addressing::new(c), Err(ConfigError::Gateway6 { .. })), "{gateway}");
        }
        assert_eq!(refused(|c| c.udp_receive_bytes = 100), ConfigError::UdpReceiveBytes(100));
        for gateway in ["10.1.3.1", "10.1.2.3", "127.0.0.1"] {
            let mut c = config();
            c.gateway = Some(gateway.parse().unwrap());
            assert!(matches!(Addressing::new(c), Err(ConfigError::Gateway { .. })), "{gateway}");
        }
    }
}
