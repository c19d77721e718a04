//! Load schedules: the offered rate as a function of time, as data.
//!
//! Owns segments of constant, linearly changing and sinusoidal rate; their notation; and the
//! expected number of arrivals up to a time, with its inverse. Draws nothing; randomness belongs to
//! [`crate::arrival`].
//!
//! Invariant: a schedule has 1 to [`MAX_SEGMENTS`] segments, no rate is ever negative, and the
//! segments' lengths sum to less than 2^63 ns.
//!
//! Notation, segments joined by commas:
//!
//! | segment | rate |
//! |---|---|
//! | `10s@50k` | 50,000 a second for 10 s |
//! | `10s@10k..90k` | rising (or falling) linearly |
//! | `10s@50k~40k/1s` | 50k + 40k sin(2 pi t / 1 s), t from the segment's start |
//!
//! [`crate::pattern`] reads more, stairs and noise, and turns it into these.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::f64::consts::TAU;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{Rate, SECOND_NS, UnitError, format_duration_ns, parse_duration_ns};

/// Maximum number of segments in one schedule.
pub const MAX_SEGMENTS: usize = 10_000;

/// Longest schedule in nanoseconds (292 years), so that sums of times never overflow.
pub const MAX_LENGTH_NS: u64 = u64::MAX / 2;

/// The course of the rate over one segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// The same rate throughout.
    Constant(Rate),
    /// A straight line between two rates.
    Slope {
        /// Rate at the start.
        from: Rate,
        /// Rate at the end.
        to: Rate,
    },
    /// `mean + amplitude * sin(2 pi t / period)`, starting at the mean and rising.
    Sine {
        /// Rate averaged over a whole period.
        mean: Rate,
        /// At most `mean`.
        amplitude: Rate,
        /// At least 1.
        period_ns: u64,
    },
}

/// A stretch of time with one shape of load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Length in nanoseconds, at least 1.
    pub length_ns: u64,
    /// The rate over that length.
    pub shape: Shape,
}

/// Why a load schedule was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// A segment is not of the form `DURATION@RATE`.
    #[error(
        "segment `{segment}` is not of the form DURATION@RATE, for instance 10s@50k, 10s@10k..90k or 10s@50k~40k/1s"
    )]
    Segment {
        /// What was given.
        segment: String,
    },
    /// A duration or rate in a segment could not be read.
    #[error("segment `{segment}`: {source}")]
    Unit {
        /// The whole segment.
        segment: String,
        /// What was wrong.
        source: UnitError,
    },
    /// No segments or too many.
    #[error("a load schedule has 1 to {MAX_SEGMENTS} segments, not {count}")]
    SegmentCount {
        /// Segments given.
        count: usize,
    },
    /// A segment has length 0, or all together are too long.
    #[error(
        "segment {index} is invalid: its length must be at least 1 ns, and all together less than 292 years"
    )]
    Length {
        /// Index of the segment, from 0.
        index: usize,
    },
    /// A sine would go below 0, or has a period of 0.
    #[error("segment {index}: a sine needs a period of at least 1 ns and an amplitude of at most its mean")]
    Sine {
        /// Index of the segment, from 0.
        index: usize,
    },
}

/// The offered rate over time; valid by construction. It ends: after the last segment there is no
/// load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LoadSchedule {
    segments: Vec<Segment>,
}

impl LoadSchedule {
    /// Creates a schedule of the given segments in sequence.
    ///
    /// # Errors
    /// A [`ScheduleError`] that names the first invalid segment.
    pub fn new(segments: Vec<Segment>) -> Result<Self, ScheduleError> {
        if segments.is_empty() || segments.len() > MAX_SEGMENTS {
            return Err(ScheduleError::SegmentCount { count: segments.len() });
        }
        let mut total_ns = 0u64;
        for (index, segment) in segments.iter().enumerate() {
            total_ns = total_ns.saturating_add(segment.length_ns);
            if segment.length_ns == 0 || total_ns > MAX_LENGTH_NS {
                return Err(ScheduleError::Length { index });
            }
            if let Shape::Sine { mean, amplitude, period_ns } = segment.shape
                && (period_ns == 0 || amplitude > mean)
            {
                return Err(ScheduleError::Sine { index });
            }
        }
        Ok(Self { segments })
    }

    /// Creates a schedule of one constant rate for `length_ns`, clamped to `1..=MAX_LENGTH_NS`.
    #[must_use]
    pub fn constant(rate: Rate, length_ns: u64) -> Self {
        let length_ns = length_ns.clamp(1, MAX_LENGTH_NS);
        Self { segments: vec![Segment { length_ns, shape: Shape::Constant(rate) }] }
    }

    /// Creates a schedule of `rates` in sequence, each for `step_ns`.
    ///
    /// # Errors
    /// As [`LoadSchedule::new`].
    pub fn steps(rates: &[Rate], step_ns: u64) -> Result<Self, ScheduleError> {
        Self::new(rates.iter().map(|&r| Segment { length_ns: step_ns, shape: Shape::Constant(r) }).collect())
    }

    /// Returns the same schedule with all rates times `factor`, finite and at least 0.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        // The product of two finite numbers may overflow; an invalid factor gives a rate of zero.
        let scale = |rate: Rate| Rate::new((rate.per_second() * factor).min(f64::MAX)).unwrap_or(Rate::ZERO);
        let scaled = |segment: &Segment| {
            let shape = match segment.shape {
                Shape::Constant(rate) => Shape::Constant(scale(rate)),
                Shape::Slope { from, to } => Shape::Slope { from: scale(from), to: scale(to) },
                Shape::Sine { mean, amplitude, period_ns } => {
                    Shape::Sine { mean: scale(mean), amplitude: scale(amplitude), period_ns }
                }
            };
            Segment { length_ns: segment.length_ns, shape }
        };
        Self { segments: self.segments.iter().map(scaled).collect() }
    }

    /// Returns the segments, in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the length of the whole schedule.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.segments.iter().map(|s| s.length_ns).sum()
    }

    /// Returns the rate at `at_ns` from the start; zero once the schedule has ended.
    #[must_use]
    pub fn rate_at(&self, at_ns: u64) -> Rate {
        let mut start_ns = 0;
        for segment in &self.segments {
            if at_ns - start_ns < segment.length_ns {
                return segment.shape.rate_at(at_ns - start_ns, segment.length_ns);
            }
            start_ns += segment.length_ns;
        }
        Rate::ZERO
    }

    /// Returns the highest rate at any time.
    #[must_use]
    pub fn peak_rate(&self) -> Rate {
        let peak = |shape: Shape| match shape {
            Shape::Constant(rate) => rate.per_second(),
            Shape::Slope { from, to } => from.per_second().max(to.per_second()),
            Shape::Sine { mean, amplitude, .. } => mean.per_second() + amplitude.per_second(),
        };
        let highest = self.segments.iter().map(|s| peak(s.shape)).fold(0.0, f64::max);
        // The sum of two finite rates may overflow.
        Rate::new(highest.min(f64::MAX)).unwrap_or(Rate::ZERO)
    }

    /// Returns the number of arrivals expected over the segment.
    #[must_use]
    pub fn expected_arrivals(&self) -> f64 {
        self.segments.iter().map(Segment::expected).sum()
    }
}

impl Segment {
    /// Returns the number of arrivals expected over the segment.
    #[must_use]
    pub fn expected(&self) -> f64 {
        self.shape.expected_until(self.length_ns as f64, self.length_ns)
    }

    /// Returns the time in nanoseconds from the segment's start at which `expected` arrivals are
    /// expected; `expected` is in `0.0..=self.expected()`. This is the inverse of the shape's
    /// integral.
    pub(crate) fn time_of(&self, expected: f64) -> f64 {
        // A slope that starts at zero would divide zero by zero.
        if expected <= 0.0 {
            return 0.0;
        }
        let length = self.length_ns as f64;
        let time = match self.shape {
            Shape::Constant(rate) => expected / rate.per_ns(),
            Shape::Slope { from, to } => {
                // Root of from*t + (to-from)/(2*length)*t^2 = expected, in the form that stays
                // exact for from == to.
                let (a, b) = (from.per_ns(), to.per_ns());
                let root = libm::sqrt((a * a + 2.0 * (b - a) / length * expected).max(0.0));
                2.0 * expected / (a + root)
            }
            Shape::Sine { .. } => self.bisect(expected),
        };
        // If the rate is 0 or rounding overshoots, the result is the segment's end.
        if time <= length { time } else { length }
    }

    /// Inverts an integral that has no closed inverse. 64 halvings leave less than a nanosecond of
    /// any schedule.
    fn bisect(&self, expected: f64) -> f64 {
        let (mut low, mut high) = (0.0, self.length_ns as f64);
        for _ in 0..64 {
            let middle = 0.5 * (low + high);
            if self.shape.expected_until(middle, self.length_ns) < expected {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }
}

impl Shape {
    pub(crate) fn rate_at(self, at_ns: u64, length_ns: u64) -> Rate {
        let per_second = match self {
            Shape::Constant(rate) => rate.per_second(),
            Shape::Slope { from, to } => {
                from.per_second() + (to.per_second() - from.per_second()) * (at_ns as f64 / length_ns as f64)
            }
            Shape::Sine { mean, amplitude, period_ns } => {
                mean.per_second() + amplitude.per_second() * libm::sin(TAU * at_ns as f64 / period_ns as f64)
            }
        };
        Rate::new(per_second.max(0.0)).unwrap_or(Rate::ZERO)
    }

    /// Returns the integral of the rate over the first `t` nanoseconds.
    fn expected_until(self, t: f64, length_ns: u64) -> f64 {
        match self {
            Shape::Constant(rate) => rate.per_ns() * t,
            Shape::Slope { from, to } => {
                t * (from.per_ns() + 0.5 * (to.per_ns() - from.per_ns()) * t / length_ns as f64)
            }
            Shape::Sine { mean, amplitude, period_ns } => {
                let omega = TAU / period_ns as f64;
                mean.per_ns() * t + amplitude.per_ns() / omega * (1.0 - libm::cos(omega * t))
            }
        }
    }
}

impl Rate {
    fn per_ns(self) -> f64 {
        self.per_second() / SECOND_NS as f64
    }
}

impl fmt::Display for LoadSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.segments.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}@", format_duration_ns(segment.length_ns))?;
            match segment.shape {
                Shape::Constant(rate) => write!(f, "{rate}")?,
                Shape::Slope { from, to } => write!(f, "{from}..{to}")?,
                Shape::Sine { mean, amplitude, period_ns } => {
                    write!(f, "{mean}~{amplitude}/{}", format_duration_ns(period_ns))?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn parse_segment(text: &str) -> Result<Segment, ScheduleError> {
    let malformed = || ScheduleError::Segment { segment: text.to_owned() };
    let unit = |source| ScheduleError::Unit { segment: text.to_owned(), source };
    let (length, shape) = text.split_once('@').ok_or_else(malformed)?;
    let length_ns = parse_duration_ns(length).map_err(unit)?;
    let shape = if let Some((from, to)) = shape.split_once("..") {
        Shape::Slope { from: from.parse().map_err(unit)?, to: to.parse().map_err(unit)? }
    } else if let Some((mean, wave)) = shape.split_once('~') {
        let (amplitude, period) = wave.rsplit_once('/').ok_or_else(malformed)?;
        Shape::Sine {
            mean: mean.parse().map_err(unit)?,
            amplitude: amplitude.parse().map_err(unit)?,
            period_ns: parse_duration_ns(period).map_err(unit)?,
        }
    } else {
        Shape::Constant(shape.parse().map_err(unit)?)
    };
    Ok(Segment { length_ns, shape })
}

impl FromStr for LoadSchedule {
    type Err = ScheduleError;
    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        Self::new(text.split(',').map(|s| parse_segment(s.trim())).collect::<Result<_, _>>()?)
    }
}

impl TryFrom<String> for LoadSchedule {
    type Error = ScheduleError;
    fn try_from(text: String) -> Result<Self, ScheduleError> {
        text.parse()
    }
}

impl From<LoadSchedule> for String {
    fn from(schedule: LoadSchedule) -> String {
        schedule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> LoadSchedule {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn rates_follow_the_notation() {
        let schedule = parsed("1s@50k, 2s@10k..90k, 1s@50k~40k/1s");
        assert_eq!(schedule.length_ns(), 4 * SECOND_NS);
        for (at_ns, want) in [
            (0, 50e3),
            (999_999_999, 50e3),
            (SECOND_NS, 10e3),
            (2 * SECOND_NS, 50e3),
            (3 * SECOND_NS, 50e3),
            (3 * SECOND_NS + SECOND_NS / 4, 90e3),
            (3 * SECOND_NS + 3 * SECOND_NS / 4, 10e3),
            (4 * SECOND_NS, 0.0),
        ] {
            let got = schedule.rate_at(at_ns).per_second();
            assert!((got - want).abs() < 1e-3, "at {at_ns}: {got}, not {want}");
        }
        assert!((schedule.expected_arrivals() - 200e3).abs() < 1e-3);
        assert_eq!(schedule.peak_rate().per_second(), 90e3);
    }

    #[test]
    fn bad_schedules_are_refused_with_advice() {
        for (text, fragment) in [
            ("", "DURATION@RATE"),
            ("10s", "DURATION@RATE"),
            ("10@5k", "add one of ns"),
            ("10s@5m", "multiplier"),
            ("0s@5k", "segment 0"),
            ("1s@5k,200000h@1,2562047h@1", "segment 2"),
            ("1s@5k~6k/1s", "amplitude"),
            ("1s@5k~1k", "DURATION@RATE"),
        ] {
            let message = text.parse::<LoadSchedule>().expect_err(text).to_string();
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }

    fn any_rate() -> impl Strategy<Value = Rate> {
        prop_oneof![Just(Rate::ZERO), (0.0..1e7f64).prop_map(|r| Rate::new(r).unwrap())]
    }

    fn any_segment() -> impl Strategy<Value = Segment> {
        let shape = prop_oneof![
            any_rate().prop_map(Shape::Constant),
            (any_rate(), any_rate()).prop_map(|(from, to)| Shape::Slope { from, to }),
            (any_rate(), 0.0..=1.0f64, 1_000_000u64..10 * SECOND_NS).prop_map(|(mean, part, period_ns)| {
                Shape::Sine { mean, amplitude: Rate::new(mean.per_second() * part).unwrap(), period_ns }
            }),
        ];
        (1u64..100 * SECOND_NS, shape).prop_map(|(length_ns, shape)| Segment { length_ns, shape })
    }

    proptest! {
        #[test]
        fn the_notation_reads_back(segments in prop::collection::vec(any_segment(), 1..5)) {
            let schedule = LoadSchedule::new(segments).unwrap();
            let text = schedule.to_string();
            prop_assert_eq!(text.parse::<LoadSchedule>(), Ok(schedule), "{}", text);
        }

        #[test]
        fn shares_of_a_schedule_add_up(segments in prop::collection::vec(any_segment(), 1..5), count in 1u32..50) {
            let schedule = LoadSchedule::new(segments).unwrap();
            let share = schedule.scaled(1.0 / f64::from(count));
            prop_assert_eq!(share.length_ns(), schedule.length_ns());
            let sum = share.expected_arrivals() * f64::from(count);
            prop_assert!((sum - schedule.expected_arrivals()).abs() <= 1e-9 * sum.max(1.0));
            prop_assert_eq!(share.to_string().parse::<LoadSchedule>(), Ok(share));
        }

        #[test]
        fn the_time_of_an_expected_count_inverts_the_integral(segment in any_segment(), part in prop_oneof![Just(0.0), 0.0..=1.0f64]) {
            let expected = segment.expected() * part;
            let time = segment.time_of(expected);
            prop_assert!((0.0..=segment.length_ns as f64).contains(&time));
            prop_assert!(part > 0.0 || time == 0.0, "{} for the first moment", time);
            let back = segment.shape.expected_until(time, segment.length_ns);
            prop_assert!((back - expected).abs() <= 1e-6 * segment.expected().max(1.0), "{} for {}", back, expected);
        }
    }
}
