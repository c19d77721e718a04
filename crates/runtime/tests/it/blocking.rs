//! `blocking` from user threads. One runtime per process, so one test function runs all.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tailwater::{blocking, thread};
use tailwater_testkit::own_process;

const LIMIT: usize = 3;

#[test]
fn blocking_calls_leave_the_core_to_others() {
    own_process(|| {
        assert_eq!(blocking(|| 1), 1, "without a runtime");
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .blocking_threads(LIMIT as u16)
            .run(|| {
                values_borrows_and_panics_come_back();
                the_core_goes_to_other_threads_meanwhile();
                the_limit_holds_and_everything_runs();
                a_spin_lock_is_refused_before_anything_starts();
            })
            .unwrap();
    });
}

fn values_borrows_and_panics_come_back() {
    let mut text = String::from("lent");
    let (length, inside) = blocking(|| {
        text.push('!');
        // Nested: already on an ordinary thread.
        (blocking(|| text.len()), thread::is_user_thread())
    });
    assert_eq!((length, inside, text.as_str()), (5, false, "lent!"));
    assert!(thread::is_user_thread());
    let caught = catch_unwind(|| blocking(|| -> () { resume_unwind(Box::new(7u8)) }));
    assert_eq!(*caught.unwrap_err().downcast::<u8>().unwrap(), 7);
    assert_eq!(thread::spawn_blocking(|| "value").join().unwrap(), "value");
    assert!(thread::spawn_blocking(|| -> () { resume_unwind(Box::new(())) }).join().is_err());
}

fn the_core_goes_to_other_threads_meanwhile() {
    // With one kthread this only ends if the barrier's two sides run at the same time: the call on
    // the pool, and the user thread that starts it while the first waits.
    let barrier = Arc::new(Barrier::new(2));
    let first = thread::spawn_blocking({
        let barrier = Arc::clone(&barrier);
        move || barrier.wait().is_leader()
    });
    let second = thread::spawn_blocking(move || barrier.wait().is_leader());
    assert_ne!(first.join().unwrap(), second.join().unwrap());
}

fn the_limit_holds_and_everything_runs() {
    let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|s| {
        for _ in 0..40 {
            s.spawn(|| {
                blocking(|| {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            });
        }
    });
    assert!(most.into_inner() <= LIMIT, "more threads than allowed");
}

fn a_spin_lock_is_refused_before_anything_starts() {
    let started = AtomicUsize::new(0);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let lock = tailwater::internals::SpinLock::new(());
        let _guard = lock.lock();
        blocking(|| started.fetch_add(1, Ordering::SeqCst));
    }));
    let message = *caught.unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("spin lock"), "{message}");
    assert_eq!(started.into_inner(), 0);
}
