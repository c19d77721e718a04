//! Names of the hosts file (hosts(5)), read once.
//!
//! Owns the contents of /etc/hosts as of the first lookup of a name; later changes are not noticed.
//! Never queries a name server: that blocks for seconds, and a program that needs it can do so on
//! an ordinary thread ([`crate::blocking`]). `localhost` and names that end in `.localhost` are the
//! loopback addresses whatever the file contains (RFC 6761 section 6.3).
//!
//! # Bounds
//! [`MAX_BYTES`] of the file are read.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

const PATH: &str = "/etc/hosts";
/// Maximum number of bytes read from the file: about twenty thousand lines.
const MAX_BYTES: u64 = 1 << 20;

/// Addresses by name, in lower case.
type Hosts = HashMap<String, Vec<IpAddr>>;

/// Returns the addresses of `name`, in the order of the file; none if it is not there. The first
/// name that is not `localhost` makes the calling thread wait for the file to be read.
pub fn look_up(name: &str) -> Vec<IpAddr> {
    // A set OnceLock costs a load; two user threads that arrive first at the same time both read,
    // and one result is kept.
    static HOSTS: OnceLock<Hosts> = OnceLock::new();
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if name == "localhost" || name.ends_with(".localhost") {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    if let Some(hosts) = HOSTS.get() {
        return hosts.get(&name).cloned().unwrap_or_default();
    }
    let hosts = crate::blocking(|| read(Path::new(PATH)));
    let found = hosts.get(&name).cloned().unwrap_or_default();
    // Fails if another thread was faster, with the same result.
    let _ = HOSTS.set(hosts);
    found
}

/// Returns the names of a file; none if it cannot be read.
fn read(path: &Path) -> Hosts {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // What was read before an error is used.
        let _ = file.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    parse(&String::from_utf8_lossy(&bytes))
}

/// Parses lines of an address and its names; `#` begins a comment. Lines without an address are
/// skipped, as other readers of this file do.
fn parse(text: &str) -> Hosts {
    let mut hosts = Hosts::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let Some(ip) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        for name in words {
            let addresses = hosts.entry(name.to_ascii_lowercase()).or_default();
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_addresses_of_their_lines_in_order() {
        let hosts = parse(
            "# comment\n10.0.0.1 one One.example.org\n\nfd00::1\tone # two\nnonsense two\n10.0.0.2 one\n10.0.0.2 one\n10.0.0.3",
        );
        let of =
            |name: &str| hosts.get(name).map(|ips| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>());
        assert_eq!(of("one").unwrap(), ["10.0.0.1", "fd00::1", "10.0.0.2"]);
        assert_eq!(of("one.example.org").unwrap(), ["10.0.0.1"]);
        assert_eq!(of("two"), None);
    }

    #[test]
    fn a_file_that_is_not_there_or_too_long_does_no_harm() {
        assert!(read(Path::new("/nonexistent/hosts")).is_empty());
        assert!(read(Path::new("/dev/zero")).is_empty());
    }

    #[test]
    fn localhost_is_known_without_a_file() {
        for name in ["localhost", "LocalHost.", "a.localhost"] {
            assert_eq!(
                look_up(name),
                [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()],
                "{name}"
            );
        }
    }
}
