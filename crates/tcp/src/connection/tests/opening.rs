//! The handshake: RFC 9293 section 3.5.

use super::pair::{Pair, next_of, opening, pattern, start};
use crate::config::Config;
use crate::connection::{Connection, Events, IcmpError};
use crate::ecn::EcnCodepoint;
use crate::error::{Error, SendError};
use crate::segment::{Flags, Header, Options, Segment, Timestamps};
use crate::seq::Seq;
use crate::state::State;
use alloc::boxed::Box;
use core::time::Duration;

fn segment(flags: Flags, seq: u32, ack: u32) -> Header {
    Header {
        source: 80,
        destination: 40_000,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 1000,
        options: Options::default(),
    }
}

fn connecting() -> Connection {
    let mut end = Connection::connect(&Config::default(), &opening(40_000, 80, 100), start());
    next_of(&mut end, start()).expect("a SYN");
    end
}

fn handle(end: &mut Connection, header: Header) -> Events {
    end.handle_segment(start(), &Segment { header, payload: &[] }, EcnCodepoint::NotEct)
}

#[test]
fn three_segments_open_a_connection() {
    let pair = Pair::established();
    assert_eq!(pair.states(), (State::Established, State::Established));
    assert!(pair.events.iter().all(|events| events.contains(Events::ESTABLISHED | Events::WRITABLE)));
    assert_eq!(pair.ends[0].stats().mss, 1448);
}

#[test]
fn both_may_open_at_once() {
    let mut pair = Pair::crossing();
    pair.until(|pair| pair.states() == (State::Established, State::Established));
    assert!(pair.events.iter().all(|events| events.contains(Events::ESTABLISHED)));
    pair.transfer(0, &pattern(10_000));
    pair.transfer(1, &pattern(10_000));
}

#[test]
fn both_may_open_at_once_though_answers_are_lost() {
    for lost in 0..6 {
        let mut pair = Pair::crossing();
        let mut count = 0;
        pair.script = Box::new(move |_, _| {
            count += 1;
            count - 1 != lost
        });
        pair.until(|pair| pair.states() == (State::Established, State::Established));
        pair.transfer(0, &pattern(5000));
    }
}

#[test]
fn a_reset_refuses_only_if_it_acknowledges_the_syn() {
    let mut end = connecting();
    assert_eq!(handle(&mut end, segment(Flags::RST, 0, 0)), Events::empty());
    assert_eq!(handle(&mut end, segment(Flags::RST | Flags::ACK, 0, 100)), Events::empty());
    assert_eq!(end.state(), State::SynSent);
    let events = handle(&mut end, segment(Flags::RST | Flags::ACK, 0, 101));
    assert!(events.contains(Events::ERROR | Events::CLOSED));
    assert_eq!((end.error(), end.send(b"x")), (Some(Error::Refused), Err(SendError::Failed(Error::Refused))));
}

#[test]
fn an_ack_of_something_else_is_answered_with_a_reset() {
    let mut end = connecting();
    assert!(handle(&mut end, segment(Flags::SYN | Flags::ACK, 7, 99)).contains(Events::TRANSMIT));
    let reset = next_of(&mut end, start()).unwrap();
    let header = Segment::parse(&reset.bytes).unwrap().header;
    assert_eq!((header.flags, header.seq), (Flags::RST, Seq(99)));
    assert_eq!(end.state(), State::SynSent, "the attempt goes on");
}

#[test]
fn options_count_only_if_both_offer_them() {
    let bare = Config { window_scaling: false, timestamps: false, sack: false, ..Config::default() };
    let mut pair = Pair::open(&Config::default(), &bare);
    assert_eq!(pair.ends[0].stats().mss, 1460);
    pair.script = Box::new(|_, flying| {
        assert_eq!(flying.bytes[12] >> 4, 5, "no options");
        true
    });
    pair.transfer(0, &pattern(100_000));
}

#[test]
fn a_peer_without_a_segment_size_gets_536_bytes() {
    let mut end = connecting();
    let _ = handle(&mut end, segment(Flags::SYN | Flags::ACK, 7, 101));
    assert_eq!((end.state(), end.stats().mss), (State::Established, 536));
    let mut end = connecting();
    let mut tiny = segment(Flags::SYN | Flags::ACK, 7, 101);
    tiny.options.mss = Some(1);
    tiny.options.timestamps = Some(Timestamps { value: 1, echo: 0 });
    let _ = handle(&mut end, tiny);
    assert_eq!(end.stats().mss, 48 - 12, "smaller ones are not believed");
}

#[test]
fn a_syn_without_an_answer_is_given_up() {
    let mut pair = Pair::crossing();
    pair.script = Box::new(|_, _| false);
    let began = pair.now;
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!(pair.ends[0].error(), Some(Error::TimedOut));
    assert!(
        pair.now - began >= Duration::from_mins(3),
        "R2 of a SYN is at least that (RFC 9293 section 3.8.3)"
    );
}

#[test]
fn an_unreachable_peer_ends_the_attempt_to_connect() {
    // As Linux (RFC 5461 section 4.1).
    for (report, error) in [
        (IcmpError::PortUnreachable, Error::Refused),
        (IcmpError::ProtocolUnreachable, Error::Refused),
        (IcmpError::HostUnreachable, Error::HostUnreachable),
        (IcmpError::Prohibited, Error::HostUnreachable),
        (IcmpError::Other, Error::HostUnreachable),
        (IcmpError::NetworkUnreachable, Error::NetworkUnreachable),
    ] {
        let mut end = connecting();
        assert_eq!(end.handle_icmp(report, Seq(101)), Events::empty(), "not in flight");
        assert!(end.handle_icmp(report, Seq(100)).contains(Events::ERROR | Events::CLOSED), "{report:?}");
        assert_eq!(end.error(), Some(error));
    }
}

#[test]
fn data_handed_over_before_the_handshake_leaves_after_it() {
    let mut pair = Pair::crossing();
    pair.ends[0].send(b"early").unwrap();
    pair.until(|pair| pair.ends[1].readable_bytes() == 5);
    assert_eq!(pair.read(1), (b"early".to_vec(), false));
}
