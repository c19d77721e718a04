//! Parsing and writing against smoltcp as the oracle.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, Ipv4Address, TcpPacket, TcpRepr};

fn any_block() -> impl Strategy<Value = SackBlock> {
    (any::<u32>(), any::<u32>()).prop_map(|(start, end)| SackBlock { start: Seq(start), end: Seq(end) })
}

/// Returns the option in any form that fits beside all others.
fn any_fast_open() -> impl Strategy<Value = FastOpen> {
    let cookie = (2_usize..=8, any::<[u8; 16]>())
        .prop_map(|(half, bytes)| Cookie::new(&bytes[..2 * half]).map_or(FastOpen::None, FastOpen::Cookie));
    prop_oneof![Just(FastOpen::None), Just(FastOpen::Request), cookie]
}

fn any_options() -> impl Strategy<Value = Options> {
    (
        any::<Option<u16>>(),
        prop::option::of(0_u8..=14),
        any::<bool>(),
        prop::option::of(any::<(u32, u32)>()),
        prop::collection::vec(any_block(), 0..5),
        any_fast_open(),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, sack, fast_open)| Options {
            mss,
            window_scale,
            sack_permitted,
            timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
            sack: sack.into_iter().collect(),
            fast_open,
        })
}

prop_compose! {
    fn any_header()(
        ports in (1_u16.., 1_u16..), numbers: (u32, u32), flags: u8, window: u16, options in any_options(),
    ) -> Header {
        Header {
            source: ports.0,
            destination: ports.1,
            seq: Seq(numbers.0),
            ack: Seq(numbers.1),
            flags: Flags::from_bits_retain(flags),
            window,
            options,
        }
    }
}

fn emitted(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xa5; header.len() + payload.len()];
    let len = header.emit(&mut bytes);
    bytes[len..].copy_from_slice(payload);
    bytes
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(header in any_header(), payload in prop::collection::vec(any::<u8>(), 0..50)) {
        let bytes = emitted(&header, &payload);
        let parsed = Segment::parse(&bytes).unwrap();
        let mut expected = header;
        expected.options.sack = header.options.sack.as_slice()[..header.options.sack_that_fits()].iter().copied().collect();
        prop_assert_eq!(parsed.header, expected);
        prop_assert_eq!(parsed.payload, &payload[..]);
        prop_assert!(header.len().is_multiple_of(4) && header.len() <= MAX_HEADER);
    }

    #[test]
    fn smoltcp_reads_what_is_written(header in any_header(), payload in prop::collection::vec(any::<u8>(), 0..50)) {
        let bytes = emitted(&header, &payload);
        let packet = TcpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!((packet.src_port(), packet.dst_port()), (header.source, header.destination));
        prop_assert_eq!(packet.seq_number().0 as u32, header.seq.0);
        prop_assert_eq!(packet.window_len(), header.window);
        prop_assert_eq!((packet.syn(), packet.fin(), packet.rst(), packet.ack()), (
            header.flags.contains(Flags::SYN), header.flags.contains(Flags::FIN),
            header.flags.contains(Flags::RST), header.flags.contains(Flags::ACK),
        ));
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.selective_ack_permitted().unwrap(), header.options.sack_permitted);
        let address = IpAddress::Ipv4(Ipv4Address::LOCALHOST);
        let flags = header.flags & (Flags::SYN | Flags::FIN | Flags::RST | Flags::PSH);
        // smoltcp refuses combinations of control bits that no sender uses.
        if flags.bits().count_ones() <= 1 {
            let repr = TcpRepr::parse(&packet, &address, &address, &ChecksumCapabilities::ignored()).unwrap();
            prop_assert_eq!(repr.window_scale, header.options.window_scale);
            prop_assert_eq!(repr.max_seg_size, header.options.mss);
            prop_assert_eq!(
                repr.timestamp.map(|t| (t.tsval, t.tsecr)),
                header.options.timestamps.map(|t| (t.value, t.echo))
            );
        }
    }

    #[test]
    fn any_bytes_are_a_segment_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        match Segment::parse(&bytes) {
            Ok(segment) => {
                prop_assert!(segment.header.options.window_scale.is_none_or(|shift| shift <= 14));
                // A parsed header survives being written and read again.
                let again = emitted(&segment.header, segment.payload);
                let again = Segment::parse(&again).unwrap();
                prop_assert_eq!(again.header.seq, segment.header.seq);
                prop_assert_eq!(again.payload, segment.payload);
            }
            Err(ParseError::Truncated { need, have }) => prop_assert!(have == bytes.len() && have < need),
            Err(ParseError::DataOffset { words }) => prop_assert!(words < 5),
            Err(ParseError::Port) => {}
        }
    }

    #[test]
    fn any_options_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..=40)) {
        let options = Options::parse(&bytes);
        prop_assert!(options.len() <= MAX_OPTIONS);
    }
}

#[test]
fn a_syn_is_laid_out_as_linux_does() {
    let options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        ..Options::default()
    };
    let mut bytes = [0; 20];
    options.emit(&mut bytes);
    assert_eq!(bytes, [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]);
    let cookie = Cookie::new(&[9; 16]).unwrap();
    let full = Options { fast_open: FastOpen::Cookie(cookie), ..options };
    let mut bytes = [0; MAX_OPTIONS];
    assert_eq!(full.len(), bytes.len(), "the longest cookie fits beside all others");
    full.emit(&mut bytes);
    assert_eq!(
        (bytes[20..22].to_vec(), &bytes[22..38], &bytes[38..]),
        (vec![34, 18], &[9; 16][..], &[1, 1][..])
    );
}

#[test]
fn timestamps_leave_room_for_three_blocks() {
    let block = SackBlock { start: Seq(1), end: Seq(2) };
    let sack = [block; 4].into_iter().collect();
    let options = Options { timestamps: Some(Timestamps::default()), sack, ..Options::default() };
    assert_eq!(options.len(), 12 + 4 + 24);
    assert_eq!(Options { timestamps: None, ..options }.len(), 4 + 32);
}

#[test]
fn an_impossible_option_length_ends_the_options() {
    // The maximum segment size before the bad option is kept. A length of zero, of one, and one
    // beyond the end invalidate all that follows.
    for bad in [[3, 0, 1, 1], [3, 1, 1, 1], [3, 200, 1, 1], [1, 1, 1, 3]] {
        let bytes = [&[2, 4, 5, 180], &bad[..]].concat();
        let options = Options::parse(&bytes);
        assert_eq!((options.mss, options.window_scale), (Some(1460), None), "{bad:?}");
    }
    assert_eq!(Options::parse(&[3, 3, 200]).window_scale, Some(14));
    assert_eq!(Options::parse(&[0, 3, 3, 7]).window_scale, None);
}

#[test]
fn truncated_and_impossible_headers_are_refused() {
    let header = Header {
        source: 1,
        destination: 2,
        seq: Seq(3),
        ack: Seq(4),
        flags: Flags::SYN,
        window: 5,
        options: Options { mss: Some(1), ..Options::default() },
    };
    let bytes = emitted(&header, &[]);
    assert_eq!(Segment::parse(&bytes[..19]), Err(ParseError::Truncated { need: 20, have: 19 }));
    assert_eq!(Segment::parse(&bytes[..23]), Err(ParseError::Truncated { need: 24, have: 23 }));
    let mut short = bytes.clone();
    short[12] = 0x40;
    assert_eq!(Segment::parse(&short), Err(ParseError::DataOffset { words: 4 }));
    let mut no_port = bytes;
    no_port[0..2].fill(0);
    assert_eq!(Segment::parse(&no_port), Err(ParseError::Port));
}
