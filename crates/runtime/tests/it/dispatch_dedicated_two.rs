//! A dispatcher with one of two kthreads, and one worker on the other: what it runs next, and what
//! it gives way to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;
use tailwater::dispatch::{Dispatcher, Request, RequestClass, Settings};
use tailwater::sync::mpsc;
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

type Job = Box<dyn FnOnce() + Send>;

#[test]
fn a_dispatcher_and_a_worker() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                let settings = Settings::new("sq:5us".parse().unwrap())
                    .class(RequestClass::new("all"))
                    .dispatchers(1)
                    .depth(2)
                    .preempted(8);
                let dispatcher = Dispatcher::start(settings, |_| (), |job: Job| job()).unwrap();
                let mut in_order = 0;
                for _ in 0..20 {
                    short_requests_overtake_a_long_one(dispatcher);
                    requests_that_do_not_end_alone_take_turns(dispatcher);
                    a_request_without_poll_points_gives_way(dispatcher);
                    a_request_that_blocks_lets_others_run(dispatcher);
                    in_order += u32::from(new_requests_run_in_order(dispatcher));
                }
                assert!(in_order > 0, "requests ran in order in no round");
                no_second_dispatcher_has_a_kthread_left();
            })
            .unwrap();
    });
}

fn submit(dispatcher: Dispatcher<Job>, job: impl FnOnce() + Send + 'static) {
    dispatcher.submit(Request::new(0), Box::new(job)).unwrap();
}

/// Computes with poll points until `condition`.
fn compute_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        tailwater::poll();
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::yield_now();
    }
}

fn short_requests_overtake_a_long_one(dispatcher: Dispatcher<Job>) {
    const SHORT: usize = 10;
    let (done, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, ended) = (Arc::clone(&count), Arc::clone(&done));
    submit(dispatcher, move || {
        compute_until("short ones run", || seen.load(SeqCst) == SHORT);
        ended.store(1, SeqCst);
    });
    for _ in 0..SHORT {
        let count = Arc::clone(&count);
        submit(dispatcher, move || {
            count.fetch_add(1, SeqCst);
        });
    }
    wait_until("the long request ends", || done.load(SeqCst) == 1);
}

fn requests_that_do_not_end_alone_take_turns(dispatcher: Dispatcher<Job>) {
    const EACH: usize = 4;
    let begun = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..EACH {
        let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
        submit(dispatcher, move || {
            begun.fetch_add(1, SeqCst);
            compute_until("all have begun", || begun.load(SeqCst) == EACH);
            ended.fetch_add(1, SeqCst);
        });
    }
    wait_until("all end", || ended.load(SeqCst) == EACH);
}

fn a_request_without_poll_points_gives_way(dispatcher: Dispatcher<Job>) {
    let other = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&other);
    // This thread blocks: one that is runnable ends the turn too.
    let (done, results) = mpsc::channel();
    submit(dispatcher, move || {
        let start = Instant::now();
        while !seen.load(SeqCst) {
            assert!(start.elapsed() < PATIENCE, "no signal interrupted the request");
            std::hint::spin_loop();
        }
        done.send(()).unwrap();
    });
    submit(dispatcher, move || other.store(true, SeqCst));
    assert_eq!(results.recv(), Ok(()));
}

fn a_request_that_blocks_lets_others_run(dispatcher: Dispatcher<Job>) {
    let (send, receive) = mpsc::channel();
    let (done, results) = mpsc::channel();
    submit(dispatcher, move || done.send(receive.recv().unwrap()).unwrap());
    submit(dispatcher, move || send.send(7).unwrap());
    assert_eq!(results.recv(), Ok(7));
}

/// Returns whether they did. If not, one has given way before it noted its place, after Linux had
/// stopped it for longer than its quantum.
fn new_requests_run_in_order(dispatcher: Dispatcher<Job>) -> bool {
    const REQUESTS: usize = 50;
    let preemptions = || dispatcher.stats()[0].preemptions;
    let before = preemptions();
    let (done, results) = mpsc::channel();
    let next = Arc::new(AtomicUsize::new(0));
    for number in 0..REQUESTS {
        let (done, next) = (done.clone(), Arc::clone(&next));
        submit(dispatcher, move || {
            // One that Linux stops later may give way, so what counts is the beginning.
            let place = next.fetch_add(1, SeqCst);
            done.send((number, place)).unwrap();
        });
    }
    let mut places: Vec<(usize, usize)> = results.iter().take(REQUESTS).collect();
    places.sort_unstable();
    let in_order = places.iter().all(|(number, place)| number == place);
    assert!(in_order || preemptions() > before, "{places:?}");
    in_order
}

fn no_second_dispatcher_has_a_kthread_left() {
    let settings = Settings::new("jbsq:2".parse().unwrap());
    let message = Dispatcher::start(settings, |_| (), |(): ()| ()).unwrap_err().to_string();
    assert!(message.contains("each worker schedules itself"), "{message}");
}
