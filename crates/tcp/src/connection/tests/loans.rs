//! Received data on loan.

use super::pair::{Pair, pattern};
use crate::config::Config;
use crate::connection::Buffer;
use crate::connection::receive::Receive;
use crate::error::RecvError;
use crate::ring::Ring;
use crate::ring::tests::MOVED;
use crate::seq::Seq;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use proptest::prelude::*;

const LIMIT: u32 = 4096;

fn pair() -> Pair {
    Pair::open(&Config::default(), &Config { receive_buffer: LIMIT, ..Config::default() })
}

#[test]
fn lent_data_is_handed_over_without_a_copy_and_in_one_piece() {
    let (mut pair, mut buffer) = (pair(), Buffer::default());
    for round in 0..5 {
        let data = pattern(600 + round);
        pair.ends[0].send(&data).unwrap();
        pair.wait(Duration::from_secs(1));
        let before = pair.ends[1].receive.capacity();
        assert_eq!(pair.ends[1].lend(&mut buffer), Ok(data.len()));
        assert_eq!((buffer.as_slice(), buffer.capacity()), (&data[..], before), "the same memory");
        assert_eq!(pair.ends[1].lend(&mut buffer), Err(RecvError::WouldBlock));
        pair.ends[1].recv_done(data.len());
        buffer.consume(data.len());
    }
    assert!(pair.ends[1].receive.capacity() > 0, "the buffers change places");
}

#[test]
fn a_buffer_that_is_returned_empty_serves_for_the_data_that_arrives_next() {
    let mut pair = pair();
    let mut memory = None;
    for round in 0..3 {
        pair.ends[0].send(&pattern(600 + round)).unwrap();
        pair.wait(Duration::from_millis(10));
        let mut buffer = Buffer::default();
        let len = pair.ends[1].lend(&mut buffer).unwrap();
        let first = buffer.as_slice().as_ptr();
        assert_eq!(*memory.get_or_insert(first), first, "the same memory");
        pair.ends[1].recv_done(len);
        buffer.consume(len);
        pair.ends[1].return_loan(&mut buffer);
        assert_eq!(buffer.capacity(), 0);
    }
}

#[test]
fn lent_data_keeps_its_room_in_the_window() {
    let (mut pair, mut buffer) = (pair(), Buffer::default());
    pair.ends[0].send(&pattern(100_000)).unwrap();
    pair.wait(Duration::from_secs(100));
    assert_eq!(pair.ends[1].lend(&mut buffer), Ok(LIMIT as usize));
    pair.wait(Duration::from_secs(100));
    assert_eq!(pair.ends[1].readable_bytes(), 0, "the window is full of what is lent");
    pair.ends[1].recv_done(3000);
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.ends[1].lend(&mut buffer), Ok(3000));
    pair.ends[1].recv_done(usize::MAX);
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.ends[1].readable_bytes(), LIMIT as usize);
}

#[test]
fn a_connection_released_with_a_loan_is_reset() {
    let (mut pair, mut buffer) = (pair(), Buffer::default());
    pair.ends[0].send(b"never finished").unwrap();
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.ends[1].lend(&mut buffer), Ok(14));
    let now = pair.now;
    let _ = pair.ends[1].release(now);
    pair.wait(Duration::from_secs(1));
    assert!(pair.ends[0].error().is_some());
}

/// A peer that fills a loop's window and then has one segment after the other finished makes each
/// loan nearly full. Copying all of it for each segment would cost the loop a hundred microseconds.
#[test]
fn a_nearly_full_loan_is_not_copied_again_for_each_segment() {
    const MSS: usize = 1460;
    const WINDOW: usize = 1 << 20;
    let (mut receive, mut lent) = (Receive::new(WINDOW as u32), Ring::default());
    let payload = pattern(MSS);
    receive.start(Seq(7));
    let (mut bytes, mut capacity, before) = (0, 0, MOVED.get());
    for _ in 0..10_000 {
        let next = receive.next;
        receive.store(next, &payload);
        assert_eq!(receive.lend(&mut lent), MSS);
        bytes += MSS;
        if lent.len() + MSS > WINDOW {
            receive.end_loan(MSS);
            lent.consume(MSS);
        }
        capacity = capacity.max(lent.capacity());
    }
    let moved = MOVED.get() - before;
    assert!(moved <= 4 * bytes, "{moved} bytes were copied for {bytes}");
    assert!(capacity <= 4 * WINDOW, "{capacity} bytes");
    let left = lent.len();
    receive.end_loan(left);
    lent.consume(left);
    let next = receive.next;
    receive.store(next, &payload);
    receive.lend(&mut lent);
    assert!(receive.capacity() <= WINDOW, "the connection does not take the doubled memory back");
}

proptest! {
    /// Lends, ends loans, and reads what is not lent, at random times over a lossy link.
    #[test]
    fn every_byte_is_lent_once_and_in_order(
        losses in prop::collection::vec(0usize..40, 0..12),
        steps in prop::collection::vec((0usize..4, 1usize..3000), 1..200),
    ) {
        let (mut pair, mut buffer) = (pair(), Buffer::default());
        let mut segments = 0;
        pair.script = Box::new(move |side, _| {
            segments += usize::from(side == 0);
            side == 1 || !losses.contains(&segments)
        });
        let data = pattern(40_000);
        let (mut sent, mut got, mut steps) = (0, Vec::new(), steps.into_iter().cycle());
        pair.until(|pair| {
            sent += pair.ends[0].send(&data[sent..]).unwrap_or(0);
            let (what, amount) = steps.next().unwrap();
            let end = &mut pair.ends[1];
            if what == 1 && amount % 4 == 0 {
                let before = end.readable_bytes() + buffer.len();
                end.return_loan(&mut buffer);
                assert_eq!((end.readable_bytes(), buffer.len()), (before, 0));
            }
            // A read would overtake what is lent.
            if what == 0 && buffer.is_empty() {
                let mut out = [0; 3000];
                let len = end.recv(&mut out[..amount]).unwrap_or(0);
                got.extend_from_slice(&out[..len]);
            } else {
                let _ = end.lend(&mut buffer);
                let len = if what == 3 { buffer.len() } else { amount.min(buffer.len()) };
                got.extend_from_slice(&buffer.as_slice()[..len]);
                buffer.consume(len);
                end.recv_done(len);
            }
            assert!(buffer.len() + end.readable_bytes() <= LIMIT as usize);
            pair.pump();
            got.len() == data.len()
        });
        assert!(got == data);
    }
}
