//! The checksum that a runtime left out, for frames that leave through a port.
//!
//! Owns the arithmetic only. The frame is a private copy, and what it says of itself is believed no further than it reaches:
//! whatever is not one whole TCP segment stays as it is, and is for its receiver to refuse.

use super::packet::{Packet, Part, TCP, decode};

/// Where a TCP header has its checksum, and the bytes it has at least (RFC 9293 section 3.1).
const CHECKSUM_AT: usize = 16;
const FIXED_HEADER: usize = 20;

/// Writes the checksum of the TCP segment in `frame`.
pub(super) fn fill_checksum(frame: &mut [u8]) {
    let Ok(Some(packet)) = decode(frame, frame.len()) else { return };
    let whole = packet.part == Part::Whole && packet.payload.len() == packet.length;
    if packet.protocol != TCP || !whole || packet.length < FIXED_HEADER {
        return;
    }
    let pseudo_header = pseudo_header(&packet);
    // The payload is a part of the frame.
    let (start, len) = (packet.payload.as_ptr().addr() - frame.as_ptr().addr(), packet.length);
    let segment = &mut frame[start..start + len];
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let sum = !fold(pseudo_header + sum(segment));
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

/// RFC 9293 section 3.1, RFC 8200 section 8.1: the zeros that IPv4 addresses have in front change no sum.
fn pseudo_header(packet: &Packet<'_>) -> u64 {
    sum(&packet.source.to_be_bytes())
        + sum(&packet.destination.to_be_bytes())
        + u64::from(packet.protocol)
        + packet.length as u64
}

/// The sum of big-endian words (RFC 1071); of a frame's at most 9,018 bytes it is far from overflowing.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |&byte| u64::from(byte) << 8);
    words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    // Each round takes sixteen bits off what is above the lowest sixteen.
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::{ipv4, ipv6};
    use super::*;
    use proptest::prelude::*;

    fn frame(six: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        if six {
            ipv6(0xfd00_7477 << 96 | 2, 0xfd00_7477 << 96 | 0xffff_0003, protocol, 64, payload)
        } else {
            ipv4(0x0a4d_0002, 0xfffe_fffd, protocol, &[1, 1, 1, 0], payload)
        }
    }

    /// What a receiver computes: zero over a segment whose checksum is right.
    fn verify(frame: &[u8]) -> u16 {
        let packet = decode(frame, frame.len()).expect("well formed").expect("a packet");
        !fold(pseudo_header(&packet) + sum(packet.payload))
    }

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        // Section 3: the words 0001 f203 f4f5 f6f7.
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
        assert_eq!(sum(&[0, 1, 2]), 0x201);
    }

    proptest! {
        #[test]
        fn a_segment_of_either_family_gets_the_checksum_its_receiver_expects(
            segment in prop::collection::vec(any::<u8>(), FIXED_HEADER..1500),
            six: bool,
            padding in 0usize..8,
        ) {
            let mut frame = frame(six, TCP, &segment);
            let at = frame.len() - segment.len() + CHECKSUM_AT;
            frame.extend(vec![0xaa; padding]);
            let before = frame.clone();
            fill_checksum(&mut frame);
            prop_assert_eq!(verify(&frame), 0);
            prop_assert_eq!(&frame[..at], &before[..at]);
            prop_assert_eq!(&frame[at + 2..], &before[at + 2..]);
        }

        #[test]
        fn what_is_no_whole_segment_stays_as_it_is(
            bytes in prop::collection::vec(any::<u8>(), 0..120),
            six: bool,
            cut in 0usize..40,
        ) {
            let short = &bytes[..bytes.len().min(FIXED_HEADER - 1)];
            let mut whole = frame(six, TCP, &[0; 40]);
            whole.truncate(whole.len() - cut.max(1));
            for mut frame in [bytes.clone(), frame(six, 17, &bytes), frame(six, TCP, short), whole] {
                // Random bytes are an IP packet once in many centuries: twelve of them would have to be right.
                let before = frame.clone();
                fill_checksum(&mut frame);
                prop_assert_eq!(frame, before);
            }
        }
    }
}
