//! Dispatchers with kthreads of their own. There are more kthreads than most machines have cores,
//! so Linux takes them from dispatchers and workers at any time: every request is handled once all
//! the same, under random preemption and blocking.

use crate::common::{PATIENCE, every_request_is_handled_once, settings, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::dispatch::{Dispatcher, Refused, Request, Settings};
use tailwater_testkit::own_process;

/// One less dispatcher can be started than there are.
const KTHREADS: u16 = 16;

#[test]
fn dispatchers_with_kthreads_of_their_own() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(KTHREADS)
            .run(|| {
                for (settings, dispatchers) in [
                    (settings("jbsq:2"), 1),
                    (settings("jbsq:8,5us"), 1),
                    (settings("sq:5us,head").dispatchers(1).depth(1), 1),
                    (settings("mq:5us,tail").dispatchers(2), 2),
                    (settings("srpt").dispatchers(1), 1),
                    (settings("mq:5us").dispatchers(1).blocked(0).preempted(4), 1),
                ] {
                    requests_of_all_kinds_end(&settings, dispatchers);
                }
                a_full_queue_refuses();
                what_sleeps_is_woken_by_single_requests();
                what_cannot_start_says_why();
            })
            .unwrap();
    });
}

fn requests_of_all_kinds_end(settings: &Settings, dispatchers: usize) {
    let lanes = Arc::new(AtomicUsize::new(0));
    let begun = Arc::clone(&lanes);
    let init = move |lane| {
        assert!(lane < usize::from(KTHREADS));
        begun.fetch_add(1, Relaxed);
    };
    every_request_is_handled_once(settings, init);
    let workers = usize::from(KTHREADS) - dispatchers;
    wait_until("each lane is initialised", || lanes.load(Relaxed) == workers);
}

fn a_full_queue_refuses() {
    const QUEUE: usize = 3;
    let open = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicUsize::new(0));
    let (gate, count) = (Arc::clone(&open), Arc::clone(&ended));
    let handle = move |_: usize| {
        while !gate.load(Relaxed) {
            std::hint::spin_loop();
            tailwater::poll();
        }
        count.fetch_add(1, Relaxed);
    };
    let dispatcher = Dispatcher::start(settings("jbsq:2").queue(QUEUE), |_| (), handle).unwrap();
    // All lanes and their mailboxes fill up, and the queue after them.
    let (mut accepted, start) = (0, Instant::now());
    let refused = loop {
        assert!(start.elapsed() < PATIENCE, "{accepted} are accepted");
        match dispatcher.submit(Request::new(0), accepted) {
            Ok(()) => accepted += 1,
            Err(Refused(number)) => break number,
        }
    };
    assert_eq!(refused, accepted);
    assert!(accepted <= 2 * usize::from(KTHREADS) + QUEUE, "{accepted}");
    assert_eq!(dispatcher.stats()[0].dropped, 1);
    open.store(true, Relaxed);
    wait_until("what was accepted ends", || ended.load(Relaxed) == accepted);
}

fn what_sleeps_is_woken_by_single_requests() {
    let last = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&last);
    let handle = move |number: usize| seen.store(number, Relaxed);
    let dispatcher = Dispatcher::start(settings("jbsq:2,5us"), |_| (), handle).unwrap();
    for number in 1..=50 {
        // Longer than the idle timeout every now and then: all kthreads sleep.
        if number % 10 == 0 {
            tailwater::time::sleep(Duration::from_millis(1));
        }
        dispatcher.submit(Request::new(0), number).unwrap();
        wait_until("a single request is handled", || last.load(Relaxed) == number);
    }
}

fn what_cannot_start_says_why() {
    let refused =
        |settings: Settings| Dispatcher::start(settings, |_| (), |(): ()| ()).unwrap_err().to_string();
    let message = refused(settings("mq:5us").dispatchers(9));
    assert!(message.contains("18 here, and the program has 16"), "{message}");
    let message = refused(settings("steal").dispatchers(1));
    assert!(message.contains("use c-fcfs"), "{message}");
    // Nine dispatchers run; seven more would leave none to the other threads.
    let message = refused(settings("c-fcfs").dispatchers(7));
    assert!(message.contains("cannot have a core of its own"), "{message}");
    assert!(message.contains("each worker schedules itself"), "{message}");
}
