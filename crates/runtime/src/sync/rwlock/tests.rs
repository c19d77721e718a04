//! The order of admission, made deterministic by waiting until each thread is in the queue before
//! the next one is started.

use super::*;
use crate::sync::test_support::until;
use crate::sync::{Barrier, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts threads that queue one after the other for `lock` and log themselves when they are
/// admitted; those of one group of readers meet inside, which they can only if they are admitted
/// together.
fn queue_up(
    lock: &Arc<RwLock<()>>,
    log: &Arc<Mutex<Vec<&'static str>>>,
    names: &[&'static str],
) -> Vec<JoinHandle<()>> {
    let pairs = Arc::new(Barrier::new(2));
    let before = lock.queue.lock().len();
    let start = |(i, &name): (usize, &&'static str)| {
        let (lock, log, pairs) = (Arc::clone(lock), Arc::clone(log), Arc::clone(&pairs));
        let queue = Arc::clone(&lock);
        let thread = std::thread::spawn(move || {
            if name.starts_with('r') {
                let _guard = lock.read().unwrap();
                log.lock().unwrap().push(name);
                pairs.wait();
            } else {
                let _guard = lock.write().unwrap();
                log.lock().unwrap().push(name);
            }
        });
        until(|| queue.queue.lock().len() == before + i + 1);
        thread
    };
    names.iter().enumerate().map(start).collect()
}

#[test]
fn readers_and_writers_are_served_in_the_order_they_came() {
    let (lock, log) = (Arc::new(RwLock::new(())), Arc::default());
    let guard = lock.write().unwrap();
    // Pairs of readers meet inside, so that the lock must admit both before it admits the writer
    // behind them.
    let threads = queue_up(&lock, &log, &["r1", "r1", "w2", "r3", "r3", "w4", "w5", "r6", "r6"]);
    drop(guard);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*log.lock().unwrap(), ["r1", "r1", "w2", "r3", "r3", "w4", "w5", "r6", "r6"]);
    assert!(lock.try_write().is_ok(), "the lock is free in the end");
}

#[test]
fn no_reader_overtakes_a_writer_that_waits_for_readers() {
    let (lock, log) = (Arc::new(RwLock::new(())), Arc::default());
    let first = lock.read().unwrap();
    let second = lock.try_read().unwrap();
    let threads = queue_up(&lock, &log, &["w1"]);
    assert!(matches!(lock.try_read(), Err(TryLockError::WouldBlock)), "a reader overtook a waiting writer");
    drop(first);
    assert!(log.lock().unwrap().is_empty(), "a writer got in beside a reader");
    drop(second);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*log.lock().unwrap(), ["w1"]);
    assert!(lock.try_read().is_ok() && lock.try_write().is_ok());
}

#[test]
fn a_downgrade_admits_the_readers_at_the_head_but_no_writer() {
    let (lock, log) = (Arc::new(RwLock::new(())), Arc::new(Mutex::default()));
    let guard = lock.write().unwrap();
    let threads = queue_up(&lock, &log, &["r1", "r1", "w2"]);
    let guard = RwLockWriteGuard::downgrade(guard);
    until(|| log.lock().unwrap().len() == 2);
    assert!(lock.try_read().is_err(), "the writer in the queue was overtaken");
    assert_eq!(lock.queue.lock().len(), 1, "the writer got in beside the downgraded guard");
    drop(guard);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*log.lock().unwrap(), ["r1", "r1", "w2"]);
}

#[test]
fn a_downgrade_with_a_writer_at_the_head_keeps_it_waiting() {
    let (lock, log) = (Arc::new(RwLock::new(())), Arc::new(Mutex::default()));
    let guard = lock.write().unwrap();
    let threads = queue_up(&lock, &log, &["w1"]);
    let guard = RwLockWriteGuard::downgrade(guard);
    assert_eq!(lock.queue.lock().len(), 1);
    assert!(lock.try_read().is_err() && log.lock().unwrap().is_empty());
    drop(guard);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn many_readers_are_admitted_together_and_the_writer_after_them() {
    let (lock, log) = (Arc::new(RwLock::new(())), Arc::new(Mutex::default()));
    let guard = lock.write().unwrap();
    // More than two batches. They meet in pairs, across the batches' boundaries too.
    let mut names = vec!["r1"; 2 * ADMIT_BATCH + 2];
    names.push("w2");
    names.extend(["r3"; ADMIT_BATCH]);
    let threads = queue_up(&lock, &log, &names);
    drop(guard);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*log.lock().unwrap(), names);
    assert!(lock.try_write().is_ok(), "the lock is free in the end");
}
