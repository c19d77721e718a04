//! The atomics this crate is written against: `core`'s, or loom's when compiled with `--cfg loom`.
//!
//! Everything that crosses a process boundary is built from these names only, so that the loom
//! models run the very code that ships. Spin hints go through [`spin_hint`], which loom must see as
//! a yield.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Marks a spin loop for the processor (or for loom's scheduler).
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// The kernel's part of [`crate::park::Parker`], for loom: a queue of sleepers behind a lock, and a
/// word compared under it (futex(2): "atomic with respect to other futex operations on the same
/// word").
#[cfg(loom)]
#[derive(Debug)]
pub struct Sleepers {
    queue: loom::sync::Mutex<()>,
    woken: loom::sync::Condvar,
}

#[cfg(loom)]
impl Sleepers {
    /// Returns an empty queue.
    #[allow(clippy::new_without_default, reason = "loom objects exist inside a model only")]
    pub fn new() -> Self {
        Self { queue: loom::sync::Mutex::new(()), woken: loom::sync::Condvar::new() }
    }

    /// `FUTEX_WAIT`: sleeps if `word` still is `ticket`.
    pub fn wait(&self, word: &AtomicU32, ticket: u32) {
        let queue = self.queue.lock().unwrap();
        // Relaxed: the kernel's load is ordered by the queue's lock and by nothing else.
        if word.load(Ordering::Relaxed) == ticket {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    /// `FUTEX_WAKE` of one sleeper.
    pub fn wake_one(&self) {
        drop(self.queue.lock().unwrap());
        self.woken.notify_one();
    }
}
