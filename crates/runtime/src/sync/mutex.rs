//! A mutex whose waiters release their core.
//!
//! The word is free, held, or held while threads wait ([`Word`]). Locking without contention is one
//! compare-and-swap, unlocking a plain store; from the first wait on the mutex, unlocking is a
//! compare-and-swap, too. A contended unlock hands the mutex to the thread that has waited longest,
//! so no waiter starves.
//!
//! The first thread that waits calls `membarrier(2)`, once for the mutex; why, and why that
//! suffices, is in [`words::mutex`](crate::ground::words::mutex).
//!
//! | `membarrier(2)` | unlocking | a thread that waits |
//! |---|---|---|
//! | works | a plain store until the first wait | is woken |
//! | refused from the beginning, or no runtime has started yet | a compare-and-swap | is woken |
//! | refused later, by a filter of system calls | a compare-and-swap; threads may still see the old state for a moment | looks again each [`RECHECK`], for an unlocking that it could not order may have missed it |

use crate::ground::membarrier;
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::ground::words::mutex::{Unlocked, Word};
use crate::records::runtime::deadline_after;
use crate::sync::poison::{PanickingBefore, Poison};
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitList, WaitOutcome};
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{Ordering, compiler_fence};
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::Duration;

/// Longest time for which a waiter is missed by an unlocking that no barrier ordered.
const RECHECK: Duration = Duration::from_millis(1);

/// Mutual exclusion between user threads (and OS threads), as `std::sync::Mutex`.
///
/// Unlocking is a plain store until a thread waits for the mutex. The first one that does makes a
/// system call, once in the life of the mutex: 0.3 us, and some microseconds more if other cores
/// run this program.
///
/// # Examples
/// ```
/// let counter = tailwater::sync::Mutex::new(0);
/// *counter.lock().unwrap() += 1;
/// assert_eq!(counter.into_inner().unwrap(), 1);
/// ```
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    word: Word,
    poison: Poison,
    waiters: SpinLock<WaitList>,
    value: UnsafeCell<T>,
}

// SAFETY: the mutex gives one thread at a time access to the value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// A panic while it is locked poisons it.
impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    ///
    /// # Examples
    /// ```
    /// static COUNT: tailwater::sync::Mutex<u32> = tailwater::sync::Mutex::new(0);
    /// *COUNT.lock().unwrap() += 1;
    /// ```
    pub const fn new(value: T) -> Self {
        Self {
            word: Word::new(),
            poison: Poison::new(),
            waiters: SpinLock::new(WaitList::new()),
            value: UnsafeCell::new(value),
        }
    }

    /// Consumes the mutex and returns the value.
    ///
    /// # Errors
    /// If the mutex is poisoned; the error holds the value.
    pub fn into_inner(self) -> LockResult<T> {
        self.poison.check(self.value.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks, waiting while another thread holds the mutex.
    ///
    /// # Errors
    /// If a thread panicked while it held the mutex; the error holds the guard.
    ///
    /// # Examples
    /// ```
    /// let count = tailwater::sync::Mutex::new(0);
    /// std::thread::scope(|s| {
    ///     for _ in 0..4 {
    ///         s.spawn(|| *count.lock().unwrap() += 1);
    ///     }
    /// });
    /// assert_eq!(*count.lock().unwrap(), 4);
    /// ```
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !self.word.try_lock() {
            self.lock_slowly();
        }
        self.guard()
    }

    /// Locks if the mutex is free.
    ///
    /// # Errors
    /// `WouldBlock` if it is held, `Poisoned` as [`lock`](Self::lock).
    ///
    /// # Examples
    /// ```
    /// let value = tailwater::sync::Mutex::new(1);
    /// let guard = value.lock().unwrap();
    /// assert!(value.try_lock().is_err());
    /// drop(guard);
    /// assert_eq!(*value.try_lock().unwrap(), 1);
    /// ```
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if self.word.try_lock() {
            self.guard().map_err(TryLockError::Poisoned)
        } else {
            Err(TryLockError::WouldBlock)
        }
    }

    /// Returns whether a thread panicked while it held the mutex.
    pub fn is_poisoned(&self) -> bool {
        self.poison.is_set()
    }

    /// Clears the poisoning.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::Mutex;
    ///
    /// let value = Mutex::new(0);
    /// std::thread::scope(|s| {
    ///     let panics = s.spawn(|| {
    ///         let _guard = value.lock().unwrap();
    ///         panic!("while it is locked");
    ///     });
    ///     assert!(panics.join().is_err());
    /// });
    /// assert!(value.is_poisoned());
    /// value.clear_poison();
    /// assert!(value.lock().is_ok());
    /// ```
    pub fn clear_poison(&self) {
        self.poison.clear();
    }

    /// Returns the value mutably, without locking.
    ///
    /// # Errors
    /// If the mutex is poisoned; the error holds the reference.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.poison.check(self.value.get_mut())
    }

    /// Returns a guard for a mutex that the caller holds without one, having given the guard to
    /// [`forget`](core::mem::forget). For interfaces that lock and unlock in two calls, as C's.
    ///
    /// # Safety
    /// The caller holds the mutex, and no other guard stands for that.
    ///
    /// # Examples
    /// ```
    /// let count = tailwater::sync::Mutex::new(0);
    /// std::mem::forget(count.lock().unwrap());
    /// assert!(count.try_lock().is_err());
    /// // SAFETY: it was locked above, and that guard is forgotten.
    /// drop(unsafe { count.make_guard_unchecked() });
    /// assert!(count.try_lock().is_ok());
    /// ```
    #[inline]
    pub unsafe fn make_guard_unchecked(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, panicking: PanickingBefore::now(), _not_send: PhantomData }
    }

    fn guard(&self) -> LockResult<MutexGuard<'_, T>> {
        // SAFETY: called once for each locking.
        self.poison.check(unsafe { self.make_guard_unchecked() })
    }

    #[cold]
    fn lock_slowly(&self) {
        poll();
        if self.word.try_lock() {
            return;
        }
        let ordered = self.order_unlocking();
        // Repeats only if a waiter that looks again finds the mutex held.
        loop {
            let waiters = self.waiters.lock();
            if self.word.lock_or_mark() {
                return;
            }
            let deadline = (!ordered).then(|| deadline_after(RECHECK));
            // The mutex is ours after a wake-up: `hand_over` leaves it held.
            // SAFETY: the list is all that the lock guards, and it stays there.
            if unsafe { wait::wait(waiters, |list| list, deadline) } == WaitOutcome::Woken {
                return;
            }
        }
    }

    /// Announces a waiter. Returns true if each unlocking from now on finds it in the list, or was
    /// visible before this returns.
    fn order_unlocking(&self) -> bool {
        if !self.word.announce() {
            return true;
        }
        // Where `decide` is false, no thread has unlocked plainly, nor will.
        let ordered = !membarrier::decide() || membarrier::everywhere().is_ok();
        if ordered {
            self.word.settle();
        }
        ordered
    }

    #[inline]
    fn unlock(&self) {
        // The waiter's `membarrier` makes it a barrier for the processor as well.
        let between = || compiler_fence(Ordering::SeqCst);
        match self.word.unlock(membarrier::works(), between) {
            Unlocked::Free => {}
            left => self.unlock_slowly(left),
        }
    }

    #[cold]
    fn unlock_slowly(&self, left: Unlocked) {
        let waiters = self.waiters.lock();
        if left == Unlocked::Held || !waiters.is_empty() && self.word.claim_or_mark() {
            self.hand_over(waiters);
        }
    }

    /// Hands the mutex, which the caller holds, to the thread that has waited longest.
    fn hand_over(&self, mut waiters: SpinGuard<'_, WaitList>) {
        // The new holder synchronises with us through the wake (Release in `WaitNode::end_wait`).
        let woken = waiters.wake_one();
        if !woken {
            self.word.free();
        } else if waiters.is_empty() {
            self.word.give_to_last();
        }
    }
}

/// Access to a locked value; unlocks when dropped.
///
/// # Examples
/// ```
/// let words = tailwater::sync::Mutex::new(vec!["user"]);
/// let mut guard = words.lock().unwrap();
/// guard.push("threads");
/// assert_eq!(guard.len(), 2);
/// ```
#[must_use = "the mutex is unlocked at once if the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    panicking: PanickingBefore,
    /// Like `std`'s guard, it stays on the thread that locked.
    _not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value only.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Returns the mutex that this guard holds.
    pub(crate) fn mutex(&self) -> &'a Mutex<T> {
        self.mutex
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the mutex, and is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.poison.unlocking(self.panicking);
        self.mutex.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Mutex");
        match self.try_lock() {
            Ok(guard) => out.field("data", &&*guard),
            Err(TryLockError::Poisoned(e)) => out.field("data", &&**e.get_ref()),
            Err(TryLockError::WouldBlock) => out.field("data", &format_args!("<locked>")),
        };
        out.field("poisoned", &self.is_poisoned()).finish_non_exhaustive()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}
