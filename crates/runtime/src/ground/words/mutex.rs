//! The word of a mutex: free, held, or held while threads wait; and whether a thread has ever
//! waited.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `FREE` | free | `try_lock`, `lock_or_mark`: to `HELD` |
//! | `HELD` | held | `unlock`: to `FREE`; a waiter, under the queue's lock: to `MARKED` |
//! | `MARKED` | held, threads wait | the holder, under the queue's lock: `free` to `FREE`, `give_to_last` to `HELD`; a plain `unlock`, which does not see the mark: to `FREE` |
//!
//! | `waited` | meaning | left by |
//! |---|---|---|
//! | `NEVER` | no thread has waited | the first waiter, `announce`: to `ANNOUNCED` |
//! | `ANNOUNCED` | a thread is about to wait | `settle`: to `SETTLED` |
//! | `SETTLED` | every thread unlocks by compare-and-swap | - |
//!
//! # Unlocking by a plain store
//!
//! A locked instruction takes 6 to 8 ns, two of which are most of an uncontended lock and unlock.
//! While `waited` is `NEVER`, [`unlock`](Word::unlock) stores `FREE` and then loads `waited` again,
//! with no barrier between the two but one for the compiler. The processor may execute the load
//! before the store is visible, which makes this a store-load pair with the waiter:
//!
//! - unlocker U: stores `FREE`; loads `waited`
//! - waiter W: stores `ANNOUNCED`; makes every thread pass a full barrier; looks at the state
//!
//! Let B be the point at which U's thread passes the barrier. If U's load is after B, it returns
//! `ANNOUNCED` or later, because W stored that before it asked for the barrier: U *looks at the
//! queue*. If U's load is before B, so is U's store, and W finds `FREE` or a later state: W does not
//! queue behind a holder that has left. So a state `HELD` that W changes to `MARKED` is that of a
//! holder whose unlocking does one of three things: it takes the path of `SETTLED`, it reads
//! `ANNOUNCED` before its store, or it stores `FREE` over `MARKED` and looks at the queue. In the
//! last case the queue's lock orders the two: either W queued before, and U finds it, or W takes
//! the lock later, and finds `FREE`.
//!
//! Between U's store of `FREE` over `MARKED` and its look at the queue, a thread T may lock. U then
//! marks the state again ([`claim_or_mark`](Word::claim_or_mark)), and T's unlocking finds the
//! mark, or, if it stores plainly too, looks at the queue itself: T's store of `FREE` comes after
//! W's mark in the order of the state's changes, hence was not visible to W, hence comes after T's
//! own B, and so does T's load. If U finds the mutex free, it takes it and hands it to the thread
//! at the head of the queue.
//!
//! U's load of `waited` is an access after the mutex is free. The mutex is alive: U's guard borrows
//! it until the guard's drop returns.
//!
//! A later waiter that finds `SETTLED` (Acquire) relies on the barrier of the waiter that settled
//! (Release). One that finds `ANNOUNCED` asks for a barrier of its own.
//!
//! The value is ordered by the state alone: unlocking is a Release, locking an Acquire. A mutex
//! that is handed over is ordered by the waiter's wake-up.

use crate::ground::atomic::{AtomicU8, Ordering};

const FREE: u8 = 0;
const HELD: u8 = 1;
const MARKED: u8 = 2;

const NEVER: u8 = 0;
const ANNOUNCED: u8 = 1;
const SETTLED: u8 = 2;

/// What remains to be done after [`Word::unlock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlocked {
    /// Nothing: the mutex is free.
    Free,
    /// The mutex is free, and a thread may be in the queue: under the queue's lock, if the queue is
    /// not empty, the caller calls [`Word::claim_or_mark`].
    Unseen,
    /// The caller still holds the mutex, and threads wait: under the queue's lock it wakes one, or
    /// [frees](Word::free) the mutex if there is none.
    Held,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Word {
    state: AtomicU8,
    waited: AtomicU8,
}

impl Word {
    /// Returns the word of a free mutex.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { state: AtomicU8::new(FREE), waited: AtomicU8::new(NEVER) }
    }

    /// Returns the word of a free mutex.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { state: AtomicU8::new(FREE), waited: AtomicU8::new(NEVER) }
    }

    /// Locks if the mutex is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // Acquire: pairs with the Release in `unlock` and `free`.
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Unlocks. `plainly` is true if waiters make every thread pass a barrier; `between` keeps the
    /// compiler from moving the load that follows it before the store.
    #[inline]
    #[must_use]
    pub fn unlock(&self, plainly: bool, between: impl FnOnce()) -> Unlocked {
        // Relaxed: see the module documentation.
        if plainly && self.waited.load(Ordering::Relaxed) == NEVER {
            // Release: pairs with the Acquire of the next holder.
            self.state.store(FREE, Ordering::Release);
            between();
            return match self.waited.load(Ordering::Relaxed) {
                NEVER => Unlocked::Free,
                _ => Unlocked::Unseen,
            };
        }
        // Release: as above.
        match self.state.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Unlocked::Free,
            Err(_) => Unlocked::Held,
        }
    }

    /// Announces that the caller is about to wait. If true, it makes every thread pass a barrier
    /// before it looks at the state again, and then calls [`settle`](Self::settle).
    #[must_use]
    pub fn announce(&self) -> bool {
        // Acquire: pairs with the Release in `settle`, which carries the barrier.
        if self.waited.load(Ordering::Acquire) == SETTLED {
            return false;
        }
        // Relaxed: the barrier follows. It may overwrite `SETTLED`, which costs others a barrier.
        self.waited.store(ANNOUNCED, Ordering::Relaxed);
        true
    }

    /// States that every thread has passed a barrier since [`announce`](Self::announce), or that no
    /// thread unlocks plainly.
    pub fn settle(&self) {
        // Release: pairs with the Acquire in `announce`.
        self.waited.store(SETTLED, Ordering::Release);
    }

    /// Locks, or marks that a thread waits and returns false: then the caller queues. Called under
    /// the queue's lock.
    #[must_use]
    pub fn lock_or_mark(&self) -> bool {
        // Repeats only if a holder came or left meanwhile.
        loop {
            // Acquire: as in `try_lock`.
            match self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(MARKED) => return false,
                // Relaxed: a mark only; the queue's lock orders the rest.
                Err(_) => {
                    match self.state.compare_exchange(HELD, MARKED, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) | Err(MARKED) => return false,
                        Err(_) => {}
                    }
                }
            }
        }
    }

    /// Marks the word again after a plain unlock. True if the mutex was free: then the caller holds
    /// it, for the thread at the head of the queue. Called under the queue's lock, while the queue
    /// is not empty.
    #[must_use]
    pub fn claim_or_mark(&self) -> bool {
        // Acquire: as in `try_lock`; another thread may have held the mutex meanwhile.
        self.state.swap(MARKED, Ordering::Acquire) == FREE
    }

    /// States that no thread waits besides the one that is about to be woken, which holds the mutex
    /// from now on. Called under the queue's lock.
    pub fn give_to_last(&self) {
        // Relaxed: the new holder unlocks through the queue's lock, or by a compare-and-swap from
        // `HELD`, which it cannot see before this store. It does not unlock plainly: it has
        // announced itself.
        self.state.store(HELD, Ordering::Relaxed);
    }

    /// Unlocks, as no thread waits. Called by the holder under the queue's lock.
    pub fn free(&self) {
        // Release: as in `unlock`.
        self.state.store(FREE, Ordering::Release);
    }
}

impl Default for Word {
    fn default() -> Self {
        Self::new()
    }
}
