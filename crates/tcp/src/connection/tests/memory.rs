//! Memory, idle and under attack.

use super::pair::{Pair, pattern};
use crate::config::{Config, Keepalive};
use crate::connection::Connection;
use crate::segment::Header;
use core::time::Duration;

/// Most bytes an idle connection may occupy, in all, and how many more with keepalive.
const IDLE_BYTES: usize = 560;
const RARE_BYTES: usize = 48;

#[test]
fn an_idle_connection_is_small() {
    let mut pair = Pair::established();
    pair.transfer(0, &pattern(1_000_000));
    pair.transfer(1, &pattern(1_000_000));
    pair.wait(Duration::from_secs(3));
    for end in &pair.ends {
        let bytes = size_of::<Connection>() + end.stats().heap_bytes;
        assert!(bytes <= IDLE_BYTES, "{bytes} bytes, {} of them the sender's", size_of::<crate::Sender>());
    }
    pair.ends[0].set_keepalive(Some(Keepalive::default()));
    let bytes = pair.ends[0].stats().heap_bytes;
    assert!(bytes <= RARE_BYTES, "{bytes} bytes for options that few have");
}

#[test]
fn what_was_long_unread_leaves_nothing_behind_when_it_is_read() {
    let mut pair = Pair::established();
    pair.ends[0].send(&pattern(10_000)).unwrap();
    pair.wait(Duration::from_mins(10));
    assert_eq!(pair.ends[1].next_timeout(), None, "nor is it looked at again and again");
    assert_eq!(pair.read(1).0, pattern(10_000));
    assert_eq!(pair.ends[1].stats().heap_bytes, 0);
}

#[test]
fn buffers_grow_no_larger_than_they_may() {
    let config = Config { receive_buffer: 50_000, send_buffer: 30_000, ..Config::default() };
    let mut pair = Pair::open(&config, &config);
    for _ in 0..100 {
        let _ = pair.ends[0].send(&pattern(10_000));
        pair.wait(Duration::from_millis(1));
        for end in &pair.ends {
            assert!(end.stats().heap_bytes <= 65_536 + 32_768 + 2048, "{}", end.stats().heap_bytes);
        }
    }
}

#[test]
fn a_flood_of_pieces_costs_the_first_window_at_most() {
    let mut pair = Pair::established();
    let base = pair.forged(0);
    for i in (1..200_000_u32).rev().step_by(7) {
        let _ = pair.answer(1, Header { seq: base.seq + i, ..base }, b"x");
    }
    let heap = pair.ends[1].stats().heap_bytes;
    assert!(heap <= (64 << 10) + 2048, "{heap} bytes for a peer that sent nothing in order");
    assert!(pair.ends[1].stats().beyond_window > 1000);
    // The connection still works.
    pair.transfer(0, &pattern(300_000));
}

#[test]
fn a_peer_with_windows_of_one_byte_costs_little() {
    // "Sockstress": each ACK opens the window by a byte, or not even that.
    for window in 0..=1 {
        cost_of_windows_of(window);
    }
}

fn cost_of_windows_of(window: u16) {
    let unscaled = Config { window_scaling: false, ..Config::default() };
    let mut pair = Pair::open(&Config::default(), &unscaled);
    pair.ends[0].send(&pattern(100_000)).unwrap();
    let mut sent = 0;
    for _ in 0..2000 {
        let mut ack = pair.forged(1);
        (ack.window, ack.ack) = (window, pair.ends[0].sender.nxt());
        let mut answer = pair.answer(0, ack, b"");
        while answer.is_some() {
            sent += 1;
            let mut outgoing = None;
            let _ = pair.ends[0].poll_transmit(pair.now, |segment| {
                outgoing = Some(segment.header);
                Ok(())
            });
            answer = outgoing;
        }
        pair.now = pair.now + Duration::from_millis(10);
        let _ = pair.ends[0].handle_timeout(pair.now);
    }
    assert!(sent < 200, "{sent} segments for windows of {window}");
    assert!(pair.ends[0].stats().heap_bytes <= (256 << 10) + 1024);
}

#[test]
fn segments_of_one_byte_cost_no_more_than_their_bytes() {
    let mut pair = Pair::established();
    let base = pair.forged(0);
    for i in 0..5000 {
        let _ = pair.answer(1, Header { seq: base.seq + i, ..base }, b"x");
    }
    assert_eq!(pair.ends[1].readable_bytes(), 5000);
    assert!(pair.ends[1].stats().heap_bytes <= 8192);
}
