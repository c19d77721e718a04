//! Dispatchers on two kthreads: every request is handled once, under random preemption, blocking
//! and stealing; and one without poll points gives way by signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::dispatch::{Class, Dispatcher, Request, Settings};
use tailwater::thread;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();

const PATIENCE: Duration = Duration::from_secs(120);
const REQUESTS: usize = 2_000;

#[test]
fn dispatchers_on_two_kthreads() {
    tailwater::Builder::new()
        .kthreads(2)
        .run(|| {
            for policy in ["c-fcfs", "steal:4", "sq:5us", "sq:5us,head", "mq:5us", "mq:20us,tail", "srpt"] {
                every_request_is_handled_once(policy);
            }
            a_request_without_poll_points_gives_way();
        })
        .unwrap();
}

fn settings(policy: &str) -> Settings {
    Settings::new(policy.parse().unwrap())
        .class(Class::new("short").slo(Duration::from_micros(50)))
        .class(Class::new("long").slo(Duration::from_millis(5)))
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "a request did not end");
        thread::yield_now();
    }
}

#[derive(Debug, Clone, Copy)]
struct Work {
    number: usize,
    polls: u32,
    yields: bool,
    sleeps: bool,
}

/// Returns the work of request `number`, by a fixed generator.
fn work(number: usize) -> Work {
    let mut x = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    let long = x.is_multiple_of(20);
    let polls = if long { 5_000 } else { 50 } + (x >> 8) as u32 % 50;
    Work { number, polls, yields: (x >> 20).is_multiple_of(16), sleeps: (x >> 24).is_multiple_of(64) }
}

fn every_request_is_handled_once(policy: &str) {
    let handled: Arc<Vec<AtomicU32>> = Arc::new((0..REQUESTS).map(|_| AtomicU32::new(0)).collect());
    let counts = Arc::clone(&handled);
    let handle = move |work: Work| {
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
        counts[work.number].fetch_add(1, Relaxed);
    };
    let dispatcher = Dispatcher::start(settings(policy), |_| (), handle).unwrap();
    // User threads and an ordinary one submit at once.
    let outside = std::thread::spawn(move || submit(dispatcher, 0));
    let inside: Vec<_> = (1..4).map(|first| thread::spawn(move || submit(dispatcher, first))).collect();
    inside.into_iter().for_each(|thread| thread.join().unwrap());
    let finished = || dispatcher.stats().iter().map(|class| class.finished).sum::<u64>();
    wait_until(|| finished() == REQUESTS as u64);
    outside.join().unwrap();
    assert!(handled.iter().all(|count| count.load(Relaxed) == 1), "{policy}");
    let stats = dispatcher.stats();
    assert_eq!(stats.iter().map(|class| class.dropped).sum::<u64>(), 0, "{policy}");
    assert!(stats.iter().all(|class| class.latency.count() == class.accepted), "{policy}");
    if ["c-fcfs", "steal:4"].contains(&policy) {
        // A request gives way to other threads after the program's quantum, to no other request.
        assert!(stats.iter().all(|class| class.preemptions == 0), "{policy}");
    }
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

fn a_request_without_poll_points_gives_way() {
    let short = Arc::new(AtomicBool::new(false));
    let (flag, long_ends) = (Arc::clone(&short), Arc::new(AtomicU32::new(0)));
    let ends = Arc::clone(&long_ends);
    let handle = move |is_short: bool| {
        if is_short {
            flag.store(true, Relaxed);
            return;
        }
        let start = Instant::now();
        while !flag.load(Relaxed) {
            assert!(start.elapsed() < PATIENCE, "no signal interrupted the request");
            std::hint::spin_loop();
        }
        ends.fetch_add(1, Relaxed);
    };
    let dispatcher = Dispatcher::start(settings("sq:5us"), |_| (), handle).unwrap();
    // One for each kthread.
    for is_short in [false, false, true] {
        dispatcher.submit(Request::new(usize::from(!is_short)), is_short).unwrap();
    }
    wait_until(|| long_ends.load(Relaxed) == 2);
}
