//! Cores and load of a standalone program. One runtime per process, so one test function runs all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater::cores::{self, CorePolicy, CorePolicyError, Load, LoadMeter, Priorities};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn cores_and_load() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(KTHREADS)
            .run(|| {
                requests_without_an_iokernel_are_words_only();
                a_policy_without_an_iokernel_is_refused();
                a_thread_that_computes_is_busy_and_those_behind_it_are_runnable();
                a_thread_that_ran_before_the_meter_was_made_and_runs_on_is_busy();
                idle_kthreads_are_not_busy();
            })
            .unwrap();
    });
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
    assert!(matches!(cores::set_policy(Never), Err(CorePolicyError::NoIoKernel)));
    #[cfg(feature = "estimation")]
    {
        let refused = cores::estimate(cores::Estimation::default()).unwrap_err();
        assert!(refused.to_string().contains("tailwater run"), "{refused}");
    }
}

/// Kthreads of the program.
const KTHREADS: u16 = 2;
/// Threads that do nothing but let the others run: more than kthreads.
const CROWD: usize = 8;
/// An interval of a meter.
const INTERVAL: Duration = Duration::from_millis(20);

/// Reads the meter once per interval until `found`; fails with the latest load after [`PATIENCE`],
/// and with one that is too high to be true: on each kthread a thread runs, and all others wait.
fn wait_for(meter: &mut LoadMeter, found: impl Fn(&Load) -> bool) {
    let most = f64::from(KTHREADS) * (1 + CROWD + 1) as f64;
    let deadline = Instant::now() + PATIENCE;
    loop {
        thread::sleep(INTERVAL);
        let load = meter.load();
        assert!(load.utilisation <= f64::from(KTHREADS) && load.runnable <= most, "{load:?}");
        if found(&load) {
            return;
        }
        assert!(Instant::now() < deadline, "{load:?}");
    }
}

/// Runs `watch` while `threads` threads call `step` again and again.
fn beside(threads: usize, step: fn(), watch: impl FnOnce()) {
    let stop = Arc::new(AtomicBool::new(false));
    let turn = |stop: Arc<AtomicBool>| {
        move || {
            while !stop.load(Ordering::Relaxed) {
                step();
            }
        }
    };
    let crowd: Vec<_> = (0..threads).map(|_| thread::spawn(turn(Arc::clone(&stop)))).collect();
    watch();
    stop.store(true, Ordering::Relaxed);
    crowd.into_iter().for_each(|thread| thread.join().unwrap());
}

fn a_thread_that_computes_is_busy_and_those_behind_it_are_runnable() {
    beside(CROWD, thread::yield_now, || {
        let is_crowded = |load: &Load| load.utilisation > 0.5 && load.runnable > 2.0 * load.utilisation;
        wait_for(&mut LoadMeter::new(), is_crowded);
        // A second meter begins under load.
        wait_for(&mut LoadMeter::new(), is_crowded);
    });
}

fn a_thread_that_ran_before_the_meter_was_made_and_runs_on_is_busy() {
    beside(1, std::hint::spin_loop, || {
        thread::sleep(INTERVAL);
        wait_for(&mut LoadMeter::new(), |load| load.utilisation > 0.5);
    });
}

fn idle_kthreads_are_not_busy() {
    wait_for(&mut LoadMeter::new(), |load| load.utilisation < 0.5 && load.runnable < 1.0);
}
