//! A manual-reset event: a flag that threads can wait for.

use crate::runtime::deadline_after;
use crate::sync::spin::SpinLock;
use crate::sync::wait::{self, WaitList, WaitOutcome};
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_shm::Cycles;

/// A flag that threads can wait for: once it is set, everybody passes until it is reset.
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
    /// Changed under the lock; read outside it too.
    set: AtomicBool,
    waiters: SpinLock<WaitList>,
}

impl UnwindSafe for Event {}
impl RefUnwindSafe for Event {}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl Event {
    /// An event that is not set.
    ///
    /// # Examples
    /// ```
    /// static READY: tailwater::sync::Event = tailwater::sync::Event::new();
    /// assert!(!READY.is_set());
    /// ```
    pub const fn new() -> Self {
        Self { set: AtomicBool::new(false), waiters: SpinLock::new(WaitList::new()) }
    }

    /// Sets the event and wakes everybody who waits: all of them pass, even if it is reset right afterwards.
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
        let waiters = self.waiters.lock();
        // Release: pairs with the Acquire in `is_set`.
        self.set.store(true, Ordering::Release);
        wait::wake_all(waiters, |list| list);
    }

    /// Makes threads wait again.
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
        // Relaxed: it carries nothing.
        self.set.store(false, Ordering::Relaxed);
    }

    /// Whether the event is set. What was done before it was set is then visible to the caller.
    ///
    /// # Examples
    /// ```
    /// let event = tailwater::sync::Event::new();
    /// event.set();
    /// assert!(event.is_set());
    /// event.reset();
    /// assert!(!event.is_set());
    /// ```
    #[inline]
    pub fn is_set(&self) -> bool {
        // Acquire: pairs with the Release in `set`.
        self.set.load(Ordering::Acquire)
    }

    /// Waits until the event is set.
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
    #[inline]
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// As [`wait`](Self::wait), for at most `timeout`; false when the time passed first.
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
        crate::poll();
        if self.is_set() {
            return true;
        }
        let waiters = self.waiters.lock();
        self.is_set() || wait::wait(waiters, |list| list, deadline) == WaitOutcome::Woken
    }
}
