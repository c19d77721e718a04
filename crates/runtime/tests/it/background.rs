//! Background threads on one kthread, where the order of threads is certain. One runtime per
//! process, so one test function runs all.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tailwater::sync::mpsc;
use tailwater::thread::{self, Builder, JoinHandle, ThreadClass};
use tailwater_testkit::own_process;

#[test]
fn background_threads_run_behind_all_others() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .stall_timeout(Duration::ZERO)
            .run(|| {
                none_runs_while_an_ordinary_thread_is_runnable();
                one_gives_way_at_a_poll_point_to_a_timer();
                one_gives_way_to_a_thread_that_it_wakes();
                one_that_was_woken_waits_for_ordinary_threads();
                they_take_turns_when_they_yield();
                their_threads_are_background_threads_too();
                one_may_panic();
            })
            .unwrap();
    });
}

fn background<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().class(ThreadClass::Background).spawn(body).unwrap()
}

fn flag() -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    (Arc::clone(&flag), flag)
}

/// Polls until the flag is set.
fn spin_until(flag: &AtomicBool) {
    while !flag.load(Ordering::Relaxed) {
        tailwater::poll();
        std::hint::spin_loop();
    }
}

fn none_runs_while_an_ordinary_thread_is_runnable() {
    let (began, ran) = flag();
    let batch = background(move || began.store(true, Ordering::Relaxed));
    let ordinary: Vec<_> =
        (0..400).map(|_| thread::spawn(|| (0..9).for_each(|_| thread::yield_now()))).collect();
    ordinary.into_iter().for_each(|thread| thread.join().unwrap());
    (0..500).for_each(|_| thread::yield_now());
    assert!(!ran.load(Ordering::Relaxed), "it ran beside ordinary threads");
    batch.join().unwrap();
    assert!(ran.load(Ordering::Relaxed));
}

fn one_gives_way_at_a_poll_point_to_a_timer() {
    let ((stop, stopped), (began, has_begun)) = (flag(), flag());
    let batch = background(move || {
        began.store(true, Ordering::Relaxed);
        spin_until(&stopped);
    });
    while !has_begun.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    // The timer ends its turn each time: else this loop never ends.
    (0..5).for_each(|_| thread::sleep(Duration::from_millis(1)));
    stop.store(true, Ordering::Relaxed);
    batch.join().unwrap();
}

fn one_gives_way_to_a_thread_that_it_wakes() {
    let (sender, receiver) = mpsc::channel();
    let (stop, stopped) = flag();
    let batch = background(move || {
        sender.send(1).unwrap();
        spin_until(&stopped);
    });
    assert_eq!(receiver.recv(), Ok(1));
    stop.store(true, Ordering::Relaxed);
    batch.join().unwrap();
}

fn one_that_was_woken_waits_for_ordinary_threads() {
    let (sender, receiver) = mpsc::channel::<u32>();
    let (began, has_begun) = flag();
    let order = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&order);
    let batch = background(move || {
        began.store(true, Ordering::Relaxed);
        receiver.recv().unwrap();
        log.lock().unwrap().push("background");
    });
    while !has_begun.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    // It blocks: it was alone.
    thread::sleep(Duration::from_millis(1));
    sender.send(1).unwrap();
    let log = Arc::clone(&order);
    let ordinary = thread::spawn(move || {
        (0..100).for_each(|_| thread::yield_now());
        log.lock().unwrap().push("ordinary");
    });
    batch.join().unwrap();
    ordinary.join().unwrap();
    assert_eq!(*order.lock().unwrap(), ["ordinary", "background"]);
}

fn they_take_turns_when_they_yield() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let turns = |name| {
        let order = Arc::clone(&order);
        background(move || {
            for _ in 0..3 {
                order.lock().unwrap().push(name);
                thread::yield_now();
            }
        })
    };
    let all = [turns('a'), turns('b')];
    all.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*order.lock().unwrap(), ['a', 'b', 'a', 'b', 'a', 'b']);
}

fn their_threads_are_background_threads_too() {
    let runs = Arc::new(AtomicUsize::new(0));
    let (count, counted) = (Arc::clone(&runs), Arc::clone(&runs));
    let batch = background(move || {
        // Together, so that none of them runs before the other is queued.
        let (inherits, ordinary) = tailwater::no_preempt(|| {
            let inherits = thread::spawn(move || count.fetch_add(1, Ordering::Relaxed));
            let class = Builder::new().class(ThreadClass::Normal);
            (inherits, class.spawn(move || counted.load(Ordering::Relaxed)).unwrap())
        });
        let before = ordinary.join().unwrap();
        inherits.join().unwrap();
        before
    });
    assert_eq!(batch.join().unwrap(), 0, "the ordinary thread ran first, although it was made later");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(thread::spawn(|| 1).join().unwrap(), 1, "stacks are used again by ordinary threads");
}

fn one_may_panic() {
    assert!(background(|| panic!("only this thread ends")).join().is_err());
    assert_eq!(background(|| 5).join().unwrap(), 5);
}
