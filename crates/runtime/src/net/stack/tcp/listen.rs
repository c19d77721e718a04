//! Listening sockets: handshakes under way, and connections that wait to be accepted.
//!
//! A segment to a listening port is looked at under the listener's lock. Two kthreads may process two segments of one handshake: the second finds the
//! connection in the table, where it looks again once it has the lock.

use super::key::Key;
use super::socket::{Settings, Socket};
use super::timers::{Due, NEVER};
use super::{RETRY, duration};
use crate::net::stack::input::Arrived;
use crate::net::stack::output::SendError;
use crate::net::stack::{Outlet, Stack};
use crate::net::udp::covers;
use crate::net::wire::{Addresses, DEFAULT_TTL, IpProtocol, PacketInfo};
use crate::sync::spin::{SpinGuard, SpinLock};
use crate::sync::wait::WaitList;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tailwater_tcp::listen::{Arrival, ListenConfig, ListenStats};
use tailwater_tcp::{Answer, EcnCodepoint, Events, Flow, Full, Instant, Listener, Secret, Segment, Seq};

/// Connections that wait to be accepted unless the program says otherwise: Linux's limit (net.core.somaxconn), which is also what `std` asks for.
pub const DEFAULT_BACKLOG: u32 = 4096;
/// Listening sockets that share a port, by addresses.
const MAX_PER_PORT: usize = 16;

/// What is under a listening socket's lock.
#[derive(Debug)]
pub struct ListenInner {
    listener: Listener,
    queue: VecDeque<Arc<Socket>>,
    acceptors: WaitList,
    armed: Instant,
    closed: bool,
}

impl ListenInner {
    /// Where those wait that would accept.
    pub fn acceptors(&mut self) -> &mut WaitList {
        &mut self.acceptors
    }

    /// The connection that has waited longest, with its first handle.
    pub fn accept(&mut self) -> Option<Arc<Socket>> {
        let socket = self.queue.pop_front()?;
        socket.add_handle();
        Some(socket)
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listening {
    pub(super) id: u64,
    local: SocketAddr,
    backlog: usize,
    handles: AtomicU32,
    /// Settings; those of accepted connections begin afresh, but for the time to live.
    pub settings: Settings,
    inner: SpinLock<ListenInner>,
}

impl Listening {
    /// A listener with one handle, at `local`.
    pub(super) fn new(
        id: u64,
        local: SocketAddr,
        backlog: u32,
        config: ListenConfig,
        secret: Secret,
    ) -> Self {
        let inner = ListenInner {
            listener: Listener::new(config, secret),
            queue: VecDeque::new(),
            acceptors: WaitList::new(),
            armed: NEVER,
            closed: false,
        };
        Self {
            id,
            local,
            backlog: backlog.max(1) as usize,
            handles: AtomicU32::new(1),
            settings: Settings::new(),
            inner: SpinLock::new(inner),
        }
    }

    /// Locks it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, ListenInner> {
        self.inner.lock()
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Counts one more handle.
    pub fn add_handle(&self) {
        // Relaxed: whoever adds one has one.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less; true if it was the last.
    pub fn drop_handle(&self) -> bool {
        // AcqRel: the last one sees what the others did before they went.
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn conflicts(&self, with: SocketAddr) -> bool {
        let (ours, theirs) = (self.local.ip(), with.ip());
        ours == theirs || covers(ours, theirs) || covers(theirs, ours)
    }
}

/// All listening sockets of a stack. One lock: handshakes are rare beside segments, and it is held for a look.
#[derive(Debug, Default)]
pub struct Listeners {
    ports: SpinLock<HashMap<u16, Vec<Arc<Listening>>>>,
    /// What those that are gone have counted.
    gone: SpinLock<ListenStats>,
}

impl Listeners {
    /// The one for `ip` and `port`: that of the address itself before one of all addresses.
    pub fn find(&self, ip: IpAddr, port: u16) -> Option<Arc<Listening>> {
        let ports = self.ports.lock();
        let all = ports.get(&port)?;
        let exact = all.iter().find(|listening| listening.local.ip() == ip);
        exact.or_else(|| all.iter().find(|listening| covers(listening.local.ip(), ip))).cloned()
    }

    /// Whether somebody listens at `port`, at whatever address.
    pub fn is_used(&self, port: u16) -> bool {
        self.ports.lock().contains_key(&port)
    }

    /// Whether one may listen at `local`.
    pub fn is_free(&self, local: SocketAddr) -> bool {
        self.ports.lock().get(&local.port()).is_none_or(|all| is_free(all, local))
    }

    /// Adds one; false if another is there.
    pub fn insert(&self, listening: &Arc<Listening>) -> bool {
        let mut ports = self.ports.lock();
        let all = ports.entry(listening.local.port()).or_default();
        let free = is_free(all, listening.local);
        if free {
            all.push(Arc::clone(listening));
        }
        free
    }

    fn remove(&self, listening: &Arc<Listening>) {
        let mut ports = self.ports.lock();
        let port = listening.local.port();
        let Some(all) = ports.get_mut(&port) else { return };
        all.retain(|other| !Arc::ptr_eq(other, listening));
        if all.is_empty() {
            ports.remove(&port);
        }
    }

    /// Sums over all there were.
    pub fn stats(&self) -> ListenStats {
        let all: Vec<_> = self.ports.lock().values().flatten().cloned().collect();
        let gone = *self.gone.lock();
        all.iter().fold(gone, |sum, listening| add(sum, listening.lock().listener.stats()))
    }
}

fn is_free(all: &[Arc<Listening>], local: SocketAddr) -> bool {
    all.len() < MAX_PER_PORT && !all.iter().any(|other| other.conflicts(local))
}

fn add(a: ListenStats, b: ListenStats) -> ListenStats {
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
    }
}

impl Stack {
    /// A segment to a listening port; false if nobody listens there any more.
    #[expect(clippy::too_many_arguments, reason = "one call, from the step before it")]
    pub(super) fn handle_listening(
        &self,
        outlet: &mut impl Outlet,
        listening: &Arc<Listening>,
        arrived: &Arrived<'_>,
        flow: &Flow,
        segment: &Segment<'_>,
        iss: Option<Seq>,
        now: Instant,
    ) -> bool {
        let key = Key::from(flow);
        let ecn = EcnCodepoint::from_bits(arrived.traffic_class);
        let mut inner = listening.lock();
        if inner.closed {
            return false;
        }
        // Another kthread may have completed the handshake since the caller looked.
        if let Some(socket) = self.tcp.table.get(&key) {
            drop(inner);
            return self.handle_own(outlet, &socket, segment, (ecn, arrived.checksums), now);
        }
        let room = inner.queue.len() < listening.backlog && self.tcp.has_room();
        let path_mss = self.path_mss(flow.remote);
        let arrival = Arrival { flow: *flow, segment: *segment, ecn, path_mss, room, iss };
        let answer = inner.listener.handle_segment(now, &arrival);
        match answer {
            Answer::Ignore => {}
            Answer::Reply(header) => {
                self.arm_listening(outlet, listening, &mut inner, now);
                drop(inner);
                self.send_header(outlet, arrived.addresses.reversed(), &header);
            }
            Answer::Accept(connection, events) => {
                let socket = self.adopt(*flow, *connection);
                if !self.tcp.table.insert(key, &socket) {
                    // Somebody connected from this very port to the client's just now: the client is told nothing and tries again.
                    self.tcp.connections.fetch_sub(1, Ordering::Relaxed);
                    return true;
                }
                socket.settings.ttl.store(listening.settings.ttl.load(Ordering::Relaxed), Ordering::Relaxed);
                inner.queue.push_back(Arc::clone(&socket));
                inner.acceptors.wake_one();
                drop(inner);
                self.settle(outlet, &socket, &mut socket.lock(), events | Events::TRANSMIT, now);
            }
        }
        true
    }

    fn arm_listening(
        &self,
        outlet: &mut impl Outlet,
        listening: &Arc<Listening>,
        inner: &mut ListenInner,
        least: Instant,
    ) {
        let Some(next) = inner.listener.next_timeout().map(|at| at.max(least)) else { return };
        if next >= inner.armed {
            return;
        }
        if self.tcp.timers.insert(listening.id, inner.armed, next, Due::Listening(Arc::clone(listening))) {
            outlet.poll_by(duration(next));
        }
        inner.armed = next;
    }

    /// Repeats answers to SYNs.
    pub(super) fn poll_listening(&self, outlet: &mut impl Outlet, listening: &Arc<Listening>, now: Instant) {
        let inner = &mut *listening.lock();
        inner.armed = NEVER;
        if inner.closed {
            return;
        }
        inner.listener.poll_transmit(now, |flow, header| {
            let Some(addresses) = Addresses::new(flow.local, flow.remote) else { return Ok(()) };
            let packet =
                PacketInfo { addresses, protocol: IpProtocol::TCP, hop_limit: DEFAULT_TTL, traffic_class: 0 };
            match self.transmit_header(outlet, &packet, header) {
                Err(SendError::Full) => Err(Full),
                _ => Ok(()),
            }
        });
        self.arm_listening(outlet, listening, inner, now + RETRY);
    }

    /// Ends what `listen_tcp` began: connections that nobody accepted are reset.
    pub fn close_listening(&self, outlet: &mut impl Outlet, listening: &Arc<Listening>) {
        self.tcp.listeners.remove(listening);
        let mut inner = listening.lock();
        inner.closed = true;
        let waiting = core::mem::take(&mut inner.queue);
        if inner.armed != NEVER {
            self.tcp.timers.remove(listening.id, inner.armed);
            inner.armed = NEVER;
        }
        let stats = inner.listener.stats();
        drop(inner);
        let mut gone = self.tcp.listeners.gone.lock();
        *gone = add(*gone, stats);
        drop(gone);
        waiting.iter().for_each(|socket| self.abort_tcp(outlet, socket));
    }
}
