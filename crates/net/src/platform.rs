//! The types that the program around the stack supplies: locks, cells, waiting threads, and the
//! tracing of single requests.
//!
//! Owns the traits alone. All calls are static, so a platform costs nothing per packet.

use core::fmt::Debug;
use core::ops::DerefMut;

/// The types and functions a [`Stack`](crate::Stack) is built on.
pub trait Platform: Debug + 'static {
    /// A lock around a value.
    type Lock<T: Debug + 'static>: Lock<T> + Debug;
    /// A cell that is written once.
    type Once<T: Debug + 'static>: Once<T> + Debug;
    /// Threads that wait for one condition. Lives inside a lock.
    type Waiters: Waiters;
    /// A traced request on its way through the program.
    type Request: Copy + Debug + PartialEq;

    /// Counts one socket more, or one less, at which an acknowledgment may matter at once: a thread
    /// may wait for it, it may show that a segment is lost, or it may complete a handshake. Called
    /// with the socket's lock held.
    #[inline(always)]
    fn awaits_acks(_begins: bool) {}

    /// Records what became of a traced request at its socket. Called with the socket's lock held.
    fn delivered(request: Self::Request, outcome: Outcome) {
        let _ = (request, outcome);
    }

    /// Records that the calling thread has taken a datagram or the first byte of a request: a
    /// traced one, or another, which ends the one it worked on.
    #[inline(always)]
    fn received(request: Option<Self::Request>) {
        let _ = request;
    }

    /// Records that the calling thread has read everything there is of the connection that
    /// `request` came on.
    fn wants_more(request: Self::Request) {
        let _ = request;
    }
}

/// A lock around a value. Held for a few dozen instructions, never while its holder waits.
pub trait Lock<T> {
    /// Access to the value until it is dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a,
        T: 'a;

    /// Makes an unlocked value.
    fn new(value: T) -> Self;

    /// Locks. A thread that holds the lock does not lock it again.
    fn lock(&self) -> Self::Guard<'_>;
}

/// A guard of a platform's lock around a `T`.
pub type Guard<'a, P, T> = <<P as Platform>::Lock<T> as Lock<T>>::Guard<'a>;

/// A cell that is written once. Writers are serialized by a lock of the caller; readers take none.
pub trait Once<T> {
    /// Makes an empty cell.
    fn new() -> Self;

    /// Returns the value, if it was written.
    fn get(&self) -> Option<&T>;

    /// Returns the value, made by `make` if it was not written yet.
    fn get_or_init(&self, make: impl FnOnce() -> T) -> &T;
}

/// Threads that wait for one condition.
pub trait Waiters: Default + Debug {
    /// Wakes the thread that has waited longest; false if none waits.
    fn wake_one(&mut self) -> bool;
}

/// What a socket did with a traced request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is queued.
    Queued {
        /// True if a reader was woken for it.
        woke: bool,
        /// Datagrams before it.
        ahead: u32,
    },
    /// There was no room.
    Refused,
    /// The socket cannot tell it from others: too many traced requests wait there, or bytes before
    /// it are missing.
    Untracked,
}
