//! UDP sockets that both networks reach.
//!
//! Owns the second side of a UDP socket. Each is the kernel's first. Tailwater's side, with the
//! same port, begins at the first wait for datagrams of a socket that the program has bound to a
//! port of its choice, and at the first datagram or `connect` to an address that Tailwater serves.
//! Registrations with epoll sets from before that time are [kept](crate::kept).

use crate::start::{self, Call, Transport};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use tailwater::net::UdpSocket;
use tailwater::sync::OnceLock;

/// One look for datagrams of so many begins with the kernel's, so that a flood on Tailwater's
/// network does not keep them from the program.
const KERNEL_TURN: u32 = 16;

/// From which networks a socket receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Peers {
    /// The socket has no peer.
    All,
    /// The socket's peer is on Linux's network.
    OfKernel,
    /// The socket's peer is on Tailwater's network.
    OfTailwater,
}

/// See the module documentation.
pub struct Datagrams {
    /// True if the kernel's socket has addresses of IPv6.
    pub is_v6: bool,
    /// Where the program has bound the socket to a port of its choice, and whether that takes both
    /// families.
    serves: std::sync::OnceLock<(SocketAddr, bool)>,
    peers: AtomicU8,
    /// Tailwater's side; `None` if it has none.
    udp: OnceLock<Option<UdpSocket>>,
    /// Number of looks for datagrams.
    looks: AtomicU32,
}

impl Datagrams {
    pub fn new(is_v6: bool) -> Self {
        Self {
            is_v6,
            serves: std::sync::OnceLock::new(),
            peers: AtomicU8::new(Peers::All as u8),
            udp: OnceLock::new(),
            looks: AtomicU32::new(0),
        }
    }

    /// Returns from which networks the socket receives.
    pub fn peers(&self) -> Peers {
        match self.peers.load(Relaxed) {
            peers if peers == Peers::OfKernel as u8 => Peers::OfKernel,
            peers if peers == Peers::OfTailwater as u8 => Peers::OfTailwater,
            _ => Peers::All,
        }
    }

    pub fn set_peers(&self, peers: Peers) {
        self.peers.store(peers as u8, Relaxed);
    }

    /// Records that the program has bound the socket to a port of its choice. The kernel binds a
    /// socket once.
    pub fn serve(&self, own: SocketAddr, takes_both: bool) {
        let _ = self.serves.set((own, takes_both));
    }

    /// Returns Tailwater's side, if it has begun and the socket receives from there.
    pub fn udp(&self) -> Option<&UdpSocket> {
        self.udp.get()?.as_ref().filter(|_| self.peers() != Peers::OfKernel)
    }

    /// As [`udp`](Self::udp), for a wait: a socket that serves begins here.
    pub fn for_wait(&self) -> Option<&UdpSocket> {
        if self.udp.get().is_none()
            && self.peers() == Peers::All
            && let Some(&(own, takes_both)) = self.serves.get()
            && start::ensure()
        {
            let _call = Call::within()?;
            self.begin(own, takes_both);
        }
        self.udp()
    }

    /// Returns Tailwater's side as it has begun, `None` in it if that failed.
    pub fn begun(&self) -> Option<Option<&UdpSocket>> {
        self.udp.get().map(Option::as_ref)
    }

    /// Begins Tailwater's side of the socket, which the kernel has bound to `own`. The caller is on
    /// a kthread. A failure is said once: the socket is the kernel's alone then.
    pub fn begin(&self, own: SocketAddr, takes_both: bool) -> Option<&UdpSocket> {
        let udp = self.udp.get_or_init(|| match bind(own, takes_both) {
            Ok(udp) => {
                // It cannot fail.
                let _ = udp.set_nonblocking(true);
                start::note_listening(Transport::Udp, udp.local_addr().unwrap_or(own), takes_both);
                Some(udp)
            }
            // Another socket of the program has the port (`SO_REUSEPORT`), and receives what comes.
            Err(error) if error.kind() == ErrorKind::AddrInUse && start::listens_on(Transport::Udp, own) => {
                None
            }
            Err(error) => {
                start::say(&format!("UDP at {own} is served by Linux's network alone: {error}"));
                None
            }
        });
        udp.as_ref()
    }

    /// Returns an address as the kernel's socket has it.
    pub fn show(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.is_v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }

    /// Returns whether this look for datagrams begins with the kernel's.
    pub fn is_kernel_turn(&self) -> bool {
        self.looks.fetch_add(1, Relaxed).is_multiple_of(KERNEL_TURN)
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        if let Some(Some(udp)) = self.udp.get()
            && let Ok(own) = udp.local_addr()
        {
            start::forget_listening(Transport::Udp, own);
        }
    }
}

/// Binds a socket of Tailwater as the kernel's is. Without IPv6 on the IOKernel's network, IPv4 is
/// what a socket of both has.
fn bind(own: SocketAddr, takes_both: bool) -> std::io::Result<UdpSocket> {
    let result = UdpSocket::bind(own);
    let is_any6 = own.ip() == Ipv6Addr::UNSPECIFIED;
    match result {
        Err(error) if takes_both && is_any6 && error.kind() != ErrorKind::AddrInUse => {
            UdpSocket::bind(SocketAddr::from(([0; 4], own.port())))
        }
        result => result,
    }
}
