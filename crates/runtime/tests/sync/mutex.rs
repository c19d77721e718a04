//! The first wait on a mutex, after which it is unlocked in another way, and poisoning.

use crate::support::{in_both_worlds, spawn, until};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use tailwater::sync::{Condvar, Mutex};
use tailwater::thread;

/// Two user threads and an OS thread.
const THREADS: usize = 3;

/// Runs `turn` on all threads with each of the numbers below `rounds`. No thread begins a number
/// before all have ended the one before.
fn in_step(rounds: usize, turn: impl Fn(usize, usize) + Clone + Send + 'static) {
    let arrived = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|me| {
            let (turn, arrived, ended) = (turn.clone(), Arc::clone(&arrived), Arc::clone(&ended));
            spawn(me, move || {
                for round in 0..rounds {
                    arrived.fetch_add(1, Ordering::AcqRel);
                    until_spinning(|| arrived.load(Ordering::Acquire) >= THREADS * (round + 1));
                    turn(round, me);
                }
                ended.fetch_add(1, Ordering::AcqRel);
            })
        })
        .collect();
    until(|| ended.load(Ordering::Acquire) == THREADS);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// As `until`, without a pause: the threads go on at about the same time.
fn until_spinning(condition: impl Fn() -> bool) {
    for _ in 0..100 {
        if condition() {
            return;
        }
        thread::yield_now();
    }
    until(condition);
}

#[test]
fn an_unlock_that_races_with_the_first_waiter_wakes_it() {
    const ROUNDS: usize = 2_000;
    const LOCKED: u64 = 5;
    let mutexes: Arc<Vec<Mutex<u64>>> = Arc::new((0..ROUNDS).map(|_| Mutex::new(0)).collect());
    let locked = Arc::clone(&mutexes);
    in_step(ROUNDS, move |round, _| {
        for _ in 0..LOCKED {
            *locked[round].lock().unwrap() += 1;
        }
    });
    for mutex in mutexes.iter() {
        assert_eq!(*mutex.lock().unwrap(), LOCKED * THREADS as u64);
    }
}

#[test]
fn threads_that_pass_a_turn_with_fresh_mutexes_lose_no_notification() {
    const ROUNDS: usize = 500;
    const TURNS: usize = 6;
    let tables: Arc<Vec<(Mutex<usize>, Condvar)>> =
        Arc::new((0..ROUNDS).map(|_| (Mutex::new(0), Condvar::new())).collect());
    let shared = Arc::clone(&tables);
    in_step(ROUNDS, move |round, me| {
        let (turn, changed) = &shared[round];
        for _ in 0..TURNS {
            let mut turn = changed.wait_while(turn.lock().unwrap(), |turn| *turn % THREADS != me).unwrap();
            *turn += 1;
            changed.notify_all();
        }
    });
    assert!(tables.iter().all(|(turn, _)| *turn.lock().unwrap() == TURNS * THREADS));
}

#[test]
fn a_panic_poisons_before_and_after_the_first_wait() {
    in_both_worlds(|| {
        let mutex = Arc::new(Mutex::new(0));
        let panic_in = |mutex: &Arc<Mutex<i32>>| {
            let mutex = Arc::clone(mutex);
            let thread = spawn(0, move || {
                let _guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
                std::panic::resume_unwind(Box::new(()));
            });
            assert!(thread.join().is_err());
        };
        panic_in(&mutex);
        assert!(mutex.is_poisoned() && mutex.lock().is_err());
        mutex.clear_poison();
        let guard = mutex.lock().unwrap();
        let waits = spawn(0, {
            let mutex = Arc::clone(&mutex);
            move || *mutex.lock().unwrap_or_else(PoisonError::into_inner) += 1
        });
        drop(guard);
        waits.join().unwrap();
        panic_in(&mutex);
        assert!(mutex.try_lock().is_err());
        assert_eq!(*mutex.lock().unwrap_err().into_inner(), 1);
    });
}
