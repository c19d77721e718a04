//! Synchronisation between user threads (and with ordinary OS threads).
//!
//! The types mirror `std::sync`: same names, same guards, same poisoning. A thread that waits gives its core to the next
//! runnable user thread; nothing here makes a system call on a lent core.

mod condvar;
mod mutex;
pub mod spin;
pub mod wait;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
pub use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
