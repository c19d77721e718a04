//! A reader-writer lock whose waiters release their core.
//!
//! [`words::rwlock`](crate::ground::words::rwlock) has the protocol: uncontended paths are a
//! compare-and-swap each (a fetch-and-sub for a reader that leaves). Threads that cannot lock
//! queue, readers and writers in one queue; the last holder gives the lock to the writer at its
//! head, or to all readers up to the first writer. No thread overtakes the queue, so neither
//! readers nor writers starve.

mod guard;

pub use guard::{RwLockReadGuard, RwLockWriteGuard};

use crate::ground::spin::{SpinGuard, SpinLock};
use crate::ground::words::rwlock::{Access, Holders, Word};
use crate::sync::poison::Poison;
use crate::sync::queue::{self, Queue};
use crate::verbs::switch::poll;
use crate::verbs::wait::WAKE_BATCH;
use core::cell::UnsafeCell;
use core::fmt;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{LockResult, TryLockError, TryLockResult};

/// Number of readers admitted in one batch.
const ADMIT_BATCH: usize = WAKE_BATCH;

/// Many readers or one writer, as `std::sync::RwLock`.
///
/// Served first come, first served: a reader that arrives while a writer waits queues behind it. A
/// thread that reads must therefore not read-lock a second time, just as with `std`: a writer may
/// have queued between the two.
///
/// Only writers poison: a reader that panics has changed nothing.
///
/// # Examples
/// ```
/// let lock = tailwater::sync::RwLock::new(vec![1]);
/// {
///     let (a, b) = (lock.read().unwrap(), lock.read().unwrap());
///     assert_eq!(a.len(), b.len());
/// }
/// lock.write().unwrap().push(2);
/// assert_eq!(lock.into_inner().unwrap(), [1, 2]);
/// ```
pub struct RwLock<T: ?Sized> {
    word: Word,
    poison: Poison,
    queue: SpinLock<Queue<Access>>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives exclusive access, or shared access to several threads, to the value.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as above; readers share the value, hence `T: Sync`.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
impl<T: ?Sized> UnwindSafe for RwLock<T> {}
impl<T: ?Sized> RefUnwindSafe for RwLock<T> {}

impl<T> RwLock<T> {
    /// Returns an unlocked lock.
    ///
    /// # Examples
    /// ```
    /// static COUNT: tailwater::sync::RwLock<u32> = tailwater::sync::RwLock::new(0);
    /// *COUNT.write().unwrap() += 1;
    /// ```
    pub const fn new(value: T) -> Self {
        Self {
            word: Word::new(),
            poison: Poison::new(),
            queue: SpinLock::new(Queue::new()),
            value: UnsafeCell::new(value),
        }
    }

    /// Consumes the lock and returns the value.
    ///
    /// # Errors
    /// If the lock is poisoned; the error holds the value.
    pub fn into_inner(self) -> LockResult<T> {
        self.poison.check(self.value.into_inner())
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading, waiting while a writer holds the lock or waits for it.
    ///
    /// # Errors
    /// If a thread panicked while it held the lock for writing; the error holds the guard.
    ///
    /// # Panics
    /// If 2^29 readers hold the lock.
    ///
    /// # Examples
    /// ```
    /// let value = tailwater::sync::RwLock::new(1);
    /// let (one, other) = (value.read().unwrap(), value.read().unwrap());
    /// assert_eq!(*one + *other, 2);
    /// ```
    #[inline]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        if !self.word.try_enter(Access::Read) {
            self.enter_slowly(Access::Read);
        }
        self.poison.check(RwLockReadGuard::new(self))
    }

    /// Locks for reading if no writer holds the lock or waits for it.
    ///
    /// # Errors
    /// `WouldBlock` if one does, `Poisoned` as [`read`](Self::read).
    ///
    /// # Panics
    /// As [`read`](Self::read).
    ///
    /// # Examples
    /// ```
    /// let value = tailwater::sync::RwLock::new(1);
    /// let writer = value.write().unwrap();
    /// assert!(value.try_read().is_err());
    /// drop(writer);
    /// assert_eq!(*value.try_read().unwrap(), 1);
    /// ```
    #[inline]
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        if !self.word.try_enter(Access::Read) {
            return Err(TryLockError::WouldBlock);
        }
        self.poison.check(RwLockReadGuard::new(self)).map_err(TryLockError::Poisoned)
    }

    /// Locks for writing, waiting while a thread holds the lock.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Examples
    /// ```
    /// let words = tailwater::sync::RwLock::new(vec!["user"]);
    /// words.write().unwrap().push("threads");
    /// assert_eq!(words.read().unwrap().len(), 2);
    /// ```
    #[inline]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        if !self.word.try_enter(Access::Write) {
            self.enter_slowly(Access::Write);
        }
        self.poison.check(RwLockWriteGuard::new(self))
    }

    /// Locks for writing if no thread holds the lock or waits for it.
    ///
    /// # Errors
    /// `WouldBlock` if a thread does, `Poisoned` as [`read`](Self::read).
    ///
    /// # Examples
    /// ```
    /// let value = tailwater::sync::RwLock::new(1);
    /// let reader = value.read().unwrap();
    /// assert!(value.try_write().is_err());
    /// drop(reader);
    /// *value.try_write().unwrap() += 1;
    /// ```
    #[inline]
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        if !self.word.try_enter(Access::Write) {
            return Err(TryLockError::WouldBlock);
        }
        self.poison.check(RwLockWriteGuard::new(self)).map_err(TryLockError::Poisoned)
    }

    /// Returns whether a thread panicked while it held the lock for writing.
    pub fn is_poisoned(&self) -> bool {
        self.poison.is_set()
    }

    /// Clears the poisoning.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::RwLock;
    ///
    /// let value = RwLock::new(0);
    /// std::thread::scope(|s| {
    ///     let panics = s.spawn(|| {
    ///         let _guard = value.write().unwrap();
    ///         panic!("while it is locked");
    ///     });
    ///     assert!(panics.join().is_err());
    /// });
    /// assert!(value.is_poisoned());
    /// value.clear_poison();
    /// assert!(value.write().is_ok());
    /// ```
    pub fn clear_poison(&self) {
        self.poison.clear();
    }

    /// Returns the value mutably, without locking.
    ///
    /// # Errors
    /// If the lock is poisoned; the error holds the reference.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.poison.check(self.value.get_mut())
    }

    /// Returns a guard for a lock that the caller holds for reading without one, having given the
    /// guard to [`forget`](core::mem::forget). For interfaces that lock and unlock in two calls.
    ///
    /// # Safety
    /// The caller holds the lock for reading, and no other guard stands for that.
    ///
    /// # Examples
    /// ```
    /// let value = tailwater::sync::RwLock::new(1);
    /// std::mem::forget(value.read().unwrap());
    /// assert!(value.try_write().is_err());
    /// // SAFETY: it was locked above, and that guard is forgotten.
    /// drop(unsafe { value.make_read_guard_unchecked() });
    /// assert!(value.try_write().is_ok());
    /// ```
    #[inline]
    pub unsafe fn make_read_guard_unchecked(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard::new(self)
    }

    /// As [`make_read_guard_unchecked`](Self::make_read_guard_unchecked), for a lock that is held
    /// for writing.
    ///
    /// # Safety
    /// The caller holds the lock for writing, and no other guard stands for that.
    ///
    /// # Examples
    /// ```
    /// let value = tailwater::sync::RwLock::new(1);
    /// std::mem::forget(value.write().unwrap());
    /// assert!(value.try_read().is_err());
    /// // SAFETY: it was locked above, and that guard is forgotten.
    /// drop(unsafe { value.make_write_guard_unchecked() });
    /// assert!(value.try_read().is_ok());
    /// ```
    #[inline]
    pub unsafe fn make_write_guard_unchecked(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard::new(self)
    }

    #[cold]
    fn enter_slowly(&self, access: Access) {
        poll();
        let queue = self.queue.lock();
        if !self.word.enter_or_queue(access) {
            // The lock is ours when this returns: `hand_over` gave it.
            // SAFETY: the queue is all that the lock guards, and it stays there.
            unsafe { queue::wait_in(queue, |queue| queue, access, None) };
        }
    }

    #[inline]
    fn unlock_read(&self) {
        if self.word.leave_reading() {
            self.hand_over(0);
        }
    }

    #[inline]
    fn unlock_write(&self) {
        if self.word.leave_writing() {
            self.hand_over(0);
        }
    }

    fn downgrade(&self) {
        if self.word.downgrade() {
            self.hand_over(1);
        }
    }

    /// Gives the lock to the head of the queue, while `staying` readers (the caller, downgraded)
    /// keep holding it.
    #[cold]
    fn hand_over(&self, mut staying: u32) {
        // Another turn is needed only if this thread read on behalf of many readers and was the
        // last of them to leave.
        while self.admit(staying) {
            staying = 0;
        }
    }

    /// Admits the writer or all readers at the head of the queue. Returns true if the caller must
    /// do so again.
    fn admit(&self, staying: u32) -> bool {
        let mut queue = self.queue.lock();
        let readers = queue.count_front(ADMIT_BATCH, |&access| access == Access::Read);
        if readers == ADMIT_BATCH {
            return self.admit_many(queue, staying);
        }
        let (holders, leaving) = match readers as u32 + staying {
            0 => (Holders::Writer, 1),
            all => (Holders::Readers(all), readers),
        };
        self.word.give(holders, queue.len() > leaving);
        pop_admitted(&mut queue, leaving);
        false
    }

    /// Admits many readers in batches, between which it unlocks the queue and passes a poll point.
    /// Meanwhile the calling thread itself holds the lock for reading, so that no other thread
    /// hands it over.
    fn admit_many<'a>(&'a self, mut queue: SpinGuard<'a, Queue<Access>>, staying: u32) -> bool {
        let mut waiting = queue.len() - ADMIT_BATCH;
        self.word.give(Holders::Readers(ADMIT_BATCH as u32 + staying + 1), waiting > 0);
        pop_admitted(&mut queue, ADMIT_BATCH);
        // Ends with the threads that waited at the beginning, however many have arrived since.
        while waiting > 0 {
            drop(queue);
            poll();
            queue = self.queue.lock();
            let readers = queue.count_front(ADMIT_BATCH.min(waiting), |&access| access == Access::Read);
            if readers == 0 {
                break;
            }
            waiting -= readers;
            self.word.add_readers(readers as u32, queue.len() > readers);
            pop_admitted(&mut queue, readers);
        }
        drop(queue);
        self.word.leave_reading()
    }
}

/// Wakes the `count` threads at the head of the queue, which hold the lock already.
fn pop_admitted(queue: &mut Queue<Access>, count: usize) {
    for _ in 0..count {
        // Waits for this lock have no deadline, so every entry is still open.
        drop(queue.pop().expect("QUEUED is set and the entry linked under the same lock"));
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RwLock");
        match self.try_read() {
            Ok(guard) => out.field("data", &&*guard),
            Err(TryLockError::Poisoned(e)) => out.field("data", &&**e.get_ref()),
            Err(TryLockError::WouldBlock) => out.field("data", &format_args!("<locked>")),
        };
        out.field("poisoned", &self.is_poisoned()).finish_non_exhaustive()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests;
