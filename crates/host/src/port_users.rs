//! Which programs of this network namespace use a TCP or UDP port.
//!
//! Owns the look at `/proc`: Linux's tables of sockets (proc_pid_net(5)), and the processes that
//! hold them. A process of another user is named only to root.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// Returns the programs that have sockets at local ports of this range, in words: `tcp:6379 of
/// redis-server (process 812)`. `transport` is `tcp` or `udp`.
#[must_use]
pub fn port_users(transport: &str, ports: &RangeInclusive<u16>) -> Vec<String> {
    let sockets = sockets(transport, |_, port| ports.contains(&port));
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

/// Returns whether a program has a socket at a port and exactly this address: where it is bound
/// without one, that of a single connection. Reads Linux's tables alone, no process.
#[must_use]
pub fn is_port_used(transport: &str, ip: IpAddr, port: u16) -> bool {
    !sockets(transport, |at, number| at == ip && number == port).is_empty()
}

/// Returns the inode and the local port of each socket whose address and port are wanted.
fn sockets(transport: &str, is_wanted: impl Fn(IpAddr, u16) -> bool) -> BTreeMap<u64, u16> {
    let tables = [transport.to_owned(), format!("{transport}6")];
    let texts =
        tables.iter().filter_map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).ok());
    let lines = texts.flat_map(|text| text.lines().filter_map(socket).collect::<Vec<_>>());
    lines.filter(|&(_, ip, port)| is_wanted(ip, port)).map(|(inode, _, port)| (inode, port)).collect()
}

/// Returns inode, local address and local port of the socket in a line of these tables; `None` for
/// one that no process has any more.
fn socket(line: &str) -> Option<(u64, IpAddr, u16)> {
    let mut words = line.split_whitespace();
    let (ip, port) = words.nth(1)?.rsplit_once(':')?;
    let (ip, port) = (address(ip)?, u16::from_str_radix(port, 16).ok()?);
    let inode: u64 = words.nth(7)?.parse().ok()?;
    (inode > 0).then_some((inode, ip, port))
}

/// Returns the address that is written as words of 32 bits, each a number of this machine.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from_octets(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            Some(Ipv6Addr::from_octets(*words.as_flattened().first_chunk()?).to_canonical())
        }
        _ => None,
    }
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
    use tailwater_testkit::namespace::in_namespace;

    #[test]
    fn the_program_that_has_a_port_is_named_and_only_for_its_protocol() {
        // There no other test has these ports.
        in_namespace(|| {
            let listener = TcpListener::bind("127.0.0.1:7").unwrap();
            let users = port_users("tcp", &(7..=7));
            let own = format!("(process {})", std::process::id());
            assert!(users.len() == 1 && users[0].starts_with("tcp:7 of "), "{users:?}");
            assert!(users[0].contains(&own), "{users:?}");
            let _socket = UdpSocket::bind("127.0.0.1:8").unwrap();
            assert!(port_users("udp", &(8..=8)).iter().any(|user| user.contains(&own)));
            let [here, there] = [1, 2].map(|last| IpAddr::from([127, 0, 0, last]));
            assert!(is_port_used("tcp", here, 7) && !is_port_used("tcp", there, 7));
            drop(listener);
            assert_eq!(port_users("tcp", &(7..=7)), [""; 0]);
        });
    }

    #[test]
    fn addresses_are_read_as_linux_writes_them() {
        let written = |bytes: &[u8]| -> String {
            bytes.as_chunks().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect()
        };
        let v6: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(address(&written(&v4.octets())), Some(v4.into()));
        assert_eq!(address(&written(&v6.octets())), Some(v6.into()));
        assert_eq!(address(&written(&v4.to_ipv6_mapped().octets())), Some(v4.into()));
        assert_eq!(address("0100007"), None);
    }
}
