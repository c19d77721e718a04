//! The word of a reader-writer lock: who holds it, and whether somebody waits.
//!
//! Knows nothing of threads and queues, so that a loom model can run it as it ships (`tests/loom_sync.rs`).
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | `WRITER`: held for writing |
//! | 1 | `QUEUED`: the queue is not empty |
//! | 2.. | how many hold it for reading |
//!
//! Without `QUEUED` threads come and go by compare-and-swap alone. `QUEUED` is set under the queue's lock, by the first
//! thread to queue, and from then on nobody gets in except through [`Word::give`], called under the queue's lock by whoever
//! finds itself the last holder. Otherwise holders only leave meanwhile, so exactly one of them is the last. One that reads itself may
//! let further readers in, with [`Word::add_readers`] under the queue's lock, before it leaves.
//!
//! The value is ordered by the word alone: leaving is a Release, and getting in an Acquire; `give` is a Release for those who
//! get in by compare-and-swap while its readers are in. Those it admits are woken after it and ordered by their wait.

use tailwater_shm::sync::{AtomicU32, Ordering};

const WRITER: u32 = 1;
const QUEUED: u32 = 2;
const READER: u32 = 4;
/// Readers at once; the space above keeps a count that is just too high from wrapping before it is noticed.
pub(crate) const MAX_READERS: u32 = u32::MAX / READER / 2;

/// How a thread wants the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Together with other readers.
    Read,
    /// Alone.
    Write,
}

/// Who holds the lock after [`Word::give`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holders {
    /// So many readers.
    Readers(u32),
    /// One writer.
    Writer,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Word(AtomicU32);

impl Word {
    /// Of a free lock.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Of a free lock.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Gets in if nobody who is in or waits is in the way: no writer, for a reader; nobody at all, for a writer.
    #[inline]
    pub(crate) fn try_enter(&self, access: Access) -> bool {
        let mut word = match access {
            Access::Read => self.0.load(Ordering::Relaxed),
            Access::Write => 0,
        };
        // A turn is repeated only because another reader came or left.
        loop {
            let next = match access {
                Access::Read if word & (WRITER | QUEUED) == 0 => word + READER,
                Access::Write if word == 0 => WRITER,
                _ => return false,
            };
            assert!(next / READER <= MAX_READERS, "more than {MAX_READERS} threads read-lock one RwLock");
            // Acquire: pairs with the Release of those who left.
            match self.0.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// Gets in, or says that the queue is not empty. Called under the queue's lock; a caller that did not get in queues.
    pub(crate) fn enter_or_queue(&self, access: Access) -> bool {
        // A turn is repeated only because a holder came or left meanwhile.
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
            // Relaxed: only says that somebody waits; the queue's lock orders the rest.
            if in_the_way
                && self.0.compare_exchange(word, word | QUEUED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                return false;
            }
        }
    }

    /// A reader leaves. True if it was the last and somebody waits: the caller must [`give`](Self::give) the lock.
    #[inline]
    #[must_use]
    pub(crate) fn leave_reading(&self) -> bool {
        // Release: pairs with the Acquire of the next writer. Acquire: the last reader gives the lock on behalf of all.
        self.0.fetch_sub(READER, Ordering::AcqRel) == READER | QUEUED
    }

    /// The writer leaves. True if somebody waits: then it is still in, and must [`give`](Self::give) the lock.
    #[inline]
    #[must_use]
    pub(crate) fn leave_writing(&self) -> bool {
        // Release: pairs with the Acquire of the next holder.
        self.0.compare_exchange(WRITER, 0, Ordering::Release, Ordering::Relaxed).is_err()
    }

    /// The writer becomes a reader. True if somebody waits: then it still is the writer, and must [`give`](Self::give) the
    /// lock to itself and to the readers at the head of the queue.
    #[inline]
    #[must_use]
    pub(crate) fn downgrade(&self) -> bool {
        // Release: as in `leave_writing`, for other readers.
        self.0.compare_exchange(WRITER, READER, Ordering::Release, Ordering::Relaxed).is_err()
    }

    /// Admits `holders` in place of the last holder. Called under the queue's lock, before they are woken; `queued` says
    /// whether others still wait after them.
    pub(crate) fn give(&self, holders: Holders, queued: bool) {
        let word = match holders {
            Holders::Readers(readers) => readers * READER,
            Holders::Writer => WRITER,
        };
        // Release: pairs with the Acquire of readers that join those admitted, and of whoever comes after them.
        self.0.store(word | if queued { QUEUED } else { 0 }, Ordering::Release);
    }

    /// Admits more readers from the queue, beside the caller, who reads. Called under the queue's lock, while the queue is not empty and
    /// before they are woken; `queued` says whether others still wait after them.
    pub(crate) fn add_readers(&self, readers: u32, queued: bool) {
        // QUEUED is set, since the queue is not empty; where it is cleared, one subtraction does it.
        let change = readers * READER - if queued { 0 } else { QUEUED };
        // Release: as in `give`.
        self.0.fetch_add(change, Ordering::Release);
    }
}
