//! Lists of cores, as options and the configuration file write them.
//!
//! Owns the text form, `2-7,10`, and the form of the file: that text, or an array whose elements
//! are numbers or such texts. It does not know which cores there are.

use core::fmt;
use core::str::FromStr;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Highest core number that is read: more than Linux supports, so that a range stays short.
const MAX_CORE: u16 = 16_383;

/// Cores in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreList(pub Vec<u16>);

impl FromStr for CoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let number = part.trim().parse::<u16>().ok().filter(|&core| core <= MAX_CORE);
            number.ok_or_else(|| format!("`{part}` is not a core number; write for instance 1 or 2-7,10"))
        };
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("`{part}` is no range; write {last}-{first}"));
            }
            cores.extend(first..=last);
        }
        Ok(Self(cores))
    }
}

impl fmt::Display for CoreList {
    /// Writes consecutive cores as a range.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|&core, &next| core.checked_add(1) == Some(next));
        for (number, run) in runs.enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [only] => write!(f, "{comma}{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// Reads a number, a text, or an array of these.
struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = Vec<u16>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cores, for instance \"2-7,10\" or [2, 3]")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<u16>, E> {
        text.parse::<CoreList>().map(|list| list.0).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Vec<u16>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Vec<u16>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<u16>, A::Error> {
        let mut cores = Vec::new();
        while let Some(Element(mut more)) = elements.next_element()? {
            cores.append(&mut more);
        }
        Ok(cores)
    }
}

/// An element of an array.
struct Element(Vec<u16>);

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written).map(Self)
    }
}

pub(super) fn serialize<S: Serializer>(cores: &Option<Vec<u16>>, serializer: S) -> Result<S::Ok, S::Error> {
    match cores {
        // As an array: no text stands for it.
        Some(cores) if cores.is_empty() => cores.serialize(serializer),
        Some(cores) => serializer.collect_str(&CoreList(cores.clone())),
        None => serializer.serialize_none(),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u16>>, D::Error> {
    deserializer.deserialize_any(Written).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn lists_are_read_or_refused_with_an_example() {
        let read = |text: &str| text.parse::<CoreList>().map(|list| list.0);
        assert_eq!(read("1").unwrap(), [1]);
        assert_eq!(read("2-4,10").unwrap(), [2, 3, 4, 10]);
        for bad in ["", "x", "1-", "1,,2", "0-65535"] {
            assert!(read(bad).unwrap_err().contains("2-7,10"), "{bad}");
        }
        assert!(read("3-1").unwrap_err().contains("1-3"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["1", "2-4,10", "0,2,4-5", "3,1-2"] {
            assert_eq!(text.parse::<CoreList>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_file_takes_what_the_option_takes_and_arrays() {
        let cores =
            |value: &str| Config::from_toml(&format!("managed-cores = {value}")).map(|c| c.managed_cores);
        for value in ["\"2-4,10\"", "[2, 3, 4, 10]", "[\"2-4\", 10]", "[\"2-4,10\"]"] {
            assert_eq!(cores(value).unwrap(), Some(vec![2, 3, 4, 10]), "{value}");
        }
        assert_eq!(cores("1").unwrap(), Some(vec![1]));
        for bad in ["\"x\"", "[\"1-\"]", "true", "[1.5]"] {
            let error = cores(bad).unwrap_err().to_string();
            assert!(error.contains("2-7,10"), "{bad}: {error}");
        }
    }
}
