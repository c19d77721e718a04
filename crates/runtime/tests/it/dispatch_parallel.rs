//! Dispatchers on two kthreads: every request is handled once, under random preemption, blocking
//! and stealing; and one without poll points gives way by signal.

use crate::common::{PATIENCE, every_request_is_handled_once, settings, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Instant;
use tailwater::dispatch::{Dispatcher, Request};
use tailwater_testkit::own_process;

#[test]
fn dispatchers_on_two_kthreads() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                for policy in ["c-fcfs", "steal:4", "sq:5us", "sq:5us,head", "mq:5us", "mq:20us,tail", "srpt"]
                {
                    requests_of_all_kinds_end(policy);
                }
                a_request_without_poll_points_gives_way();
            })
            .unwrap();
    });
}

fn requests_of_all_kinds_end(policy: &str) {
    let stats = every_request_is_handled_once(&settings(policy), |_| ());
    if ["c-fcfs", "steal:4"].contains(&policy) {
        // A request gives way to other threads after the program's quantum, to no other request.
        assert!(stats.iter().all(|class| class.preemptions == 0), "{policy}");
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
    wait_until("both long requests end", || long_ends.load(Relaxed) == 2);
}
