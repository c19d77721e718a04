//! Mutexes and RCU cells where `membarrier(2)` is refused: from the beginning, or since a program
//! has installed a filter of system calls. Each test runs itself in a child process.

use crate::filter;
use std::sync::Arc;
use tailwater::sync::{Mutex, Rcu};
use tailwater::thread;
use tailwater_testkit::{is_rerun, rerun};

/// What a child prints when no filter can be installed.
const SKIPPED: &str = "skipped";

/// Runs `main` in its own process, which is this test again.
fn in_child(test: &str, main: impl FnOnce()) {
    if is_rerun(test) {
        main();
        std::process::exit(0);
    }
    let output = tailwater_testkit::run(&mut rerun(module_path!(), test), b"");
    let [printed, errors] = [&output.stdout, &output.stderr].map(|text| tailwater_testkit::text(text));
    if printed.contains(SKIPPED) {
        eprintln!("skipped: the kernel has no filters of system calls");
        return;
    }
    assert!(output.status.success() && printed.contains("ended"), "{printed}{errors}");
}

/// Has the kernel refuse `membarrier(2)` to the process.
fn refuse_membarrier() {
    if !filter::refuse(libc::SYS_membarrier) {
        println!("{SKIPPED}");
        std::process::exit(0);
    }
    // SAFETY: a query without memory.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    assert_eq!(answer, -1, "membarrier(2) is not refused");
}

/// Has user threads and OS threads wait for fresh mutexes.
fn contend(mutexes: usize) {
    for _ in 0..mutexes {
        let mutex = Arc::new(Mutex::new(0));
        let add = |mutex: &Mutex<u32>, pause: fn()| {
            for _ in 0..10 {
                let mut guard = mutex.lock().unwrap();
                pause();
                *guard += 1;
            }
        };
        let users = [(); 3].map(|()| {
            let mutex = Arc::clone(&mutex);
            // While it is held, others find it so.
            thread::spawn(move || add(&mutex, thread::yield_now))
        });
        let other = {
            let mutex = Arc::clone(&mutex);
            std::thread::spawn(move || add(&mutex, std::hint::spin_loop))
        };
        users.into_iter().for_each(|user| user.join().unwrap());
        tailwater::blocking(move || other.join().unwrap());
        assert_eq!(*mutex.lock().unwrap(), 40);
    }
}

#[test]
fn mutexes_work_where_the_barrier_is_refused_from_the_beginning() {
    in_child("mutexes_work_where_the_barrier_is_refused_from_the_beginning", || {
        refuse_membarrier();
        tailwater::RuntimeBuilder::new().kthreads(2).run(|| contend(200)).unwrap();
        println!("ended");
    });
}

#[test]
fn mutexes_work_after_a_filter_has_taken_the_barrier_away() {
    in_child("mutexes_work_after_a_filter_has_taken_the_barrier_away", || {
        let run = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
            contend(20);
            let old = Mutex::new(0);
            refuse_membarrier();
            contend(100);
            *old.lock().unwrap() += 1;
        });
        run.unwrap();
        println!("ended");
    });
}

#[test]
fn a_cell_that_is_made_after_the_filter_can_be_written() {
    in_child("a_cell_that_is_made_after_the_filter_can_be_written", || {
        let run = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
            refuse_membarrier();
            let cell = Rcu::new(1);
            assert_eq!(*cell.replace(2), 1);
            cell.with(|value| assert_eq!(*value, 2));
        });
        run.unwrap();
        println!("ended");
    });
}
