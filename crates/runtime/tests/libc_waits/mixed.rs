//! User threads and ordinary threads that wait for the same words.

use crate::{Case, run_adopted};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use tailwater::thread;

pub const CASES: &[Case] = &[
    ("user_threads_and_ordinary_ones_pass_a_turn", turns),
    ("ordinary_threads_wake_background_threads", background),
    ("a_wake_with_preemption_off_reaches_user_threads", no_preempt),
    ("neither_kind_of_waiter_starves", fairness),
    ("the_heap_of_c_is_shared_with_ordinary_threads", heap),
];

fn turns() {
    const ROUNDS: usize = 500;
    run_adopted(1, || {
        let state = Arc::new((Mutex::new(0usize), Condvar::new()));
        let take_turns = |state: Arc<(Mutex<usize>, Condvar)>, me: usize| {
            move || {
                let (turn, changed) = &*state;
                for _ in 0..ROUNDS {
                    let mut turn = turn.lock().unwrap();
                    while *turn % 4 != me {
                        turn = changed.wait(turn).unwrap();
                    }
                    *turn += 1;
                    changed.notify_all();
                }
            }
        };
        let users: Vec<_> =
            [0, 2].into_iter().map(|me| thread::spawn(take_turns(Arc::clone(&state), me))).collect();
        let ordinary: Vec<_> = tailwater::blocking(|| {
            [1, 3].into_iter().map(|me| std::thread::spawn(take_turns(Arc::clone(&state), me))).collect()
        });
        users.into_iter().for_each(|thread| thread.join().unwrap());
        ordinary.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*state.0.lock().unwrap(), 4 * ROUNDS);
    });
}

fn background() {
    run_adopted(1, || {
        let (sender, receiver) = mpsc::channel();
        let (answers, answered) = mpsc::channel();
        let builder = thread::Builder::new().class(thread::ThreadClass::Background);
        let waiter =
            builder.spawn(move || receiver.iter().for_each(|n: u32| answers.send(n + 1).unwrap())).unwrap();
        tailwater::blocking(move || {
            for n in 0..200 {
                sender.send(n).unwrap();
                assert_eq!(answered.recv().unwrap(), n + 1);
            }
        });
        waiter.join().unwrap();
    });
}

fn no_preempt() {
    run_adopted(1, || {
        let value = Arc::new((Mutex::new(0), Condvar::new()));
        for round in 1..=100 {
            let shared = Arc::clone(&value);
            let waiter = thread::spawn(move || {
                let (value, changed) = &*shared;
                drop(changed.wait_while(value.lock().unwrap(), |value| *value < round).unwrap());
            });
            // One kthread: it waits now.
            thread::yield_now();
            tailwater::no_preempt(|| {
                *value.0.lock().unwrap() = round;
                value.1.notify_all();
            });
            waiter.join().unwrap();
        }
    });
}

fn fairness() {
    run_adopted(1, || {
        let lock = Arc::new(Mutex::new([0u32; 2]));
        let enough = |counts: &[u32; 2]| counts.iter().all(|&count| count >= 200);
        let work = move |lock: Arc<Mutex<[u32; 2]>>, kind: usize, give_way: fn()| {
            move || loop {
                let mut counts = lock.lock().unwrap();
                counts[kind] += 1;
                if enough(&counts) {
                    return;
                }
                give_way();
            }
        };
        let users: Vec<_> =
            (0..3).map(|_| thread::spawn(work(Arc::clone(&lock), 0, thread::yield_now))).collect();
        let ordinary: Vec<_> = tailwater::blocking(|| {
            (0..3).map(|_| std::thread::spawn(work(Arc::clone(&lock), 1, std::thread::yield_now))).collect()
        });
        users.into_iter().for_each(|thread| thread.join().unwrap());
        ordinary.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

fn heap() {
    /// Too large for glibc's caches of blocks, so that the heap's lock is taken.
    const LARGE: usize = 3_000;
    // SAFETY: a setting of the heap, and blocks of its own.
    unsafe {
        assert_eq!(libc::mallopt(libc::M_ARENA_MAX, 1), 1);
    }
    let churn = || {
        for n in 0..20_000 {
            // SAFETY: as above.
            unsafe {
                let block = libc::malloc(LARGE + n % 7 * 64).cast::<u8>();
                assert!(!block.is_null());
                block.write(1);
                libc::free(block.cast());
            }
            if n % 64 == 0 {
                tailwater::poll();
            }
        }
    };
    run_adopted(2, move || {
        let users: Vec<_> = (0..4).map(|_| thread::spawn(churn)).collect();
        let ordinary: Vec<_> = tailwater::blocking(|| (0..2).map(|_| std::thread::spawn(churn)).collect());
        users.into_iter().for_each(|thread| thread.join().unwrap());
        ordinary.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
