//! The network: UDP and TCP sockets over IPv4 and IPv6, over a stack of our own, which runs on the
//! kthreads and never makes a system call. TCP needs the feature `tcp`, which is on by default.
//!
//! ```text
//! UdpSocket, TcpStream   block, time out, with the API of std::net     udp, tcp
//! driver                 one Stack per process, its clock and outlet   driver, platform
//! Stack                  frames and time in, frames and data out       tailwater_net
//! headers                bytes <-> headers                             tailwater_wire
//! ```
//!
//! The scheduler passes every frame of an ingress ring to `input`, in place and with preemption
//! off; a socket call builds its packets in place in the egress ring of the kthread it runs on.
//! Standalone there are no rings, and a datagram from one socket of the process to another goes
//! directly from the sender's buffer into the receiver's queue, as it does attached.
//!
//! Not here: scheduling, steering of flows (the IOKernel's).

mod addr;
mod driver;
mod error;
mod multicast;
mod platform;
mod settings;
#[cfg(feature = "tcp")]
pub(crate) mod tcp;
mod udp;

pub use addr::ToSocketAddrs;
pub use tailwater_net::NetCounters;
#[cfg(feature = "tcp")]
pub use tcp::{
    Congestion, Corked, Incoming, Loan, SharedBytes, TcpInfo, TcpKeepalive, TcpListener, TcpOptions,
    TcpState, TcpStats, TcpStream,
};
pub use udp::UdpSocket;

#[cfg(feature = "readiness")]
pub(crate) use udp::UdpEndpoint;

pub(crate) use driver::{init, put_off_timers, take_frames};
#[cfg(feature = "tcp")]
pub(crate) use tailwater_net::DEFAULT_CONNECTIONS;
pub(crate) use tailwater_net::{ConfigError, Ipv6Config, Mode, NetConfig};
#[cfg(feature = "tcp")]
pub(crate) use tcp::window_of_ring;

use driver::{KthreadOutlet, stack};
use platform::Kthreads;
use tailwater_net::{Ending, Instance, Owed};
use tailwater_shm::control;

/// Sends what connections could not while there was no IOKernel. On a kthread.
pub(crate) fn resume() {
    stack().resume(&mut KthreadOutlet);
}

/// Returns whether a peer is to be told of the end of the program.
pub(crate) fn has_peers() -> bool {
    stack().has_peers()
}

/// Begins the end of the program: see [`Stack::begin_ending`](tailwater_net::Stack::begin_ending).
pub(crate) fn begin_ending() -> Ending<Kthreads> {
    stack().begin_ending()
}

/// Returns what is still owed to peers, all of whom are given up with `last`. On a kthread.
pub(crate) fn poll_ending(ending: &mut Ending<Kthreads>, last: bool) -> Owed {
    stack().poll_ending(&mut KthreadOutlet, ending, last)
}

/// Records that the IOKernel is gone: calls that need other hosts fail from now on.
pub(crate) fn set_link_down() {
    stack().set_link_down(&mut KthreadOutlet);
}

/// Has connections and unbound sockets use the ports from the first to the last of these, or all.
pub(crate) fn use_ports(ports: Option<(u16, u16)>) {
    stack().use_ports(ports.map(|(first, last)| first..=last));
}

/// Sets how this program stands to another instance of it.
pub(crate) fn set_instance(instance: control::Instance) {
    stack().set_instance(match instance {
        control::Instance::Only | control::Instance::Latest => Instance::Only,
        control::Instance::Replaces => Instance::Later,
        control::Instance::Replaced => Instance::Earlier,
    });
}

/// Returns whether a client is in the middle of connecting.
pub(crate) fn has_handshakes() -> bool {
    #[cfg(feature = "tcp")]
    return stack().handshakes() > 0;
    #[cfg(not(feature = "tcp"))]
    false
}

/// Records that there is an IOKernel again.
pub(crate) fn set_link_up() {
    stack().set_link_up();
}

/// Returns this runtime's own IPv4 address: attached, the one the IOKernel assigned; standalone,
/// the configured one (127.0.0.1 by default).
///
/// # Panics
/// If no runtime has been started.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     // Standalone, unless `RuntimeBuilder::ip` or TAILWATER_IP says otherwise.
///     assert!(tailwater::net::local_ip().is_loopback());
/// }
/// ```
pub fn local_ip() -> std::net::Ipv4Addr {
    stack().ip()
}

/// Returns this runtime's own IPv6 address, if the IOKernel assigned one. `::1` can be reached in
/// any case.
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

/// Returns whether `ip` is an address of the network of this runtime: attached, that of the
/// IOKernel.
///
/// # Panics
/// If no runtime has been started.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::net::{is_local, local_ip};
///
/// #[tailwater::main]
/// fn main() {
///     assert!(is_local(local_ip().into()));
/// }
/// ```
pub fn is_local(ip: std::net::IpAddr) -> bool {
    driver::is_local(ip)
}

/// Returns the counters of the process's network stack.
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
pub fn counters() -> NetCounters {
    stack().counters()
}
