//! Locks that a future may hold while it waits for something else.
//!
//! Owns [`Mutex`] and [`RwLock`], each a [`Semaphore`] around a value: of one permit, or of so many
//! that no number of readers takes them all, of which a writer takes every one. So waiters
//! are served first come, first served, and a future that is dropped leaves the queue.

use crate::sync::{Semaphore, SemaphorePermit};
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// Permits of a [`RwLock`]: more than there can be readers.
const READERS: usize = usize::MAX >> 1;

/// A mutex whose guard may be held across `.await`.
///
/// Where no guard is held across `.await`, [`sync::Mutex`](crate::sync::Mutex) does as well, and
/// costs less: a task may wait for it as any thread. There is no poisoning: a panic unlocks.
///
/// # Examples
/// ```standalone_crate
/// use std::sync::Arc;
/// use tailwater::future::{Mutex, block_on, spawn, yield_now};
///
/// #[tailwater::main]
/// fn main() {
///     let sum = Arc::new(Mutex::new(0));
///     let add = |n: u64| {
///         let sum = Arc::clone(&sum);
///         spawn(async move {
///             let mut sum = sum.lock().await;
///             let before = *sum;
///             yield_now().await;
///             *sum = before + n;
///         })
///     };
///     let tasks: Vec<_> = (1..=4).map(add).collect();
///     tasks.into_iter().for_each(|task| task.join().unwrap());
///     assert_eq!(*block_on(sum.lock()), 10);
/// }
/// ```
pub struct Mutex<T: ?Sized> {
    turn: Semaphore,
    value: UnsafeCell<T>,
}

// SAFETY: one guard at a time gives access to the value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// The value of a locked [`Mutex`]; unlocks when dropped, on any thread.
///
/// # Examples
/// ```
/// use tailwater::future::{Mutex, MutexGuard, block_on};
///
/// fn increase(mut count: MutexGuard<'_, u32>) {
///     *count += 1;
/// }
/// let count = Mutex::new(1);
/// increase(block_on(count.lock()));
/// assert_eq!(count.into_inner(), 2);
/// ```
#[must_use = "the mutex is unlocked at once if it is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    value: &'a UnsafeCell<T>,
    _turn: SemaphorePermit<'a>,
}

// SAFETY: it is a unique reference to the value, and the permit may be returned by any thread.
unsafe impl<T: ?Sized + Send> Send for MutexGuard<'_, T> {}
// SAFETY: a shared reference gives shared access to the value.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// Returns an unlocked value.
    ///
    /// # Examples
    /// ```
    /// static LAST: tailwater::future::Mutex<u64> = tailwater::future::Mutex::new(0);
    /// *LAST.try_lock().unwrap() = 1;
    /// ```
    pub const fn new(value: T) -> Self {
        Self { turn: Semaphore::new(1), value: UnsafeCell::new(value) }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks, after all that have waited before.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.turn.acquire_async().await)
    }

    /// Locks if no guard is held and no future waits.
    ///
    /// # Examples
    /// ```
    /// let mutex = tailwater::future::Mutex::new(());
    /// let guard = mutex.try_lock();
    /// assert!(guard.is_some() && mutex.try_lock().is_none());
    /// ```
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.turn.try_acquire().map(|turn| self.guard(turn))
    }

    /// Returns the value: `&mut self` proves that there is no guard.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn guard<'a>(&'a self, turn: SemaphorePermit<'a>) -> MutexGuard<'a, T> {
        MutexGuard { value: &self.value, _turn: turn }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard has the only permit.
        unsafe { &*self.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.value.get() }
    }
}

/// A lock for many readers or one writer, whose guards may be held across `.await`. Readers that
/// come later wait behind a writer that waits. There is no poisoning.
///
/// # Examples
/// ```
/// use tailwater::future::{RwLock, block_on};
///
/// let limit = RwLock::new(10);
/// block_on(async {
///     let (first, second) = (limit.read().await, limit.read().await);
///     assert_eq!(*first + *second, 20);
///     assert!(limit.try_write().is_none());
///     drop((first, second));
///     *limit.write().await = 20;
/// });
/// assert_eq!(limit.into_inner(), 20);
/// ```
pub struct RwLock<T: ?Sized> {
    readers: Semaphore,
    value: UnsafeCell<T>,
}

// SAFETY: guards give access to the value, many to read or one to write.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

/// The value of a [`RwLock`] that is locked for reading.
///
/// # Examples
/// ```
/// use tailwater::future::{RwLock, RwLockReadGuard};
///
/// let lock = RwLock::new(1);
/// let first: RwLockReadGuard<'_, u32> = lock.try_read().unwrap();
/// assert_eq!(*first, *lock.try_read().unwrap());
/// ```
#[must_use = "the lock is unlocked at once if it is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    value: &'a UnsafeCell<T>,
    _permit: SemaphorePermit<'a>,
}

// SAFETY: it is a shared reference to the value, and the permit may be returned by any thread.
unsafe impl<T: ?Sized + Sync> Send for RwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}

/// The value of a [`RwLock`] that is locked for writing.
///
/// # Examples
/// ```
/// use tailwater::future::{RwLock, RwLockWriteGuard};
///
/// let lock = RwLock::new(1);
/// let mut only: RwLockWriteGuard<'_, u32> = lock.try_write().unwrap();
/// *only += 1;
/// assert!(lock.try_read().is_none());
/// ```
#[must_use = "the lock is unlocked at once if it is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    value: &'a UnsafeCell<T>,
    _permits: SemaphorePermit<'a>,
}

// SAFETY: it is a unique reference to the value, and the permits may be returned by any thread.
unsafe impl<T: ?Sized + Send> Send for RwLockWriteGuard<'_, T> {}
// SAFETY: a shared reference gives shared access to the value.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// Returns an unlocked value.
    pub const fn new(value: T) -> Self {
        Self { readers: Semaphore::new(READERS), value: UnsafeCell::new(value) }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading, after all that have waited before.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_guard(self.readers.acquire_async().await)
    }

    /// Locks for writing, after all that have waited before.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.write_guard(self.readers.acquire_many_async(READERS).await)
    }

    /// Locks for reading if no writer holds the lock and no future waits.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.readers.try_acquire().map(|permit| self.read_guard(permit))
    }

    /// Locks for writing if no guard is held and no future waits.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.readers.try_acquire_many(READERS).map(|permits| self.write_guard(permits))
    }

    /// Returns the value: `&mut self` proves that there is no guard.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn read_guard<'a>(&'a self, permit: SemaphorePermit<'a>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard { value: &self.value, _permit: permit }
    }

    fn write_guard<'a>(&'a self, permits: SemaphorePermit<'a>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard { value: &self.value, _permits: permits }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a writer has all permits, and the guard has one of them.
        unsafe { &*self.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard has all permits.
        unsafe { &*self.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.value.get() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Mutex");
        match self.try_lock() {
            Some(value) => out.field("value", &&*value).finish(),
            None => out.finish_non_exhaustive(),
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RwLock");
        match self.try_read() {
            Some(value) => out.field("value", &&*value).finish(),
            None => out.finish_non_exhaustive(),
        }
    }
}

macro_rules! shown_as_the_value {
    ($($guard:ident)+) => {$(
        impl<T: ?Sized + fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    )+};
}

shown_as_the_value! { MutexGuard RwLockReadGuard RwLockWriteGuard }
