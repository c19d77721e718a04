//! The order in which permits are granted, made deterministic by waiting until each thread is in
//! the queue before the next one is started.

use super::*;
use crate::sync::Mutex;
use crate::sync::test_support::until;
use std::thread::JoinHandle;

/// Starts a thread that takes `permits`, logs the number and keeps them; returns when it is queued.
fn queue_up(semaphore: &Arc<Semaphore>, log: &Arc<Mutex<Vec<usize>>>, permits: usize) -> JoinHandle<()> {
    let before = semaphore.state.lock().queue.len();
    let thread = {
        let (semaphore, log) = (Arc::clone(semaphore), Arc::clone(log));
        std::thread::spawn(move || {
            let permit = semaphore.acquire_many(permits);
            log.lock().unwrap().push(permit.permits());
            permit.forget();
        })
    };
    until(|| semaphore.state.lock().queue.len() == before + 1);
    thread
}

#[test]
fn small_requests_do_not_overtake_a_large_one() {
    let (semaphore, log) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::default()));
    let threads = [5, 1, 2].map(|permits| queue_up(&semaphore, &log, permits));
    semaphore.add_permits(4);
    assert_eq!(semaphore.available_permits(), 4, "permits are collected for the head of the queue");
    assert!(semaphore.try_acquire().is_none(), "a newcomer overtook the queue");
    semaphore.add_permits(1);
    until(|| log.lock().unwrap().len() == 1);
    semaphore.add_permits(1);
    until(|| log.lock().unwrap().len() == 2);
    semaphore.add_permits(2);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*log.lock().unwrap(), [5, 1, 2]);
    assert_eq!(semaphore.available_permits(), 0);
}

#[test]
fn a_large_request_that_gives_up_lets_those_behind_it_pass() {
    let (semaphore, log) = (Arc::new(Semaphore::new(1)), Arc::new(Mutex::new(Vec::new())));
    let large = {
        let semaphore = Arc::clone(&semaphore);
        std::thread::spawn(move || semaphore.acquire_many_timeout(2, Duration::from_millis(200)).is_none())
    };
    // The small one is queued behind it, unless this machine stalls for 200 ms; then it gets the
    // permit at once, which is right, too.
    until(|| large.is_finished() || semaphore.state.lock().queue.len() == 1);
    let small = {
        let (semaphore, log) = (Arc::clone(&semaphore), Arc::clone(&log));
        std::thread::spawn(move || {
            semaphore.acquire().forget();
            log.lock().unwrap().push(1);
        })
    };
    assert!(large.join().unwrap());
    small.join().unwrap();
    assert_eq!(*log.lock().unwrap(), [1]);
    assert!(semaphore.state.lock().queue.is_empty());
}
