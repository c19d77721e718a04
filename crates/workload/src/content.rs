//! Bytes derived from a number, so that a reader can check them.
//!
//! Owns the sequence of bytes that belongs to each key. A client that stores [`fill`]'s bytes under
//! a key needs no copy of them to check the bytes it reads back. Sequences of different keys differ
//! from their first bytes on, except for the coincidences possible between short ones.

use alloc::vec::Vec;

/// Returns the `index`-th word of the bytes of `key`: the output function of SplitMix64 (Steele,
/// Lea and Flood, OOPSLA 2014), which is one-to-one, so the first words of two keys never agree.
#[inline]
fn word(key: u64, index: u64) -> [u8; 8] {
    mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

/// Returns a number that looks random and depends on `key` alone; one-to-one.
#[inline]
#[must_use]
pub fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Appends the first `len` bytes that belong to `key`.
///
/// # Examples
/// ```
/// use tailwater_workload::content::{fill, is_content};
///
/// let mut value = Vec::new();
/// fill(7, 100, &mut value);
/// assert!(is_content(7, &value));
/// assert!(!is_content(8, &value));
/// ```
#[inline]
pub fn fill(key: u64, len: usize, out: &mut Vec<u8>) {
    out.reserve(len);
    for index in 0..len.div_ceil(8) {
        let rest = len - 8 * index;
        out.extend_from_slice(&word(key, index as u64)[..rest.min(8)]);
    }
}

/// Returns true if `bytes` are the first ones that belong to `key`.
#[inline]
#[must_use]
pub fn is_content(key: u64, bytes: &[u8]) -> bool {
    bytes.chunks(8).zip(0u64..).all(|(chunk, index)| *chunk == word(key, index)[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_has_these_bytes_in_every_release() {
        let mut bytes = Vec::new();
        fill(1, 10, &mut bytes);
        // The bytes are fixed, because clients of different releases may share a store.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf, "the first output of SplitMix64 from 0");
        assert_eq!(bytes[..8], mix(1).to_le_bytes());
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_seen(key: u64, len in 1usize..200, at: prop::sample::Index, change in 1u8..) {
            let mut bytes = Vec::new();
            fill(key, len, &mut bytes);
            prop_assert_eq!(bytes.len(), len);
            prop_assert!(is_content(key, &bytes));
            bytes[at.index(len)] ^= change;
            prop_assert!(!is_content(key, &bytes));
        }
    }
}
