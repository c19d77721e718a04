//! Names, addresses and folders that no other test on the machine uses at the same time.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{self, UnixDatagram};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use tempfile::TempDir;

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
/// to the caller until this process ends: the port is counted, below the ephemeral ports of the
/// kernel (`ip_local_port_range`: 32,768 and up), and the IP address is made of the process id,
/// which has at most 22 bits (`PID_MAX_LIMIT`, proc_sys_kernel(5)). A process in another container
/// may have the same id and network: an abstract socket is bound to the name of the address, and
/// the next address is tried if another process has done so.
///
/// # Panics
/// After 10,000 calls, or if 1,000 addresses are in use.
pub fn loopback_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    const FIRST_PORT: u16 = 20_000;
    const TRIES: u32 = 1_000;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < 10_000, "no loopback port is left for this process");
    let reserve = |more: u32| {
        let [_, high, middle, low] = ((std::process::id() + more) % (1 << 22)).to_be_bytes();
        let address = SocketAddr::from((Ipv4Addr::new(127, 64 + high, middle, low), FIRST_PORT + number));
        let name = net::SocketAddr::from_abstract_name(format!("tailwater-{address}")).expect("a short name");
        Some((address, UnixDatagram::bind_addr(&name).ok()?))
    };
    let (address, reservation) = (0..TRIES).find_map(reserve).expect("a loopback address that is free");
    RESERVED.lock().expect("no panic").push(reservation);
    address
}

/// Returns a new folder in memory, where files do not wait for a disk; an ordinary temporary folder
/// where there is no `/dev/shm`.
///
/// # Panics
/// If neither can be made.
pub fn memory_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
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

    #[test]
    fn an_address_that_another_process_with_this_id_has_reserved_is_left_out() {
        let name = |address: SocketAddr| {
            net::SocketAddr::from_abstract_name(format!("tailwater-{address}")).unwrap()
        };
        let first = loopback_address();
        // Of the ports in between, the other test of this file takes ten.
        let _others: Vec<_> = (1..=20)
            .filter_map(|more| {
                UnixDatagram::bind_addr(&name(SocketAddr::new(first.ip(), first.port() + more))).ok()
            })
            .collect();
        let next = loopback_address();
        assert!(next.ip() != first.ip() && next.port() > first.port(), "{first}, {next}");
        TcpListener::bind(next).unwrap();
    }
}
