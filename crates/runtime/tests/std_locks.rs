//! A lock of `std`'s held over a switch costs a stall, not the program.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater::thread;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc;

#[test]
fn a_thread_that_sleeps_in_the_kernel_gives_way_to_the_one_it_waits_for() {
    static LOCK: Mutex<u32> = Mutex::new(0);
    static HELD: AtomicBool = AtomicBool::new(false);
    // One kthread: who waits for the lock sleeps with the only core that its holder could run on.
    let builder = tailwater::Builder::new().kthreads(1).stall_timeout(Duration::from_millis(20));
    let sum = builder
        .run(|| {
            let holder = thread::spawn(|| {
                let mut value = LOCK.lock().unwrap();
                HELD.store(true, Ordering::Relaxed);
                // The others find the lock held, and sleep.
                thread::yield_now();
                *value += 1;
            });
            while !HELD.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let waiters: Vec<_> = (0..3).map(|_| thread::spawn(|| *LOCK.lock().unwrap() += 10)).collect();
            holder.join().unwrap();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            *LOCK.lock().unwrap()
        })
        .unwrap();
    assert_eq!(sum, 31);
}
