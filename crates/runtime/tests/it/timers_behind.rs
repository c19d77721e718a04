//! Timers behind threads that compute without poll points, in a standalone runtime, beside kthreads
//! that sleep. One runtime per process, so one test function runs all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tailwater::thread::{self, JoinHandle};
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn a_timer_is_on_time_behind_threads_that_compute_for_as_long_as_one_kthread_does_not() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .run(|| {
                for round in 0..200 {
                    // Both ways: the computing threads begin at once, and while the others sleep.
                    let pause = Duration::from_micros(round % 4 * 300);
                    one_round(1 + round as usize % 2, pause);
                }
            })
            .unwrap();
    });
}

/// Has so many threads compute until the caller ends them, after a sleep.
fn one_round(hogs: usize, pause: Duration) {
    let (ended, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    thread::sleep(pause);
    let threads: Vec<JoinHandle<()>> = (0..hogs)
        .map(|_| {
            let (ended, begun) = (Arc::clone(&ended), Arc::clone(&begun));
            thread::spawn(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                let deadline = Instant::now() + PATIENCE;
                while !ended.load(Ordering::Acquire) {
                    assert!(Instant::now() < deadline, "the timer of the other thread never fires");
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(1));
    ended.store(true, Ordering::Release);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(begun.load(Ordering::Relaxed), hogs);
}
