//! The stalls of a core, as a trace that can be replayed over virtual time.
//!
//! Owns [`Stalls`], one core's trace repeated for ever, and two functions: when a core runs again,
//! and when work begun at some time is done. [`crate::ideal`] decides what a stall delays. Pure.
//!
//! Both results come from one monotone function, the time that the core has run until `t`, and its
//! inverse; with the lost time summed up beforehand each costs a binary search.

use std::ops::Range;

/// Maximum number of stalls of a trace. A longer one is cut there and repeats from there, so that
/// the part of the time it takes stays right. Gaps are over 50 us each, so this holds at least 1.6
/// s.
pub const MAX_STALLS: usize = 1 << 15;

/// A core's stalls, repeated for ever. The default has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalls {
    /// After this the trace repeats.
    period_ns: u64,
    /// How much of the period the core runs; never 0.
    runs_ns: u64,
    /// In order of time; neither empty nor touching each other, all within the period.
    stalls: Vec<Stall>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stall {
    start_ns: u64,
    length_ns: u64,
    /// Time lost in the period's stalls before this one.
    lost_before_ns: u64,
}

/// The stalls of every core that a system uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineStalls {
    /// Of the core that sends requests and sees replies.
    pub polling: Stalls,
    /// Of the cores that work, in order; they repeat if there are more cores, and an empty list
    /// stalls none.
    pub working: Vec<Stalls>,
}

impl Default for Stalls {
    fn default() -> Self {
        Self { period_ns: u64::MAX, runs_ns: u64::MAX, stalls: Vec::new() }
    }
}

impl Stalls {
    /// Creates the trace of a core that was watched for `observed_ns` and stood still during
    /// `gaps`, in order of time. Parts beyond the end, or before the end of an earlier gap, are
    /// dropped; so is everything after [`MAX_STALLS`].
    #[must_use]
    pub fn new(observed_ns: u64, gaps: &[Range<u64>]) -> Self {
        let period_ns = gaps.get(MAX_STALLS).map_or(observed_ns, |next| next.start.min(observed_ns));
        let mut stalls: Vec<Stall> = Vec::new();
        let mut lost_ns = 0;
        for gap in gaps {
            let start_ns = gap.start.max(stalls.last().map_or(0, Stall::end_ns));
            let end_ns = gap.end.min(period_ns);
            if start_ns >= end_ns {
                continue;
            }
            match stalls.last_mut().filter(|last| last.end_ns() == start_ns) {
                Some(last) => last.length_ns += end_ns - start_ns,
                None => {
                    let length_ns = end_ns - start_ns;
                    stalls.push(Stall { start_ns, length_ns, lost_before_ns: lost_ns });
                }
            }
            lost_ns += end_ns - start_ns;
        }
        if stalls.is_empty() {
            return Self::default();
        }
        // A core that never ran while it was watched would never end any work.
        let period_ns = period_ns.max(lost_ns + 1);
        Self { period_ns, runs_ns: period_ns - lost_ns, stalls }
    }

    /// Returns `at_ns`, or the end of the stall that it lies in.
    #[must_use]
    pub fn resume_ns(&self, at_ns: u64) -> u64 {
        let in_period_ns = at_ns % self.period_ns;
        let begun = self.stalls.partition_point(|stall| stall.start_ns <= in_period_ns);
        let Some(stall) = self.stalls[..begun].last().filter(|stall| in_period_ns < stall.end_ns()) else {
            return at_ns;
        };
        // The next period may begin with a stall.
        let next =
            self.stalls.first().filter(|first| first.start_ns == 0 && stall.end_ns() == self.period_ns);
        at_ns + (stall.end_ns() - in_period_ns) + next.map_or(0, |first| first.length_ns)
    }

    /// Returns when `work_ns` of work are done that the core begins at `at_ns`, or when it runs
    /// again after that.
    #[must_use]
    pub fn finish_ns(&self, at_ns: u64, work_ns: u64) -> u64 {
        let start_ns = self.resume_ns(at_ns);
        self.when_ran_ns(self.ran_ns(start_ns).saturating_add(work_ns)).max(start_ns)
    }

    /// Returns how long the core has run from 0 to `until_ns`.
    #[must_use]
    pub fn ran_ns(&self, until_ns: u64) -> u64 {
        let in_period_ns = until_ns % self.period_ns;
        let begun = self.stalls.partition_point(|stall| stall.start_ns <= in_period_ns);
        let lost_ns = self.stalls[..begun]
            .last()
            .map_or(0, |stall| stall.lost_before_ns + stall.length_ns.min(in_period_ns - stall.start_ns));
        until_ns / self.period_ns * self.runs_ns + in_period_ns - lost_ns
    }

    /// Returns the first time at which the core has run for `ran_ns`.
    fn when_ran_ns(&self, ran_ns: u64) -> u64 {
        let periods = ran_ns.saturating_sub(1) / self.runs_ns;
        let in_period_ns = ran_ns - periods * self.runs_ns;
        let over = self.stalls.partition_point(|stall| stall.start_ns - stall.lost_before_ns < in_period_ns);
        let lost_ns = self.stalls[..over].last().map_or(0, |stall| stall.lost_before_ns + stall.length_ns);
        periods.saturating_mul(self.period_ns).saturating_add(in_period_ns + lost_ns)
    }
}

impl Stall {
    fn end_ns(&self) -> u64 {
        self.start_ns + self.length_ns
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a trace of one gap is a list of one range")]
mod tests {
    use super::*;

    #[test]
    fn a_core_without_stalls_always_runs() {
        let none = Stalls::new(1_000_000, &[]);
        assert_eq!(none, Stalls::default());
        for at_ns in [0, 1, 999_999, 1_000_000, 123_456_789] {
            assert_eq!(
                (none.resume_ns(at_ns), none.finish_ns(at_ns, 10), none.ran_ns(at_ns)),
                (at_ns, at_ns + 10, at_ns)
            );
        }
    }

    #[test]
    fn work_stops_during_a_stall_and_the_trace_repeats() {
        // Runs 0..100 and 150..200, then again.
        let stalls = Stalls::new(200, &[100..150]);
        assert_eq!(stalls.resume_ns(99), 99);
        assert_eq!(stalls.resume_ns(100), 150);
        assert_eq!(stalls.resume_ns(349), 350);
        assert_eq!(stalls.finish_ns(90, 10), 100, "done in the moment in which the stall begins");
        assert_eq!(stalls.finish_ns(90, 11), 151);
        assert_eq!(stalls.finish_ns(120, 50), 200);
        assert_eq!(stalls.finish_ns(120, 51), 201);
        assert_eq!(stalls.finish_ns(0, 450), 600, "three periods of 150 each");
        assert_eq!((stalls.ran_ns(120), stalls.ran_ns(400)), (100, 300));
    }

    #[test]
    fn the_answers_are_those_of_counting_nanosecond_by_nanosecond() {
        for (period, gaps) in [
            (50, vec![0..3, 10..20, 20..25, 40..50]),
            (31, vec![30..31]),
            (17, vec![2..9, 4..6, 8..11, 13..40]),
            (20, vec![0..20]),
        ] {
            let stalls = Stalls::new(period, &gaps);
            let stands = |ns: u64| {
                let at = ns % stalls.period_ns;
                at < period && gaps.iter().any(|gap| gap.contains(&at))
            };
            for at in 0..3 * period {
                let resumed = (at..).find(|&ns| !stands(ns)).unwrap();
                assert_eq!(stalls.resume_ns(at), resumed, "{gaps:?} at {at}");
                assert_eq!(stalls.ran_ns(at), (0..at).filter(|&ns| !stands(ns)).count() as u64);
                for work in 1..40 {
                    let last = (at..).filter(|&ns| !stands(ns)).nth(work - 1).unwrap();
                    assert_eq!(stalls.finish_ns(at, work as u64), last + 1, "{gaps:?}: {work} from {at}");
                }
            }
        }
    }

    #[test]
    fn a_trace_that_is_too_long_repeats_earlier() {
        let gaps: Vec<_> = (0..2 * MAX_STALLS as u64).map(|i| 100 * i + 10..100 * i + 60).collect();
        let stalls = Stalls::new(200 * MAX_STALLS as u64, &gaps);
        assert_eq!(stalls.stalls.len(), MAX_STALLS);
        let half_a_year_ns = 1 << 54;
        let part = stalls.ran_ns(half_a_year_ns) as f64 / half_a_year_ns as f64;
        assert!((part - 0.5).abs() < 1e-4, "{part}");
    }
}
