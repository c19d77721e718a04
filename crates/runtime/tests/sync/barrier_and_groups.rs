use crate::support::{in_both_worlds, mixed, panic_message, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::{Barrier, WaitGroup};
use tailwater::thread;
use tailwater_testkit::PATIENCE;

#[test]
fn a_barrier_keeps_threads_in_step_and_names_one_leader_each_time() {
    const THREADS: usize = 8;
    const MEETINGS: usize = 100;
    let shared = Arc::new((Barrier::new(THREADS), AtomicUsize::new(0), AtomicUsize::new(0)));
    let table = Arc::clone(&shared);
    mixed(THREADS, move |_| {
        for meeting in 0..MEETINGS {
            table.1.fetch_add(1, Ordering::SeqCst);
            if table.0.wait().is_leader() {
                table.2.fetch_add(1, Ordering::SeqCst);
            }
            let arrived = table.1.load(Ordering::SeqCst);
            assert!(arrived >= (meeting + 1) * THREADS, "a thread passed before all had come");
            assert!(arrived <= (meeting + 2) * THREADS);
        }
    });
    assert_eq!(shared.2.load(Ordering::SeqCst), MEETINGS);
}

#[test]
fn a_barrier_for_one_or_none_never_waits() {
    in_both_worlds(|| assert!(Barrier::new(0).wait().is_leader() && Barrier::new(1).wait().is_leader()));
}

#[test]
fn a_group_waits_for_tasks_tasks_of_tasks_and_panics() {
    in_both_worlds(|| {
        let group = WaitGroup::new();
        group.wait();
        let done = Arc::new(AtomicUsize::new(0));
        for number in 0..12 {
            let (task, done) = (group.add(), Arc::clone(&done));
            spawn(number, move || {
                let (inner_task, inner_done) = (task.clone(), Arc::clone(&done));
                thread::spawn(move || {
                    thread::yield_now();
                    inner_done.fetch_add(1, Ordering::SeqCst);
                    drop(inner_task);
                });
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        group.wait();
        assert_eq!((done.load(Ordering::SeqCst), group.tasks()), (24, 0));
        let task = group.add();
        assert_eq!(
            panic_message(move || {
                let _task = task;
                panic!("half done");
            }),
            "half done"
        );
        group.wait();
    });
}

#[test]
fn a_timed_wait_for_a_group_ends() {
    in_both_worlds(|| {
        let group = WaitGroup::new();
        let task = group.add();
        let start = Instant::now();
        assert!(!group.wait_timeout(Duration::from_millis(5)));
        assert!(start.elapsed() >= Duration::from_millis(5));
        let other = spawn(0, move || drop(task));
        assert!(group.wait_timeout(PATIENCE));
        other.join().unwrap();
    });
}
