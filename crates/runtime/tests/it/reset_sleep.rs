//! Sleeps of ordinary threads, standalone, in a process of its own: it has one kthread, which the
//! test keeps.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Waker};
use std::time::{Duration, Instant};
use tailwater::future::sleep;
use tailwater::{dump, thread};
use tailwater_testkit::{PATIENCE, own_process};

const AGES: Duration = Duration::from_secs(3600);

/// Waits until this many user threads sleep. Beside them there are the caller and the relay, which
/// calls wakers of other executors.
fn until_sleepers_are(count: usize) {
    let start = Instant::now();
    loop {
        let dump = dump();
        if dump.threads.len() == count + 2 {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{dump}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_sleep_that_is_reset_ends_the_thread_that_slept_for_it() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .stall_timeout(Duration::ZERO)
            .run(|| {
                let resets = std::thread::spawn(|| {
                    let mut nap = sleep(AGES);
                    for _ in 0..20 {
                        nap.reset(Instant::now() + AGES);
                        let poll = Pin::new(&mut nap).poll(&mut Context::from_waker(Waker::noop()));
                        assert!(poll.is_pending());
                    }
                    nap
                });
                // The only kthread waits here: none of the threads that sleep has run yet.
                let nap = resets.join().unwrap();
                until_sleepers_are(1);
                drop(nap);
                until_sleepers_are(0);
            })
            .unwrap();
    });
}
