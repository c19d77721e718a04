//! A spin lock that keeps its holder on its core.
//!
//! While a [`SpinGuard`] lives, preemption is off: the holder is not descheduled by the runtime, so waiters spin for as long
//! as the critical section takes and no longer. For the runtime's own short sections and for users with sections of a few
//! dozen instructions; everything else wants [`Mutex`](crate::sync::Mutex). Works on ordinary OS threads too, where
//! Linux may deschedule the holder: waiters yield after a while.

use crate::kthread::NoPreempt;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// Spins before a waiter offers its core to Linux: about 10 us.
const SPINS_BEFORE_YIELD: u32 = 1000;

/// A value behind a spin lock.
///
/// # Examples
/// ```
/// use tailwater::sync::spin::SpinLock;
///
/// static SUM: SpinLock<u64> = SpinLock::new(0);
/// std::thread::scope(|s| {
///     for n in 0..4 {
///         s.spawn(move || *SUM.lock() += n);
///     }
/// });
/// assert_eq!(*SUM.lock(), 6);
/// ```
#[derive(Debug, Default)]
pub struct SpinLock<T: ?Sized> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked value.
    ///
    /// # Examples
    /// ```
    /// static LAST: tailwater::sync::spin::SpinLock<Option<u32>> = tailwater::sync::spin::SpinLock::new(None);
    /// *LAST.lock() = Some(1);
    /// ```
    pub const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the value out.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(tailwater::sync::spin::SpinLock::new(1).into_inner(), 1);
    /// ```
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Locks, spinning while another thread holds the lock. Locking twice on one thread never returns.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::spin::SpinLock;
    ///
    /// static SUM: SpinLock<u64> = SpinLock::new(0);
    /// std::thread::scope(|s| {
    ///     for n in 0..4 {
    ///         s.spawn(move || *SUM.lock() += n);
    ///     }
    /// });
    /// assert_eq!(*SUM.lock(), 6);
    /// ```
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let preempt = NoPreempt::new();
        // Acquire: pairs with the Release in `SpinGuard::drop`.
        if self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.spin();
        }
        SpinGuard { lock: self, preempt: Some(preempt) }
    }

    /// Locks if nobody holds the lock.
    ///
    /// # Examples
    /// ```
    /// let value = tailwater::sync::spin::SpinLock::new(1);
    /// let guard = value.try_lock().unwrap();
    /// assert!(value.try_lock().is_none());
    /// assert_eq!(*guard, 1);
    /// ```
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let preempt = NoPreempt::new();
        // Acquire: as in `lock`.
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| SpinGuard { lock: self, preempt: Some(preempt) })
    }

    /// The value, without locking: the exclusive borrow proves nobody holds the lock.
    ///
    /// # Examples
    /// ```
    /// let mut value = tailwater::sync::spin::SpinLock::new(1);
    /// *value.get_mut() += 1;
    /// assert_eq!(value.into_inner(), 2);
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[cold]
    fn spin(&self) {
        let mut spins = 0;
        loop {
            while self.held.load(Ordering::Relaxed) {
                spins += 1;
                if spins % SPINS_BEFORE_YIELD == 0 {
                    std::thread::yield_now();
                }
                core::hint::spin_loop();
            }
            // Acquire: as in `lock`.
            if self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    fn unlock(&self) {
        // Release: pairs with the Acquire of the next holder.
        self.held.store(false, Ordering::Release);
    }
}

/// Access to a locked value; unlocks, then turns preemption on again, when dropped.
///
/// # Examples
/// ```
/// let pair = tailwater::sync::spin::SpinLock::new((1, 2));
/// let mut guard = pair.lock();
/// *guard = (guard.1, guard.0);
/// assert_eq!(*guard, (2, 1));
/// ```
#[derive(Debug)]
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    /// Taken by `unlock_keeping_preemption_off` only.
    preempt: Option<NoPreempt>,
}

impl<'a, T: ?Sized> SpinGuard<'a, T> {
    /// The proof that preemption is off.
    #[inline]
    pub(crate) fn no_preempt(&self) -> &NoPreempt {
        self.preempt.as_ref().expect("present until the guard is consumed")
    }

    /// The lock this guard holds.
    #[inline]
    pub(crate) fn lock_of(&self) -> &'a SpinLock<T> {
        self.lock
    }

    /// Unlocks, and hands the proof that preemption is off to the caller, who is about to leave this context.
    #[inline]
    pub(crate) fn unlock_keeping_preemption_off(mut self) -> NoPreempt {
        let preempt = self.preempt.take().expect("present until the guard is consumed");
        self.lock.unlock();
        core::mem::forget(self);
        preempt
    }
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
        // `preempt` is dropped after this: preemption comes back when the lock is free.
    }
}
