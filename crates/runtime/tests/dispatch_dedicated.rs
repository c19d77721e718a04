//! Dispatchers with kthreads of their own. There are more kthreads than most machines have cores,
//! so Linux takes them from dispatchers and workers at any time: every request is handled once all
//! the same, under random preemption and blocking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::dispatch::{Class, ClassStats, Dispatcher, Refused, Request, Settings};
use tailwater::thread;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();

const PATIENCE: Duration = Duration::from_secs(120);
const REQUESTS: usize = 2_000;
/// One less dispatcher can be started than there are.
const KTHREADS: u16 = 16;

#[test]
fn dispatchers_with_kthreads_of_their_own() {
    tailwater::Builder::new()
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
                every_request_is_handled_once(&settings, dispatchers);
            }
            a_full_queue_refuses();
            what_sleeps_is_woken_by_single_requests();
            what_cannot_start_says_why();
        })
        .unwrap();
}

fn settings(policy: &str) -> Settings {
    Settings::new(policy.parse().unwrap())
        .class(Class::new("short").slo(Duration::from_micros(50)))
        .class(Class::new("long").slo(Duration::from_millis(5)))
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::yield_now();
    }
}

#[derive(Debug, Clone, Copy)]
struct Work {
    number: usize,
    polls: u32,
    yields: bool,
    sleeps: bool,
    panics: bool,
}

/// Returns the work of request `number`, by a fixed generator.
fn work(number: usize) -> Work {
    let mut x = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    let long = x.is_multiple_of(20);
    let polls = if long { 5_000 } else { 50 } + (x >> 8) as u32 % 50;
    Work {
        number,
        polls,
        yields: (x >> 20).is_multiple_of(16),
        sleeps: (x >> 24).is_multiple_of(64),
        panics: number == 77,
    }
}

fn sum(stats: &[ClassStats], of: impl Fn(&ClassStats) -> u64) -> u64 {
    stats.iter().map(of).sum()
}

fn every_request_is_handled_once(settings: &Settings, dispatchers: usize) {
    let handled: Arc<Vec<AtomicU32>> = Arc::new((0..REQUESTS).map(|_| AtomicU32::new(0)).collect());
    let counts = Arc::clone(&handled);
    let lanes = Arc::new(AtomicUsize::new(0));
    let begun = Arc::clone(&lanes);
    let handle = move |work: Work| {
        counts[work.number].fetch_add(1, Relaxed);
        for poll in 0..work.polls {
            tailwater::poll();
            if poll == work.polls / 2 {
                if work.yields {
                    thread::yield_now();
                }
                if work.sleeps {
                    tailwater::time::sleep(Duration::from_micros(20));
                }
            }
        }
        assert!(!work.panics, "this request panics");
    };
    let init = move |lane| {
        assert!(lane < usize::from(KTHREADS));
        begun.fetch_add(1, Relaxed);
    };
    let dispatcher = Dispatcher::start(settings.clone(), init, handle).unwrap();
    // User threads and an ordinary one submit at once.
    let outside = std::thread::spawn(move || submit(dispatcher, 0));
    let inside: Vec<_> = (1..4).map(|first| thread::spawn(move || submit(dispatcher, first))).collect();
    inside.into_iter().for_each(|thread| thread.join().unwrap());
    let finished = || sum(&dispatcher.stats(), |class| class.finished);
    wait_until("all requests end", || finished() == REQUESTS as u64);
    outside.join().unwrap();
    assert!(handled.iter().all(|count| count.load(Relaxed) == 1), "{settings:?}");
    let stats = dispatcher.stats();
    assert_eq!(sum(&stats, |class| class.dropped), 0, "{settings:?}");
    assert_eq!(sum(&stats, |class| class.panicked), 1, "{settings:?}");
    let is_measured = |class: &ClassStats| {
        class.latency.count() == class.accepted && class.queue_delay.count() == class.accepted
    };
    assert!(stats.iter().all(is_measured), "{settings:?}");
    let workers = usize::from(KTHREADS) - dispatchers;
    wait_until("each lane is initialised", || lanes.load(Relaxed) == workers);
}

/// Submits every fourth request from `first` on.
fn submit(dispatcher: Dispatcher<Work>, first: usize) {
    for number in (first..REQUESTS).step_by(4) {
        let work = work(number);
        let request = Request::new(usize::from(work.polls >= 5_000))
            .work(Duration::from_nanos(u64::from(work.polls) * 10))
            .flow((number as u32).wrapping_mul(0x9e37_79b9));
        dispatcher.submit(request, work).unwrap();
    }
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
    assert!(message.contains("need 18 kthreads; the program has 16"), "{message}");
    let message = refused(settings("steal").dispatchers(1));
    assert!(message.contains("use c-fcfs"), "{message}");
    // Nine dispatchers run; seven more would leave none to the other threads.
    let message = refused(settings("c-fcfs").dispatchers(7));
    assert!(message.contains("cannot have a core of its own"), "{message}");
    assert!(message.contains("each worker schedules itself"), "{message}");
}
