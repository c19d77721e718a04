//! Whether a thread panicked while it held a lock, as `std`'s locks remember it.
//!
//! Relaxed throughout: the lock orders the value, and the mark is a hint to people.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LockResult, PoisonError};

/// The mark of one lock.
#[derive(Debug, Default)]
pub(crate) struct Poison(AtomicBool);

/// Whether the thread was panicking when it locked: then its guard's drop says nothing about the value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanickingBefore(bool);

impl PanickingBefore {
    /// For a guard that is made now.
    #[inline]
    pub(crate) fn now() -> Self {
        Self(std::thread::panicking())
    }
}

impl Poison {
    /// Of a lock nobody has panicked with.
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether somebody has.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Forgets it.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// An exclusive guard is dropped: marks the lock if its thread has begun to panic since it locked.
    #[inline]
    pub(crate) fn unlocking(&self, before: PanickingBefore) {
        if !before.0 && std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// `access` to the value, as an error if the lock is marked.
    #[inline]
    pub(crate) fn check<G>(&self, access: G) -> LockResult<G> {
        if self.is_set() { Err(PoisonError::new(access)) } else { Ok(access) }
    }
}
