//! Transport checksums that a sender left to its network card (RFC 1071, RFC 768, RFC 9293 section
//! 3.1).
//!
//! Owns [`complete`]. Linux may hand a frame to a virtual interface before it has computed the
//! transport checksum: the field then holds the sum of the pseudo header only, and a network card
//! would add the rest. On a veth pair there is no card. `complete` changes a frame only if the
//! field holds exactly that partial sum, so a finished checksum, right or wrong, stays as it is
//! (except for one wrong checksum in 65535). Fragments are not changed: their checksum spans
//! frames.

use tailwater_wire::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use tailwater_wire::{ETHERNET_HEADER, IPV6_HEADER, IpProtocol, Sum};

/// Returns the upper-layer protocol, the range of the addresses, and the range of the transport
/// segment.
fn transport(frame: &[u8]) -> Option<(IpProtocol, core::ops::Range<usize>, core::ops::Range<usize>)> {
    let ip = frame.get(ETHERNET_HEADER..)?;
    match u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]) {
        ETHERTYPE_IPV4 if ip.len() >= 20 && ip[0] >> 4 == 4 => {
            let (header, total) =
                (usize::from(ip[0] & 15) * 4, usize::from(u16::from_be_bytes([ip[2], ip[3]])));
            // A whole packet: "more fragments" is not set and the offset is 0 (RFC 791).
            let whole = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff == 0;
            let sound = header >= 20 && header <= total && total <= ip.len() && whole;
            sound.then_some((IpProtocol(ip[9]), 12..20, header..total))
        }
        ETHERTYPE_IPV6 if ip.len() >= IPV6_HEADER => {
            let end = IPV6_HEADER + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            (end <= ip.len()).then_some((IpProtocol(ip[6]), 8..40, IPV6_HEADER..end))
        }
        _ => None,
    }
}

/// Completes the checksum of a UDP datagram or TCP segment whose sender left it to a card; returns
/// whether it did.
pub(super) fn complete(frame: &mut [u8]) -> bool {
    let Some((protocol, addresses, body)) = transport(frame) else { return false };
    let Some(at) = protocol.checksum_offset() else { return false };
    let ip = &mut frame[ETHERNET_HEADER..];
    if body.len() < at + 2 {
        return false;
    }
    let pseudo = Sum::new().bytes(&ip[addresses]).word(protocol.0.into()).word(body.len() as u16);
    let field = body.start + at;
    if ip[field..field + 2] != pseudo.partial().to_be_bytes() {
        return false;
    }
    // The field already holds the pseudo header's sum, so summing the segment with it gives the
    // checksum.
    let made = match Sum::new().bytes(&ip[body]).finish() {
        0 if protocol == IpProtocol::UDP => 0xffff,
        made => made,
    };
    ip[field..field + 2].copy_from_slice(&made.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TCP: u8 = IpProtocol::TCP.0;
    const UDP: u8 = IpProtocol::UDP.0;

    fn frame(v6: bool, protocol: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((body.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend((0..32).map(|i| i * 7));
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + body.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
        }
        frame.extend(body);
        frame
    }

    /// Returns the sum of the pseudo header, computed independently from the RFCs: 16-bit words,
    /// end-around carry.
    fn pseudo(frame: &[u8], v6: bool, protocol: u8, len: usize) -> u16 {
        let addresses = if v6 { &frame[22..54] } else { &frame[26..34] };
        let mut words: Vec<u16> =
            addresses.chunks(2).map(|w| u16::from(w[0]) * 256 + u16::from(w[1])).collect();
        words.extend([protocol.into(), len as u16]);
        words.into_iter().fold(0u16, |sum, word| {
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }

    proptest! {
        #[test]
        fn a_partial_sum_is_completed_and_any_other_is_left(
            v6: bool, tcp: bool, mut body in prop::collection::vec(any::<u8>(), 20..80), wrong in 1..u16::MAX,
        ) {
            let (protocol, at) = if tcp { (TCP, 16) } else { (UDP, 6) };
            body[at..at + 2].fill(0);
            let mut partial = frame(v6, protocol, &body);
            let start = partial.len() - body.len();
            let first = pseudo(&partial, v6, protocol, body.len());
            partial[start + at..start + at + 2].copy_from_slice(&first.to_be_bytes());
            let mut other = partial.clone();
            other[start + at..start + at + 2].copy_from_slice(&first.wrapping_add(wrong).to_be_bytes());
            let before = other.clone();
            prop_assert!(complete(&mut partial));
            // A receiver that sums the whole segment gets all ones.
            let all = Sum::new().word(first).bytes(&partial[start..]).partial();
            prop_assert_eq!(all, 0xffff);
            // Ones' complement has two zeros; only the identical bits are a partial sum.
            prop_assert!(!complete(&mut other));
            prop_assert_eq!(other, before);
        }

        #[test]
        fn no_frame_panics(bytes in prop::collection::vec(any::<u8>(), 0..120), v6: bool) {
            let mut bytes = bytes;
            if bytes.len() > 15 {
                let kind: [u8; 3] = if v6 { [0x86, 0xdd, 0x60] } else { [8, 0, 0x45] };
                bytes[12..15].copy_from_slice(&kind);
            }
            complete(&mut bytes);
        }
    }

    #[test]
    fn a_fragment_is_left_alone() {
        let mut fragment = frame(false, UDP, &[0; 20]);
        let first = pseudo(&fragment, false, UDP, 20);
        fragment[40..42].copy_from_slice(&first.to_be_bytes());
        fragment[20] = 0x20;
        assert!(!complete(&mut fragment));
        fragment[20] = 0;
        assert!(complete(&mut fragment));
    }
}
