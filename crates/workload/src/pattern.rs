//! Load patterns: the notation in which users describe a load over time; a seed turns it into a
//! [`LoadSchedule`].
//!
//! Owns the notation, that of schedules plus stairs and noise, and its expansion. It draws only
//! from the seed it is given: the same pattern and seed give the same schedule on every machine.
//!
//! | segment | rate |
//! |---|---|
//! | `10s@50k` | 50,000 a second for 10 s |
//! | `10s@10k..90k` | a slope, rising or falling |
//! | `10s@10k..50k/10k` | stairs, rising or falling: 10k, 20k, 30k, 40k, 50k, equally long, 10 s in all |
//! | `10s@50k~40k/1s` | a sine: 50k + 40k sin(2 pi t / 1 s) |
//! | `...+noise=5k/100ms` | every 100 ms the rate is off by another normal draw with standard deviation 5k |
//! | `...+noise=10%/100ms` | the same, 10 % of the rate without noise |
//!
//! Segments are joined by commas; noise may follow any of them. A noisy slope or sine runs straight
//! from one draw to the next, so a period should contain several draws. A rate below 0 is 0.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::random::{Prng, standard_normal, stream};
use crate::schedule::{LoadSchedule, MAX_SEGMENTS, ScheduleError, Segment, Shape, parse_segment};
use crate::units::{Rate, UnitError, format_duration_ns, parse_duration_ns};

/// The stream of the seed from which noise is drawn; a generator uses lower ones for other
/// purposes.
const NOISE_STREAM: u32 = 3;

/// Why a load pattern was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// The schedule is invalid.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The noise could not be read.
    #[error(
        "the noise of `{segment}` is not of the form +noise=SIZE/DURATION, for instance +noise=5k/100ms or +noise=10%/100ms"
    )]
    Noise {
        /// The whole segment.
        segment: String,
    },
    /// A rate, a duration or a percentage could not be read.
    #[error("segment `{segment}`: {source}")]
    Unit {
        /// The whole segment.
        segment: String,
        /// What was wrong.
        source: UnitError,
    },
    /// The stairs have no steps, or their steps lead away from the end.
    #[error(
        "the stairs of `{segment}` need steps above 0 that are no larger than the distance between the two rates"
    )]
    Stairs {
        /// The whole segment.
        segment: String,
    },
    /// There are too many steps or draws.
    #[error(
        "`{segment}` would become {count} segments; a pattern has at most {MAX_SEGMENTS} in all: make steps or noise coarser"
    )]
    Pieces {
        /// The whole segment.
        segment: String,
        /// Their number.
        count: u64,
    },
}

/// The size of the noise.
#[derive(Debug, Clone, Copy, PartialEq)]
enum NoiseSize {
    /// Standard deviation in requests a second.
    Rate(Rate),
    /// Standard deviation as a part of the rate.
    Part(f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Noise {
    size: NoiseSize,
    /// At least 1.
    every_ns: u64,
}

/// Segments of one kind, and the noise on all of them.
#[derive(Debug, Clone, PartialEq)]
struct Stretch {
    segments: Vec<Segment>,
    noise: Option<Noise>,
}

/// A load over time as written, with its noise not drawn yet; valid by construction.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPattern {
    stretches: Vec<Stretch>,
    text: String,
}

impl LoadPattern {
    /// Creates a pattern of one constant rate; `length_ns` as in [`LoadSchedule::constant`].
    #[must_use]
    pub fn constant(rate: Rate, length_ns: u64) -> Self {
        let schedule = LoadSchedule::constant(rate, length_ns);
        Self { text: format!("{}@{rate}", format_duration_ns(schedule.length_ns())), ..schedule.into() }
    }

    /// Returns the schedule of this pattern with the noise of `seed`.
    ///
    /// # Panics
    /// Never: a pattern without a valid schedule is refused when it is read.
    #[must_use]
    pub fn schedule(&self, seed: u64) -> LoadSchedule {
        self.expand(seed)
            .expect("a pattern is expanded when it is read, and noise changes no length and no count")
    }

    fn expand(&self, seed: u64) -> Result<LoadSchedule, ScheduleError> {
        let mut prng = stream(seed, NOISE_STREAM);
        let mut segments = Vec::new();
        for stretch in &self.stretches {
            for &segment in &stretch.segments {
                match stretch.noise {
                    None => segments.push(segment),
                    Some(noise) => noise.expand(segment, &mut prng, &mut segments),
                }
            }
        }
        LoadSchedule::new(segments)
    }
}

impl Noise {
    fn expand(self, segment: Segment, prng: &mut Prng, into: &mut Vec<Segment>) {
        let mut at_ns = 0;
        while at_ns < segment.length_ns {
            let end_ns = at_ns.saturating_add(self.every_ns).min(segment.length_ns);
            let draw = standard_normal(prng);
            let off = |rate: Rate| {
                let rate = rate.per_second();
                let deviation = match self.size {
                    NoiseSize::Rate(size) => size.per_second(),
                    NoiseSize::Part(part) => part * rate,
                };
                Rate::new((rate + draw * deviation).clamp(0.0, f64::MAX / 4.0)).unwrap_or(Rate::ZERO)
            };
            let from = off(segment.shape.rate_at(at_ns, segment.length_ns));
            let to = off(segment.shape.rate_at(end_ns, segment.length_ns));
            let shape = if from == to { Shape::Constant(from) } else { Shape::Slope { from, to } };
            into.push(Segment { length_ns: end_ns - at_ns, shape });
            at_ns = end_ns;
        }
    }
}

fn parse_noise(text: &str, segment: &str) -> Result<Noise, PatternError> {
    let malformed = || PatternError::Noise { segment: segment.to_owned() };
    let unit = |source| PatternError::Unit { segment: segment.to_owned(), source };
    let (size, every) = text.split_once('/').ok_or_else(malformed)?;
    let size = match size.trim().strip_suffix('%') {
        Some(percent) => {
            NoiseSize::Part(percent.parse::<Rate>().map_err(|_| malformed())?.per_second() / 100.0)
        }
        None => NoiseSize::Rate(size.parse().map_err(unit)?),
    };
    let every_ns = parse_duration_ns(every).map_err(unit)?;
    if every_ns == 0 {
        return Err(malformed());
    }
    Ok(Noise { size, every_ns })
}

/// Returns the segments of `LENGTH@FROM..TO/STEP`.
fn parse_stairs(length: &str, stairs: &str, text: &str) -> Result<Vec<Segment>, PatternError> {
    let unit = |source| PatternError::Unit { segment: text.to_owned(), source };
    let bad = || PatternError::Stairs { segment: text.to_owned() };
    let (ends, step) = stairs.split_once('/').ok_or_else(bad)?;
    let (from, to) = ends.split_once("..").ok_or_else(bad)?;
    let rate = |text: &str| text.parse::<Rate>().map(Rate::per_second).map_err(unit);
    let (length_ns, from, to, step) =
        (parse_duration_ns(length).map_err(unit)?, rate(from)?, rate(to)?, rate(step)?);
    let way = to - from;
    if step <= 0.0 || step > way.abs() {
        return Err(bad());
    }
    // The cast saturates; a hair more than the quotient, so that 0.1 fits into 1 ten times.
    let count = (way.abs() / step * (1.0 + 1e-9)) as u64 + 1;
    if count > MAX_SEGMENTS as u64 {
        return Err(PatternError::Pieces { segment: text.to_owned(), count });
    }
    if length_ns < count {
        return Err(ScheduleError::Length { index: 0 }.into());
    }
    let end_ns = |i: u64| (u128::from(length_ns) * u128::from(i) / u128::from(count)) as u64;
    let stair = |i: u64| {
        let rate = Rate::new((from + way.signum() * step * i as f64).max(0.0)).unwrap_or(Rate::ZERO);
        Segment { length_ns: end_ns(i + 1) - end_ns(i), shape: Shape::Constant(rate) }
    };
    Ok((0..count).map(stair).collect())
}

fn parse_stretch(text: &str) -> Result<Stretch, PatternError> {
    let (load, noise) = match text.split_once('+') {
        None => (text, None),
        Some((load, suffix)) => {
            let noise = suffix.trim().strip_prefix("noise=");
            let noise = noise.ok_or_else(|| PatternError::Noise { segment: text.to_owned() })?;
            (load.trim_end(), Some(parse_noise(noise, text)?))
        }
    };
    let segments = match load.split_once('@') {
        Some((length, shape)) if shape.contains("..") && shape.contains('/') => {
            parse_stairs(length, shape, text)?
        }
        _ => vec![parse_segment(load)?],
    };
    if let Some(noise) = noise {
        let count: u64 = segments.iter().map(|s| s.length_ns.div_ceil(noise.every_ns)).sum();
        if count > MAX_SEGMENTS as u64 {
            return Err(PatternError::Pieces { segment: text.to_owned(), count });
        }
    }
    Ok(Stretch { segments, noise })
}

impl FromStr for LoadPattern {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let mut stretches = Vec::new();
        for (index, part) in text.split(',').enumerate() {
            if index >= MAX_SEGMENTS {
                return Err(ScheduleError::SegmentCount { count: index + 1 }.into());
            }
            stretches.push(parse_stretch(part.trim())?);
        }
        // Checked as written first: with a period of 0 there is no rate to add noise to.
        let written = stretches.iter().flat_map(|stretch| stretch.segments.iter().copied()).collect();
        LoadSchedule::new(written)?;
        let pattern = Self { stretches, text: text.trim().to_owned() };
        pattern.expand(0)?;
        Ok(pattern)
    }
}

impl From<LoadSchedule> for LoadPattern {
    fn from(schedule: LoadSchedule) -> Self {
        let text = schedule.to_string();
        Self { stretches: vec![Stretch { segments: schedule.segments().to_vec(), noise: None }], text }
    }
}

/// Writes the pattern as it was read.
impl fmt::Display for LoadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND_NS;
    use proptest::prelude::*;

    fn pattern(text: &str) -> LoadPattern {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn every_schedule_is_a_pattern_of_itself() {
        let text = "1s@50k,2s@10k..90k,1s@50k~40k/1s";
        assert_eq!(pattern(text).schedule(7), text.parse().unwrap());
        assert_eq!(pattern(text).to_string(), text);
        assert_eq!(LoadPattern::constant(Rate::new(5e3).unwrap(), SECOND_NS), pattern("1s@5k"));
    }

    #[test]
    fn stairs_have_equal_steps_and_keep_their_length() {
        assert_eq!(pattern("10s@10k..50k/10k").schedule(1).to_string(), "2s@10k,2s@20k,2s@30k,2s@40k,2s@50k");
        assert_eq!(pattern("1s@3k..1k/1k").schedule(1).length_ns(), SECOND_NS);
        assert_eq!(pattern("6s@3k..1k/1k").schedule(1).to_string(), "2s@3k,2s@2k,2s@1k");
        assert_eq!(pattern("11s@0..1/0.1").schedule(1).segments().len(), 11);
        assert_eq!(pattern("3s@10k..25k/10k").schedule(1).to_string(), "1.5s@10k,1.5s@20k");
    }

    #[test]
    fn noise_is_the_seeds_and_as_large_as_asked_for() {
        let noisy = pattern("100s@50k+noise=5k/100ms");
        let schedule = noisy.schedule(3);
        assert_eq!(schedule, noisy.schedule(3));
        assert_ne!(schedule, noisy.schedule(4));
        let off: Vec<f64> =
            (0..1000).map(|i| schedule.rate_at(i * 100_000_000).per_second() - 50e3).collect();
        let mean = off.iter().sum::<f64>() / 1e3;
        let deviation = (off.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 1e3).sqrt();
        assert!(mean.abs() < 600.0 && (deviation / 5e3 - 1.0).abs() < 0.1, "{mean} {deviation}");
        let part = pattern("100s@50k+noise=10%/100ms").schedule(3);
        assert!((part.expected_arrivals() / schedule.expected_arrivals() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_noisy_sine_follows_the_sine() {
        let plain = pattern("10s@50k~40k/1s").schedule(1);
        let still = pattern("10s@50k~40k/1s+noise=0/10ms").schedule(1);
        for at_ns in (0..10 * SECOND_NS).step_by(3_333_333) {
            let (want, got) = (plain.rate_at(at_ns).per_second(), still.rate_at(at_ns).per_second());
            assert!((want - got).abs() < 100.0, "at {at_ns}: {got} for {want}");
        }
        assert_eq!(pattern("1s@10~10/1s+noise=1k/1ms").schedule(9).segments().len(), 1000);
    }

    #[test]
    fn bad_patterns_are_refused_with_advice() {
        for (text, fragment) in [
            ("", "DURATION@RATE"),
            ("10s@5k+noise", "+noise=SIZE/DURATION"),
            ("10s@5k+noise=5k", "+noise=SIZE/DURATION"),
            ("10s@5k+noise=x%/1s", "+noise=SIZE/DURATION"),
            ("10s@5k+noise=5k/1", "add one of ns"),
            ("10s@5k+noise=5k/0s", "+noise=SIZE/DURATION"),
            ("10s@5k+hum=5k/1s", "+noise=SIZE/DURATION"),
            ("100s@5k+noise=5k/1us", "coarser"),
            ("10s@10k..50k/0", "steps above 0"),
            ("10s@10k..50k/60k", "steps above 0"),
            ("10s@10k..50k/x", "decimal number"),
            ("10s@0..1M/1", "coarser"),
            ("2ns@0..10/1", "at least 1 ns"),
            ("1s@5k~6k/1s+noise=1/1ms", "amplitude"),
        ] {
            let message = text.parse::<LoadPattern>().expect_err(text).to_string();
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-z@.~/+%=, ]{0,40}") {
            if let Ok(pattern) = text.parse::<LoadPattern>() {
                prop_assert_eq!(pattern.to_string().parse::<LoadPattern>(), Ok(pattern));
            }
        }

        #[test]
        fn noise_changes_no_length(seconds in 1u64..20, size in 0u32..100_000, every_ms in 1u64..500, seed: u64) {
            prop_assume!(seconds * 1000 / every_ms < 10_000);
            let text = format!("{seconds}s@10k..90k+noise={size}/{every_ms}ms");
            prop_assume!(text.parse::<LoadPattern>().is_ok());
            let schedule = pattern(&text).schedule(seed);
            prop_assert_eq!(schedule.length_ns(), seconds * SECOND_NS);
        }
    }
}
