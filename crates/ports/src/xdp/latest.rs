//! The latest value of something, from the control thread to the polling thread, which never waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Latest<T> {
    /// A hint that the value was replaced; the lock orders the rest. Set and cleared under it.
    changed: AtomicBool,
    value: Mutex<Arc<T>>,
}

impl<T> Latest<T> {
    /// Replaces the value.
    pub(super) fn set(&self, value: T) {
        let mut latest = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Arc::new(value);
        // Relaxed: a hint, see the field.
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Returns the value, if it was replaced since the last call and can be had without waiting.
    pub(super) fn take(&self) -> Option<Arc<T>> {
        // Relaxed: a hint, see the field.
        if !self.changed.load(Ordering::Relaxed) {
            return None;
        }
        let latest = self.value.try_lock().ok()?;
        self.changed.store(false, Ordering::Relaxed);
        Some(Arc::clone(&latest))
    }
}
