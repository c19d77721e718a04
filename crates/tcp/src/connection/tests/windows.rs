//! Windows: RFC 9293 section 3.8.6, RFC 7323 section 2.

use super::pair::{Pair, pattern};
use crate::config::Config;
use crate::connection::Purpose;
use crate::error::{Error, SendError};
use crate::segment::Segment;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;

fn small_receiver(bytes: u32) -> Pair {
    Pair::open(&Config::default(), &Config { receive_buffer: bytes, ..Config::default() })
}

#[test]
fn a_reader_that_sleeps_stops_the_sender_and_wakes_it() {
    let mut pair = small_receiver(4096);
    let data = pattern(100_000);
    assert_eq!(pair.ends[0].send(&data), Ok(100_000));
    pair.wait(Duration::from_secs(1000));
    assert_eq!(pair.ends[1].readable_bytes(), 4096);
    assert!(pair.ends[0].error().is_none(), "it is alive as long as it answers");
    let mut got = Vec::new();
    pair.until(|pair| {
        got.extend(pair.read(1).0);
        pair.pump();
        got.len() == data.len()
    });
    assert_eq!(got, data);
}

#[test]
fn a_ceiling_bounds_the_window_until_it_is_lifted() {
    let mut pair = Pair::open(&Config::default(), &Config::default());
    let data = pattern(8 << 20);
    let (mut sent, mut largest) = (0, [0; 2]);
    for (lifted, largest) in largest.iter_mut().enumerate() {
        let ceiling = if lifted == 0 { 100_000 } else { u32::MAX };
        pair.ends[1].set_window_ceiling(ceiling);
        let end = (lifted + 1) * data.len() / 2;
        let mut read = sent;
        pair.until(|pair| {
            sent += pair.ends[0].send(&data[sent..end]).unwrap_or(0);
            pair.pump();
            let (got, _) = pair.read(1);
            assert!(got == data[read..read + got.len()]);
            read += got.len();
            pair.pump();
            *largest = pair.ends[0].stats().peer_window.max(*largest);
            read == end
        });
    }
    // The first window is offered before the ceiling is set, and is below it.
    assert!((64 << 10..=100_000).contains(&largest[0]), "{largest:?}");
    assert!(largest[1] > 900 << 10, "{largest:?}");
    assert_eq!(pair.ends[0].stats().retransmissions, 0);
}

#[test]
fn a_window_update_that_was_lost_is_asked_for() {
    let mut pair = small_receiver(4096);
    pair.ends[0].send(&pattern(10_000)).unwrap();
    pair.wait(Duration::from_millis(100));
    assert_eq!(pair.ends[1].readable_bytes(), 4096);
    pair.script = Box::new(|side, _| side == 0);
    let (first, _) = pair.read(1);
    pair.pump();
    pair.script = Box::new(|_, _| true);
    let mut got = first;
    pair.until(|pair| {
        got.extend(pair.read(1).0);
        pair.pump();
        got.len() == 10_000
    });
    assert_eq!(got, pattern(10_000));
}

#[test]
fn probes_of_a_closed_window_are_further_and_further_apart() {
    let mut pair = small_receiver(1024);
    let probes = Rc::new(RefCell::new(Vec::new()));
    let seen = probes.clone();
    pair.script = Box::new(move |_, flying| {
        if flying.purpose == Purpose::Probe {
            assert!(Segment::parse(&flying.bytes).unwrap().payload.is_empty());
            seen.borrow_mut().push(flying.at);
        }
        true
    });
    pair.ends[0].send(&pattern(10_000)).unwrap();
    pair.wait(Duration::from_secs(600));
    let probes = probes.borrow();
    let gaps: Vec<_> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() > 5 && gaps.is_sorted(), "{gaps:?}");
    assert!(*gaps.last().unwrap() <= Duration::from_secs(60), "{gaps:?}");
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    let mut pair = small_receiver(1024);
    pair.ends[0].send(&pattern(10_000)).unwrap();
    pair.wait(Duration::from_secs(1));
    pair.script = Box::new(|side, _| side == 0);
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!(pair.ends[0].error(), Some(Error::TimedOut));
}

#[test]
fn a_released_connection_does_not_feed_a_closed_window_for_ever() {
    let mut pair = small_receiver(1024);
    pair.ends[0].send(&pattern(10_000)).unwrap();
    pair.wait(Duration::from_secs(1));
    let _ = pair.ends[0].release(pair.now);
    let began = pair.now;
    pair.until(|pair| pair.ends[0].is_closed());
    assert!(pair.now - began < Duration::from_secs(600));
}

#[test]
fn a_reader_of_single_bytes_is_not_sent_single_bytes() {
    let mut pair = small_receiver(8192);
    let sizes = Rc::new(RefCell::new(Vec::new()));
    let seen = sizes.clone();
    pair.script = Box::new(move |side, flying| {
        let len = Segment::parse(&flying.bytes).unwrap().payload.len();
        if side == 0 && len > 0 {
            seen.borrow_mut().push(len);
        }
        true
    });
    let data = pattern(30_000);
    pair.ends[0].send(&data).unwrap();
    let (mut got, mut byte) = (Vec::new(), [0]);
    while got.len() < data.len() {
        if pair.ends[1].recv(&mut byte).is_ok() {
            got.push(byte[0]);
            pair.pump();
        } else {
            assert!(pair.step(), "nothing happens any more after {} bytes", got.len());
        }
    }
    assert_eq!(got, data);
    let small = sizes.borrow().iter().filter(|&&len| len < 1000).count();
    assert!(small <= sizes.borrow().len() / 4 + 2, "silly windows: {:?}", sizes.borrow());
}

#[test]
fn a_writer_and_a_reader_of_single_bytes_do_not_make_segments_of_single_bytes() {
    // The silly window syndrome on both sides (RFC 9293 section 3.8.6.2), with Nagle's algorithm
    // on.
    const LEN: usize = 20_000;
    let mut pair = small_receiver(2048);
    let counts = Rc::new(RefCell::new([0; 2]));
    let seen = counts.clone();
    pair.script = Box::new(move |side, flying| {
        let empty = Segment::parse(&flying.bytes).unwrap().payload.is_empty();
        if (side == 0) != empty {
            seen.borrow_mut()[side] += 1;
        }
        true
    });
    let data = pattern(LEN);
    let (mut sent, mut got, mut byte) = (0, Vec::new(), [0]);
    for _ in 0..10_000 {
        // Fifty writes and reads in a round trip.
        for _ in 0..50 {
            sent += data.get(sent..=sent).map_or(0, |next| pair.ends[0].send(next).unwrap_or(0));
            pair.pump();
            got.extend(pair.ends[1].recv(&mut byte).is_ok().then_some(byte[0]));
            pair.pump();
        }
        if got.len() == LEN {
            break;
        }
        pair.wait(Duration::from_micros(100));
    }
    assert_eq!(got, data);
    let [segments, acks] = *counts.borrow();
    assert!(
        segments <= LEN / 25 && acks <= segments + 20,
        "{segments} segments, {acks} ACKs for {LEN} bytes"
    );
}

#[test]
fn an_advertised_window_is_never_taken_back() {
    let mut pair = small_receiver(100_000);
    let edge = Rc::new(RefCell::new(None::<crate::Seq>));
    let shift = pair.ends[1].receive.shift;
    pair.script = Box::new(move |side, flying| {
        let header = Segment::parse(&flying.bytes).unwrap().header;
        if side == 1 {
            let now = header.ack + (u32::from(header.window) << shift);
            let mut edge = edge.borrow_mut();
            let before = edge.get_or_insert(now);
            assert!(now.distance(*before) > -(1 << shift), "{now:?} after {before:?}");
            *before = before.max(now);
        }
        true
    });
    let data = pattern(500_000);
    let (mut sent, mut got, mut turn, mut buffer) = (0, Vec::new(), 0_usize, vec![0; 70_000]);
    pair.until(|pair| {
        turn += 1;
        sent += pair.ends[0].send(&data[sent..]).unwrap_or(0);
        if turn.is_multiple_of(13) {
            let len = turn * 7919 % 70_000;
            got.extend_from_slice(&buffer.clone()[..pair.ends[1].recv(&mut buffer[..len]).unwrap_or(0)]);
            let n = got.len();
            got.truncate(n);
        }
        if turn == 100 {
            pair.ends[1].set_receive_buffer(20_000);
        }
        pair.pump();
        sent == data.len() && pair.ends[0].unacknowledged_bytes() == 0
    });
}

#[test]
fn large_windows_are_used() {
    let mut pair = Pair::open(
        &Config { send_buffer: 4 << 20, ..Config::default() },
        &Config { receive_buffer: 4 << 20, ..Config::default() },
    );
    pair.delay = Duration::from_millis(10);
    // The path is longer than the handshake's was; the sender learns that first.
    pair.transfer(0, &pattern(100_000));
    let before = pair.ends[0].stats().retransmissions;
    pair.transfer(0, &pattern(8_000_000));
    assert!(pair.ends[0].stats().peer_window > 1 << 20, "{:?}", pair.ends[0].stats());
    assert_eq!(pair.ends[0].stats().retransmissions, before);
}

#[test]
fn nagle_holds_a_small_segment_back_behind_a_small_one() {
    let mut pair = Pair::established();
    pair.ends[0].send(b"a").unwrap();
    assert!(pair.ends[0].wants_transmit(pair.now));
    pair.pump();
    assert!(!pair.ends[0].awaits_acks(), "all has left, and there is room");
    pair.ends[0].send(b"b").unwrap();
    assert!(!pair.ends[0].wants_transmit(pair.now), "until the first is acknowledged");
    assert!(pair.ends[0].awaits_acks());
    pair.ends[0].set_nodelay(true);
    assert!(pair.ends[0].wants_transmit(pair.now));
    pair.ends[0].set_nodelay(false);
    pair.ends[0].send(&pattern(1448)).unwrap();
    assert!(pair.ends[0].wants_transmit(pair.now), "a full one leaves");
    pair.until(|pair| pair.ends[1].readable_bytes() == 1450);
}

#[test]
fn several_small_segments_in_flight_await_acknowledgments_and_one_does_not() {
    let mut pair = Pair::established();
    pair.ends[0].set_nodelay(true);
    // They leave at the same time, so that the record of what was sent has one range for all.
    let mut in_flight = |messages: usize| {
        for _ in 0..messages {
            pair.ends[0].send(&[0; 100]).unwrap();
            pair.pump();
        }
        assert_eq!(pair.wires[0].len(), messages, "each is a segment");
        let awaits = pair.ends[0].awaits_acks();
        pair.until(|pair| pair.ends[0].unacknowledged_bytes() == 0);
        assert!(!pair.ends[0].awaits_acks(), "all is acknowledged");
        awaits
    };
    assert!(!in_flight(1));
    assert!(in_flight(2));
    assert!(in_flight(3));
}

#[test]
fn a_full_send_buffer_says_when_there_is_room() {
    let mut pair = Pair::open(&Config { send_buffer: 10_000, ..Config::default() }, &Config::default());
    assert_eq!(pair.ends[0].send(&pattern(20_000)), Ok(10_000));
    assert_eq!(pair.ends[0].send(b"x"), Err(SendError::WouldBlock));
    assert_eq!(pair.ends[0].send(b""), Ok(0));
    assert!(pair.ends[0].awaits_acks(), "a writer waits for room");
    pair.events[0] = crate::Events::empty();
    pair.until(|pair| pair.events[0].contains(crate::Events::WRITABLE));
    assert!(pair.ends[0].writable_bytes() >= 2500);
}

#[test]
fn the_send_buffer_follows_the_congestion_window_up_to_its_limit() {
    let mut pair = Pair::open(
        &Config { send_buffer: 400_000, ..Config::default() },
        &Config { receive_buffer: 4 << 20, ..Config::default() },
    );
    pair.delay = Duration::from_millis(20);
    let first = crate::config::FIRST_SEND_ROOM as usize;
    assert_eq!(pair.ends[0].writable_bytes(), first);
    let (data, mut sent, mut most) = (pattern(20_000_000), 0, 0);
    pair.until(|pair| {
        let taken = pair.ends[0].send(&data[sent..]).unwrap_or(0);
        sent += taken;
        let _ = pair.read(1);
        let (held, cwnd) = (pair.ends[0].unacknowledged_bytes(), pair.ends[0].stats().cwnd as usize);
        assert!(taken == 0 || held <= first.max(2 * cwnd), "{held} bytes held with a window of {cwnd}");
        most = most.max(held);
        pair.pump();
        sent == data.len()
    });
    assert_eq!(most, 400_000);
}

#[test]
fn a_buffer_that_shrank_with_the_congestion_window_says_when_there_is_room() {
    let mut pair = Pair::open(&Config::default(), &Config { receive_buffer: 4 << 20, ..Config::default() });
    pair.delay = Duration::from_millis(20);
    let (data, grown) = (pattern(100_000), 2 * crate::config::FIRST_SEND_ROOM as usize);
    pair.until(|pair| {
        let room = pair.ends[0].writable_bytes() + pair.ends[0].unacknowledged_bytes();
        if room < grown {
            let _ = pair.ends[0].send(&data);
        }
        let _ = pair.read(1);
        pair.pump();
        room >= grown && pair.ends[0].unacknowledged_bytes() == 0
    });
    // The buffer is not full, so no event is due; then all of it is lost.
    assert_eq!(pair.ends[0].send(&pattern(grown - 1)), Ok(grown - 1));
    pair.script = Box::new(|side, _| side == 1);
    pair.until(|pair| {
        pair.pump();
        pair.ends[0].writable_bytes() == 0
    });
    assert_eq!(pair.ends[0].send(b"x"), Err(SendError::WouldBlock));
    pair.events[0] = crate::Events::empty();
    pair.script = Box::new(|_, _| true);
    pair.until(|pair| {
        let _ = pair.read(1);
        pair.events[0].contains(crate::Events::WRITABLE)
    });
    assert!(pair.ends[0].send(b"x").is_ok());
}

#[test]
fn data_for_a_closed_window_is_not_forgotten() {
    let mut pair = Pair::established();
    let mut closed = pair.forged(1);
    closed.window = 0;
    let _ = pair.answer(0, closed, b"");
    pair.ends[0].send(b"waits").unwrap();
    pair.until(|pair| pair.ends[1].readable_bytes() == 5);
}

#[test]
fn a_full_outlet_loses_nothing() {
    let mut pair = Pair::established();
    pair.ends[0].send(b"data").unwrap();
    let before = pair.ends[0].stats();
    for _ in 0..3 {
        let answer = pair.ends[0].poll_transmit(pair.now, |_| Err(crate::Full));
        assert_eq!((answer, pair.ends[0].stats()), (crate::Transmit::Full, before));
    }
    pair.until(|pair| pair.ends[1].readable_bytes() == 4);
}

#[test]
fn a_request_in_two_writes_takes_one_round_trip() {
    // The second write is small, and Nagle's algorithm holds it until the application waits for the
    // answer.
    let mut pair = Pair::established();
    pair.transfer(0, b"past the handshake");
    pair.transfer(1, b"and its quick acknowledgments");
    pair.wait(Duration::from_millis(100));
    for _ in 0..100 {
        let began = pair.now;
        pair.ends[0].send(b"header").unwrap();
        pair.pump();
        pair.ends[0].send(b"body").unwrap();
        pair.pump();
        assert_eq!(pair.wires[0].len(), 1, "held");
        assert_eq!(pair.read(0), (Vec::new(), false));
        assert!(pair.ends[0].is_flushing());
        pair.until(|pair| pair.ends[1].readable_bytes() == 10);
        let _ = pair.read(1);
        pair.transfer(1, b"answer");
        assert_eq!(pair.now - began, 2 * pair.delay, "one round trip");
        assert!(!pair.ends[0].is_flushing());
        pair.wait(Duration::from_millis(10));
    }
    let segments = pair.ends[1].stats().segments_sent;
    assert!(segments <= 2 * 100 + 10, "{segments}: an answer, and no more ACKs than without it");
}

#[test]
fn reading_between_writes_lets_two_small_segments_out_in_a_round_trip_and_no_more() {
    // Nagle's algorithm (RFC 9293 section 3.7.4) allows one.
    let mut pair = Pair::established();
    for _ in 0..100 {
        pair.ends[0].send(b"x").unwrap();
        let _ = pair.read(0);
        pair.pump();
    }
    assert_eq!(pair.wires[0].len(), 2);
    pair.until(|pair| pair.ends[1].readable_bytes() == 100);
}
