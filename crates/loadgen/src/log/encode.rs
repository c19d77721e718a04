//! A histogram as an interval log has it: HdrHistogram's V2 encoding, in a zlib stream, in base64.
//!
//! The V2 encoding is that of HdrHistogram's `AbstractHistogram.encodeIntoByteBuffer`: a header of
//! 40 bytes, then the counts in the order of their values, as ZigZag numbers in LEB128 of at most 9
//! bytes; a negative number stands for so many zeros. The zlib stream (RFC 1950) has stored blocks
//! only (RFC 1951 section 3.2.4): the runs of zeros are short already.

use hdrhistogram::Histogram;

/// First word of the V2 encoding.
const COOKIE: u32 = 0x1c84_9313;

/// First word of a V2 encoding inside a zlib stream.
const COMPRESSED_COOKIE: u32 = 0x1c84_9314;

/// Longest stored block of a zlib stream.
const MAX_BLOCK: usize = 65_535;

/// Returns the text of `histogram` in a line of an interval log.
pub fn encode(histogram: &Histogram<u64>) -> String {
    let stream = zlib(&v2(histogram));
    let mut bytes = COMPRESSED_COOKIE.to_be_bytes().to_vec();
    bytes.extend((stream.len() as u32).to_be_bytes());
    bytes.extend(stream);
    base64(&bytes)
}

fn v2(histogram: &Histogram<u64>) -> Vec<u8> {
    let counts = counts(histogram);
    let mut bytes = COOKIE.to_be_bytes().to_vec();
    bytes.extend((counts.len() as u32).to_be_bytes());
    // No shift of the values.
    bytes.extend(0u32.to_be_bytes());
    bytes.extend(u32::from(histogram.sigfig()).to_be_bytes());
    bytes.extend(histogram.low().to_be_bytes());
    bytes.extend(histogram.high().to_be_bytes());
    // Values are integers: they stand for themselves.
    bytes.extend(1f64.to_be_bytes());
    bytes.extend(counts);
    bytes
}

/// Returns the counts up to that of the largest value.
fn counts(histogram: &Histogram<u64>) -> Vec<u8> {
    let mut all: Vec<u64> = histogram.iter_all().map(|value| value.count_at_value()).collect();
    let used = all.iter().rposition(|&count| count > 0).map_or(1, |last| last + 1);
    all.truncate(used);
    let mut bytes = Vec::new();
    for run in all.chunk_by(|a, b| *a == 0 && *b == 0) {
        match run {
            [count] => push_number(&mut bytes, i64::try_from(*count).unwrap_or(i64::MAX)),
            zeros => push_number(&mut bytes, -(zeros.len() as i64)),
        }
    }
    bytes
}

fn push_number(bytes: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    // After eight bytes of 7 bits the ninth has the 8 that are left.
    for _ in 0..8 {
        if rest < 0x80 {
            break;
        }
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

fn zlib(data: &[u8]) -> Vec<u8> {
    // Deflate with a window of 32 KiB; the check bits make the two bytes a multiple of 31.
    let mut bytes = vec![0x78, 0x01];
    let blocks = data.len().div_ceil(MAX_BLOCK);
    for (index, block) in data.chunks(MAX_BLOCK).enumerate() {
        let len = block.len() as u16;
        bytes.push(u8::from(index + 1 == blocks));
        bytes.extend(len.to_le_bytes());
        bytes.extend((!len).to_le_bytes());
        bytes.extend(block);
    }
    bytes.extend(adler32(data).to_be_bytes());
    bytes
}

/// Returns the checksum of RFC 1950, section 8.2.
fn adler32(data: &[u8]) -> u32 {
    let (low, high) = data.iter().fold((1u32, 0u32), |(low, high), &byte| {
        let low = (low + u32::from(byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    high << 16 | low
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 0x3f;
            text.push(if digit <= group.len() { ALPHABET[value as usize].into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use ::base64::Engine;
    use ::base64::engine::general_purpose::STANDARD;
    use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
    use proptest::prelude::*;

    use super::*;

    fn histogram(digits: u8, values: &[(u64, u64)]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, digits).unwrap();
        for &(value, count) in values {
            histogram.record_n(value, count).unwrap();
        }
        histogram
    }

    proptest! {
        #[test]
        fn the_librarys_reader_reads_what_was_recorded(
            values in prop::collection::vec((0u64..60_000_000_000, 1u64..=u64::from(u32::MAX)), 0..40)
        ) {
            let written = histogram(3, &values);
            let mut plain = Vec::new();
            V2Serializer::new().serialize(&written, &mut plain).unwrap();
            prop_assert_eq!(v2(&written), plain);
            let bytes = STANDARD.decode(encode(&written)).unwrap();
            let read: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn base64_is_as_the_library_writes_it(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(base64(&bytes), STANDARD.encode(&bytes));
        }
    }

    #[test]
    fn a_histogram_of_several_blocks_is_read_back() {
        let values: Vec<(u64, u64)> = (0..40_000).map(|i| (i * 1_000_003, 1 << 20)).collect();
        let written = histogram(4, &values);
        assert!(v2(&written).len() > MAX_BLOCK, "{}", v2(&written).len());
        let bytes = STANDARD.decode(encode(&written)).unwrap();
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!(read, written);
    }
}
