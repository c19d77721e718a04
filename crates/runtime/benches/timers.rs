//! The cost that a timeout adds to a wait while up to a million other timers are pending.
//!
//! Two threads on one kthread wake each other in turn. A wait with a timeout inserts a timer at a
//! random place of the heap and removes it again; the difference from a wait without one is the
//! cost of the timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::Semaphore;
use tailwater::thread;

tailwater::allocator!();

/// No timer fires while the benchmark runs.
const HOUR: Duration = Duration::from_secs(3600);
const ROUNDS: usize = 9;
/// Turns of a round.
const TURNS: u64 = 100_000;
/// Rounds, turns and pending timers if it only checks that it runs.
const LOOK: (usize, u64, &[u64]) = (1, 100, &[10]);

fn main() {
    // Cargo passes `--bench` to measure, and nothing or `--test` to run it once.
    let (rounds, turns, sizes) = match std::env::args().any(|arg| arg == "--bench") {
        true => (ROUNDS, TURNS, &[1_000, 1_000_000][..]),
        false => LOOK,
    };
    let builder =
        tailwater::RuntimeBuilder::new().kthreads(1).stack_size(16 * 1024).stall_timeout(Duration::ZERO);
    let run = builder.run(move || {
        println!("{:>10} {:>16} {:>20}", "pending", "ns per wait", "ns with a timeout");
        let mut pending = 0;
        for &size in sizes {
            sleepers(size - pending);
            pending = size;
            let median = |timeout| {
                let mut ns: Vec<_> = (0..rounds).map(|_| turn_about(turns, timeout)).collect();
                ns.sort_by(f64::total_cmp);
                ns[rounds / 2]
            };
            println!("{pending:>10} {:>16.1} {:>20.1}", median(false), median(true));
        }
    });
    run.expect("nothing else is set");
}

/// Starts `count` threads that sleep for hours, and returns when all sleep.
fn sleepers(count: u64) {
    let asleep = Arc::new(AtomicU64::new(0));
    for number in 0..count {
        let asleep = Arc::clone(&asleep);
        thread::spawn(move || {
            asleep.fetch_add(1, Ordering::Relaxed);
            thread::sleep(HOUR + Duration::from_micros(scatter(number)));
        });
    }
    while asleep.load(Ordering::Relaxed) < count {
        thread::yield_now();
    }
}

/// Spreads numbers over about nine hours of microseconds (Fibonacci hashing, Knuth 6.4).
fn scatter(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29
}

/// Returns the nanoseconds per wait of two threads that wake each other `turns` times.
fn turn_about(turns: u64, timeout: bool) -> f64 {
    let ends = Arc::new([Semaphore::new(0), Semaphore::new(0)]);
    let other = thread::spawn({
        let ends = Arc::clone(&ends);
        move || take_turns(&ends[0], &ends[1], turns, timeout)
    });
    let start = Instant::now();
    ends[0].add_permits(1);
    take_turns(&ends[1], &ends[0], turns, timeout);
    let took = start.elapsed();
    other.join().unwrap();
    took.as_nanos() as f64 / (2 * turns) as f64
}

fn take_turns(mine: &Semaphore, other: &Semaphore, turns: u64, timeout: bool) {
    for turn in 0..turns {
        if timeout {
            let limit = HOUR + Duration::from_micros(scatter(turn));
            mine.acquire_timeout(limit).expect("the other thread returns the permit").forget();
        } else {
            mine.acquire().forget();
        }
        other.add_permits(1);
    }
}
