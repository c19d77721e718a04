//! Fast Open in the models: pairs that a SYN with data and a valid cookie opens, and that cookie.

use super::byte;
use crate::config::{Config, Opening};
use crate::connection::{Connection, FastOpenPeer, Transmit};
use crate::ecn::EcnCodepoint;
use crate::isn::{Flow, Secret};
use crate::listen::{Answer, Arrival, ListenConfig, Listener};
use crate::segment::{Cookie, FastOpen, Segment};
use crate::time::Instant;
use alloc::vec;
use alloc::vec::Vec;

/// Bytes on the SYN.
pub(super) const EARLY: usize = 100;

/// The listeners' secret, on which their cookies depend.
pub(super) const SECRET: Secret = Secret([1; 16]);

/// Returns the listener's view of a connection between the models' two hosts.
pub(super) fn flow(local_port: u16, remote_port: u16) -> Flow {
    Flow { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, 2].into(), local_port, remote_port }
}

/// Returns the cookie that a listener hands out to the client of `opening`.
fn cookie_at(listener: &mut Listener, config: &Config, opening: &Opening, now: Instant) -> Cookie {
    let asks = Opening { local_port: opening.local_port + 1, ..*opening };
    let (_, answer) = arrive(listener, config, &asks, None, now);
    let Answer::Reply(syn_ack) = answer else { panic!("no SYN-ACK") };
    let FastOpen::Cookie(cookie) = syn_ack.options.fast_open else { panic!("no cookie") };
    cookie
}

/// Returns the option with which a client of the listeners in [`segment`](super::segment) opens a
/// connection.
#[must_use]
pub fn fast_open_cookie() -> FastOpen {
    let opening = super::opening(1, 2, 0);
    let (config, now) = (Config::default(), Instant(1_000_000_000));
    FastOpen::Cookie(cookie_at(&mut listener(&config), &config, &opening, now))
}

fn listener(config: &Config) -> Listener {
    let config = ListenConfig { connection: config.clone(), fast_open: 1, ..ListenConfig::default() };
    Listener::new(config, SECRET)
}

/// Returns a client whose SYN is on the way, and the connection that the SYN has made of a
/// listener. The client's stream begins with [`EARLY`] bytes, which the server has.
pub(super) fn by_cookie(config: &Config, opening: &Opening, now: Instant) -> [Connection; 2] {
    let mut listener = listener(config);
    let cookie = cookie_at(&mut listener, config, opening, now);
    let peer = FastOpenPeer { cookie, mss: opening.path_mss };
    match arrive(&mut listener, config, opening, Some(peer), now) {
        (client, Answer::Accept(server, _)) => [client, *server],
        (_, answer) => panic!("{answer:?} to a valid cookie"),
    }
}

/// Returns a client that has sent its SYN, and the listener's answer.
fn arrive(
    listener: &mut Listener,
    config: &Config,
    opening: &Opening,
    peer: Option<FastOpenPeer>,
    now: Instant,
) -> (Connection, Answer) {
    let mut client = Connection::connect(config, opening, now);
    client.offer_fast_open(peer);
    let data: Vec<u8> = (0..EARLY as u64).map(|i| byte(0, i)).collect();
    assert_eq!(client.send(&data), Ok(EARLY));
    let mut bytes = Vec::new();
    let transmit = client.poll_transmit(now, |outgoing| {
        bytes = vec![0; outgoing.len()];
        outgoing.emit(&mut bytes);
        Ok(())
    });
    assert_eq!(transmit, Transmit::Sent);
    let flow = flow(opening.remote_port, opening.local_port);
    let segment = Segment::parse(&bytes).expect("what is sent parses");
    let (ecn, path_mss) = (EcnCodepoint::NotEct, opening.path_mss);
    let arrival = Arrival { flow, segment, ecn, path_mss, room: true, iss: None };
    let answer = listener.handle_segment(now, &arrival);
    (client, answer)
}
