//! Two instances of one host: a later one that gets the frames, and an earlier one that finishes
//! what it has begun.
//!
//! Owns how the stack stands to the other instance. Only the stack of the later one knows which
//! frames are its own, so it decides, where it would refuse or ignore one:
//!
//! | frame | the later one | the earlier one |
//! |---|---|---|
//! | for a connection, a handshake or a socket of its own | handles it | handles it |
//! | a SYN to a port at which it listens | handles it | handles it |
//! | any other segment or datagram, and errors about what it has not sent | passes it on | drops it: no reset, no "port unreachable" |
//! | the answer of a neighbour | reads it, and passes it on | reads it |
//!
//! So a port moves when the later instance opens a socket there, and not before. What neither of
//! the two knows is answered once the earlier one has ended. Fragments are put together by the
//! later one, and are for its sockets only.

use super::Stack;
use crate::counters::CountedEvent;
use crate::platform::Platform;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// How a host stands to another instance of it, which has its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Instance {
    /// There is no other.
    #[default]
    Only,
    /// There is an earlier one.
    Later,
    /// There is a later one, which gets all frames first.
    Earlier,
}

/// An [`Instance`] that may change. Relaxed: a frame may be handled as of before the change.
#[derive(Debug, Default)]
pub(super) struct Standing(AtomicU8);

impl Standing {
    fn get(&self) -> Instance {
        match self.0.load(Relaxed) {
            1 => Instance::Later,
            2 => Instance::Earlier,
            _ => Instance::Only,
        }
    }

    fn set(&self, instance: Instance) {
        self.0.store(instance as u8, Relaxed);
    }
}

impl<P: Platform> Stack<P> {
    /// Sets how this host stands to another instance of it.
    pub fn set_instance(&self, instance: Instance) {
        self.standing.set(instance);
    }

    /// Returns whether there is another instance.
    #[cfg(feature = "tcp")]
    pub(super) fn has_other(&self) -> bool {
        self.standing.get() != Instance::Only
    }

    /// Returns whether there is an earlier instance.
    pub(super) fn passes_on(&self) -> bool {
        self.standing.get() == Instance::Later
    }

    /// Decides on a frame for which this host has no socket.
    ///
    /// # Errors
    /// `PassedOn` if the earlier instance may have it, `event` if the later one has seen it: it is
    /// not answered.
    pub(super) fn leave_to_other(&self, event: CountedEvent) -> Result<(), CountedEvent> {
        match self.standing.get() {
            Instance::Only => Ok(()),
            Instance::Later => Err(CountedEvent::PassedOn),
            Instance::Earlier => Err(event),
        }
    }

    /// Passes the answer of a neighbour on, unless it was sent `to_all`.
    ///
    /// # Errors
    /// `PassedOn` if there is an earlier instance.
    pub(super) fn share_answer(&self, to_all: bool) -> Result<(), CountedEvent> {
        if !to_all && self.passes_on() { Err(CountedEvent::PassedOn) } else { Ok(()) }
    }

    /// Returns the number of handshakes under way at all listeners.
    #[cfg(feature = "tcp")]
    pub fn handshakes(&self) -> usize {
        self.tcp.listeners.handshakes()
    }
}
