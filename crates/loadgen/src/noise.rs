//! The machine's own noise: times at which a spinning thread did not run.
//!
//! Owns the definition of a gap, a counter that any polling loop can feed with its clock readings,
//! and a probe that only feeds it and keeps the trace. A virtual machine's host takes its cores
//! away now and then; no system under test can be better than that, so every comparison reports it.
//!
//! A gap is attributed to the machine only as far as the loop that feeds the counter does nothing
//! long itself.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::stalls::{MAX_STALLS, Stalls};

/// Consecutive clock readings further apart than this are a gap.
pub const GAP_NS: u64 = 50_000;

/// Counts gaps between consecutive clock readings of a loop.
#[derive(Debug, Clone)]
pub struct GapCounter {
    start_ns: u64,
    last_ns: u64,
    gaps: Gaps,
}

/// Gaps seen over a time. Counts add up over several measurements with [`Gaps::merge`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps {
    /// Observed time in nanoseconds.
    pub observed_ns: u64,
    /// Gaps over [`GAP_NS`].
    pub count: u64,
    /// Their sum in nanoseconds.
    pub total_ns: u64,
    /// The longest in nanoseconds.
    pub longest_ns: u64,
}

impl GapCounter {
    /// Creates a counter that observes from clock reading `start_ns` on.
    #[must_use]
    pub fn new(start_ns: u64) -> Self {
        Self { start_ns, last_ns: start_ns, gaps: Gaps::default() }
    }

    /// Takes the next clock reading; returns the gap that ends there, if there was one.
    #[inline]
    pub fn observe(&mut self, now_ns: u64) -> Option<Range<u64>> {
        let gap = self.last_ns..now_ns;
        // Readings before the start are ignored: `start_ns` may lie in the future.
        self.last_ns = self.last_ns.max(now_ns);
        if now_ns.saturating_sub(gap.start) <= GAP_NS {
            return None;
        }
        let length_ns = now_ns - gap.start;
        self.gaps.count += 1;
        self.gaps.total_ns += length_ns;
        self.gaps.longest_ns = self.gaps.longest_ns.max(length_ns);
        Some(gap)
    }

    /// Takes the next clock reading after a time in which the loop may have slept, which is not
    /// observed.
    #[inline]
    pub fn skip(&mut self, now_ns: u64) {
        let skipped_ns = now_ns.saturating_sub(self.last_ns);
        self.start_ns += skipped_ns;
        self.last_ns += skipped_ns;
    }

    /// Returns the gaps up to the last reading.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        Gaps { observed_ns: self.last_ns - self.start_ns, ..self.gaps }
    }
}

impl Gaps {
    /// Adds the gaps of another stretch of time.
    pub fn merge(&mut self, other: &Gaps) {
        self.observed_ns += other.observed_ns;
        self.count += other.count;
        self.total_ns += other.total_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Returns the numbers that are printed and written to files.
    #[must_use]
    pub fn figures(&self) -> GapFigures {
        let seconds = self.observed_ns as f64 / 1e9;
        let per = |x: f64| if seconds > 0.0 { x / seconds } else { 0.0 };
        GapFigures {
            gaps_per_s: per(self.count as f64),
            lost_fraction: per(self.total_ns as f64 / 1e9),
            longest_us: self.longest_ns as f64 / 1e3,
        }
    }
}

/// The disturbance of a core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GapFigures {
    /// Gaps over 50 us per second.
    pub gaps_per_s: f64,
    /// Part of the time spent in them.
    pub lost_fraction: f64,
    /// The longest, in microseconds.
    pub longest_us: f64,
}

/// A probe's observation of a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Its gaps, counted.
    pub gaps: Gaps,
    /// Their times, by the probe's clock.
    pub stalls: Stalls,
}

/// Spins on the core that the calling thread runs on until `clock` reads `until` and reports its
/// gaps. Bind the thread to a core first, or the scheduler's moves count too. Probes of several
/// cores at a time share a clock, so that stalls of the whole machine lie at the same place in all
/// traces. Memory is bounded by [`MAX_STALLS`].
#[must_use]
pub fn probe(clock: &Clock, until: Duration) -> Probe {
    let end_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
    let mut counter = GapCounter::new(clock.now_ns());
    // One stall more than the maximum shows where the kept part ends. The capacity is reserved,
    // because growing it while watching might take long.
    let mut trace = Vec::with_capacity(MAX_STALLS + 1);
    loop {
        let now_ns = clock.now_ns();
        if let Some(gap) = counter.observe(now_ns)
            && trace.len() < trace.capacity()
        {
            trace.push(gap);
        }
        if now_ns >= end_ns {
            return Probe { gaps: counter.gaps(), stalls: Stalls::new(end_ns, &trace) };
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_that_is_skipped_is_neither_a_gap_nor_observed() {
        let mut counter = GapCounter::new(0);
        assert_eq!(counter.observe(40_000), None);
        counter.skip(1_040_000);
        assert_eq!(counter.observe(1_050_000), None);
        assert_eq!(counter.gaps(), Gaps { observed_ns: 50_000, ..Gaps::default() });
    }

    #[test]
    fn only_pauses_over_the_bound_are_gaps() {
        let mut counter = GapCounter::new(1_000);
        assert_eq!(counter.observe(500), None, "before the start");
        assert_eq!(counter.observe(51_000), None, "50 us exactly");
        assert_eq!(counter.observe(101_001), Some(51_000..101_001));
        assert_eq!(counter.observe(101_002), None);
        counter.observe(1_101_002);
        let gaps = counter.gaps();
        assert_eq!(
            gaps,
            Gaps { observed_ns: 1_100_002, count: 2, total_ns: 1_050_001, longest_ns: 1_000_000 }
        );
    }

    #[test]
    fn figures_are_per_second() {
        let mut gaps =
            Gaps { observed_ns: 1_500_000_000, count: 20, total_ns: 10_000_000, longest_ns: 3_000_000 };
        gaps.merge(&Gaps {
            observed_ns: 500_000_000,
            count: 20,
            total_ns: 10_000_000,
            longest_ns: 1_000_000,
        });
        let want = GapFigures { gaps_per_s: 20.0, lost_fraction: 0.01, longest_us: 3_000.0 };
        assert_eq!(gaps.figures(), want);
        assert_eq!(Gaps::default().figures().gaps_per_s, 0.0);
    }

    #[test]
    fn a_probe_looks_for_as_long_as_it_is_told() {
        let clock = Clock::start();
        let Probe { gaps, .. } = probe(&clock, Duration::from_millis(2));
        assert!(clock.now_ns() >= 2_000_000);
        assert!(gaps.total_ns <= gaps.observed_ns, "{gaps:?}");
    }

    #[test]
    fn a_probe_keeps_when_its_gaps_were() {
        let until = Duration::from_millis(20);
        let Probe { gaps, stalls } = probe(&Clock::start(), until);
        let lost_ns = until.as_nanos() as u64 - stalls.ran_ns(until.as_nanos() as u64);
        // All of them, without the part of the last that lies beyond the end.
        assert!(
            lost_ns <= gaps.total_ns && gaps.total_ns - lost_ns <= gaps.longest_ns,
            "{gaps:?} {stalls:?}"
        );
    }
}
