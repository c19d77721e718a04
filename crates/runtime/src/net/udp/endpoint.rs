//! One open socket as the stack sees it: who it is, what waits for it, who waits for that.
//!
//! Owns: the receive queue, the readers' wait list, the pending error. Everything is under one spin lock, held for a few loads
//! and one copy of a datagram. Endpoints are recycled and never freed: a kthread that found one through a stale port
//! table entry locks it and sees from its [`Binding`] that it is not meant.
//!
//! # Who wakes whom
//! Each datagram and each error that arrives wakes at most one reader, the one that has waited longest; each is taken by one
//! call. So wake-ups under way plus readers that hold nothing are never fewer than what lies there to be taken. A reader that
//! only looks ([`Take::Peek`]) passes its wake-up on.

use super::ring::{DatagramRing, Received};
use crate::net::wire::DEFAULT_TTL;
use crate::sync::spin::{SpinGuard, SpinLock};
use crate::sync::wait::WaitList;
use crate::trace::{self, Outcome, Request};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use tailwater_shm::layout::Padded;

/// What happened to an earlier datagram of a connected socket; told to its next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SocketError {
    /// The peer has no socket at that port (ICMP port unreachable).
    #[error("the peer refused the datagram: no socket is open at its port")]
    Refused,
    /// The peer, or the gateway to it, does not answer ARP or neighbour discovery; or a router says so.
    #[error("the host cannot be reached: it does not answer")]
    HostUnreachable,
    /// A router has no route to the peer.
    #[error("the network cannot be reached: a router has no route there")]
    NetworkUnreachable,
    /// The peer does not speak UDP.
    #[error("the peer does not speak this protocol")]
    NoProtocol,
    /// Somebody on the way forbids it.
    #[error("the datagram was not let through on its way")]
    Prohibited,
}

/// Whether a read removes what it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Removes it.
    Remove,
    /// Leaves it for the next reader.
    Peek,
}

/// Whether `address` stands for every address of this host, or every one of its family: `::` covers both, as on Linux unless told
/// otherwise (RFC 3493 section 3.7).
#[inline]
pub fn covers(address: IpAddr, other: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_unspecified() && other.is_ipv4(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    }
}

/// Which datagrams are for a socket. Addresses are canonical: IPv4 is never written as IPv4-mapped, and scope and flow of
/// IPv6 are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Its address; the unspecified address stands for all of the stack's.
    pub local: SocketAddr,
    /// The one peer it listens to, when connected.
    pub peer: Option<SocketAddr>,
}

impl Binding {
    /// Whether a datagram from `source` to `destination` is for this socket. One to everybody is for sockets bound to all
    /// addresses only.
    #[inline]
    fn accepts(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        self.local.port() == destination.port()
            && (self.local.ip() == destination.ip() || covers(self.local.ip(), destination.ip()))
            && self.peer.is_none_or(|peer| peer == source)
    }

    /// Whether two sockets may not be open together.
    fn conflicts(&self, with: SocketAddr) -> bool {
        let (ours, theirs) = (self.local.ip(), with.ip());
        self.local.port() == with.port() && (ours == theirs || covers(ours, theirs) || covers(theirs, ours))
    }
}

/// What arrived, and who waits for more.
#[derive(Debug)]
pub struct Inbound {
    /// `None` while the endpoint belongs to no socket.
    binding: Option<Binding>,
    /// The address as bound; `connect` may make `binding.local` more precise.
    bound: SocketAddr,
    queue: DatagramRing,
    error: Option<SocketError>,
    readers: WaitList,
    /// Traced requests in `queue`.
    traced: Tags,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) overflows: u64,
}

impl Inbound {
    /// Where readers wait.
    pub fn readers(&mut self) -> &mut WaitList {
        &mut self.readers
    }

    /// The datagram that was queued last is a traced request.
    #[cold]
    fn tag(&mut self, request: Request, woke: bool) {
        let queued = self.queue.count();
        let outcome = if self.traced.push(queued, request) {
            Outcome::Queued { woke, ahead: queued.saturating_sub(1) as u32 }
        } else {
            Outcome::Untracked
        };
        trace::delivered(request, outcome);
    }

    /// The oldest datagram, or the pending error, which comes first; `None` when there is neither.
    ///
    /// # Errors
    /// The pending error, which this takes.
    #[inline]
    pub fn receive(&mut self, buf: &mut [u8], take: Take) -> Result<Option<Received>, SocketError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match take {
            Take::Remove => {
                let popped = self.queue.pop(buf);
                if popped.is_some() {
                    trace::received(self.traced.pop());
                }
                Ok(popped)
            }
            Take::Peek => {
                let peeked = self.queue.peek(buf);
                if peeked.is_some() {
                    // What this reader was woken for is still there: pass the wake-up on.
                    self.readers.wake_one();
                }
                Ok(peeked)
            }
        }
    }
}

/// Traced requests that can be told apart in one socket.
const MAX_TAGS: usize = 8;

/// Which datagrams of a queue are traced requests.
#[derive(Debug, Default)]
struct Tags {
    /// Datagrams before it, and what it is.
    tags: [Option<(u32, Request)>; MAX_TAGS],
    count: u8,
}

impl Tags {
    /// The newest of `queued` datagrams is a traced request. False if there is no room for another.
    fn push(&mut self, queued: usize, request: Request) -> bool {
        let Some(free) = self.tags.iter_mut().find(|tag| tag.is_none()) else { return false };
        *free = Some((queued.saturating_sub(1) as u32, request));
        self.count += 1;
        true
    }

    /// The oldest datagram was taken: what it was, if it was one.
    #[inline(always)]
    fn pop(&mut self) -> Option<Request> {
        if self.count == 0 { None } else { self.pop_tag() }
    }

    #[cold]
    fn pop_tag(&mut self) -> Option<Request> {
        let mut taken = None;
        for tag in &mut self.tags {
            match tag {
                Some((0, request)) => {
                    taken = Some(*request);
                    *tag = None;
                    self.count -= 1;
                }
                Some((before, _)) => *before -= 1,
                None => {}
            }
        }
        taken
    }
}

/// A place for one open socket. What receivers lock and what senders touch are on different cache lines.
#[derive(Debug)]
pub struct Endpoint {
    /// Place in the slab.
    pub(super) index: u32,
    /// Next endpoint of the same port, as index plus one; zero ends the chain. Written under the table's lock.
    pub(super) next: AtomicU32,
    /// An error is pending: lets senders look without locking. Written under the lock; Relaxed, the lock is what orders.
    has_error: AtomicBool,
    /// Time to live of datagrams sent.
    pub ttl: AtomicU8,
    /// Whether datagrams to everybody may be sent.
    pub broadcast: AtomicBool,
    /// Datagrams sent.
    pub(super) sent: AtomicU64,
    inbound: Padded<SpinLock<Inbound>>,
}

/// What became of a datagram that was offered to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It waits there.
    Queued,
    /// It was for this endpoint, whose buffer is full.
    Overflow,
    /// It is for somebody else.
    NotMine,
}

impl Endpoint {
    /// An endpoint that belongs to no socket.
    pub(super) fn new(index: u32) -> Self {
        Self {
            index,
            next: AtomicU32::new(0),
            has_error: AtomicBool::new(false),
            ttl: AtomicU8::new(DEFAULT_TTL),
            broadcast: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            inbound: Padded(SpinLock::new(Inbound {
                binding: None,
                bound: SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
                queue: DatagramRing::new(0),
                error: None,
                readers: WaitList::new(),
                traced: Tags::default(),
                received: 0,
                received_bytes: 0,
                overflows: 0,
            })),
        }
    }

    /// Locks the receiving side.
    #[inline]
    pub fn inbound(&self) -> SpinGuard<'_, Inbound> {
        self.inbound.0.lock()
    }

    /// Makes this the endpoint of a new socket.
    pub(super) fn open(&self, local: SocketAddr, queue: DatagramRing) {
        let mut inbound = self.inbound.0.lock();
        inbound.binding = Some(Binding { local, peer: None });
        inbound.bound = local;
        inbound.queue = queue;
        self.ttl.store(DEFAULT_TTL, Relaxed);
        self.broadcast.store(false, Relaxed);
    }

    /// Ends the socket; gives back its queue, to be freed when no lock is held.
    pub(super) fn close(&self) -> DatagramRing {
        let mut inbound = self.inbound.0.lock();
        inbound.binding = None;
        inbound.error = None;
        self.has_error.store(false, Relaxed);
        inbound.traced = Tags::default();
        core::mem::replace(&mut inbound.queue, DatagramRing::new(0))
    }

    /// Whether a socket here keeps another from `local`.
    pub(super) fn conflicts(&self, local: SocketAddr) -> bool {
        self.inbound.0.lock().binding.is_some_and(|binding| binding.conflicts(local))
    }

    /// Queues a datagram if it is for this endpoint.
    #[inline]
    pub(super) fn offer(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        data: &[u8],
        traced: Option<Request>,
    ) -> Offer {
        let mut inbound = self.inbound.0.lock();
        if !inbound.binding.is_some_and(|binding| binding.accepts(source, destination)) {
            return Offer::NotMine;
        }
        if !inbound.queue.push(source, data) {
            inbound.overflows += 1;
            if let Some(request) = traced {
                trace::delivered(request, Outcome::Refused);
            }
            return Offer::Overflow;
        }
        inbound.received += 1;
        inbound.received_bytes += data.len() as u64;
        let woke = inbound.readers.wake_one();
        if let Some(request) = traced {
            inbound.tag(request, woke);
        }
        Offer::Queued
    }

    /// Leaves `error` for the next call if this is the endpoint of `local`, connected to `peer`.
    pub(super) fn post_error(&self, local: SocketAddr, peer: SocketAddr, error: SocketError) -> bool {
        let mut inbound = self.inbound.0.lock();
        let mine = |binding: Binding| binding.peer == Some(peer) && binding.accepts(peer, local);
        if !inbound.binding.is_some_and(mine) {
            return false;
        }
        if inbound.error.replace(error).is_none() {
            self.has_error.store(true, Relaxed);
            inbound.readers.wake_one();
        }
        true
    }

    /// Whether a datagram from `local` to `peer` can have come from here.
    pub(super) fn sends_to(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.inbound.0.lock().binding.is_some_and(|binding| binding.accepts(peer, local))
    }

    /// The pending error, which this takes. Costs one load when there is none.
    #[inline]
    pub fn take_error(&self) -> Option<SocketError> {
        if !self.has_error.load(Relaxed) {
            return None;
        }
        let mut inbound = self.inbound.0.lock();
        self.has_error.store(false, Relaxed);
        inbound.error.take()
    }

    /// Counts a datagram sent.
    #[inline]
    pub fn count_sent(&self) {
        // Relaxed: a statistic.
        self.sent.fetch_add(1, Relaxed);
    }

    /// From now on this socket hears only `peer`, and `local` is its address if it was bound to all of them. What waits in it
    /// stays.
    pub fn connect(&self, local: IpAddr, peer: SocketAddr) {
        let mut inbound = self.inbound.0.lock();
        let bound = inbound.bound;
        let ip = if bound.ip().is_unspecified() { local } else { bound.ip() };
        inbound.binding = Some(Binding { local: SocketAddr::new(ip, bound.port()), peer: Some(peer) });
    }

    /// The address as bound, whatever the socket is connected to.
    pub fn bound(&self) -> SocketAddr {
        self.inbound.0.lock().bound
    }

    /// Whom this socket listens to.
    ///
    /// # Panics
    /// If it is closed, which a socket that asks is not.
    #[inline]
    pub fn binding(&self) -> Binding {
        self.inbound.0.lock().binding.expect("the socket that asks is open")
    }
}

#[cfg(test)]
mod tests;
