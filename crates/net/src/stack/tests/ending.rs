//! The end of a program: what becomes of its connections.

use super::hub::Hub;
use super::tcp::{SERVER, acquainted_hub, close, pair, read, write};
use super::*;
use crate::tcp::{Failure, Refusal};
use crate::{Ending, Owed};
use tailwater_tcp::{Config, Error, State};

const RESET: Result<Vec<u8>, Refusal> = Err(Refusal::Failed(Failure::Protocol(Error::Reset)));

fn poll(hub: &mut Hub, ending: &mut Ending<Threads>, last: bool) -> Owed {
    hub.with(2, |stack, catch| stack.poll_ending(catch, ending, last))
}

/// Polls until nothing is owed; the peer reads nothing meanwhile.
fn finish(hub: &mut Hub, ending: &mut Ending<Threads>) {
    for _ in 0..100 {
        if poll(hub, ending, false).is_nothing() {
            return hub.run(hub.now + Duration::from_millis(10));
        }
        hub.run(hub.now + Duration::from_millis(10));
    }
    panic!("{:?} after a second", poll(hub, ending, false));
}

#[test]
fn a_closed_connection_is_waited_for_and_an_open_one_is_reset_at_once() {
    let mut hub = acquainted_hub(11);
    let [client, server] = pair(&mut hub, at(2, SERVER), &Config::default());
    let [idle, _open] = pair(&mut hub, at(2, SERVER + 1), &Config::default());
    assert_eq!(write(&mut hub, 2, &server, &[7; 20_000]), Ok(20_000));
    close(&mut hub, 2, &server);
    let mut ending = hub.hosts[1].begin_ending();
    let owed = poll(&mut hub, &mut ending, false);
    assert_eq!((owed.connections, owed.is_nothing()), (1, false), "the open one is done with");
    finish(&mut hub, &mut ending);
    assert_eq!(server.lock().connection.state(), State::FinWait2);
    assert_eq!(read(&mut hub, 1, &client).map(|data| data.len()), Ok(20_000));
    assert_eq!(read(&mut hub, 1, &client), Ok(Vec::new()), "the end of the stream");
    assert_eq!(read(&mut hub, 1, &idle), RESET);
}

#[test]
fn what_was_written_to_an_open_connection_is_delivered_before_its_reset() {
    let mut hub = acquainted_hub(12);
    let [client, server] = pair(&mut hub, at(2, SERVER), &Config::default());
    assert_eq!(write(&mut hub, 2, &server, &[7; 20_000]), Ok(20_000));
    let mut ending = hub.hosts[1].begin_ending();
    assert_eq!(poll(&mut hub, &mut ending, false).connections, 1);
    // A thread that goes on writing does not put the end off.
    assert!(write(&mut hub, 2, &server, &[8; 1000]).is_ok());
    finish(&mut hub, &mut ending);
    let data = read(&mut hub, 1, &client).unwrap();
    assert!(data.len() >= 20_000 && data[..20_000].iter().all(|&byte| byte == 7), "{}", data.len());
    assert_eq!(read(&mut hub, 1, &client), RESET);
}

#[test]
fn whatever_is_still_owed_at_last_is_reset() {
    let mut hub = acquainted_hub(13);
    let [client, server] = pair(&mut hub, at(2, SERVER), &Config::default());
    // The peer gets nothing of it.
    hub.loss_percent = 100;
    assert_eq!(write(&mut hub, 2, &server, &[7; 20_000]), Ok(20_000));
    close(&mut hub, 2, &server);
    let mut ending = hub.hosts[1].begin_ending();
    let first = poll(&mut hub, &mut ending, false);
    // Too short for the neighbour to be doubted.
    hub.run(hub.now + Duration::from_millis(1));
    assert_eq!(poll(&mut hub, &mut ending, false), first, "no progress");
    hub.loss_percent = 0;
    assert!(poll(&mut hub, &mut ending, true).is_nothing());
    hub.run(hub.now + Duration::from_millis(10));
    assert_eq!(read(&mut hub, 1, &client), RESET);
}

#[test]
fn the_fin_of_a_peer_that_is_gone_is_given_up_after_some_attempts() {
    let mut hub = acquainted_hub(14);
    let [client, server] = pair(&mut hub, at(2, SERVER), &Config::default());
    close(&mut hub, 1, &client);
    hub.run(hub.now + Duration::from_secs(1));
    hub.loss_percent = 100;
    close(&mut hub, 2, &server);
    assert_eq!(server.lock().connection.state(), State::LastAck);
    let mut ending = hub.hosts[1].begin_ending();
    assert_eq!(poll(&mut hub, &mut ending, false).connections, 1);
    hub.run(hub.now + Duration::from_secs(20));
    assert!(poll(&mut hub, &mut ending, false).is_nothing());
}

#[test]
fn a_handshake_after_the_end_has_begun_is_refused() {
    let mut hub = acquainted_hub(15);
    let listening = hub.with(2, |stack, _| {
        stack.listen_tcp(everywhere(SERVER), 8, tailwater_tcp::listen::ListenConfig::default())
    });
    let listening = listening.unwrap();
    let mut ending = hub.hosts[1].begin_ending();
    let client = hub.with(1, |stack, catch| stack.connect_tcp(catch, at(2, SERVER), &Config::default()));
    hub.run(hub.now + Duration::from_secs(1));
    let refused = client.unwrap().lock().take_failure();
    assert_eq!(refused, Some(Failure::Protocol(Error::Refused)));
    assert!(listening.lock().accept().is_none() && poll(&mut hub, &mut ending, false).is_nothing());
}

#[test]
fn a_datagram_that_waits_for_a_neighbour_is_owed_until_that_answers() {
    let mut hub = Hub::new(2, 16, 0, 0);
    hub.run(T0 + Duration::from_secs(5));
    hub.with(2, |stack, catch| {
        let endpoint = stack.bind_udp(everywhere(9)).unwrap();
        stack.send_udp(catch, endpoint, everywhere(9), at(1, 9), b"last words").unwrap();
    });
    let mut ending = hub.hosts[1].begin_ending();
    assert!(poll(&mut hub, &mut ending, false).unresolved);
    hub.run(hub.now + Duration::from_secs(1));
    assert!(poll(&mut hub, &mut ending, false).is_nothing());
}
