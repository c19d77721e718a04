//! The Internet checksum (RFC 1071): one pass, eight bytes at a time.
//!
//! The sum of 16-bit words with end-around carry does not depend on byte order (RFC 1071 section 2 (B)) nor on how words
//! are grouped (section 2 (C)). So bytes are added as native 32-bit lanes into 64-bit accumulators, which 2^32 lanes cannot
//! overflow, and folded and turned to network order once at the end.

/// Bytes added per step of the main loop: four independent 64-bit loads, which the compiler turns into vector adds. 41 ns for
/// 1500 bytes on an AMD EPYC; 64-bit adds with carry took 70, 32-bit loads 135.
const STEP: usize = 32;
const LOW: u64 = 0xffff_ffff;

/// A running sum over any number of pieces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds `bytes` as 16-bit words; an odd last byte counts as if a zero followed it (RFC 1071 section 1), so every piece
    /// but the last must have even length. Pieces may total up to 16 GiB.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let mut lanes = [0u64; STEP / 8];
        let (steps, rest) = bytes.as_chunks::<STEP>();
        for step in steps {
            for (lane, word) in lanes.iter_mut().zip(step.as_chunks::<8>().0) {
                let word = u64::from_ne_bytes(*word);
                *lane += (word & LOW) + (word >> 32);
            }
        }
        let mut sum = self.0 + lanes.iter().sum::<u64>();
        let (words, rest) = rest.as_chunks::<4>();
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        // Not a copy of variable length, which would be a call: half the time of a 20-byte header.
        let last = match *rest {
            [a, b, c] => [a, b, c, 0],
            [a, b] => [a, b, 0, 0],
            [a] => [a, 0, 0, 0],
            _ => [0; 4],
        };
        Self(sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Adds two slices, one after the other, of whatever lengths: what a ring buffer that wraps round gives. As one piece,
    /// so that it must be the last or of even length altogether. Costs what [`bytes`](Self::bytes) costs, and 2 ns if the
    /// first has an odd length.
    #[inline]
    pub fn slices(self, first: &[u8], second: &[u8]) -> Self {
        let sum = self.bytes(first);
        if first.len().is_multiple_of(2) {
            return sum.bytes(second);
        }
        // Each byte of the second slice is in the other half of its word: its sum has its bytes exchanged (RFC 1071 section 2 (B)).
        let rest = Self::new().bytes(second).fold();
        Self(sum.0 + u64::from(rest.swap_bytes()))
    }

    /// The sum as one native word.
    #[inline]
    fn fold(self) -> u16 {
        let mut sum = (self.0 & LOW) + (self.0 >> 32);
        sum = (sum & LOW) + (sum >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum as u16
    }

    /// Adds one 16-bit word given as a number.
    #[inline]
    pub fn word(self, value: u16) -> Self {
        Self(self.0 + u64::from(value.to_be()))
    }

    /// The ones' complement of the sum: what goes into a checksum field. Over data that includes a correct checksum the
    /// result is zero.
    #[inline]
    #[must_use]
    pub fn finish(self) -> u16 {
        !u16::from_be(self.fold())
    }
}

/// The checksum of one piece of data.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 section 4.1, word by word.
    fn by_the_book(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn the_longest_datagram_of_ones_does_not_overflow() {
        let bytes = vec![0xff; 65_535];
        assert_eq!(checksum(&bytes), by_the_book(&bytes));
    }

    proptest! {
        #[test]
        fn agrees_with_the_book_at_every_length(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(checksum(&bytes), by_the_book(&bytes));
        }

        #[test]
        fn two_slices_add_up_wherever_they_are_cut(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..300, word: u16) {
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            let whole = [&word.to_be_bytes()[..], &bytes].concat();
            prop_assert_eq!(Sum::new().word(word).slices(a, b).finish(), by_the_book(&whole));
        }

        #[test]
        fn pieces_add_up(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..150, word: u16) {
            let (a, b) = bytes.split_at((2 * cut).min(bytes.len()));
            let whole = [&word.to_be_bytes()[..], &bytes].concat();
            prop_assert_eq!(Sum::new().bytes(a).word(word).bytes(b).finish(), by_the_book(&whole));
        }
    }
}
