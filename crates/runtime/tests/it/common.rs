//! What the tests of dispatchers on several kthreads share: requests of two classes, and that each
//! of them is handled once, under random preemption, blocking and one panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::dispatch::{ClassStats, Dispatcher, Request, RequestClass, Settings};
use tailwater::thread;
pub use tailwater_testkit::PATIENCE;

const REQUESTS: usize = 2_000;
/// The one that panics.
const PANICS: usize = 77;

/// What a request counts when it begins, and when it ends.
const BEGUN: u32 = 1;
const ENDED: u32 = 1 << 16;

pub fn settings(policy: &str) -> Settings {
    Settings::new(policy.parse().unwrap())
        .class(RequestClass::new("short").slo(Duration::from_micros(50)))
        .class(RequestClass::new("long").slo(Duration::from_millis(5)))
}

/// Waits as any thread; after [`PATIENCE`] the test fails with `what` was expected.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
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
}

impl Work {
    /// Returns the work of request `number`, by a fixed generator.
    fn of(number: usize) -> Self {
        let mut x = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 32;
        let long = x.is_multiple_of(20);
        let polls = if long { 5_000 } else { 50 } + (x >> 8) as u32 % 50;
        Self { number, polls, yields: (x >> 20).is_multiple_of(16), sleeps: (x >> 24).is_multiple_of(64) }
    }

    fn run(self) {
        for poll in 0..self.polls {
            tailwater::poll();
            if poll == self.polls / 2 {
                if self.yields {
                    thread::yield_now();
                }
                if self.sleeps {
                    tailwater::time::sleep(Duration::from_micros(20));
                }
            }
        }
    }
}

/// Starts a dispatcher with these settings, has user threads and an ordinary one submit all
/// requests at once, and waits until all have ended: each was handled once, and counted. Returns
/// the counters.
pub fn every_request_is_handled_once(
    settings: &Settings,
    init_per_core: impl Fn(usize) + Send + Sync + 'static,
) -> Vec<ClassStats> {
    let handled: Arc<Vec<AtomicU32>> = Arc::new((0..REQUESTS).map(|_| AtomicU32::new(0)).collect());
    let counts = Arc::clone(&handled);
    let handle = move |work: Work| {
        counts[work.number].fetch_add(BEGUN, Relaxed);
        work.run();
        counts[work.number].fetch_add(ENDED, Relaxed);
        assert_ne!(work.number, PANICS, "this request panics");
    };
    let dispatcher = Dispatcher::start(settings.clone(), init_per_core, handle).unwrap();
    let outside = std::thread::spawn(move || submit(dispatcher, 0));
    let inside: Vec<_> = (1..4).map(|first| thread::spawn(move || submit(dispatcher, first))).collect();
    inside.into_iter().for_each(|thread| thread.join().unwrap());
    let finished = || sum(&dispatcher.stats(), |class| class.finished);
    wait_until("all requests end", || finished() == REQUESTS as u64);
    outside.join().unwrap();
    assert!(handled.iter().all(|count| count.load(Relaxed) == BEGUN + ENDED), "{settings:?}");
    let stats = dispatcher.stats();
    assert_eq!(sum(&stats, |class| class.dropped), 0, "{settings:?}");
    assert_eq!(sum(&stats, |class| class.panicked), 1, "{settings:?}");
    let is_measured = |class: &ClassStats| {
        class.latency.count() == class.accepted && class.queue_delay.count() == class.accepted
    };
    assert!(stats.iter().all(is_measured), "{settings:?}");
    stats
}

fn sum(stats: &[ClassStats], of: impl Fn(&ClassStats) -> u64) -> u64 {
    stats.iter().map(of).sum()
}

/// Submits every fourth request from `first` on.
fn submit(dispatcher: Dispatcher<Work>, first: usize) {
    for number in (first..REQUESTS).step_by(4) {
        let work = Work::of(number);
        let request = Request::new(usize::from(work.polls >= 5_000))
            .work(Duration::from_nanos(u64::from(work.polls) * 10))
            .flow((number as u32).wrapping_mul(0x9e37_79b9));
        dispatcher.submit(request, work).unwrap();
    }
}
