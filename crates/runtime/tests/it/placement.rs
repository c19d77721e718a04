//! Threads that are placed at their creation. One runtime per process, so one test function runs
//! all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailwater::thread::{self, Placement};
use tailwater_testkit::{PATIENCE, own_process};

const PLACEMENTS: [Placement; 8] = [
    Placement::Parent,
    Placement::LeastLoaded(0),
    Placement::LeastLoaded(2),
    Placement::LeastLoaded(usize::MAX),
    Placement::Core(0),
    Placement::Core(usize::MAX),
    Placement::Class(0),
    Placement::Class(255),
];
/// Threads that each creator makes in each way: more than a run queue holds.
const EACH: usize = 400;

#[test]
fn every_placed_thread_runs() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .run(|| {
                placed_threads_run_wherever_they_are_placed();
                tailwater::cores::set_placement(tailwater::cores::Pinned::new(3));
                placed_threads_run_wherever_they_are_placed();
                a_thread_placed_behind_a_stuck_one_is_stolen();
                ordinary_threads_place_as_usual();
            })
            .unwrap();
    });
}

fn wait_for(count: &AtomicUsize, expected: usize) {
    let deadline = Instant::now() + PATIENCE;
    while count.load(Ordering::Relaxed) < expected {
        let found = count.load(Ordering::Relaxed);
        assert!(Instant::now() < deadline, "{found} of {expected} threads have run");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Creates [`EACH`] threads in each way; each adds one to `count` once it has let others run.
fn create(count: &Arc<AtomicUsize>) {
    for placement in PLACEMENTS {
        for _ in 0..EACH {
            let count = Arc::clone(count);
            let body = move || {
                thread::yield_now();
                count.fetch_add(1, Ordering::Relaxed);
            };
            drop(thread::Builder::new().placement(placement).spawn(body).unwrap());
        }
    }
}

fn placed_threads_run_wherever_they_are_placed() {
    let count = Arc::new(AtomicUsize::new(0));
    let creator = || {
        let count = Arc::clone(&count);
        thread::spawn(move || create(&count))
    };
    let creators: Vec<_> = (0..4).map(|_| creator()).collect();
    creators.into_iter().for_each(|creator| creator.join().unwrap());
    wait_for(&count, 4 * EACH * PLACEMENTS.len());
}

fn a_thread_placed_behind_a_stuck_one_is_stolen() {
    static GATE: Mutex<()> = Mutex::new(());
    static STUCK: AtomicUsize = AtomicUsize::new(0);
    let closed = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let stuck = thread::spawn(|| {
        STUCK.store(1, Ordering::Relaxed);
        // Waits in the kernel: no other user thread runs on this kthread meanwhile.
        drop(GATE.lock());
    });
    wait_for(&STUCK, 1);
    let count = Arc::new(AtomicUsize::new(0));
    create(&count);
    wait_for(&count, EACH * PLACEMENTS.len());
    assert!(!stuck.is_finished(), "the gate was closed all the time");
    drop(closed);
    stuck.join().unwrap();
}

fn ordinary_threads_place_as_usual() {
    let count = Arc::new(AtomicUsize::new(0));
    let creator = std::thread::spawn({
        let count = Arc::clone(&count);
        move || create(&count)
    });
    wait_for(&count, EACH * PLACEMENTS.len());
    creator.join().unwrap();
}
