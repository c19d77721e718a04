//! Forgeries and old duplicates: RFC 5961, RFC 7323 section 5, RFC 5927.

use super::pair::{Pair, next_of, pattern};
use crate::config::Config;
use crate::connection::{Events, IcmpError};
use crate::error::Error;
use crate::segment::{Flags, Header, Segment};
use crate::state::State;
use alloc::boxed::Box;
use core::time::Duration;

#[test]
fn only_the_exact_number_resets() {
    for offset in [1_u32, 100, 60_000] {
        let mut pair = Pair::established();
        let exact = pair.forged(0);
        let reset = Header { seq: exact.seq + offset, flags: Flags::RST, ..exact };
        let answer = pair.answer(1, reset, b"").expect("a challenge");
        assert_eq!((answer.flags, answer.ack), (Flags::ACK, exact.seq));
        assert_eq!(pair.ends[1].state(), State::Established);
        // A peer that has really forgotten the connection answers the challenge with a reset of the
        // right number.
        let reset = Header { seq: answer.ack, flags: Flags::RST, ..exact };
        assert_eq!(pair.answer(1, reset, b""), None);
        assert_eq!(pair.ends[1].error(), Some(Error::Reset));
    }
    let mut pair = Pair::established();
    let exact = pair.forged(0);
    for outside in [u32::MAX, 1 << 20, 1 << 31] {
        let reset = Header { seq: exact.seq + outside, flags: Flags::RST, ..exact };
        assert_eq!(pair.answer(1, reset, b""), None, "outside the window nothing is said");
    }
}

#[test]
fn a_syn_in_a_connection_is_challenged_wherever_it_is() {
    for offset in [0_u32, 1, 1000, 1 << 25, u32::MAX] {
        let mut pair = Pair::established();
        let exact = pair.forged(0);
        let syn = Header { seq: exact.seq + offset, flags: Flags::SYN, ..exact };
        let answer = pair.answer(1, syn, b"").expect("a challenge");
        assert_eq!(
            (answer.flags, answer.ack, pair.ends[1].state()),
            (Flags::ACK, exact.seq, State::Established)
        );
    }
}

#[test]
fn a_peer_that_restarted_without_timestamps_is_challenged_and_resets() {
    let mut pair = Pair::established();
    let exact = pair.forged(0);
    for offset in [0_u32, 1 << 25] {
        let mut syn = Header { seq: exact.seq + offset, flags: Flags::SYN, ..exact };
        syn.options.timestamps = None;
        let answer = pair.answer(1, syn, b"").expect("a challenge");
        assert_eq!((answer.flags, answer.ack), (Flags::ACK, exact.seq));
    }
    let mut reset = Header { seq: exact.seq, flags: Flags::RST, ..exact };
    reset.options.timestamps = None;
    assert_eq!(pair.answer(1, reset, b""), None);
    assert_eq!(pair.ends[1].error(), Some(Error::Reset));
}

#[test]
fn a_closed_window_from_the_future_does_not_shut_a_connection_up_for_ever() {
    let mut pair = Pair::established();
    let exact = pair.forged(0);
    let forged = Header { seq: exact.seq + 150, window: 0, ..exact };
    let _ = pair.answer(1, forged, b"ahead");
    pair.ends[1].send(&pattern(5_000)).unwrap();
    pair.until(|pair| pair.ends[0].readable_bytes() == 5_000);
}

#[test]
fn an_ack_of_what_was_not_sent_or_long_ago_brings_no_data_in() {
    for offset in [1_u32, 1 << 30, 0_u32.wrapping_sub(1 << 22)] {
        let mut pair = Pair::established();
        let exact = pair.forged(0);
        let data = Header { ack: exact.ack + offset, ..exact };
        let answer = pair.answer(1, data, b"evil").expect("a challenge");
        assert_eq!((answer.ack, pair.ends[1].readable_bytes()), (exact.seq, 0));
    }
}

#[test]
fn challenges_are_limited() {
    let mut pair = Pair::established();
    let exact = pair.forged(0);
    let reset = Header { seq: exact.seq + 1, flags: Flags::RST, ..exact };
    let answers = (0..1000).filter(|_| pair.answer(1, reset, b"").is_some()).count();
    assert_eq!(answers, 10);
    assert_eq!(pair.ends[1].stats().challenge_acks, 10);
    pair.wait(Duration::from_secs(2));
    assert!(pair.answer(1, reset, b"").is_some(), "and come back");
}

#[test]
fn challenges_to_one_connection_tell_nothing_about_another() {
    // CVE-2016-5696: the attacker uses up the challenges of its own connection, and counts those
    // left after forgeries to the victim.
    let (mut victim, mut own) = (Pair::established(), Pair::established());
    for forgeries in [0, 1, 1000] {
        own.wait(Duration::from_secs(2));
        victim.now = own.now;
        let exact = victim.forged(0);
        for _ in 0..forgeries {
            let _ = victim.answer(1, Header { seq: exact.seq + 1, flags: Flags::RST, ..exact }, b"");
        }
        let exact = own.forged(0);
        let reset = Header { seq: exact.seq + 1, flags: Flags::RST, ..exact };
        assert_eq!((0..100).filter(|_| own.answer(1, reset, b"").is_some()).count(), 10);
    }
}

#[test]
fn an_old_timestamp_is_refused_though_its_number_is_right() {
    let mut pair = Pair::established();
    pair.wait(Duration::from_millis(100));
    pair.transfer(0, b"so that there is a recent timestamp");
    pair.wait(Duration::from_millis(100));
    let mut old = pair.forged(0);
    old.options.timestamps.as_mut().unwrap().value -= 500;
    let answer = pair.answer(1, old, b"from before the wrap").expect("an ACK");
    assert_eq!((answer.ack, pair.ends[1].readable_bytes()), (old.seq, 0));
    assert_eq!(pair.ends[1].stats().stale_timestamps, 1);
    // A reset needs no timestamp (RFC 7323 section 5.2).
    let reset = Header { flags: Flags::RST, ..old };
    assert_eq!(pair.answer(1, reset, b""), None);
    assert!(pair.ends[1].is_closed());
}

#[test]
fn a_segment_without_the_agreed_timestamp_is_dropped() {
    let mut pair = Pair::established();
    let mut bare = pair.forged(0);
    bare.options.timestamps = None;
    assert_eq!(pair.answer(1, bare, b"evil"), None);
    assert_eq!(pair.ends[1].readable_bytes(), 0);
}

#[test]
fn a_timestamp_from_the_past_is_good_after_24_idle_days() {
    let mut pair = Pair::established();
    pair.wait(Duration::from_hours(25 * 24));
    let mut segment = pair.forged(0);
    let timestamps = segment.options.timestamps.as_mut().unwrap();
    timestamps.value = timestamps.value.wrapping_sub(1 << 30);
    let _ = pair.answer(1, segment, b"hello again");
    assert_eq!(pair.ends[1].readable_bytes(), 11);
}

#[test]
fn a_duplicate_of_old_data_changes_nothing() {
    let mut pair = Pair::established();
    let first = pair.forged(0);
    let _ = pair.answer(1, first, b"hello");
    assert_eq!(pair.read(1).0, b"hello");
    let answer = pair.answer(1, first, b"HELLO").expect("an ACK");
    assert_eq!((answer.ack, pair.ends[1].readable_bytes()), (first.seq + 5, 0));
    assert_eq!(pair.ends[1].stats().duplicates, 1);
}

#[test]
fn icmp_never_ends_an_established_connection() {
    let mut pair = Pair::established();
    pair.ends[0].send(&pattern(1000)).unwrap();
    let una = pair.ends[0].sender.una();
    pair.script = Box::new(|_, _| false);
    pair.pump();
    for error in [IcmpError::PortUnreachable, IcmpError::ProtocolUnreachable, IcmpError::HostUnreachable] {
        assert_eq!(pair.ends[0].handle_icmp(error, una), Events::empty());
    }
    assert_eq!(pair.ends[0].state(), State::Established);
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!(pair.ends[0].error(), Some(Error::HostUnreachable), "but is the reason given in the end");
}

#[test]
fn a_smaller_path_is_believed_only_of_what_is_in_flight() {
    let mut pair = Pair::established();
    let now = pair.now;
    let una = pair.ends[0].sender.una();
    let _ = pair.ends[0].set_path_mtu(1000, Some(una), now);
    assert_eq!(pair.ends[0].stats().mss, 1448, "nothing is in flight");
    pair.ends[0].send(&pattern(20_000)).unwrap();
    pair.script = Box::new(|side, flying| side == 1 || flying.bytes.len() <= 20 + 1000);
    pair.pump();
    for wrong in [una + u32::MAX, una + 100_000] {
        let _ = pair.ends[0].set_path_mtu(1000, Some(wrong), now);
        assert_eq!(pair.ends[0].stats().mss, 1448);
    }
    let _ = pair.ends[0].set_path_mtu(1000, Some(una), now);
    assert_eq!(pair.ends[0].stats().mss, 988);
    let _ = pair.ends[0].set_path_mtu(1400, Some(una), now);
    assert_eq!(pair.ends[0].stats().mss, 988, "and never makes it larger");
    pair.until(|pair| pair.ends[1].readable_bytes() == 20_000);
    assert_eq!(pair.read(1).0, pattern(20_000));
    let _ = pair.ends[0].set_path_mtu(0, None, now);
    assert_eq!(pair.ends[0].stats().mss, 36);
}

#[test]
fn resets_carry_the_agreed_timestamps() {
    // RFC 7323 section 3.2.
    let mut pair = Pair::established();
    let value = pair.ends[0].timestamps(pair.now);
    let _ = pair.ends[0].abort();
    let reset = next_of(&mut pair.ends[0], pair.now).expect("a reset");
    let header = Segment::parse(&reset.bytes).unwrap().header;
    assert_eq!((header.flags, header.options.timestamps), (Flags::RST | Flags::ACK, Some(value)));

    let bare = Config { timestamps: false, ..Config::default() };
    let mut pair = Pair::open(&bare, &bare);
    let _ = pair.ends[0].abort();
    let reset = next_of(&mut pair.ends[0], pair.now).expect("a reset");
    assert_eq!(Segment::parse(&reset.bytes).unwrap().header.options.timestamps, None);
}

#[test]
fn a_segment_with_an_unacceptable_ack_moves_no_timestamp() {
    // RFC 5961 section 5.2: it is dropped as a whole.
    for offset in [1_u32, 1 << 30, 0_u32.wrapping_sub(1 << 22)] {
        let mut pair = Pair::established();
        let mut forged = pair.forged(0);
        let before = forged.options.timestamps.unwrap().value;
        forged.ack += offset;
        forged.options.timestamps.as_mut().unwrap().value += 1_000_000;
        let answer = pair.answer(1, forged, b"evil").expect("a challenge");
        assert!(answer.options.timestamps.unwrap().echo <= before);
        pair.transfer(0, &pattern(1000));
    }
}

#[test]
fn an_ack_from_before_the_connection_is_challenged() {
    // The peer's window reaches further back than what was ever sent.
    let mut pair = Pair::established();
    let mut forged = pair.forged(0);
    forged.ack += 0_u32.wrapping_sub(100);
    assert!(pair.answer(1, forged, b"evil").is_some());
    assert_eq!((pair.ends[1].readable_bytes(), pair.ends[1].stats().challenge_acks), (0, 1));
}
