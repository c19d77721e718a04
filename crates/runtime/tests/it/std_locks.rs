//! Holding a lock of `std` over a switch costs a stall, but does not deadlock the program.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater::thread;
use tailwater_testkit::own_process;

#[test]
fn a_thread_that_sleeps_in_the_kernel_gives_way_to_the_one_it_waits_for() {
    own_process(|| {
        static LOCK: Mutex<u32> = Mutex::new(0);
        static HELD: AtomicBool = AtomicBool::new(false);
        static WANTED: AtomicBool = AtomicBool::new(false);
        // One kthread: a thread that waits for the lock sleeps with the only core that its holder
        // could run on.
        let builder = tailwater::RuntimeBuilder::new().kthreads(1).stall_timeout(Duration::from_millis(200));
        let sum = builder
            .run(|| {
                let holder = thread::spawn(|| {
                    let mut value = LOCK.lock().unwrap();
                    HELD.store(true, Ordering::Relaxed);
                    // A thread that finds the lock held sleeps before this one runs again.
                    while !WANTED.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    *value += 1;
                });
                while !HELD.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                let wait = || {
                    WANTED.store(true, Ordering::Relaxed);
                    *LOCK.lock().unwrap() += 10;
                };
                let waiters: Vec<_> = (0..3).map(|_| thread::spawn(wait)).collect();
                holder.join().unwrap();
                waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
                *LOCK.lock().unwrap()
            })
            .unwrap();
        assert_eq!(sum, 31);
    });
}
