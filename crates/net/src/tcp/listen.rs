//! Listening sockets, the connections that wait to be accepted, and the table that finds them.

use super::socket::{Settings, Socket};
use crate::platform::{Guard, Lock, Platform, Waiters};
use crate::udp::endpoint::{covers, overlap};
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
    local: SocketAddr,
    pub(crate) backlog: usize,
    handles: AtomicU32,
    /// Settings. Accepted connections take over the time to live alone.
    pub settings: Settings,
    inner: P::Lock<ListenInner<P>>,
}

impl<P: Platform> Listening<P> {
    /// Returns a listener with one handle, at `local`.
    pub(crate) fn new(
        id: u64,
        local: SocketAddr,
        backlog: u32,
        config: ListenConfig,
        secret: Secret,
    ) -> Self {
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
            local,
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
        self.local
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
        let exact = all.iter().find(|listening| listening.local.ip() == ip);
        exact.or_else(|| all.iter().find(|listening| covers(listening.local.ip(), ip))).cloned()
    }

    /// Returns whether there is a listener at `port`, at any address.
    pub fn is_used(&self, port: u16) -> bool {
        self.ports.lock().contains_key(&port)
    }

    /// Returns whether a listener may be added at `local`.
    pub fn is_free(&self, local: SocketAddr) -> bool {
        self.ports.lock().get(&local.port()).is_none_or(|all| check(all, local).is_ok())
    }

    /// Adds a listener.
    ///
    /// # Errors
    /// [`ListenError`] if its address is taken or its port full.
    pub fn insert(&self, listening: &Arc<Listening<P>>) -> Result<(), ListenError> {
        let mut ports = self.ports.lock();
        let all = ports.entry(listening.local.port()).or_default();
        check(all, listening.local)?;
        all.push(Arc::clone(listening));
        Ok(())
    }

    pub(crate) fn remove(&self, listening: &Arc<Listening<P>>) {
        let mut ports = self.ports.lock();
        let port = listening.local.port();
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

/// Checks that a listener at `local` may join `all` others at its port.
fn check<P: Platform>(all: &[Arc<Listening<P>>], local: SocketAddr) -> Result<(), ListenError> {
    if all.iter().any(|other| overlap(other.local.ip(), local.ip())) {
        return Err(ListenError::InUse(local));
    }
    if all.len() >= MAX_PER_PORT { Err(ListenError::Crowded(local.port())) } else { Ok(()) }
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

    #[test]
    #[expect(clippy::arc_with_non_send_sync, reason = "the platform has one thread")]
    fn a_listener_that_does_not_fit_is_refused_for_what_is_in_its_way() {
        let listeners = Listeners::<Single>::default();
        let add = |last: u8, port| {
            let local = SocketAddr::from(([127, 0, 0, last], port));
            let secret = Secret([0; 16]);
            listeners.insert(&Arc::new(Listening::new(0, local, 1, ListenConfig::default(), secret)))
        };
        for last in 1..=MAX_PER_PORT as u8 {
            assert_eq!(add(last, 7), Ok(()));
        }
        assert_eq!(add(3, 7), Err(ListenError::InUse(SocketAddr::from(([127, 0, 0, 3], 7)))));
        assert_eq!(add(100, 7), Err(ListenError::Crowded(7)));
        assert_eq!(add(100, 8), Ok(()));
    }
}
