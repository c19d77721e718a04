//! The guards of a [`RwLock`].

use super::RwLock;
use crate::sync::poison::PanickingBefore;
use core::fmt;
use core::marker::PhantomData;
use core::mem;
use core::ops::{Deref, DerefMut};

/// Shared access to a locked value; unlocks when dropped.
///
/// # Examples
/// ```
/// let lock = tailwater::sync::RwLock::new(1);
/// let guard = lock.read().unwrap();
/// assert_eq!(*guard, 1);
/// assert!(lock.try_write().is_err() && lock.try_read().is_ok());
/// ```
#[must_use = "the lock is released at once if the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    /// Like `std`'s guard, it stays on the thread that locked, and is unwind safe if a reference to
    /// the value is.
    _not_send: PhantomData<*const T>,
}

// SAFETY: a shared guard gives shared access to the value only.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}

/// Exclusive access to a locked value; unlocks when dropped.
///
/// # Examples
/// ```
/// let lock = tailwater::sync::RwLock::new(1);
/// let mut guard = lock.write().unwrap();
/// *guard += 1;
/// assert!(lock.try_read().is_err());
/// drop(guard);
/// assert_eq!(*lock.read().unwrap(), 2);
/// ```
#[must_use = "the lock is released at once if the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    panicking: PanickingBefore,
    /// Like `std`'s guard, it stays on the thread that locked.
    _not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value only.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// Returns a guard; the caller holds `lock` for reading.
    #[inline]
    pub(super) fn new(lock: &'a RwLock<T>) -> Self {
        Self { lock, _not_send: PhantomData }
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Returns a guard; the caller holds `lock` for writing.
    #[inline]
    pub(super) fn new(lock: &'a RwLock<T>) -> Self {
        Self { lock, panicking: PanickingBefore::now(), _not_send: PhantomData }
    }

    /// Turns exclusive into shared access without letting a writer in between. Readers that wait
    /// for this writer and no other are admitted too.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(1);
    /// let mut guard = lock.write().unwrap();
    /// *guard += 1;
    /// let guard = RwLockWriteGuard::downgrade(guard);
    /// assert_eq!((*guard, *lock.read().unwrap()), (2, 2));
    /// ```
    pub fn downgrade(guard: Self) -> RwLockReadGuard<'a, T> {
        let lock = guard.lock;
        // The new guard unlocks instead.
        mem::forget(guard);
        lock.downgrade();
        RwLockReadGuard::new(lock)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock for reading.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock for writing.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock for writing, and is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock_read();
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.poison.unlocking(self.panicking);
        self.lock.unlock_write();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
