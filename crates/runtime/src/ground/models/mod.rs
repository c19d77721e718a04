//! The ground layer's lock-free code under every interleaving that loom can make: `RUSTFLAGS="--cfg
//! loom" cargo test --profile models -p tailwater --lib --target-dir target/loom`.
//!
//! The words and queues are those that ship. The models stand for the threads that wait and the
//! locks around the queues.

mod join;
mod mailbox;
mod mutex;
mod polled;
mod runq;
mod rwlock;
mod section;
mod sleeper;
mod spin;
mod worker_mailbox;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, Ordering};

/// A thread that waits until it is woken, once.
pub struct Waiter {
    woken: AtomicBool,
    notify: Notify,
}

impl Waiter {
    /// Not woken yet.
    pub fn new() -> Self {
        Self { woken: AtomicBool::new(false), notify: Notify::new() }
    }

    /// Returns when it is woken.
    pub fn wait(&self) {
        // A wait of loom's may end early.
        while !self.woken.load(Ordering::Acquire) {
            self.notify.wait();
        }
    }

    /// Wakes it.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.notify.notify();
    }
}
