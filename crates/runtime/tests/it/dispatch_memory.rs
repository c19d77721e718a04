//! Dispatchers when there is no memory for one more thread: no request is lost, none is stuck once
//! there is memory again, and one that cannot start leaves nothing behind.
//!
//! Threads have stacks of 4 GiB, which Linux commits by use; the limit of the address space leaves
//! room for all else, but not for one more of them. It holds for the whole process, so there is one
//! test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tailwater::dispatch::{Dispatcher, Request, Settings};
use tailwater::sync::mpsc;
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

const STACK: usize = 4 << 30;
const LANES: u16 = 2;

type Job = Box<dyn FnOnce() + Send>;

#[test]
fn dispatchers_without_memory_for_threads() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(LANES)
            .run(|| {
                let start = || Dispatcher::start(settings("sq:5us"), |_| (), |job: Job| job());
                match start() {
                    Ok(dispatcher) => preempted_requests_run_on(&dispatcher),
                    Err(error) => return eprintln!("skipped, for there is no memory at all: {error}"),
                }
                match start() {
                    Ok(dispatcher) => blocked_requests_keep_their_lanes(&dispatcher),
                    Err(error) => return eprintln!("the rest is skipped, for there is no memory: {error}"),
                }
                what_cannot_start_runs_nothing();
            })
            .unwrap();
    });
}

fn settings(policy: &str) -> Settings {
    Settings::new(policy.parse().unwrap()).stack_size(STACK)
}

/// A limit of the address space, which was `before`.
struct Limit(libc::rlimit);

impl Limit {
    /// Leaves room for `bytes` beyond what is in use.
    fn new(bytes: usize) -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` lives through the call.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').next().unwrap().parse().unwrap();
        let limit = libc::rlimit { rlim_cur: (pages * 4096 + bytes) as u64, ..before };
        set(&limit);
        Self(before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        set(&self.0);
    }
}

fn set(limit: &libc::rlimit) {
    // SAFETY: `limit` lives through the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) }, 0);
}

fn submit(dispatcher: &Dispatcher<Job>, job: impl FnOnce() + Send + 'static) {
    dispatcher.submit(Request::new(0), Box::new(job)).unwrap();
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "a request did not get its turn");
        thread::yield_now();
    }
}

fn preempted_requests_run_on(dispatcher: &Dispatcher<Job>) {
    let limit = Limit::new(STACK / 2);
    let done = Arc::new(AtomicBool::new(false));
    let polls: Vec<Arc<AtomicU64>> = (0..LANES).map(|_| Arc::default()).collect();
    for polls in &polls {
        let (done, polls) = (Arc::clone(&done), Arc::clone(polls));
        submit(dispatcher, move || {
            while !done.load(Relaxed) {
                polls.fetch_add(1, Relaxed);
                tailwater::poll();
            }
        });
    }
    wait_until(|| polls.iter().all(|polls| polls.load(Relaxed) > 0));
    let end = Arc::clone(&done);
    submit(dispatcher, move || end.store(true, Relaxed));
    // Each quantum is over many times, and the last request waits, but no other thread is there.
    for polls in &polls {
        let before = polls.load(Relaxed);
        wait_until(|| polls.load(Relaxed) > before + 1_000_000);
    }
    assert!(!done.load(Relaxed));
    assert_eq!(dispatcher.stats()[0].preemptions, 0);
    drop(limit);
    wait_until(|| dispatcher.stats()[0].finished == u64::from(LANES + 1));
}

fn blocked_requests_keep_their_lanes(dispatcher: &Dispatcher<Job>) {
    let limit = Limit::new(STACK / 2);
    let releases: Vec<_> = (0..LANES)
        .map(|_| {
            let (release, released) = mpsc::channel();
            submit(dispatcher, move || released.recv().unwrap());
            release
        })
        .collect();
    wait_until(|| dispatcher.stats()[0].held == u64::from(LANES));
    submit(dispatcher, || ());
    for _ in 0..100 {
        thread::yield_now();
    }
    assert_eq!(dispatcher.stats()[0].queue_delay.count(), u64::from(LANES));
    releases.into_iter().for_each(|release| release.send(()).unwrap());
    wait_until(|| dispatcher.stats()[0].finished == u64::from(LANES + 1));
    drop(limit);
}

fn what_cannot_start_runs_nothing() {
    let initialised = Arc::new(AtomicU64::new(0));
    let start = || {
        let initialised = Arc::clone(&initialised);
        let init = move |_| {
            initialised.fetch_add(1, Relaxed);
        };
        // No stack of this size is left from before.
        Dispatcher::start(settings("c-fcfs").stack_size(STACK + (1 << 20)), init, |job: Job| job())
    };
    // The first lane has a stack, the second has none.
    let limit = Limit::new(STACK + STACK / 2);
    let error = start().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    drop(limit);
    let dispatcher = match start() {
        Ok(dispatcher) => dispatcher,
        Err(error) => return eprintln!("the rest is skipped, for there is no memory: {error}"),
    };
    submit(&dispatcher, || ());
    wait_until(|| dispatcher.stats()[0].finished == 1);
    wait_until(|| initialised.load(Relaxed) >= LANES.into());
    for _ in 0..100 {
        thread::yield_now();
    }
    assert_eq!(initialised.load(Relaxed), u64::from(LANES));
}
