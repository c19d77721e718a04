//! Durations and rates in the notation of users: `10us`, `1.5ms`, `50k`, `1.2M`.
//!
//! Owns parsing, with errors that say what to write instead, and formatting that parses back to the
//! same value. It never rounds: a duration finer than a nanosecond is refused.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Units of time, longest first, so that formatting finds the longest that fits.
const TIME_UNITS: [(&str, u64); 6] = [
    ("h", 3_600 * SECOND_NS),
    ("min", 60 * SECOND_NS),
    ("s", SECOND_NS),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Why a duration or a rate could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The number in front of the unit is missing or malformed.
    #[error("`{text}` does not start with a decimal number; write for instance {example}")]
    Number {
        /// What was given.
        text: String,
        /// A text that would have been accepted.
        example: &'static str,
    },
    /// A duration is 0, where that means nothing.
    #[error("`{text}`: a time above 0 is needed, for instance 5s")]
    Zero {
        /// What was given.
        text: String,
    },
    /// A duration has no unit.
    #[error("duration `{text}` has no unit; add one of ns, us, ms, s, min, h")]
    MissingTimeUnit {
        /// What was given.
        text: String,
    },
    /// The text after the number is not a unit of time.
    #[error("`{unit}` in `{text}` is not a unit of time; use one of ns, us, ms, s, min, h")]
    TimeUnit {
        /// What was given.
        text: String,
        /// The unknown unit.
        unit: String,
    },
    /// The text after the number is not a multiplier of a rate.
    #[error(
        "`{unit}` in `{text}` is not a multiplier of a rate; use nothing, k or M, then optionally rps or /s"
    )]
    RateUnit {
        /// What was given.
        text: String,
        /// The unknown unit.
        unit: String,
    },
    /// The duration is not a whole number of nanoseconds.
    #[error("duration `{text}` is finer than a nanosecond; round it to whole nanoseconds")]
    TooFine {
        /// What was given.
        text: String,
    },
    /// The duration exceeds 2^64 - 1 nanoseconds.
    #[error("duration `{text}` is longer than 584 years")]
    TooLong {
        /// What was given.
        text: String,
    },
    /// The rate is negative, infinite or not a number.
    #[error("rate {value} is not usable; it must be finite and at least 0 per second")]
    RateRange {
        /// The value, printed.
        value: String,
    },
}

/// Splits `text` into a plain decimal number (digits, at most one point, no sign) and the rest,
/// both trimmed.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let valid =
        number.bytes().any(|b| b.is_ascii_digit()) && number.bytes().filter(|&b| b == b'.').count() <= 1;
    valid.then_some((number, unit.trim()))
}

/// As [`parse_duration_ns`], of a duration above 0.
///
/// # Errors
/// As there, and [`UnitError::Zero`].
pub fn parse_time_ns(text: &str) -> Result<u64, UnitError> {
    match parse_duration_ns(text)? {
        0 => Err(UnitError::Zero { text: text.to_owned() }),
        ns => Ok(ns),
    }
}

/// Reads a duration such as `10us`, `1.5ms`, `2 s` or `1min` as exact nanoseconds. `µs` is accepted
/// for `us`.
///
/// # Errors
/// A [`UnitError`] when the number or the unit is missing or unknown, when the duration is not a
/// whole number of nanoseconds, or when it exceeds `u64`.
pub fn parse_duration_ns(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split_number(text)
        .ok_or_else(|| UnitError::Number { text: text.to_owned(), example: "10us or 1.5ms" })?;
    if unit.is_empty() {
        return Err(UnitError::MissingTimeUnit { text: text.to_owned() });
    }
    let canonical = if unit == "µs" || unit == "μs" { "us" } else { unit };
    let (_, unit_ns) = TIME_UNITS
        .into_iter()
        .find(|&(name, _)| name == canonical)
        .ok_or_else(|| UnitError::TimeUnit { text: text.to_owned(), unit: unit.to_owned() })?;
    let too_long = || UnitError::TooLong { text: text.to_owned() };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole_ns = match whole {
        "" => 0,
        digits => digits.parse::<u64>().map_err(|_| too_long())?.checked_mul(unit_ns).ok_or_else(too_long)?,
    };
    let fraction = fraction.trim_end_matches('0');
    // An hour is 2^13 * 3^2 * 5^11 ns, so a fraction that ends in another digit than 0 and has more
    // than 13 digits is never a whole number of nanoseconds; up to there the product below stays
    // far inside u128.
    if fraction.len() > 13 {
        return Err(UnitError::TooFine { text: text.to_owned() });
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let numerator = fraction.parse::<u128>().unwrap_or(0) * u128::from(unit_ns);
    if !numerator.is_multiple_of(scale) {
        return Err(UnitError::TooFine { text: text.to_owned() });
    }
    // The fraction is less than one unit, so it fits.
    whole_ns.checked_add((numerator / scale) as u64).ok_or_else(too_long)
}

/// Writes a duration in the longest of s, ms, us, ns that is not longer than it;
/// [`parse_duration_ns`] reads it back to the same value.
#[must_use]
pub fn format_duration_ns(duration_ns: u64) -> String {
    let (name, unit_ns) = TIME_UNITS
        .into_iter()
        .skip_while(|&(_, unit_ns)| unit_ns > SECOND_NS)
        .find(|&(_, unit_ns)| duration_ns >= unit_ns)
        .unwrap_or(("ns", 1));
    let (whole, rest) = (duration_ns / unit_ns, duration_ns % unit_ns);
    if rest == 0 {
        return format!("{whole}{name}");
    }
    let digits = unit_ns.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    format!("{whole}.{}{name}", fraction.trim_end_matches('0'))
}

/// Events per second: finite and at least 0. Read and written as `50k`, `1.2M` or `1234.5`; `rps`
/// or `/s` may follow.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Rate(f64);

impl Rate {
    /// A rate of zero.
    pub const ZERO: Rate = Rate(0.0);

    /// Creates a rate of `per_second` events a second.
    ///
    /// # Errors
    /// [`UnitError::RateRange`] if it is negative, infinite or not a number.
    pub fn new(per_second: f64) -> Result<Self, UnitError> {
        if per_second.is_finite() && per_second >= 0.0 {
            Ok(Self(per_second))
        } else {
            Err(UnitError::RateRange { value: per_second.to_string() })
        }
    }

    /// Returns the events per second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        self.0
    }

    /// Creates the arrival rate that keeps `cores` cores busy for the fraction `load` of the time,
    /// if each arrival needs `mean_service_ns` of one core.
    ///
    /// # Errors
    /// [`UnitError::RateRange`] if the arguments give no finite rate of at least 0, for instance
    /// a service time of 0.
    pub fn for_load(load: f64, cores: f64, mean_service_ns: f64) -> Result<Self, UnitError> {
        Self::new(load * cores * SECOND_NS as f64 / mean_service_ns)
    }
}

impl TryFrom<f64> for Rate {
    type Error = UnitError;
    fn try_from(per_second: f64) -> Result<Self, UnitError> {
        Self::new(per_second)
    }
}

impl From<Rate> for f64 {
    fn from(rate: Rate) -> f64 {
        rate.0
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bad_number = || UnitError::Number { text: text.to_owned(), example: "50k or 1.2M" };
        let (number, suffix) = split_number(text).ok_or_else(bad_number)?;
        let multiplier =
            suffix.strip_suffix("rps").or_else(|| suffix.strip_suffix("/s")).unwrap_or(suffix).trim();
        let exponent = match multiplier {
            "" => 0,
            "k" | "K" => 3,
            "M" => 6,
            _ => return Err(UnitError::RateUnit { text: text.to_owned(), unit: suffix.to_owned() }),
        };
        // One correctly rounded conversion; a multiplication afterwards would round twice.
        Self::new(format!("{number}e{exponent}").parse().map_err(|_| bad_number())?)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A multiplier is written only if it makes the text short; the shortest decimal of an f64
        // reads back exactly.
        match self.0 {
            v if v >= 1e6 && v % 1e4 == 0.0 => write!(f, "{}M", v / 1e6),
            v if v >= 1e3 && v % 10.0 == 0.0 => write!(f, "{}k", v / 1e3),
            v => write!(f, "{v}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_exactly() {
        for (text, want) in [
            ("10us", 10_000),
            ("1.5ms", 1_500_000),
            ("0.000000001s", 1),
            (".5us", 500),
            ("2.us", 2_000),
            ("2 s", 2_000_000_000),
            ("1.5min", 90_000_000_000),
            ("1h", 3_600_000_000_000),
            ("7µs", 7_000),
            ("1.000ns", 1),
            ("0ns", 0),
            ("0.10min", 6_000_000_000),
        ] {
            assert_eq!(parse_duration_ns(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn bad_durations_are_refused_with_advice() {
        for (text, fragment) in [
            ("", "does not start"),
            ("us", "does not start"),
            ("1.2.3us", "does not start"),
            ("-1us", "does not start"),
            ("10", "add one of ns"),
            ("10days", "`days`"),
            ("1.5ns", "finer than"),
            ("1.2345us", "finer than"),
            ("99999999999h", "584 years"),
            ("18446744074s", "584 years"),
        ] {
            let message = parse_duration_ns(text).expect_err(text).to_string();
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }

    #[test]
    fn rates_are_read_with_multipliers() {
        for (text, want) in
            [("50k", 5e4), ("1.2M", 1.2e6), ("50krps", 5e4), ("7/s", 7.0), ("0.5", 0.5), ("100 k/s", 1e5)]
        {
            assert_eq!(text.parse::<Rate>().map(Rate::per_second), Ok(want), "{text}");
        }
        assert!("50m".parse::<Rate>().unwrap_err().to_string().contains("multiplier"));
        assert!("-1".parse::<Rate>().is_err());
        assert!(Rate::new(f64::NAN).is_err());
        assert!(Rate::for_load(0.5, 1.0, 0.0).is_err());
    }

    #[test]
    fn half_load_of_ten_microseconds_is_fifty_thousand_a_second() {
        assert_eq!(Rate::for_load(0.5, 1.0, 10_000.0).unwrap().to_string(), "50k");
    }

    proptest! {
        #[test]
        fn a_formatted_duration_reads_back(duration_ns: u64) {
            prop_assert_eq!(parse_duration_ns(&format_duration_ns(duration_ns)), Ok(duration_ns));
        }

        #[test]
        fn a_formatted_rate_reads_back(per_second in prop_oneof![0.0..1e9, (0u32..1_000_000).prop_map(|k| f64::from(k) * 10.0)]) {
            let rate = Rate::new(per_second).unwrap();
            prop_assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,24}") {
            let _ = parse_duration_ns(&text);
            let _ = text.parse::<Rate>();
        }
    }
}
