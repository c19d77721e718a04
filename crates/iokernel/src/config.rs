//! The IOKernel's settings: names, units, defaults and limits.
//!
//! Owns [`Config`] and its check. Reads no file and no environment: the daemon passes the text of
//! its configuration file to [`Config::from_toml`], embedding programs fill the struct. Unknown
//! keys are refused, so that a misspelt one is noticed. The name of every duration carries its
//! unit.

use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use tailwater_ports::options::PortOptions;
pub use tailwater_sched::alloc::PolicyName;
use tailwater_shm::control::{ControlError, check_address};
use tailwater_shm::layout::MAX_KTHREADS;
use tailwater_shm::ring::{LINE, MAX_LINES, MAX_PACKET, MIN_LINES};

use crate::authority::grant::{Grant, MAX_GRANTS};
use crate::firewall::FirewallConfig;
use crate::macs::Macs;

mod cores;
mod ix;
mod policy_name;
mod reserve;
#[cfg(test)]
mod schema;
mod unknown;

pub use cores::CoreList;
pub use ix::{IxSettings, IxStep};
pub use reserve::ReserveSettings;

/// Least setting of `max-region-bytes`: a program of one user gets a region of some kthreads.
const MIN_REGION_BYTES: u64 = 1 << 20;
/// Least setting of `broadcast-copies`: address resolution at a start.
const LEAST_COPIES: u32 = 100;
/// Every IPv6 link carries packets of this many bytes (RFC 8200 section 5).
const MIN_MTU_IPV6: u16 = 1280;

/// How far the IOKernel raises its priority above other programs on its core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Unchanged.
    None,
    /// The polling thread only. Effective within one session where Linux groups sessions
    /// (autogroup).
    #[default]
    Thread,
    /// The polling thread and the session it belongs to; restored when the IOKernel ends.
    Session,
}

/// Settings of an IOKernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Address of the control socket; `@name` is in the abstract namespace and needs no file.
    pub socket: String,
    /// Core of the polling thread; `None`: the first core that this process may use.
    #[serde(rename = "core")]
    pub iokernel_core: Option<u16>,
    /// Cores lent to runtimes; `None`: all that this process may use except the IOKernel's.
    #[serde(with = "cores", skip_serializing_if = "Option::is_none")]
    pub managed_cores: Option<Vec<u16>>,
    /// NUMA node whose cores alone are used; `None`: those of all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u16>,
    /// IPv4 network of the runtimes.
    pub network: Ipv4Addr,
    /// Length of the network's prefix in bits, 8 to 30.
    pub prefix_len: u8,
    /// True if runtimes have an IPv6 address beside the IPv4 one. With an `mtu` below 1280 they
    /// have none.
    pub ipv6: bool,
    /// IPv6 network of the runtimes, a /64 (`fd00:7477::` is a unique local one, RFC 4193). A
    /// runtime's address in it has the host number of its IPv4 address: 10.77.0.2 corresponds to
    /// fd00:7477::2.
    pub network6: Ipv6Addr,
    /// First address given to runtimes that ask for none; `None`: the first host of the network's
    /// upper half.
    pub pool_start: Option<Ipv4Addr>,
    /// MAC addresses of programs at these addresses of the network; those of all others are derived
    /// from their addresses.
    pub macs: Macs,
    /// Maximum length of an IP packet on the network in bytes, 576 to 9000. Between programs it is
    /// 9000, which TCP uses.
    pub mtu: u16,
    /// Policy that allocates cores: one of those tested on machines ([`PolicyName::is_live`]). The
    /// simulator has the others.
    #[serde(with = "policy_name")]
    pub policy: PolicyName,
    /// Of the policies `ix-consolidation` and `ix-energy`.
    pub ix: IxSettings,
    /// Keeps ordinary threads off cores that programs request.
    pub reserve: ReserveSettings,
    /// Interval at which the allocator reads all queues and the policy decides, in microseconds
    /// (Shenango section 4.1: 5).
    pub allocation_interval_us: u64,
    /// How long a bursting best-effort runtime keeps a core before another one with fewer cores may
    /// take it, in microseconds.
    pub burst_quantum_us: u64,
    /// The same among latency-critical runtimes.
    pub service_quantum_us: u64,
    /// How long a TCP acknowledgment that no thread waits for stays in the ring of a program
    /// without a core before the program is woken for it, in microseconds; 0: it is woken at once.
    pub ack_hold_us: u64,
    /// How long a kthread may take to reach a poll point before it is sent the preempt signal, in
    /// microseconds.
    pub cede_grace_us: u64,
    /// How long a kthread may take to start on a core it was lent before the core is taken back, in
    /// microseconds.
    pub start_deadline_us: u64,
    /// Longest time that the polling thread polls with nothing to do before it sleeps, in
    /// microseconds; 0: never sleep. It sleeps sooner when the times between the last events show
    /// that polling does not pay.
    pub idle_sleep_us: u64,
    /// How late a sleeping polling thread may notice what no doorbell reports, in microseconds: a
    /// best-effort runtime whose turn it is on a core that another one holds.
    pub max_wake_delay_us: u64,
    /// Percentage of the polling thread's core for ordinary threads that wait for it while it must
    /// poll, 0 to 50. While other programs compete for the cores, best-effort kthreads rank behind
    /// them, and services ahead; best-effort ones also while the polling thread sleeps beside them.
    /// With 0, on a dedicated machine, all kthreads always rank ahead.
    pub neighbour_share: u8,
    /// Percentage of the polling thread's time that refused and useless work of a tenant may cost,
    /// 1 to 100: refused frames, doorbells and demands for cores without need. Beyond it the tenant
    /// is not served for a while.
    pub offence_share: u8,
    /// Maximum number of copies of broadcast and multicast frames that one runtime may cause per
    /// second, and at once; what it sends to groups beyond is dropped.
    pub broadcast_copies: u32,
    /// Maximum number of registered runtimes.
    pub max_runtimes: u32,
    /// Maximum number of kthreads of one runtime.
    pub max_kthreads: u16,
    /// Maximum size of one packet ring in bytes; a runtime has two per kthread.
    pub max_ring_bytes: u32,
    /// Maximum number of bytes of the shared memory of all runtimes together; `None`: a quarter of
    /// the machine's memory. A quarter of this is the maximum of one user, and a quarter is left
    /// for root and the IOKernel's own user.
    pub max_region_bytes: Option<u64>,
    /// How far to raise the priority of the polling thread.
    pub priority: Priority,
    /// Where frames enter and leave, for programs that build their ports from the configuration
    /// ([`PortOptions::build`]).
    pub ports: PortOptions,
    /// Which packets pass between runtimes, and between runtimes and ports.
    pub firewall: FirewallConfig,
    /// What users other than root and the IOKernel's own may register; without any, nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grant: Vec<Grant>,
    /// The file that this was read from, for messages.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: "@tailwater".to_owned(),
            iokernel_core: None,
            managed_cores: None,
            node: None,
            network: Ipv4Addr::new(10, 77, 0, 0),
            prefix_len: 16,
            ipv6: true,
            network6: Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 0),
            pool_start: None,
            macs: Macs::default(),
            mtu: 1500,
            policy: PolicyName::Congestion,
            ix: IxSettings::default(),
            reserve: ReserveSettings::default(),
            allocation_interval_us: 5,
            burst_quantum_us: 1_000,
            service_quantum_us: 100,
            ack_hold_us: 2_000,
            cede_grace_us: 5,
            start_deadline_us: 20_000,
            idle_sleep_us: 1_000,
            max_wake_delay_us: 10_000,
            neighbour_share: 10,
            offence_share: 1,
            broadcast_copies: 20_000,
            max_runtimes: 256,
            max_kthreads: MAX_KTHREADS,
            max_ring_bytes: 4 << 20,
            max_region_bytes: None,
            priority: Priority::default(),
            ports: PortOptions::default(),
            firewall: FirewallConfig::default(),
            grant: Vec::new(),
            file: None,
        }
    }
}

/// A setting is out of range, or the file is not a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, an unknown key, or a value of the wrong type; the parser names the place.
    #[error("configuration: {0}")]
    Syntax(String),
    /// A value out of range.
    #[error("configuration: {key} = {value}: {expected}")]
    Value {
        /// The key as written in the file.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: String,
    },
}

impl ConfigError {
    /// Returns what is wrong, without the word with which such errors begin: for where another one
    /// has said what it is about.
    #[must_use]
    pub fn without_heading(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("configuration: ").unwrap_or(&text).to_owned()
    }
}

fn out_of_range(
    key: &'static str,
    value: impl core::fmt::Display,
    expected: impl Into<String>,
) -> ConfigError {
    ConfigError::Value { key, value: value.to_string(), expected: expected.into() }
}

impl Config {
    /// Reads and checks a TOML text; keys left out keep their defaults.
    ///
    /// # Errors
    /// [`ConfigError`] names the key, or the place in the text.
    ///
    /// ```
    /// use tailwater_iokernel::Config;
    ///
    /// let config = Config::from_toml("cede-grace-us = 10\nmanaged-cores = [1]").unwrap();
    /// assert_eq!(config.cede_grace_us, 10);
    /// assert!(Config::from_toml("cede-grace = 10").is_err());
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|e| ConfigError::Syntax(unknown::explain(&e)))?;
        config.check()?;
        Ok(config)
    }

    /// Checks every value that can be checked without reading the machine's properties.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the key and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.socket.contains(",user=") {
            let expected = "an IOKernel listens at an address alone; ,user=UID is for those who connect";
            return Err(out_of_range("socket", format!("{:?}", self.socket), expected));
        }
        if let Err(ControlError::Address { path, why }) = check_address(&self.socket) {
            return Err(out_of_range("socket", format!("{path:?}"), why));
        }
        self.check_cores()?;
        if self.ports.host_ip.is_some() && self.ports.tap.is_none() {
            let host = self.ports.host_ip.map_or_else(String::new, |ip| ip.to_string());
            return Err(out_of_range("ports.host-ip", host, "only with ports.tap"));
        }
        if !(8..=30).contains(&self.prefix_len) {
            return Err(out_of_range("prefix-len", self.prefix_len, "8 to 30 leading bits are allowed"));
        }
        if self.network.to_bits() & !self.mask() != 0 {
            let network = Ipv4Addr::from_bits(self.network.to_bits() & self.mask());
            return Err(out_of_range(
                "network",
                self.network,
                format!("has bits after the prefix; write {network}"),
            ));
        }
        // 127 is the loopback network; from 224 on are groups and reserved addresses (RFC 1122
        // section 3.2.1.3).
        if matches!(self.network.octets()[0], 0 | 127 | 224..) {
            let expected = "is no network of hosts; 10.77.0.0 is one";
            return Err(out_of_range("network", self.network, expected));
        }
        if let Some(start) = self.pool_start
            && !self.is_host(start)
        {
            return Err(out_of_range(
                "pool-start",
                start,
                format!("is not a host address of {}/{}", self.network, self.prefix_len),
            ));
        }
        let network6 = self.network6;
        if network6.to_bits() as u64 != 0 {
            let network = Ipv6Addr::from_bits(network6.to_bits() & !u128::from(u64::MAX));
            return Err(out_of_range("network6", network6, format!("has bits after 64; write {network}")));
        }
        let link_local = network6.is_unicast_link_local();
        if network6.is_unspecified() || network6.is_multicast() || link_local {
            let why = "is not a network of unicast addresses beyond the link; fd00:7477:: is one";
            return Err(out_of_range("network6", network6, why));
        }
        if !(576..=MAX_PACKET).contains(&self.mtu) {
            return Err(out_of_range("mtu", self.mtu, format!("576 to {MAX_PACKET} bytes are allowed")));
        }
        self.macs.check(|ip| self.is_host(ip)).map_err(|(value, expected)| ConfigError::Value {
            key: "macs",
            value,
            expected,
        })?;
        policy_name::check(self.policy).map_err(|why| out_of_range("policy", self.policy, why))?;
        self.ix.check()?;
        self.reserve.check()?;
        if self.ix.state_file == self.reserve.state_file {
            let expected = "must differ from ix.state-file";
            return Err(out_of_range("reserve.state-file", self.reserve.state_file.display(), expected));
        }
        self.check_times()?;
        self.check_limits()?;
        self.check_grants()?;
        self.firewall.check().map_err(|(key, value, expected)| ConfigError::Value { key, value, expected })
    }

    fn check_cores(&self) -> Result<(), ConfigError> {
        let Some(managed) = &self.managed_cores else { return Ok(()) };
        let wrong =
            |expected: String| Err(out_of_range("managed-cores", CoreList(managed.clone()), expected));
        if managed.is_empty() {
            return Err(out_of_range("managed-cores", "[]", "name at least one core to lend"));
        }
        if let Some(polling) = self.iokernel_core.filter(|core| managed.contains(core)) {
            return wrong(format!("core {polling} is the one that the IOKernel polls on and cannot be lent"));
        }
        let twice = |&(n, core): &(usize, &u16)| managed[..n].contains(core);
        match managed.iter().enumerate().find(twice) {
            Some((_, core)) => wrong(format!("core {core} is listed twice")),
            None => Ok(()),
        }
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        let hour = 3_600_000_000;
        for (key, value, least) in [
            ("allocation-interval-us", self.allocation_interval_us, 1),
            ("burst-quantum-us", self.burst_quantum_us, 0),
            ("service-quantum-us", self.service_quantum_us, 0),
            ("ack-hold-us", self.ack_hold_us, 0),
            ("cede-grace-us", self.cede_grace_us, 1),
            ("start-deadline-us", self.start_deadline_us, 1_000),
            ("idle-sleep-us", self.idle_sleep_us, 0),
            ("max-wake-delay-us", self.max_wake_delay_us, 100),
        ] {
            if !(least..=hour).contains(&value) {
                return Err(out_of_range(key, value, format!("{least} to {hour} us are allowed")));
            }
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let runtimes = tailwater_sched::ledger::MAX_RUNTIMES;
        if !(1..=runtimes).contains(&self.max_runtimes) {
            return Err(out_of_range("max-runtimes", self.max_runtimes, format!("1 to {runtimes}")));
        }
        if !(1..=MAX_KTHREADS).contains(&self.max_kthreads) {
            return Err(out_of_range("max-kthreads", self.max_kthreads, format!("1 to {MAX_KTHREADS}")));
        }
        let (least, most) = (MIN_LINES * LINE as u32, MAX_LINES * LINE as u32);
        if !(least..=most).contains(&self.max_ring_bytes) {
            return Err(out_of_range(
                "max-ring-bytes",
                self.max_ring_bytes,
                format!("{least} to {most} bytes"),
            ));
        }
        if let Some(bytes) = self.max_region_bytes.filter(|&bytes| bytes < MIN_REGION_BYTES) {
            return Err(out_of_range(
                "max-region-bytes",
                bytes,
                format!("at least {MIN_REGION_BYTES} bytes"),
            ));
        }
        if self.neighbour_share > 50 {
            return Err(out_of_range(
                "neighbour-share",
                self.neighbour_share,
                "0 to 50 percent are possible",
            ));
        }
        if !(1..=100).contains(&self.offence_share) {
            return Err(out_of_range("offence-share", self.offence_share, "1 to 100 percent are possible"));
        }
        let most = 100_000_000;
        if !(LEAST_COPIES..=most).contains(&self.broadcast_copies) {
            let expected = format!("{LEAST_COPIES} to {most} copies a second");
            return Err(out_of_range("broadcast-copies", self.broadcast_copies, expected));
        }
        Ok(())
    }

    fn check_grants(&self) -> Result<(), ConfigError> {
        if self.grant.len() > MAX_GRANTS {
            return Err(out_of_range("grant", self.grant.len(), format!("at most {MAX_GRANTS} tables")));
        }
        let wrong = |(key, value, expected)| ConfigError::Value { key, value, expected };
        self.grant.iter().try_for_each(|grant| grant.check().map_err(wrong))
    }

    fn mask(&self) -> u32 {
        u32::MAX << (32 - u32::from(self.prefix_len))
    }

    /// Returns whether the machine is dedicated to Tailwater: no core is shared with other programs
    /// on purpose, and kthreads of all classes rank above them.
    pub fn is_dedicated(&self) -> bool {
        self.neighbour_share == 0
    }

    /// Returns the network's broadcast address.
    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() | !self.mask())
    }

    /// Returns whether `ip` is a host address of the network: inside it, and neither the network's
    /// own address nor the broadcast address.
    pub fn is_host(&self, ip: Ipv4Addr) -> bool {
        let inside = ip.to_bits() & self.mask() == self.network.to_bits();
        inside && ip != self.network && ip != self.broadcast()
    }

    /// Returns the networks from which programs get addresses, as `ADDRESS/BITS`.
    #[must_use]
    pub fn networks(&self) -> Vec<String> {
        let network6 = self.has_ipv6().then(|| format!("{}/64", self.network6));
        [format!("{}/{}", self.network, self.prefix_len)].into_iter().chain(network6).collect()
    }

    fn has_ipv6(&self) -> bool {
        self.ipv6 && self.mtu >= MIN_MTU_IPV6
    }

    /// Returns the IPv6 address that corresponds to `ip`, an address of the network; `None` without
    /// IPv6.
    pub fn ip6_of(&self, ip: Ipv4Addr) -> Option<Ipv6Addr> {
        self.has_ipv6().then(|| {
            let host = ip.to_bits() & !self.mask();
            Ipv6Addr::from_bits(self.network6.to_bits() | u128::from(host))
        })
    }

    /// Returns the first address of the pool.
    pub fn first_pool_address(&self) -> Ipv4Addr {
        // The lower half is left to programs that choose their addresses.
        let half = 1 << (31 - u32::from(self.prefix_len));
        let first = if half > 2 { half + 1 } else { 2 };
        self.pool_start.unwrap_or_else(|| Ipv4Addr::from_bits(self.network.to_bits() + first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass_their_own_check_and_survive_a_file() {
        let config = Config::default();
        config.check().unwrap();
        let text = toml::to_string(&config).unwrap();
        assert_eq!(Config::from_toml(&text).unwrap(), config);
    }

    #[test]
    fn a_table_of_ports_is_read_and_survives() {
        let text = "mtu = 9000\n[ports]\nxdp = \"eth1,mode=skb\"\nfault = \"loss=1%,delay=5ms,seed=7\"";
        let config = Config::from_toml(text).unwrap();
        assert_eq!(config.ports.xdp.as_deref(), Some("eth1,mode=skb"));
        assert_eq!(Config::from_toml(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert!(Config::from_toml("[ports]\nxpd = \"eth1\"").unwrap_err().to_string().contains("xpd"));
    }

    #[test]
    fn a_misspelt_key_is_refused_with_its_name() {
        let error = Config::from_toml("cede-grace = 3").unwrap_err().to_string();
        assert!(error.contains("cede-grace"), "{error}");
    }

    #[test]
    fn a_policy_is_live_or_refused_with_the_names_of_those_that_are() {
        for policy in PolicyName::ALL {
            let parsed = Config::from_toml(&format!("policy = \"{policy}\""));
            if policy.is_live() {
                let config = parsed.unwrap();
                assert_eq!(config.policy, policy);
                assert_eq!(
                    crate::policy::build(&config, tailwater_sched::alloc::Clocks::default()).name(),
                    policy.as_str()
                );
                assert_eq!(Config::from_toml(&toml::to_string(&config).unwrap()).unwrap(), config);
            } else {
                let error = parsed.unwrap_err().to_string();
                for part in ["policy", policy.as_str(), "simulator", "congestion-detection", "static"] {
                    assert!(error.contains(part), "{error}");
                }
            }
        }
        let unknown = Config::from_toml("policy = \"borg\"").unwrap_err().to_string();
        assert!(unknown.contains("`borg`") && unknown.contains("static"), "{unknown}");
    }

    #[test]
    fn impossible_values_name_the_key_and_what_is_possible() {
        for (text, key) in [
            ("prefix-len = 31", "prefix-len"),
            ("network = \"10.77.0.1\"", "network"),
            ("network = \"127.0.0.0\"", "network"),
            ("network = \"0.0.0.0\"", "network"),
            ("network = \"224.0.0.0\"", "network"),
            ("socket = \"\"", "socket"),
            ("socket = \"@\"", "socket"),
            ("socket = \"@tw,user=1000\"", "socket"),
            ("managed-cores = []", "managed-cores"),
            ("managed-cores = [1, 2, 1]", "managed-cores"),
            ("managed-cores = \"1-3\"\ncore = 2", "managed-cores"),
            ("[ports]\nhost-ip = \"10.77.0.1\"", "ports.host-ip"),
            ("[[grant]]\nusers = 1000\nkthreads = 0", "grant.kthreads"),
            ("pool-start = \"10.78.0.1\"", "pool-start"),
            ("pool-start = \"10.77.255.255\"", "pool-start"),
            ("network6 = \"fd00:7477::1\"", "network6"),
            ("network6 = \"fe80::\"", "network6"),
            ("network6 = \"ff02::\"", "network6"),
            ("network6 = \"::\"", "network6"),
            ("macs = {\"10.78.0.5\" = \"52:54:00:00:00:05\"}", "macs"),
            ("mtu = 100", "mtu"),
            ("mtu = 9001", "mtu"),
            ("allocation-interval-us = 0", "allocation-interval-us"),
            ("max-wake-delay-us = 99", "max-wake-delay-us"),
            ("max-runtimes = 100000", "max-runtimes"),
            ("max-kthreads = 0", "max-kthreads"),
            ("max-ring-bytes = 1000", "max-ring-bytes"),
            ("max-region-bytes = 1000", "max-region-bytes"),
            ("[ix]\ndelay-bound-us = 0", "ix.delay-bound-us"),
            ("[ix]\nperiod-ms = 0", "ix.period-ms"),
            ("[ix]\nsmoothing-ms = 0", "ix.smoothing-ms"),
            ("[ix]\nperiod-ms = 1\nsample-us = 1001", "ix.sample-us"),
            ("[ix]\nhysteresis = 91", "ix.hysteresis"),
            ("[ix]\nstate-file = \"run\"", "ix.state-file"),
            ("[[ix.steps]]\ncores = 0\nthreads = 1", "ix.steps"),
            ("neighbour-share = 51", "neighbour-share"),
            ("offence-share = 0", "offence-share"),
            ("broadcast-copies = 99", "broadcast-copies"),
        ] {
            let error = Config::from_toml(text).unwrap_err();
            assert!(matches!(error, ConfigError::Value { key: k, .. } if k == key), "{text}: {error}");
        }
    }

    #[test]
    fn an_ipv6_address_is_the_network_with_the_host_number() {
        let config = Config::default();
        let of = |config: &Config, ip: [u8; 4]| config.ip6_of(ip.into()).map(|ip| ip.to_string());
        assert_eq!(of(&config, [10, 77, 0, 2]).as_deref(), Some("fd00:7477::2"));
        assert_eq!(of(&config, [10, 77, 200, 1]).as_deref(), Some("fd00:7477::c801"));
        let other = Config::from_toml("prefix-len = 24\nnetwork6 = \"2001:db8:0:7::\"").unwrap();
        assert_eq!(of(&other, [10, 77, 0, 254]).as_deref(), Some("2001:db8:0:7::fe"));
        assert_eq!(config.networks(), ["10.77.0.0/16", "fd00:7477::/64"]);
        let config4 = Config { ipv6: false, ..config.clone() };
        assert_eq!(
            (of(&config4, [10, 77, 0, 2]), &*config4.networks()),
            (None, &["10.77.0.0/16".to_owned()][..])
        );
        assert_eq!(of(&Config { mtu: 1279, ..config }, [10, 77, 0, 2]), None, "too short for IPv6");
    }

    #[test]
    fn hosts_are_told_from_the_network_and_its_broadcast() {
        let config = Config::default();
        for (ip, host) in [
            ([10, 77, 0, 1], true),
            ([10, 77, 255, 254], true),
            ([10, 77, 0, 0], false),
            ([10, 77, 255, 255], false),
            ([10, 78, 0, 1], false),
        ] {
            assert_eq!(config.is_host(ip.into()), host, "{ip:?}");
        }
        assert_eq!(config.first_pool_address(), Ipv4Addr::new(10, 77, 128, 1));
        for (prefix_len, first) in [(24, 129), (28, 9), (29, 5), (30, 2)] {
            let small = Config { prefix_len, ..Config::default() };
            assert_eq!(small.first_pool_address(), Ipv4Addr::new(10, 77, 0, first), "/{prefix_len}");
            assert!(small.is_host(small.first_pool_address()));
        }
    }
}
