//! One connection of this host as the stack sees it: its state under a lock, who waits for it, how many handles programs have.
//!
//! # Who waits where
//! Readers wait for data, the end of the stream or a failure; writers for room, the handshake's end or a failure. An event wakes all of either kind: streams
//! seldom have more than one. Waking is making a thread runnable, some twenty instructions, and is done with the lock held: a waiter's node lives on
//! its stack and must not go away.
//!
//! # Whose it is
//! The table holds a reference until the connection is over, or small enough for TIME-WAIT; each handle of a program holds one and is counted besides, so
//! that the last one closes the connection. The timers hold one while a timer is set.

use super::tag::Tag;
use super::timers::NEVER;
use crate::net::wire::{Addresses, DEFAULT_TTL};
use crate::sync::spin::{SpinGuard, SpinLock};
use crate::sync::wait::WaitList;
use crate::trace::{self, Outcome, Request};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use tailwater_tcp::{Connection, Error, Events, Flow, Instant, RecvError, SendError, State};

/// Why a connection is no more, or never came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// What the protocol found out.
    #[error(transparent)]
    Protocol(#[from] Error),
    /// There is no link any more.
    #[error("the network is down")]
    Down,
}

/// What is under a socket's lock. What a timer that fires early looks at comes first, on few cache lines: at many connections nothing
/// of a socket is in a cache by then.
#[derive(Debug)]
#[repr(C)]
pub struct Inner {
    /// When its timer is set for.
    pub(super) armed: Instant,
    /// When its timer is needed: what was found when it was settled last.
    pub(super) next: Instant,
    /// Whether the table has it.
    pub(super) in_table: bool,
    /// The connection. Who calls it calls `Stack::settle` afterwards.
    pub connection: Connection,
    pub(super) readers: WaitList,
    pub(super) writers: WaitList,
    /// Whether somebody vouched for the checksum of the last segment that came: the peer is on this machine.
    pub(super) vouched: bool,
    /// Whether a kthread will send what is owed when it is through with its frames.
    pub(super) deferred: bool,
    /// Whether a call has reported the failure already.
    told: bool,
    /// Whether somebody waits for all to be acknowledged.
    pub(super) lingers: bool,
    pub(super) failure: Option<Failure>,
    /// Where in the stream a traced request is.
    traced: Option<Box<Tag>>,
}

/// What a call found that gave or took no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has to wait.
    WouldBlock,
    /// This direction was closed, or the failure has been reported.
    Closed,
    /// The connection has failed; reported once.
    Failed(Failure),
}

impl Inner {
    /// Where readers wait.
    pub fn readers(&mut self) -> &mut WaitList {
        &mut self.readers
    }

    /// Where writers wait.
    pub fn writers(&mut self) -> &mut WaitList {
        &mut self.writers
    }

    /// The failure, the first time it is asked for: what SO_ERROR is.
    pub fn take_failure(&mut self) -> Option<Failure> {
        let failure = self.failure.or(self.connection.error().map(Failure::Protocol))?;
        (!core::mem::replace(&mut self.told, true)).then_some(failure)
    }

    /// Whether the handshake is under way.
    pub fn is_connecting(&self) -> bool {
        matches!(self.connection.state(), State::SynSent | State::SynReceived)
    }

    /// Copies what was received; zero at the end of the stream.
    ///
    /// # Errors
    /// [`Refusal::WouldBlock`], [`Refusal::Failed`].
    #[inline]
    pub fn receive(&mut self, buf: &mut [u8], peek: bool) -> Result<usize, Refusal> {
        let result = if peek { self.connection.peek(buf) } else { self.connection.recv(buf) };
        match result {
            Ok(len) => {
                if let Some(tag) = &mut self.traced
                    && !peek
                    && let Some(request) = tag.take(len)
                {
                    trace::received(Some(request));
                }
                Ok(len)
            }
            Err(RecvError::WouldBlock) => Err(Refusal::WouldBlock),
            // The failure is told once; after it there is nothing more to read.
            Err(RecvError::Failed(_)) => self.take_failure().map_or(Ok(0), |it| Err(Refusal::Failed(it))),
        }
    }

    /// The segment that was handled last, with `len` bytes of data, is a traced request, of which `events` came.
    #[cold]
    pub(super) fn tag(&mut self, request: Request, len: usize, events: Events) {
        let ahead = self.connection.readable_bytes().saturating_sub(len);
        // Otherwise something before it is missing.
        let in_order = events.contains(Events::READABLE);
        let tracked = in_order && self.traced.get_or_insert_default().put(ahead, request);
        let outcome = if tracked { Outcome::Queued { woke: true, ahead: 0 } } else { Outcome::Untracked };
        trace::delivered(request, outcome);
    }

    /// The calling thread wants more than has come: a request of this connection that it carries gets no reply of its own.
    #[inline]
    pub fn end_traced(&self) {
        if let Some(tag) = &self.traced {
            trace::wants_more(tag.back());
        }
    }

    /// Takes as much of `data` as there is room for.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline]
    pub fn send(&mut self, data: &[u8]) -> Result<usize, Refusal> {
        self.connection.send(data).map_err(|error| match error {
            SendError::WouldBlock => Refusal::WouldBlock,
            SendError::Closed => Refusal::Closed,
            SendError::Failed(_) => self.take_failure().map_or(Refusal::Closed, Refusal::Failed),
        })
    }

    /// Whether the peer has everything that was sent, or nothing will get there any more.
    pub fn is_acknowledged(&self) -> bool {
        self.connection.is_closed() || self.connection.unacknowledged_bytes() == 0
    }

    /// Whether every event is to wake writers, because one waits for [`is_acknowledged`](Self::is_acknowledged).
    pub fn set_lingers(&mut self, lingers: bool) {
        self.lingers = lingers;
    }

    /// Ends the connection for `failure`. No reset leaves.
    pub(super) fn fail(&mut self, failure: Failure) -> Events {
        self.failure.get_or_insert(failure);
        self.connection.abort()
    }

    /// Wakes whom `events` concern: a handful of threads, those that share the socket.
    #[inline]
    pub(super) fn wake(&mut self, events: Events) {
        const OVER: Events = Events::ERROR.union(Events::CLOSED);
        if events.intersects(OVER.union(Events::READABLE).union(Events::PEER_CLOSED)) {
            while self.readers.wake_one() {}
        }
        if self.lingers || events.intersects(OVER.union(Events::WRITABLE).union(Events::ESTABLISHED)) {
            while self.writers.wake_one() {}
        }
    }
}

/// Settings that calls look at, shared by all handles. Relaxed: a call sees those made before it on its own thread.
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
}

impl Settings {
    /// As `std`'s sockets begin.
    pub fn new() -> Self {
        Self {
            nonblocking: AtomicBool::new(false),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
            linger: AtomicU64::new(0),
            ttl: AtomicU8::new(DEFAULT_TTL),
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Socket {
    pub(super) id: u64,
    pub(super) flow: Flow,
    /// Both ends are this host.
    pub(super) local: bool,
    handles: AtomicU32,
    /// Settings.
    pub settings: Settings,
    inner: SpinLock<Inner>,
}

impl Socket {
    /// A socket that is in no table and has no handle.
    pub(super) fn new(id: u64, flow: Flow, local: bool, connection: Connection) -> Self {
        Self {
            id,
            flow,
            local,
            handles: AtomicU32::new(0),
            settings: Settings::new(),
            inner: SpinLock::new(Inner {
                armed: NEVER,
                next: NEVER,
                in_table: true,
                connection,
                readers: WaitList::new(),
                writers: WaitList::new(),
                deferred: false,
                vouched: false,
                told: false,
                lingers: false,
                failure: None,
                traced: None,
            }),
        }
    }

    /// Locks it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, Inner> {
        self.inner.lock()
    }

    /// This side's address.
    pub fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.flow.local, self.flow.local_port)
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        SocketAddr::new(self.flow.remote, self.flow.remote_port)
    }

    #[inline]
    pub(super) fn addresses(&self) -> Addresses {
        Addresses::new(self.flow.local, self.flow.remote).expect("a flow is within one family")
    }

    /// Counts one more handle.
    pub fn add_handle(&self) {
        // Relaxed: whoever adds one has one, or is the only one who knows the socket.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less; true if it was the last.
    pub fn drop_handle(&self) -> bool {
        // AcqRel: the last one sees what the others did before they went.
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
