//! A spin lock that keeps its holder on its core.
//!
//! While a [`SpinGuard`] lives, preemption is off: the runtime does not deschedule the holder, so
//! waiters spin for as long as the critical section takes and no longer. For the runtime's own
//! short sections and for sections of a few dozen instructions in programs; longer ones should use
//! [`Mutex`](crate::sync::Mutex). Works on ordinary OS threads too. Linux may deschedule a holder
//! there, so waiters yield after a while.

use super::atomic::{AtomicBool, Ordering, spin_hint};
use super::guard::NoPreempt;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// Spins before a waiter yields to Linux: about 10 us.
const SPINS_BEFORE_YIELD: u32 = 1000;

/// A value behind a spin lock.
///
/// # Examples
/// ```
/// use tailwater::internals::SpinLock;
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
    /// Returns an unlocked value.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns an unlocked value.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Locks, spinning while another thread holds the lock. A thread that locks twice spins for
    /// ever.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let preempt = NoPreempt::new();
        // Acquire: pairs with the Release in `unlock`.
        if self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.spin();
        }
        SpinGuard { lock: self, preempt: Some(preempt) }
    }

    /// Locks a lock that no other thread knows yet, by a plain store. Whatever lets another thread
    /// find the lock also lets it see that the lock is held.
    ///
    /// # Safety
    /// The lock is free, and no other thread uses it before the caller has published it.
    #[inline]
    pub(crate) unsafe fn lock_unshared(&self) -> SpinGuard<'_, T> {
        let preempt = NoPreempt::new();
        self.held.store(true, Ordering::Relaxed);
        SpinGuard { lock: self, preempt: Some(preempt) }
    }

    /// Locks if the lock is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let preempt = NoPreempt::new();
        // Acquire: as in `lock`.
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| SpinGuard { lock: self, preempt: Some(preempt) })
    }

    /// Returns the value. The exclusive borrow proves that the lock is free.
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
                spin_hint();
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
/// let pair = tailwater::internals::SpinLock::new((1, 2));
/// let mut guard = pair.lock();
/// *guard = (guard.1, guard.0);
/// assert_eq!(*guard, (2, 1));
/// ```
#[derive(Debug)]
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    /// `None` only after `unlock_keeping_preemption_off`.
    preempt: Option<NoPreempt>,
}

impl<'a, T: ?Sized> SpinGuard<'a, T> {
    /// Returns the proof that preemption is off.
    #[inline]
    pub(crate) fn no_preempt(&self) -> &NoPreempt {
        self.preempt.as_ref().expect("present until the guard is consumed")
    }

    /// Returns the lock that this guard holds.
    #[inline]
    pub(crate) fn lock_of(&self) -> &'a SpinLock<T> {
        self.lock
    }

    /// Unlocks, and returns the proof that preemption is off to the caller, which leaves this
    /// context next, or wakes a thread before it turns preemption on.
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
        // `preempt` is dropped after this: preemption is on again when the lock is free.
    }
}
