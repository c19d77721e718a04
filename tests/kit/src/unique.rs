//! Names and addresses that no other test on the machine uses at the same time.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Returns the name of an abstract socket that no other test uses; `what` is for the reader.
///
/// Containers may share a network, and so its abstract sockets, without sharing process ids: the
/// name has the inode of the namespace that counts them (pid_namespaces(7)).
pub fn socket_name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // 0 where /proc is not mounted.
    let space = std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
    format!("@tailwater-{what}-{space}-{}-{number}", std::process::id())
}

/// Returns a loopback address, free for TCP and UDP, for a server that takes one as an argument.
///
/// A port that was free a moment ago may be taken by the time a server binds it. This one belongs
/// to the caller: the IP address is made of the process id, which has at most 22 bits
/// (`PID_MAX_LIMIT`, proc_sys_kernel(5)), and the port is counted, below the ephemeral ports of the
/// kernel (`ip_local_port_range`: 32,768 and up).
///
/// # Panics
/// After 10,000 calls.
pub fn loopback_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST_PORT: u16 = 20_000;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < 10_000, "no loopback port is left for this process");
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(127, 64 + high, middle, low), FIRST_PORT + number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn names_and_addresses_differ_and_addresses_can_be_bound() {
        let names: BTreeSet<String> = (0..10).map(|_| socket_name("test")).collect();
        assert_eq!(names.len(), 10);
        let addresses: BTreeSet<SocketAddr> = (0..10).map(|_| loopback_address()).collect();
        assert_eq!(addresses.len(), 10);
        for address in addresses {
            TcpListener::bind(address).unwrap();
            UdpSocket::bind(address).unwrap();
        }
    }
}
