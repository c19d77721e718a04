//! TCP Fast Open between two connections: RFC 7413.

use super::pair::{PATH_MSS, Pair, emit, flow, opening, pattern, start};
use crate::config::Config;
use crate::connection::{Connection, Events, FastOpenOutcome, FastOpenPeer, IcmpError};
use crate::ecn::EcnCodepoint;
use crate::isn::Secret;
use crate::listen::{Answer, Arrival, ListenConfig, Listener};
use crate::segment::{FastOpen, Flags, Header, Segment, Timestamps};
use crate::state::State;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

fn listener() -> Listener {
    Listener::new(ListenConfig { fast_open: 5, ..ListenConfig::default() }, Secret([1; 16]))
}

fn arrive(listener: &mut Listener, bytes: &[u8], now: Instant) -> Answer {
    let segment = Segment::parse(bytes).unwrap();
    let arrival = Arrival {
        flow: flow(),
        segment,
        ecn: EcnCodepoint::NotEct,
        path_mss: PATH_MSS,
        room: true,
        iss: None,
    };
    listener.handle_segment(now, &arrival)
}

fn client(peer: Option<FastOpenPeer>, data: &[u8]) -> Connection {
    let mut client = Connection::connect(&Config::default(), &opening(40_000, 80, u32::MAX - 3000), start());
    client.offer_fast_open(peer);
    assert_eq!(client.send(data), Ok(data.len()));
    client
}

/// Returns the next segment of `end`.
fn next(end: &mut Connection, now: Instant) -> Vec<u8> {
    let mut bytes = None;
    let _ = end.poll_transmit(now, |outgoing| {
        bytes = Some(emit(outgoing, now).bytes);
        Ok(())
    });
    bytes.expect("a segment")
}

/// Returns what a client learns of the server from a first connection.
fn learned(listener: &mut Listener) -> FastOpenPeer {
    let mut client = client(None, b"");
    let Answer::Reply(syn_ack) = arrive(listener, &next(&mut client, start()), start()) else {
        panic!("no SYN-ACK")
    };
    let segment = Segment { header: syn_ack, payload: &[] };
    let events = client.handle_segment(start(), &segment, EcnCodepoint::NotEct);
    assert!(events.contains(Events::FAST_OPEN | Events::ESTABLISHED));
    let outcome = client.take_fast_open().expect("an outcome");
    assert_eq!((client.take_fast_open(), client.stats().heap_bytes), (None, 0), "once");
    // The server's end is dropped before the next connection.
    let _ = arrive(listener, &reset_of(&client), start());
    let FastOpenOutcome::Client { cookie: Some(cookie), mss, lost: false, .. } = outcome else {
        panic!("{outcome:?}")
    };
    FastOpenPeer { cookie, mss }
}

/// Returns a reset as `end` would send one.
fn reset_of(end: &Connection) -> Vec<u8> {
    let (_, nxt) = end.numbers();
    let options = crate::segment::Options::default();
    let (source, destination) = (end.local_port(), end.remote_port());
    let header = Header { source, destination, seq: nxt, ack: nxt, flags: Flags::RST, window: 0, options };
    let mut bytes = alloc::vec![0; header.len()];
    header.emit(&mut bytes);
    bytes
}

/// Returns a pair of which the first end has sent its SYN with `data`, and the second has taken it.
fn opened(data: &[u8]) -> Pair {
    let mut listener = listener();
    let peer = learned(&mut listener);
    let mut client = client(Some(peer), data);
    let syn = next(&mut client, start());
    let Answer::Accept(server, events) = arrive(&mut listener, &syn, start()) else { panic!("refused") };
    let (wires, events) = ([VecDeque::new(), VecDeque::new()], [Events::empty(), events]);
    let delay = Duration::from_millis(5);
    Pair { now: start(), ends: [client, *server], wires, events, script: Box::new(|_, _| true), delay }
}

#[test]
fn a_request_is_answered_in_one_round_trip() {
    let mut pair = opened(b"request");
    assert_eq!(pair.states(), (State::SynSent, State::SynReceived));
    assert!(!pair.ends[1].is_connecting() && pair.ends[0].is_connecting());
    assert_eq!(pair.read(1).0, b"request");
    pair.ends[1].send(&pattern(10_000)).unwrap();
    let mut got = Vec::new();
    pair.until(|pair| {
        got.extend(pair.read(0).0);
        got.len() == 10_000
    });
    assert_eq!(pair.now - start(), Duration::from_millis(5), "the SYN was already there");
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.states(), (State::Established, State::Established));
    assert!(pair.events.iter().all(|events| events.contains(Events::FAST_OPEN)));
    assert_eq!(pair.ends[1].take_fast_open(), Some(FastOpenOutcome::Server));
    for end in &pair.ends {
        assert_eq!(end.stats().retransmissions, 0);
        assert!(end.info(20, pair.now).syn_data);
    }
    assert!(pair.ends[1].stats().srtt.is_some_and(|srtt| srtt >= Duration::from_millis(10)));
}

#[test]
fn data_that_does_not_fit_the_syn_follows_the_handshake() {
    let data = pattern(20_000);
    let mut pair = opened(&data);
    let mut got = Vec::new();
    pair.until(|pair| {
        got.extend(pair.read(1).0);
        pair.pump();
        got.len() == data.len()
    });
    assert_eq!(got, data);
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.ends[0].info(20, pair.now).bytes_acked, pair.ends[0].stats().bytes_sent);
    pair.transfer(1, &pattern(300_000));
    pair.transfer(0, &pattern(300_000));
}

#[test]
fn lost_syn_acks_and_data_are_repeated_until_both_sides_have_everything() {
    for lost in 1..=6_usize {
        let mut pair = opened(b"request");
        let mut sent = 0;
        pair.script = Box::new(move |side, _| {
            sent += usize::from(side == 1);
            side == 0 || sent > lost
        });
        assert_eq!(pair.read(1).0, b"request");
        pair.ends[1].send(&pattern(5000)).unwrap();
        let mut got = Vec::new();
        pair.until(|pair| {
            got.extend(pair.read(0).0);
            pair.pump();
            got.len() == 5000 && pair.ends[1].unacknowledged_bytes() == 0
        });
        assert_eq!(got, pattern(5000), "{lost} segments lost");
        assert_eq!(pair.states(), (State::Established, State::Established));
    }
}

#[test]
fn a_server_that_closes_at_once_sends_its_fin_after_the_handshake() {
    let mut pair = opened(b"request");
    assert_eq!(pair.read(1).0, b"request");
    pair.ends[1].send(b"reply").unwrap();
    let now = pair.now;
    let _ = pair.ends[1].release(now);
    let mut got = Vec::new();
    pair.until(|pair| {
        let (bytes, end) = pair.read(0);
        got.extend(bytes);
        end
    });
    assert_eq!(got, b"reply");
    let now = pair.now;
    let _ = pair.ends[0].release(now);
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!((pair.ends[0].error(), pair.ends[1].state()), (None, State::TimeWait));
}

#[test]
fn before_the_handshake_ends_what_may_be_forged_is_challenged() {
    // RFC 5961 sections 3.2 and 4.2: whoever opened the connection knows its numbers.
    let mut pair = opened(b"request");
    let _ = next(&mut pair.ends[1], start());
    let (expected, nxt) = pair.ends[1].numbers();
    let exact = Header { seq: expected, ack: nxt, flags: Flags::RST, ..pair.forged(0) };
    let ahead = pair.answer(1, Header { seq: expected + 1, ..exact }, b"").expect("a challenge");
    assert_eq!((ahead.flags, ahead.seq, ahead.ack), (Flags::ACK, nxt, expected));
    let other = pair.answer(1, Header { seq: expected + 9, flags: Flags::SYN, ..exact }, b"");
    assert_eq!(other.map(|header| (header.flags, header.ack)), Some((Flags::ACK, expected)));
    for outside in [expected + u32::MAX, expected + (1 << 20)] {
        assert_eq!(pair.answer(1, Header { seq: outside, ..exact }, b""), None);
    }
    assert_eq!(pair.ends[1].state(), State::SynReceived);
    assert_eq!(pair.read(1).0, b"request");
    assert_eq!(pair.answer(1, exact, b""), None);
    assert_eq!(pair.ends[1].error(), Some(crate::Error::Reset));
}

#[test]
fn a_syn_that_is_lost_is_repeated_bare_and_reported() {
    let mut listener = listener();
    let peer = learned(&mut listener);
    let mut client = client(Some(peer), b"request");
    let first = next(&mut client, start());
    let first = Segment::parse(&first).unwrap();
    assert_eq!(
        (first.payload, first.header.options.fast_open),
        (&b"request"[..], FastOpen::Cookie(peer.cookie))
    );
    let now = client.next_timeout().expect("a timer");
    let _ = client.handle_timeout(now);
    let again = next(&mut client, now);
    let second = Segment::parse(&again).unwrap();
    assert_eq!((second.payload, second.header.options.fast_open), (&b""[..], FastOpen::None));
    assert_eq!(second.header.seq, first.header.seq);
    let Answer::Reply(syn_ack) = arrive(&mut listener, &again, now) else { panic!("no SYN-ACK") };
    let _ = client.handle_segment(now, &Segment { header: syn_ack, payload: &[] }, EcnCodepoint::NotEct);
    client.check();
    let outcome = client.take_fast_open();
    assert!(matches!(outcome, Some(FastOpenOutcome::Client { cookie: None, lost: true, .. })), "{outcome:?}");
    let data = next(&mut client, now);
    let data = Segment::parse(&data).unwrap();
    assert_eq!((data.payload, data.header.seq), (&b"request"[..], first.header.seq + 1));
}

/// Lets the SYN time out; returns the next one and when it leaves.
fn repeat(client: &mut Connection) -> (Vec<u8>, Instant) {
    let now = client.next_timeout().expect("a timer");
    let _ = client.handle_timeout(now);
    (next(client, now), now)
}

#[test]
fn an_answer_to_the_first_syn_that_comes_after_the_second_is_no_loss() {
    let mut listener = listener();
    let peer = learned(&mut listener);
    for peer in [None, Some(peer)] {
        let mut client = client(peer, b"request");
        let first = next(&mut client, start());
        let syn_ack = match arrive(&mut listener, &first, start()) {
            Answer::Reply(syn_ack) => syn_ack,
            Answer::Accept(mut server, _) => Segment::parse(&next(&mut server, start())).unwrap().header,
            Answer::Ignore => panic!("no SYN-ACK"),
        };
        let (_, now) = repeat(&mut client);
        let events =
            client.handle_segment(now, &Segment { header: syn_ack, payload: &[] }, EcnCodepoint::NotEct);
        assert!(events.contains(Events::FAST_OPEN | Events::ESTABLISHED));
        let outcome = client.take_fast_open();
        let Some(FastOpenOutcome::Client { cookie, lost: false, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(cookie.is_some(), peer.is_none());
        let _ = arrive(&mut listener, &reset_of(&client), now);
    }
}

/// Returns the answer to `syn` of a server that accepts no data on it and hands out no cookie, as
/// one whose places are taken does.
fn plain_answer(syn: &[u8]) -> Header {
    let syn = Segment::parse(syn).unwrap().header;
    let mut options = syn.options;
    options.fast_open = FastOpen::None;
    if let Some(timestamps) = &mut options.timestamps {
        *timestamps = Timestamps { value: 77, echo: timestamps.value };
    }
    let flags = Flags::SYN | Flags::ACK;
    let (source, destination) = (syn.destination, syn.source);
    Header { source, destination, seq: crate::Seq(5), ack: syn.seq + 1, flags, options, ..syn }
}

#[test]
fn an_answer_that_echoes_the_first_syn_shows_that_it_arrived() {
    let peer = learned(&mut listener());
    // Without data on the SYN, with data that the server refused, and with a request for a cookie.
    for (peer, data) in [(Some(peer), &b""[..]), (Some(peer), b"request"), (None, b"")] {
        for (answered, timestamps, expected) in
            [(0, true, false), (1, true, true), (0, false, true), (1, false, true)]
        {
            let config = Config { timestamps, ..Config::default() };
            let mut client = Connection::connect(&config, &opening(40_000, 80, 9), start());
            client.offer_fast_open(peer);
            assert_eq!(client.send(data), Ok(data.len()));
            let first = next(&mut client, start() + Duration::from_millis(3));
            let (second, now) = repeat(&mut client);
            let answer = plain_answer([&first, &second][answered]);
            let segment = Segment { header: answer, payload: &[] };
            let events = client.handle_segment(now, &segment, EcnCodepoint::NotEct);
            assert!(events.contains(Events::FAST_OPEN | Events::ESTABLISHED));
            let outcome = client.take_fast_open();
            let Some(FastOpenOutcome::Client { cookie: None, lost, began, .. }) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!((lost, began), (expected, start() + Duration::from_millis(3)), "SYN {answered}");
            assert!(!client.has_failed_to_open());
        }
    }
}

#[test]
fn an_attempt_whose_syn_never_left_shows_nothing() {
    let mut client = client(None, b"");
    let _ = client.abort();
    assert_eq!((client.take_fast_open(), client.has_failed_to_open()), (None, false));
}

#[test]
fn an_attempt_without_fast_open_that_the_network_ends_has_failed_to_open() {
    let mut client = Connection::connect(&Config::default(), &opening(40_000, 80, 9), start());
    let syn = Segment::parse(&next(&mut client, start())).unwrap().header;
    assert!(!client.has_failed_to_open());
    let events = client.handle_icmp(IcmpError::HostUnreachable, syn.seq);
    assert!(events.contains(Events::CLOSED) && !events.contains(Events::FAST_OPEN));
    assert!(client.has_failed_to_open());
    // One that opened and failed later.
    let mut pair = opened(b"request");
    pair.wait(Duration::from_secs(1));
    let reset = Segment { header: Header { flags: Flags::RST, ..pair.forged(1) }, payload: &[] };
    let now = pair.now;
    let _ = pair.ends[0].handle_segment(now, &reset, EcnCodepoint::NotEct);
    assert_eq!(pair.ends[0].error(), Some(crate::Error::Reset));
    assert!(!pair.ends[0].has_failed_to_open() && !pair.ends[1].has_failed_to_open());
}

/// Returns whether an attempt with Fast Open that `end` ends is reported, and as lost.
fn ended(peer: Option<FastOpenPeer>, end: impl Fn(&mut Connection, Header) -> Events) -> Option<bool> {
    let mut client = client(peer, b"request");
    let syn = Segment::parse(&next(&mut client, start())).unwrap().header;
    let events = end(&mut client, syn);
    assert!(events.contains(Events::FAST_OPEN | Events::CLOSED) && client.is_closed());
    client.check();
    match client.take_fast_open() {
        Some(FastOpenOutcome::Client { cookie: None, lost, .. }) => Some(lost),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_attempt_that_the_network_ends_is_reported_as_lost() {
    let peer = learned(&mut listener());
    for (peer, data) in [(None, 0), (Some(peer), 7)] {
        let reset = |client: &mut Connection, syn: Header| {
            let flags = Flags::RST | Flags::ACK;
            let (source, destination) = (syn.destination, syn.source);
            let ack = syn.seq + 1 + data;
            let header = Header { source, destination, seq: crate::Seq(0), ack, flags, ..syn };
            client.handle_segment(start(), &Segment { header, payload: &[] }, EcnCodepoint::NotEct)
        };
        assert_eq!(ended(peer, reset), Some(true));
        let prohibited =
            |client: &mut Connection, syn: Header| client.handle_icmp(IcmpError::Prohibited, syn.seq);
        assert_eq!(ended(peer, prohibited), Some(true));
        let silence = |client: &mut Connection, _| {
            for _ in 0..20 {
                let now = client.next_timeout().expect("a timer");
                let events = client.handle_timeout(now);
                if client.is_closed() {
                    return events;
                }
                let _ = next(client, now);
            }
            panic!("it never gives up")
        };
        assert_eq!(ended(peer, silence), Some(true));
    }
}

#[test]
fn an_attempt_that_the_application_ends_is_lost_only_if_a_syn_went_unanswered() {
    let peer = learned(&mut listener());
    let ends: [fn(&mut Connection) -> Events; 2] = [Connection::abort, |client| client.release(start())];
    for end in ends {
        assert_eq!(ended(Some(peer), |client, _| end(client)), None);
        let late = |client: &mut Connection, _| {
            let _ = repeat(client);
            end(client)
        };
        assert_eq!(ended(Some(peer), late), Some(true));
    }
}

#[test]
fn an_acknowledgment_of_more_than_the_syn_carried_is_refused() {
    let mut listener = listener();
    let peer = learned(&mut listener);
    for (beyond, reset) in [(0, false), (3, false), (7, false), (8, true), (1 << 30, true)] {
        let mut client = client(Some(peer), b"request");
        let syn = next(&mut client, start());
        let syn = Segment::parse(&syn).unwrap().header;
        let flags = Flags::SYN | Flags::ACK;
        let (source, destination) = (syn.destination, syn.source);
        let ack = syn.seq + 1 + beyond;
        let header = Header { source, destination, seq: crate::Seq(5), ack, flags, ..syn };
        let _ = client.handle_segment(start(), &Segment { header, payload: &[] }, EcnCodepoint::NotEct);
        client.check();
        assert_eq!(client.state() == State::SynSent, reset, "{beyond}");
        let answer = next(&mut client, start());
        let answer = Segment::parse(&answer).unwrap();
        assert_eq!(answer.header.flags.contains(Flags::RST), reset);
        if !reset {
            assert_eq!(answer.payload, &b"request"[beyond as usize..], "the rest is sent");
        }
    }
}
