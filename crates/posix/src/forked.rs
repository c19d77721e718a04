//! Whether this process is a forked child whose files are its parent's.
//!
//! Owns one flag. [`table`](crate::table) says what follows from it.

use core::sync::atomic::{AtomicBool, Ordering};

/// True in a forked child of a process that serves.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Makes all descriptors only the kernel's, for good. For a forked child: takes no lock.
pub fn abandon() {
    ABANDONED.store(true, Ordering::Relaxed);
}

/// Returns whether the descriptors were [abandoned](abandon).
pub fn is_abandoned() -> bool {
    ABANDONED.load(Ordering::Relaxed)
}
