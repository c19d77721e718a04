//! The word of a reader-writer lock: how many hold it, and whether threads wait.
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | `WRITER`: held for writing |
//! | 1 | `QUEUED`: the queue is not empty |
//! | 2.. | number of readers that hold it |
//!
//! Without `QUEUED`, threads come and go by compare-and-swap alone. The first thread to queue sets
//! `QUEUED` under the queue's lock. From then on a thread gets in only through [`Word::give`],
//! which the last holder calls under the queue's lock. Other holders only leave meanwhile, so
//! exactly one of them is the last. A holder that reads may let further readers in with
//! [`Word::add_readers`], under the queue's lock, before it leaves.
//!
//! The value is ordered by the word alone: leaving is a Release and getting in an Acquire. `give`
//! is a Release for readers that get in by compare-and-swap beside those it admits. The admitted
//! ones are woken after it and ordered by their wait.

use crate::ground::atomic::{AtomicU32, Ordering};

const WRITER: u32 = 1;
const QUEUED: u32 = 2;
const READER: u32 = 4;
/// Maximum number of readers at once. The space above keeps a count that is just too high from
/// wrapping before it is noticed.
pub const MAX_READERS: u32 = u32::MAX / READER / 2;

/// The access that a thread requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Together with other readers.
    Read,
    /// Alone.
    Write,
}

/// The holders after [`Word::give`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holders {
    /// This many readers.
    Readers(u32),
    /// One writer.
    Writer,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Word(AtomicU32);

impl Word {
    /// Returns the word of a free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns the word of a free lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Gets in if no holder and no waiter is in the way: a reader needs a lock without a writer and
    /// without a queue, a writer a free one.
    #[inline]
    pub fn try_enter(&self, access: Access) -> bool {
        let mut word = match access {
            Access::Read => self.0.load(Ordering::Relaxed),
            Access::Write => 0,
        };
        // Repeats only if another reader came or left.
        loop {
            let next = match access {
                Access::Read if word & (WRITER | QUEUED) == 0 => word + READER,
                Access::Write if word == 0 => WRITER,
                _ => return false,
            };
            assert!(next / READER <= MAX_READERS, "more than {MAX_READERS} threads read-lock one RwLock");
            // Acquire: pairs with the Release of the threads that left.
            match self.0.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// Gets in, or sets `QUEUED` and returns false: then the caller queues. Called under the
    /// queue's lock.
    pub fn enter_or_queue(&self, access: Access) -> bool {
        // Repeats only if a holder came or left meanwhile.
        loop {
            if self.try_enter(access) {
                return true;
            }
            let word = self.0.load(Ordering::Relaxed);
            if word & QUEUED != 0 {
                return false;
            }
            let in_the_way = match access {
                Access::Read => word & WRITER != 0,
                Access::Write => word != 0,
            };
            // Relaxed: a mark only; the queue's lock orders the rest.
            if in_the_way
                && self.0.compare_exchange(word, word | QUEUED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                return false;
            }
        }
    }

    /// Removes a reader. True if it was the last and threads wait: the caller must
    /// [`give`](Self::give) the lock.
    #[inline]
    #[must_use]
    pub fn leave_reading(&self) -> bool {
        // Release: pairs with the Acquire of the next writer. Acquire: the last reader gives the
        // lock on behalf of all readers.
        self.0.fetch_sub(READER, Ordering::AcqRel) == READER | QUEUED
    }

    /// Removes the writer. True if threads wait: then the writer is still in and must
    /// [`give`](Self::give) the lock.
    #[inline]
    #[must_use]
    pub fn leave_writing(&self) -> bool {
        // Release: pairs with the Acquire of the next holder.
        self.0.compare_exchange(WRITER, 0, Ordering::Release, Ordering::Relaxed).is_err()
    }

    /// Turns the writer into a reader. True if threads wait: then it still is the writer and must
    /// [`give`](Self::give) the lock to itself and the readers at the head of the queue.
    #[inline]
    #[must_use]
    pub fn downgrade(&self) -> bool {
        // Release: as in `leave_writing`, for other readers.
        self.0.compare_exchange(WRITER, READER, Ordering::Release, Ordering::Relaxed).is_err()
    }

    /// Admits `holders` in place of the last holder. Called under the queue's lock before they are
    /// woken; `queued` is true if others wait behind them.
    pub fn give(&self, holders: Holders, queued: bool) {
        let word = match holders {
            Holders::Readers(readers) => readers * READER,
            Holders::Writer => WRITER,
        };
        // Release: pairs with the Acquire of readers that join those admitted, and of the holders
        // after them.
        self.0.store(word | if queued { QUEUED } else { 0 }, Ordering::Release);
    }

    /// Admits more readers from the queue beside the caller, which reads. Called under the queue's
    /// lock, while the queue is not empty and before they are woken; `queued` is true if others
    /// wait behind them.
    pub fn add_readers(&self, readers: u32, queued: bool) {
        // QUEUED is set, since the queue is not empty; one addition changes both fields.
        let change = readers * READER - if queued { 0 } else { QUEUED };
        // Release: as in `give`.
        self.0.fetch_add(change, Ordering::Release);
    }
}
