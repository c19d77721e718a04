//! Cores and load of a standalone program. One runtime per process, so one test function runs all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater::cores::{self, CorePolicy, Load, LoadMeter, PolicyError, Priorities};
use tailwater::thread;
use tailwater_testkit::PATIENCE;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();

#[test]
fn cores_and_load() {
    tailwater::Builder::new()
        .kthreads(2)
        .run(|| {
            requests_without_an_iokernel_are_words_only();
            a_policy_without_an_iokernel_is_refused();
            a_thread_that_computes_is_busy_and_those_behind_it_are_runnable();
            idle_kthreads_are_not_busy();
        })
        .unwrap();
}

fn requests_without_an_iokernel_are_words_only() {
    cores::request(3);
    assert_eq!((cores::requested(), cores::granted()), (Priorities::from(3), 0));
    assert!(cores::held().is_empty());
    cores::request(0);
    cores::clear_policy();
    assert_eq!(cores::requested(), Priorities::default());
}

struct Never;

impl CorePolicy for Never {
    fn interval(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn cores(&mut self, _: &Load) -> Priorities {
        unreachable!("it was refused")
    }
}

fn a_policy_without_an_iokernel_is_refused() {
    assert!(matches!(cores::set_policy(Never), Err(PolicyError::NoIoKernel)));
    #[cfg(feature = "estimation")]
    {
        let refused = cores::estimate(cores::Estimation::default()).unwrap_err();
        assert!(refused.to_string().contains("TAILWATER_IOKERNEL"), "{refused}");
    }
}

/// Reads the meter until `found`; fails with the latest load after [`PATIENCE`].
fn wait_for(meter: &mut LoadMeter, found: impl Fn(&Load) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let load = meter.load();
        if found(&load) {
            return;
        }
        assert!(Instant::now() < deadline, "{load:?}");
        thread::yield_now();
    }
}

fn a_thread_that_computes_is_busy_and_those_behind_it_are_runnable() {
    let mut meter = LoadMeter::new();
    let stop = Arc::new(AtomicBool::new(false));
    // More threads than kthreads, which do nothing but let the others run.
    let crowd: Vec<_> = (0..8)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            })
        })
        .collect();
    wait_for(&mut meter, |load| load.utilisation > 0.5 && load.runnable > 2.0 * load.utilisation);
    stop.store(true, Ordering::Relaxed);
    crowd.into_iter().for_each(|thread| thread.join().unwrap());
}

fn idle_kthreads_are_not_busy() {
    let mut meter = LoadMeter::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        meter.load();
        thread::sleep(Duration::from_millis(20));
        let load = meter.load();
        if load.utilisation < 0.5 && load.runnable < 1.0 {
            return;
        }
        assert!(Instant::now() < deadline, "{load:?}");
    }
}
