//! Time stamps across threads, and the figures made of them.
//!
//! # Orderings
//! The measured thread writes `STAMP` and `WAITING` with Release, the measuring thread reads them
//! with Acquire: it sees everything before the stamp. The turnaround's stamps are Relaxed; joining
//! the threads orders them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tailwater_shm::{Clock, clock};

use crate::bench::threads::operation::{BATCH, CHILD_NS};
use crate::bench::threads::protocol::Answer;

/// The time of the measured thread's first instruction; 0 before.
static STAMP: AtomicU64 = AtomicU64::new(0);
/// The turn that the waiting thread waits for.
static WAITING: AtomicU64 = AtomicU64::new(0);
/// First and last instruction of each thread of a batch.
static LIVES: [(AtomicU64, AtomicU64); BATCH] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; BATCH];

/// Longest wait for another core to begin; a host may take the core away for some milliseconds.
const PATIENCE: Duration = Duration::from_millis(50);
/// Consecutive lost samples after which the system counts as one that uses no other core while this
/// one is busy.
const MAX_LOST: u32 = 4;
/// Time for another core to become idle again: longer than any path to a scheduler's idle loop.
const SETTLE_NS: u64 = 4000;

/// The work of a thread of `Dispatch`: computes; returns whether it is the last one of `left`.
pub fn child(clock: Clock, left: &AtomicU64) -> bool {
    let until = clock::now() + clock.from_ns(CHILD_NS);
    while clock::now() < until {}
    // Relaxed: a counter; what the last one does next is ordered by a lock or a notification.
    left.fetch_sub(1, Ordering::Relaxed) == 1
}

/// Stores the time of the first instruction.
pub fn stamp() {
    STAMP.store(clock::now(), Ordering::Release);
}

/// Stores that the thread is about to wait for its `turn`-th notification, and holds the lock that
/// the notification needs; 0 before.
pub fn announce(turn: u64) {
    WAITING.store(turn, Ordering::Release);
}

/// Returns whether the thread waits for its `turn`-th notification.
pub fn waits(turn: u64) -> bool {
    WAITING.load(Ordering::Acquire) == turn
}

/// Samples of one-way latencies.
#[derive(Debug, Default)]
pub struct Samples {
    cycles: Vec<u64>,
    lost: u32,
}

impl Samples {
    /// Spins until the other core is idle, then times from before `begin` to the stamp. False after
    /// too many lost samples.
    pub fn time<T>(&mut self, clock: Clock, begin: impl FnOnce() -> T) -> (T, bool) {
        let settled = clock::now() + clock.from_ns(SETTLE_NS);
        while clock::now() < settled {
            std::hint::spin_loop();
        }
        STAMP.store(0, Ordering::Release);
        let start = clock::now();
        let value = begin();
        match wait_for_stamp() {
            // The counters of two cores may differ by some cycles.
            Some(first) => {
                self.cycles.push(first.saturating_sub(start));
                self.lost = 0;
            }
            None => self.lost += 1,
        }
        (value, self.lost < MAX_LOST)
    }

    /// Returns the median; `None` if no sample was taken on another core.
    pub fn answer(mut self, clock: Clock) -> Option<Answer> {
        median(&mut self.cycles).filter(|_| self.lost < MAX_LOST).map(|c| Answer::ns(ns(c, clock)))
    }
}

/// Spins until the stamp: while this core is busy, the thread runs on another.
fn wait_for_stamp() -> Option<u64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for _ in 0..1000 {
            let stamp = STAMP.load(Ordering::Acquire);
            if stamp != 0 {
                return Some(stamp);
            }
            std::hint::spin_loop();
        }
        if Instant::now() > deadline {
            return None;
        }
    }
}

/// The body of thread `i` of a batch.
pub fn live(i: usize) {
    LIVES[i].0.store(clock::now(), Ordering::Relaxed);
    LIVES[i].1.store(clock::now(), Ordering::Relaxed);
}

/// Adds the cycles from each end to the next beginning of the batch that has just ended.
pub fn add_turnarounds(cycles: &mut Vec<u64>) {
    let mut lives: Vec<_> =
        LIVES.iter().map(|l| (l.0.load(Ordering::Relaxed), l.1.load(Ordering::Relaxed))).collect();
    lives.sort_unstable();
    cycles.extend(lives.windows(2).map(|pair| pair[1].0.saturating_sub(pair[0].1)));
}

/// Returns the median turnaround.
pub fn turnaround(mut cycles: Vec<u64>, clock: Clock) -> Option<Answer> {
    median(&mut cycles).map(|c| Answer::ns(ns(c, clock)))
}

fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn ns(cycles: u64, clock: Clock) -> f64 {
    cycles as f64 * 1e9 / clock.hz() as f64
}

/// Times `n` operations together.
pub fn mean(n: u64, operation: impl FnOnce(u64)) -> Option<Answer> {
    let start = Instant::now();
    operation(n);
    Some(Answer::ns(start.elapsed().as_nanos() as f64 / n as f64))
}

/// Resident KiB of this process, page tables included; 0 if the kernel does not report it.
pub fn resident_kib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmPTE:"].iter().filter_map(|name| field_kib(&status, name)).sum()
}

fn field_kib(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kib() {
        assert_eq!(field_kib("VmPeak:\t 9 kB\nVmRSS:\t    2048 kB\n", "VmRSS:"), Some(2048.0));
        assert_eq!(field_kib("VmRSS:\t2048 pages\n", "VmRSS:"), None);
        assert!(resident_kib() > 100.0);
    }

    #[test]
    fn a_turnaround_is_from_an_end_to_the_next_beginning_whatever_the_order() {
        for (i, life) in LIVES.iter().enumerate() {
            let begin = 1000 - 10 * i as u64;
            life.0.store(begin, Ordering::Relaxed);
            life.1.store(begin + 3, Ordering::Relaxed);
        }
        let mut cycles = Vec::new();
        add_turnarounds(&mut cycles);
        assert_eq!(cycles, [7; BATCH - 1]);
    }

    #[test]
    fn an_even_number_of_samples_has_a_median_too() {
        assert_eq!((median(&mut [9, 1, 5]), median(&mut [4, 2]), median(&mut [])), (Some(5), Some(4), None));
    }
}
