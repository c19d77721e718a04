//! The order in which the threads of a single kthread run, and the positions of their stacks. One
//! runtime per process, so one test function runs all.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::Mutex;
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

/// More than a run queue holds, so that some overflow.
const MANY: usize = 400;
/// Bytes of a page and of a cache line.
const PAGE: usize = 4096;
const LINE: usize = 64;

#[test]
fn threads_of_one_kthread_take_turns() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            // A turn in which Linux does not run the kthread is not cut short.
            .stall_timeout(Duration::ZERO)
            .run(|| {
                a_late_thread_runs_after_those_that_overflowed_the_run_queue();
                stacks_of_many_threads_share_no_set_of_a_cache();
                a_yielding_thread_lets_overflowed_threads_run();
                a_yielding_thread_lets_timers_fire();
                sleepers_wake_in_order_of_their_deadlines();
            })
            .unwrap();
    });
}

fn a_late_thread_runs_after_those_that_overflowed_the_run_queue() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |number: usize| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(number)
    };
    let late = note(MANY);
    let first = {
        let note = note(0);
        thread::spawn(move || {
            note();
            thread::spawn(late)
        })
    };
    let rest: Vec<_> = (1..MANY).map(|number| thread::spawn(note(number))).collect();
    first.join().unwrap().join().unwrap();
    rest.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(order.lock().unwrap().iter().copied().eq(0..=MANY), "{order:?}");
}

/// Returns the position of the caller's stack in its page, in cache lines.
#[inline(never)]
fn line_in_page() -> usize {
    let here = 0_u8;
    std::hint::black_box(&raw const here) as usize % PAGE / LINE
}

fn stacks_of_many_threads_share_no_set_of_a_cache() {
    let threads: Vec<_> = (0..MANY).map(|_| thread::spawn(line_in_page)).collect();
    let lines: HashSet<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(lines.len() > PAGE / LINE * 3 / 4, "only at {lines:?}");
}

/// Yields until `done` returns true, for [`PATIENCE`] at most.
fn yield_until(done: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if done() {
            return;
        }
        thread::yield_now();
    }
    panic!("{what}");
}

fn a_yielding_thread_lets_overflowed_threads_run() {
    const ROUNDS: usize = 100;
    let arrived = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..MANY)
        .map(|_| {
            let arrived = Arc::clone(&arrived);
            thread::spawn(move || {
                for round in 1..=ROUNDS {
                    arrived.fetch_add(1, Ordering::Relaxed);
                    let all_arrived = || arrived.load(Ordering::Relaxed) >= round * MANY;
                    yield_until(all_arrived, "threads that could run have not");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn a_yielding_thread_lets_timers_fire() {
    let woken = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&woken);
    let sleeper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(1));
        flag.store(true, Ordering::Relaxed);
    });
    yield_until(|| woken.load(Ordering::Relaxed), "a sleeper was not woken");
    sleeper.join().unwrap();
}

fn sleepers_wake_in_order_of_their_deadlines() {
    const TRIES: usize = 1_000;
    for _ in 0..TRIES {
        let (order, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let sleepers: Vec<_> = [30u64, 10, 20]
            .into_iter()
            .map(|ms| {
                let order = Arc::clone(&order);
                thread::spawn(move || {
                    tailwater::time::sleep_until(start + Duration::from_millis(ms));
                    order.lock().unwrap().push(ms);
                })
            })
            .collect();
        // All three sleep afterwards, unless the machine stands still for 10 ms meanwhile.
        thread::yield_now();
        let all_slept = start.elapsed() < Duration::from_millis(10);
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        if all_slept {
            assert_eq!(*order.lock().unwrap(), [10, 20, 30]);
            return;
        }
    }
    panic!("three threads did not begin to sleep within 10 ms, {TRIES} times");
}
