//! Pieces in every order, against a model that keeps one bit a byte.

use super::*;
use core::net::Ipv4Addr;
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(100);
const STATION: MacAddr = MacAddr([2; 6]);

fn key(identification: u32) -> Key {
    let addresses =
        Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, 2), destination: Ipv4Addr::new(10, 0, 0, 1) };
    Key { addresses, protocol: IpProtocol::UDP, identification }
}

fn piece(offset: usize, data: &[u8], more: bool) -> Piece<'_> {
    let header = if offset == 0 { &b"head"[..] } else { b"else" };
    let protocol = if offset == 0 { IpProtocol::UDP } else { IpProtocol::TCP };
    Piece { offset, more, data, header, protocol, traffic_class: 1, station: STATION }
}

fn whole(data: &[u8]) -> Accepted {
    Accepted::Whole(Datagram {
        header: b"head".to_vec(),
        data: data.to_vec(),
        protocol: IpProtocol::UDP,
        traffic_class: 1,
        station: STATION,
    })
}

/// Everything that must hold between calls.
fn check(reassembly: &Reassembly) {
    assert_eq!(reassembly.bytes, reassembly.partial.iter().map(Partial::memory).sum::<usize>());
    assert!(reassembly.bytes <= MAX_BYTES && reassembly.partial.len() <= MAX_DATAGRAMS);
    for partial in &reassembly.partial {
        assert!(partial.condemned || partial.runs.len() <= MAX_RUNS);
        assert!(partial.runs.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", partial.runs);
    }
}

proptest! {
    /// Cut anywhere, in any order, with any piece repeated: the whole comes out once, when the last
    /// piece is in.
    #[test]
    fn a_packet_comes_together_from_its_pieces_in_any_order(
        units in prop::collection::vec(1usize..40, 1..20), tail in 0usize..8, seed: u64, repeats in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let len = 8 * units.iter().sum::<usize>() + tail;
        let data: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let mut cuts = vec![0];
        for unit in &units {
            cuts.push(cuts.last().unwrap() + 8 * unit);
        }
        *cuts.last_mut().unwrap() = len;
        let mut order: Vec<_> = cuts.windows(2).map(|cut| (cut[0], cut[1])).collect();
        let mut x = seed | 1;
        for i in (1..order.len()).rev() {
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            order.swap(i, (x % (i as u64 + 1)) as usize);
        }
        let mut reassembly = Reassembly::new();
        let last = order.len() - 1;
        for (i, &(start, end)) in order.iter().enumerate() {
            for repeat in &repeats {
                // A piece that has come comes again; not the last missing one, which completes it.
                if i > 0 {
                    let (start, end) = order[repeat.index(i)];
                    let again = reassembly.accept(&key(1), &piece(start, &data[start..end], end < len), NOW);
                    prop_assert_eq!(again, Accepted::Waits);
                }
            }
            let accepted = reassembly.accept(&key(1), &piece(start, &data[start..end], end < len), NOW);
            check(&reassembly);
            prop_assert_eq!(accepted, if i == last { whole(&data) } else { Accepted::Waits });
        }
        prop_assert_eq!((reassembly.bytes, reassembly.deadline()), (0, None));
    }

    /// Whatever comes, a packet is only ever made of bytes that were sent for it, none of them
    /// twice in part.
    #[test]
    fn arbitrary_pieces_make_nothing_up(
        pieces in prop::collection::vec((0u32..3, 0usize..40, 1usize..40, any::<bool>(), any::<bool>()), 1..100),
    ) {
        let mut reassembly = Reassembly::new();
        // What has come, by packet: None is a gap.
        let mut models: [Option<Vec<bool>>; 3] = [const { Some(Vec::new()) }; 3];
        for (number, (id, at, units, more, odd)) in pieces.into_iter().enumerate() {
            let offset = 8 * at;
            let len = 8 * units - usize::from(odd && !more);
            let data: Vec<u8> = (offset..offset + len).map(|i| (i as u32 * 3 + id) as u8).collect();
            let now = NOW + Duration::from_millis(number as u64);
            let model = &mut models[id as usize];
            let overlaps = model.as_ref().map(|bytes| {
                let here = (offset..offset + len).map(|i| bytes.get(i).copied().unwrap_or(false));
                (here.clone().any(|there| there), here.clone().all(|there| there))
            });
            let accepted = reassembly.accept(&key(id), &piece(offset, &data, more), now);
            check(&reassembly);
            match accepted {
                Accepted::Whole(datagram) => {
                    let expected: Vec<u8> = (0..datagram.data.len()).map(|i| (i as u32 * 3 + id) as u8).collect();
                    prop_assert_eq!(datagram.data, expected);
                    *model = Some(Vec::new());
                }
                Accepted::Waits => {
                    let (some, all) = overlaps.expect("a condemned packet takes nothing");
                    prop_assert!(!some || all, "a partial overlap was accepted");
                    let bytes = model.as_mut().unwrap();
                    bytes.resize(bytes.len().max(offset + len), false);
                    bytes[offset..offset + len].fill(true);
                }
                Accepted::Refused => *model = None,
            }
        }
    }
}

#[test]
fn an_overlap_condemns_the_packet_and_all_that_comes_of_it() {
    for (offset, data) in [(8, [9; 16]), (0, [9; 16])] {
        let mut reassembly = Reassembly::new();
        assert_eq!(reassembly.accept(&key(1), &piece(0, &[1; 8], true), NOW), Accepted::Waits);
        assert_eq!(reassembly.accept(&key(1), &piece(16, &[1; 8], true), NOW), Accepted::Waits);
        assert_eq!(reassembly.accept(&key(1), &piece(offset, &data, true), NOW), Accepted::Refused);
        assert_eq!(reassembly.accept(&key(1), &piece(8, &[1; 8], true), NOW), Accepted::Refused);
        assert_eq!(reassembly.bytes, 0, "what has come is freed at once");
        assert_eq!(
            reassembly.accept(&key(2), &piece(0, &[1; 8], true), NOW),
            Accepted::Waits,
            "others are not touched"
        );
    }
}

#[test]
fn pieces_that_disagree_about_the_end_are_refused() {
    let long = [1; 16];
    for (first, second) in [
        (piece(8, &long, false), piece(24, &long, true)),
        (piece(8, &long, false), piece(32, &long, false)),
        (piece(16, &long, true), piece(0, &long, false)),
    ] {
        let mut reassembly = Reassembly::new();
        assert_eq!(reassembly.accept(&key(1), &first, NOW), Accepted::Waits);
        assert_eq!(reassembly.accept(&key(1), &second, NOW), Accepted::Refused);
    }
}

#[test]
fn pieces_that_cannot_be_are_refused_and_condemn_nobody() {
    let mut reassembly = Reassembly::new();
    for (offset, len, more) in
        [(0, 7, true), (0, 0, true), (8, 0, false), (65_528, 8, false), (65_512, 8, true)]
    {
        assert_eq!(reassembly.accept(&key(1), &piece(offset, &[0; 8][..len], more), NOW), Accepted::Refused);
    }
    assert_eq!(reassembly.accept(&key(1), &piece(0, &[1; 8], true), NOW), Accepted::Waits);
    assert_eq!(reassembly.accept(&key(1), &piece(8, &[1; 3], false), NOW), whole(&[1; 11]));
}

#[test]
fn gaps_are_counted_and_the_longest_packet_fits() {
    let mut reassembly = Reassembly::new();
    let accepted: Vec<_> =
        (0..40).map(|i| reassembly.accept(&key(1), &piece(16 * i, &[1; 8], true), NOW)).collect();
    assert!(accepted[..MAX_RUNS].iter().all(|accepted| *accepted == Accepted::Waits));
    assert!(accepted[MAX_RUNS..].iter().all(|accepted| *accepted == Accepted::Refused));
    let data = vec![7; MAX_PAYLOAD];
    let (front, back) = data.split_at(65_504);
    assert_eq!(reassembly.accept(&key(2), &piece(65_504, back, false), NOW), Accepted::Waits);
    assert_eq!(reassembly.accept(&key(2), &piece(0, front, true), NOW), whole(&data));
}

#[test]
fn a_flood_of_pieces_stays_within_bounds_and_pushes_out_the_oldest() {
    let mut reassembly = Reassembly::new();
    for id in 0..1000 {
        // Each claims the most memory a piece can.
        reassembly.accept(&key(id), &piece(65_000, &[1; 8], true), NOW);
        check(&reassembly);
    }
    assert!(reassembly.take_evicted() >= 1000 - MAX_DATAGRAMS);
    let mut reassembly = Reassembly::new();
    for id in 0..=MAX_DATAGRAMS as u32 {
        reassembly.accept(&key(id), &piece(0, &[1; 8], true), NOW);
    }
    assert_eq!(reassembly.accept(&key(1), &piece(8, &[1; 8], false), NOW), whole(&[1; 16]));
    assert_eq!(reassembly.accept(&key(0), &piece(8, &[1; 8], false), NOW), Accepted::Waits, "it gave way");
}

#[test]
fn what_is_not_complete_in_time_is_given_up_with_its_beginning() {
    let mut reassembly = Reassembly::new();
    reassembly.accept(&key(1), &piece(0, &[1; 8], true), NOW);
    reassembly.accept(&key(1), &piece(32, &[3; 8], true), NOW);
    reassembly.accept(&key(2), &piece(8, &[2; 8], true), NOW + Duration::from_secs(1));
    assert_eq!(reassembly.deadline(), Some(NOW + TIMEOUT));
    assert_eq!(reassembly.poll(NOW + TIMEOUT - Duration::from_nanos(1)), None);
    let expired = reassembly.poll(NOW + TIMEOUT).unwrap();
    assert_eq!(expired.key, key(1));
    let first = expired.first.unwrap();
    assert_eq!(
        (first.header, first.data),
        (b"head".to_vec(), vec![1; 8]),
        "not the gap, nor what is beyond it"
    );
    assert_eq!(reassembly.poll(NOW + TIMEOUT), None);
    let headless = reassembly.poll(NOW + TIMEOUT * 2).unwrap();
    assert_eq!(headless, Expired { key: key(2), first: None });
    assert_eq!((reassembly.bytes, reassembly.deadline()), (0, None));
}
