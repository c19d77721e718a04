//! The reader-writer lock's word.

use super::Waiter;
use crate::ground::words::rwlock::{Access, Holders, Word};
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::thread;
use std::collections::VecDeque;
use std::sync::Arc;

/// `RwLock`, with the steps of its `enter_slowly` and `hand_over`. Loom watches the value: it
/// reports an access that is not ordered after another one, and a thread that waits for ever.
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
        // SAFETY: loom checks that no writer is in here.
        let value = self.value.with(|value| unsafe { *value });
        if self.word.leave_reading() {
            self.hand_over(0);
        }
        value
    }

    fn increment(&self) {
        self.enter(Access::Write);
        // SAFETY: loom checks that no other thread is in here.
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

/// Runs the three parts at once, two of them on threads of their own, and checks the outcome.
fn model(parts: [fn(&Lock); 3], increments: u32) {
    let mut builder = loom::model::Builder::new();
    // Every known bug of such words shows with two preemptions (CHESS, PLDI 2007); three is a
    // margin.
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
fn writers_exclude_one_another_and_none_waits_for_ever() {
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
