//! A notification without data.

use crate::ground::spin::SpinLock;
use crate::records::runtime::deadline_after;
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitOutcome};
use crate::verbs::watch::{Waiters, Watchers};
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;
use tailwater_shm::Cycles;

#[derive(Debug)]
struct State {
    /// A notification that no thread has waited for yet; then no thread waits.
    permit: bool,
    /// Number of calls of [`Notify::notify_waiters`]; futures that wait have recorded it.
    broadcasts: u64,
    waiters: Waiters,
}

/// Signals one waiting thread, or the next to wait, that there is something to do: a semaphore of
/// at most one permit.
///
/// To signal all threads that wait, now and later, use [`Event`](crate::sync::Event).
///
/// # Examples
/// ```
/// let notify = tailwater::sync::Notify::new();
/// notify.notify_one();
/// notify.notify_one(); // Stored already.
/// notify.wait();
/// assert!(!notify.try_wait());
/// ```
#[derive(Debug)]
pub struct Notify {
    state: SpinLock<State>,
}

impl UnwindSafe for Notify {}
impl RefUnwindSafe for Notify {}

impl Default for Notify {
    fn default() -> Self {
        Self::new()
    }
}

impl Notify {
    /// Returns a notification without waiting threads or stored permit.
    ///
    /// # Examples
    /// ```
    /// static WORK: tailwater::sync::Notify = tailwater::sync::Notify::new();
    /// WORK.notify_one();
    /// WORK.wait();
    /// ```
    pub const fn new() -> Self {
        Self { state: SpinLock::new(State { permit: false, broadcasts: 0, waiters: Waiters::new() }) }
    }

    /// Wakes the thread that has waited longest. If no thread waits, the next to wait returns at
    /// once; several notifications without a waiting thread count as one.
    ///
    /// # Examples
    /// ```
    /// let notify = tailwater::sync::Notify::new();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| notify.notify_one());
    ///     notify.wait();
    /// });
    /// ```
    pub fn notify_one(&self) {
        let mut state = self.state.lock();
        if !state.waiters.wake_one() {
            state.permit = true;
        }
    }

    /// Wakes all threads that wait now. Stores nothing for later waits.
    ///
    /// # Examples
    /// ```
    /// let notify = tailwater::sync::Notify::new();
    /// notify.notify_waiters();
    /// assert!(!notify.try_wait());
    /// ```
    pub fn notify_waiters(&self) {
        let mut state = self.state.lock();
        state.broadcasts = state.broadcasts.wrapping_add(1);
        state.waiters.watchers().notify();
        wait::wake_all(state, |s| s.waiters.threads());
    }

    /// Waits for a notification, or takes the stored one.
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// As [`wait`](Self::wait), for at most `timeout`; false if the time passed first.
    ///
    /// # Examples
    /// ```
    /// let notify = tailwater::sync::Notify::new();
    /// assert!(!notify.wait_timeout(std::time::Duration::from_millis(1)));
    /// ```
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(Some(deadline_after(timeout)))
    }

    /// Takes the stored notification; returns whether there was one.
    ///
    /// # Examples
    /// ```
    /// let notify = tailwater::sync::Notify::new();
    /// notify.notify_one();
    /// assert!(notify.try_wait() && !notify.try_wait());
    /// ```
    pub fn try_wait(&self) -> bool {
        core::mem::take(&mut self.state.lock().permit)
    }

    fn wait_until(&self, deadline: Option<Cycles>) -> bool {
        poll();
        let mut state = self.state.lock();
        if core::mem::take(&mut state.permit) {
            return true;
        }
        // SAFETY: `threads` always returns the same list, which stays in the state.
        unsafe { wait::wait(state, |s| s.waiters.threads(), deadline) == WaitOutcome::Woken }
    }

    /// Takes the stored notification, or returns true if all waiting threads were notified since
    /// the call that wrote `seen`; otherwise calls `arm` with the watchers, locked.
    pub(crate) fn try_wait_or(&self, seen: &mut Option<u64>, arm: impl FnOnce(&mut Watchers)) -> bool {
        let mut state = self.state.lock();
        let broadcasts = state.broadcasts;
        if *seen.get_or_insert(broadcasts) != broadcasts || core::mem::take(&mut state.permit) {
            return true;
        }
        arm(state.waiters.watchers());
        false
    }

    /// Calls `change` with the watchers, locked, and whether a notification is stored.
    pub(crate) fn with_watchers<R>(&self, change: impl FnOnce(&mut Watchers, bool) -> R) -> R {
        let mut state = self.state.lock();
        let permit = state.permit;
        change(state.waiters.watchers(), permit)
    }
}
