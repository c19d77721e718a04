//! Median and extremes over rounds.

use tailwater_testbed::table::number;

/// A figure over the rounds of one point; all values are finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Returns the spread of these values without non-finite ones; `None` without values. The
    /// median of an even number is the upper of the middle two.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        Some(Self { median: values[values.len() / 2], min, max })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { median, min, max } = *self;
        if min == max {
            f.write_str(&number(median))
        } else {
            write!(f, "{} ({} to {})", number(median), number(min), number(max))
        }
    }
}

/// Returns a spread as a table cell; blank for `None`.
pub fn cell(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |spread| spread.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_the_ends() {
        let spread = Spread::of([3.0, f64::NAN, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(spread.to_string(), "2.00 (1.00 to 3.00)");
        assert_eq!(Spread::of([7.0]).unwrap().to_string(), "7.00");
        assert_eq!((Spread::of([f64::INFINITY]), cell(None)), (None, String::new()));
    }
}
