//! Numbers and base64 in commands and answers.

use crate::store::MAX_KEY;

/// Digits of 2^64 - 1.
const DIGITS: usize = 20;

/// Appends a number in decimal.
#[inline]
pub(super) fn push_number(out: &mut Vec<u8>, mut value: u64) {
    let (mut digits, mut at) = ([0; DIGITS], DIGITS);
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return out.extend_from_slice(&digits[at..]);
        }
    }
}

/// Parses a token as a number; `None` if it is none, or out of the type's range.
pub(super) fn number<T: std::str::FromStr>(token: &[u8]) -> Option<T> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

/// Parses client flags; of numbers beyond 32 bits it takes the lower ones, as memcached does.
pub(super) fn client_flags(token: &[u8]) -> Option<u32> {
    number::<u64>(token).map(|flags| flags as u32)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` in base64 with padding (RFC 4648 section 4).
pub(super) fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for at in 0..4 {
            let sextet = bits >> (18 - 6 * at) & 63;
            out.push(if at <= group.len() { ALPHABET[sextet as usize] } else { b'=' });
        }
    }
}

/// A key that came in base64.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodedKey {
    bytes: [u8; MAX_KEY],
    len: usize,
}

impl DecodedKey {
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decodes base64 with padding; `None` if the text is not base64, empty, or too long for a key.
pub(super) fn decode_base64(text: &[u8]) -> Option<DecodedKey> {
    let mut key = DecodedKey { bytes: [0; MAX_KEY], len: 0 };
    if text.is_empty() || !text.len().is_multiple_of(4) || text.len() / 4 * 3 > MAX_KEY {
        return None;
    }
    let groups = text.len() / 4;
    for (number, group) in text.chunks(4).enumerate() {
        let padding = group.iter().rev().take_while(|&&c| c == b'=').count();
        if padding > if number + 1 == groups { 2 } else { 0 } {
            return None;
        }
        let mut bits = 0;
        for &c in &group[..4 - padding] {
            bits = bits << 6 | ALPHABET.iter().position(|&a| a == c)? as u32;
        }
        let bytes = (bits << (6 * padding)).to_be_bytes();
        let len = 3 - padding;
        key.bytes[key.len..key.len + len].copy_from_slice(&bytes[1..=len]);
        key.len += len;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for value in [0, 1, 9, 10, 12_345, u64::MAX] {
            let mut out = Vec::new();
            push_number(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }

    /// RFC 4648 section 10.
    #[test]
    fn base64_is_that_of_the_standard() {
        for (plain, text) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            let mut out = Vec::new();
            push_base64(&mut out, plain.as_bytes());
            assert_eq!(out, text.as_bytes());
            assert_eq!(decode_base64(text.as_bytes()).unwrap().as_bytes(), plain.as_bytes());
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["", "a", "YQ", "Y===", "YQ==YQ==", "Y Q=", "====", "YWFh\n"] {
            assert!(decode_base64(text.as_bytes()).is_none(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn base64_comes_back(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            let mut text = Vec::new();
            push_base64(&mut text, &bytes);
            let decoded = decode_base64(&text).unwrap();
            prop_assert_eq!(decoded.as_bytes(), &bytes[..]);
        }
    }
}
