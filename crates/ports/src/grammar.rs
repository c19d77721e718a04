//! The grammar that the options of all ports share: words separated by commas, each `key` or
//! `key=value`, and quantities with units. No word may be given twice. The error for an unknown
//! word lists the known ones.

use crate::sys::interface::MAX_NAME;

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

/// A word: its key, and its value after `=`.
pub(super) type Word<'a> = (&'a str, Option<&'a str>);

/// Returns the words of `text`; none if it is empty.
///
/// # Errors
/// If nothing is before or after a comma, or a key is there twice.
pub(super) fn words(text: &str) -> Result<std::vec::IntoIter<Word<'_>>, OptionError> {
    let mut words: Vec<Word<'_>> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
        if word.is_empty() {
            return Err(OptionError::new(text, "there is no word before or after a comma"));
        }
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (word, None),
        };
        if words.iter().any(|(other, _)| *other == key) {
            return Err(OptionError::new(word, format!("{key} is given twice")));
        }
        words.push((key, value));
    }
    Ok(words.into_iter())
}

/// Returns the name of a device, the first of the words of `text`.
pub(super) fn device<'a>(
    text: &str,
    words: &mut impl Iterator<Item = Word<'a>>,
) -> Result<&'a str, OptionError> {
    let Some((name, None)) = words.next() else {
        return Err(OptionError::new(text, "the name of the device must come first"));
    };
    if name.len() > MAX_NAME {
        return Err(OptionError::new(name, format!("the name of a device has at most {MAX_NAME} bytes")));
    }
    // Linux would number a name with %, such as `tw%d`, and another device would be meant.
    if name.contains(|c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c)) {
        return Err(OptionError::new(name, "the name of a device has no blank, /, : or %"));
    }
    Ok(name)
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

/// Parses a word that is on or off; without a value it is on.
pub(super) fn flag(key: &str, given: Option<&str>) -> Result<bool, OptionError> {
    value(key, given.or(Some("on")), &format!("{key}, {key}=on or {key}=off"), |v| match v {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    })
}

/// Returns the number in `text`, scaled by its unit: the first of `units` that `text` ends with.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// Parses `5ms`, `250us`, `80ns`, `1.5s`, `1min`, `1h` into nanoseconds; at most an hour.
pub(super) fn duration_ns(text: &str) -> Option<u64> {
    let ns =
        quantity(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 6e10), ("h", 3.6e12)])?;
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
    fn a_missing_word_and_one_that_is_there_twice_are_refused() {
        assert_eq!(words(" a, b = 1 ").unwrap().collect::<Vec<_>>(), [("a", None), ("b", Some("1"))]);
        assert_eq!(words(" ").unwrap().len(), 0);
        for text in [",a", "a,", "a,,b", ","] {
            assert!(words(text).unwrap_err().to_string().contains("no word"), "{text}");
        }
        let twice = words("a,b=1,b=2").unwrap_err();
        assert_eq!((&*twice.word, &*twice.expected), ("b=2", "b is given twice"));
    }

    #[test]
    fn a_flag_is_on_or_off() {
        assert_eq!(
            [None, Some("on"), Some("off")].map(|given| flag("napi", given).unwrap()),
            [true, true, false]
        );
        for bad in ["", "no", "maybe"] {
            let why = flag("napi", Some(bad)).unwrap_err().to_string();
            assert!(why.contains(&format!("napi={bad}")) && why.contains("napi=off"), "{why}");
        }
    }

    #[test]
    fn quantities_need_a_unit_and_a_possible_number() {
        assert_eq!(duration_ns("5ms"), Some(5_000_000));
        assert_eq!(duration_ns("1.5us"), Some(1_500));
        assert_eq!(duration_ns("2s"), Some(2_000_000_000));
        assert_eq!(duration_ns("1h"), duration_ns("60min"));
        assert_eq!(share_ppb("0.1%"), Some(1_000_000));
        assert_eq!(share_ppb("100%"), Some(1_000_000_000));
        assert_eq!(rate_bps("100mbit"), Some(100_000_000));
        for bad in ["5", "ms", "-1ms", "2h", "inf%", "nan%", "101%", "5000s"] {
            assert!(duration_ns(bad).is_none() && share_ppb(bad).is_none(), "{bad}");
        }
        assert!(rate_bps("0kbit").is_none() && rate_bps("10").is_none());
    }
}
