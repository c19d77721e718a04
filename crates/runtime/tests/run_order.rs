//! In which order the threads of a single kthread run, and where their stacks lie. One runtime per process, so one test function runs all.

use std::collections::HashSet;
use std::sync::Arc;
use tailwater::sync::Mutex;
use tailwater::thread;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc;

/// More than a run queue holds, so that some overflow.
const MANY: usize = 400;
/// Bytes of a page and of a cache line.
const PAGE: usize = 4096;
const LINE: usize = 64;

#[test]
fn threads_of_one_kthread_take_turns() {
    tailwater::Builder::new()
        .kthreads(1)
        .run(|| {
            a_late_thread_runs_after_those_that_overflowed_the_run_queue();
            stacks_of_many_threads_share_no_set_of_a_cache();
        })
        .unwrap();
}

fn a_late_thread_runs_after_those_that_overflowed_the_run_queue() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |number: usize| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(number)
    };
    let late = note(MANY);
    let first = {
        let note = note(0);
        thread::spawn(move || {
            note();
            thread::spawn(late)
        })
    };
    let rest: Vec<_> = (1..MANY).map(|number| thread::spawn(note(number))).collect();
    first.join().unwrap().join().unwrap();
    rest.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(order.lock().unwrap().iter().copied().eq(0..=MANY), "{order:?}");
}

/// Where in its page the caller's stack stands, to a line.
#[inline(never)]
fn line_in_page() -> usize {
    let here = 0_u8;
    std::hint::black_box(&raw const here) as usize % PAGE / LINE
}

fn stacks_of_many_threads_share_no_set_of_a_cache() {
    let threads: Vec<_> = (0..MANY).map(|_| thread::spawn(line_in_page)).collect();
    let lines: HashSet<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(lines.len() > PAGE / LINE * 3 / 4, "only at {lines:?}");
}
