use super::*;
use crate::ipv6::upper_layer_unchecked;
use proptest::prelude::*;
use tailwater_testkit::frames::{fragment, ipv4, ipv6};

const A: u128 = 0xfd00_7477 << 96 | 2;
const B: u128 = 0xfd00_7477 << 96 | 3;

fn tcp(ports: (u16, u16), flags: u8) -> Vec<u8> {
    let mut segment = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    segment.resize(20, 0);
    segment[13] = flags;
    segment
}

fn read(frame: &[u8]) -> Result<Packet<'_>, Malformed> {
    decode(frame, frame.len()).map(|packet| packet.expect("an IP packet"))
}

#[test]
fn ports_are_found_behind_extension_headers_and_options() {
    let chain =
        [&[60, 0, 0, 0, 0, 0, 0, 0, 51, 1][..], &[0; 14], &[6, 1], &[0; 10], &tcp((5, 80), 0x10)].concat();
    let frame = ipv6(A, B, 0, 64, &chain);
    let packet = read(&frame).unwrap();
    assert_eq!((packet.protocol, packet.ports(), packet.tcp_flags()), (TCP, Some((5, 80)), Some(0x10)));
    assert_eq!((packet.source, packet.destination, packet.length), (A, B, 20));
    let frame = ipv4(1, 2, TCP, &[1, 1, 1, 0], &tcp((5, 80), 2));
    assert_eq!(read(&frame).unwrap().ports(), Some((5, 80)));
}

#[test]
fn chains_without_end_or_beyond_the_packet_are_malformed() {
    let long = [&[60u8, 0, 0, 0, 0, 0, 0, 0].repeat(9)[..], &tcp((1, 2), 0)].concat();
    assert_eq!(read(&ipv6(A, B, 60, 64, &long)), Err(Malformed), "ten destination options");
    let cases: [(&str, u8, &[u8]); 5] = [
        ("truncated", 60, &[6, 0, 0, 0]),
        ("too long", 60, &[6, 9, 0, 0, 0, 0, 0, 0]),
        ("hop-by-hop in second place", 60, &[0, 0, 0, 0, 0, 0, 0, 0, 59, 0, 0, 0, 0, 0, 0, 0]),
        ("two fragment headers", 44, &[44, 0, 0, 0, 0, 0, 0, 0, 59, 0, 0, 0, 0, 0, 0, 0]),
        ("authentication beyond the end", 51, &[6, 4, 0, 0, 0, 0, 0, 0]),
    ];
    for (what, first, rest) in cases {
        assert_eq!(read(&ipv6(A, B, first, 64, rest)), Err(Malformed), "{what}");
    }
    let mut frame = ipv6(A, B, 59, 64, &[0; 8]);
    frame[19] = 9;
    assert_eq!(read(&frame), Err(Malformed), "longer than its frame");
}

#[test]
fn source_routes_are_seen() {
    let routed = |left| {
        let rest = [&[6u8, 2, 4, left][..], &[0; 20], &tcp((1, 2), 0)].concat();
        read(&ipv6(A, B, 43, 64, &rest)).unwrap().source_routed
    };
    assert!(routed(1) && !routed(0));
    for (options, seen) in
        [([131, 3, 4, 0], true), ([1, 137, 3, 4], true), ([0, 131, 3, 4], false), ([68, 4, 131, 0], false)]
    {
        assert_eq!(
            read(&ipv4(1, 2, TCP, &options, &tcp((1, 2), 0))).unwrap().source_routed,
            seen,
            "{options:?}"
        );
    }
}

#[test]
fn fragments_that_hide_the_upper_layer_header_are_told() {
    let hides = |next, offset, more, rest: &[u8]| {
        let rest = [&fragment(next, offset, more)[..], rest].concat();
        read(&ipv6(A, B, 44, 64, &rest)).unwrap().hides_header()
    };
    assert!(hides(TCP, 0, true, &[0; 16]), "a first fragment without all of TCP's header");
    assert!(!hides(TCP, 0, true, &[0; 24]));
    assert!(hides(TCP, 1, false, &[0; 24]), "one that lies over TCP's flags");
    assert!(!hides(TCP, 3, false, &[0; 24]) && !hides(UDP, 1, true, &[0; 8]));
    assert!(!hides(TCP, 0, false, &[0; 8]), "no fragment in spite of its header");
}

#[test]
fn all_fragments_of_an_ipv6_packet_have_one_hash_and_flows_differ() {
    let hash = |first, rest: &[u8]| read(&ipv6(A, B, first, 64, rest)).unwrap().hash();
    let part =
        |offset, more, port| hash(44, &[&fragment(TCP, offset, more)[..], &tcp((port, 80), 0x10)].concat());
    assert_eq!(part(0, true, 1), part(0, true, 2));
    assert_eq!(part(0, true, 1), part(7, false, 9));
    assert_ne!(hash(TCP, &tcp((1, 80), 0)), hash(TCP, &tcp((2, 80), 0)));
    assert_eq!(hash(TCP, &tcp((1, 80), 2)), part(0, false, 1), "an atomic fragment is no fragment");
}

proptest! {
    /// Segments of a connection, whatever headers precede them, and errors about its other
    /// direction go one way.
    #[test]
    fn a_connection_and_errors_about_it_have_one_hash(source in any::<u128>(), destination in any::<u128>(),
        ports in any::<(u16, u16)>(), quoted in 24usize..60, v4 in any::<bool>()) {
        let segment = tcp(ports, 0x10);
        let back = tcp((ports.1, ports.0), 0x18);
        if v4 {
            let (source, destination) = (source as u32, destination as u32);
            let plain = ipv4(source, destination, TCP, &[], &segment);
            let hash = read(&plain).unwrap().hash();
            let options = ipv4(source, destination, TCP, &[1, 1, 1, 0], &segment);
            prop_assert_eq!(read(&options).unwrap().hash(), hash);
            let sent = ipv4(destination, source, TCP, &[], &back);
            let error = [&[3u8, 4, 0, 0, 0, 0, 0, 0][..], &sent[14..][..quoted.min(40)]].concat();
            prop_assert_eq!(read(&ipv4(7, destination, ICMP, &[], &error)).unwrap().hash(), hash);
        } else {
            let plain = ipv6(source, destination, TCP, 64, &segment);
            let hash = read(&plain).unwrap().hash();
            let options = [&[6u8, 0, 0, 0, 0, 0, 0, 0][..], &segment].concat();
            prop_assert_eq!(read(&ipv6(source, destination, 60, 64, &options)).unwrap().hash(), hash);
            let sent = ipv6(destination, source, TCP, 64, &back);
            let error = [&[2u8, 0, 0, 0, 0, 0, 5, 0][..], &sent[14..][..quoted.max(44)]].concat();
            prop_assert_eq!(read(&ipv6(7, destination, ICMPV6, 64, &error)).unwrap().hash(), hash);
        }
    }

    #[test]
    fn any_bytes_are_read_within_their_bounds(mut bytes in prop::collection::vec(any::<u8>(), 14..200), v6 in any::<bool>(),
        first in prop::sample::select(vec![0u8, 6, 43, 44, 51, 58, 60])) {
        bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        if bytes.len() > 20 {
            bytes[14] = if v6 { 0x60 } else { 0x40 | bytes[14] & 0xf };
            bytes[20] = first;
            if v6 { bytes[18] = 0 } else { bytes[16] = 0 }
        }
        if let Ok(Some(packet)) = decode(&bytes, bytes.len()) {
            prop_assert_eq!(packet.payload.len(), packet.length, "all of it was shown");
            packet.hash();
        }
    }
}

/// Fails unless the hashes of 12,800 flows spread over 128 groups, as the switch has them.
fn assert_spread(hash: impl Fn(u64) -> u32) {
    let mut counts = [0u32; 128];
    (0..12_800).for_each(|i| counts[hash(i) as usize % 128] += 1);
    assert!(counts.iter().all(|&c| (50..200).contains(&c)), "{counts:?}");
}

#[test]
fn hashes_of_flows_spread() {
    assert_spread(|port| mix(0x0a4d_0002_0a4d_0003, port << 16 | 53));
}

#[test]
fn hashes_of_ipv6_flows_spread_whatever_differs() {
    let base = 0xfd00_u128 << 112 | 7;
    assert_spread(|i| mix_ipv6(base, base + 1, i << 16 | 6));
    assert_spread(|i| mix_ipv6(base + u128::from(i), base, 6));
    assert_spread(|i| mix_ipv6(base | u128::from(i) << 64, base, 6));
    assert_spread(|i| mix_ipv6(base, base | u128::from(i) << 48, 6));
}

proptest! {
    #[test]
    fn a_switch_finds_the_protocol_that_the_receiver_finds(
        is_first_hop_by_hop: bool,
        kinds in proptest::collection::vec((prop_oneof![Just(43u8), Just(60)], 0u8..3, any::<u8>()), 0..11),
        cut in 0usize..64,
    ) {
        let mut next: Vec<u8> = kinds.iter().map(|&(kind, ..)| kind).chain([UDP]).collect();
        if is_first_hop_by_hop && !kinds.is_empty() {
            next[0] = 0;
        }
        let mut chain = Vec::new();
        for (&(_, units, byte), &next) in kinds.iter().zip(&next[1..]) {
            chain.extend([next, units]);
            chain.resize(chain.len() + 6 + 8 * usize::from(units), byte);
        }
        chain.extend([0; 8]);
        chain.truncate(chain.len().saturating_sub(cut.saturating_sub(32)));
        let frame = ipv6(A, B, next[0], 64, &chain);
        let here = read(&frame).ok().map(|packet| (packet.protocol, chain.len() - packet.length));
        let there = upper_layer_unchecked(IpProtocol(next[0]), &chain).ok();
        prop_assert_eq!(here, there.map(|upper| (upper.protocol.0, upper.at)));
    }
}
