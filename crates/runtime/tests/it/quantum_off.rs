//! A program that cannot gain from a quantum has none, even if one is set.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::thread;
use tailwater_testkit::own_process;

static RAN: AtomicBool = AtomicBool::new(false);

#[test]
fn a_thread_keeps_its_kthread_where_the_quantum_stays_off() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .quantum(Duration::from_millis(1))
            .without_quantum("one request runs at a time")
            .run(|| {
                let other = thread::spawn(|| RAN.store(true, Relaxed));
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(50) {
                    tailwater::poll();
                }
                assert!(!RAN.load(Relaxed), "it was exchanged for the other thread");
                other.join().unwrap();
            })
            .unwrap();
        assert!(RAN.load(Relaxed));
    });
}
