//! The Internet checksum (RFC 1071): one pass, eight bytes at a time.
//!
//! The sum of 16-bit words with end-around carry depends neither on byte order (RFC 1071 section 2
//! (B)) nor on how words are grouped (section 2 (C)). Bytes are therefore added as native 32-bit
//! lanes into 64-bit accumulators, which 2^32 lanes cannot overflow, and folded and converted to
//! network order once at the end.

/// Bytes added per step of the main loop: four independent 64-bit loads, which the compiler turns
/// into vector adds. 1,500 bytes take 41 ns on an AMD EPYC; with 64-bit adds with carry they took
/// 70 ns, with 32-bit loads 135 ns.
const STEP: usize = 32;
const LOW: u64 = 0xffff_ffff;

/// Whether a parser verifies checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// Computes and compares them.
    Verify,
    /// Skips them: a trusted party vouches for the frame.
    Trust,
}

/// A running sum over any number of pieces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// Returns the sum of no bytes.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds `bytes` as 16-bit words. An odd last byte counts as if a zero followed it (RFC 1071
    /// section 1), so every piece but the last must have even length. Pieces may total 16 GiB.
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
        // A copy of variable length would be a call, which takes half the time of a 20-byte header.
        let last = match *rest {
            [a, b, c] => [a, b, c, 0],
            [a, b] => [a, b, 0, 0],
            [a] => [a, 0, 0, 0],
            _ => [0; 4],
        };
        Self(sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Adds two slices of any lengths, one after the other, as a ring buffer that wraps yields
    /// them. Together they are one piece: it must be the last or have an even total length. Costs
    /// as much as [`bytes`](Self::bytes), and 2 ns more if the first slice has an odd length.
    #[inline]
    pub fn slices(self, first: &[u8], second: &[u8]) -> Self {
        let sum = self.bytes(first);
        if first.len().is_multiple_of(2) {
            return sum.bytes(second);
        }
        // Each byte of the second slice is in the other half of its word, so the bytes of its sum
        // are exchanged (RFC 1071 section 2 (B)).
        let rest = Self::new().bytes(second).fold();
        Self(sum.0 + u64::from(rest.swap_bytes()))
    }

    /// Returns the sum as one native word.
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

    /// Returns the sum with its carries added, in network byte order and not complemented: the
    /// partial sum that a checksum field holds while the rest is left to a network card.
    #[inline]
    #[must_use]
    pub fn partial(self) -> u16 {
        u16::from_be(self.fold())
    }

    /// Returns the ones' complement of the sum: the value of a checksum field. Over data that
    /// includes a correct checksum the result is zero.
    #[inline]
    #[must_use]
    pub fn finish(self) -> u16 {
        !self.partial()
    }
}

/// Returns the checksum of one piece of data.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).finish()
}

#[cfg(test)]
mod tests {
    use crate::*;
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
