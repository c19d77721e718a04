//! The machine's figures, which bound every library's from below: a cache line between cores,
//! locked instructions, the cycle counter.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::sched_setaffinity;
use tailwater_shm::{Clock, clock};

use super::samples::mean;
use crate::bench::threads::operation::Operation;
use crate::bench::threads::protocol::Answer;
use tailwater_testbed::machine::{cpu_set, usable_cores};

/// Performs `op` `n` times; `None` for an operation of threads, or without the second core that it
/// needs.
pub fn perform(op: Operation, n: u64, clock: Clock) -> Option<Answer> {
    match op {
        Operation::Line => line(n).map(|cycles| Answer::ns(cycles * 1e9 / clock.hz() as f64)),
        Operation::CasPair => mean(n, cas_pairs),
        Operation::Rdtsc => mean(n, stamps),
        _ => None,
    }
}

/// A word alone on its cache line.
#[repr(align(128))]
struct Line(AtomicU64);

/// Half the round trip of a cache line between two cores, in cycles: the median over batches of 16,
/// since a stall of either core stops both.
fn line(n: u64) -> Option<f64> {
    const BATCH: u64 = 16;
    let &[here, there, ..] = usable_cores().as_slice() else { return None };
    let ball = Line(AtomicU64::new(0));
    let rounds = n.next_multiple_of(BATCH);
    // Release and Acquire pair between the two sides; only the number itself is passed.
    let turn = |wanted: u64| {
        while ball.0.load(Ordering::Acquire) != wanted {
            spin_loop();
        }
        ball.0.store(wanted + 1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(there);
            (0..rounds).for_each(|i| turn(2 * i + 1));
        });
        let timed = scope.spawn(|| {
            pin(here);
            let mut batches: Vec<u64> = Vec::new();
            for batch in 0..rounds / BATCH {
                let start = clock::now();
                (batch * BATCH..(batch + 1) * BATCH).for_each(|i| turn(2 * i));
                batches.push(clock::now() - start);
            }
            batches.sort_unstable();
            batches[batches.len() / 2] as f64 / (2 * BATCH) as f64
        });
        timed.join().ok()
    })
}

fn pin(core: usize) {
    // Cannot fail: the process may use the core.
    let _ = sched_setaffinity(None, &cpu_set(&[core]));
}

fn stamps(n: u64) {
    for _ in 0..n {
        black_box(clock::now());
    }
}

fn cas_pairs(n: u64) {
    let lock = AtomicU64::new(0);
    for _ in 0..n {
        let lock = black_box(&lock);
        // Acquire and Release as in a lock; no other thread uses it.
        let _ = lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        let _ = lock.compare_exchange(1, 0, Ordering::Release, Ordering::Relaxed);
    }
}
