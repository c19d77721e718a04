//! User threads that share their kthread's thread-local storage: the library itself must work
//! without blocks of their own.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tailwater::sync::{Condvar, Mutex, channel};
use tailwater::thread;
use tailwater_testkit::own_process;

thread_local! {
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

/// Reads and writes without a switch in between.
#[inline(never)]
fn count() -> u32 {
    COUNT.with(|count| count.replace(count.get() + 1))
}

fn one_kthread_s_threads_share_its_thread_locals() {
    let before = count();
    let others: Vec<u32> = (0..3).map(|_| thread::spawn(count).join().unwrap()).collect();
    assert_eq!(others, [before + 1, before + 2, before + 3]);
}

fn threads_allocate_wait_and_panic_as_ever() {
    let turns = Arc::new((Mutex::new(0u32), Condvar::new()));
    let (results, from_threads) = channel::unbounded();
    let threads: Vec<_> = (0..50u32)
        .map(|me| {
            let (turns, results) = (Arc::clone(&turns), results.clone());
            thread::spawn(move || {
                let mut turn = turns.0.lock().unwrap();
                while *turn != me {
                    turn = turns.1.wait(turn).unwrap();
                }
                *turn += 1;
                turns.1.notify_all();
                drop(turn);
                let squares: HashMap<u32, String> = (0..100).map(|i| (i, (i * i).to_string())).collect();
                results.send(squares[&me].clone()).unwrap();
                thread::sleep(Duration::from_micros(u64::from(me)));
                assert!(me % 10 != 3, "a panic of thread {me}");
            })
        })
        .collect();
    drop(results);
    let panics = threads.into_iter().map(thread::JoinHandle::join).filter(Result::is_err).count();
    assert_eq!(panics, 5);
    let mut all: Vec<u32> = from_threads.iter().map(|text: String| text.parse().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..50).map(|i| i * i).collect::<Vec<_>>());
}

fn more_threads_than_a_queue_holds() {
    let ended = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3000)
        .map(|_| {
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                thread::yield_now();
                ended.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(ended.load(Ordering::Relaxed), 3000);
}

#[test]
fn a_runtime_with_shared_thread_locals_does_all_that_needs_none() {
    own_process(|| {
        // SAFETY: the threads here use a thread-local within `count` only; what std keeps for a
        // panic is used up before the next switch.
        let builder = unsafe { tailwater::RuntimeBuilder::new().kthreads(1).shared_tls() };
        builder
            .run(|| {
                one_kthread_s_threads_share_its_thread_locals();
                threads_allocate_wait_and_panic_as_ever();
                more_threads_than_a_queue_holds();
            })
            .unwrap();
    });
}
