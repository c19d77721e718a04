//! The network stack as a pure machine: frames and time go in, frames and datagrams come out.
//!
//! Owns: who this host is, its neighbours, its sockets' queues, what it counts. Never reads a clock or sends by itself: an
//! [`Outlet`] comes with every call that may need either, so that a test can join two stacks with a queue and drive them
//! through hours of virtual time.
//!
//! ```text
//! frame -> input -+- ARP ---- neighbour cache -> frames that waited -> outlet
//!                 +- IPv4 -+- ICMP, ICMPv6 -> echo reply -> outlet, errors -> sockets, paths
//!                 +- IPv6 -+           +- neighbour cache -> frames that waited -> outlet
//!                          +- UDP --> socket queue, or port unreachable -> outlet
//!                          +- TCP --> connection -> outlet, waiting threads (see [`tcp`])
//! send_udp -> route -+- this host --> socket queue (no frame is ever built)
//!                    +- link -------> outlet, or the neighbour's queue until ARP or neighbour discovery has answered
//! transmit_ip -> route -+- this host --> loopback queue -> input_local
//!                       +- link -------> as above
//! ```
//!
//! A link protocol is one arm in [`input`](Stack::input)'s `match` on the EtherType; a transport protocol is one arm in
//! `input::handle_transport`, one in `errors::handle_icmp_error`, and sends by [`Stack::transmit_ip`], whose contract is the
//! header of [`ip`].
//!
//! # Concurrency
//! Every method takes `&self` and may run on any kthread at any time, with preemption off. The ordinary receive takes one
//! spin lock, the socket's; the ordinary send takes none.
//!
//! # Bounds
//! A packet makes at most one packet of answer, which is no longer, plus the three that may have waited for a neighbour; TCP's answers are bounded by its
//! windows, and to strangers are one header. Loopback recurses nowhere:
//! a datagram to this host goes from the sender's buffer into the receiver's queue, and what it can cause there is a wake-up or
//! an error in the sender's own socket; other packets to this host wait in a queue ([`loopback`]).

mod addressing;
mod arp;
mod config;
mod counters;
mod errors;
mod icmp;
mod input;
pub mod ip;
mod limiter;
pub mod loopback;
mod nd;
mod output;
mod path_mtu;
mod pieces;
mod reassembly;
pub mod tcp;

pub use config::{ConfigError, DEFAULT_UDP_RECEIVE_BYTES, Ipv6Config, MAX_MTU, Mode, NetConfig};
pub use counters::{Counters, Event};
pub use ip::Progress;
pub use loopback::{LocalPacket, LoopbackBatch};
pub use output::{MAX_DATAGRAM, SendError};

use crate::net::neighbour::NeighbourCache;
use crate::net::udp::{BindError, Endpoint, UdpTable};
use crate::sync::spin::SpinLock;
pub use crate::trace::Request;
use addressing::{Addressing, Route};
use arp::Announcer;
use core::hash::{BuildHasher, BuildHasherDefault, Hash};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use counters::Cells;
use limiter::PeerLimiter;
use loopback::Loopback;
use path_mtu::PathMtus;
use reassembly::Reassembly;
use std::hash::DefaultHasher;
use std::sync::Arc;
use tcp::{Secrets, Socket, Tcp, window_of_ring};

/// ICMP errors sent to a peer at once, and per second after that: Linux's limits (icmp_msgs_burst, icmp_msgs_per_sec), which are for all together.
const ICMP_ERRORS_BURST: u32 = 50;
const ICMP_ERRORS_PER_SECOND: u32 = 1000;

/// The frame could not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutletError {
    /// There is no room at the moment.
    #[error("the way out is full")]
    Full,
    /// There is no way out.
    #[error("the network is down")]
    Down,
}

/// What a stack needs of the world: a way out for frames, and the time.
pub trait Outlet {
    /// Sends a frame of `len` bytes, of which `fill` writes every one.
    ///
    /// # Errors
    /// [`OutletError`]; then `fill` was not called.
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError>;

    /// As [`transmit`](Self::transmit) of a frame that may lack its TCP checksum; only where [`completes`](Self::completes) says
    /// so.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn transmit_incomplete(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        self.transmit(len, fill)
    }

    /// Keeps what is transmitted from now on until [`uncork`](Self::uncork), so that it leaves together. True if this call did
    /// it, and then the caller uncorks before it returns.
    #[inline]
    fn cork(&mut self) -> bool {
        false
    }

    /// Lets go what [`cork`](Self::cork) has kept.
    #[inline]
    fn uncork(&mut self) {}

    /// Whether a missing TCP checksum is filled in before a frame leaves the machine.
    #[inline]
    fn completes(&self) -> bool {
        false
    }

    /// The time since any fixed moment. Asked on uncommon paths only.
    fn now(&self) -> Duration;

    /// Wants [`Stack::poll_timers`] to be called at `deadline`, if not before.
    fn poll_by(&mut self, deadline: Duration);

    /// Takes a socket that owes its peer no more than an acknowledgment, for a call of [`Stack::flush_tcp`] behind the frames at hand, which may be for it,
    /// too. False: it is sent at once.
    #[inline]
    fn defer(&mut self, socket: &Arc<Socket>) -> bool {
        let _ = socket;
        false
    }

    /// The traced request that the frame being processed is, if it is one.
    #[inline]
    fn traced(&self) -> Option<Request> {
        None
    }

    /// Wants what [`Stack::take_loopback`] gives to be processed soon, by somebody else: the caller may hold locks.
    fn poll_loopback(&mut self);
}

/// One host's network stack.
#[derive(Debug)]
pub struct Stack {
    addressing: Addressing,
    neighbours: NeighbourCache<Ipv4Addr>,
    neighbours6: NeighbourCache<Ipv6Addr>,
    paths: PathMtus,
    reassembly: SpinLock<Reassembly>,
    loopback: Loopback,
    udp: UdpTable,
    tcp: Tcp,
    counters: Cells,
    icmp_errors: PeerLimiter,
    announcer: SpinLock<Announcer>,
    /// Whether frames can leave. Relaxed: a sender that sees an old value finds out at the outlet.
    link_up: AtomicBool,
    /// Counts packets sent in fragments. Relaxed: only that no two get the same number matters.
    identifications: AtomicU32,
    seed: u64,
}

impl Stack {
    /// A stack without sockets or neighbours. `seed` decides the order of ephemeral ports and the numbers of fragmented
    /// packets, and should not be guessable.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: NetConfig, seed: u64) -> Result<Self, ConfigError> {
        Self::with_secrets(config, seed, Secrets::from_seed(seed))
    }

    /// As [`new`](Self::new), with secrets of their own for TCP.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn with_secrets(config: NetConfig, seed: u64, secrets: Secrets) -> Result<Self, ConfigError> {
        let attached = config.mode == Mode::Attached;
        Ok(Self {
            udp: UdpTable::new(config.udp_receive_bytes, seed),
            tcp: Tcp::new(
                secrets,
                seed,
                config.tcp_connections,
                window_of_ring(config.ring_bytes, config.mtu),
            ),
            addressing: Addressing::new(config)?,
            neighbours: NeighbourCache::new(),
            neighbours6: NeighbourCache::new(),
            paths: PathMtus::new(),
            reassembly: SpinLock::new(Reassembly::new()),
            loopback: Loopback::new(),
            identifications: AtomicU32::new(0),
            seed,
            counters: Cells::new(),
            icmp_errors: PeerLimiter::new(ICMP_ERRORS_BURST, ICMP_ERRORS_PER_SECOND, seed),
            announcer: SpinLock::new(Announcer::new(attached)),
            link_up: AtomicBool::new(attached),
        })
    }

    /// The stack's own IPv4 address.
    pub fn ip(&self) -> Ipv4Addr {
        self.addressing.ip()
    }

    /// The stack's own IPv6 address, if it has one beyond ::1.
    pub fn ip6(&self) -> Option<Ipv6Addr> {
        self.addressing.ip6()
    }

    /// Whether `ip` is an address of this host.
    #[inline]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.addressing.is_local(ip)
    }

    /// The address a packet to `destination` comes from unless a socket has chosen one (RFC 6724); meaningless if no route
    /// leads there.
    #[inline]
    pub fn source_for(&self, destination: IpAddr) -> IpAddr {
        self.addressing.source_for(destination)
    }

    /// Longest IP packet that gets through to `destination` in one piece, in bytes, as far as is known: the link's MTU until
    /// a router says otherwise, and again ten minutes after. At least 576 (IPv4) or 1280 (IPv6).
    #[inline]
    pub fn path_mtu(&self, destination: IpAddr) -> u16 {
        let link = self.config().mtu;
        self.paths.get(destination).map_or(link, |path| path.min(link))
    }

    /// A number that differs, as if at random, between stacks and between `what`s.
    fn hash(&self, what: &impl Hash) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, what))
    }

    /// The configuration it was made from.
    pub fn config(&self) -> &NetConfig {
        self.addressing.config()
    }

    /// What has been counted since the start.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters.read();
        self.udp.count(&mut counters);
        self.tcp.count(&mut counters);
        counters
    }

    /// Whether a socket may be bound to `ip`: an address of this host, or the unspecified one.
    pub fn is_bindable(&self, ip: IpAddr) -> bool {
        ip.is_unspecified() || self.is_local(ip)
    }

    /// Opens a UDP socket at `local`, an address that [is bindable](Self::is_bindable) and not IPv4-mapped; port zero stands
    /// for any. One at `::` is for both families.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_udp(&self, local: SocketAddr) -> Result<&Endpoint, BindError> {
        self.udp.bind(local)
    }

    /// Closes what [`bind_udp`](Self::bind_udp) opened. Call once.
    pub fn close_udp(&self, endpoint: &Endpoint) {
        self.udp.close(endpoint);
    }

    /// Connects a UDP socket: it hears only `peer` from now on.
    ///
    /// # Errors
    /// [`SendError::NetworkUnreachable`] if there is no way to `peer`, [`SendError::NoPort`] if its port is zero,
    /// [`SendError::Family`] if the socket is bound to an address of the other family.
    pub fn connect_udp(&self, endpoint: &Endpoint, peer: SocketAddr) -> Result<(), SendError> {
        let peer = output::destination(peer)?;
        if self.addressing.route(peer.ip()) == Route::Unreachable {
            return Err(SendError::NetworkUnreachable);
        }
        let bound = endpoint.bound().ip();
        if bound.is_ipv4() != peer.is_ipv4() && bound != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            return Err(SendError::Family);
        }
        endpoint.connect(self.addressing.source_for(peer.ip()), peer);
        Ok(())
    }

    /// Says that no frame can leave any more. Sends fail from now on, those to this host excepted, and so do connections to other hosts.
    pub fn set_link_down(&self, outlet: &mut impl Outlet) {
        self.link_up.store(false, Relaxed);
        self.fail_remote(outlet);
    }

    /// Lets time pass: repeats questions, ages neighbours and paths, gives up on packets of which pieces are missing, announces this host, lets connections try again. Returns when to call again.
    pub fn poll_timers(&self, outlet: &mut impl Outlet) -> Option<Duration> {
        let now = outlet.now();
        self.poll_neighbours(outlet, now);
        self.paths.poll(now);
        self.poll_reassembly(outlet, now);
        self.poll_announcer(outlet, now);
        self.poll_tcp(outlet);
        self.deadline()
    }

    /// When [`poll_timers`](Self::poll_timers) has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let announcement = self.announcer.lock().deadline();
        self.deadline_of_tables().into_iter().chain(announcement).chain(self.tcp_deadline()).min()
    }

    /// The earliest timer of what is learnt from others.
    fn deadline_of_tables(&self) -> Option<Duration> {
        let reassembly = self.reassembly.lock().deadline();
        let neighbours = [self.neighbours.deadline(), self.neighbours6.deadline()];
        neighbours.into_iter().chain([self.paths.deadline(), reassembly]).flatten().min()
    }
}

#[cfg(test)]
mod tests;
