//! Arrival processes: the times at which requests are due.
//!
//! Owns the conversion of a [`LoadSchedule`] and a [`Prng`] into a non-decreasing sequence of due
//! times. It never reads a clock: the sequence is the same however late its user runs, which is
//! what makes a load *open loop*.
//!
//! Method: arrivals of a process with rate 1 are mapped through the inverse of the schedule's
//! integrated rate (time change of a Poisson process; Cinlar, Introduction to Stochastic Processes,
//! section 4.7). A due time is computed from the whole count so far, never by adding rounded gaps,
//! so it does not drift: after n arrivals of the constant process the time is exact to half a
//! nanosecond for any n.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::string::ToString;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::random::{Prng, unit_exponential};
use crate::schedule::LoadSchedule;
use crate::units::{UnitError, format_duration_ns, parse_duration_ns};

/// How arrivals are spread around the scheduled rate. Written `poisson`, `const` or
/// `onoff:on=1ms,off=9ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ArrivalProcess {
    /// Independent exponential gaps.
    #[default]
    Poisson,
    /// Equal gaps; the first arrival comes after half a gap, unless [`Arrivals::with_phase`] sets
    /// another phase.
    Constant,
    /// Poisson bursts: the arrivals of each period of `on_ns + off_ns` fall into its first `on_ns`.
    /// The long-run rate is that of the schedule; the rate within a burst is `(on + off) / on`
    /// times as high.
    OnOff {
        /// Length of a burst, at least 1.
        on_ns: u64,
        /// Silence after it.
        off_ns: u64,
    },
}

/// Why an arrival process was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArrivalError {
    /// Not one of the three notations.
    #[error("`{text}` is not an arrival process; use poisson, const or onoff:on=1ms,off=9ms")]
    Unknown {
        /// What was given.
        text: String,
    },
    /// A duration could not be read.
    #[error("arrival process `{text}`: {source}")]
    Duration {
        /// The whole notation.
        text: String,
        /// What was wrong.
        source: UnitError,
    },
    /// The burst has no length, or the period is longer than 292 years.
    #[error("arrival process `{text}`: on must be at least 1ns, and on + off less than 292 years")]
    Period {
        /// The whole notation.
        text: String,
    },
}

impl ArrivalProcess {
    /// Returns the ratio of the rate within a burst to the scheduled one; 1 without bursts.
    #[must_use]
    pub fn burst_factor(self) -> f64 {
        match self {
            Self::Poisson | Self::Constant => 1.0,
            Self::OnOff { on_ns, off_ns } => (on_ns as f64 + off_ns as f64) / on_ns.max(1) as f64,
        }
    }
}

impl FromStr for ArrivalProcess {
    type Err = ArrivalError;
    fn from_str(text: &str) -> Result<Self, ArrivalError> {
        let unknown = || ArrivalError::Unknown { text: text.to_owned() };
        let duration = |t| {
            parse_duration_ns(t).map_err(|source| ArrivalError::Duration { text: text.to_owned(), source })
        };
        match text.trim() {
            "poisson" => Ok(Self::Poisson),
            "const" => Ok(Self::Constant),
            other => {
                let parameters = other.strip_prefix("onoff:").ok_or_else(unknown)?;
                let (on, off) = parameters.split_once(',').ok_or_else(unknown)?;
                let on_ns = duration(on.trim().strip_prefix("on=").ok_or_else(unknown)?)?;
                let off_ns = duration(off.trim().strip_prefix("off=").ok_or_else(unknown)?)?;
                if on_ns == 0 || on_ns.saturating_add(off_ns) > crate::schedule::MAX_LENGTH_NS {
                    return Err(ArrivalError::Period { text: text.to_owned() });
                }
                Ok(Self::OnOff { on_ns, off_ns })
            }
        }
    }
}

impl fmt::Display for ArrivalProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Poisson => f.write_str("poisson"),
            Self::Constant => f.write_str("const"),
            Self::OnOff { on_ns, off_ns } => {
                write!(f, "onoff:on={},off={}", format_duration_ns(on_ns), format_duration_ns(off_ns))
            }
        }
    }
}

impl TryFrom<String> for ArrivalProcess {
    type Error = ArrivalError;
    fn try_from(text: String) -> Result<Self, ArrivalError> {
        text.parse()
    }
}

impl From<ArrivalProcess> for String {
    fn from(process: ArrivalProcess) -> String {
        process.to_string()
    }
}

/// Default part of a gap after which the first of constant arrivals comes.
pub const HALF_A_GAP: f64 = 0.5;

/// The due times of one run, in order.
///
/// Every time is below the schedule's length; after the last one, [`Arrivals::next_ns`] returns
/// `None`.
#[derive(Debug, Clone)]
pub struct Arrivals {
    process: ArrivalProcess,
    schedule: LoadSchedule,
    /// Position of the first of constant arrivals on the axis of expected counts.
    phase: f64,
    /// Index of the segment that holds the next arrival.
    segment: usize,
    /// Start of that segment.
    segment_start_ns: u64,
    /// Arrivals expected before that segment.
    expected_before: f64,
    /// Arrivals expected in that segment.
    expected_in: f64,
    /// Returns the number of arrivals returned so far.
    count: u64,
    /// Position of the last arrival on the axis of expected counts.
    position: f64,
}

impl Arrivals {
    /// Creates the arrivals of `process` under `schedule`.
    #[must_use]
    pub fn new(process: ArrivalProcess, schedule: LoadSchedule) -> Self {
        let expected_in = schedule.segments()[0].expected();
        Self {
            process,
            schedule,
            phase: HALF_A_GAP,
            segment: 0,
            segment_start_ns: 0,
            expected_before: 0.0,
            expected_in,
            count: 0,
            position: 0.0,
        }
    }

    /// Sets the phase of constant arrivals: the first one comes after the part `phase` of a gap, at
    /// least 0 and below 1, so that those of several generators need not coincide. Other processes
    /// draw their first arrival.
    #[must_use]
    pub fn with_phase(self, phase: f64) -> Self {
        Self { phase, ..self }
    }

    /// Returns the next due time, in nanoseconds from the schedule's start; not below any earlier
    /// one. `None` at the end.
    pub fn next_ns(&mut self, prng: &mut Prng) -> Option<u64> {
        // Computed from the count, not by adding ones: exact up to 2^53 arrivals.
        self.position = match self.process {
            ArrivalProcess::Constant => self.count as f64 + self.phase,
            ArrivalProcess::Poisson | ArrivalProcess::OnOff { .. } => self.position + unit_exponential(prng),
        };
        while self.position - self.expected_before >= self.expected_in {
            self.next_segment()?;
        }
        self.count += 1;
        let segment = &self.schedule.segments()[self.segment];
        let within_ns = segment.time_of(self.position - self.expected_before) as u64;
        let due_ns = self.segment_start_ns + within_ns.min(segment.length_ns - 1);
        Some(match self.process {
            ArrivalProcess::OnOff { on_ns, off_ns } => squeeze_into_burst(due_ns, on_ns, off_ns),
            ArrivalProcess::Poisson | ArrivalProcess::Constant => due_ns,
        })
    }

    /// Returns the number of arrivals returned so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    fn next_segment(&mut self) -> Option<()> {
        let next = self.schedule.segments().get(self.segment + 1)?;
        self.segment_start_ns += self.schedule.segments()[self.segment].length_ns;
        self.expected_before += self.expected_in;
        self.expected_in = next.expected();
        self.segment += 1;
        Some(())
    }
}

/// Maps each period of `on + off` onto its first `on` nanoseconds, keeping order and count.
fn squeeze_into_burst(due_ns: u64, on_ns: u64, off_ns: u64) -> u64 {
    let period_ns = on_ns + off_ns;
    let phase_ns = due_ns % period_ns;
    let squeezed = u128::from(phase_ns) * u128::from(on_ns) / u128::from(period_ns);
    due_ns - phase_ns + squeezed as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;
    use crate::schedule::{Segment, Shape};
    use crate::units::{Rate, SECOND_NS};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn times(process: &str, schedule: &str, seed: u64) -> Vec<u64> {
        let mut arrivals = Arrivals::new(process.parse().unwrap(), schedule.parse().unwrap());
        let mut prng = stream(seed, 0);
        core::iter::from_fn(|| arrivals.next_ns(&mut prng)).collect()
    }

    #[test]
    fn constant_arrivals_do_not_drift_in_an_hour() {
        // 3 does not divide a second: adding rounded gaps would lose 0.33 ns each, 1.2 us over
        // these.
        let rate = Rate::new(3e6).unwrap();
        let mut arrivals =
            Arrivals::new(ArrivalProcess::Constant, LoadSchedule::constant(rate, 3600 * SECOND_NS));
        arrivals.count = 3_000_000 * 3_599;
        let at = arrivals.next_ns(&mut stream(0, 0));
        assert_eq!(at, Some(3_599 * SECOND_NS + 166));
    }

    #[test]
    fn constant_arrivals_of_a_second_are_as_many_as_the_rate() {
        let times = times("const", "2s@1234", 0);
        assert_eq!(times.len(), 2468);
        let gap = SECOND_NS as f64 / 1234.0;
        assert!(times.windows(2).all(|w| ((w[1] - w[0]) as f64 - gap).abs() <= 1.0));
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let times = times("poisson", "20s@10k", 9);
        let n = times.len() as f64;
        assert!((n - 200e3).abs() < 4.0 * 200e3f64.sqrt(), "{n} arrivals");
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (variance / (mean * mean) - 1.0).abs() < 0.03,
            "squared variation {}",
            variance / (mean * mean)
        );
        let beyond_mean = gaps.iter().filter(|&&g| g > mean).count() as f64 / gaps.len() as f64;
        assert!((beyond_mean - (-1.0f64).exp()).abs() < 0.005, "{beyond_mean}");
    }

    #[test]
    fn bursts_fall_silent_and_keep_the_rate() {
        let times = times("onoff:on=1ms,off=9ms", "10s@20k", 4);
        assert!(times.iter().all(|t| t % 10_000_000 < 1_000_000));
        assert!((times.len() as f64 - 200e3).abs() < 4.0 * 200e3f64.sqrt(), "{}", times.len());
    }

    #[test]
    fn a_slope_puts_three_quarters_of_its_arrivals_in_the_second_half() {
        let times = times("const", "2s@0..100k", 0);
        let first = times.iter().filter(|&&t| t < SECOND_NS).count();
        assert_eq!((first, times.len()), (25_000, 100_000));
    }

    #[test]
    fn constant_arrivals_of_several_phases_are_those_of_the_whole_rate() {
        let whole: LoadSchedule = "100ms@1k,200ms@0..20k,100ms@5k~5k/30ms".parse().unwrap();
        let mut shared: Vec<u64> = (0..4)
            .flat_map(|index| {
                let share = whole.scaled(0.25);
                let phase = (f64::from(index) + HALF_A_GAP) / 4.0;
                let mut arrivals = Arrivals::new(ArrivalProcess::Constant, share).with_phase(phase);
                core::iter::from_fn(move || arrivals.next_ns(&mut stream(0, 0))).collect::<Vec<_>>()
            })
            .collect();
        shared.sort_unstable();
        let alone = times("const", &whole.to_string(), 0);
        assert_eq!(shared.len(), alone.len());
        assert!(shared.iter().zip(&alone).all(|(shared, alone)| shared.abs_diff(*alone) <= 1));
    }

    #[test]
    fn a_slope_from_nothing_begins_with_what_falls_due_on_its_first_moment() {
        // The first arrival lies exactly where the slope begins; the slope's own arrivals follow
        // during its course.
        let times = times("const", "500ms@1,10s@0..1k", 0);
        assert_eq!(times[0], SECOND_NS / 2);
        assert!((4990..=5000).contains(&times.len()), "{}", times.len());
        assert!(times[1] < SECOND_NS, "{}", times[1]);
    }

    #[test]
    fn silence_between_segments_has_no_arrivals() {
        let times = times("poisson", "1s@1k,1s@0,1s@1k", 2);
        assert!(times.iter().all(|t| *t < SECOND_NS || *t >= 2 * SECOND_NS));
        assert!(times.iter().any(|t| *t >= 2 * SECOND_NS));
    }

    #[test]
    fn bad_processes_are_refused_with_advice() {
        for (text, fragment) in [
            ("", "use poisson"),
            ("uniform", "use poisson"),
            ("onoff:1ms,9ms", "use poisson"),
            ("onoff:on=1,off=9ms", "add one of"),
            ("onoff:on=0ms,off=9ms", "at least 1ns"),
        ] {
            let message = text.parse::<ArrivalProcess>().expect_err(text).to_string();
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }

    /// Generates segments of 10 ms with rates that are often zero, constant or a slope.
    fn any_segment() -> impl Strategy<Value = Segment> {
        let rate =
            || prop_oneof![Just(Rate::ZERO), (0u32..200_000).prop_map(|r| Rate::new(f64::from(r)).unwrap())];
        let shape = prop_oneof![
            rate().prop_map(Shape::Constant),
            (rate(), rate()).prop_map(|(from, to)| Shape::Slope { from, to }),
        ];
        shape.prop_map(|shape| Segment { length_ns: 10_000_000, shape })
    }

    fn any_process() -> impl Strategy<Value = ArrivalProcess> {
        prop_oneof![
            Just(ArrivalProcess::Poisson),
            Just(ArrivalProcess::Constant),
            (1u64..10_000_000, 0u64..10_000_000)
                .prop_map(|(on_ns, off_ns)| ArrivalProcess::OnOff { on_ns, off_ns }),
        ]
    }

    proptest! {
        #[test]
        fn the_notation_reads_back(process in any_process()) {
            prop_assert_eq!(process.to_string().parse::<ArrivalProcess>(), Ok(process));
        }

        #[test]
        fn the_long_run_rate_is_exact_to_a_millionth(rate in 1.0..5e6f64, after in 2_000_000u64..1 << 40) {
            let schedule = LoadSchedule::constant(Rate::new(rate).unwrap(), u64::MAX);
            let mut arrivals = Arrivals::new(ArrivalProcess::Constant, schedule);
            arrivals.count = after;
            let due_ns = arrivals.next_ns(&mut stream(0, 0));
            if let Some(due_ns) = due_ns {
                let achieved = after as f64 / due_ns as f64 * SECOND_NS as f64;
                prop_assert!((achieved / rate - 1.0).abs() < 1e-6, "{} instead of {}", achieved, rate);
            }
        }

        #[test]
        fn poisson_times_follow_the_drawn_positions_without_drift(rate in 1.0..5e6f64, start in 0.0..1e12f64, seed: u64) {
            let schedule = LoadSchedule::constant(Rate::new(rate).unwrap(), u64::MAX);
            let mut arrivals = Arrivals::new(ArrivalProcess::Poisson, schedule);
            arrivals.position = start;
            let mut prng = stream(seed, 0);
            for _ in 0..100 {
                if let Some(due_ns) = arrivals.next_ns(&mut prng) {
                    let want_ns = arrivals.position / rate * SECOND_NS as f64;
                    prop_assert!((due_ns as f64 - want_ns).abs() <= 1.0 + 1e-9 * want_ns);
                }
            }
        }

        #[test]
        fn due_times_never_go_back_and_stay_inside_the_schedule(
            process in any_process(), segments in prop::collection::vec(any_segment(), 1..5), phase in 0.0..1.0f64, seed: u64
        ) {
            let schedule = LoadSchedule::new(segments).unwrap();
            let length_ns = schedule.length_ns();
            let mut arrivals = Arrivals::new(process, schedule).with_phase(phase);
            let mut prng = stream(seed, 0);
            let mut last_ns = 0;
            while let Some(due_ns) = arrivals.next_ns(&mut prng) {
                prop_assert!(due_ns >= last_ns && due_ns < length_ns, "{} after {}", due_ns, last_ns);
                last_ns = due_ns;
            }
            prop_assert_eq!(arrivals.next_ns(&mut prng), None);
        }
    }
}
