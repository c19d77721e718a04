//! Waiting and giving up: RFC 9293 sections 3.8.3 and 3.8.4, RFC 5482.

use super::pair::{Pair, pattern};
use crate::config::{Config, Keepalive};
use crate::connection::{Events, Purpose};
use crate::error::Error;
use crate::segment::Segment;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;

const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(2), probes: 3 };

#[test]
fn an_idle_connection_has_no_timer() {
    let mut pair = Pair::established();
    pair.transfer(0, &pattern(100_000));
    pair.transfer(1, &pattern(100_000));
    pair.wait(Duration::from_secs(10));
    assert_eq!((pair.ends[0].next_timeout(), pair.ends[1].next_timeout()), (None, None));
}

#[test]
fn probes_and_time_outs_are_counted() {
    let mut pair = Pair::established();
    pair.transfer(0, &pattern(100_000));
    let before = pair.ends[0].stats();
    assert_eq!((before.timeouts, before.tail_probes, before.spurious_repairs), (0, 0, 0));
    pair.script = Box::new(|_, _| false);
    pair.ends[0].send(&pattern(10_000)).unwrap();
    pair.wait(Duration::from_secs(1));
    let after = pair.ends[0].stats();
    assert_eq!(after.tail_probes, 1, "one probe, then the timer");
    assert!(after.timeouts > 1);
    assert_eq!(after.retransmissions, after.timeouts + after.tail_probes);
}

#[test]
fn keepalive_finds_a_peer_that_is_gone() {
    let mut pair = Pair::established();
    pair.ends[0].set_keepalive(Some(KEEPALIVE));
    pair.wait(Duration::from_secs(1000));
    assert!(pair.ends[0].error().is_none(), "a peer that answers is kept");
    assert!(pair.ends[0].stats().segments_received >= 90);
    let heard = pair.ends[0].heard_at;
    pair.script = Box::new(|side, _| side == 0);
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!(pair.ends[0].error(), Some(Error::TimedOut));
    assert_eq!((pair.now - heard).as_secs(), 10 + 3 * 2);
}

#[test]
fn a_peer_that_restarted_resets_when_probed() {
    let mut pair = Pair::established();
    pair.ends[0].set_keepalive(Some(KEEPALIVE));
    pair.script = Box::new(|_, _| false);
    pair.wait(Duration::from_secs(10));
    let mut probe = pair.forged(0);
    probe.seq = pair.ends[0].sender.una() + u32::MAX;
    let reset = crate::answer_closed(&crate::Segment { header: probe, payload: &[] }).unwrap();
    let _ = pair.answer(0, reset, b"");
    assert_eq!(pair.ends[0].error(), Some(Error::Reset));
}

#[test]
fn unacknowledged_data_ends_a_connection_after_the_user_timeout() {
    for limit in [Duration::from_secs(3), Duration::from_secs(100)] {
        let mut pair = Pair::established();
        pair.ends[0].set_user_timeout(Some(limit));
        pair.wait(Duration::from_secs(1000));
        pair.script = Box::new(|_, _| false);
        pair.ends[0].send(b"hello?").unwrap();
        let began = pair.now;
        pair.until(|pair| pair.ends[0].is_closed());
        assert_eq!(pair.ends[0].error(), Some(Error::TimedOut));
        assert_eq!(pair.now - began, limit);
        assert!(pair.events[0].contains(Events::ERROR | Events::CLOSED | Events::SUSPECT_PATH));
    }
}

#[test]
fn a_long_silence_is_survived() {
    let mut pair = Pair::established();
    pair.ends[0].send(&pattern(5000)).unwrap();
    pair.script = Box::new(|_, _| false);
    pair.wait(Duration::from_secs(120));
    pair.script = Box::new(|_, _| true);
    pair.until(|pair| pair.ends[1].readable_bytes() == 5000);
    assert_eq!(pair.read(1).0, pattern(5000));
}

#[test]
fn loss_of_every_third_segment_is_repaired() {
    let mut pair = Pair::open(&Config { send_buffer: 1 << 20, ..Config::default() }, &Config::default());
    let mut count = 0_u32;
    pair.script = Box::new(move |_, _| {
        count += 1;
        !count.is_multiple_of(3)
    });
    pair.transfer(0, &pattern(200_000));
    pair.transfer(1, &pattern(200_000));
    assert!(pair.ends[0].stats().retransmissions > 0);
}

/// Returns how many repairs 300 requests cost over a steady round trip. Every tenth is answered
/// late, and then its ACK is delayed by 40 ms; `patience` is the delay that the client expects.
fn needless_repairs(rtt: Duration, patience: Duration) -> u32 {
    let sender = crate::sender::Config { max_ack_delay: patience, ..crate::sender::Config::default() };
    let client = Config { sender, ..Config::default() };
    let server = Config { delayed_ack: Duration::ZERO, ..Config::default() };
    let mut pair = Pair::open(&client, &server);
    let late = Rc::new(Cell::new(false));
    let delays = Rc::clone(&late);
    pair.script = Box::new(move |side, flying| {
        let bare = Segment::parse(&flying.bytes).unwrap().payload.is_empty();
        if side == 1 && bare && delays.get() {
            flying.at = flying.at + Duration::from_millis(40);
        }
        true
    });
    let mut before = 0;
    for request in 0..320 {
        if request == 20 {
            // The handshake took another path.
            before = pair.ends[0].stats().retransmissions;
        }
        pair.delay = rtt / 2 + Duration::from_micros(request % 3 * 50);
        late.set(request % 10 == 9);
        pair.ends[0].send(b"request").unwrap();
        pair.until(|pair| pair.ends[1].readable_bytes() > 0);
        let _ = pair.read(1);
        if late.get() {
            pair.wait(Duration::from_millis(45));
        }
        pair.transfer(1, b"reply");
        pair.wait(rtt);
    }
    pair.ends[0].stats().retransmissions - before
}

#[test]
fn requests_to_a_peer_that_delays_its_acks_are_not_sent_again() {
    // The 40 ms are Linux's. A steady round trip leaves the time-out nothing but this allowance.
    for rtt_us in [200, 1_000, 10_000, 100_000] {
        let rtt = Duration::from_micros(rtt_us);
        let patience = crate::sender::Config::default().max_ack_delay;
        assert_eq!(needless_repairs(rtt, patience), 0, "{rtt:?}");
        assert!(needless_repairs(rtt, Duration::from_millis(4)) > 10, "{rtt:?}: without the allowance");
    }
}

#[test]
fn without_sack_the_loss_of_the_first_segment_costs_no_timeout() {
    let bare = Config { sack: false, ..Config::default() };
    let mut pair = Pair::open(&bare, &bare);
    pair.delay = Duration::from_millis(10);
    for _ in 0..50 {
        pair.transfer(0, b"to measure the path");
        pair.wait(Duration::from_millis(100));
    }
    let mut lost = 0;
    pair.script = Box::new(move |side, flying| {
        let data = side == 0 && !Segment::parse(&flying.bytes).unwrap().payload.is_empty();
        lost += u32::from(data);
        !data || lost != 1
    });
    let began = pair.now;
    pair.ends[0].send(&pattern(8 * 1448)).unwrap();
    pair.until(|pair| pair.ends[1].readable_bytes() == 8 * 1448);
    assert_eq!(pair.now - began, 3 * pair.delay, "there, three duplicates back, and the repair");
    let stats = pair.ends[0].stats();
    assert_eq!((stats.retransmissions, stats.timeouts), (1, 0));
    assert_eq!(pair.read(1).0, pattern(8 * 1448));
}

#[test]
fn timers_that_are_not_due_do_nothing() {
    let mut pair = Pair::established();
    pair.ends[0].send(&pattern(5000)).unwrap();
    pair.pump();
    let (before, at) = (pair.ends[0].stats(), pair.ends[0].next_timeout().unwrap());
    assert!(at > pair.now);
    assert_eq!(pair.ends[0].handle_timeout(pair.now), Events::empty());
    assert_eq!((pair.ends[0].stats(), pair.ends[0].next_timeout()), (before, Some(at)));
}

#[test]
fn a_probe_can_be_asked_for() {
    let mut pair = Pair::established();
    assert!(pair.ends[0].probe(pair.now).contains(Events::TRANSMIT));
    let flying = super::pair::next_of(&mut pair.ends[0], pair.now).unwrap();
    assert_eq!(flying.purpose, Purpose::Probe);
    pair.deliver(1, &flying);
    assert!(pair.ends[1].wants_transmit(pair.now), "the peer must answer");
}
