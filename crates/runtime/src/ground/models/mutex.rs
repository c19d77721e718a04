//! The mutex's word.
//!
//! Loom has no `membarrier(2)`. [`Barriers`] is what its manual page and the kernel's source state
//! of it, as a protocol of atomics: a thread that runs passes a full fence at a point of its own
//! choice, which is any of those that the model marks with [`Barriers::pass`], before the request
//! returns; a thread that is blocked, has ended or is in such a call itself has passed one when it
//! left. The model does not show that the kernel does so, nor that the compiler leaves the store
//! and the load of an unlocking in order (`Word::unlock` has a fence for it).

use super::Waiter;
use crate::ground::words::mutex::{Unlocked, Word};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Mutex, Notify};
use loom::thread;
use std::collections::VecDeque;
use std::sync::Arc;

/// Threads of a model.
const THREADS: usize = 3;

/// One thread's part in the barriers.
struct Side {
    /// Number of barriers requested of it.
    requested: AtomicUsize,
    /// The number at its last fence.
    passed: AtomicUsize,
    /// True while it does not run.
    away: AtomicBool,
    /// Woken when another thread has passed one or left.
    notify: Notify,
}

struct Barriers([Side; THREADS]);

impl Barriers {
    /// Threads from `present` on never run.
    fn new(present: usize) -> Self {
        Self(std::array::from_fn(|me| Side {
            requested: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            away: AtomicBool::new(me >= present),
            notify: Notify::new(),
        }))
    }

    /// A point at which an interrupt may arrive.
    fn pass(&self, me: usize) {
        let side = &self.0[me];
        // Relaxed: without a request, nothing is ordered here.
        let requested = side.requested.load(Ordering::Relaxed);
        // Relaxed: this thread's own.
        if requested != side.passed.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            side.passed.store(requested, Ordering::Release);
            self.notify_all();
        }
    }

    fn notify_all(&self) {
        self.0.iter().for_each(|side| side.notify.notify());
    }

    fn leave(&self, me: usize) {
        fence(Ordering::SeqCst);
        self.0[me].away.store(true, Ordering::Release);
        self.notify_all();
    }

    fn come_back(&self, me: usize) {
        self.0[me].away.store(false, Ordering::Relaxed);
        // Pairs with the fence of `leave` in `everywhere`: the caller is seen, or sees what was
        // written before.
        fence(Ordering::SeqCst);
    }

    fn everywhere(&self, me: usize) {
        self.leave(me);
        for (_, side) in self.0.iter().enumerate().filter(|&(other, _)| other != me) {
            if side.away.load(Ordering::Acquire) {
                continue;
            }
            let request = side.requested.fetch_add(1, Ordering::AcqRel) + 1;
            while side.passed.load(Ordering::Acquire) < request && !side.away.load(Ordering::Acquire) {
                self.0[me].notify.wait();
            }
        }
        self.come_back(me);
    }
}

/// `Mutex`, with the steps of its `lock_slowly` and `unlock_slowly`. Loom watches the value: it
/// reports an access that is not ordered after another one, and a thread that waits for ever.
struct Lock {
    word: Word,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
    value: UnsafeCell<u32>,
    barriers: Barriers,
    /// False for a process in which the call is refused.
    plainly: bool,
    /// False for waiters that do not make other threads pass a barrier.
    orders: bool,
}

impl Lock {
    fn lock(&self, me: usize) {
        if self.word.try_lock() {
            return;
        }
        if self.word.announce() {
            if self.plainly && self.orders {
                self.barriers.everywhere(me);
            }
            self.word.settle();
        }
        let mut queue = self.queue.lock().unwrap();
        if self.word.lock_or_mark() {
            return;
        }
        let waiter = Arc::new(Waiter::new());
        queue.push_back(Arc::clone(&waiter));
        drop(queue);
        self.barriers.leave(me);
        waiter.wait();
        self.barriers.come_back(me);
    }

    fn unlock(&self, me: usize) {
        self.barriers.pass(me);
        let left = self.word.unlock(self.plainly, || self.barriers.pass(me));
        self.barriers.pass(me);
        if left == Unlocked::Free {
            return;
        }
        let mut queue = self.queue.lock().unwrap();
        if left == Unlocked::Unseen && (queue.is_empty() || !self.word.claim_or_mark()) {
            return;
        }
        match queue.pop_front() {
            None => self.word.free(),
            Some(waiter) => {
                if queue.is_empty() {
                    self.word.give_to_last();
                }
                waiter.wake();
            }
        }
    }

    fn increment(&self, me: usize) {
        self.lock(me);
        self.add_and_unlock(me);
    }

    /// As `increment`, if the mutex is free.
    fn try_increment(&self, me: usize) {
        if self.word.try_lock() {
            self.add_and_unlock(me);
        }
    }

    fn add_and_unlock(&self, me: usize) {
        // SAFETY: loom checks that no other thread is in here.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.unlock(me);
    }
}

/// How the lock of a model unlocks and waits.
#[derive(Clone, Copy)]
enum Way {
    /// By a plain store, and waiters make all threads pass a barrier.
    Plainly,
    /// By a plain store, without the barrier.
    PlainlyWithoutBarrier,
    /// By compare-and-swap.
    BySwap,
}

/// Runs the parts at once, each on a thread of its own but the first, which holds the lock when
/// they begin. Checks the number of increments.
fn model(way: Way, parts: &'static [fn(&Lock, usize)], increments: core::ops::RangeInclusive<u32>) {
    let mut builder = loom::model::Builder::new();
    // Every known bug of such words shows with two preemptions (CHESS, PLDI 2007).
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    builder.check(move || {
        let lock = Arc::new(Lock {
            word: Word::new(),
            queue: Mutex::new(VecDeque::new()),
            value: UnsafeCell::new(0),
            barriers: Barriers::new(parts.len()),
            plainly: !matches!(way, Way::BySwap),
            orders: matches!(way, Way::Plainly),
        });
        assert!(lock.word.try_lock());
        let part = |me: usize| {
            let lock = Arc::clone(&lock);
            move || {
                parts[me](&lock, me);
                lock.barriers.leave(me);
            }
        };
        let others: Vec<_> = (1..parts.len()).map(|me| thread::spawn(part(me))).collect();
        part(0)();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(lock.word.try_lock(), "the mutex is not free in the end");
        // SAFETY: as in `add_and_unlock`.
        let counted = lock.value.with(|value| unsafe { *value });
        assert!(increments.contains(&counted), "{counted}");
    });
}

fn add_twice(lock: &Lock, me: usize) {
    lock.add_and_unlock(me);
    lock.increment(me);
}

#[test]
fn a_plain_unlock_misses_no_waiter() {
    model(Way::Plainly, &[Lock::add_and_unlock, Lock::increment], 2..=2);
    model(Way::Plainly, &[add_twice, Lock::increment], 3..=3);
}

#[test]
fn a_mutex_that_another_thread_locks_after_a_plain_unlock_goes_to_the_waiter() {
    model(Way::Plainly, &[Lock::add_and_unlock, Lock::increment, Lock::try_increment], 2..=3);
}

#[test]
fn an_unlock_by_compare_and_swap_misses_no_waiter() {
    model(Way::BySwap, &[add_twice, Lock::increment], 3..=3);
    model(Way::BySwap, &[Lock::add_and_unlock, Lock::increment, Lock::increment], 3..=3);
}

/// Shows that the model needs the barrier.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_plain_unlock_misses_a_waiter() {
    model(Way::PlainlyWithoutBarrier, &[Lock::add_and_unlock, Lock::increment], 2..=2);
}
