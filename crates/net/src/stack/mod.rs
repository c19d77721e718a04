//! One host's network stack: the tables of the other modules, and the paths of frames through them.
//!
//! Owns the host's addresses, neighbours, paths, fragments, sockets and counters. Reads no clock
//! and sends nothing by itself: an [`Outlet`] comes with every call that needs either.
//!
//! ```text
//! frame -> input -+- ARP ---- neighbour cache -> frames that waited -> outlet
//!                 +- IPv4 -+- ICMP, ICMPv6 -> echo reply -> outlet, errors -> sockets, paths
//!                 +- IPv6 -+           +- neighbour cache -> frames that waited -> outlet
//!                          +- UDP --> socket queue, or port unreachable -> outlet
//!                          +- TCP --> connection -> outlet, waiting threads (see [`tcp`])
//! send_udp -> route -+- this host --> socket queue (no frame is built)
//!                    +- link -------> outlet, or the neighbour's queue until it is resolved
//! transmit_ip -> route -+- this host --> loopback queue -> input_local
//!                       +- link -------> as above
//! ```
//!
//! A link protocol is one arm in the `match` on the EtherType in [`input`](Stack::input). A
//! transport protocol is one arm in `input::handle_transport`, one in `errors::handle_icmp_error`,
//! and sends by [`Stack::transmit_ip`], whose contract is the header of [`ip`].
//!
//! # Concurrency
//! Every method takes `&self` and may run on any thread at any time. The ordinary receive takes one
//! lock, the socket's; the ordinary send takes none.
//!
//! # Bounds
//! A packet causes at most one packet of answer, which is no longer, and releases those that waited
//! for a neighbour. TCP's answers are bounded by its windows; to a segment without a connection the
//! answer is one header. Nothing recurses: a datagram to this host goes from the sender's buffer
//! into the receiver's queue, other packets to this host wait in the loopback queue.

mod arp;
mod departed;
pub mod ending;
mod errors;
mod icmp;
mod input;
mod instance;
pub mod ip;
mod nd;
#[cfg(not(feature = "tcp"))]
mod no_tcp;
mod output;
mod pieces;
#[cfg(feature = "tcp")]
pub mod tcp;

pub use instance::Instance;
pub use ip::Progress;

use crate::addressing::{Addressing, Route};
use crate::announcer::Announcer;
use crate::config::{ConfigError, Mode, NetConfig};
use crate::counters::Cells;
use crate::counters::NetCounters;
use crate::error::SendError;
use crate::error::destination;
use crate::limiter::{Limiter, PeerLimiter};
use crate::loopback::Loopback;
use crate::neighbour::NeighbourCache;
use crate::outlet::Outlet;
use crate::path_mtu::PathMtus;
use crate::platform::{Lock, Platform};
use crate::reassembly::Reassembly;
#[cfg(feature = "tcp")]
use crate::tcp::{Secrets, Tcp};
use crate::udp::{BindError, Endpoint, GroupError, UdpTable};
use core::hash::Hash;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use instance::Standing;

/// ICMP errors to a peer at once, and per second after that: Linux's limits for all peers together
/// (icmp_msgs_burst, icmp_msgs_per_sec).
const ICMP_ERRORS_BURST: u32 = 50;
const ICMP_ERRORS_PER_SECOND: u32 = 1000;
/// Answers to duplicate address detection at once, and per second: they go to all hosts, and a link
/// has few that begin to use an address.
const PROBE_ANSWERS: u32 = 10;

/// One host's network stack.
#[derive(Debug)]
pub struct Stack<P: Platform> {
    addressing: Addressing,
    neighbours: NeighbourCache<P, Ipv4Addr>,
    neighbours6: NeighbourCache<P, Ipv6Addr>,
    paths: PathMtus<P>,
    reassembly: P::Lock<Reassembly>,
    loopback: Loopback<P>,
    udp: UdpTable<P>,
    #[cfg(feature = "tcp")]
    tcp: Tcp<P>,
    counters: Cells,
    icmp_errors: PeerLimiter,
    probe_answers: Limiter,
    announcer: P::Lock<Announcer>,
    /// How it stands to another instance of this host.
    standing: Standing,
    /// True while frames can leave. Relaxed: a sender that reads an old value gets the outlet's
    /// error.
    link_up: AtomicBool,
    /// True after frames could leave, and cannot any more.
    link_lost: AtomicBool,
    /// Counts packets sent in fragments. Relaxed: only uniqueness matters.
    identifications: AtomicU32,
    seed: u64,
}

impl<P: Platform> Stack<P> {
    /// Makes a stack without sockets or neighbours. `seed` decides the order of ephemeral ports and
    /// the identifications of fragmented packets, and should not be guessable.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: NetConfig, seed: u64) -> Result<Self, ConfigError> {
        let attached = config.mode == Mode::Attached;
        Ok(Self {
            udp: UdpTable::new(config.udp_receive_bytes, seed),
            #[cfg(feature = "tcp")]
            tcp: Tcp::new(Secrets::from_seed(seed), seed, config.tcp_connections, config.machine_window),
            addressing: Addressing::new(config)?,
            neighbours: NeighbourCache::new(),
            neighbours6: NeighbourCache::new(),
            paths: PathMtus::new(),
            reassembly: Lock::new(Reassembly::new()),
            loopback: Loopback::new(),
            identifications: AtomicU32::new(0),
            seed,
            counters: Cells::new(),
            icmp_errors: PeerLimiter::new(ICMP_ERRORS_BURST, ICMP_ERRORS_PER_SECOND, seed),
            probe_answers: Limiter::new(PROBE_ANSWERS, PROBE_ANSWERS),
            announcer: Lock::new(Announcer::new(attached)),
            standing: Standing::default(),
            link_up: AtomicBool::new(attached),
            link_lost: AtomicBool::new(false),
        })
    }

    /// Makes a stack as [`new`](Self::new) does, with separate secrets for TCP.
    ///
    /// # Errors
    /// [`ConfigError`].
    #[cfg(feature = "tcp")]
    pub fn with_secrets(config: NetConfig, seed: u64, secrets: Secrets) -> Result<Self, ConfigError> {
        let tcp = Tcp::new(secrets, seed, config.tcp_connections, config.machine_window);
        Ok(Self { tcp, ..Self::new(config, seed)? })
    }

    /// Returns the stack's own IPv4 address.
    pub fn ip(&self) -> Ipv4Addr {
        self.addressing.ip()
    }

    /// Returns the stack's own IPv6 address, if it has one beyond ::1.
    pub fn ip6(&self) -> Option<Ipv6Addr> {
        self.addressing.ip6()
    }

    /// Returns whether `ip` is an address of this host.
    #[inline]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.addressing.is_local(ip)
    }

    /// Returns the source address of a packet to `destination` unless its socket has chosen one
    /// (RFC 6724); meaningless if no route leads there.
    #[inline]
    pub fn source_for(&self, destination: IpAddr) -> IpAddr {
        self.addressing.source_for(destination)
    }

    /// Returns the longest IP packet, in bytes, that reaches `destination` without fragmentation:
    /// the link's MTU until a router reports less, and again ten minutes after. At least 576 (IPv4)
    /// or 1280 (IPv6).
    #[inline]
    pub fn path_mtu(&self, destination: IpAddr) -> u16 {
        let link = self.config().mtu;
        self.paths.get(destination).map_or(link, |path| path.min(link))
    }

    /// Returns a hash of `what` under this stack's seed.
    fn hash(&self, what: &impl Hash) -> u64 {
        crate::hash::hash(&(self.seed, what))
    }

    /// Returns the stack's configuration.
    pub fn config(&self) -> &NetConfig {
        self.addressing.config()
    }

    /// Returns all counters.
    pub fn counters(&self) -> NetCounters {
        let mut counters = self.counters.read();
        self.udp.count(&mut counters);
        #[cfg(feature = "tcp")]
        self.tcp.count(&mut counters);
        counters
    }

    /// Returns whether a socket may be bound to `ip`: an address of this host, or the unspecified
    /// address.
    pub fn is_bindable(&self, ip: IpAddr) -> bool {
        ip.is_unspecified() || self.is_local(ip)
    }

    /// Opens a UDP socket at `local`, an address that [is bindable](Self::is_bindable) and not
    /// IPv4-mapped. Port zero stands for any free port. A socket at `::` serves both families.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_udp(&self, local: SocketAddr) -> Result<&Endpoint<P>, BindError> {
        self.udp.bind(local)
    }

    /// Closes a socket that [`bind_udp`](Self::bind_udp) opened. Called once for each.
    pub fn close_udp(&self, endpoint: &Endpoint<P>) {
        self.udp.close(endpoint);
    }

    /// Has a UDP socket receive what is sent to a group on the link, or by this host.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn join_udp(&self, endpoint: &Endpoint<P>, group: IpAddr) -> Result<(), GroupError> {
        self.udp.join(endpoint, group)
    }

    /// Ends that.
    ///
    /// # Errors
    /// [`GroupError::NotJoined`].
    pub fn leave_udp(&self, endpoint: &Endpoint<P>, group: IpAddr) -> Result<(), GroupError> {
        self.udp.leave(endpoint, group)
    }

    /// Connects a UDP socket: it receives only from `peer` from now on.
    ///
    /// # Errors
    /// [`SendError::NetworkUnreachable`] if there is no way to `peer`, [`SendError::NoPort`] if its
    /// port is zero, [`SendError::Family`] if the socket is bound to an address of the other
    /// family.
    pub fn connect_udp(&self, endpoint: &Endpoint<P>, peer: SocketAddr) -> Result<(), SendError> {
        let peer = destination(peer)?;
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

    /// Takes the link down: sends to other hosts fail from now on, and so do connections to them.
    /// Threads that wait for datagrams or connections are woken: see
    /// [`is_cut_off`](Self::is_cut_off).
    pub fn set_link_down(&self, outlet: &mut impl Outlet<P>) {
        self.link_up.store(false, Relaxed);
        // Before the threads are woken, under locks that they take.
        self.link_lost.store(true, Relaxed);
        self.fail_remote(outlet);
        self.udp.wake_readers();
    }

    /// Has connections and sockets that are bound to no certain port use these ports from now on;
    /// `None`: all that a host has for that.
    pub fn use_ports(&self, ports: Option<core::ops::RangeInclusive<u16>>) {
        self.udp.use_ports(ports.clone());
        #[cfg(feature = "tcp")]
        self.tcp.use_ports(ports);
    }

    /// Takes the link up again. Connections that have failed meanwhile stay so; sockets go on.
    pub fn set_link_up(&self) {
        self.link_up.store(true, Relaxed);
        self.link_lost.store(false, Relaxed);
    }

    /// Returns whether a socket bound to `local` waits for peers that the lost link led to. False
    /// for one that only this host reaches, and if there never was a link.
    #[inline]
    pub fn is_cut_off(&self, local: SocketAddr) -> bool {
        self.link_lost.load(Relaxed) && !local.ip().is_loopback()
    }

    /// Sends at once what connections could not send while the outlet had no room for long, and
    /// does not wait for their timers.
    pub fn resume(&self, outlet: &mut impl Outlet<P>) {
        self.resume_remote(outlet);
    }

    /// Runs all expired timers: of neighbours, paths, fragments, announcements and connections.
    /// Returns the next deadline.
    pub fn poll_timers(&self, outlet: &mut impl Outlet<P>) -> Option<Duration> {
        let now = outlet.now();
        self.poll_neighbours(outlet, now);
        self.paths.poll(now);
        self.poll_reassembly(outlet, now);
        self.poll_announcer(outlet, now);
        self.poll_tcp(outlet);
        self.deadline()
    }

    /// Returns when [`poll_timers`](Self::poll_timers) has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let announcement = self.announcer.lock().deadline();
        self.deadline_of_tables().into_iter().chain(announcement).chain(self.tcp_deadline()).min()
    }

    /// Returns the earliest timer of neighbours, paths and fragments.
    fn deadline_of_tables(&self) -> Option<Duration> {
        let reassembly = self.reassembly.lock().deadline();
        let neighbours = [self.neighbours.deadline(), self.neighbours6.deadline()];
        neighbours.into_iter().chain([self.paths.deadline(), reassembly]).flatten().min()
    }
}

#[cfg(test)]
mod tests;
