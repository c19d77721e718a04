//! A notification without data.

use crate::ground::spin::SpinLock;
use crate::records::runtime::deadline_after;
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitOutcome};
use crate::verbs::watch::{self, Waiters, Watchers};
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;
use tailwater_shm::Cycles;

#[derive(Debug)]
struct State {
    /// Notifications that were not taken yet; if there are any, no thread waits. At most one for
    /// each future that waits, and one if none does.
    permits: usize,
    /// Number of futures that wait: that were polled, and are neither ready nor dropped.
    futures: usize,
    /// Number of calls of [`Notify::notify_waiters`]; futures that wait have recorded it.
    broadcasts: u64,
    waiters: Waiters,
}

impl State {
    /// Takes a notification; returns whether there was one.
    fn take_permit(&mut self) -> bool {
        let taken = self.permits > 0;
        self.permits -= usize::from(taken);
        taken
    }

    /// Counts a future as waiting no more.
    fn end_future(&mut self) {
        self.futures -= 1;
        self.permits = self.permits.min(self.most_permits());
    }

    /// Returns how many notifications are stored at most.
    fn most_permits(&self) -> usize {
        self.futures.max(1)
    }
}

/// Signals one waiting thread or future, or the next to wait, that there is something to do: a
/// semaphore of at most one permit, or of one for each future that waits.
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
        Self {
            state: SpinLock::new(State { permits: 0, futures: 0, broadcasts: 0, waiters: Waiters::new() }),
        }
    }

    /// Wakes the thread that has waited longest. If no thread waits, the notification is stored for
    /// one of the futures that wait, or else for the next to wait. As many are stored as futures
    /// wait, at least one; further ones have no effect.
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
            state.permits = (state.permits + 1).min(state.most_permits());
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
        let is_watched = !state.waiters.watchers().is_empty();
        // Threads first: one that comes to wait later is not woken. Watchers only look.
        wait::wake_all(state, |s| s.waiters.threads());
        if is_watched {
            watch::notify_all(self.state.lock(), |s| s.waiters.watchers());
        }
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
        self.state.lock().take_permit()
    }

    fn wait_until(&self, deadline: Option<Cycles>) -> bool {
        poll();
        let mut state = self.state.lock();
        if state.take_permit() {
            return true;
        }
        // SAFETY: `threads` always returns the same list, which stays in the state.
        unsafe { wait::wait(state, |s| s.waiters.threads(), deadline) == WaitOutcome::Woken }
    }

    /// Takes a stored notification, or returns true if all waiting threads were notified since the
    /// call that wrote `seen`; otherwise calls `arm` with the watchers, locked. A future whose
    /// `seen` is written counts as waiting; if it is dropped, it calls
    /// [`end_future`](Self::end_future).
    pub(crate) fn try_wait_or(&self, seen: &mut Option<u64>, arm: impl FnOnce(&mut Watchers)) -> bool {
        let mut state = self.state.lock();
        let broadcasts = state.broadcasts;
        if seen.is_some_and(|seen| seen != broadcasts) || state.take_permit() {
            if seen.take().is_some() {
                state.end_future();
            }
            return true;
        }
        if seen.replace(broadcasts).is_none() {
            state.futures += 1;
        }
        arm(state.waiters.watchers());
        false
    }

    /// Counts a future as waiting no more.
    pub(crate) fn end_future(&self) {
        self.state.lock().end_future();
    }

    /// Calls `change` with the watchers, locked, and whether a notification is stored.
    pub(crate) fn with_watchers<R>(&self, change: impl FnOnce(&mut Watchers, bool) -> R) -> R {
        let mut state = self.state.lock();
        let stored = state.permits > 0;
        change(state.waiters.watchers(), stored)
    }
}
