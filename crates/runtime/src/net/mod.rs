//! The network: UDP sockets over IPv4 and IPv6, over a stack of our own, which runs on the kthreads and never makes a system call.
//!
//! ```text
//! UdpSocket          blocks, times out, speaks std::io           udp::socket
//! Stack              frames and time in, frames and data out     stack, neighbour, udp
//! wire               bytes <-> headers                           wire
//! global             one Stack per process, its clock and outlet global
//! ```
//!
//! The scheduler hands every frame of an ingress ring to `input`, in place and with preemption off; what a socket call sends is
//! built in place in the egress ring of the kthread it runs on. Standalone there are no rings, and a datagram from one
//! socket of the process to another goes straight from the sender's buffer into the receiver's queue, as it does attached.
//!
//! Never here: scheduling, steering of flows (the IOKernel's), asking name servers (it blocks).
//!
//! The modules below are public for benchmarks and fuzzing, without a promise of stability.

mod addr;
mod global;
mod hosts;
mod neighbour;
#[doc(hidden)]
pub mod stack;
pub mod tcp;
#[doc(hidden)]
pub mod udp;
#[doc(hidden)]
pub mod wire;

pub use addr::ToSocketAddrs;
pub use stack::Counters;
pub use tcp::{Congestion, Incoming, TcpKeepalive, TcpListener, TcpOptions, TcpStats, TcpStream};
pub use udp::UdpSocket;

pub(crate) use global::{Batch, init, put_off_timers};
pub(crate) use stack::NetConfig;
pub(crate) use stack::tcp::DEFAULT_CONNECTIONS;

use global::{KthreadOutlet, stack};

/// Flag of a ring record: whoever put the frame into the ingress ring vouches for all checksums in it: IPv4's, and those of
/// the transport protocol, whichever it is (ICMP, ICMPv6, TCP, UDP). The IOKernel does for what another runtime sent. The
/// checksum of a packet put together from fragments is looked at nevertheless.
///
/// # Examples
/// ```
/// assert!(tailwater::net::FLAG_CHECKSUM_OK.is_power_of_two());
/// ```
pub const FLAG_CHECKSUM_OK: u8 = tailwater_shm::ring::FLAG_CHECKSUM_OK;

/// Says that the IOKernel is gone: sends to other hosts fail from now on.
pub(crate) fn set_link_down() {
    stack().set_link_down(&mut KthreadOutlet);
}

/// This runtime's own IPv4 address: the one its IOKernel gave it, or the configured one (127.0.0.1 by default) standalone.
///
/// # Panics
/// If no runtime has been started.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     // Standalone, unless `Builder::ip` or TAILWATER_IP says otherwise.
///     assert!(tailwater::net::local_ip().is_loopback());
/// }
/// ```
pub fn local_ip() -> std::net::Ipv4Addr {
    stack().ip()
}

/// This runtime's own IPv6 address, if its IOKernel gave it one. `::1` can be reached in any case.
///
/// # Panics
/// If no runtime has been started.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     assert_eq!(tailwater::net::local_ip6(), None, "standalone");
/// }
/// ```
pub fn local_ip6() -> Option<std::net::Ipv6Addr> {
    stack().ip6()
}

/// What the process's network stack has counted since it started.
///
/// # Panics
/// If no runtime has been started.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::net::{UdpSocket, counters};
///
/// #[tailwater::main]
/// fn main() {
///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
///     socket.send_to(b"to myself", socket.local_addr().unwrap()).unwrap();
///     assert_eq!((counters().udp_sent, counters().udp_sockets), (1, 1));
/// }
/// ```
pub fn counters() -> Counters {
    stack().counters()
}
