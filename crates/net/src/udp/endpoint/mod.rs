//! One open UDP socket as the stack sees it.
//!
//! Owns the receive queue, the waiting readers, the pending error. All of it is under one lock,
//! held for a few loads and one copy of a datagram. Endpoints are recycled and never freed: a
//! thread that finds one through a stale entry of the port table locks it and reads in its
//! [`Binding`] that the datagram is for another socket.
//!
//! # Wake-ups
//! Each datagram and each error wakes at most one reader, the one that has waited longest, and is
//! taken by one call. Readers that are awake and have taken nothing are therefore never fewer than
//! the datagrams queued. A reader that only peeks ([`Take::Peek`]) passes its wake-up on.

use super::groups::{GroupError, MAX_GROUPS};
use super::ring::{DatagramRing, Received};
use crate::padded::Padded;
use crate::platform::{Guard, Lock, Outcome, Platform, Waiters};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use tailwater_wire::DEFAULT_TTL;

/// The fate of an earlier datagram of a connected socket; the next call returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SocketError {
    /// The peer has no socket at that port (ICMP port unreachable).
    #[error("the peer refused the datagram: no socket is open at its port")]
    Refused,
    /// The peer, or the gateway to it, does not answer ARP or neighbour discovery, or a router
    /// reports it.
    #[error("the host cannot be reached: it does not answer")]
    HostUnreachable,
    /// A router has no route to the peer.
    #[error("the network cannot be reached: a router has no route there")]
    NetworkUnreachable,
    /// The peer does not implement UDP.
    #[error("the peer does not speak this protocol")]
    NoProtocol,
    /// A filter on the path refused it.
    #[error("the datagram was blocked on its way")]
    Prohibited,
}

/// Whether a read removes the datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Removes it.
    Remove,
    /// Leaves it to the next reader.
    Peek,
}

/// Returns whether `address` is unspecified and stands for `other`: 0.0.0.0 for IPv4, `::` for both
/// families, as on Linux by default (RFC 3493 section 3.7).
#[inline]
pub fn covers(address: IpAddr, other: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_unspecified() && other.is_ipv4(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    }
}

/// Returns true if one address includes the other, so that sockets of both conflict on a port.
pub fn overlap(a: IpAddr, b: IpAddr) -> bool {
    a == b || covers(a, b) || covers(b, a)
}

/// The datagrams that are for a socket. Addresses are canonical: none is IPv4-mapped, and scope and
/// flow of IPv6 are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Its address; the unspecified address stands for all addresses of the stack.
    pub local: SocketAddr,
    /// Its only peer, if it is connected.
    pub peer: Option<SocketAddr>,
}

impl Binding {
    /// Returns whether a datagram from `source` to `destination` is for this socket. A broadcast is
    /// only for sockets bound to all addresses.
    #[inline]
    fn accepts(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        self.local.port() == destination.port()
            && (self.local.ip() == destination.ip() || covers(self.local.ip(), destination.ip()))
            && self.peer.is_none_or(|peer| peer == source)
    }

    /// Returns whether a socket at `with` cannot be open beside this one.
    fn conflicts(&self, with: SocketAddr) -> bool {
        self.local.port() == with.port() && overlap(self.local.ip(), with.ip())
    }
}

/// The receiving side of a socket.
#[derive(Debug)]
pub struct Inbound<P: Platform> {
    /// `None` while no socket uses the endpoint.
    binding: Option<Binding>,
    /// The address as bound; `connect` may replace an unspecified address in `binding.local`.
    bound: SocketAddr,
    queue: DatagramRing,
    error: Option<SocketError>,
    readers: P::Waiters,
    /// Groups that the socket has joined.
    groups: Vec<IpAddr>,
    /// Traced requests in `queue`.
    traced: Tags<P::Request>,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) overflows: u64,
}

impl<P: Platform> Inbound<P> {
    /// Returns the waiting readers.
    pub fn readers(&mut self) -> &mut P::Waiters {
        &mut self.readers
    }

    /// Returns whether [`receive`](Self::receive) would return a datagram or an error.
    pub fn is_readable(&self) -> bool {
        self.error.is_some() || self.queue.count() > 0
    }

    /// Marks the datagram queued last as a traced request.
    #[cold]
    fn tag(&mut self, request: P::Request, woke: bool) {
        let queued = self.queue.count();
        let outcome = if self.traced.push(queued, request) {
            Outcome::Queued { woke, ahead: queued.saturating_sub(1) as u32 }
        } else {
            Outcome::Untracked
        };
        P::delivered(request, outcome);
    }

    /// Returns the pending error or the oldest datagram; `None` if there is neither.
    ///
    /// # Errors
    /// The pending error, which this clears.
    #[inline]
    pub fn receive(&mut self, buf: &mut [u8], take: Take) -> Result<Option<Received>, SocketError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match take {
            Take::Remove => {
                let popped = self.queue.pop(buf);
                if popped.is_some() {
                    P::received(self.traced.pop());
                }
                Ok(popped)
            }
            Take::Peek => {
                let peeked = self.queue.peek(buf);
                if peeked.is_some() {
                    // The datagram is still there: pass the wake-up on.
                    self.readers.wake_one();
                }
                Ok(peeked)
            }
        }
    }

    /// Returns the bytes of memory that the queue has.
    pub fn queue_bytes(&self) -> usize {
        self.queue.capacity()
    }

    /// Exchanges the queue for `spare`, which is empty: its datagrams are on loan, in place, and
    /// those that arrive go into the other. Traced requests end here.
    ///
    /// # Errors
    /// The pending error, which this clears; then nothing is exchanged.
    pub fn exchange(&mut self, spare: &mut DatagramRing) -> Result<(), SocketError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        debug_assert_eq!(spare.count(), 0, "datagrams on loan are taken first");
        core::mem::swap(&mut self.queue, spare);
        self.traced = Tags::default();
        Ok(())
    }
}

/// Maximum number of traced requests in one socket.
const MAX_TAGS: usize = 8;

/// The traced requests in a queue.
#[derive(Debug)]
struct Tags<R> {
    /// Datagrams before it, and the request.
    tags: [Option<(u32, R)>; MAX_TAGS],
    count: u8,
}

impl<R> Default for Tags<R> {
    fn default() -> Self {
        Self { tags: [const { None }; MAX_TAGS], count: 0 }
    }
}

impl<R: Copy> Tags<R> {
    /// Marks the newest of `queued` datagrams as a traced request. False if there is no room for
    /// another.
    fn push(&mut self, queued: usize, request: R) -> bool {
        let Some(free) = self.tags.iter_mut().find(|tag| tag.is_none()) else { return false };
        *free = Some((queued.saturating_sub(1) as u32, request));
        self.count += 1;
        true
    }

    /// Returns the traced request that the oldest datagram was, when that is removed.
    #[inline(always)]
    fn pop(&mut self) -> Option<R> {
        if self.count == 0 { None } else { self.pop_tag() }
    }

    #[cold]
    fn pop_tag(&mut self) -> Option<R> {
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

/// A place for one open socket. Receivers lock and senders read different cache lines.
#[derive(Debug)]
pub struct Endpoint<P: Platform> {
    /// Index in the slab.
    pub(super) index: u32,
    /// Next endpoint of the same port, as index plus one; zero ends the chain. Written under the
    /// table's lock.
    pub(super) next: AtomicU32,
    /// True while an error is pending, so that senders need not lock. Written under the lock.
    /// Relaxed: the lock orders.
    has_error: AtomicBool,
    /// Time to live of datagrams sent.
    pub ttl: AtomicU8,
    /// True if broadcasts may be sent.
    pub broadcast: AtomicBool,
    /// Time to live of datagrams sent to groups: of one hop unless set (RFC 1112 section 6.1).
    pub multicast_ttl: AtomicU8,
    /// True if datagrams sent to groups reach the sockets of this host, too.
    pub multicast_loop: AtomicBool,
    /// Datagrams sent.
    pub(super) sent: AtomicU64,
    inbound: Padded<P::Lock<Inbound<P>>>,
}

/// The fate of a datagram offered to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is queued.
    Queued,
    /// It was dropped: the buffer of its endpoint is full.
    Overflow,
    /// It is for another endpoint, or for none.
    NotMine,
}

impl<P: Platform> Endpoint<P> {
    /// Makes an endpoint without a socket.
    pub(super) fn new(index: u32) -> Self {
        Self {
            index,
            next: AtomicU32::new(0),
            has_error: AtomicBool::new(false),
            ttl: AtomicU8::new(DEFAULT_TTL),
            broadcast: AtomicBool::new(false),
            multicast_ttl: AtomicU8::new(1),
            multicast_loop: AtomicBool::new(true),
            sent: AtomicU64::new(0),
            inbound: Padded(Lock::new(Inbound::<P> {
                binding: None,
                bound: SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
                queue: DatagramRing::new(0),
                error: None,
                readers: P::Waiters::default(),
                groups: Vec::new(),
                traced: Tags::default(),
                received: 0,
                received_bytes: 0,
                overflows: 0,
            })),
        }
    }

    /// Locks the receiving side.
    #[inline]
    pub fn inbound(&self) -> Guard<'_, P, Inbound<P>> {
        self.inbound.0.lock()
    }

    /// Gives the endpoint to a new socket.
    pub(super) fn open(&self, local: SocketAddr, queue: DatagramRing) {
        let mut inbound = self.inbound.0.lock();
        inbound.binding = Some(Binding { local, peer: None });
        inbound.bound = local;
        inbound.queue = queue;
        self.ttl.store(DEFAULT_TTL, Relaxed);
        self.broadcast.store(false, Relaxed);
        self.multicast_ttl.store(1, Relaxed);
        self.multicast_loop.store(true, Relaxed);
    }

    /// Ends the socket; returns its queue, which the caller frees without a lock, and its groups.
    pub(super) fn close(&self) -> (DatagramRing, Vec<IpAddr>) {
        let mut inbound = self.inbound.0.lock();
        inbound.binding = None;
        inbound.error = None;
        self.has_error.store(false, Relaxed);
        inbound.traced = Tags::default();
        let queue = core::mem::replace(&mut inbound.queue, DatagramRing::new(0));
        (queue, core::mem::take(&mut inbound.groups))
    }

    /// Adds a group to those of the socket.
    ///
    /// # Errors
    /// [`GroupError`].
    pub(super) fn join(&self, group: IpAddr) -> Result<(), GroupError> {
        let mut inbound = self.inbound.0.lock();
        if !group.is_multicast() {
            return Err(GroupError::NoGroup(group));
        }
        if !covers(inbound.bound.ip(), group) {
            return Err(GroupError::Bound(group));
        }
        if inbound.groups.contains(&group) {
            return Err(GroupError::Joined(group));
        }
        if inbound.groups.len() == MAX_GROUPS {
            return Err(GroupError::TooMany);
        }
        inbound.groups.push(group);
        Ok(())
    }

    /// Removes a group from those of the socket.
    ///
    /// # Errors
    /// [`GroupError::NotJoined`].
    pub(super) fn leave(&self, group: IpAddr) -> Result<(), GroupError> {
        let mut inbound = self.inbound.0.lock();
        let at = inbound.groups.iter().position(|&joined| joined == group);
        inbound.groups.swap_remove(at.ok_or(GroupError::NotJoined(group))?);
        Ok(())
    }

    /// Returns whether a socket here prevents another at `local`.
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
        traced: Option<P::Request>,
    ) -> Offer {
        let mut inbound = self.inbound.0.lock();
        if !inbound.binding.is_some_and(|binding| binding.accepts(source, destination))
            || (destination.ip().is_multicast() && !inbound.groups.contains(&destination.ip()))
        {
            return Offer::NotMine;
        }
        if !inbound.queue.push(source, data) {
            inbound.overflows += 1;
            if let Some(request) = traced {
                P::delivered(request, Outcome::Refused);
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

    /// Stores `error` for the next call if this is the endpoint of `local`, connected to `peer`.
    pub(super) fn post_error(&self, local: SocketAddr, peer: SocketAddr, error: SocketError) -> bool {
        let mine = |binding: Binding| binding.peer == Some(peer) && binding.accepts(peer, local);
        self.post_error_if(mine, error)
    }

    /// Stores `error` for the next call if this is connected to a port of `peer`.
    pub(super) fn post_error_of_host(&self, peer: IpAddr, error: SocketError) {
        self.post_error_if(|binding| binding.peer.is_some_and(|other| other.ip() == peer), error);
    }

    fn post_error_if(&self, mine: impl FnOnce(Binding) -> bool, error: SocketError) -> bool {
        let mut inbound = self.inbound.0.lock();
        if !inbound.binding.is_some_and(mine) {
            return false;
        }
        if inbound.error.replace(error).is_none() {
            self.has_error.store(true, Relaxed);
            inbound.readers.wake_one();
        }
        true
    }

    /// Returns whether a datagram from `local` to `peer` can have been sent from here.
    pub(super) fn sends_to(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.inbound.0.lock().binding.is_some_and(|binding| binding.accepts(peer, local))
    }

    /// Returns the pending error and clears it. Costs one load if there is none.
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

    /// Connects the socket: it receives only from `peer` from now on, and has address `local` if it
    /// was bound to all. Queued datagrams stay.
    pub fn connect(&self, local: IpAddr, peer: SocketAddr) {
        let mut inbound = self.inbound.0.lock();
        let bound = inbound.bound;
        let ip = if bound.ip().is_unspecified() { local } else { bound.ip() };
        inbound.binding = Some(Binding { local: SocketAddr::new(ip, bound.port()), peer: Some(peer) });
    }

    /// Returns the address as bound, even if the socket is connected.
    pub fn bound(&self) -> SocketAddr {
        self.inbound.0.lock().bound
    }

    /// Returns the addresses of the socket and its peer.
    ///
    /// # Panics
    /// If the socket is closed.
    #[inline]
    pub fn binding(&self) -> Binding {
        self.inbound.0.lock().binding.expect("the socket that asks is open")
    }
}

#[cfg(test)]
mod tests;
