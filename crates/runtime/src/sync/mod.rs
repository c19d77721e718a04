//! Synchronisation between user threads (and with ordinary OS threads).
//!
//! The types mirror `std::sync`: same names, same guards, same poisoning. A thread that waits gives
//! its core to the next runnable user thread; nothing here makes a system call on a lent core,
//! except the writers of an [`Rcu`], and the first thread that waits for a [`Mutex`]
//! (`membarrier(2)`).
//!
//! | for | use |
//! |---|---|
//! | data several threads change | [`Mutex`], [`RwLock`], with [`Condvar`] to wait for a change |
//! | data read all the time and replaced now and then | [`Rcu`] |
//! | messages | [`channel`] (many receivers, select), [`mpsc`] (as in `std`) |
//! | a limit on how many at once | [`Semaphore`] |
//! | waiting for one another | [`Barrier`], [`WaitGroup`] |
//! | signalling an event | [`Notify`] (one thread, once), [`Event`] (all threads, until it is reset) |
//! | initialising once | [`Once`], [`OnceLock`], [`LazyLock`] |
//!
//! All of them may be used from user threads and from ordinary OS threads, also mixed on one
//! object, and whether or not a runtime has been started. Waiting threads are served first come,
//! first served unless a type says otherwise. To wait for anything here within
//! [`no_preempt`](crate::no_preempt) or [`Rcu::with`] is a bug, and panics on a user thread.

mod barrier;
pub mod channel;
mod condvar;
mod event;
mod iterators;
mod lazy_lock;
pub mod mpsc;
mod mutex;
mod notify;
mod once;
mod once_lock;
mod poison;
pub(crate) mod queue;
mod rcu;
mod rwlock;
mod semaphore;
mod wait_group;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use event::Event;
pub use lazy_lock::LazyLock;
pub use mutex::{Mutex, MutexGuard};
pub use notify::Notify;
pub use once::{Once, OnceState};
pub use once_lock::OnceLock;
pub use rcu::Rcu;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
pub use std::sync::{Arc, LockResult, PoisonError, TryLockError, TryLockResult, Weak, atomic};
pub use wait_group::{WaitGroup, WaitGroupTask};

#[cfg(test)]
mod test_support {
    use std::time::Instant;
    use tailwater_testkit::PATIENCE;

    /// Waits until `condition` holds, which it must however busy the machine is.
    pub(crate) fn until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < PATIENCE, "this never happens");
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests;
