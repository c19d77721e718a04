//! Poisoning: whether a thread panicked while it held a lock, as for `std`'s locks.
//!
//! Relaxed throughout: the lock orders the value, and the mark is only advisory.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LockResult, PoisonError};

/// The mark of one lock.
#[derive(Debug, Default)]
pub(crate) struct Poison(AtomicBool);

/// Records whether the thread was panicking when it locked: then dropping its guard does not
/// poison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanickingBefore(bool);

impl PanickingBefore {
    /// Returns the state of this thread, for a guard that is made now.
    #[inline]
    pub(crate) fn now() -> Self {
        Self(std::thread::panicking())
    }
}

impl Poison {
    /// Returns the mark of a lock that is not poisoned.
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Returns whether the lock is poisoned.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the mark.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Marks the lock if its thread has begun to panic since it locked. Called when an exclusive
    /// guard is dropped.
    #[inline]
    pub(crate) fn unlocking(&self, before: PanickingBefore) {
        if !before.0 && std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Returns `access` to the value, as an error if the lock is poisoned.
    #[inline]
    pub(crate) fn check<G>(&self, access: G) -> LockResult<G> {
        if self.is_set() { Err(PoisonError::new(access)) } else { Ok(access) }
    }
}
