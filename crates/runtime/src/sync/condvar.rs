//! A condition variable, as `std::sync::Condvar`.
//!
//! A waiter joins the wait list before it unlocks the mutex, so a notification between the two is
//! not lost.

use crate::ground::spin::SpinLock;
use crate::records::runtime::deadline_after;
use crate::sync::mutex::MutexGuard;
use crate::verbs::wait::{self, WaitList, WaitOutcome};
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;
use tailwater_shm::{Cycles, clock};

/// Lets threads wait for a condition that a [`Mutex`](crate::sync::Mutex) guards.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tailwater::sync::{Condvar, Mutex};
///
/// let pair = Arc::new((Mutex::new(false), Condvar::new()));
/// let other = Arc::clone(&pair);
/// let setter = std::thread::spawn(move || {
///     *other.0.lock().unwrap() = true;
///     other.1.notify_one();
/// });
/// let ready = pair.1.wait_while(pair.0.lock().unwrap(), |ready| !*ready).unwrap();
/// assert!(*ready);
/// # drop(ready);
/// # setter.join().unwrap();
/// ```
#[derive(Debug, Default)]
pub struct Condvar {
    waiters: SpinLock<WaitList>,
}

impl UnwindSafe for Condvar {}
impl RefUnwindSafe for Condvar {}

/// The result of a timed wait: whether it ended by its timeout.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::sync::{Condvar, Mutex};
///
/// let (lock, condition) = (Mutex::new(()), Condvar::new());
/// let guard = lock.lock().unwrap();
/// let (_guard, result) = condition.wait_timeout(guard, Duration::from_millis(1)).unwrap();
/// assert!(result.timed_out());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns true if the time passed without a notification.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Returns a condition variable without waiting threads.
    ///
    /// # Examples
    /// ```
    /// static CHANGED: tailwater::sync::Condvar = tailwater::sync::Condvar::new();
    /// CHANGED.notify_all();
    /// ```
    pub const fn new() -> Self {
        Self { waiters: SpinLock::new(WaitList::new()) }
    }

    /// Unlocks, waits for a notification, and locks again. There are no spurious wake-ups, but the
    /// condition may have changed again before the mutex was locked: test it in a loop, or use
    /// [`wait_while`](Self::wait_while).
    ///
    /// # Errors
    /// If the mutex is poisoned when it is locked again; the error holds the guard.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::{Condvar, Mutex};
    ///
    /// let (ready, changed) = (Mutex::new(false), Condvar::new());
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         *ready.lock().unwrap() = true;
    ///         changed.notify_one();
    ///     });
    ///     let mut guard = ready.lock().unwrap();
    ///     while !*guard {
    ///         guard = changed.wait(guard).unwrap();
    ///     }
    /// });
    /// ```
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_until(guard, None).0
    }

    /// Waits while `condition` is true.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::{Condvar, Mutex};
    ///
    /// let (ready, changed) = (Mutex::new(false), Condvar::new());
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         *ready.lock().unwrap() = true;
    ///         changed.notify_one();
    ///     });
    ///     let guard = changed.wait_while(ready.lock().unwrap(), |ready| !*ready).unwrap();
    ///     assert!(*guard);
    /// });
    /// ```
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut *guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// As [`wait`](Self::wait), for at most `timeout`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (guard, outcome) = self.wait_until(guard, Some(deadline_after(timeout)));
        let result = WaitTimeoutResult(outcome == WaitOutcome::TimedOut);
        match guard {
            Ok(guard) => Ok((guard, result)),
            Err(e) => Err(PoisonError::new((e.into_inner(), result))),
        }
    }

    /// Waits while `condition` is true, for at most `timeout` in all. The result is a timeout only
    /// if the condition was still true then.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tailwater::sync::{Condvar, Mutex};
    ///
    /// let (ready, changed) = (Mutex::new(false), Condvar::new());
    /// let guard = ready.lock().unwrap();
    /// let (guard, result) =
    ///     changed.wait_timeout_while(guard, Duration::from_millis(1), |ready| !*ready).unwrap();
    /// assert!(!*guard && result.timed_out());
    /// ```
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let deadline = deadline_after(timeout);
        while condition(&mut *guard) {
            if clock::now() >= deadline {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = match self.wait_until(guard, Some(deadline)).0 {
                Ok(guard) => guard,
                Err(e) => return Err(PoisonError::new((e.into_inner(), WaitTimeoutResult(false)))),
            };
        }
        Ok((guard, WaitTimeoutResult(false)))
    }

    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Cycles>,
    ) -> (LockResult<MutexGuard<'a, T>>, WaitOutcome) {
        let mutex = guard.mutex();
        let waiters = self.waiters.lock();
        drop(guard);
        // SAFETY: the list is all that the lock guards, and it stays there.
        let outcome = unsafe { wait::wait(waiters, |list| list, deadline) };
        (mutex.lock(), outcome)
    }

    /// Wakes the thread that has waited longest, if any.
    #[inline]
    pub fn notify_one(&self) {
        self.waiters.lock().wake_one();
    }

    /// Wakes all waiting threads.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::{Condvar, Mutex};
    ///
    /// let (ready, changed) = (Mutex::new(false), Condvar::new());
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         *ready.lock().unwrap() = true;
    ///         changed.notify_all();
    ///     });
    ///     let guard = changed.wait_while(ready.lock().unwrap(), |ready| !*ready).unwrap();
    ///     assert!(*guard);
    /// });
    /// ```
    pub fn notify_all(&self) {
        wait::wake_all(self.waiters.lock(), |list| list);
    }
}
