//! Requests to a key-value store: the workloads ETC and USR of Facebook's memcached (Atikoglu, Xu,
//! Frachtenberg, Jiang and Paleczny, *Workload Analysis of a Large-Scale Key-Value Store*,
//! SIGMETRICS 2012), with which Shenango (section 7.1, USR), IX (section 5.2.4, both) and Arachne
//! (section 7.2, ETC) measure; and YCSB (Cooper, Silberstein, Tam, Ramakrishnan and Sears,
//! *Benchmarking Cloud Serving Systems with YCSB*, SoCC 2010) with the objects of 100 bytes of
//! Arachne's section 7.3.
//!
//! Owns the lengths of keys and values, the shares of reads and writes, and the text and bytes of
//! each key. The sizes of a key and of its value follow from the key's number alone, so a client
//! can check what it reads without remembering what it wrote.
//!
//! | | ETC | USR | YCSB |
//! |---|---|---|---|
//! | key | generalized extreme value, location 30.7984, scale 8.20449, shape 0.078688 | 16 bytes (published: 16 or 21) | 24 bytes |
//! | value | a table up to 14 bytes (44 %), above generalized Pareto from 15 bytes on, scale 214.476, shape 0.348238 | 2 bytes | 100 bytes |
//! | reads | 30 of 31 | 99.8 % | 50 %, which is YCSB-A; B has 95 %, C 100 % |
//!
//! The parameters of ETC are the paper's statistical model as implemented by the generator mutilate
//! (`fb_key`, `fb_value`), with which IX and Arachne were measured. One parameter differs: the
//! paper's Pareto distribution has location 0; here it begins at 15, where the table ends, so that
//! no length is drawn from both. The published distribution restricted to 15 bytes and more would
//! have location 15 and scale 214.476 + 15 * 0.348238 = 219.7: a mean of 352 bytes instead of 344.
//! The shares of reads are the published ones; Shenango uses the same for USR and Arachne for ETC
//! (3 % writes), while IX uses 75 % for ETC and 99 % for USR: see [`KeyValues::with_get_share`].
//!
//! Lengths are rounded down to whole bytes and kept within [`KEY_BYTES`] and the store's limit for
//! values. All keys are equally popular: the paper shows popularity only as a curve, which cannot
//! be reproduced without its traces, and YCSB's Zipf distribution is left out. So are deletions,
//! which the paper counts among the requests.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::content;
use crate::random::{Prng, unit_open_closed};

/// Shortest and longest key in bytes. memcached accepts 250; the short end leaves room for the
/// key's number.
pub const KEY_BYTES: core::ops::RangeInclusive<usize> = 8..=250;

/// Maximum number of keys of one store.
pub const MAX_KEYS: u64 = 1 << 32;

/// Default bound of a value: memcached's item limit of 1 MiB, less an item's header.
pub const MAX_VALUE_BYTES: usize = 1_000_000;

/// Digits of a key's number; six digits of 64 values distinguish 2^36 keys.
const KEY_DIGITS: usize = 6;

/// A published workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// General purpose: the most heterogeneous and the largest pool.
    Etc,
    /// User-account status: short keys, two bytes of value, almost no writes.
    Usr,
    /// YCSB's core workload A, with objects of 100 bytes.
    Ycsb,
}

/// Why a workload was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeyValueError {
    /// The name is unknown.
    #[error("`{name}` is not a key-value workload; use etc, usr or ycsb")]
    Name {
        /// What was given.
        name: String,
    },
    /// The number of keys is zero or too large.
    #[error("a store has 1 to {MAX_KEYS} keys, not {keys}")]
    Keys {
        /// What was given.
        keys: u64,
    },
    /// The value is not a share.
    #[error("the share of reads must be in 0..=1, not {share}")]
    Share {
        /// What was given.
        share: f64,
    },
}

impl FromStr for Workload {
    type Err = KeyValueError;
    fn from_str(name: &str) -> Result<Self, KeyValueError> {
        match name {
            "etc" => Ok(Self::Etc),
            "usr" => Ok(Self::Usr),
            "ycsb" => Ok(Self::Ycsb),
            _ => Err(KeyValueError::Name { name: name.to_owned() }),
        }
    }
}

/// Generalized extreme-value distribution, by inversion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExtremeValue {
    /// Location.
    pub location: f64,
    /// Scale, above 0.
    pub scale: f64,
    /// Shape, not 0.
    pub shape: f64,
}

impl ExtremeValue {
    /// Returns the quantile at `unit`.
    #[must_use]
    pub fn quantile(&self, unit: f64) -> f64 {
        self.location + self.scale / self.shape * (libm::pow(-libm::log(unit), -self.shape) - 1.0)
    }

    /// Returns the mean, for shapes below 1.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.location + self.scale * (libm::tgamma(1.0 - self.shape) - 1.0) / self.shape
    }
}

/// Generalized Pareto distribution, by inversion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GeneralizedPareto {
    /// Smallest value.
    pub location: f64,
    /// Scale, above 0.
    pub scale: f64,
    /// Shape, not 0.
    pub shape: f64,
}

impl GeneralizedPareto {
    /// Returns the quantile at `unit`.
    #[must_use]
    pub fn quantile(&self, unit: f64) -> f64 {
        self.location + self.scale / self.shape * (libm::pow(1.0 - unit, -self.shape) - 1.0)
    }

    /// Returns the mean, for shapes below 1.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.location + self.scale / (1.0 - self.shape)
    }
}

/// Bytes of an ETC key (the paper's statistical model of ETC).
pub const ETC_KEY: ExtremeValue = ExtremeValue { location: 30.7984, scale: 8.20449, shape: 0.078_688 };

/// Bytes of an ETC value above [`ETC_SMALL_VALUES`] (the same).
pub const ETC_VALUE: GeneralizedPareto =
    GeneralizedPareto { location: 15.0, scale: 214.476, shape: 0.348_238 };

/// Share of the ETC values with 0 to 14 bytes (the same); the others follow [`ETC_VALUE`].
pub const ETC_SMALL_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837,
    0.08989, 0.00092, 0.00326, 0.01980,
];

/// Bytes of a USR key.
const USR_KEY: usize = 16;

/// Bytes of a USR value.
const USR_VALUE: usize = 2;

/// Bytes of a YCSB key: `user` and the decimal digits of a hash.
const YCSB_KEY: usize = 24;

/// Bytes of a YCSB value (Arachne, figure 8).
const YCSB_VALUE: usize = 100;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read the value of a key.
    Get,
    /// Store the value of a key, which is always the same.
    Set,
}

/// A store's keys and the mix of requests. Valid by construction.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyValues {
    workload: Workload,
    keys: u64,
    get_share: f64,
    max_value: usize,
}

impl KeyValues {
    /// Creates `keys` keys of `workload` with the published share of reads and values of at most
    /// `max_value` bytes.
    ///
    /// # Errors
    /// [`KeyValueError::Keys`].
    pub fn new(workload: Workload, keys: u64, max_value: usize) -> Result<Self, KeyValueError> {
        if !(1..=MAX_KEYS).contains(&keys) {
            return Err(KeyValueError::Keys { keys });
        }
        let get_share = match workload {
            Workload::Etc => 30.0 / 31.0,
            Workload::Usr => 0.998,
            Workload::Ycsb => 0.5,
        };
        Ok(Self { workload, keys, get_share, max_value })
    }

    /// Sets the share of reads, 0 to 1.
    ///
    /// # Errors
    /// [`KeyValueError::Share`].
    pub fn with_get_share(self, share: f64) -> Result<Self, KeyValueError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(KeyValueError::Share { share });
        }
        Ok(Self { get_share: share, ..self })
    }

    /// Returns the number of keys; they are numbered from 0.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Draws a request and its key.
    #[inline]
    pub fn draw(&self, prng: &mut Prng) -> (Operation, u64) {
        let operation =
            if unit_open_closed(prng) <= self.get_share { Operation::Get } else { Operation::Set };
        // The draw can be 1.
        let key = (unit_open_closed(prng) * self.keys as f64) as u64;
        (operation, key.min(self.keys - 1))
    }

    /// Returns the bytes of the text of key `key`.
    #[must_use]
    pub fn key_len(&self, key: u64) -> usize {
        match self.workload {
            Workload::Usr => USR_KEY,
            Workload::Ycsb => YCSB_KEY,
            // The cast saturates.
            Workload::Etc => {
                (ETC_KEY.quantile(unit(key, 1)) as usize).clamp(*KEY_BYTES.start(), *KEY_BYTES.end())
            }
        }
    }

    /// Returns the bytes of the value of key `key`.
    #[must_use]
    pub fn value_len(&self, key: u64) -> usize {
        let len = match self.workload {
            Workload::Usr => USR_VALUE,
            Workload::Ycsb => YCSB_VALUE,
            Workload::Etc => etc_value_len(unit(key, 2)),
        };
        len.min(self.max_value)
    }

    /// Appends the text of key `key`: printable, without blanks, different for each key.
    pub fn write_key(&self, key: u64, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let len = self.key_len(key);
        let mut rest = key;
        for at in 0..len {
            if at == KEY_DIGITS {
                rest = content::mix(key);
            } else if rest == 0 && at > KEY_DIGITS {
                rest = content::mix(key ^ at as u64);
            }
            out.push(DIGITS[(rest & 63) as usize]);
            rest >>= 6;
        }
    }

    /// Appends the value of key `key`.
    pub fn write_value(&self, key: u64, out: &mut Vec<u8>) {
        content::fill(key, self.value_len(key), out);
    }

    /// Returns true if `value` is the value of key `key`.
    #[must_use]
    pub fn is_value(&self, key: u64, value: &[u8]) -> bool {
        value.len() == self.value_len(key) && content::is_content(key, value)
    }
}

/// Returns a number in (0, 1) that depends on `key` and a purpose.
fn unit(key: u64, purpose: u64) -> f64 {
    const SCALE: f64 = 1.0 / (1u64 << 52) as f64;
    ((content::mix(content::mix(key) ^ purpose) >> 12) as f64 + 0.5) * SCALE
}

fn etc_value_len(mut unit: f64) -> usize {
    for (len, &share) in ETC_SMALL_VALUES.iter().enumerate() {
        if unit < share {
            return len;
        }
        unit -= share;
    }
    let above = 1.0 - ETC_SMALL_VALUES.iter().sum::<f64>();
    // The cast saturates; the quotient is below 1 except for rounding.
    ETC_VALUE.quantile((unit / above).min(1.0 - f64::EPSILON)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;
    use alloc::string::ToString;
    use std::collections::HashSet;

    const KEYS: u64 = 200_000;

    fn etc() -> KeyValues {
        KeyValues::new(Workload::Etc, KEYS, MAX_VALUE_BYTES).unwrap()
    }

    fn mean(lengths: impl Iterator<Item = usize>) -> f64 {
        lengths.map(|len| len as f64).sum::<f64>() / KEYS as f64
    }

    #[test]
    fn etc_keys_are_as_long_as_published() {
        let lengths: Vec<usize> = (0..KEYS).map(|key| etc().key_len(key)).collect();
        // Rounding down takes half a byte off the mean of the continuous distribution.
        let got = mean(lengths.iter().copied());
        assert!((got - (ETC_KEY.mean() - 0.5)).abs() < 0.1, "{got}, not {}", ETC_KEY.mean() - 0.5);
        assert!((ETC_KEY.mean() - 36.1).abs() < 0.2);
        // IX section 5.2.4: 20 to 70 bytes.
        let within = lengths.iter().filter(|len| (18..=70).contains(*len)).count() as f64 / KEYS as f64;
        assert!(within > 0.97, "{within}");
        assert!(lengths.iter().all(|len| KEY_BYTES.contains(len)));
    }

    #[test]
    fn etc_values_are_as_long_as_published() {
        let lengths: Vec<usize> = (0..KEYS).map(|key| etc().value_len(key)).collect();
        for (len, share) in ETC_SMALL_VALUES.iter().enumerate() {
            let got = lengths.iter().filter(|l| **l == len).count() as f64 / KEYS as f64;
            // Four standard deviations of a count.
            let tolerance = 4.0 * (share / KEYS as f64).sqrt();
            assert!((got - share).abs() < tolerance, "{len} bytes: {got}, not {share}");
        }
        let large: Vec<usize> = lengths.iter().copied().filter(|len| *len >= 15).collect();
        assert!((large.len() as f64 / KEYS as f64 - 0.558_45).abs() < 0.005);
        let got = large.iter().map(|len| *len as f64).sum::<f64>() / large.len() as f64;
        assert!((got / (ETC_VALUE.mean() - 0.5) - 1.0).abs() < 0.02, "{got}, not {}", ETC_VALUE.mean());
        // IX section 5.2.4: 1 B to 1 KB; the abstract of the paper: nine of ten below 500 bytes.
        let below = |bound| lengths.iter().filter(|len| **len < bound).count() as f64 / KEYS as f64;
        assert!((0.86..0.94).contains(&below(500)) && below(1024) > 0.95, "{} {}", below(500), below(1024));
    }

    #[test]
    fn usr_is_short_and_reads_almost_always_and_ycsb_half_of_the_time() {
        let usr = KeyValues::new(Workload::Usr, 1000, MAX_VALUE_BYTES).unwrap();
        assert!((0..1000).all(|key| (usr.key_len(key), usr.value_len(key)) == (16, 2)));
        let ycsb = KeyValues::new(Workload::Ycsb, 1000, MAX_VALUE_BYTES).unwrap();
        assert!((0..1000).all(|key| (ycsb.key_len(key), ycsb.value_len(key)) == (24, 100)));
        for (store, share) in [(usr, 0.998), (etc(), 30.0 / 31.0), (ycsb, 0.5)] {
            let mut prng = stream(1, 0);
            let sets =
                (0..100_000).filter(|_| store.draw(&mut prng).0 == Operation::Set).count() as f64 / 1e5;
            // At least three standard deviations of a share of one half.
            assert!((sets - (1.0 - share)).abs() < 0.005, "{sets}");
        }
    }

    #[test]
    fn all_keys_are_asked_for_and_none_beyond() {
        let store = KeyValues::new(Workload::Usr, 10, MAX_VALUE_BYTES).unwrap();
        let mut prng = stream(2, 0);
        let mut asked = [0; 10];
        (0..10_000).for_each(|_| asked[store.draw(&mut prng).1 as usize] += 1);
        assert!(asked.iter().all(|count| (850..1150).contains(count)), "{asked:?}");
    }

    #[test]
    fn keys_are_distinct_printable_and_as_long_as_they_say() {
        let mut seen = HashSet::new();
        let other = |workload| KeyValues::new(workload, MAX_KEYS, 0).unwrap();
        for store in [etc(), other(Workload::Usr), other(Workload::Ycsb)] {
            seen.clear();
            for key in (0..50_000).chain(MAX_KEYS - 50_000..MAX_KEYS) {
                let mut text = Vec::new();
                store.write_key(key, &mut text);
                assert_eq!(text.len(), store.key_len(key));
                assert!(text.iter().all(u8::is_ascii_graphic));
                assert!(seen.insert(text), "key {key}");
            }
        }
    }

    #[test]
    fn a_value_is_told_from_all_others() {
        let store = etc();
        let mut value = Vec::new();
        let key = (0..KEYS).find(|key| store.value_len(*key) > 100).unwrap();
        store.write_value(key, &mut value);
        assert!(store.is_value(key, &value));
        assert!(!store.is_value(key, &value[1..]));
        assert!(!store.is_value(key + 1, &value));
        let capped = KeyValues::new(Workload::Etc, KEYS, 50).unwrap();
        assert!((0..KEYS).all(|key| capped.value_len(key) <= 50));
    }

    #[test]
    fn what_is_no_workload_is_refused() {
        assert!("foo".parse::<Workload>().unwrap_err().to_string().contains("etc, usr or ycsb"));
        assert_eq!(KeyValues::new(Workload::Etc, 0, 1), Err(KeyValueError::Keys { keys: 0 }));
        assert!(KeyValues::new(Workload::Etc, MAX_KEYS + 1, 1).is_err());
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(etc().with_get_share(share).is_err());
        }
    }
}
