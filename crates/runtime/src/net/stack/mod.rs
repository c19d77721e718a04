//! The network stack as a pure machine: frames and time go in, frames and datagrams come out.
//!
//! Owns: who this host is, its neighbours, its sockets' queues, what it counts. Never reads a clock or sends by itself: an
//! [`Outlet`] comes with every call that may need either, so that a test can join two stacks with a queue and drive them
//! through hours of virtual time.
//!
//! ```text
//! frame -> input -+- ARP ---- neighbour cache -> frames that waited -> outlet
//!                 +- IPv4 -+- ICMP -> echo reply -> outlet, errors -> sockets
//!                          +- UDP --> socket queue, or port unreachable -> outlet
//! send_udp -> route -+- this host --> socket queue (no frame is ever built)
//!                    +- link -------> outlet, or the neighbour's queue until ARP has answered
//! ```
//!
//! A protocol is one arm in [`input`](Stack::input)'s `match`es, on the EtherType or on the IP protocol number.
//!
//! # Concurrency
//! Every method takes `&self` and may run on any kthread at any time, with preemption off. The ordinary receive takes one
//! spin lock, the socket's; the ordinary send takes none.
//!
//! # Bounds
//! A frame makes at most one frame of answer, plus the three that may have waited for a neighbour. Loopback recurses nowhere:
//! a datagram to this host goes from the sender's buffer into the receiver's queue, and what it can cause there is a wake-up or
//! an error in the sender's own socket.

mod arp;
mod config;
mod counters;
mod icmp;
mod input;
mod limiter;
mod output;

pub use config::{ConfigError, DEFAULT_UDP_RECEIVE_BYTES, MAX_MTU, Mode, NetConfig};
pub use counters::{Counters, Event};
pub use output::{MAX_DATAGRAM, SendError};

use crate::net::neighbour::NeighbourCache;
use crate::net::udp::{BindError, Endpoint, UdpTable};
use crate::sync::spin::SpinLock;
use arp::Announcer;
use config::{Addressing, Route};
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use counters::Cells;
use limiter::TokenBucket;

/// ICMP errors sent at once, and per second after that: Linux's limits (icmp_msgs_burst, icmp_msgs_per_sec).
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

    /// The time since any fixed moment. Asked on uncommon paths only.
    fn now(&self) -> Duration;

    /// Wants [`Stack::poll_timers`] to be called at `deadline`, if not before.
    fn poll_by(&mut self, deadline: Duration);
}

/// One host's network stack.
#[derive(Debug)]
pub struct Stack {
    addressing: Addressing,
    neighbours: NeighbourCache<Ipv4Addr>,
    udp: UdpTable,
    counters: Cells,
    icmp_errors: SpinLock<TokenBucket>,
    announcer: SpinLock<Announcer>,
    /// Whether frames can leave. Relaxed: a sender that sees an old value finds out at the outlet.
    link_up: AtomicBool,
}

impl Stack {
    /// A stack without sockets or neighbours. `seed` decides the order of ephemeral ports and should not be guessable.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: NetConfig, seed: u64) -> Result<Self, ConfigError> {
        let attached = config.mode == Mode::Attached;
        Ok(Self {
            udp: UdpTable::new(config.udp_receive_bytes, seed),
            addressing: Addressing::new(config)?,
            neighbours: NeighbourCache::new(),
            counters: Cells::new(),
            icmp_errors: SpinLock::new(TokenBucket::new(ICMP_ERRORS_BURST, ICMP_ERRORS_PER_SECOND)),
            announcer: SpinLock::new(Announcer::new(attached)),
            link_up: AtomicBool::new(attached),
        })
    }

    /// The stack's own address.
    pub fn ip(&self) -> Ipv4Addr {
        self.addressing.ip()
    }

    /// The configuration it was made from.
    pub fn config(&self) -> &NetConfig {
        self.addressing.config()
    }

    /// What has been counted since the start.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters.read();
        self.udp.count(&mut counters);
        counters
    }

    /// Whether a socket may be bound to `ip`: an address of this host, or the unspecified one.
    pub fn is_bindable(&self, ip: Ipv4Addr) -> bool {
        ip.is_unspecified() || ip.is_loopback() || ip == self.ip()
    }

    /// Opens a UDP socket at `local`, an address that [is bindable](Self::is_bindable); port zero stands for any.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_udp(&self, local: SocketAddrV4) -> Result<&Endpoint, BindError> {
        self.udp.bind(local)
    }

    /// Closes what [`bind_udp`](Self::bind_udp) opened. Call once.
    pub fn close_udp(&self, endpoint: &Endpoint) {
        self.udp.close(endpoint);
    }

    /// Connects a UDP socket: it hears only `peer` from now on.
    ///
    /// # Errors
    /// [`SendError::NetworkUnreachable`] if there is no way to `peer`, [`SendError::NoPort`] if its port is zero.
    pub fn connect_udp(&self, endpoint: &Endpoint, peer: SocketAddrV4) -> Result<(), SendError> {
        let peer = output::destination(peer)?;
        if self.addressing.route(*peer.ip()) == Route::Unreachable {
            return Err(SendError::NetworkUnreachable);
        }
        endpoint.connect(self.addressing.source_for(*peer.ip()), peer);
        Ok(())
    }

    /// Says that no frame can leave any more. Sends fail from now on, those to this host excepted.
    pub fn set_link_down(&self) {
        self.link_up.store(false, Relaxed);
    }

    /// Lets time pass: repeats questions, ages neighbours, announces this host. Returns when to call again.
    pub fn poll_timers(&self, outlet: &mut impl Outlet) -> Option<Duration> {
        let now = outlet.now();
        self.poll_neighbours(outlet, now);
        self.poll_announcer(outlet, now);
        self.deadline()
    }

    /// When [`poll_timers`](Self::poll_timers) has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let announcement = self.announcer.lock().deadline();
        self.neighbours.deadline().into_iter().chain(announcement).min()
    }
}

#[cfg(test)]
mod tests;
