//! TCP Fast Open between stacks, in virtual time: the cookies that a client keeps, and the places
//! of a listener.

use super::hub::Hub;
use super::*;
use crate::tcp::cookies::Offer;
use crate::tcp::{Listening, Refusal};
use tailwater_tcp::listen::ListenConfig;
use tailwater_tcp::{Config, Events, State};

const SERVER: u16 = 80;
const STEP: Duration = Duration::from_millis(5);

fn config() -> Config {
    Config { fast_open: true, ..Config::default() }
}

/// Two hosts that know each other, of which the second listens with `places`.
fn hub(seed: u64, places: usize) -> (Hub, Arc<Listening<Threads>>) {
    let mut hub = Hub::new(2, seed, 0, 0);
    hub.hosts = (1..=2).map(|n| Stack::new(config6(n), seed ^ u64::from(n)).unwrap()).collect();
    hub.run(T0 + Duration::from_secs(5));
    let config = ListenConfig { fast_open: places, ..ListenConfig::default() };
    let listening = hub.with(2, |stack, _| stack.listen_tcp(everywhere(SERVER), 100, config)).unwrap();
    (hub, listening)
}

fn connect(hub: &mut Hub, data: &[u8]) -> Arc<Socket> {
    let begun = hub.with(1, |stack, catch| stack.connect_tcp_with(catch, at(2, SERVER), &config(), data));
    let (socket, taken) = begun.unwrap();
    assert_eq!(taken, data.len());
    socket
}

fn accept(listening: &Listening<Threads>) -> Option<Arc<Socket>> {
    listening.lock().accept()
}

fn read(socket: &Arc<Socket>) -> Result<Vec<u8>, Refusal> {
    let mut buf = [0; 100];
    socket.lock().receive(&mut buf, false).map(|len| buf[..len].to_vec())
}

fn syn_data(socket: &Arc<Socket>, hub: &Hub) -> bool {
    let inner = socket.lock();
    inner.connection.info(20, tailwater_tcp::Instant(hub.now.as_nanos() as u64)).syn_data
}

#[test]
fn the_first_connection_brings_the_cookie_and_the_next_carry_data_on_the_syn() {
    let (mut hub, listening) = hub(70, 5);
    for again in [false, true, true] {
        let client = connect(&mut hub, b"request");
        hub.run(hub.now + STEP);
        let server = accept(&listening).expect("a connection");
        assert_eq!(read(&server).unwrap(), b"request");
        hub.with(2, |stack, catch| {
            let now = Stack::tcp_now(catch);
            let inner = &mut *server.lock();
            inner.send(b"reply").unwrap();
            stack.settle(catch, &server, inner, Events::empty(), now);
        });
        hub.run(hub.now + STEP);
        assert_eq!(read(&client).unwrap(), b"reply");
        for end in [&client, &server] {
            assert_eq!(end.lock().connection.state(), State::Established);
            assert_eq!(syn_data(end, &hub), again);
        }
    }
    let stats = hub.hosts[1].tcp.listeners.stats();
    assert_eq!((stats.accepted, stats.fast_opens, stats.fast_open_refused), (3, 2, 0));
}

#[test]
fn a_completed_handshake_gives_its_place_back() {
    let (mut hub, listening) = hub(71, 1);
    for _ in 0..10 {
        let _client = connect(&mut hub, b"request");
        hub.run(hub.now + STEP);
        let server = accept(&listening).expect("a connection");
        assert_eq!(read(&server).unwrap(), b"request");
    }
    let stats = hub.hosts[1].tcp.listeners.stats();
    assert_eq!((stats.fast_opens, stats.fast_open_overflows), (9, 0));
}

#[test]
fn a_cookie_that_has_expired_costs_a_round_trip_and_is_replaced() {
    let (mut hub, listening) = hub(72, 5);
    let _first = connect(&mut hub, b"request");
    hub.run(hub.now + STEP);
    // Beyond two periods the cookie is not valid any more; the answer hands out a new one.
    hub.run(hub.now + Duration::from_hours(30));
    for again in [false, true] {
        let client = connect(&mut hub, b"request");
        hub.run(hub.now + Duration::from_secs(5));
        while let Some(server) = accept(&listening) {
            assert_eq!(read(&server).unwrap(), b"request");
        }
        assert_eq!(syn_data(&client, &hub), again);
    }
    assert_eq!(hub.hosts[1].tcp.listeners.stats().fast_open_refused, 1);
}

/// Returns what the next SYN to the server may do.
fn offer(hub: &Hub) -> Offer {
    let now = tailwater_tcp::Instant(hub.now.as_nanos() as u64);
    hub.hosts[0].tcp.cookies.offer(at(2, SERVER).ip(), now)
}

#[test]
fn a_path_that_fails_syns_with_data_gets_plain_ones_for_a_while() {
    // The SYN is refused, or nothing answers it.
    for silent in [false, true] {
        let (mut hub, listening) = hub(73, 5);
        let _first = connect(&mut hub, b"request");
        hub.run(hub.now + STEP);
        assert!(matches!(offer(&hub), Offer::Show(_)));
        if silent {
            hub.loss_percent = 100;
        } else {
            hub.with(2, |stack, catch| stack.close_listening(catch, &listening));
        }
        let client = connect(&mut hub, b"request");
        let closed = |client: &Arc<Socket>| client.lock().connection.is_closed();
        let seconds =
            (0..600).take_while(|_| !closed(&client)).map(|_| hub.run(hub.now + Duration::from_secs(1)));
        assert!(seconds.count() < 600, "it never gives up");
        assert!(read(&client).is_err_and(|refusal| refusal != Refusal::WouldBlock));
        assert_eq!(offer(&hub), Offer::Nothing);
        hub.run(hub.now + Duration::from_mins(1));
        assert!(matches!(offer(&hub), Offer::Show(_)), "once more");
    }
}

#[test]
fn the_pause_does_not_grow_while_plain_syns_fail_too() {
    let (mut hub, listening) = hub(75, 5);
    let _first = connect(&mut hub, b"request");
    hub.run(hub.now + STEP);
    hub.with(2, |stack, catch| stack.close_listening(catch, &listening));
    for round in 0..4 {
        assert!(matches!(offer(&hub), Offer::Show(_)), "after {round} outages");
        for _ in 0..2 {
            let client = connect(&mut hub, b"request");
            hub.run(hub.now + STEP);
            assert!(client.lock().connection.is_closed(), "refused");
            assert_eq!(offer(&hub), Offer::Nothing);
        }
        hub.run(hub.now + Duration::from_mins(1));
    }
}

#[test]
fn an_attempt_that_the_program_gives_up_at_once_shows_nothing() {
    let (mut hub, _listening) = hub(74, 5);
    let _first = connect(&mut hub, b"request");
    hub.run(hub.now + STEP);
    let client = connect(&mut hub, b"request");
    hub.with(1, |stack, catch| stack.abort_tcp(catch, &client));
    assert!(matches!(offer(&hub), Offer::Show(_)));
}
