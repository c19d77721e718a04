//! Acknowledgments, their timing and content: RFC 9293 section 3.8.6.3, RFC 2018, RFC 2883, RFC
//! 3168, RFC 8257.

use super::pair::{Pair, pattern};
use crate::config::Config;
use crate::connection::Purpose;
use crate::ecn::EcnCodepoint;
use crate::segment::{Flags, SackBlock, Segment};
use crate::sender::Algorithm;
use crate::seq::Seq;
use crate::state::State;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::time::Duration;

/// Returns a pair whose server is past the quick ACKs of a young connection, because it has sent.
fn interactive() -> Pair {
    let mut pair = Pair::established();
    pair.ends[0].send(b"question").unwrap();
    pair.until(|pair| pair.ends[1].readable_bytes() > 0);
    let _ = pair.read(1);
    for _ in 0..10 {
        let (request, answer) = (pair.forged(0), b"x");
        let _ = pair.ends[1].handle_segment(
            pair.now,
            &Segment { header: request, payload: b"" },
            EcnCodepoint::NotEct,
        );
        pair.transfer(0, b"question");
        pair.transfer(1, answer);
    }
    pair.wait(Duration::from_millis(100));
    pair
}

#[test]
fn a_lone_segment_is_acknowledged_after_a_while_and_a_second_at_once() {
    let mut pair = interactive();
    let (next, now) = (pair.forged(0), pair.now);
    assert_eq!(pair.answer(1, next, b"one"), None, "waits for an answer to go with");
    let wait = pair.ends[1].receive.ack_at - now;
    assert!(wait >= Duration::from_millis(2) && wait <= Duration::from_millis(40), "{wait:?}");
    let mut second = next;
    second.seq += 3;
    let full = pattern(1448);
    let ack = pair.answer(1, second, &full);
    let third = crate::Header { seq: second.seq + 1448, ..second };
    let ack = ack.or_else(|| pair.answer(1, third, &full)).expect("two full segments");
    assert!(ack.ack >= second.seq + 1448);
}

#[test]
fn no_ack_waits_for_half_a_second_whatever_is_asked_for() {
    // RFC 9293 section 3.8.6.3, on a path whose quarter round trip is longer.
    let config = Config { delayed_ack: Duration::from_secs(10), ..Config::default() };
    let mut pair = Pair::crossing_with(&config, Duration::from_millis(2_400));
    pair.until(|pair| pair.ends.iter().all(|end| end.state() == State::Established));
    pair.ends[0].send(b"x").unwrap();
    pair.wait(Duration::from_secs(20));
    let wait = pair.ends[0].ack_delay();
    assert!(wait > Duration::from_millis(490) && wait < Duration::from_millis(500), "{wait:?}");
}

#[test]
fn an_answer_takes_the_ack_along() {
    let mut pair = interactive();
    let request = pair.forged(0);
    assert_eq!(pair.answer(1, request, b"question"), None);
    pair.ends[1].send(b"answer").unwrap();
    let answer = pair.answer(1, pair.forged(0), b"").expect("the answer");
    assert_eq!(answer.ack, request.seq + 8);
    assert!(!pair.ends[1].receive.owes_ack());
}

#[test]
fn the_delayed_ack_leaves_when_its_time_has_come() {
    let mut pair = interactive();
    let request = pair.forged(0);
    assert_eq!(pair.answer(1, request, b"question"), None);
    let at = pair.ends[1].next_timeout().unwrap();
    assert!(at - pair.now <= Duration::from_millis(40));
    pair.now = at;
    let _ = pair.ends[1].handle_timeout(at);
    let ack = super::pair::next_of(&mut pair.ends[1], at).expect("an ACK");
    assert_eq!(Segment::parse(&ack.bytes).unwrap().header.ack, request.seq + 8);
}

#[test]
fn what_arrives_early_is_acknowledged_selectively_and_at_once() {
    let mut pair = Pair::established();
    let base = pair.forged(0);
    let at = |offset: u32| crate::Header { seq: base.seq + offset, ..base };
    let block = |from: u32, to: u32| SackBlock { start: base.seq + from, end: base.seq + to };
    let ack = pair.answer(1, at(10), &pattern(10)).unwrap();
    assert_eq!((ack.ack, ack.options.sack.as_slice()), (base.seq, &[block(10, 20)][..]));
    let ack = pair.answer(1, at(30), &pattern(10)).unwrap();
    assert_eq!(ack.options.sack.as_slice(), [block(30, 40), block(10, 20)], "the latest first");
    let ack = pair.answer(1, at(30), &pattern(10)).unwrap();
    assert_eq!(ack.options.sack.as_slice()[0], block(30, 40), "a duplicate is named first (D-SACK)");
    assert_eq!(ack.options.sack.as_slice().len(), 3);
    let ack = pair.answer(1, at(0), &pattern(10)).unwrap();
    assert_eq!((ack.ack, ack.options.sack.as_slice()), (base.seq + 20, &[block(30, 40)][..]));
    let ack = pair.answer(1, at(0), &pattern(10)).unwrap();
    assert_eq!(ack.options.sack.as_slice()[0], block(0, 10), "and so is one below the ACK");
    let ack = pair.answer(1, at(20), &pattern(10)).unwrap();
    assert_eq!((ack.ack, ack.options.sack.is_empty()), (base.seq + 40, true));
    assert_eq!(pair.ends[1].stats().resequenced_bytes, 20);
}

#[test]
fn a_reordered_fin_waits_for_what_is_before_it() {
    let mut pair = Pair::established();
    let base = pair.forged(0);
    let fin = crate::Header { seq: base.seq + 5, flags: Flags::ACK | Flags::FIN, ..base };
    let ack = pair.answer(1, fin, b"world").unwrap();
    assert_eq!((ack.ack, pair.ends[1].state()), (base.seq, crate::State::Established));
    let ack = pair.answer(1, base, b"hello").unwrap();
    assert_eq!((ack.ack, pair.ends[1].state()), (base.seq + 11, crate::State::CloseWait));
    assert_eq!(pair.read(1), (b"helloworld".to_vec(), true));
}

#[test]
fn overlapping_pieces_give_each_byte_once() {
    let mut pair = Pair::established();
    let (base, data) = (pair.forged(0), pattern(400));
    let pieces = [(150, 250), (100, 200), (350, 400), (0, 120), (90, 300), (240, 400)];
    for (from, to) in pieces {
        let header = crate::Header { seq: base.seq + from, ..base };
        let _ = pair.answer(1, header, &data[from as usize..to as usize]);
    }
    assert_eq!(pair.read(1), (data, false));
}

#[test]
fn a_mark_is_echoed_until_the_sender_has_slowed_down() {
    let config = Config { ecn: true, ..Config::default() };
    let mut pair = Pair::open(&config, &config);
    let (echoes, cwr) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (seen_echoes, seen_cwr, mut count) = (echoes.clone(), cwr.clone(), 0);
    pair.script = Box::new(move |side, flying| {
        let header = Segment::parse(&flying.bytes).unwrap().header;
        if side == 0 && flying.purpose == Purpose::Data && header.flags.contains(Flags::PSH | Flags::ACK)
            || side == 0 && flying.bytes.len() > 100
        {
            assert!(flying.ecn == EcnCodepoint::Ect0 || flying.purpose == Purpose::Retransmission);
            count += 1;
            if count == 20 {
                flying.ecn = EcnCodepoint::Ce;
            }
        }
        seen_cwr.set(seen_cwr.get() + u32::from(side == 0 && header.flags.contains(Flags::CWR)));
        seen_echoes.set(seen_echoes.get() + u32::from(side == 1 && header.flags.contains(Flags::ECE)));
        true
    });
    pair.transfer(0, &pattern(500_000));
    assert!(
        echoes.get() >= 1 && (1..=2).contains(&cwr.get()),
        "{} echoes, {} answers",
        echoes.get(),
        cwr.get()
    );
    let before = echoes.get();
    pair.transfer(0, &pattern(10_000));
    assert_eq!(echoes.get(), before, "no echo after CWR");
    assert_eq!(pair.ends[0].stats().retransmissions, 0);
}

#[test]
fn dctcp_hears_of_each_mark_as_often_as_it_was_made() {
    let sender = crate::sender::Config { algorithm: Algorithm::Dctcp, ..Default::default() };
    let config = Config { sender, ..Config::default() };
    let mut pair = Pair::open(&config, &config);
    pair.transfer(0, &pattern(50_000));
    pair.wait(Duration::from_millis(100));
    let mut next = pair.forged(0);
    let mut feed = |pair: &mut Pair, ecn| -> Vec<(Seq, bool)> {
        let segment = Segment { header: next, payload: &pattern(100) };
        let _ = pair.ends[1].handle_segment(pair.now, &segment, ecn);
        next.seq += 100;
        let mut acks = Vec::new();
        while let Some(ack) = super::pair::next_of(&mut pair.ends[1], pair.now) {
            let header = Segment::parse(&ack.bytes).unwrap().header;
            acks.push((header.ack, header.flags.contains(Flags::ECE)));
        }
        acks
    };
    while !feed(&mut pair, EcnCodepoint::Ect0).is_empty() {}
    let waiting = pair.ends[1].receive.next;
    let acks = feed(&mut pair, EcnCodepoint::Ce);
    assert_eq!(
        acks,
        [(waiting, false), (waiting + 100, true)],
        "what was unmarked is acknowledged as such first"
    );
    let acks = feed(&mut pair, EcnCodepoint::Ect0);
    assert_eq!(acks.last(), Some(&(waiting + 200, false)));
}

#[test]
fn ecn_is_used_only_if_both_offer_it() {
    let ecn = Config { ecn: true, ..Config::default() };
    for (client, server) in [(&ecn, &Config::default()), (&Config::default(), &ecn)] {
        let mut pair = Pair::open(client, server);
        pair.script = Box::new(|_, flying| {
            assert_eq!(flying.ecn, EcnCodepoint::NotEct);
            true
        });
        pair.transfer(0, &pattern(10_000));
        pair.transfer(1, &pattern(10_000));
    }
}

#[test]
fn an_ack_of_a_copy_echoes_the_timestamp_of_that_copy() {
    // RFC 7323 section 4.3, rule 2: otherwise the time during which ACKs were lost counts as a
    // round trip.
    let mut pair = Pair::established();
    pair.transfer(0, b"so that a round trip is known");
    let before = pair.ends[0].stats().srtt.expect("measured");
    pair.script = Box::new(|side, _| side == 0);
    pair.ends[0].send(b"its ACK is lost").unwrap();
    pair.wait(Duration::from_secs(25));
    assert!(pair.ends[0].unacknowledged_bytes() > 0 && pair.ends[1].stats().duplicates > 5);
    pair.script = Box::new(|_, _| true);
    pair.until(|pair| pair.ends[0].unacknowledged_bytes() == 0);
    let after = pair.ends[0].stats().srtt.expect("measured");
    assert!(after < before + Duration::from_millis(2), "{before:?}, then {after:?}");
}

#[test]
fn only_what_was_offered_lately_moves_the_echoed_timestamp() {
    let mut pair = Pair::established();
    pair.transfer(0, b"hello");
    let copy = crate::Header { seq: Seq(pair.forged(0).seq.0.wrapping_sub(5)), ..pair.forged(0) };
    let recent = pair.ends[1].receive.recent_timestamp;
    let ahead = |header: crate::Header, by: u32| {
        let mut header = header;
        header.options.timestamps.as_mut().unwrap().value = recent + by;
        header
    };
    let far = Seq(copy.seq.0.wrapping_sub(1 << 30));
    let forgeries = [
        crate::Header { seq: far, ..copy },
        crate::Header { ack: copy.ack + 1, ..copy },
        crate::Header { ack: far, ..copy },
        crate::Header { flags: Flags::SYN | Flags::ACK, ..copy },
        crate::Header { flags: Flags::empty(), ..copy },
    ];
    for forged in forgeries {
        let _ = pair.answer(1, ahead(forged, 1 << 20), b"hello");
        assert_eq!(pair.ends[1].receive.recent_timestamp, recent, "{forged:?}");
    }
    let answer = pair.answer(1, ahead(copy, 7), b"hello").expect("an ACK");
    assert_eq!(answer.options.timestamps.unwrap().echo, recent + 7);
}

/// Bytes from one offset up to another.
type Bytes = (u32, u32);

#[test]
fn a_segment_that_repeats_part_of_what_is_held_reports_that_part() {
    // RFC 2883 section 4: the first gapless part comes first, then the block that contains it.
    let block = |base: Seq, (from, to): (u32, u32)| SackBlock { start: base + from, end: base + to };
    let cases: [(&[Bytes], Bytes, &[Bytes]); 9] = [
        // What is held, in order of arrival; what arrives then; the blocks of the answer.
        (&[(10, 20)], (15, 25), &[(15, 20), (10, 25)]),
        (&[(10, 20)], (5, 15), &[(10, 15), (5, 20)]),
        (&[(10, 20)], (5, 25), &[(10, 20), (5, 25)]),
        (&[(10, 20)], (12, 15), &[(12, 15), (10, 20)]),
        (&[(10, 20), (30, 40)], (12, 15), &[(12, 15), (10, 20), (30, 40)]),
        (&[(10, 20), (30, 40)], (15, 35), &[(15, 20), (10, 40)]),
        // What arrives is in order: the duplicate lies below the ACK.
        (&[(10, 20)], (0, 15), &[(10, 15)]),
        (&[(10, 20), (30, 40)], (0, 35), &[(10, 20)]),
        (&[(10, 20), (50, 60)], (0, 12), &[(10, 12), (50, 60)]),
    ];
    for (held, (from, to), blocks) in cases {
        let mut pair = Pair::established();
        let base = pair.forged(0);
        let at = |from: u32| crate::Header { seq: base.seq + from, ..base };
        for &(from, to) in held {
            let _ = pair.answer(1, at(from), &pattern(to as usize)[from as usize..]);
        }
        let ack = pair.answer(1, at(from), &pattern(to as usize)[from as usize..]).expect("an ACK");
        let expected: Vec<_> = blocks.iter().map(|&blocks| block(base.seq, blocks)).collect();
        assert_eq!(ack.options.sack.as_slice(), expected, "{held:?}, then {from}..{to}");
        let _ = pair.answer(1, at(0), &pattern(100));
        assert_eq!(pair.read(1).0, pattern(100));
    }
}

/// The gapless ranges among the units of a mask.
fn runs(mask: u16) -> Vec<Bytes> {
    let held = |unit: u32| mask >> unit & 1 == 1;
    let starts = (0..16).filter(|&unit| held(unit) && (unit == 0 || !held(unit - 1)));
    starts.map(|start| (start, (start..16).find(|&unit| !held(unit)).unwrap_or(16))).collect()
}

#[test]
fn whatever_overlaps_is_reported_first_and_the_range_that_contains_it_second() {
    // RFC 2883 section 4, for each set of ranges ahead and each segment over them; a unit is ten
    // bytes. Without timestamps four blocks fit, which is all there can be.
    const UNITS: u32 = 7;
    let bare = Config { timestamps: false, ..Config::default() };
    for held in (0..1_u16 << UNITS).step_by(2) {
        for (from, to) in (0..UNITS).flat_map(|from| (from + 1..=UNITS).map(move |to| (from, to))) {
            let mut pair = Pair::open(&bare, &bare);
            let base = pair.forged(0);
            let mut give = |(from, to): Bytes| {
                let header = crate::Header { seq: base.seq + from * 10, ..base };
                pair.answer(1, header, &pattern(UNITS as usize * 10)[from as usize * 10..to as usize * 10])
            };
            runs(held).into_iter().for_each(|run| {
                let _ = give(run);
            });
            let ack = give((from, to)).expect("an ACK");

            let arrived = (1_u16 << to) - (1 << from);
            let all = held | arrived;
            let in_order = all.trailing_ones();
            let again = runs(held & arrived).first().copied();
            let around = runs(all).into_iter().find(|run| (run.0..run.1).contains(&from) && run.0 > 0);
            let others = runs(all).into_iter().filter(|&run| run.0 > 0 && Some(run) != around);
            let context = alloc::format!("{:?} held, then {from}..{to}", runs(held));
            assert_eq!(ack.ack, base.seq + in_order * 10, "{context}");
            let block =
                |(from, to): Bytes| SackBlock { start: base.seq + from * 10, end: base.seq + to * 10 };
            let first: Vec<_> = again.into_iter().chain(around).map(block).collect();
            let (reported, rest) = ack.options.sack.as_slice().split_at(first.len());
            assert_eq!(reported, first, "{context}");
            let mut rest = rest.to_vec();
            rest.sort_by_key(|block| block.start.0);
            assert_eq!(rest, others.map(block).collect::<Vec<_>>(), "{context}");

            let _ = give((0, UNITS));
            assert_eq!(pair.read(1).0, pattern(UNITS as usize * 10), "{context}");
        }
    }
}

#[test]
fn a_segment_that_reaches_back_below_the_ack_reports_that_part() {
    let mut pair = Pair::established();
    let base = pair.forged(0);
    let at = |offset: u32| crate::Header { seq: base.seq + offset, ..base };
    let block = |from: u32, to: u32| SackBlock { start: base.seq + from, end: base.seq + to };
    let _ = pair.answer(1, at(0), &pattern(10));
    let ack = pair.answer(1, at(5), &pattern(15)[5..]).unwrap();
    assert_eq!((ack.ack, ack.options.sack.as_slice()), (base.seq + 15, &[block(5, 10)][..]));
    let fin = crate::Header { flags: Flags::ACK | Flags::FIN, ..at(10) };
    let _ = pair.answer(1, fin, &pattern(15)[10..]);
    let ack = pair.answer(1, fin, &pattern(15)[10..]).unwrap();
    assert_eq!(ack.options.sack.as_slice(), [block(10, 16)], "the FIN has a number too");
}

#[test]
fn blocks_of_an_overtaken_ack_count() {
    // RFC 2018 section 5: SACK information is processed whatever the ACK's number.
    let mut pair = Pair::established();
    pair.wait(Duration::from_millis(10));
    pair.ends[0].send(&pattern(10 * 1448)).unwrap();
    let mut segments = Vec::new();
    while let Some(flying) = super::pair::next_of(&mut pair.ends[0], pair.now) {
        segments.push(flying);
    }
    pair.now = pair.now + Duration::from_micros(100);
    let una = pair.ends[0].sender.una();
    let base = pair.forged(1);
    let ack = |to: u32, sack: &[(u32, u32)]| {
        let mut header = crate::Header { ack: una + to * 1448, ..base };
        let block = |&(from, to): &(u32, u32)| SackBlock { start: una + from * 1448, end: una + to * 1448 };
        header.options.sack = sack.iter().map(block).collect();
        header
    };
    assert_eq!(pair.answer(0, ack(2, &[]), b"").map(|again| again.seq), None);
    let again = pair.answer(0, ack(1, &[(3, 6)]), b"").expect("three segments beyond a hole");
    assert_eq!((again.seq, pair.ends[0].stats().retransmissions), (una + 2 * 1448, 1));
}
