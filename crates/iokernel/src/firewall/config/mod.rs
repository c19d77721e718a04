//! The firewall's settings: section `[firewall]` of the configuration.
//!
//! Owns [`FirewallConfig`] and its check. Each rule or limit is checked while it is read, so that
//! the parser names the line; what concerns all of them is checked afterwards.

use serde::{Deserialize, Serialize};
use tailwater_shm::ring::MAX_FRAME;
use tailwater_wire::frame::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPES_VLAN, MIN_ETHERTYPE};

use super::text::{PortRange, Prefix, Protocol, one_or_many};

/// Maximum number of rules in a configuration.
const MAX_RULES: usize = 4096;
/// Maximum number of tests to which the rules about one runtime may expand in one direction.
pub const MAX_TESTS: usize = 256;

/// Maximum rate of a limit: 10^12 units per second.
pub(super) const MAX_RATE: u64 = 1_000_000_000_000;
/// Maximum burst of a limit in units (bits: 64 MiB).
pub(super) const MAX_BURST: u64 = 1 << 29;

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It passes.
    #[default]
    Allow,
    /// It is dropped and counted.
    Deny,
}

/// Which packets of a runtime a rule or limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Packets that the runtime sends.
    Egress,
    /// Packets for the runtime, including those from other runtimes.
    Ingress,
    /// Both.
    #[default]
    Both,
}

impl Direction {
    /// Returns whether packets in `direction` are included.
    pub(super) fn includes(self, direction: Self) -> bool {
        self == Self::Both || self == direction
    }
}

/// What happens to frames for IPv6 groups that no address of a runtime implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Multicast {
    /// Every runtime gets them.
    #[default]
    Flood,
    /// No runtime gets them; ports do.
    Drop,
}

/// One rule: packets that match all its conditions are allowed or denied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Rule {
    /// Name in statistics; `None`: the rule's number, from 1.
    pub name: Option<String>,
    /// Name of the runtime that the rule applies to; `None`: all.
    pub runtime: Option<String>,
    /// Which of the runtime's packets.
    pub direction: Direction,
    /// What happens to them.
    pub action: Action,
    /// Upper-layer protocol; `None`: any.
    pub protocol: Option<Protocol>,
    /// Prefixes of the other side's address; empty: any.
    pub remote: Vec<Prefix>,
    /// Prefixes of the runtime's own address (of ingress: of the destination, which may be a
    /// group); empty: any.
    pub local: Vec<Prefix>,
    /// Ports of the other side; empty: any.
    pub remote_port: Vec<PortRange>,
    /// Ports of the runtime; empty: any.
    pub local_port: Vec<PortRange>,
    /// Only TCP segments that have ACK or RST set: all but the first of a connection.
    pub established: bool,
}

/// A rule as written in a file, unchecked.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
    direction: Direction,
    action: Action,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    remote: Vec<Prefix>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    local: Vec<Prefix>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    remote_port: Vec<PortRange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    local_port: Vec<PortRange>,
    #[serde(default)]
    established: bool,
}

impl TryFrom<Written> for Rule {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { name, runtime, direction, action, protocol, .. } = written;
        let Written { remote, local, remote_port, local_port, established, .. } = written;
        let rule = Self {
            name,
            runtime,
            direction,
            action,
            protocol,
            remote,
            local,
            remote_port,
            local_port,
            established,
        };
        rule.check().map(|()| rule)
    }
}

impl From<Rule> for Written {
    fn from(rule: Rule) -> Self {
        let Rule { name, runtime, direction, action, protocol, .. } = rule;
        let Rule { remote, local, remote_port, local_port, established, .. } = rule;
        Self {
            name,
            runtime,
            direction,
            action,
            protocol,
            remote,
            local,
            remote_port,
            local_port,
            established,
        }
    }
}

impl Rule {
    pub(super) fn check(&self) -> Result<(), String> {
        let ports = !self.remote_port.is_empty() || !self.local_port.is_empty();
        let has_ports = matches!(self.protocol, None | Some(Protocol::TCP | Protocol::UDP));
        if ports && !has_ports {
            return Err("only tcp and udp have ports; leave out the ports or change the protocol".to_owned());
        }
        if self.established && !matches!(self.protocol, None | Some(Protocol::TCP)) {
            return Err("only tcp has established connections; leave out `established`".to_owned());
        }
        let family = |list: &[Prefix]| list.iter().any(|prefix| prefix.is_ipv6());
        let (remote, local) = (&self.remote, &self.local);
        let mixed = |list: &[Prefix]| family(list) && list.iter().any(|prefix| !prefix.is_ipv6());
        if !remote.is_empty()
            && !local.is_empty()
            && !mixed(remote)
            && !mixed(local)
            && family(remote) != family(local)
        {
            return Err("`remote` and `local` are of different IP versions: nothing would match".to_owned());
        }
        let tests = self.tests();
        if tests > MAX_TESTS {
            return Err(format!(
                "the rule has {tests} combinations of prefixes and ports; {MAX_TESTS} are allowed: join ranges or \
                 prefixes, or write several rules about different runtimes"
            ));
        }
        Ok(())
    }

    /// Returns the number of tests that the rule compiles to.
    pub(super) fn tests(&self) -> usize {
        [self.remote.len(), self.local.len(), self.remote_port.len(), self.local_port.len()]
            .iter()
            .fold(1, |product: usize, &n| product.saturating_mul(n.max(1)))
    }

    /// Returns its name in statistics, as the `number`-th rule.
    pub(crate) fn shown_name(&self, number: usize) -> String {
        self.name.clone().unwrap_or_else(|| number.to_string())
    }
}

/// Limits of a runtime's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limit {
    /// Name of the runtime that the limit applies to; `None`: all, each separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Which of the runtime's packets; both directions count separately.
    pub direction: Direction,
    /// Frames per second, 1 to 10^12; `None`: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_per_s: Option<u64>,
    /// Bits of frames per second (with Ethernet headers, without frame check sequences and gaps), 1
    /// to 10^12; `None`: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_s: Option<u64>,
    /// Burst in frames, 1 to 2^29; `None`: the frames of a millisecond, at least 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_frames: Option<u64>,
    /// Burst in bytes, 9018 to 2^26; `None`: the bytes of a millisecond, at least 65536.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
}

impl Limit {
    fn check(&self) -> Result<(), (&'static str, String, String)> {
        let (frames, bytes) = (self.burst_frames, self.burst_bytes);
        for (key, value, least, most) in [
            ("firewall.limit.frames-per-s", self.frames_per_s, 1, MAX_RATE),
            ("firewall.limit.bits-per-s", self.bits_per_s, 1, MAX_RATE),
            ("firewall.limit.burst-frames", frames, 1, MAX_BURST),
            ("firewall.limit.burst-bytes", bytes, MAX_FRAME as u64, MAX_BURST / 8),
        ] {
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                return Err((key, value.to_string(), format!("{least} to {most} are allowed")));
            }
        }
        for (key, burst, rate, other) in [
            ("firewall.limit.burst-frames", frames, self.frames_per_s, "frames-per-s"),
            ("firewall.limit.burst-bytes", bytes, self.bits_per_s, "bits-per-s"),
        ] {
            if let (Some(burst), None) = (burst, rate) {
                return Err((key, burst.to_string(), format!("means nothing without {other}")));
            }
        }
        if self.frames_per_s.is_none() && self.bits_per_s.is_none() {
            let why = "limits nothing; give frames-per-s or bits-per-s".to_owned();
            return Err(("firewall.limit", "empty".to_owned(), why));
        }
        Ok(())
    }

    pub(super) fn burst_frames(&self) -> u64 {
        self.burst_frames.unwrap_or_else(|| (self.frames_per_s.unwrap_or(0) / 1_000).clamp(64, MAX_BURST))
    }

    pub(super) fn burst_bytes(&self) -> u64 {
        let rate = self.bits_per_s.unwrap_or(0);
        self.burst_bytes.unwrap_or_else(|| (rate / 8_000).clamp(1 << 16, MAX_BURST / 8))
    }
}

/// Settings of the firewall. By default everything passes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FirewallConfig {
    /// What happens to packets from a runtime that match no rule.
    pub egress: Action,
    /// What happens to packets for a runtime that match no rule.
    pub ingress: Action,
    /// What happens to frames for IPv6 groups other than those of neighbour discovery.
    pub multicast: Multicast,
    /// EtherTypes that runtimes may send beside those of IPv4, IPv6 and ARP, 1536 to 65535. Rules
    /// do not apply to their frames.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ethertypes: Vec<u16>,
    /// Rules: the first that matches decides.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Limits: of those that apply to a runtime in a direction, the first is used.
    #[serde(rename = "limit", skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
}

impl FirewallConfig {
    /// Checks what can be checked without reading the machine's properties; an error has key and
    /// value of the first wrong setting and what is allowed.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String, String)> {
        let known = [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ARP];
        for &number in &self.ethertypes {
            let value = format!("{number:#06x}");
            if number < MIN_ETHERTYPE {
                let why = "is a length, no EtherType; 0x0600 to 0xffff are allowed".to_owned();
                return Err(("firewall.ethertypes", value, why));
            }
            if known.contains(&number) || ETHERTYPES_VLAN.contains(&number) {
                let why = "IPv4, IPv6 and ARP pass without, VLAN tags never; leave it out".to_owned();
                return Err(("firewall.ethertypes", value, why));
            }
        }
        if self.rules.len() > MAX_RULES {
            let why = format!("at most {MAX_RULES} rules are allowed");
            return Err(("firewall.rule", self.rules.len().to_string(), why));
        }
        for (rule, number) in self.rules.iter().zip(1..) {
            rule.check().map_err(|why| ("firewall.rule", rule.shown_name(number), why))?;
        }
        self.limits.iter().try_for_each(Limit::check)?;
        self.check_tests()
    }

    /// Checks that no runtime, whatever its name, has more tests than [`MAX_TESTS`] in a direction.
    fn check_tests(&self) -> Result<(), (&'static str, String, String)> {
        let mut names: Vec<Option<&str>> = self.rules.iter().map(|rule| rule.runtime.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        for direction in [Direction::Egress, Direction::Ingress] {
            for &name in &names {
                let about = |rule: &&Rule| {
                    rule.direction.includes(direction)
                        && (rule.runtime.is_none() || rule.runtime.as_deref() == name)
                };
                let tests = self.rules.iter().filter(about).map(Rule::tests).fold(0, usize::saturating_add);
                if tests > MAX_TESTS {
                    let value =
                        name.map_or("rules about all".to_owned(), |name| format!("rules about {name}"));
                    let why = format!(
                        "come to {tests} combinations of prefixes and ports in one direction; {MAX_TESTS} are allowed: \
                         join ranges or prefixes, or leave out rules"
                    );
                    return Err(("firewall.rule", value, why));
                }
            }
        }
        Ok(())
    }

    pub(super) fn default_of(&self, direction: Direction) -> Action {
        if direction == Direction::Egress { self.egress } else { self.ingress }
    }

    /// Returns the limit of the runtime of this name.
    pub(super) fn limit(&self, runtime: &str, direction: Direction) -> Option<&Limit> {
        let about = |limit: &&Limit| {
            limit.direction.includes(direction) && limit.runtime.as_deref().is_none_or(|name| name == runtime)
        };
        self.limits.iter().find(about)
    }
}

#[cfg(test)]
mod tests;
