//! `std` on one kthread: a wait in the kernel would stop the program.

use crate::{Case, run_adopted};
use std::cell::Cell;
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, RwLock, mpsc};
use std::time::{Duration, Instant};
use tailwater::thread;

pub const CASES: &[Case] = &[
    ("a_contended_mutex_gives_the_core_away", contended_mutex),
    ("threads_pass_a_turn_by_mutex_and_condvar", turns),
    ("readers_and_writers_wait_for_each_other", rwlock),
    ("a_channel_of_std_hands_messages_over", channel),
    ("a_barrier_of_std_gathers_threads", barrier),
    ("a_lazy_value_is_made_once_while_others_wait", lazy),
    ("a_thread_parks_until_it_is_unparked", park),
    ("waits_time_out_and_not_early", timeouts),
    ("joining_an_ordinary_thread_does_not_hold_the_core", join),
];

fn spawn_all(count: usize, body: impl Fn(usize) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let threads: Vec<_> = (0..count)
        .map(|n| {
            let body = Arc::clone(&body);
            thread::spawn(move || body(n))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn contended_mutex() {
    let sum = run_adopted(1, || {
        let value = Arc::new(Mutex::new(0));
        let shared = Arc::clone(&value);
        spawn_all(4, move |_| {
            for _ in 0..100 {
                let mut value = shared.lock().unwrap();
                // The others find the lock held.
                thread::yield_now();
                *value += 1;
            }
        });
        *value.lock().unwrap()
    });
    assert_eq!(sum, 400);
}

fn turns() {
    const THREADS: usize = 4;
    run_adopted(1, || {
        let state = (Mutex::new(0), Condvar::new());
        let rounds = 1_000;
        spawn_all(THREADS, move |me| {
            let (turn, changed) = &state;
            for _ in 0..rounds {
                let mut turn = turn.lock().unwrap();
                while *turn % THREADS != me {
                    turn = changed.wait(turn).unwrap();
                }
                *turn += 1;
                changed.notify_all();
            }
        });
    });
}

fn rwlock() {
    let value = run_adopted(1, || {
        let value = Arc::new(RwLock::new((0, 0)));
        let shared = Arc::clone(&value);
        spawn_all(6, move |n| {
            for _ in 0..200 {
                if n % 3 == 0 {
                    let mut pair = shared.write().unwrap();
                    pair.0 += 1;
                    thread::yield_now();
                    pair.1 += 1;
                } else {
                    let pair = shared.read().unwrap();
                    thread::yield_now();
                    assert_eq!(pair.0, pair.1);
                }
            }
        });
        *value.read().unwrap()
    });
    assert_eq!(value, (400, 400));
}

fn channel() {
    let sum = run_adopted(1, || {
        let (sender, receiver) = mpsc::sync_channel(2);
        for n in 0..4u64 {
            let sender = sender.clone();
            thread::spawn(move || (0..250).for_each(|i| sender.send(4 * i + n).unwrap()));
        }
        drop(sender);
        receiver.iter().sum::<u64>()
    });
    assert_eq!(sum, (0..1_000).sum::<u64>());
}

fn barrier() {
    run_adopted(1, || {
        let barrier = Barrier::new(8);
        spawn_all(8, move |_| {
            for _ in 0..50 {
                barrier.wait();
            }
        });
    });
}

fn lazy() {
    static MADE: Mutex<u32> = Mutex::new(0);
    static VALUE: LazyLock<u32> = LazyLock::new(|| {
        for _ in 0..10 {
            thread::yield_now();
        }
        *MADE.lock().unwrap() += 1;
        7
    });
    run_adopted(1, || spawn_all(8, |_| assert_eq!(*VALUE, 7)));
    assert_eq!(*MADE.lock().unwrap(), 1);
}

fn park() {
    run_adopted(1, || {
        let (handles, parked) = mpsc::channel();
        let sleeper = thread::spawn(move || {
            handles.send(std::thread::current()).unwrap();
            std::thread::park();
        });
        // `send` has queued this thread; the other one parks before it runs.
        let handle: std::thread::Thread = parked.recv().unwrap();
        thread::yield_now();
        handle.unpark();
        sleeper.join().unwrap();
    });
}

fn timeouts() {
    const TIME: Duration = Duration::from_millis(20);
    thread_local!(static MARK: Cell<usize> = const { Cell::new(0) });
    run_adopted(1, || {
        spawn_all(20, |n| {
            MARK.set(n);
            let (lock, condvar) = (Mutex::new(()), Condvar::new());
            let start = Instant::now();
            let (_guard, result) = condvar.wait_timeout_while(lock.lock().unwrap(), TIME, |()| true).unwrap();
            assert!(result.timed_out() && start.elapsed() >= TIME, "{:?}", start.elapsed());
            let start = Instant::now();
            let (_sender, receiver) = mpsc::channel::<()>();
            assert_eq!(receiver.recv_timeout(TIME), Err(mpsc::RecvTimeoutError::Timeout));
            assert!(start.elapsed() >= TIME, "{:?}", start.elapsed());
            assert_eq!(MARK.get(), n);
        });
    });
}

fn join() {
    run_adopted(1, || {
        let (sender, receiver) = mpsc::channel();
        let ordinary = tailwater::blocking(|| std::thread::spawn(move || receiver.recv().unwrap()));
        // Runs while this one waits for the ordinary thread, on the only kthread.
        thread::spawn(move || sender.send(5).unwrap());
        assert_eq!(ordinary.join().unwrap(), 5);
    });
}
