//! The checksum that a runtime left out, for frames that leave through a port.
//!
//! Owns the arithmetic only. The frame is a private copy, and its lengths are checked against its
//! end: anything but one whole TCP segment stays as it is, and its receiver refuses it.

use tailwater_wire::packet::{Packet, Part, TCP, decode};
use tailwater_wire::{IpProtocol, Sum, TCP_HEADER};

/// Offset of the checksum in a TCP header.
const CHECKSUM_AT: usize = IpProtocol::TCP.checksum_offset().expect("TCP has a checksum");

/// Writes the checksum of the TCP segment in `frame`.
pub(super) fn fill_checksum(frame: &mut [u8]) {
    let Ok(Some(packet)) = decode(frame, frame.len()) else { return };
    let whole = packet.part == Part::Whole && packet.payload.len() == packet.length;
    if packet.protocol != TCP || !whole || packet.length < TCP_HEADER {
        return;
    }
    let pseudo_header = pseudo_header(&packet);
    // The payload is a part of the frame.
    let (start, len) = (packet.payload.as_ptr().addr() - frame.as_ptr().addr(), packet.length);
    let segment = &mut frame[start..start + len];
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let sum = pseudo_header.bytes(segment).finish();
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1). The zeros
/// before IPv4 addresses change no sum.
fn pseudo_header(packet: &Packet<'_>) -> Sum {
    let addresses = Sum::new().bytes(&packet.source.to_be_bytes()).bytes(&packet.destination.to_be_bytes());
    addresses.word(packet.protocol.into()).word(packet.length as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tailwater_testkit::frames::{ipv4, ipv6};

    fn frame(six: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        if six {
            ipv6(0xfd00_7477 << 96 | 2, 0xfd00_7477 << 96 | 0xffff_0003, protocol, 64, payload)
        } else {
            ipv4(0x0a4d_0002, 0xfffe_fffd, protocol, &[1, 1, 1, 0], payload)
        }
    }

    /// Returns what a receiver computes: zero over a segment whose checksum is right.
    fn verify(frame: &[u8]) -> u16 {
        let packet = decode(frame, frame.len()).expect("well formed").expect("a packet");
        pseudo_header(&packet).bytes(packet.payload).finish()
    }

    proptest! {
        #[test]
        fn a_segment_of_either_family_gets_the_checksum_its_receiver_expects(
            segment in prop::collection::vec(any::<u8>(), TCP_HEADER..1500),
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
            let short = &bytes[..bytes.len().min(TCP_HEADER - 1)];
            let mut whole = frame(six, TCP, &[0; 40]);
            whole.truncate(whole.len() - cut.max(1));
            for mut frame in [bytes.clone(), frame(six, 17, &bytes), frame(six, TCP, short), whole] {
                // Random bytes form an IP packet once in many centuries: twelve of them would have
                // to be right.
                let before = frame.clone();
                fill_checksum(&mut frame);
                prop_assert_eq!(frame, before);
            }
        }
    }
}
