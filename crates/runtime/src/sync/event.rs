//! A manual-reset event: a flag that threads can wait for.

use crate::ground::spin::SpinLock;
use crate::records::runtime::deadline_after;
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitOutcome};
use crate::verbs::watch::{self, Waiters, Watchers};
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_shm::Cycles;

/// A flag that threads can wait for: while it is set, all threads pass.
///
/// # Examples
/// ```
/// let shutdown = tailwater::sync::Event::new();
/// std::thread::scope(|scope| {
///     for _ in 0..3 {
///         scope.spawn(|| shutdown.wait());
///     }
///     shutdown.set();
/// });
/// shutdown.reset();
/// assert!(!shutdown.is_set());
/// ```
#[derive(Debug)]
pub struct Event {
    /// Changed under the lock; also read outside it.
    set: AtomicBool,
    waiters: SpinLock<Waiters>,
}

impl UnwindSafe for Event {}
impl RefUnwindSafe for Event {}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl Event {
    /// Returns an event that is not set.
    ///
    /// # Examples
    /// ```
    /// static READY: tailwater::sync::Event = tailwater::sync::Event::new();
    /// assert!(!READY.is_set());
    /// ```
    pub const fn new() -> Self {
        Self { set: AtomicBool::new(false), waiters: SpinLock::new(Waiters::new()) }
    }

    /// Sets the event and wakes all waiting threads: all of them pass, even if it is reset right
    /// afterwards.
    ///
    /// # Examples
    /// ```
    /// let event = tailwater::sync::Event::new();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| event.set());
    ///     event.wait();
    /// });
    /// assert!(event.is_set());
    /// ```
    pub fn set(&self) {
        let mut waiters = self.waiters.lock();
        // Release: pairs with the Acquire in `is_set`.
        self.set.store(true, Ordering::Release);
        let is_watched = !waiters.watchers().is_empty();
        // Threads first: one that comes to wait after a `reset` is not woken. Watchers only look.
        wait::wake_all(waiters, Waiters::threads);
        if is_watched {
            watch::notify_all(self.waiters.lock(), Waiters::watchers);
        }
    }

    /// Resets the event: threads wait again.
    ///
    /// # Examples
    /// ```
    /// let event = tailwater::sync::Event::new();
    /// event.set();
    /// assert!(event.is_set());
    /// event.reset();
    /// assert!(!event.is_set());
    /// ```
    pub fn reset(&self) {
        let _waiters = self.waiters.lock();
        // Relaxed: publishes nothing.
        self.set.store(false, Ordering::Relaxed);
    }

    /// Returns whether the event is set. What was done before it was set is then visible to the
    /// caller.
    #[inline]
    pub fn is_set(&self) -> bool {
        // Acquire: pairs with the Release in `set`.
        self.set.load(Ordering::Acquire)
    }

    /// Waits until the event is set.
    #[inline]
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// As [`wait`](Self::wait), for at most `timeout`; false if the time passed first.
    ///
    /// # Examples
    /// ```
    /// let event = tailwater::sync::Event::new();
    /// assert!(!event.wait_timeout(std::time::Duration::from_millis(1)));
    /// ```
    #[inline]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.is_set() || self.wait_until(Some(deadline_after(timeout)))
    }

    fn wait_until(&self, deadline: Option<Cycles>) -> bool {
        poll();
        if self.is_set() {
            return true;
        }
        let waiters = self.waiters.lock();
        if self.is_set() {
            return true;
        }
        // SAFETY: `threads` always returns the same list, which stays behind the lock.
        unsafe { wait::wait(waiters, Waiters::threads, deadline) == WaitOutcome::Woken }
    }

    /// Returns whether the event is set; if not, calls `arm` with the watchers, locked.
    pub(crate) fn is_set_or(&self, arm: impl FnOnce(&mut Watchers)) -> bool {
        if self.is_set() {
            return true;
        }
        let mut waiters = self.waiters.lock();
        if !self.is_set() {
            arm(waiters.watchers());
            return false;
        }
        true
    }

    /// Calls `change` with the watchers, locked, and whether the event is set.
    pub(crate) fn with_watchers<R>(&self, change: impl FnOnce(&mut Watchers, bool) -> R) -> R {
        let mut waiters = self.waiters.lock();
        change(waiters.watchers(), self.is_set())
    }
}
