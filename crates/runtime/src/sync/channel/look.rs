//! The state of a channel that is readable without its lock: whether a receive or a send could
//! complete.
//!
//! A select looks at all its channels and locks those only where an operation may be completed. The
//! words are written under the channel's lock and read without it, so an answer may be out of date;
//! the operation is then tried under the lock, which decides. A thread sees at least what happened
//! before it looks, so all accesses are relaxed.
//!
//! | word | written | by |
//! |---|---|---|
//! | `len` | when the number of messages changes | the holder of the channel's lock |
//! | `receivable_from` | when the last sender goes | the same |
//! | `sendable_below` | when the last receiver goes | the same |

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// See the module documentation.
#[derive(Debug)]
pub struct Look {
    /// Messages in the channel.
    len: AtomicUsize,
    /// A receive may be completed from this number of messages on.
    receivable_from: AtomicUsize,
    /// A send may be completed below this number of messages.
    sendable_below: AtomicUsize,
}

impl Look {
    /// Returns the look of an empty channel. One without room (capacity 0) never holds a message:
    /// whether a thread waits at the other end is seen under its lock only.
    pub fn new(capacity: Option<usize>) -> Self {
        let has_room = capacity != Some(0);
        let capacity = capacity.filter(|_| has_room).unwrap_or(usize::MAX);
        Self {
            len: AtomicUsize::new(0),
            receivable_from: AtomicUsize::new(has_room.into()),
            sendable_below: AtomicUsize::new(capacity),
        }
    }

    /// Returns whether a receive may be completed, with a message or because no sender is left.
    #[inline(always)]
    pub fn is_receivable(&self) -> bool {
        self.len.load(Relaxed) >= self.receivable_from.load(Relaxed)
    }

    /// Returns whether a send may be completed, into the channel or because no receiver is left.
    #[inline(always)]
    pub fn is_sendable(&self) -> bool {
        self.len.load(Relaxed) < self.sendable_below.load(Relaxed)
    }

    /// Sets the number of messages.
    #[inline(always)]
    pub fn set_len(&self, len: usize) {
        self.len.store(len, Relaxed);
    }

    /// No sender is left: every receive can be completed.
    pub fn close_sending(&self) {
        self.receivable_from.store(0, Relaxed);
    }

    /// No receiver is left: every send can be completed.
    pub fn close_receiving(&self) {
        self.sendable_below.store(usize::MAX, Relaxed);
    }
}
