//! Work that takes a given time of *computing*.
//!
//! Owns a loop of dependent integer operations and its calibration. A number of nanoseconds becomes
//! a number of iterations, so time during which the thread is preempted, or its virtual CPU is
//! taken away, does not count as work: it is delay, which is what the experiments measure. Waiting
//! for a clock instead would hide it.
//!
//! The value of the loop stays in a register from the first iteration of a request to the last,
//! also across the calls of the poll point. An earlier loop passed it through memory and started
//! anew in each chunk; on some processors the speed of that loop has two modes, depending on
//! whether store-to-load forwarding is predicted: "10 us" took 8.5 us or 19 us there. The
//! calibration times [`Spinner::work`] itself, with its chunks and with the poll point of user
//! threads, so all code that runs was timed.
//!
//! Touches no memory but its stack, so its speed does not depend on what ran on the core before.

use std::hint::black_box;
use std::time::Instant;

/// Target of computing time between two polls. Services rely on a bound of 200 ns; half of it
/// leaves room for a core that runs slower than when it was calibrated.
const POLL_NS: u64 = 100;

/// Length of one run of a calibration, in nanoseconds: short enough that most runs are not
/// interrupted, long enough that the two clock readings do not matter.
const RUN_NS: u64 = 30_000;

/// Number of runs of a calibration; the lower quartile counts. Together at least 7 ms, longer than
/// the longest stall observed on the development machines. Stalls only lengthen runs, and a single
/// fast run may be a burst of the clock frequency, so neither the mean nor the minimum is the
/// speed.
const RUNS: usize = 240;

/// Speed is kept in iterations per 2^20 ns, about a millisecond, so that conversion is a product
/// and a shift.
const SPEED_SHIFT: u32 = 20;

/// A calibrated source of work. Copy it to every working thread; all must use the same one to be
/// comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spinner {
    /// Iterations per 2^[`SPEED_SHIFT`] ns.
    speed: u64,
    /// Iterations between two polls.
    chunk: u64,
}

impl Spinner {
    /// Times [`work`](Self::work) on the calling thread's core, in runs of about 30 us: first with
    /// a guessed speed to find the chunk, then with that chunk. Takes 15 to 40 ms.
    #[must_use]
    pub fn calibrate() -> Self {
        let guess = Self::with_speed(1_000_000).timed();
        guess.timed()
    }

    /// Returns a spinner with the measured speed of this one's work.
    fn timed(self) -> Self {
        let mut runs: Vec<u64> = (0..RUNS)
            .map(|_| {
                let start = Instant::now();
                self.work(RUN_NS, &mut tailwater::poll);
                start.elapsed().as_nanos() as u64
            })
            .collect();
        let (_, &mut taken_ns, _) = runs.select_nth_unstable(RUNS / 4);
        Self::with_scaled_speed((scale(RUN_NS, self.speed) << SPEED_SHIFT) / taken_ns.max(1))
    }

    /// Returns a spinner of a known speed, from 1 iteration per ms to 1,000 per ns: to repeat a run
    /// with the same work, or to give several processes the same calibration.
    #[must_use]
    pub fn with_speed(iterations_per_ms: u64) -> Self {
        let per_ms = iterations_per_ms.clamp(1, 1_000_000_000);
        Self::with_scaled_speed((per_ms << SPEED_SHIFT) / 1_000_000)
    }

    fn with_scaled_speed(speed: u64) -> Self {
        let speed = speed.max(1);
        Self { speed, chunk: scale(POLL_NS, speed).max(1) }
    }

    /// Returns the speed in iterations per millisecond, to within 1.
    #[must_use]
    pub fn iterations_per_ms(&self) -> u64 {
        scale(1_000_000, self.speed)
    }

    /// Computes for `work_ns` nanoseconds of an undisturbed core, calling `poll` once per started
    /// 100 ns of them.
    #[inline]
    pub fn work(&self, work_ns: u64, poll: &mut impl FnMut()) {
        let mut left = scale(work_ns, self.speed);
        let mut x = left;
        while left > 0 {
            let now = left.min(self.chunk);
            x = iterate(x, now);
            poll();
            left -= now;
        }
        black_box(x);
    }
}

/// Returns the number of iterations that take `ns`, rounded to the nearest.
fn scale(ns: u64, speed: u64) -> u64 {
    let product = u128::from(ns) * u128::from(speed);
    ((product + (1 << (SPEED_SHIFT - 1))) >> SPEED_SHIFT) as u64
}

/// Runs the loop from `x` and returns its last value. Each iteration needs the result of the one
/// before (a shift, an exclusive or and a multiplication), so no processor runs two at once, and no
/// compiler combines two: the operations do not distribute over each other. Not inlined, so that
/// calibration and work run the same instructions.
#[inline(never)]
fn iterate(mut x: u64, iterations: u64) -> u64 {
    for _ in 0..iterations {
        x = (x ^ (x >> 29)).wrapping_mul(0xd129_42ab_1fe7_2b6d).wrapping_add(1);
    }
    x
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use proptest::prelude::*;
    use tailwater_testkit::speed::{Neighbour, TOLERANCE, Ways, take_the_same_time};

    use super::*;

    #[test]
    fn no_work_is_no_time_and_no_poll() {
        Spinner::with_speed(1_000_000).work(0, &mut || panic!("nothing to do"));
    }

    /// The difference that a loop with two modes of speed exceeds, and a noisy host hardly.
    const FAR_OFF: f64 = 0.25;
    const WORKS_NS: [u64; 5] = [1_000, 3_000, 10_000, 30_000, 100_000];
    /// For which a quiet moment of the host is awaited.
    const SEARCH: Duration = Duration::from_secs(60);
    /// Fewest calibrations, however long a busy machine needs for them.
    const FEWEST: usize = 20;

    /// Returns `work` beside as many iterations of the bare loop, which passes its value in a
    /// register. Each run ends with a reading of the clock, which lets no run overlap the next one.
    fn beside_the_bare_loop(spinner: &Spinner, work_ns: u64) -> Ways<'_> {
        let iterations = scale(work_ns, spinner.speed);
        let repeat = move |run: &dyn Fn()| {
            for _ in 0..20_000u64.div_ceil(work_ns) {
                run();
                black_box(Instant::now());
            }
        };
        Ways {
            what: format!("work of {work_ns} ns over the bare loop"),
            first: Box::new(move || repeat(&|| _ = black_box(iterate(black_box(1), black_box(iterations))))),
            other: Box::new(move || repeat(&|| spinner.work(work_ns, &mut tailwater::poll))),
            turns: 101,
        }
    }

    /// The tests that measure run one after the other.
    static QUIET: Mutex<()> = Mutex::new(());

    fn work_takes_the_time_of_the_bare_loop(where_: &str) {
        let spinner = Spinner::calibrate();
        take_the_same_time(where_, &mut WORKS_NS.map(|work_ns| beside_the_bare_loop(&spinner, work_ns)));
    }

    #[test]
    fn chunks_and_poll_points_cost_nothing_alone_and_beside_another_process_on_the_core() {
        let _quiet = QUIET.lock();
        work_takes_the_time_of_the_bare_loop("alone");
        let _process = Neighbour::start();
        work_takes_the_time_of_the_bare_loop("beside a process on the core");
    }

    #[test]
    fn a_calibration_is_the_speed_of_the_work() {
        let _quiet = QUIET.lock();
        let until = Instant::now() + SEARCH;
        let (mut closest, mut tried) = (f64::INFINITY, 0);
        while closest >= TOLERANCE && (tried < FEWEST || Instant::now() < until) {
            tried += 1;
            let spinner = Spinner::calibrate();
            let mut runs: Vec<u128> = (0..RUNS)
                .map(|_| {
                    let start = Instant::now();
                    spinner.work(10_000, &mut tailwater::poll);
                    start.elapsed().as_nanos()
                })
                .collect();
            let taken = *runs.select_nth_unstable(RUNS / 4).1 as f64 / 10_000.0;
            closest = closest.min((taken - 1.0).abs());
        }
        if closest >= TOLERANCE {
            println!("no quiet moment: decided no more than that the speeds are not {FAR_OFF} apart");
        }
        assert!(closest < FAR_OFF, "10 us of work take longer or shorter by {closest:.3} at least");
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
