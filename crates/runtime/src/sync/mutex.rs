//! A mutex whose waiters release their core.
//!
//! One word is free, held, or held with waiters; the uncontended paths are a compare-and-swap each.
//! A contended unlock hands the mutex to the thread that has waited longest, so no waiter starves.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | 0 | free | `lock`: to 1 |
//! | 1 | held | `unlock`: to 0; a waiter, under the list lock: to 2 |
//! | 2 | held, threads wait | `unlock`, under the list lock: stays held for the waiter woken; to 1 when it was the last |

use crate::ground::spin::SpinLock;
use crate::sync::poison::{PanickingBefore, Poison};
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitList};
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LockResult, TryLockError, TryLockResult};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Mutual exclusion between user threads (and OS threads), as `std::sync::Mutex`.
///
/// # Examples
/// ```
/// let counter = tailwater::sync::Mutex::new(0);
/// *counter.lock().unwrap() += 1;
/// assert_eq!(counter.into_inner().unwrap(), 1);
/// ```
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    state: AtomicU32,
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
            state: AtomicU32::new(FREE),
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
        // Acquire: pairs with the Release in `unlock`.
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
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
        // Acquire: as in `lock`.
        match self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => self.guard().map_err(TryLockError::Poisoned),
            Err(_) => Err(TryLockError::WouldBlock),
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

    fn guard(&self) -> LockResult<MutexGuard<'_, T>> {
        self.poison.check(MutexGuard {
            mutex: self,
            panicking: PanickingBefore::now(),
            _not_send: PhantomData,
        })
    }

    #[cold]
    fn lock_slowly(&self) {
        poll();
        let waiters = self.waiters.lock();
        loop {
            // Acquire: as in `lock`.
            match self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return,
                Err(CONTENDED) => break,
                // Relaxed: only records that a thread waits; the list lock orders the rest.
                Err(_) => {
                    match self.state.compare_exchange(HELD, CONTENDED, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) | Err(CONTENDED) => break,
                        Err(_) => {}
                    }
                }
            }
        }
        // The mutex is ours when this returns: `unlock_slowly` leaves it held.
        // SAFETY: the list is all that the lock guards, and it stays there.
        unsafe { wait::wait(waiters, |list| list, None) };
    }

    #[inline]
    fn unlock(&self) {
        // Release: pairs with the Acquire of the next holder.
        if self.state.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_err() {
            self.unlock_slowly();
        }
    }

    #[cold]
    fn unlock_slowly(&self) {
        let mut waiters = self.waiters.lock();
        // The new holder synchronises with us through the wake (Release in `WaitNode::end_wait`).
        let woken = waiters.wake_one();
        if !woken {
            // Release: as in `unlock`.
            self.state.store(FREE, Ordering::Release);
        } else if waiters.is_empty() {
            // Relaxed: the holder is the thread just woken, which unlocks through the list lock we
            // hold or by a compare-and-swap from HELD, which it cannot see before this store.
            self.state.store(HELD, Ordering::Relaxed);
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
