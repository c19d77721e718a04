use crate::support::{in_both_worlds, mixed, spawn, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::{Condvar, Event, Mutex, Notify};
use tailwater::thread;

#[test]
fn a_notification_is_stored_once_and_taken_once() {
    in_both_worlds(|| {
        let notify = Notify::new();
        assert!(!notify.try_wait());
        notify.notify_one();
        notify.notify_one();
        notify.wait();
        assert!(!notify.wait_timeout(Duration::from_millis(1)));
        notify.notify_waiters();
        assert!(!notify.try_wait(), "notify_waiters stored a notification");
        notify.notify_one();
        assert!(notify.wait_timeout(Duration::ZERO) && !notify.try_wait());
    });
}

#[test]
fn every_notification_wakes_exactly_one_waiter() {
    const THREADS: usize = 9;
    let shared = Arc::new((Notify::new(), AtomicUsize::new(0)));
    let handles: Vec<_> = (0..THREADS)
        .map(|number| {
            let shared = Arc::clone(&shared);
            spawn(number, move || {
                shared.0.wait();
                shared.1.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    for woken in 1..=THREADS {
        shared.0.notify_one();
        until(|| shared.1.load(Ordering::SeqCst) == woken);
    }
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert!(!shared.0.try_wait(), "a notification was left over");
}

#[test]
fn all_waiting_threads_are_woken_at_once() {
    let shared = Arc::new((Notify::new(), AtomicUsize::new(0)));
    let handles: Vec<_> = (0..9)
        .map(|number| {
            let shared = Arc::clone(&shared);
            spawn(number, move || {
                shared.0.wait();
                shared.1.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    // Threads that had not begun to wait need another round.
    until(|| {
        shared.0.notify_waiters();
        shared.1.load(Ordering::SeqCst) == 9
    });
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert!(!shared.0.try_wait());
}

#[test]
fn an_event_passes_everybody_until_it_is_reset() {
    in_both_worlds(|| {
        let event = Event::new();
        let start = Instant::now();
        assert!(!event.wait_timeout(Duration::from_millis(5)) && start.elapsed() >= Duration::from_millis(5));
        event.set();
        event.wait();
        assert!(event.is_set() && event.wait_timeout(Duration::ZERO));
        event.reset();
        assert!(!event.is_set() && !event.wait_timeout(Duration::ZERO));
    });
}

#[test]
fn setting_an_event_publishes_what_was_done_before_and_wakes_all() {
    for round in 0..50 {
        let shared = Arc::new((Event::new(), AtomicUsize::new(0)));
        let setter = {
            let shared = Arc::clone(&shared);
            spawn(round, move || {
                thread::yield_now();
                shared.1.store(7, Ordering::Relaxed);
                shared.0.set();
            })
        };
        let waiters = Arc::clone(&shared);
        mixed(6, move |_| {
            waiters.0.wait();
            assert_eq!(waiters.1.load(Ordering::Relaxed), 7);
        });
        setter.join().unwrap();
    }
}

#[test]
fn a_timed_wait_for_a_condition_counts_the_time_of_all_waits_and_sees_the_change() {
    in_both_worlds(|| {
        let pair = Arc::new((Mutex::new(0), Condvar::new()));
        let start = Instant::now();
        let spoiler = {
            let pair = Arc::clone(&pair);
            // Wakes that change nothing must not extend the wait.
            spawn(0, move || {
                while *pair.0.lock().unwrap() == 0 {
                    pair.1.notify_all();
                    thread::sleep(Duration::from_micros(500));
                }
            })
        };
        let guard = pair.0.lock().unwrap();
        let (mut guard, result) =
            pair.1.wait_timeout_while(guard, Duration::from_millis(5), |n| *n == 0).unwrap();
        assert!(result.timed_out() && start.elapsed() >= Duration::from_millis(5));
        *guard = 1;
        let (guard, result) = pair.1.wait_timeout_while(guard, Duration::ZERO, |n| *n == 0).unwrap();
        assert!(!result.timed_out());
        drop(guard);
        spoiler.join().unwrap();
    });
}
