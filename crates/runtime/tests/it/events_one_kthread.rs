//! Event loops that never wait, on the only kthread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::events::{Batch, EventLoop};
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn loops_that_never_wait_let_other_threads_run() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .run(|| {
                polls_with_a_time_of_zero_let_other_threads_run();
                rounds_without_a_pause_let_other_threads_run_by_time();
            })
            .unwrap();
    });
}

fn polls_with_a_time_of_zero_let_other_threads_run() {
    let has_run = Arc::new(AtomicBool::new(false));
    let copy = Arc::clone(&has_run);
    let other = tailwater::thread::spawn(move || copy.store(true, Relaxed));
    let (mut events, mut batch, start) = (EventLoop::new(), Batch::new(), Instant::now());
    while !has_run.load(Relaxed) {
        assert_eq!(events.poll(&mut batch, Some(Duration::ZERO)), 0);
        assert!(start.elapsed() < PATIENCE, "the other thread never runs");
    }
    other.join().unwrap();
}

fn rounds_without_a_pause_let_other_threads_run_by_time() {
    const ROUNDS: u32 = 20;
    let (runs, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, over) = (Arc::clone(&runs), Arc::clone(&ends));
    let other = tailwater::thread::spawn(move || {
        while !over.load(Relaxed) {
            counted.fetch_add(1, Relaxed);
            tailwater::thread::yield_now();
        }
    });
    let (mut events, mut batch) = (EventLoop::new(), Batch::new());
    let waker = events.waker();
    for _ in 0..ROUNDS {
        waker.wake();
        assert_eq!(events.poll(&mut batch, None), 1);
        let began = Instant::now();
        // Longer than a loop's turn.
        while began.elapsed() < Duration::from_micros(200) {}
    }
    let runs = runs.load(Relaxed);
    ends.store(true, Relaxed);
    other.join().unwrap();
    assert!(runs >= ROUNDS - 1, "the other thread ran {runs} times in {ROUNDS} rounds");
}
