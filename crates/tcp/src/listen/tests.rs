//! Listening: RFC 9293 section 3.10.7.2, RFC 4987.

use super::*;
use crate::connection::Outgoing;
use crate::connection::Transmit;
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
        ..Options::default()
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

/// Returns a listener with Fast Open and `places`.
fn fast(places: usize) -> Listener {
    listener(ListenConfig { fast_open: places, ..ListenConfig::default() })
}

/// Returns a SYN of `flow` with the option.
fn fast_syn(flow: &Flow, option: FastOpen) -> Header {
    let mut syn = syn(flow);
    syn.options.fast_open = option;
    syn
}

/// Returns a cookie for `flow`, which then ends its handshake.
fn cookie_of(listener: &mut Listener, flow: Flow, now: Instant) -> FastOpen {
    let answer = reply(give(listener, now, flow, fast_syn(&flow, FastOpen::Request), true));
    let _ = give(listener, now, flow, header(&flow, Flags::RST, Seq(7001), Seq(0)), true);
    assert!(matches!(answer.options.fast_open, FastOpen::Cookie(_)));
    answer.options.fast_open
}

fn give_data(listener: &mut Listener, now: Instant, flow: Flow, header: Header, payload: &[u8]) -> Answer {
    let segment = Segment { header, payload };
    let arrival = Arrival { flow, segment, ecn: EcnCodepoint::NotEct, path_mss: 1460, room: true, iss: None };
    listener.handle_segment(now, &arrival)
}

/// Returns the connection that a SYN with a cookie has opened.
fn opened(answer: Answer) -> Box<Connection> {
    match answer {
        Answer::Accept(connection, events) => {
            assert!(events.contains(Events::TRANSMIT) && !events.contains(Events::ESTABLISHED));
            connection
        }
        other => panic!("{other:?} is no connection"),
    }
}

fn next_header(connection: &mut Connection, now: Instant) -> Option<(Header, usize)> {
    let mut header = None;
    let _ = connection.poll_transmit(now, |outgoing| {
        header = Some((outgoing.header, outgoing.payload.len()));
        Ok(())
    });
    header
}

#[test]
fn a_cookie_is_bound_to_the_client_and_to_two_periods() {
    let (mut listener, flow, other) = (fast(5), flow(1), flow(1 << 16));
    let cookie = cookie_of(&mut listener, flow, start());
    assert_ne!(flow.remote, other.remote);
    assert_ne!(cookie, cookie_of(&mut listener, other, start()));
    for (later, opens, renewed) in [(0, true, false), (1, true, true), (2, false, true)] {
        let now = start() + fast_open::PERIOD * later;
        // Another port of the client.
        let flow = Flow { remote_port: 1000 + later as u16, ..flow };
        let answer = give_data(&mut listener, now, flow, fast_syn(&flow, cookie), b"early");
        let syn_ack = match answer {
            Answer::Accept(mut connection, _) if opens => {
                assert_eq!(connection.readable_bytes(), 5);
                next_header(&mut connection, now).expect("a SYN-ACK").0
            }
            Answer::Reply(header) if !opens => header,
            other => panic!("{later} periods later: {other:?}"),
        };
        assert_eq!(syn_ack.ack, Seq(7001) + if opens { 5 } else { 0 });
        assert_eq!(syn_ack.options.fast_open != FastOpen::None, renewed, "{later} periods later");
        assert_ne!(syn_ack.options.fast_open, cookie);
    }
    assert_eq!((listener.stats().fast_opens, listener.stats().fast_open_refused), (2, 1));
}

#[test]
fn a_stolen_cookie_opens_no_more_connections_than_there_are_places() {
    let mut listener = fast(3);
    let client = |n: u16| Flow { remote_port: 1000 + n, ..flow(1) };
    let cookie = cookie_of(&mut listener, client(0), start());
    let open = |listener: &mut Listener, n, now| {
        let syn = fast_syn(&client(n), cookie);
        give_data(listener, now, client(n), syn, b"request")
    };
    let mut connections: Vec<_> = (0..3).map(|n| opened(open(&mut listener, n, start()))).collect();
    // A reset by the victim, which never opened a connection, frees no place.
    let answer = next_header(&mut connections[0], start()).expect("a SYN-ACK").0;
    let reset = Segment { header: header(&client(0), Flags::RST, answer.ack, Seq(0)), payload: &[] };
    let _ = connections[0].handle_segment(start(), &reset, EcnCodepoint::NotEct);
    assert_eq!(connections[0].error(), Some(crate::Error::Reset));
    let refused = reply(open(&mut listener, 3, start()));
    assert_eq!((refused.ack, refused.options.fast_open), (Seq(7001), FastOpen::None), "as without");
    assert_eq!(listener.stats().fast_open_overflows, 1);
    // The end of a handshake frees its place; the others are free when their time has passed.
    listener.complete_fast_open(&client(1));
    let _ = opened(open(&mut listener, 4, start()));
    assert!(matches!(open(&mut listener, 5, start() + Duration::from_secs(62)), Answer::Reply(_)));
    let hold = fast_open::hold(&Config::default().sender, ListenConfig::default().syn_ack_retries);
    let _ = opened(open(&mut listener, 6, start() + hold));
}

#[test]
fn a_place_is_taken_for_as_long_as_its_connection_may_wait_for_the_client() {
    let client = |n: u16| Flow { remote_port: 1000 + n, ..flow(1) };
    // The application writes nothing, once, or whenever a timer expires.
    for (syn_ack_retries, writes) in [0, 1, 5, 10].map(|n| [(n, 0), (n, 1), (n, 1000)]).concat() {
        let connection = Config { user_timeout: Duration::from_hours(24), ..Config::default() };
        let config = ListenConfig { connection, syn_ack_retries, fast_open: 1, ..ListenConfig::default() };
        let mut listener = listener(config);
        let cookie = cookie_of(&mut listener, client(0), start());
        let open = |listener: &mut Listener, n, now| {
            give_data(listener, now, client(n), fast_syn(&client(n), cookie), b"request")
        };
        let mut connection = opened(open(&mut listener, 0, start()));
        let (mut now, mut wakes) = (start(), 0);
        loop {
            if wakes < writes {
                assert_eq!(connection.send(&[7; 10]), Ok(10));
            }
            wakes += 1;
            while next_header(&mut connection, now).is_some() {}
            let Some(next) = connection.next_timeout() else { break };
            now = next;
            let _ = connection.handle_timeout(now);
            if connection.is_closed() {
                break;
            }
        }
        assert_eq!(connection.error(), Some(crate::Error::TimedOut));
        let what = alloc::format!("{syn_ack_retries} retries, {writes} writes, {:?}", now - start());
        let before = open(&mut listener, 1, Instant(now.0 - 1));
        assert!(matches!(before, Answer::Reply(_)), "{what}");
        let hold = fast_open::hold(&Config::default().sender, syn_ack_retries);
        assert!((now - start()..=2 * (now - start())).contains(&hold), "{what}, but {hold:?}");
    }
}

#[test]
fn a_place_is_taken_for_a_bounded_time_whatever_the_time_outs_are() {
    for time_out in [Duration::MAX, Duration::from_secs(u64::MAX / 2), Duration::from_hours(24)] {
        let sender = crate::sender::Config {
            initial_rto: time_out,
            min_rto: time_out,
            max_rto: time_out,
            ..Default::default()
        };
        let connection = Config { sender, ..Config::default() };
        let config =
            ListenConfig { connection, syn_ack_retries: 255, fast_open: 1, ..ListenConfig::default() };
        let (mut listener, flow) = (listener(config), flow(1));
        let cookie = cookie_of(&mut listener, flow, start());
        let connection = opened(give_data(&mut listener, start(), flow, fast_syn(&flow, cookie), b"x"));
        drop(connection);
        let (other, later) = (Flow { remote_port: 1001, ..flow }, start() + Duration::from_hours(30));
        let cookie = cookie_of(&mut listener, other, later);
        let _ = opened(give_data(&mut listener, later, other, fast_syn(&other, cookie), b"x"));
    }
}

#[test]
fn a_client_that_never_answers_is_given_up_after_the_answers_of_a_listener() {
    let (mut listener, flow) = (fast(5), flow(1));
    let cookie = cookie_of(&mut listener, flow, start());
    let mut connection = opened(give_data(&mut listener, start(), flow, fast_syn(&flow, cookie), b"x"));
    assert_eq!(connection.send(&[7; 100]), Ok(100));
    let (mut syn_acks, mut data, mut now) = (0, 0, start());
    loop {
        while let Some((header, len)) = next_header(&mut connection, now) {
            syn_acks += usize::from(header.flags.contains(Flags::SYN));
            data += len;
        }
        connection.check();
        let Some(next) = connection.next_timeout() else { break };
        now = next;
        let _ = connection.handle_timeout(now);
    }
    assert_eq!(connection.error(), Some(crate::Error::TimedOut));
    assert!((6..=8).contains(&syn_acks) && data >= 100, "{syn_acks} SYN-ACKs, {data} bytes");
    assert!((now - start()).as_secs() <= 127, "{:?}", now - start());
}

#[test]
fn a_full_queue_answers_cookies_of_fast_open_with_those_of_syns() {
    let mut listener = listener(ListenConfig { fast_open: 5, syn_queue: 0, ..ListenConfig::default() });
    let flow = flow(1);
    // Listeners of a host have one secret.
    let valid = cookie_of(&mut fast(5), flow, start());
    for option in [FastOpen::Request, valid] {
        let answer = reply(give_data(&mut listener, start(), flow, fast_syn(&flow, option), b"request"));
        assert_eq!((answer.options.fast_open, answer.ack), (FastOpen::None, Seq(7001)));
        assert_eq!(listener.pending(), 0);
    }
    assert_eq!((listener.stats().cookies_sent, listener.stats().fast_opens), (2, 0));
}
