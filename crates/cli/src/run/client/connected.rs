//! Ordinary programs that are connected to services of this machine, and where they may run.
//!
//! Owns the look at `/proc`: Linux's TCP sockets and connected UDP sockets (proc_pid_net(5)) whose
//! peer is in the programs' network, the processes that hold them, and the cores that their threads
//! may use. A process of another user is seen by root only.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tailwater_batch::proc::{self, Stat};
use tailwater_iokernel::Config;

/// A client that Linux may put on a lent core.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client {
    pub pid: i32,
    pub name: String,
    /// The lent cores that one of its threads may use.
    pub cores: Vec<usize>,
}

/// Returns the clients of services of this network that may run on these cores.
pub fn on(config: &Config, lent: &[usize]) -> Vec<Client> {
    let sockets = sockets(config);
    if sockets.is_empty() {
        return Vec::new();
    }
    let pids = proc::numbers("/proc").into_iter();
    let clients = pids.filter(|&pid| holds_one(pid, &sockets)).filter_map(|pid| {
        let cores = allowed(pid).into_iter().filter(|core| lent.contains(core)).collect::<Vec<_>>();
        let name = Stat::of_process(pid)?.name;
        (!cores.is_empty()).then_some(Client { pid, name, cores })
    });
    clients.collect()
}

/// Returns the inodes of the sockets whose peer is in the network.
fn sockets(config: &Config) -> BTreeSet<u64> {
    ["tcp", "udp", "tcp6", "udp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/net/{table}")).ok())
        .flat_map(|text| text.lines().filter_map(|line| socket(line, config)).collect::<Vec<_>>())
        .collect()
}

/// Returns the inode of the socket in a line of these tables, if its peer is in the network.
fn socket(line: &str, config: &Config) -> Option<u64> {
    let mut words = line.split_whitespace();
    let peer = words.nth(2)?;
    let inode: u64 = words.nth(6)?.parse().ok()?;
    let inside = match address(peer.split_once(':')?.0)? {
        IpAddr::V4(ip) => config.is_host(ip),
        IpAddr::V6(ip) => {
            let network = config.ip6_of(config.network)?.to_bits();
            (ip.to_bits() ^ network) >> 64 == 0
        }
    };
    (inside && inode > 0).then_some(inode)
}

/// Parses an address of these tables: words of 32 bits, each in this machine's byte order.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.as_flattened().try_into().ok()?;
            let ip = Ipv6Addr::from(bytes);
            Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
        }
        _ => None,
    }
}

fn holds_one(pid: i32, sockets: &BTreeSet<u64>) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|link| {
        let inode =
            link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        inode.is_some_and(|inode: u64| sockets.contains(&inode))
    })
}

/// Returns the cores that any thread of a process may use.
fn allowed(pid: i32) -> BTreeSet<usize> {
    proc::threads(pid)
        .into_iter()
        .filter_map(|thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok())
        .filter_map(|status| {
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(tailwater_host::parse_list(list))
        })
        .flatten()
        .map(|core| usize::from(core.0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_clients_if_its_peer_is_a_program() {
        let config = Config::default();
        let line = |peer: &str| {
            format!(
                "   1: 0100007F:1A0A {peer}:0016 01 00000000:00000000 00:00000000 00000000     0        0 9731 1"
            )
        };
        let v4 = |a, b, c, d| format!("{:08X}", u32::from_ne_bytes([a, b, c, d]));
        let v6 = |ip: &str| {
            let bytes = ip.parse::<Ipv6Addr>().unwrap().octets();
            let words =
                bytes.as_chunks::<4>().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
            words.collect::<String>()
        };
        let inside = [v4(10, 77, 0, 2), v6("fd00:7477::2"), v6("::ffff:10.77.0.2")];
        assert!(inside.iter().all(|peer| socket(&line(peer), &config) == Some(9731)));
        let outside = [v4(10, 78, 0, 2), v4(0, 0, 0, 0), v6("::1"), v6("fd00:7478::2"), "zz".to_owned()];
        assert!(outside.iter().all(|peer| socket(&line(peer), &config).is_none()));
        assert_eq!(socket("  sl  local_address rem_address   st tx_queue rx_queue tr", &config), None);
    }
}
