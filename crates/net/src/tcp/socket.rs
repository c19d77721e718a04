//! One connection as the stack sees it: its state under a lock, the threads that wait for it, the
//! number of handles that programs have.
//!
//! # Waiting
//! Readers wait for data, the end of the stream or a failure; writers for room, the end of the
//! handshake or a failure. An event wakes all waiters of a kind, of which a stream seldom has more
//! than one. They are woken with the lock held, because a waiter's node lives on its stack.
//!
//! # References
//! The table holds one until the connection is over or in TIME-WAIT. Each handle of a program holds
//! one and is counted besides, so that dropping the last closes the connection. The timers hold one
//! while a timer is set.

use super::machine_window::Arrivals;
use super::tag::Tag;
use crate::platform::{Guard, Lock, Outcome, Platform, Waiters};
use alloc::boxed::Box;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use tailwater_tcp::{Buffer, Connection, Error, Events, Flow, Instant, RecvError, SendError, SharedBytes};
use tailwater_wire::{Addresses, DEFAULT_TTL};

/// Why a connection is no more, or never came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// A failure of the protocol.
    #[error(transparent)]
    Protocol(#[from] Error),
    /// The link is down.
    #[error("the network is down")]
    Down,
}

/// The locked part of a socket. The fields that a timer reads when it fires early come first, on
/// few cache lines: with many connections none of a socket is in a cache by then.
#[derive(Debug)]
#[repr(C)]
pub struct Inner<P: Platform> {
    /// The time its timer is set for.
    pub(crate) armed: Instant,
    /// The time its timer is needed, as of the last settling.
    pub(crate) next: Instant,
    /// True while the table has it.
    pub(crate) in_table: bool,
    /// The connection. `Stack::settle` follows every call that changes it.
    pub connection: Connection,
    pub(crate) readers: P::Waiters,
    pub(crate) writers: P::Waiters,
    /// True if the checksum of the last segment was vouched for: the peer is on this machine.
    pub(crate) vouched: bool,
    /// What arrived from a peer on this machine.
    pub(crate) arrivals: Arrivals,
    /// True if an acknowledgment waits for the end of a batch of frames.
    pub(crate) deferred: bool,
    /// True once a call has reported the failure.
    told: bool,
    /// Counted by [`Platform::awaits_acks`].
    awaits_acks: bool,
    /// True while a thread waits until all data is acknowledged.
    pub(crate) lingers: bool,
    pub(crate) failure: Option<Failure>,
    /// Position of a traced request in the stream.
    traced: Option<Box<Tag<P::Request>>>,
}

/// Why a call moved no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has to wait.
    WouldBlock,
    /// This direction was closed, or the failure has been reported.
    Closed,
    /// The connection has failed; reported once.
    Failed(Failure),
}

impl<P: Platform> Inner<P> {
    /// Returns the waiting readers.
    pub fn readers(&mut self) -> &mut P::Waiters {
        &mut self.readers
    }

    /// Returns the waiting writers.
    pub fn writers(&mut self) -> &mut P::Waiters {
        &mut self.writers
    }

    /// Returns the failure once, as SO_ERROR does.
    pub fn take_failure(&mut self) -> Option<Failure> {
        let failure = self.failure.or(self.connection.error().map(Failure::Protocol))?;
        (!core::mem::replace(&mut self.told, true)).then_some(failure)
    }

    /// Returns whether the connection has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some() || self.connection.error().is_some()
    }

    /// True while the handshake is under way.
    pub fn is_connecting(&self) -> bool {
        self.connection.is_connecting()
    }

    /// Copies received data; zero at the end of the stream.
    ///
    /// # Errors
    /// [`Refusal::WouldBlock`], [`Refusal::Failed`].
    #[inline]
    pub fn receive(&mut self, buf: &mut [u8], peek: bool) -> Result<usize, Refusal> {
        let result = if peek { self.connection.peek(buf) } else { self.connection.recv(buf) };
        match result {
            Ok(len) => {
                if !peek {
                    self.note_received(len);
                }
                Ok(len)
            }
            Err(error) => self.nothing_received(error),
        }
    }

    /// Moves received data to the end of `into`, on loan: see [`Connection::lend`]. Returns the
    /// number of bytes; zero at the end of the stream.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    #[inline]
    pub fn lend(&mut self, into: &mut Buffer) -> Result<usize, Refusal> {
        match self.connection.lend(into) {
            Ok(len) => {
                self.note_received(len);
                Ok(len)
            }
            Err(error) => self.nothing_received(error),
        }
    }

    /// As [`lend`](Self::lend), for a thread that serves many connections: traced requests end
    /// here.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    #[inline]
    pub fn lend_untraced(&mut self, into: &mut Buffer) -> Result<usize, Refusal> {
        self.traced = None;
        self.lend(into)
    }

    /// Takes back what is on loan: see [`Connection::return_loan`].
    pub fn return_loan(&mut self, from: &mut Buffer) {
        if let Some(tag) = &mut self.traced {
            tag.give_back(from.len());
        }
        self.connection.return_loan(from);
    }

    /// The thread that reads the first byte of a traced request receives it.
    #[inline]
    fn note_received(&mut self, len: usize) {
        if let Some(tag) = &mut self.traced
            && let Some(request) = tag.take(len)
        {
            P::received(Some(request));
        }
    }

    /// A failure is reported once; after that the stream is at its end.
    fn nothing_received(&mut self, error: RecvError) -> Result<usize, Refusal> {
        match error {
            RecvError::WouldBlock => Err(Refusal::WouldBlock),
            RecvError::Failed(_) => self.take_failure().map_or(Ok(0), |it| Err(Refusal::Failed(it))),
        }
    }

    /// Marks the segment handled last, with `len` bytes of data, as a traced request. `events` are
    /// its own.
    #[cold]
    pub(crate) fn tag(&mut self, request: P::Request, len: usize, events: Events) {
        let ahead = self.connection.readable_bytes().saturating_sub(len);
        // Otherwise something before it is missing.
        let in_order = events.contains(Events::READABLE);
        let tracked = in_order && self.traced.get_or_insert_default().put(ahead, request);
        let outcome = if tracked { Outcome::Queued { woke: true, ahead: 0 } } else { Outcome::Untracked };
        P::delivered(request, outcome);
    }

    /// Ends the traced request that the calling thread carries, if it came on this connection: the
    /// thread has read all data and waits for more.
    #[inline]
    pub fn end_traced(&self) {
        if let Some(request) = self.traced.as_ref().and_then(|tag| tag.last()) {
            P::wants_more(request);
        }
    }

    /// Takes as much of `data` as there is room for.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline]
    pub fn send(&mut self, data: &[u8]) -> Result<usize, Refusal> {
        self.connection.send(data).map_err(|error| self.refusal(error))
    }

    /// As [`send`](Self::send), keeping a reference instead of a copy: see
    /// [`Connection::send_shared`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn send_shared(&mut self, data: &SharedBytes) -> Result<usize, Refusal> {
        self.connection.send_shared(data).map_err(|error| self.refusal(error))
    }

    /// As [`send`](Self::send), and announces more data.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn send_more(&mut self, data: &[u8]) -> Result<usize, Refusal> {
        self.connection.send_more(data).map_err(|error| self.refusal(error))
    }

    fn refusal(&mut self, error: SendError) -> Refusal {
        match error {
            SendError::WouldBlock => Refusal::WouldBlock,
            SendError::Closed => Refusal::Closed,
            SendError::Failed(_) => self.take_failure().map_or(Refusal::Closed, Refusal::Failed),
        }
    }

    /// Returns whether the peer has acknowledged everything, or the connection is over.
    pub fn is_acknowledged(&self) -> bool {
        self.connection.is_closed() || self.connection.unacknowledged_bytes() == 0
    }

    /// Sets whether every event wakes writers, because one waits for
    /// [`is_acknowledged`](Self::is_acknowledged).
    pub fn set_lingers(&mut self, lingers: bool) {
        self.lingers = lingers;
        self.note_awaited();
    }

    /// Tells the platform when acknowledgments begin to matter at once, because a thread may wait
    /// for them or more than a segment is in flight, and when they end to. Follows every change of
    /// the connection, and every refusal to take data, before a thread waits.
    #[inline]
    pub fn note_awaited(&mut self) {
        let awaits = !self.is_acknowledged() && (self.lingers || self.connection.awaits_acks());
        if awaits != self.awaits_acks {
            self.awaits_acks = awaits;
            P::awaits_acks(awaits);
        }
    }

    /// Ends the connection for `failure`. No reset leaves.
    pub(crate) fn fail(&mut self, failure: Failure) -> Events {
        self.failure.get_or_insert(failure);
        self.connection.abort()
    }

    /// Wakes the threads that `events` concern: the few that share the socket.
    #[inline]
    pub(crate) fn wake(&mut self, events: Events) {
        const OVER: Events = Events::ERROR.union(Events::CLOSED);
        if events.intersects(OVER.union(Events::READABLE).union(Events::PEER_CLOSED)) {
            while self.readers.wake_one() {}
        }
        if self.lingers || events.intersects(OVER.union(Events::WRITABLE).union(Events::ESTABLISHED)) {
            while self.writers.wake_one() {}
        }
    }
}

/// Settings that calls look at, shared by all handles. Relaxed: a call sees those made before it on
/// its own thread.
#[derive(Debug)]
pub struct Settings {
    /// Calls that would wait fail instead.
    pub nonblocking: AtomicBool,
    /// Nanoseconds; zero for none.
    pub read_timeout: AtomicU64,
    /// Nanoseconds; zero for none.
    pub write_timeout: AtomicU64,
    /// Nanoseconds that closing waits, plus one; zero for "closes in the background".
    pub linger: AtomicU64,
    /// Hops that packets may take.
    pub ttl: AtomicU8,
    /// A write has announced more data since the last flush.
    pub holds_more: AtomicBool,
    /// A loan of received data exists, or a thread waits for one.
    pub lent: AtomicBool,
}

impl Default for Settings {
    /// As `std`'s sockets begin.
    fn default() -> Self {
        Self {
            nonblocking: AtomicBool::new(false),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
            linger: AtomicU64::new(0),
            ttl: AtomicU8::new(DEFAULT_TTL),
            holds_more: AtomicBool::new(false),
            lent: AtomicBool::new(false),
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Socket<P: Platform> {
    pub(crate) id: u64,
    pub(crate) flow: Flow,
    /// Both ends are this host.
    pub(crate) local: bool,
    handles: AtomicU32,
    /// Settings.
    pub settings: Settings,
    inner: P::Lock<Inner<P>>,
}

impl<P: Platform> Socket<P> {
    /// Makes a socket that is in no table and has no handle.
    pub(crate) fn new(id: u64, flow: Flow, local: bool, connection: Connection) -> Self {
        Self {
            id,
            flow,
            local,
            handles: AtomicU32::new(0),
            settings: Settings::default(),
            inner: Lock::new(Inner::<P> {
                armed: Instant::NEVER,
                next: Instant::NEVER,
                in_table: true,
                connection,
                readers: P::Waiters::default(),
                writers: P::Waiters::default(),
                deferred: false,
                vouched: false,
                arrivals: Arrivals::default(),
                told: false,
                awaits_acks: false,
                lingers: false,
                failure: None,
                traced: None,
            }),
        }
    }

    /// Locks it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, P, Inner<P>> {
        self.inner.lock()
    }

    /// Returns this side's address.
    pub fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.flow.local, self.flow.local_port)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        SocketAddr::new(self.flow.remote, self.flow.remote_port)
    }

    #[inline]
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses::new(self.flow.local, self.flow.remote).expect("a flow is within one family")
    }

    /// Counts one more handle.
    pub fn add_handle(&self) {
        // Relaxed: the caller has a handle, or the only reference to the socket.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less; true if it was the last.
    pub fn drop_handle(&self) -> bool {
        // AcqRel: the last handle sees the writes of those dropped before.
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
