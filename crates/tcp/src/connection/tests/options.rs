//! Options that programs of Linux know: TCP_CORK, MSG_MORE, TCP_NOTSENT_LOWAT, TCP_MAXSEG,
//! TCP_INFO. The table of cases compares the same with Linux.

use super::pair::{Pair, next_of, pattern};
use crate::config::{Config, Keepalive};
use crate::connection::{Connection, Events};
use crate::error::SendError;
use crate::segment::Segment;
use crate::state::State;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;

/// Records the lengths of the data segments of the side that connects, and when they leave.
fn sizes(pair: &mut Pair) -> Rc<RefCell<Vec<usize>>> {
    let sizes = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&sizes);
    pair.script = Box::new(move |side, flying| {
        let len = Segment::parse(&flying.bytes).unwrap().payload.len();
        if side == 0 && len > 0 {
            seen.borrow_mut().push(len);
        }
        true
    });
    sizes
}

const FULL: usize = 1448;

#[test]
fn a_cork_holds_what_is_smaller_than_a_segment_and_its_removal_releases_it() {
    let mut pair = Pair::established();
    let sizes = sizes(&mut pair);
    pair.ends[0].set_cork(true);
    assert!(pair.ends[0].cork());
    for _ in 0..3 {
        pair.ends[0].send(&pattern(600)).unwrap();
        pair.wait(Duration::from_millis(50));
    }
    assert_eq!(*sizes.borrow(), [FULL], "the first 1800 bytes hold one full segment");
    pair.ends[0].set_cork(false);
    pair.pump();
    assert_eq!(*sizes.borrow(), [FULL, 1800 - FULL]);
}

#[test]
fn a_cork_holds_nothing_for_longer_than_its_limit() {
    let mut pair = Pair::established();
    let sizes = sizes(&mut pair);
    pair.ends[0].set_cork(true);
    for round in 1..=3 {
        pair.ends[0].send(b"forgotten").unwrap();
        pair.wait(Duration::from_millis(199));
        assert_eq!(sizes.borrow().len(), round - 1);
        pair.wait(Duration::from_millis(2));
        assert_eq!(sizes.borrow().len(), round, "each held rest has a limit of its own");
    }
    // The limit is no probe of the peer: a long silence before it does not end the connection.
    pair.wait(Duration::from_hours(10));
    pair.ends[0].send(b"late").unwrap();
    pair.wait(Duration::from_secs(1));
    assert_eq!((sizes.borrow().len(), pair.ends[0].error()), (4, None));
}

#[test]
fn reading_releases_what_nagle_holds_and_not_what_a_cork_holds() {
    let mut pair = Pair::established();
    let sizes = sizes(&mut pair);
    pair.ends[0].send(b"one").unwrap();
    pair.pump();
    pair.ends[0].set_cork(true);
    pair.ends[0].send(b"two").unwrap();
    assert!(pair.read(0).0.is_empty());
    pair.pump();
    assert_eq!(*sizes.borrow(), [3]);
    pair.ends[0].set_cork(false);
    assert!(pair.read(0).0.is_empty());
    pair.pump();
    assert_eq!(*sizes.borrow(), [3, 3]);
}

#[test]
fn more_is_waited_for_until_a_write_without_it_or_a_push_or_the_end() {
    for release in ["write", "push", "close"] {
        let mut pair = Pair::established();
        let sizes = sizes(&mut pair);
        assert_eq!(pair.ends[0].send_more(b"head"), Ok(4));
        pair.wait(Duration::from_millis(100));
        assert!(sizes.borrow().is_empty());
        match release {
            "write" => assert_eq!(pair.ends[0].send(b"rest"), Ok(4)),
            "push" => pair.ends[0].push(),
            _ => assert_eq!(pair.ends[0].close(), Events::empty()),
        }
        pair.pump();
        assert_eq!(sizes.borrow().len(), 1);
        assert!((4..=8).contains(&sizes.borrow()[0]));
    }
}

#[test]
fn a_closed_window_is_probed_though_the_connection_is_corked() {
    let small = Config { receive_buffer: 1024, ..Config::default() };
    let mut pair = Pair::open(&Config::default(), &small);
    pair.ends[0].set_cork(true);
    pair.ends[0].send(&pattern(5000)).unwrap();
    pair.wait(Duration::from_secs(60));
    let mut got = Vec::new();
    pair.until(|pair| {
        got.extend(pair.read(1).0);
        pair.pump();
        got.len() == 5000
    });
    assert_eq!(got, pattern(5000));
}

#[test]
fn above_the_low_water_mark_nothing_is_accepted_and_below_half_of_it_writers_are_woken() {
    const MARK: u32 = 20_000;
    let small = Config { receive_buffer: 8192, ..Config::default() };
    let config = Config { notsent_lowat: Some(MARK), ..Config::default() };
    let mut pair = Pair::open(&config, &small);
    assert_eq!(pair.ends[0].notsent_lowat(), Some(MARK));
    let mut sent = 0;
    loop {
        match pair.ends[0].send(&pattern(7000)) {
            Ok(len) => sent += len,
            Err(error) => {
                assert_eq!(error, SendError::WouldBlock);
                break;
            }
        }
        pair.pump();
    }
    pair.wait(Duration::from_secs(1));
    let room = MARK as usize + 8192 + FULL;
    assert!((MARK as usize..=room).contains(&sent), "{sent} bytes");
    assert!(!pair.ends[0].poll_writable());
    // The peer reads; data leaves; the writer is woken when less than half of the mark is unsent.
    pair.events[0] = Events::empty();
    let mut woken = Events::empty();
    let mut got = 0;
    while woken.is_empty() {
        assert!(2 * pair.ends[0].unsent_bytes() >= MARK as usize, "{} unsent", pair.ends[0].unsent_bytes());
        got += pair.read(1).0.len();
        assert!(pair.step(), "nothing happens any more");
        woken = pair.events[0] & Events::WRITABLE | pair.ends[0].take_writable();
        pair.events[0].remove(Events::WRITABLE);
    }
    assert!(got > 0 && pair.ends[0].poll_writable());
    assert!(2 * pair.ends[0].unsent_bytes() < MARK as usize);
}

#[test]
fn a_mark_of_one_byte_takes_a_segment_when_everything_was_sent() {
    let mut pair = Pair::established();
    let events = pair.ends[0].set_notsent_lowat(Some(1));
    assert_eq!(events, Events::WRITABLE);
    assert_eq!(pair.ends[0].send(&pattern(100_000)), Ok(FULL));
    assert_eq!(pair.ends[0].send(b"x"), Err(SendError::WouldBlock));
    pair.pump();
    assert_eq!(pair.ends[0].take_writable(), Events::WRITABLE);
    assert_eq!(pair.ends[0].take_writable(), Events::empty(), "once");
    for none in [None, Some(0)] {
        let _ = pair.ends[0].set_notsent_lowat(none);
        assert_eq!((pair.ends[0].notsent_lowat(), pair.ends[0].writable_bytes() > FULL), (None, true));
    }
}

#[test]
fn a_segment_size_is_announced_and_kept_and_can_be_lowered_later_without_repairs() {
    let config = Config { max_segment: Some(1000), ..Config::default() };
    let mut pair = Pair::open(&config, &Config::default());
    assert_eq!([pair.ends[0].max_segment(), pair.ends[1].max_segment()], [988; 2], "it was announced");
    let sizes = sizes(&mut pair);
    pair.ends[0].send(&pattern(2000)).unwrap();
    pair.pump();
    assert_eq!(sizes.borrow()[..2], [988, 988]);
    // Segments of the old size are in flight.
    pair.ends[0].set_max_segment(Some(500));
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.read(1).0, pattern(2000));
    pair.transfer(0, &pattern(5000));
    assert!(sizes.borrow()[3..].iter().all(|&len| len <= 488), "{:?}", sizes.borrow());
    assert_eq!(pair.ends[0].stats().retransmissions, 0);
    pair.ends[0].set_max_segment(None);
    assert_eq!(pair.ends[0].max_segment(), FULL as u32);
}

#[test]
fn a_wider_path_is_used_unless_the_peer_asked_for_less_than_its_link_carries() {
    let small = Config { max_segment: Some(1000), ..Config::default() };
    for (other, mss) in [(Config::default(), 8_948), (small, 988)] {
        let mut pair = Pair::open(&Config::default(), &other);
        let now = pair.now;
        pair.ends[0].widen_path(1_000, 1_460, now);
        assert_eq!(pair.ends[0].path_mss(), 1_460, "it is as wide");
        pair.ends[0].widen_path(8_960, 1_460, now);
        assert_eq!((pair.ends[0].path_mss(), pair.ends[0].max_segment()), (8_960, mss));
        let sizes = sizes(&mut pair);
        pair.transfer(0, &pattern(60_000));
        assert_eq!(sizes.borrow().iter().max(), Some(&(mss as usize)));
    }
}

#[test]
fn segments_of_a_wide_path_are_half_of_a_window_and_no_less_than_ordinary_ones() {
    for (ceiling, most) in [(u32::MAX, 8_948), (10_000, 5_000), (4_000, 2_000), (2_920, 1_460)] {
        let mut pair = Pair::established();
        let now = pair.now;
        pair.ends[1].set_window_ceiling(ceiling);
        pair.transfer(0, &pattern(200_000));
        let now = now.max(pair.now);
        pair.ends[0].widen_path(8_960, 1_460, now);
        let _ = pair.ends[0].set_path_mtu(8_960, None, now);
        pair.ends[0].peer_mss = 8_960;
        let sizes = sizes(&mut pair);
        let began = pair.now;
        pair.transfer(0, &pattern(200_000));
        // Nothing waits for a delayed acknowledgment: a round takes the link's delay.
        let rounds = 200_000 / ceiling.min(14_600) + 2;
        assert!(pair.now - began < Duration::from_millis(2) * rounds, "{ceiling}: {:?}", pair.now - began);
        let longest = sizes.borrow().iter().copied().max().unwrap();
        assert!((1_460.min(most)..=most).contains(&longest), "{longest} bytes with a window of {ceiling}");
        let small = sizes.borrow().iter().filter(|&&len| len < 1_448).count();
        assert!(small <= 2, "{small} small segments with a window of {ceiling}");
        assert_eq!(pair.ends[0].stats().retransmissions, 0);
    }
}

#[test]
fn what_fills_an_ordinary_packet_is_not_held_for_an_earlier_segment() {
    let mut pair = Pair::established();
    let now = pair.now;
    let _ = pair.ends[0].set_path_mtu(8_960, None, now);
    pair.ends[0].peer_mss = 8_960;
    let sizes = sizes(&mut pair);
    for len in [5_000, 2_000, 1_460, 100, 50] {
        pair.ends[0].send(&pattern(len)).unwrap();
        while let Some(flying) = next_of(&mut pair.ends[0], now) {
            sizes.borrow_mut().push(Segment::parse(&flying.bytes).unwrap().payload.len());
        }
    }
    assert_eq!(*sizes.borrow(), [5_000, 2_000, 1_460, 100], "the last waits for a small one");
}

#[test]
fn a_user_timeout_that_was_set_decides_how_long_keepalive_probes() {
    let second = Duration::from_secs(1);
    for (timeout, lasts) in [(None, 4), (Some(10 * second), 10), (Some(2 * second), 2)] {
        let mut pair = Pair::established();
        let keepalive = Keepalive::default().idle(second).interval(second).probes(3);
        pair.ends[0].set_keepalive(Some(keepalive));
        assert_eq!(pair.ends[0].keepalive(), Some(keepalive));
        pair.ends[0].set_user_timeout(timeout);
        pair.script = Box::new(|_, _| false);
        let began = pair.now;
        pair.until(|pair| pair.ends[0].is_closed());
        assert_eq!((pair.now - began).as_secs(), lasts, "{timeout:?}");
    }
}

#[test]
fn the_state_of_a_transfer_is_what_linux_would_report() {
    let mut pair = Pair::established();
    let now = pair.now;
    pair.ends[0].send(&pattern(10 * FULL)).unwrap();
    pair.pump();
    let info = pair.ends[0].info(20, now);
    assert_eq!((info.state, info.snd_mss, info.pmtu), (State::Established, FULL as u32, 1500));
    assert_eq!((info.unacked, info.sacked, info.lost, info.retrans), (10, 0, 0, 0));
    assert_eq!((info.bytes_sent, info.bytes_acked, info.notsent_bytes), (10 * FULL as u64, 0, 0));
    assert_eq!((info.snd_cwnd, info.snd_ssthresh, info.delivered), (10, None, 1));
    assert!(info.timestamps && info.sack && info.wscale.is_some() && !info.ecn);
    pair.wait(Duration::from_secs(1));
    let info = pair.ends[0].info(20, pair.now);
    assert_eq!((info.unacked, info.delivered, info.data_segs_out), (0, 11, 10));
    assert_eq!(info.bytes_acked, info.bytes_sent);
    assert!(info.last_ack_recv > Duration::from_millis(900), "{:?}", info.last_ack_recv);
    let peer = pair.ends[1].info(40, pair.now);
    assert_eq!((peer.bytes_received, peer.data_segs_in, peer.rcv_mss), (10 * FULL as u64, 10, FULL as u32));
    assert_eq!((peer.pmtu, peer.rcv_ooopack, peer.segs_in), (1520, 0, 11));
}

#[test]
fn losses_are_counted_while_they_last_and_for_good() {
    let mut pair = Pair::established();
    pair.transfer(0, &pattern(100_000));
    let mut seen = 0;
    pair.script = Box::new(move |side, flying| {
        let data = side == 0 && !Segment::parse(&flying.bytes).unwrap().payload.is_empty();
        seen += u32::from(data);
        !data || seen != 3
    });
    pair.ends[0].send(&pattern(10 * FULL)).unwrap();
    let mut worst = vec![];
    pair.until(|pair| {
        let info = pair.ends[0].info(20, pair.now);
        assert!(info.sacked + info.lost <= info.unacked && info.retrans <= info.lost, "{info:?}");
        worst.push((info.sacked, info.lost, info.retrans));
        info.unacked == 0
    });
    assert!(worst.iter().any(|&(sacked, lost, retrans)| sacked >= 3 && lost == 1 && retrans == 1));
    let info = pair.ends[0].info(20, pair.now);
    assert_eq!((info.total_retrans, info.bytes_retrans, info.lost), (1, FULL as u64, 0));
    assert_eq!(info.bytes_sent, info.bytes_acked + info.bytes_retrans);
    assert_eq!(info.delivered, 1 + info.data_segs_out - 1);
}

#[test]
fn rare_options_cost_nothing_until_they_are_set() {
    let mut pair = Pair::established();
    let end: &mut Connection = &mut pair.ends[0];
    assert_eq!(end.stats().heap_bytes, 0);
    end.set_user_timeout(Some(Duration::from_secs(1)));
    let _ = end.set_notsent_lowat(Some(1));
    assert!((1..=64).contains(&end.stats().heap_bytes), "{}", end.stats().heap_bytes);
    end.set_user_timeout(None);
    let _ = end.set_notsent_lowat(None);
    assert_eq!(end.stats().heap_bytes, 0);
}
