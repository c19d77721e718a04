//! The grammar that the options of all ports share: words separated by commas, each `key` or
//! `key=value`, and quantities with units. The error for an unknown word lists the known ones.

/// A word of the options that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}`: {expected}")]
pub struct OptionError {
    /// The word as written.
    pub word: String,
    /// What is allowed.
    pub expected: String,
}

impl OptionError {
    pub(super) fn new(word: &str, expected: impl Into<String>) -> Self {
        Self { word: word.to_owned(), expected: expected.into() }
    }
}

/// Returns the words of `text`, each with its value after `=`. Empty words are skipped.
pub(super) fn words(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(|word| match word.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim())),
        None => (word, None),
    })
}

/// Parses the value of `key` with `read`; without a value, or with one that `read` refuses, an
/// error with `expected`.
pub(super) fn value<T>(
    key: &str,
    value: Option<&str>,
    expected: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, OptionError> {
    let word = || format!("{key}{}{}", if value.is_some() { "=" } else { "" }, value.unwrap_or_default());
    value.and_then(read).ok_or_else(|| OptionError::new(&word(), expected))
}

/// Returns the number in `text`, scaled by its unit: the first of `units` that `text` ends with.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// Parses `5ms`, `250us`, `80ns`, `1.5s` into nanoseconds; at most an hour.
pub(super) fn duration_ns(text: &str) -> Option<u64> {
    let ns = quantity(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)])?;
    (ns <= 3.6e12).then_some(ns.round() as u64)
}

/// Parses `1%`, `0.5%` into parts per billion.
pub(super) fn share_ppb(text: &str) -> Option<u32> {
    let ppb = quantity(text, &[("%", 1e7)])?;
    (ppb <= 1e9).then_some(ppb.round() as u32)
}

/// Parses `100mbit`, `2gbit`, `64kbit` into bits per second, from 1000 to 10^12.
pub(super) fn rate_bps(text: &str) -> Option<u64> {
    let bps = quantity(text, &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)])?;
    (1e3..=1e12).contains(&bps).then_some(bps.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_need_a_unit_and_a_possible_number() {
        assert_eq!(duration_ns("5ms"), Some(5_000_000));
        assert_eq!(duration_ns("1.5us"), Some(1_500));
        assert_eq!(duration_ns("2s"), Some(2_000_000_000));
        assert_eq!(share_ppb("0.1%"), Some(1_000_000));
        assert_eq!(share_ppb("100%"), Some(1_000_000_000));
        assert_eq!(rate_bps("100mbit"), Some(100_000_000));
        for bad in ["5", "ms", "-1ms", "2h", "inf%", "nan%", "101%", "5000s"] {
            assert!(duration_ns(bad).is_none() && share_ppb(bad).is_none(), "{bad}");
        }
        assert!(rate_bps("0kbit").is_none() && rate_bps("10").is_none());
    }
}
