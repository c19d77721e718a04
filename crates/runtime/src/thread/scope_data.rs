//! The state that a scope and its threads share: the number of running threads.

use crate::thread::handle::Thread;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct ScopeData {
    running: AtomicUsize,
    panicked: AtomicBool,
    owner: Thread,
}

impl ScopeData {
    /// Returns the data of a scope without threads that `owner` waits for.
    pub fn new(owner: Thread) -> Self {
        Self { running: AtomicUsize::new(0), panicked: AtomicBool::new(false), owner }
    }

    /// Counts a thread in. Memory for stacks bounds the count.
    pub fn thread_starts(&self) {
        // Relaxed: the thread ends after the caller has started it.
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a thread out: it has ended and dropped everything it borrowed.
    pub fn thread_ended(&self) {
        // Release: pairs with the Acquire in `all_have_ended`.
        if self.running.fetch_sub(1, Ordering::Release) == 1 {
            self.owner.unpark();
        }
    }

    /// Returns whether no thread runs.
    pub fn all_have_ended(&self) -> bool {
        // Acquire: pairs with the Release in `thread_ended`.
        self.running.load(Ordering::Acquire) == 0
    }

    /// Records that a thread's panic was not taken by a `join`.
    pub fn set_panicked(&self) {
        self.panicked.store(true, Ordering::Relaxed);
    }

    /// Returns whether a thread's panic was not taken by a `join`.
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Relaxed)
    }
}
