//! Work that takes a given time of *computing*.
//!
//! Owns: a loop of dependent integer operations and its calibration. A number of nanoseconds becomes a number of
//! iterations, so time during which the thread was preempted, or its virtual CPU was taken away, does not count as work: it
//! is delay, which is what the experiments measure. Waiting for a clock instead would hide it.
//!
//! Touches no memory but its stack, so its speed does not depend on what ran on the core before.

use std::hint::black_box;
use std::time::Instant;

/// Aimed-at computing time between two polls. The bound that services rely on is 200 ns; half of it leaves room for a
/// core that runs slower than when it was calibrated.
const POLL_NS: u64 = 100;

/// Iterations timed at once: 20-40 us, short enough that some run is free of interruptions.
const RUN_ITERATIONS: u64 = 20_000;

/// Runs of a calibration; the fastest counts. Together 5-10 ms, longer than the longest stall seen on the machines this was
/// written on.
const RUNS: u32 = 250;

/// Speed is kept in iterations per 2^20 ns, about a millisecond, so that conversion is a product and a shift.
const SPEED_SHIFT: u32 = 20;

/// A calibrated source of work. Copy it to every thread that works; all must use the same one to be comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spinner {
    /// Iterations per 2^[`SPEED_SHIFT`] ns.
    speed: u64,
    /// Iterations between two polls.
    chunk: u64,
}

impl Spinner {
    /// Times the loop on the calling thread's core: the fastest of many short runs, so an interruption of one
    /// of them does not matter. Takes 5-10 ms.
    #[must_use]
    pub fn calibrate() -> Self {
        let mut fastest_ns = u64::MAX;
        for _ in 0..RUNS {
            let start = Instant::now();
            iterate(RUN_ITERATIONS);
            fastest_ns = fastest_ns.min(start.elapsed().as_nanos() as u64);
        }
        Self::with_scaled_speed((RUN_ITERATIONS << SPEED_SHIFT) / fastest_ns.max(1))
    }

    /// A spinner of a known speed, from 1 iteration per ms to 1,000 per ns: to repeat a run with the same work, or to
    /// give several processes the same calibration.
    #[must_use]
    pub fn with_speed(iterations_per_ms: u64) -> Self {
        let per_ms = iterations_per_ms.clamp(1, 1_000_000_000);
        Self::with_scaled_speed((per_ms << SPEED_SHIFT) / 1_000_000)
    }

    fn with_scaled_speed(speed: u64) -> Self {
        let speed = speed.max(1);
        Self { speed, chunk: scale(POLL_NS, speed).max(1) }
    }

    /// Iterations per millisecond, to within 1.
    #[must_use]
    pub fn iterations_per_ms(&self) -> u64 {
        scale(1_000_000, self.speed)
    }

    /// Computes for `work_ns` nanoseconds of an undisturbed core, calling `poll` once per started 100 ns of them.
    #[inline]
    pub fn work(&self, work_ns: u64, poll: &mut impl FnMut()) {
        let mut left = scale(work_ns, self.speed);
        while left > 0 {
            let now = left.min(self.chunk);
            iterate(now);
            poll();
            left -= now;
        }
    }
}

/// Iterations that `ns` take, to the nearest.
fn scale(ns: u64, speed: u64) -> u64 {
    let product = u128::from(ns) * u128::from(speed);
    ((product + (1 << (SPEED_SHIFT - 1))) >> SPEED_SHIFT) as u64
}

/// The loop: each iteration needs the result of the one before (a multiplication and an addition), so no processor can
/// run two at once. Not inlined, so that calibration and work run the same instructions.
#[inline(never)]
fn iterate(iterations: u64) {
    let mut x = black_box(0x9e37_79b9_7f4a_7c15u64);
    for _ in 0..iterations {
        x = x.wrapping_mul(0xd129_42ab_1fe7_2b6d).wrapping_add(iterations);
        x = black_box(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_work_is_no_time_and_no_poll() {
        Spinner::with_speed(1_000_000).work(0, &mut || panic!("nothing to do"));
    }

    #[test]
    fn work_takes_about_the_time_asked_for_when_nothing_interferes() {
        // Of many tries some are undisturbed; a factor of 2 allows for a changed clock frequency and would not
        // hide a wrong unit.
        let spinner = Spinner::calibrate();
        let fastest = (0..200).map(|_| {
            let start = Instant::now();
            spinner.work(20_000, &mut || ());
            start.elapsed().as_nanos() as u64
        });
        let fastest = fastest.min().unwrap();
        assert!((10_000..40_000).contains(&fastest), "{fastest} ns for 20000, {spinner:?}");
    }

    proptest! {
        #[test]
        fn polls_come_every_100_ns_of_work(per_ms in 10_000u64..10_000_000, work_ns in 1u64..20_000) {
            let mut polls = 0u64;
            Spinner::with_speed(per_ms).work(work_ns, &mut || polls += 1);
            // One iteration more or less per chunk, where few fit into 100 ns.
            let per_chunk = (per_ms as f64 * 1e-4).round().max(1.0);
            let wanted = work_ns as f64 * per_ms as f64 * 1e-6 / per_chunk;
            prop_assert!((polls as f64 - wanted).abs() <= 1.0 + 0.01 * wanted, "{} polls, not {}", polls, wanted);
        }

        #[test]
        fn a_speed_is_kept(per_ms in 1u64..1_000_000_000) {
            prop_assert!(Spinner::with_speed(per_ms).iterations_per_ms().abs_diff(per_ms) <= 1);
        }
    }
}
