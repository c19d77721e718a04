//! Waking many threads: very many waiters, waits that time out meanwhile, and threads that arrive
//! too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailwater::internals::{self, SpinLock, WaitList, WaitOutcome};
use tailwater::sync::{Condvar, Event, Mutex, channel};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, Storm, own_process};

#[test]
fn waking_everybody() {
    own_process(|| {
        // One kthread: a running thread keeps all others from running.
        let quantum = Duration::from_micros(50);
        let _storm = Storm::start(quantum);
        let run = tailwater::RuntimeBuilder::new().kthreads(1).quantum(quantum).run(|| {
            a_thread_that_wakes_very_many_can_be_interrupted();
            each_wait_ends_by_the_wake_or_by_its_timeout();
            a_thread_that_waits_again_is_not_woken_twice();
            closing_a_channel_ends_all_calls();
        });
        run.unwrap();
    });
}

/// Starts threads that announce themselves and do `main`; returns when all have.
fn waiters(count: u64, main: impl Fn() + Clone + Send + 'static) -> Vec<thread::JoinHandle<()>> {
    let begun = Arc::new(AtomicU64::new(0));
    let start = |_| {
        let (begun, main) = (Arc::clone(&begun), main.clone());
        thread::spawn(move || {
            begun.fetch_add(1, Ordering::Relaxed);
            main();
        })
    };
    let threads = (0..count).map(start).collect();
    yield_until("all have begun", || begun.load(Ordering::Relaxed) == count);
    threads
}

/// Lets other user threads run until `condition` holds.
fn yield_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        thread::yield_now();
    }
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn a_thread_that_wakes_very_many_can_be_interrupted() {
    let start = Instant::now();
    loop {
        let (event, passed) = (Arc::new(Event::new()), Arc::new(AtomicU64::new(0)));
        let threads = waiters(20_000, {
            let (event, passed) = (Arc::clone(&event), Arc::clone(&passed));
            move || {
                event.wait();
                passed.fetch_add(1, Ordering::Relaxed);
            }
        });
        event.set();
        let passed_meanwhile = passed.load(Ordering::Relaxed);
        join(threads);
        assert_eq!(passed.load(Ordering::Relaxed), 20_000);
        if passed_meanwhile > 0 {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no thread has ever run while the wake was in progress");
    }
}

fn each_wait_ends_by_the_wake_or_by_its_timeout() {
    let mut by_timeout = 0;
    let start = Instant::now();
    // Until both kinds have occurred often enough.
    while by_timeout < 500 {
        assert!(start.elapsed() < PATIENCE, "no wait times out");
        let gate = Arc::new(SpinLock::new(WaitList::new()));
        let woken = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2000u64)
            .map(|i| {
                let (gate, woken) = (Arc::clone(&gate), Arc::clone(&woken));
                thread::spawn(move || {
                    // Every second wait has a timeout at about the time of the wake.
                    let timeout = Duration::from_nanos(100_000 + i * 37 % 800_000);
                    let deadline = (i % 2 == 0).then(|| Instant::now() + timeout);
                    // SAFETY: the list is all that the lock guards, and it stays there.
                    let outcome = unsafe { internals::wait(gate.lock(), |list| list, deadline) };
                    if outcome == WaitOutcome::Woken {
                        woken.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut told = 0;
        // Waits without a deadline must be woken.
        while threads.iter().any(|thread| !thread.is_finished()) {
            told += internals::wake_all(gate.lock(), |list| list);
            thread::sleep(Duration::from_micros(300));
        }
        join(threads);
        assert_eq!(told as u64, woken.load(Ordering::Relaxed), "a wake was lost or counted twice");
        assert!(gate.lock().is_empty());
        by_timeout += 2000 - told;
    }
}

fn a_thread_that_waits_again_is_not_woken_twice() {
    // Number of threads that have begun to wait, and number of wakes.
    let shared = Arc::new((Mutex::new((0u64, 0u64)), Condvar::new()));
    let threads = waiters(1000, {
        let shared = Arc::clone(&shared);
        move || {
            let mut state = shared.0.lock().unwrap();
            state.0 += 1;
            for _ in 0..3 {
                state = shared.1.wait(state).unwrap();
                state.1 += 1;
            }
        }
    });
    // A thread unlocks only by waiting.
    yield_until("all wait", || shared.0.lock().unwrap().0 == 1000);
    for round in 1..=3 {
        shared.1.notify_all();
        yield_until("all are woken", || shared.0.lock().unwrap().1 >= round * 1000);
        assert_eq!(shared.0.lock().unwrap().1, round * 1000, "a thread was woken twice");
    }
    join(threads);
}

fn closing_a_channel_ends_all_calls() {
    let (sender, receiver) = channel::bounded::<u64>(1);
    let ended = Arc::new(AtomicU64::new(0));
    let threads = waiters(1000, {
        let ended = Arc::clone(&ended);
        move || {
            receiver.recv().unwrap_err();
            ended.fetch_add(1, Ordering::Relaxed);
        }
    });
    drop(sender);
    join(threads);
    assert_eq!(ended.load(Ordering::Relaxed), 1000);
}
