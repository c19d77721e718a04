//! Time slices: threads that never poll take turns, and no preemption happens if no thread waits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::{debug, thread, time};
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn a_quantum_shares_a_kthread_among_threads_that_never_poll() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .quantum(Duration::from_micros(200))
            .run(|| {
                threads_that_wait_for_each_other_without_polling_all_get_on();
                a_timer_fires_behind_a_thread_that_never_polls();
                a_poll_point_ends_the_turn_as_well();
                a_spin_lock_holder_keeps_its_turn_and_loses_it_afterwards();
            })
            .unwrap();
    });
}

fn spin_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "a thread that waited for its turn got none");
        std::hint::spin_loop();
    }
}

fn threads_that_wait_for_each_other_without_polling_all_get_on() {
    const THREADS: usize = 4;
    const LAPS: usize = 20;
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let before = debug::counters();
    thread::scope(|s| {
        for me in 0..THREADS {
            s.spawn(move || {
                for _ in 0..LAPS {
                    spin_until(|| TURN.load(Ordering::Relaxed) % THREADS == me);
                    TURN.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(TURN.load(Ordering::Relaxed), THREADS * LAPS);
    assert!(debug::counters().preemptions > before.preemptions);
}

fn a_timer_fires_behind_a_thread_that_never_polls() {
    static FIRED: AtomicBool = AtomicBool::new(false);
    let sleeper = thread::spawn(|| {
        time::sleep(Duration::from_millis(1));
        FIRED.store(true, Ordering::Relaxed);
    });
    // Lets the sleeper fall asleep: from then on only its timer waits for this kthread.
    thread::yield_now();
    spin_until(|| FIRED.load(Ordering::Relaxed));
    sleeper.join().unwrap();
}

fn a_poll_point_ends_the_turn_as_well() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let other = thread::spawn(|| DONE.store(true, Ordering::Relaxed));
    spin_until(|| {
        tailwater::poll();
        DONE.load(Ordering::Relaxed)
    });
    other.join().unwrap();
}

fn a_spin_lock_holder_keeps_its_turn_and_loses_it_afterwards() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let lock = tailwater::internals::SpinLock::new(());
    let other = {
        let _held = lock.lock();
        let other = thread::spawn(|| DONE.store(true, Ordering::Relaxed));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            assert!(!DONE.load(Ordering::Relaxed), "preempted under a spin lock");
        }
        other
    };
    spin_until(|| DONE.load(Ordering::Relaxed));
    other.join().unwrap();
}
