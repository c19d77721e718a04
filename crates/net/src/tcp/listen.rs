//! Listening sockets, the connections that wait to be accepted, and the table that finds them.

use super::socket::{Settings, Socket};
use crate::platform::{Guard, Lock, Platform, Waiters};
use crate::udp::endpoint::covers;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, Ordering};
use tailwater_tcp::listen::{ListenConfig, ListenStats};
use tailwater_tcp::{Instant, Listener, Secret};
use thiserror::Error;

/// Default number of connections that wait to be accepted: Linux's limit (net.core.somaxconn),
/// which `std` requests too.
pub const DEFAULT_BACKLOG: u32 = 4096;
/// Listening sockets that share a port, by addresses.
const MAX_PER_PORT: usize = 16;

/// Why a listener was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ListenError {
    /// Another listener has the address.
    #[error("TCP {0} is taken by another listener of this process: close that one or choose another port")]
    InUse(SocketAddr),
    /// The port has as many listeners as fit, at other addresses.
    #[error("{MAX_PER_PORT} listeners share TCP port {0}, which is the most there can be: close one")]
    Crowded(u16),
    /// All ephemeral ports are taken.
    #[error("no ephemeral TCP port is free on {0}: close listeners")]
    NoPort(IpAddr),
}

/// The addresses at which a listener takes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Its address; an unspecified one stands for all of the stack.
    pub local: SocketAddr,
    /// False if `::` stands for IPv4, too (RFC 3493 section 5.3, `IPV6_V6ONLY`).
    pub only_v6: bool,
}

impl From<SocketAddr> for Reach {
    /// Returns what Linux has by default: `::` stands for both families.
    fn from(local: SocketAddr) -> Self {
        Self { local, only_v6: false }
    }
}

impl Reach {
    /// Returns whether connections to `ip` are for this listener.
    fn takes(self, ip: IpAddr) -> bool {
        let own = self.local.ip();
        own == ip || covers(own, ip) && !(self.only_v6 && own.is_ipv6() && ip.is_ipv4())
    }

    /// Returns whether one of two listeners at a port takes what the other one does.
    fn overlaps(self, other: Self) -> bool {
        self.takes(other.local.ip()) || other.takes(self.local.ip())
    }
}

/// The locked part of a listening socket.
#[derive(Debug)]
pub struct ListenInner<P: Platform> {
    pub(crate) listener: Listener,
    pub(crate) queue: VecDeque<Arc<Socket<P>>>,
    pub(crate) acceptors: P::Waiters,
    pub(crate) armed: Instant,
    /// True once no more connections are made: those in `queue` may still be accepted.
    pub(crate) closed: bool,
    /// Counted by [`Platform::awaits_acks`].
    awaits_acks: bool,
}

impl<P: Platform> ListenInner<P> {
    /// Returns the threads that wait in `accept`.
    pub fn acceptors(&mut self) -> &mut P::Waiters {
        &mut self.acceptors
    }

    /// Returns true if accepting does not wait: a connection is there, or there will be none.
    pub fn is_ready(&self) -> bool {
        self.closed || !self.queue.is_empty()
    }

    /// Returns true if no more connections are made.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Tells the platform when handshakes begin and end to await acknowledgments. Follows every
    /// call that changes the listener.
    pub(crate) fn note_awaited(&mut self, now: Instant) {
        let awaits = !self.closed && self.listener.awaits_acks(now);
        if core::mem::replace(&mut self.awaits_acks, awaits) != awaits {
            P::awaits_acks(awaits);
        }
    }

    /// Removes the connection that has waited longest, with its first handle.
    pub fn accept(&mut self) -> Option<Arc<Socket<P>>> {
        let socket = self.queue.pop_front()?;
        socket.add_handle();
        Some(socket)
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listening<P: Platform> {
    pub(crate) id: u64,
    reach: Reach,
    pub(crate) backlog: usize,
    handles: AtomicU32,
    /// Settings. Accepted connections take over the time to live alone.
    pub settings: Settings,
    inner: P::Lock<ListenInner<P>>,
}

impl<P: Platform> Listening<P> {
    /// Returns a listener with one handle.
    pub(crate) fn new(id: u64, reach: Reach, backlog: u32, config: ListenConfig, secret: Secret) -> Self {
        let inner = ListenInner {
            listener: Listener::new(config, secret),
            queue: VecDeque::new(),
            acceptors: P::Waiters::default(),
            armed: Instant::NEVER,
            closed: false,
            awaits_acks: false,
        };
        Self {
            id,
            reach,
            backlog: backlog.max(1) as usize,
            handles: AtomicU32::new(1),
            settings: Settings::default(),
            inner: Lock::new(inner),
        }
    }

    /// Locks it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, P, ListenInner<P>> {
        self.inner.lock()
    }

    /// Returns where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.reach.local
    }

    /// Counts one more handle.
    pub fn add_handle(&self) {
        // Relaxed: the caller has a handle.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less; true if it was the last.
    pub fn drop_handle(&self) -> bool {
        // AcqRel: the last handle sees the writes of those dropped before.
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// Listening sockets by port.
type Ports<P> = BTreeMap<u16, Vec<Arc<Listening<P>>>>;

/// All listening sockets of a stack. One lock: handshakes are rare beside segments, and it is held
/// for a look.
#[derive(Debug)]
pub struct Listeners<P: Platform> {
    ports: P::Lock<Ports<P>>,
    /// Counters of listeners that are gone.
    pub(crate) gone: P::Lock<ListenStats>,
}

impl<P: Platform> Default for Listeners<P> {
    fn default() -> Self {
        Self { ports: Lock::new(BTreeMap::new()), gone: Lock::new(ListenStats::default()) }
    }
}

impl<P: Platform> Listeners<P> {
    /// Returns the listener for `ip` and `port`: one of the address itself before one of all
    /// addresses.
    pub fn find(&self, ip: IpAddr, port: u16) -> Option<Arc<Listening<P>>> {
        let ports = self.ports.lock();
        let all = ports.get(&port)?;
        let exact = all.iter().find(|listening| listening.local_addr().ip() == ip);
        exact.or_else(|| all.iter().find(|listening| listening.reach.takes(ip))).cloned()
    }

    /// Returns whether there is a listener at `port`, at any address.
    pub fn is_used(&self, port: u16) -> bool {
        self.ports.lock().contains_key(&port)
    }

    /// Returns whether a listener of this reach may be added.
    pub fn is_free(&self, reach: Reach) -> bool {
        self.ports.lock().get(&reach.local.port()).is_none_or(|all| check(all, reach).is_ok())
    }

    /// Adds a listener.
    ///
    /// # Errors
    /// [`ListenError`] if its address is taken or its port full.
    pub fn insert(&self, listening: &Arc<Listening<P>>) -> Result<(), ListenError> {
        let mut ports = self.ports.lock();
        let all = ports.entry(listening.reach.local.port()).or_default();
        check(all, listening.reach)?;
        all.push(Arc::clone(listening));
        Ok(())
    }

    pub(crate) fn remove(&self, listening: &Arc<Listening<P>>) {
        let mut ports = self.ports.lock();
        let port = listening.reach.local.port();
        let Some(all) = ports.get_mut(&port) else { return };
        all.retain(|other| !Arc::ptr_eq(other, listening));
        if all.is_empty() {
            ports.remove(&port);
        }
    }

    /// Wakes all threads that wait for a connection.
    pub(crate) fn wake_acceptors(&self) {
        let all: Vec<_> = self.ports.lock().values().flatten().cloned().collect();
        for listening in all {
            let mut inner = listening.lock();
            while inner.acceptors.wake_one() {}
        }
    }

    /// Returns the number of handshakes under way.
    pub(crate) fn handshakes(&self) -> usize {
        let all: Vec<_> = self.ports.lock().values().flatten().cloned().collect();
        all.iter().map(|listening| listening.lock().listener.pending()).sum()
    }

    /// Returns the sum of the counters of all listeners, past and present.
    pub fn stats(&self) -> ListenStats {
        let all: Vec<_> = self.ports.lock().values().flatten().cloned().collect();
        let gone = *self.gone.lock();
        all.iter().fold(gone, |sum, listening| add(sum, listening.lock().listener.stats()))
    }
}

/// Checks that a listener may join `all` others at its port.
fn check<P: Platform>(all: &[Arc<Listening<P>>], reach: Reach) -> Result<(), ListenError> {
    if all.iter().any(|other| other.reach.overlaps(reach)) {
        return Err(ListenError::InUse(reach.local));
    }
    if all.len() >= MAX_PER_PORT { Err(ListenError::Crowded(reach.local.port())) } else { Ok(()) }
}

pub(crate) fn add(a: ListenStats, b: ListenStats) -> ListenStats {
    ListenStats {
        syns: a.syns + b.syns,
        cookies_sent: a.cookies_sent + b.cookies_sent,
        cookies_accepted: a.cookies_accepted + b.cookies_accepted,
        cookies_refused: a.cookies_refused + b.cookies_refused,
        syns_dropped: a.syns_dropped + b.syns_dropped,
        overflows: a.overflows + b.overflows,
        retransmissions: a.retransmissions + b.retransmissions,
        expired: a.expired + b.expired,
        accepted: a.accepted + b.accepted,
        fast_opens: a.fast_opens + b.fast_opens,
        fast_open_refused: a.fast_open_refused + b.fast_open_refused,
        fast_open_overflows: a.fast_open_overflows + b.fast_open_overflows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Single;
    use core::net::Ipv6Addr;

    #[expect(clippy::arc_with_non_send_sync, reason = "the platform has one thread")]
    fn add(listeners: &Listeners<Single>, reach: impl Into<Reach>) -> Result<(), ListenError> {
        let secret = Secret([0; 16]);
        listeners.insert(&Arc::new(Listening::new(0, reach.into(), 1, ListenConfig::default(), secret)))
    }

    #[test]
    fn a_listener_that_does_not_fit_is_refused_for_what_is_in_its_way() {
        let listeners = Listeners::<Single>::default();
        let add = |last: u8, port| add(&listeners, SocketAddr::from(([127, 0, 0, last], port)));
        for last in 1..=MAX_PER_PORT as u8 {
            assert_eq!(add(last, 7), Ok(()));
        }
        assert_eq!(add(3, 7), Err(ListenError::InUse(SocketAddr::from(([127, 0, 0, 3], 7)))));
        assert_eq!(add(100, 7), Err(ListenError::Crowded(7)));
        assert_eq!(add(100, 8), Ok(()));
    }

    #[test]
    fn a_listener_of_ipv6_alone_leaves_ipv4_to_another_one() {
        let listeners = Listeners::<Single>::default();
        let (any4, any6) = (SocketAddr::from(([0; 4], 80)), SocketAddr::from(([0_u16; 8], 80)));
        let only_v6 = Reach { local: any6, only_v6: true };
        assert_eq!(add(&listeners, only_v6), Ok(()));
        let own = |ip: IpAddr| listeners.find(ip, 80).map(|listening| listening.local_addr());
        assert_eq!(own([10, 0, 0, 1].into()), None);
        assert_eq!(add(&listeners, any4), Ok(()));
        assert_eq!(own([10, 0, 0, 1].into()), Some(any4));
        assert_eq!(own(Ipv6Addr::LOCALHOST.into()), Some(any6));
        assert_eq!(add(&listeners, any6), Err(ListenError::InUse(any6)), "it takes IPv4, too");
    }
}
