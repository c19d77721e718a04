//! Load and exclusive threads of a program with one kthread. One runtime per process, so one test
//! function runs all.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater::cores::{self, LoadMeter};
use tailwater::thread::{self, Builder, ThreadClass};
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn one_kthread() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .stall_timeout(Duration::ZERO)
            .run(|| {
                threads_that_yield_are_counted_once_each();
                an_exclusive_thread_is_refused();
            })
            .unwrap();
    });
}

fn threads_that_yield_are_counted_once_each() {
    for threads in [1, 4] {
        let stop = Arc::new(AtomicBool::new(false));
        let turn = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
        };
        let crowd: Vec<_> = (0..threads).map(|_| thread::spawn(turn(Arc::clone(&stop)))).collect();
        let mut meter = LoadMeter::new();
        let deadline = Instant::now() + PATIENCE;
        // The thread that measures is runnable for a moment, too: at each timer.
        loop {
            thread::sleep(Duration::from_millis(20));
            let load = meter.load();
            let each = load.runnable / load.utilisation.max(0.01) / f64::from(threads);
            if load.utilisation > 0.1 && (0.9..1.15).contains(&each) {
                break;
            }
            assert!(Instant::now() < deadline, "{threads} threads: {load:?}");
        }
        stop.store(true, Ordering::Relaxed);
        crowd.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn an_exclusive_thread_is_refused() {
    let refused = Builder::new().class(ThreadClass::Exclusive).spawn(|| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
    assert!(refused.to_string().contains("TAILWATER_KTHREADS"), "{refused}");
    assert_eq!(cores::requested().total(), 0);
}
