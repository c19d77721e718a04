//! An event loop that polls without waiting, on the only kthread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::events::{Batch, EventLoop};
use tailwater_testkit::PATIENCE;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();

#[test]
fn polls_with_a_time_of_zero_let_other_threads_run() {
    tailwater::Builder::new()
        .kthreads(1)
        .run(|| {
            let has_run = Arc::new(AtomicBool::new(false));
            let copy = Arc::clone(&has_run);
            let other = tailwater::thread::spawn(move || copy.store(true, Relaxed));
            let (mut events, mut batch, start) = (EventLoop::new(), Batch::new(), Instant::now());
            while !has_run.load(Relaxed) {
                assert_eq!(events.poll(&mut batch, Some(Duration::ZERO)), 0);
                assert!(start.elapsed() < PATIENCE, "the other thread never runs");
            }
            other.join().unwrap();
        })
        .unwrap();
}
