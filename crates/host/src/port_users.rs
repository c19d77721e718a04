//! Which programs of this network namespace use a TCP or UDP port.
//!
//! Owns the look at `/proc`: Linux's tables of sockets (proc_pid_net(5)), and the processes that
//! hold them. A process of another user is named only to root.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;

/// Returns the programs that have sockets at local ports of this range, in words: `tcp:6379 of
/// redis-server (process 812)`. `transport` is `tcp` or `udp`.
#[must_use]
pub fn port_users(transport: &str, ports: &RangeInclusive<u16>) -> Vec<String> {
    let sockets = sockets(transport, ports);
    if sockets.is_empty() {
        return Vec::new();
    }
    let holders = holders(&sockets);
    let mut users: Vec<String> = sockets
        .iter()
        .map(|(inode, port)| match holders.get(inode) {
            Some((pid, name)) => format!("{transport}:{port} of {name} (process {pid})"),
            None => format!("{transport}:{port} of a process that cannot be seen from here"),
        })
        .collect();
    users.sort_unstable();
    users.dedup();
    users
}

/// Returns the inode and the local port of each socket in the range.
fn sockets(transport: &str, ports: &RangeInclusive<u16>) -> BTreeMap<u64, u16> {
    let tables = [transport.to_owned(), format!("{transport}6")];
    let texts =
        tables.iter().filter_map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).ok());
    let lines = texts.flat_map(|text| text.lines().filter_map(socket).collect::<Vec<_>>());
    lines.filter(|(_, port)| ports.contains(port)).collect()
}

/// Returns inode and local port of the socket in a line of these tables; `None` for one that no
/// process has any more.
fn socket(line: &str) -> Option<(u64, u16)> {
    let mut words = line.split_whitespace();
    let port = u16::from_str_radix(words.nth(1)?.rsplit_once(':')?.1, 16).ok()?;
    let inode: u64 = words.nth(7)?.parse().ok()?;
    (inode > 0).then_some((inode, port))
}

/// Returns number and name of a process that holds each of these sockets.
fn holders(sockets: &BTreeMap<u64, u16>) -> BTreeMap<u64, (i32, String)> {
    let mut holders = BTreeMap::new();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for link in descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()) {
            let inode =
                link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            let Some(inode) = inode.filter(|inode| sockets.contains_key(inode)) else { continue };
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            holders.insert(inode, (pid, name.trim().to_owned()));
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn the_program_that_has_a_port_is_named_and_only_for_its_protocol() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let users = port_users("tcp", &(port..=port));
        let own = format!("(process {})", std::process::id());
        assert!(users.len() == 1 && users[0].starts_with(&format!("tcp:{port} of ")), "{users:?}");
        assert!(users[0].contains(&own), "{users:?}");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(port_users("udp", &(port..=port)).iter().any(|user| user.contains(&own)));
        drop(listener);
        assert!(!port_users("tcp", &(port..=port)).iter().any(|user| user.contains(&own)));
    }
}
