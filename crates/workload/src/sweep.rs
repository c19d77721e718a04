//! Lists of rates to try in sequence: `10k`, `10k..200k/10k`, `1k..64k*2`, or several of these
//! joined by commas.
//!
//! Owns the notation. It does not say for how long or in which order the rates are tried.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::units::{Rate, UnitError};

/// Maximum number of rates of one list.
pub const MAX_RATES: usize = 1_000;

/// Why a list of rates was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateListError {
    /// A rate could not be read.
    #[error("rates `{text}`: {source}")]
    Unit {
        /// The part in question.
        text: String,
        /// What was wrong.
        source: UnitError,
    },
    /// A range has no step.
    #[error("range `{text}` has no step; write for instance 10k..200k/10k (by 10k) or 1k..64k*2 (doubling)")]
    Step {
        /// The part in question.
        text: String,
    },
    /// A range contains no rates.
    #[error(
        "range `{text}` contains no rates; write LOW..HIGH/STEP with a step above 0, or LOW..HIGH*FACTOR with LOW above 0 and a factor above 1"
    )]
    Empty {
        /// The part in question.
        text: String,
    },
    /// A rate is 0.
    #[error("`{text}` contains the rate 0, at which nothing would be measured; leave it out")]
    Zero {
        /// The part in question.
        text: String,
    },
    /// There are too many rates.
    #[error("`{text}` makes more than {MAX_RATES} rates; use larger steps")]
    TooMany {
        /// The part in question.
        text: String,
    },
}

/// Rates above 0, in the order written; 1 to [`MAX_RATES`] of them.
#[derive(Debug, Clone, PartialEq)]
pub struct RateList {
    rates: Vec<Rate>,
}

impl RateList {
    /// Returns the rates.
    #[must_use]
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// Returns the rate, if it is only one.
    #[must_use]
    pub fn single(&self) -> Option<Rate> {
        if let [rate] = self.rates[..] { Some(rate) } else { None }
    }

    fn push(&mut self, rate: f64, text: &str) -> Result<(), RateListError> {
        let text = || text.to_owned();
        let rate = Rate::new(rate).map_err(|source| RateListError::Unit { text: text(), source })?;
        if rate == Rate::ZERO {
            return Err(RateListError::Zero { text: text() });
        }
        if self.rates.len() == MAX_RATES {
            return Err(RateListError::TooMany { text: text() });
        }
        self.rates.push(rate);
        Ok(())
    }

    fn push_part(&mut self, text: &str) -> Result<(), RateListError> {
        let rate = |part: &str| {
            part.parse::<Rate>()
                .map(Rate::per_second)
                .map_err(|source| RateListError::Unit { text: text.to_owned(), source })
        };
        let Some((low, rest)) = text.split_once("..") else {
            return self.push(rate(text)?, text);
        };
        let (high, step, multiply) = match (rest.split_once('/'), rest.split_once('*')) {
            (Some((high, step)), _) => (high, step, false),
            (None, Some((high, factor))) => (high, factor, true),
            (None, None) => return Err(RateListError::Step { text: text.to_owned() }),
        };
        let (low, high, step) = (rate(low)?, rate(high)?, rate(step)?);
        if high < low || step <= 0.0 || (multiply && (step <= 1.0 || low <= 0.0)) {
            return Err(RateListError::Empty { text: text.to_owned() });
        }
        // Slightly beyond the end, so that rounding does not lose the last rate. The exponent stays
        // below MAX_RATES + 1.
        let at = |i: i32| if multiply { low * power(step, i) } else { low + step * f64::from(i) };
        let mut i = 0;
        while at(i) <= high * (1.0 + 1e-9) {
            self.push(at(i), text)?;
            i += 1;
        }
        Ok(())
    }
}

/// Returns `base` to the power of `exponent`, which is not negative, by repeated squaring.
fn power(mut base: f64, mut exponent: i32) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= base;
        }
        exponent /= 2;
        base *= base;
    }
    result
}

impl FromStr for RateList {
    type Err = RateListError;
    fn from_str(text: &str) -> Result<Self, RateListError> {
        let mut list = Self { rates: Vec::new() };
        for part in text.split(',') {
            list.push_part(part.trim())?;
        }
        Ok(list)
    }
}

/// Writes the rates joined by commas; the text reads back as an equal list.
impl fmt::Display for RateList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.rates.iter().map(Rate::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn rates(text: &str) -> Vec<f64> {
        text.parse::<RateList>()
            .unwrap_or_else(|e| panic!("{text}: {e}"))
            .rates
            .iter()
            .map(|r| r.per_second())
            .collect()
    }

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(rates("50k"), [50e3]);
        assert_eq!(rates("10k, 20k,15k"), [10e3, 20e3, 15e3]);
        assert_eq!(rates("10k..50k/10k"), [10e3, 20e3, 30e3, 40e3, 50e3]);
        assert_eq!(rates("10k..45k/10k"), [10e3, 20e3, 30e3, 40e3]);
        assert_eq!(rates("1k..8k*2,100k"), [1e3, 2e3, 4e3, 8e3, 100e3]);
        assert_eq!(rates("0.1..1/0.1").len(), 10);
        assert_eq!(rates("5k..5k/1k"), [5e3]);
        assert_eq!("50k".parse::<RateList>().unwrap().single(), Rate::new(50e3).ok());
        assert_eq!("50k,60k".parse::<RateList>().unwrap().single(), None);
    }

    #[test]
    fn bad_lists_are_refused_with_advice() {
        for (text, fragment) in [
            ("", "50k or 1.2M"),
            ("10k,,20k", "50k or 1.2M"),
            ("10k..200k", "10k..200k/10k"),
            ("200k..10k/10k", "contains no rates"),
            ("10k..20k/0", "contains no rates"),
            ("10k..20k*1", "contains no rates"),
            ("0..20k*2", "contains no rates"),
            ("0..20k/10k", "leave it out"),
            ("1..1M/1", "larger steps"),
        ] {
            let message = text.parse::<RateList>().expect_err(text).to_string();
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9kM.,/* ]{0,24}") {
            if let Ok(list) = text.parse::<RateList>() {
                prop_assert!(!list.rates.is_empty() && list.rates.len() <= MAX_RATES);
                prop_assert_eq!(list.to_string().parse::<RateList>(), Ok(list));
            }
        }
    }
}
