//! Waking many threads: the cost of [`Event::set`] per waiting thread, and the longest time during
//! which no other thread gets the core.
//!
//! One kthread with time slices, and an ordinary thread on another core that watches its count of
//! switches while a wake is in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::Event;
use tailwater::{debug, thread};

tailwater::allocator!();

const QUANTUM: Duration = Duration::from_micros(100);
const ROUNDS: usize = 5;
/// Rounds and waiting threads if it only checks that it runs.
const LOOK: (usize, &[u64]) = (1, &[100]);

fn main() {
    // Cargo passes `--bench` to measure, and nothing or `--test` to run it once.
    let (rounds, sizes) = match std::env::args().any(|arg| arg == "--bench") {
        true => (ROUNDS, &[1_000, 100_000, 1_000_000][..]),
        false => LOOK,
    };
    let run = tailwater::RuntimeBuilder::new()
        .kthreads(1)
        .quantum(QUANTUM)
        .stall_timeout(Duration::ZERO)
        .run(move || {
            println!("{:>10} {:>14} {:>16}", "waiters", "ns per waiter", "longest turn us");
            for &waiters in sizes {
                let (mut ns, mut longest): (Vec<_>, Vec<_>) = (0..rounds).map(|_| measure(waiters)).unzip();
                ns.sort_by(f64::total_cmp);
                longest.sort();
                println!("{waiters:>10} {:>14.1} {:>16}", ns[rounds / 2], longest[rounds / 2].as_micros());
            }
        });
    run.expect("nothing else is set");
}

/// Returns the nanoseconds per thread of the call, and the longest time without a switch during it.
fn measure(waiters: u64) -> (f64, Duration) {
    let event = Arc::new(Event::new());
    let waiting = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..waiters)
        .map(|_| {
            let (event, waiting) = (Arc::clone(&event), Arc::clone(&waiting));
            thread::spawn(move || {
                waiting.fetch_add(1, Ordering::Relaxed);
                event.wait();
            })
        })
        .collect();
    while waiting.load(Ordering::Relaxed) < waiters {
        thread::yield_now();
    }
    // The watcher sets it when it watches, and the wake clears it.
    let in_progress = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let in_progress = Arc::clone(&in_progress);
        move || {
            let (mut last, mut since, mut longest) = (0, Instant::now(), Duration::ZERO);
            in_progress.store(true, Ordering::Relaxed);
            while in_progress.load(Ordering::Relaxed) {
                let switches = debug::counters().switches;
                longest = longest.max(since.elapsed());
                if switches != last {
                    (last, since) = (switches, Instant::now());
                }
            }
            longest
        }
    });
    while !in_progress.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    let start = Instant::now();
    event.set();
    let took = start.elapsed();
    in_progress.store(false, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    (took.as_nanos() as f64 / waiters as f64, tailwater::blocking(|| watcher.join().unwrap()))
}
