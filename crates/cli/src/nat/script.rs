//! The table of nftables, as text.
//!
//! Owns its form. The table is replaced in one transaction: a script that makes it, in case there
//! is none, deletes it, and makes it anew. Only numbers, addresses and the name of the device
//! enter the text, never a name that a program has chosen.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::ensure;
use tailwater_iokernel::Config;
use tailwater_ports::publish::{Published, Transport};

/// A published port and the program's address, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    transport: Transport,
    port: u16,
    to: SocketAddr,
}

impl Rule {
    pub fn new(published: &Published, ip: IpAddr) -> Self {
        let to = SocketAddr::new(ip, published.target_port);
        Self { transport: published.transport, port: published.port, to }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", self.transport, self.port, self.to)
    }
}

/// The network of the programs, and the device to it.
#[derive(Debug, Clone)]
pub struct Network {
    pub device: String,
    config: Box<Config>,
    six: Option<Ipv6Addr>,
}

impl Network {
    /// # Errors
    /// If the device has a name that cannot stand in a table.
    pub fn new(device: String, config: &Config) -> anyhow::Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        ensure!(
            device.chars().all(plain),
            "port publish: the device is named {device:?}: give it a name of letters, digits, `-`, `_` and `.`"
        );
        let six = config.ip6_of(config.network);
        Ok(Self { device, config: Box::new(config.clone()), six })
    }

    /// Returns whether a program may have this address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.config.is_host(ip) && Some(ip) != self.config.ports.host_ip,
            IpAddr::V6(ip) => self.six.is_some_and(|six| (ip.to_bits() ^ six.to_bits()) >> 64 == 0),
        }
    }

    /// Returns the IPv6 address of a program at an IPv4 address.
    pub fn other_family(&self, ip: IpAddr) -> Option<IpAddr> {
        let IpAddr::V4(ip) = ip else { return None };
        self.config.ip6_of(ip).map(IpAddr::V6)
    }

    /// Returns the networks in words.
    pub fn describe(&self) -> String {
        let six = self.six.map_or_else(String::new, |six| format!(" or {six}/64"));
        format!("{}/{}{six}", self.config.network, self.config.prefix_len)
    }
}

/// Returns the name of the table for a device: `-` cannot be in such a name, and `/` not in that of
/// a device.
pub fn table_of(device: &str) -> String {
    format!("tailwater/{}", device.replace('-', "/"))
}

/// Returns a script that replaces the table; its comment is `owner`.
pub fn write(network: &Network, rules: &[Rule], owner: &str) -> String {
    let (device, table) = (&network.device, table_of(&network.device));
    let lines: String = rules.iter().map(line).collect();
    let mut text = format!(
        r#"table inet {table}
delete table inet {table}
table inet {table} {{
	comment "{owner}"
	# From other machines, and not from programs behind the device, whose answers would not come back this way.
	chain arriving {{
		type nat hook prerouting priority -100; policy accept;
		iifname "{device}" return
{lines}	}}
	# From this machine. A loopback address stays one.
	chain local {{
		type nat hook output priority -100; policy accept;
		ip daddr 127.0.0.0/8 return
		ip6 daddr ::1 return
{lines}	}}
	# Programs reach other machines under an address of this one.
	chain leaving {{
		type nat hook postrouting priority 100; policy accept;
		ip saddr {}/{} oifname != "{device}" masquerade
"#,
        network.config.network, network.config.prefix_len
    );
    if let Some(six) = network.six {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\t\tip6 saddr {six}/64 oifname != \"{device}\" masquerade");
    }
    text.push_str("\t}\n}\n");
    text
}

fn line(rule: &Rule) -> String {
    let Rule { transport, port, to } = rule;
    let (family, ip) = if to.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
    format!("\t\tmeta nfproto {family} fib daddr type local {transport} dport {port} dnat {ip} to {to}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_stands_once_for_other_machines_and_once_for_this_one() {
        let network = Network::new("tw-0".to_owned(), &Config::default()).unwrap();
        let publish = |text: &str, ip: &str| Rule::new(&text.parse().unwrap(), ip.parse().unwrap());
        let rules = [publish("tcp:6379=kv:7000", "10.77.0.2"), publish("udp:53=kv", "fd00:7477::2")];
        let text = write(&network, &rules, "process 7, started 9");
        for part in [
            "meta nfproto ipv4 fib daddr type local tcp dport 6379 dnat ip to 10.77.0.2:7000\n",
            "meta nfproto ipv6 fib daddr type local udp dport 53 dnat ip6 to [fd00:7477::2]:53\n",
        ] {
            assert_eq!(text.matches(part).count(), 2, "{part}: {text}");
        }
        assert!(text.starts_with("table inet tailwater/tw/0\ndelete table inet tailwater/tw/0\n"), "{text}");
        for part in
            ["iifname \"tw-0\" return", "ip saddr 10.77.0.0/16", "ip6 saddr fd00:7477::/64", "process 7"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
