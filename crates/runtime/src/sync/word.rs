//! A word whose change threads, futures and pollers wait for: a futex in the program's own memory.
//!
//! A wake-up always takes the lock of the waiters, and a waiter reads the value under it before it
//! is linked. So either the waker finds the waiter, or the waiter's lock follows the waker's and it
//! reads the new value, whatever the ordering of the change itself: none is lost, and the value
//! needs no fence.

use crate::ground::spin::SpinLock;
use crate::records::runtime::deadline_after;
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitOutcome};
use crate::verbs::watch::{self, Waiters, Watchers};
use core::ops::Deref;
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tailwater_shm::Cycles;

/// An [`AtomicU32`] that can be waited for, as a word of `futex(2)`: for synchronisation types of
/// one's own, whose uncontended paths are single atomic operations.
///
/// A program changes the value by the methods of [`AtomicU32`] and then calls
/// [`wake_one`](Self::wake_one) or [`wake_all`](Self::wake_all). What a thread did before it
/// changed the value is visible to one that was woken if the change is a `Release` and the woken
/// thread loads the value by `Acquire`.
///
/// # Examples
/// ```
/// use std::sync::atomic::Ordering;
/// use tailwater::sync::Word;
///
/// let generation = Word::new(0);
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         generation.fetch_add(1, Ordering::Release);
///         generation.wake_all();
///     });
///     generation.wait_while(0);
/// });
/// assert_eq!(generation.load(Ordering::Acquire), 1);
/// ```
#[derive(Debug, Default)]
pub struct Word {
    value: AtomicU32,
    waiters: SpinLock<Waiters>,
}

impl UnwindSafe for Word {}
impl RefUnwindSafe for Word {}

impl Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.value
    }
}

impl Word {
    /// Returns a word with this value.
    ///
    /// # Examples
    /// ```
    /// static STATE: tailwater::sync::Word = tailwater::sync::Word::new(7);
    /// assert_eq!(STATE.load(std::sync::atomic::Ordering::Relaxed), 7);
    /// ```
    pub const fn new(value: u32) -> Self {
        Self { value: AtomicU32::new(value), waiters: SpinLock::new(Waiters::new()) }
    }

    /// Waits while the value is `value`. It is read at once and after each wake-up; a change
    /// without one may not be seen.
    pub fn wait_while(&self, value: u32) {
        self.wait_until(value, None);
    }

    /// As [`wait_while`](Self::wait_while), for at most `timeout`; false if the time passed first.
    ///
    /// # Examples
    /// ```
    /// let word = tailwater::sync::Word::new(7);
    /// assert!(word.wait_while_timeout(6, std::time::Duration::MAX));
    /// assert!(!word.wait_while_timeout(7, std::time::Duration::from_millis(1)));
    /// ```
    pub fn wait_while_timeout(&self, value: u32, timeout: Duration) -> bool {
        self.wait_until(value, Some(deadline_after(timeout)))
    }

    fn wait_until(&self, value: u32, deadline: Option<Cycles>) -> bool {
        poll();
        loop {
            let waiters = self.waiters.lock();
            if self.differs(value) {
                return true;
            }
            // SAFETY: `threads` always returns the same list, which stays behind the lock.
            if unsafe { wait::wait(waiters, Waiters::threads, deadline) } == WaitOutcome::TimedOut {
                return self.differs(value);
            }
        }
    }

    /// Returns whether the value is another one than `value`.
    fn differs(&self, value: u32) -> bool {
        // Relaxed: see the module documentation.
        self.value.load(Ordering::Relaxed) != value
    }

    /// Wakes the thread that has waited longest, and all futures and pollers that wait. Returns
    /// whether a thread waited.
    ///
    /// # Examples
    /// ```
    /// assert!(!tailwater::sync::Word::new(0).wake_one());
    /// ```
    pub fn wake_one(&self) -> bool {
        self.waiters.lock().wake_one()
    }

    /// Wakes all threads, futures and pollers that wait. Returns the number of threads.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(tailwater::sync::Word::new(0).wake_all(), 0);
    /// ```
    pub fn wake_all(&self) -> usize {
        let mut waiters = self.waiters.lock();
        let is_watched = !waiters.watchers().is_empty();
        let woken = wait::wake_all(waiters, Waiters::threads);
        if is_watched {
            watch::notify_all(self.waiters.lock(), Waiters::watchers);
        }
        woken
    }

    /// Returns a source for a [`Poller`](crate::readiness::Poller), readable while the value is another
    /// one than `value`. All sources of one word are one source to a poller.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::Ordering;
    /// use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
    /// use tailwater::sync::Word;
    ///
    /// let (poller, mut events) = (Poller::new(), Events::with_capacity(8));
    /// let word = Arc::new(Word::new(0));
    /// poller.register(&word.differs_from(0), Token(1), Interest::READABLE, Mode::Level).unwrap();
    /// word.store(1, Ordering::Release);
    /// word.wake_one();
    /// assert_eq!(poller.wait(&mut events, None), 1);
    /// ```
    pub fn differs_from(self: &Arc<Self>, value: u32) -> Differs {
        Differs { word: Arc::clone(self), value }
    }

    /// Returns whether the value is another one than `value`; if not, calls `arm` with the
    /// watchers, locked.
    pub(crate) fn differs_or(&self, value: u32, arm: impl FnOnce(&mut Watchers)) -> bool {
        let mut waiters = self.waiters.lock();
        let differs = self.differs(value);
        if !differs {
            arm(waiters.watchers());
        }
        differs
    }

    /// Calls `change` with the watchers, locked.
    pub(crate) fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        change(self.waiters.lock().watchers());
    }
}

/// The condition that a [`Word`] has another value than a given one, for a
/// [`Poller`](crate::readiness::Poller): see [`Word::differs_from`].
///
/// # Examples
/// ```
/// let word = std::sync::Arc::new(tailwater::sync::Word::new(0));
/// let _source: tailwater::sync::Differs = word.differs_from(0);
/// ```
#[derive(Debug, Clone)]
pub struct Differs {
    word: Arc<Word>,
    value: u32,
}

impl Differs {
    /// Returns the word.
    pub(crate) fn word(&self) -> &Arc<Word> {
        &self.word
    }

    /// Returns whether the condition holds.
    pub(crate) fn holds(&self) -> bool {
        // Its lock follows that of the waker by which the poller looks.
        self.word.differs_or(self.value, |_| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::{Events, Interest, Mode, Poller, Token};
    use std::cell::UnsafeCell;

    const FREE: u32 = 0;
    const HELD: u32 = 1;
    const CONTENDED: u32 = 2;

    /// A mutex of three states, whose uncontended paths are one exchange each.
    struct Lock {
        word: Word,
        count: UnsafeCell<u64>,
    }

    // SAFETY: `count` is used under the lock.
    unsafe impl Sync for Lock {}

    impl Lock {
        fn add(&self) {
            if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
                while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
                    self.word.wait_while(CONTENDED);
                }
            }
            // SAFETY: the lock is held.
            unsafe { *self.count.get() += 1 };
            if self.word.swap(FREE, Ordering::Release) == CONTENDED {
                self.word.wake_one();
            }
        }
    }

    #[test]
    fn a_mutex_made_of_a_word_loses_no_wake_up() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 5_000;
        let lock = Lock { word: Word::new(FREE), count: UnsafeCell::new(0) };
        std::thread::scope(|scope| {
            let add = || scope.spawn(|| (0..ROUNDS).for_each(|_| lock.add()));
            let threads: Vec<_> = (0..THREADS).map(|_| add()).collect();
            // The end of the scope is no synchronisation to ThreadSanitizer.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(lock.count.into_inner(), THREADS * ROUNDS);
    }

    #[test]
    fn a_future_and_a_poller_each_see_all_changes() {
        const ROUNDS: u32 = 2_000;
        let (word, seen) = (Arc::new(Word::new(0)), Arc::new(Word::new(0)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    crate::future::block_on(word.wait_while_async(round));
                    seen.fetch_add(1, Ordering::Release);
                    seen.wake_all();
                }
            });
            let (poller, mut events) = (Poller::new(), Events::with_capacity(1));
            for round in 0..ROUNDS {
                word.store(round + 1, Ordering::Release);
                word.wake_all();
                poller
                    .register(&seen.differs_from(round), Token(0), Interest::READABLE, Mode::Level)
                    .unwrap();
                assert_eq!(poller.wait(&mut events, None), 1);
                poller.deregister(&seen.differs_from(round)).unwrap();
            }
        });
        assert_eq!(seen.load(Ordering::Acquire), ROUNDS);
    }
}
