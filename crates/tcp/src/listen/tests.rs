//! Listening: RFC 9293 section 3.10.7.2, RFC 4987.

use super::*;
use crate::connection::Outgoing;
use crate::connection::Transmit;
use crate::segment::SackBlocks;
use crate::state::State;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

const SERVER: u16 = 80;

fn flow(n: u32) -> Flow {
    let [a, b, ..] = n.to_be_bytes();
    Flow {
        local: [10, 0, 0, 1].into(),
        remote: [10, 1, a, b].into(),
        local_port: SERVER,
        remote_port: (n as u16).max(1),
    }
}

fn start() -> Instant {
    Instant(5_000_000_000_000)
}

fn listener(config: ListenConfig) -> Listener {
    Listener::new(config, Secret([5; 16]))
}

fn header(flow: &Flow, flags: Flags, seq: Seq, ack: Seq) -> Header {
    let options = Options::default();
    Header { source: flow.remote_port, destination: SERVER, seq, ack, flags, window: 5000, options }
}

fn full_options(value: u32, echo: u32) -> Options {
    Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value, echo }),
        sack: SackBlocks::default(),
    }
}

fn syn(flow: &Flow) -> Header {
    Header { options: full_options(1000, 0), ..header(flow, Flags::SYN, Seq(7000), Seq(0)) }
}

/// Returns the handshake's last segment, for the answer to `syn`.
fn ack_of(flow: &Flow, answer: &Header) -> Header {
    let timestamps = answer.options.timestamps.map(|t| Timestamps { value: 1001, echo: t.value });
    let options = Options { timestamps, ..Options::default() };
    Header { options, ..header(flow, Flags::ACK, answer.ack, answer.seq + 1) }
}

fn give(listener: &mut Listener, now: Instant, flow: Flow, header: Header, room: bool) -> Answer {
    let segment = Segment { header, payload: &[] };
    let arrival = Arrival { flow, segment, ecn: EcnCodepoint::NotEct, path_mss: 1460, room, iss: None };
    listener.handle_segment(now, &arrival)
}

fn reply(answer: Answer) -> Header {
    match answer {
        Answer::Reply(header) => header,
        other => panic!("{other:?} is no reply"),
    }
}

fn accepted(answer: Answer) -> Box<Connection> {
    match answer {
        Answer::Accept(connection, events) => {
            assert!(events.contains(Events::ESTABLISHED));
            connection
        }
        other => panic!("{other:?} is no connection"),
    }
}

#[test]
fn a_handshake_makes_a_connection() {
    let (mut listener, flow) = (listener(ListenConfig::default()), flow(1));
    let answer = reply(give(&mut listener, start(), flow, syn(&flow), true));
    assert_eq!((answer.flags, answer.ack), (Flags::SYN | Flags::ACK, Seq(7001)));
    assert_eq!(answer.options.timestamps.unwrap().echo, 1000);
    assert!(answer.options.sack_permitted && answer.options.window_scale.is_some());
    let connection = accepted(give(&mut listener, start(), flow, ack_of(&flow, &answer), true));
    assert_eq!((connection.state(), connection.remote_port()), (State::Established, flow.remote_port));
    assert_eq!((listener.pending(), listener.next_timeout()), (0, None));
}

#[test]
fn data_with_the_ack_is_not_lost() {
    let (mut listener, flow) = (listener(ListenConfig::default()), flow(1));
    let answer = reply(give(&mut listener, start(), flow, syn(&flow), true));
    let segment = Segment { header: ack_of(&flow, &answer), payload: b"early" };
    let arrival = Arrival { flow, segment, ecn: EcnCodepoint::NotEct, path_mss: 1460, room: true, iss: None };
    let connection = accepted(listener.handle_segment(start(), &arrival));
    assert_eq!(connection.readable_bytes(), 5);
}

#[test]
fn strays_are_answered_with_resets_they_believe() {
    let (mut listener, flow) = (listener(ListenConfig::default()), flow(1));
    let stray = header(&flow, Flags::ACK, Seq(1), Seq(77));
    let reset = reply(give(&mut listener, start(), flow, stray, true));
    assert_eq!((reset.flags, reset.seq), (Flags::RST, Seq(77)));
    for flags in [Flags::RST, Flags::empty(), Flags::FIN, Flags::SYN | Flags::FIN] {
        let stray = header(&flow, flags, Seq(1), Seq(77));
        assert!(matches!(give(&mut listener, start(), flow, stray, true), Answer::Ignore), "{flags:?}");
    }
    let answer = reply(give(&mut listener, start(), flow, syn(&flow), true));
    let wrong = Header { ack: answer.seq + 2, ..ack_of(&flow, &answer) };
    assert_eq!(reply(give(&mut listener, start(), flow, wrong, true)).flags, Flags::RST);
    assert_eq!(listener.pending(), 1, "the handshake goes on");
}

#[test]
fn only_the_exact_reset_ends_a_handshake() {
    let (mut listener, flow) = (listener(ListenConfig::default()), flow(1));
    let _ = give(&mut listener, start(), flow, syn(&flow), true);
    for (seq, left) in [(Seq(7000), 1), (Seq(7002), 1), (Seq(7001), 0)] {
        let _ = give(&mut listener, start(), flow, header(&flow, Flags::RST, seq, Seq(0)), true);
        assert_eq!(listener.pending(), left);
    }
}

#[test]
fn an_answer_that_was_lost_is_repeated_and_then_given_up() {
    let (mut listener, flow) = (listener(ListenConfig::default()), flow(1));
    let first = reply(give(&mut listener, start(), flow, syn(&flow), true));
    let again = reply(give(&mut listener, start(), flow, syn(&flow), true));
    assert_eq!((again.seq, listener.pending()), (first.seq, 1));
    let mut times = Vec::new();
    while let Some(at) = listener.next_timeout() {
        listener.poll_transmit(at, |_, _| Err(Full));
        listener.poll_transmit(at, |to, answer| {
            assert_eq!((*to, answer.seq), (flow, first.seq));
            times.push((at - start()).as_secs());
            Ok(())
        });
    }
    assert_eq!((times, listener.pending()), (vec![1, 3, 7, 15, 31], 0));
    assert_eq!(listener.stats().expired, 1);
}

#[test]
fn only_an_answer_that_left_once_measures_the_path() {
    // RFC 6298 section 3, Karn's rule: at 3 s it is unknown whether the first or the last answer is
    // acknowledged.
    let by_timer = |listener: &mut Listener, at: Instant| listener.poll_transmit(at, |_, _| Ok(()));
    for (repeats, timer) in [(0, false), (1, false), (2, false), (0, true)] {
        let (mut listener, flow) = (listener(ListenConfig::default()), flow(1));
        let mut answer = reply(give(&mut listener, start(), flow, syn(&flow), true));
        for n in 0..repeats {
            let at = start() + Duration::from_secs([1, 3][n]);
            answer = reply(give(&mut listener, at, flow, syn(&flow), true));
        }
        if timer {
            by_timer(&mut listener, start() + FIRST_WAIT);
        }
        let now = start() + Duration::from_millis(3020);
        let stats = accepted(give(&mut listener, now, flow, ack_of(&flow, &answer), true)).stats();
        let measured = (repeats == 0 && !timer).then_some(Duration::from_millis(3020));
        assert_eq!(stats.srtt, measured, "{repeats} SYNs repeated, timer: {timer}");
        assert!(measured.is_some() || stats.rto <= Duration::from_secs(3), "{:?}", stats.rto);
    }
}

#[test]
fn a_full_accept_queue_drops_syns_and_acks() {
    let (mut listener, flow, late) = (listener(ListenConfig::default()), flow(1), flow(2));
    let answer = reply(give(&mut listener, start(), flow, syn(&flow), true));
    assert!(matches!(give(&mut listener, start(), flow, ack_of(&flow, &answer), false), Answer::Ignore));
    assert!(matches!(give(&mut listener, start(), late, syn(&late), false), Answer::Ignore));
    assert_eq!(listener.stats().overflows, 2);
    accepted(give(&mut listener, start(), flow, ack_of(&flow, &answer), true));
}

#[test]
fn a_flood_of_syns_costs_no_memory_and_clients_still_get_in() {
    let mut listener = listener(ListenConfig { syn_queue: 100, ..ListenConfig::default() });
    for n in 1..10_000 {
        let flow = flow(n);
        reply(give(&mut listener, start(), flow, syn(&flow), true));
        assert!(listener.pending() <= 100 && listener.due.len() == listener.pending());
    }
    assert_eq!(listener.stats().cookies_sent, 9_899);
    let honest = flow(20_000);
    let answer = reply(give(&mut listener, start(), honest, syn(&honest), true));
    let later = start() + Duration::from_secs(3);
    let ack = ack_of(&honest, &answer);
    let guess = Header { ack: ack.ack + 1, ..ack };
    assert_eq!(reply(give(&mut listener, later, honest, guess, true)).flags, Flags::RST);
    assert!(matches!(give(&mut listener, later, honest, ack, false), Answer::Ignore));
    let mut connection = accepted(give(&mut listener, later, honest, ack, true));
    assert_eq!((listener.stats().cookies_accepted, listener.stats().cookies_refused), (1, 1));
    // Everything agreed in the SYN is in force: scaling, timestamps, SACK, the segment size.
    assert_eq!(connection.stats().mss, 1448);
    assert_eq!(connection.stats().peer_window, 5000 << 7);
    connection.send(&[1; 3000]).unwrap();
    let mut values = Vec::new();
    while connection.poll_transmit(later, |outgoing: &Outgoing<'_>| {
        values.push(outgoing.header.options.timestamps.unwrap().value);
        Ok(())
    }) == Transmit::Sent
    {}
    let cookie = answer.options.timestamps.unwrap().value;
    assert!(values.iter().all(|value| value.wrapping_sub(cookie) < 1 << 31), "timestamps never go back");
    let stale = later + Duration::from_secs(130);
    let late = flow(20_001);
    let answer = reply(give(&mut listener, start(), late, syn(&late), true));
    assert_eq!(reply(give(&mut listener, stale, late, ack_of(&late, &answer), true)).flags, Flags::RST);
}

#[test]
fn a_cookie_without_timestamps_agrees_to_nothing_but_a_size() {
    let mut listener = listener(ListenConfig { syn_queue: 0, ..ListenConfig::default() });
    let flow = flow(1);
    let mut syn = syn(&flow);
    syn.options.timestamps = None;
    let answer = reply(give(&mut listener, start(), flow, syn, true));
    let offered = (answer.options.window_scale, answer.options.sack_permitted, answer.options.timestamps);
    assert_eq!(offered, (None, false, None));
    let connection = accepted(give(&mut listener, start(), flow, ack_of(&flow, &answer), true));
    assert_eq!((connection.stats().mss, connection.stats().peer_window), (1460, 5000));
}

#[test]
fn without_cookies_a_full_queue_drops() {
    let mut listener = listener(ListenConfig { syn_queue: 1, cookies: false, ..ListenConfig::default() });
    let (first, second) = (flow(1), flow(2));
    reply(give(&mut listener, start(), first, syn(&first), true));
    assert!(matches!(give(&mut listener, start(), second, syn(&second), true), Answer::Ignore));
    assert_eq!(listener.stats().syns_dropped, 1);
    let stray = header(&second, Flags::ACK, Seq(1), Seq(2));
    assert_eq!(reply(give(&mut listener, start(), second, stray, true)).flags, Flags::RST);
    assert_eq!(listener.stats().cookies_refused, 0, "no cookie is looked for where none was given");
}

#[test]
fn a_client_that_names_no_segment_size_gets_the_least_its_protocol_promises() {
    // RFC 9293 section 3.7.1, with and without an entry in the queue.
    let six = Flow {
        local: core::net::Ipv6Addr::LOCALHOST.into(),
        remote: core::net::Ipv6Addr::LOCALHOST.into(),
        ..flow(9)
    };
    for (flow, size) in [(flow(9), 536), (six, 1220)] {
        for syn_queue in [0, 1] {
            let mut listener = listener(ListenConfig { syn_queue, ..ListenConfig::default() });
            let bare = header(&flow, Flags::SYN, Seq(7000), Seq(0));
            let answer = reply(give(&mut listener, start(), flow, bare, true));
            let connection = accepted(give(&mut listener, start(), flow, ack_of(&flow, &answer), true));
            assert_eq!(connection.stats().mss, size, "with a queue of {syn_queue}");
        }
    }
}

#[test]
fn a_handshake_challenges_what_may_be_forged() {
    // RFC 5961 sections 3.2 and 4.2, in SYN-RECEIVED.
    let (mut listener, flow) = (listener(ListenConfig::default()), flow(1));
    let first = reply(give(&mut listener, start(), flow, syn(&flow), true));
    let reset = |seq| header(&flow, Flags::RST, seq, Seq(0));
    let ahead = reply(give(&mut listener, start(), flow, reset(Seq(7002)), true));
    assert_eq!((ahead.flags, ahead.seq, ahead.ack), (Flags::ACK, first.seq + 1, Seq(7001)));
    for outside in [Seq(7000), Seq(7001) + (1 << 20)] {
        assert!(matches!(give(&mut listener, start(), flow, reset(outside), true), Answer::Ignore));
    }
    let other = Header { seq: Seq(9000), ..syn(&flow) };
    let challenge = reply(give(&mut listener, start(), flow, other, true));
    assert_eq!((challenge.flags, challenge.ack), (Flags::ACK, Seq(7001)));
    // RFC 9293 section 3.10.7.4, first step: what lies outside the window is answered with an ACK.
    let outside = Header { seq: Seq(7001) + (1 << 20), ..ack_of(&flow, &first) };
    assert_eq!(reply(give(&mut listener, start(), flow, outside, true)).flags, Flags::ACK);
    let challenges = (0..100)
        .filter(|_| matches!(give(&mut listener, start(), flow, reset(Seq(7002)), true), Answer::Reply(_)));
    assert_eq!(challenges.count(), 7, "ten in all");
    accepted(give(&mut listener, start(), flow, ack_of(&flow, &first), true));
}
