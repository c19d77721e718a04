//! The lock-free algorithms of `tailwater::sync` under every interleaving loom can make:
//! `RUSTFLAGS="--cfg loom" cargo test -p tailwater --test loom_sync --release`.
//!
//! The words are those that ship; what is modelled is the thread that waits and the lock of the queue.
#![cfg(loom)]

#[path = "../src/thread/join_word.rs"]
mod join_word;
#[allow(dead_code, reason = "the models use part of it")]
#[path = "../src/mailbox.rs"]
mod mailbox;
#[path = "../src/sync/rcu/slot.rs"]
mod slot;
#[allow(dead_code, reason = "the models use part of it")]
#[path = "../src/sync/rwlock/word.rs"]
mod word;

use join_word::{Found, JoinWord};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Mutex, Notify};
use loom::thread;
use mailbox::{MIN_TOKEN, Mailbox};
use slot::Slot;
use std::collections::VecDeque;
use std::sync::Arc;
use word::{Access, Holders, Word};

/// A thread that waits until it is woken, once.
struct Waiter {
    woken: AtomicBool,
    notify: Notify,
}

impl Waiter {
    fn new() -> Self {
        Self { woken: AtomicBool::new(false), notify: Notify::new() }
    }

    fn wait(&self) {
        // loom's waits may end early.
        while !self.woken.load(Ordering::Acquire) {
            self.notify.wait();
        }
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.notify.notify();
    }
}

/// `RwLock`, with the steps of its `enter_slowly` and `hand_over`. The value is memory that loom watches: it reports an access
/// that another one does not happen before, and a thread that waits for ever.
struct Lock {
    word: Word,
    queue: Mutex<VecDeque<(Access, Arc<Waiter>)>>,
    value: UnsafeCell<u32>,
}

impl Lock {
    fn new() -> Self {
        Self { word: Word::new(), queue: Mutex::new(VecDeque::new()), value: UnsafeCell::new(0) }
    }

    fn enter(&self, access: Access) {
        if self.word.try_enter(access) {
            return;
        }
        let mut queue = self.queue.lock().unwrap();
        if !self.word.enter_or_queue(access) {
            let waiter = Arc::new(Waiter::new());
            queue.push_back((access, Arc::clone(&waiter)));
            drop(queue);
            waiter.wait();
        }
    }

    fn hand_over(&self, staying: u32) {
        let mut queue = self.queue.lock().unwrap();
        let readers = queue.iter().take_while(|(access, _)| *access == Access::Read).count();
        let (holders, leaving) = match readers as u32 + staying {
            0 => (Holders::Writer, 1),
            all => (Holders::Readers(all), readers),
        };
        self.word.give(holders, queue.len() > leaving);
        for (_, waiter) in queue.drain(..leaving) {
            waiter.wake();
        }
    }

    fn read(&self) -> u32 {
        self.enter(Access::Read);
        // SAFETY: that no writer is in here is what loom checks.
        let value = self.value.with(|value| unsafe { *value });
        if self.word.leave_reading() {
            self.hand_over(0);
        }
        value
    }

    fn increment(&self) {
        self.enter(Access::Write);
        // SAFETY: that nobody else is in here is what loom checks.
        self.value.with_mut(|value| unsafe { *value += 1 });
        if self.word.leave_writing() {
            self.hand_over(0);
        }
    }

    fn increment_and_read(&self) {
        self.enter(Access::Write);
        // SAFETY: as in `increment`.
        let written = self.value.with_mut(|value| unsafe {
            *value += 1;
            *value
        });
        if self.word.downgrade() {
            self.hand_over(1);
        }
        // SAFETY: as in `read`.
        assert_eq!(self.value.with(|value| unsafe { *value }), written, "a writer came in between");
        if self.word.leave_reading() {
            self.hand_over(0);
        }
    }
}

/// Runs the three at once, two of them on threads of their own, and checks what is left.
fn model(parts: [fn(&Lock); 3], increments: u32) {
    let mut builder = loom::model::Builder::new();
    // Every known bug of such words shows with two preemptions (CHESS, PLDI 2007); three is a margin.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let lock = Arc::new(Lock::new());
        let [first, second, third] = parts;
        let others = [first, second].map(|part| {
            let lock = Arc::clone(&lock);
            thread::spawn(move || part(&lock))
        });
        third(&lock);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(lock.read(), increments);
        assert!(lock.word.try_enter(Access::Write), "the lock is not free in the end");
    });
}

fn read(lock: &Lock) {
    lock.read();
}

#[test]
fn writers_exclude_one_another_and_nobody_waits_for_ever() {
    model([Lock::increment, Lock::increment, Lock::increment], 3);
}

#[test]
fn readers_and_writers_exclude_one_another() {
    model([read, Lock::increment, read], 1);
    model([Lock::increment, read, Lock::increment], 2);
}

#[test]
fn a_downgraded_writer_keeps_writers_out() {
    model([Lock::increment_and_read, read, Lock::increment], 2);
}

/// `Rcu` with two values and one kthread that reads. Loom has no `membarrier`: both sides fence, as where the kernel lacks it.
struct Cell {
    values: [UnsafeCell<u32>; 2],
    current: AtomicUsize,
    slot: Slot,
}

impl Cell {
    fn new() -> Arc<Self> {
        let values = [UnsafeCell::new(1), UnsafeCell::new(0)];
        Arc::new(Self { values, current: AtomicUsize::new(0), slot: Slot::default() })
    }

    fn read(&self) -> u32 {
        self.slot.enter(|| fence(Ordering::SeqCst));
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: that the writer has not taken the value back is what loom checks.
        let value = self.values[current].with(|value| unsafe { *value });
        self.slot.leave();
        value
    }

    /// Makes the second value current, waits for readers, and takes the first one back.
    fn replace(&self) {
        // SAFETY: that nobody reads the new value yet is what loom checks.
        self.values[1].with_mut(|value| unsafe { *value = 2 });
        self.current.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let seen = self.slot.look();
        while !seen.is_over(self.slot.look()) {
            thread::yield_now();
        }
        // SAFETY: that nobody reads the old value any more is what loom checks.
        self.values[0].with_mut(|value| unsafe { *value = 0 });
    }
}

#[test]
fn a_replaced_value_is_not_taken_back_while_it_is_read() {
    loom::model(|| {
        let cell = Cell::new();
        let reader = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                let (first, second) = (cell.read(), cell.read());
                assert!(matches!((first, second), (1 | 2, 2) | (1, 1)), "{first} then {second}");
            })
        };
        cell.replace();
        reader.join().unwrap();
        assert!(!cell.slot.look().is_reading());
    });
}

#[test]
fn sections_nest() {
    loom::model(|| {
        let cell = Cell::new();
        let reader = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                cell.slot.enter(|| fence(Ordering::SeqCst));
                let current = cell.current.load(Ordering::Acquire);
                let inner = cell.read();
                // SAFETY: as in `Cell::read`; the inner section's end must not count as the outer one's.
                let outer = cell.values[current].with(|value| unsafe { *value });
                cell.slot.leave();
                assert!(matches!((outer, inner), (1, 1 | 2) | (2, 2)));
            })
        };
        cell.replace();
        reader.join().unwrap();
    });
}

/// A thread's end and its handle. The result is memory that loom watches; so is the freeing of what both share.
struct Joined {
    word: JoinWord,
    result: UnsafeCell<u32>,
    freed: UnsafeCell<bool>,
    waiter: Waiter,
}

impl Joined {
    fn new() -> Arc<Self> {
        let (result, freed) = (UnsafeCell::new(0), UnsafeCell::new(false));
        Arc::new(Self { word: JoinWord::new(), result, freed, waiter: Waiter::new() })
    }

    /// The thread that ends.
    fn start(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let joined = Arc::clone(self);
        thread::spawn(move || joined.end())
    }

    fn free(&self) {
        // SAFETY: that nobody else is in here is what loom checks.
        self.freed.with_mut(|freed| unsafe {
            assert!(!*freed, "freed twice");
            *freed = true;
        });
    }

    /// `Completer::store` and `finish`.
    fn end(&self) {
        // SAFETY: as in `free`.
        self.result.with_mut(|result| unsafe { *result = 7 });
        match self.word.finish() {
            Found::Nobody => {}
            Found::Waiter(_) => self.waiter.wake(),
            Found::Abandoned => self.free(),
        }
    }

    /// `Joiner::join`, with the drop at its end.
    fn join(&self) {
        if !self.word.is_finished() && self.word.enlist(join_word::MIN_TOKEN) {
            self.waiter.wait();
        }
        // SAFETY: as in `free`.
        assert_eq!(self.result.with(|result| unsafe { *result }), 7);
        assert!(self.word.abandon(), "the thread has ended");
        self.free();
    }
}

#[test]
fn a_joined_thread_hands_over_its_result_and_the_packet_is_freed_once() {
    loom::model(|| {
        let joined = Joined::new();
        let thread = joined.start();
        joined.join();
        thread.join().unwrap();
    });
}

#[test]
fn a_detached_thread_s_packet_is_freed_once_by_the_last_to_let_go() {
    loom::model(|| {
        let joined = Joined::new();
        let thread = joined.start();
        if joined.word.abandon() {
            joined.free();
        }
        thread.join().unwrap();
        // SAFETY: as in `free`.
        assert!(joined.freed.with(|freed| unsafe { *freed }), "leaked");
    });
}

#[test]
fn what_is_offered_to_a_mailbox_arrives_once_or_stays_with_who_offered_it() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::new());
        let values = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let offering = [0, 1].map(|me| {
            let (mailbox, values) = (Arc::clone(&mailbox), Arc::clone(&values));
            thread::spawn(move || {
                // SAFETY: whether the owner reads before it was handed over is what loom checks.
                values[me].with_mut(|value| unsafe { *value = 7 });
                mailbox.offer(MIN_TOKEN + me as u64)
            })
        });
        let mut came = Vec::new();
        for _ in 0..2 {
            mailbox.open();
            if let Some(token) = mailbox.close() {
                let who = (token - MIN_TOKEN) as usize;
                // SAFETY: as above.
                assert_eq!(values[who].with(|value| unsafe { *value }), 7);
                came.push(who);
            }
        }
        assert_eq!(mailbox.peek(), None, "a closed mailbox holds nothing");
        let accepted: Vec<usize> = offering
            .into_iter()
            .enumerate()
            .filter_map(|(who, offer)| offer.join().unwrap().then_some(who))
            .collect();
        came.sort_unstable();
        assert_eq!(came, accepted);
    });
}
