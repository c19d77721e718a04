//! The frames cut from a segment carry what was sent: payload, lengths, sequence numbers and
//! checksums, computed independently.

use super::*;
use proptest::prelude::*;

/// Returns a long segment as Linux passes it.
fn long(v6: bool, tcp: bool, options: usize, size: u16, payload: &[u8]) -> Vec<u8> {
    let transport_len = if tcp { 20 + options * 4 } else { 8 };
    let network_len = if v6 { 40 } else { 20 };
    let kind = match (v6, tcp) {
        (false, true) => TCP_V4,
        (true, true) => TCP_V6 | WITH_ECN,
        (_, false) => UDP,
    };
    let mut read = vec![NEEDS_CHECKSUM, kind, 0, 0];
    read.extend([size, 14 + network_len, if tcp { 16 } else { 6 }].map(u16::to_ne_bytes).as_flattened());
    read.extend([2; 12]);
    let protocol = if tcp { 6 } else { 17 };
    if v6 {
        read.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol, 64]);
        read.extend((0..32).map(|i| i * 7));
    } else {
        read.extend([
            8, 0, 0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, protocol, 1, 2, 10, 77, 0, 1, 10, 77, 0, 2,
        ]);
    }
    let mut transport = vec![0; transport_len];
    transport[..4].copy_from_slice(&[0, 80, 0x1f, 0x90]);
    if tcp {
        transport[4..8].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
        transport[12] = (transport_len as u8 / 4) << 4;
        transport[13] = CWR | FIN_PSH | 0x10;
    }
    read.extend(transport);
    read.extend(payload);
    read
}

/// Ones' complement sum of 16-bit words, computed as RFC 1071 describes it.
fn rfc_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for chunk in parts.concat().chunks(2) {
        sum += u32::from(chunk[0]) << 8 | u32::from(chunk.get(1).copied().unwrap_or(0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn cut(read: &mut [u8]) -> Vec<Vec<u8>> {
    let mut cutter = Cutter::new(read).expect("a valid segment");
    let (mut out, mut frames) = (vec![0; 9018], Vec::new());
    while let Some(frame) = cutter.next(read, &mut out) {
        frames.push(frame.to_vec());
    }
    frames
}

proptest! {
    #[test]
    fn frames_carry_the_payload_in_order_with_right_lengths_and_sums(
        v6: bool, tcp: bool, options in 0..4usize, size in 1..1460u16, len in 1..8000usize,
    ) {
        let len = len.min(usize::from(size) * 64);
        let payload: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let network_len = if v6 { 40 } else { 20 };
        let transport_len = if tcp { 20 + options * 4 } else { 8 };
        let mut read = long(v6, tcp, options, size, &payload);
        let frames = cut(&mut read);
        prop_assert_eq!(frames.len(), len.div_ceil(size.into()));
        let mut joined = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            let (ip, body) = (&frame[14..14 + network_len], &frame[14 + network_len..]);
            let says = usize::from(u16::from_be_bytes(if v6 { [ip[4], ip[5]] } else { [ip[2], ip[3]] }));
            prop_assert_eq!(says, if v6 { body.len() } else { ip.len() + body.len() });
            if !v6 {
                prop_assert_eq!(rfc_sum(&[ip]), 0xffff);
                prop_assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), 0xfffeu16.wrapping_add(i as u16));
            }
            let addresses = if v6 { &ip[8..40] } else { &ip[12..20] };
            let protocol = [0, if tcp { 6 } else { 17 }];
            prop_assert_eq!(rfc_sum(&[addresses, &protocol, &(body.len() as u16).to_be_bytes(), body]), 0xffff);
            if tcp {
                let sequence = u32::from_be_bytes(body[4..8].try_into().unwrap());
                prop_assert_eq!(sequence, 0xffff_fff0u32.wrapping_add((i * usize::from(size)) as u32));
                let flags = 0x10 | if i == 0 { CWR } else { 0 } | if i + 1 == frames.len() { FIN_PSH } else { 0 };
                prop_assert_eq!(body[13], flags);
            } else {
                prop_assert_eq!(usize::from(u16::from_be_bytes([body[4], body[5]])), body.len());
            }
            joined.extend_from_slice(&body[transport_len..]);
        }
        prop_assert_eq!(joined, payload);
    }

    #[test]
    fn any_header_before_any_frame_is_cut_or_refused(
        mut read in prop::collection::vec(any::<u8>(), 0..300), kind in 0..6u8, v6: bool, start in 0..120u16,
    ) {
        if read.len() > 24 {
            read[1] = kind;
            read[6..8].copy_from_slice(&start.to_ne_bytes());
            read[22..24].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        }
        let mut out = [0; 9018];
        if let Some(mut cutter) = Cutter::new(&mut read) {
            let frames = std::iter::from_fn(|| cutter.next(&read, &mut out).map(<[u8]>::len)).count();
            prop_assert!(frames <= read.len());
        }
    }
}

#[test]
fn a_short_frame_passes_in_place_with_its_sum_made() {
    let mut read = long(false, false, 0, 0, b"hello");
    read[1] = 0;
    let pseudo = rfc_sum(&[&[10, 77, 0, 1, 10, 77, 0, 2], &[0, 17], &13u16.to_be_bytes()]);
    read[HEADER + 38..HEADER + 40].copy_from_slice(&13u16.to_be_bytes());
    read[HEADER + 40..HEADER + 42].copy_from_slice(&pseudo.to_be_bytes());
    let frames = cut(&mut read);
    assert_eq!(frames.len(), 1);
    let body = &frames[0][34..];
    assert_eq!(rfc_sum(&[&[10, 77, 0, 1, 10, 77, 0, 2], &[0, 17], &13u16.to_be_bytes(), body]), 0xffff);
    assert_eq!(&body[8..], b"hello");
}
