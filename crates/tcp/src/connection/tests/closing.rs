//! Ending: RFC 9293 sections 3.6 and 3.10.4, 3.10.5.

use super::pair::{Pair, pattern};
use crate::connection::Events;
use crate::error::{Error, RecvError, SendError};
use crate::segment::{Flags, Header};
use crate::state::State;
use crate::time_wait::TimeWaitResponse;
use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;

#[test]
fn a_side_that_closed_still_receives() {
    let mut pair = Pair::established();
    pair.ends[0].send(b"question").unwrap();
    let _ = pair.ends[0].close();
    pair.until(|pair| pair.states() == (State::FinWait2, State::CloseWait));
    assert!(pair.events[1].contains(Events::PEER_CLOSED | Events::READABLE));
    assert_eq!(pair.read(1), (b"question".to_vec(), true));
    assert_eq!(pair.ends[0].send(b"more"), Err(SendError::Closed));
    pair.transfer(1, &pattern(100_000));
    let _ = pair.ends[1].close();
    pair.until(|pair| pair.states() == (State::TimeWait, State::Closed));
    assert_eq!((pair.ends[0].error(), pair.ends[1].error()), (None, None));
    assert_eq!(pair.read(0), (vec![], true));
    pair.until(|pair| pair.ends[0].is_closed());
}

#[test]
fn both_may_close_at_once() {
    let mut pair = Pair::established();
    pair.ends[0].send(b"a").unwrap();
    pair.ends[1].send(b"b").unwrap();
    let _ = (pair.ends[0].close(), pair.ends[1].close());
    assert_eq!(pair.states(), (State::FinWait1, State::FinWait1));
    pair.pump();
    pair.until(|pair| pair.states() == (State::TimeWait, State::TimeWait));
    assert_eq!((pair.read(0), pair.read(1)), ((b"b".to_vec(), true), (b"a".to_vec(), true)));
}

#[test]
fn closing_survives_the_loss_of_any_segment() {
    for lost in 0..12 {
        let mut pair = Pair::established();
        let mut count = 0;
        pair.script = Box::new(move |_, _| {
            count += 1;
            count - 1 != lost
        });
        pair.ends[0].send(b"last words").unwrap();
        let _ = pair.ends[0].close();
        pair.until(|pair| pair.ends[1].state() == State::CloseWait);
        assert_eq!(pair.read(1), (b"last words".to_vec(), true));
        let _ = pair.ends[1].close();
        pair.until(|pair| pair.ends[0].is_closed() && pair.ends[1].is_closed());
        assert_eq!((pair.ends[0].error(), pair.ends[1].error()), (None, None), "lost {lost}");
    }
}

#[test]
fn an_abort_resets_the_peer() {
    let mut pair = Pair::established();
    pair.ends[0].send(b"lost").unwrap();
    let events = pair.ends[0].abort();
    assert!(events.contains(Events::CLOSED));
    pair.until(|pair| pair.ends[1].is_closed());
    assert_eq!((pair.ends[0].error(), pair.ends[1].error()), (Some(Error::Aborted), Some(Error::Reset)));
    assert_eq!(pair.ends[1].recv(&mut [0; 4]), Err(RecvError::Failed(Error::Reset)));
}

#[test]
fn what_was_received_before_a_reset_can_be_read() {
    let mut pair = Pair::established();
    pair.ends[0].send(b"before").unwrap();
    pair.until(|pair| pair.ends[1].readable_bytes() == 6);
    let _ = pair.ends[0].abort();
    pair.until(|pair| pair.ends[1].is_closed());
    let mut buffer = [0; 6];
    assert_eq!(pair.ends[1].recv(&mut buffer), Ok(6));
    assert_eq!(pair.ends[1].recv(&mut buffer), Err(RecvError::Failed(Error::Reset)));
}

#[test]
fn releasing_with_unread_data_resets() {
    let mut pair = Pair::established();
    pair.ends[0].send(b"unread").unwrap();
    pair.until(|pair| pair.ends[1].readable_bytes() == 6);
    let _ = pair.ends[1].release(pair.now);
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!(pair.ends[0].error(), Some(Error::Reset));
}

#[test]
fn data_after_release_resets() {
    let mut pair = Pair::established();
    let _ = pair.ends[1].release(pair.now);
    pair.until(|pair| pair.ends[0].state() == State::CloseWait);
    pair.ends[0].send(b"are you there?").unwrap();
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!(pair.ends[0].error(), Some(Error::Reset));
}

#[test]
fn a_released_connection_does_not_wait_for_ever_for_the_peers_fin() {
    let mut pair = Pair::established();
    let _ = pair.ends[0].release(pair.now);
    pair.until(|pair| pair.ends[0].state() == State::FinWait2);
    let began = pair.now;
    pair.until(|pair| pair.ends[0].is_closed());
    assert_eq!((pair.now - began).as_secs(), 60);
}

#[test]
fn a_half_closed_connection_waits_for_ever() {
    let mut pair = Pair::established();
    let _ = pair.ends[0].close();
    pair.wait(Duration::from_hours(10));
    assert_eq!(pair.states(), (State::FinWait2, State::CloseWait));
    assert_eq!((pair.ends[0].next_timeout(), pair.ends[1].next_timeout()), (None, None));
}

#[test]
fn a_reader_that_shut_down_still_gets_data_and_never_waits() {
    // As Linux: the end of the stream is reported only while there is nothing to read.
    let mut pair = Pair::established();
    pair.ends[0].send(b"before").unwrap();
    pair.until(|pair| pair.ends[1].readable_bytes() == 6);
    pair.ends[1].shutdown_read();
    assert_eq!(pair.read(1), (b"before".to_vec(), true));
    assert!(pair.ends[1].is_readable());
    pair.transfer(0, b"and after");
    assert_eq!(pair.ends[1].recv(&mut [0; 8]), Ok(0));
    pair.transfer(1, b"the other direction is open");
}

#[test]
fn data_to_a_side_that_closed_both_directions_resets() {
    // RFC 9293 section 3.6.1.
    for read_first in [true, false] {
        let mut pair = Pair::established();
        if read_first {
            pair.ends[1].shutdown_read();
            let _ = pair.ends[1].close();
        } else {
            let _ = pair.ends[1].close();
            pair.ends[1].shutdown_read();
        }
        pair.until(|pair| pair.states() == (State::CloseWait, State::FinWait2));
        pair.ends[0].send(b"for whom?").unwrap();
        pair.until(|pair| pair.ends[0].is_closed());
        assert_eq!(pair.ends[0].error(), Some(Error::Reset));
    }
}

#[test]
fn time_wait_answers_a_fin_again_and_makes_room_for_a_new_connection() {
    let mut pair = Pair::established();
    let _ = (pair.ends[0].close(), pair.wait(Duration::from_millis(1)));
    let _ = pair.ends[1].close();
    pair.until(|pair| pair.ends[0].state() == State::TimeWait);
    let mut value = pair.ends[0].time_wait().unwrap();
    let mut fin = pair.forged(1);
    fin.seq = pair.ends[0].receive.next + u32::MAX;
    fin.flags |= Flags::FIN;
    let respond = |value: &mut crate::TimeWait, header| {
        value.handle_segment(&crate::Segment { header, payload: &[] }, pair.now)
    };
    let ends = value.expires_at();
    let TimeWaitResponse::Reply(ack) = respond(&mut value, fin) else { panic!("no answer") };
    assert_eq!((ack.ack, ack.seq, ack.flags), (fin.seq + 1, pair.ends[0].sender.nxt(), Flags::ACK));
    assert!(value.expires_at() >= ends);

    let mut syn = fin;
    syn.flags = Flags::SYN;
    syn.seq = fin.seq + 0_u32.wrapping_sub(5000);
    syn.options.timestamps.as_mut().unwrap().value += 1;
    let TimeWaitResponse::Reopen { iss } = respond(&mut value, syn) else {
        panic!("a later timestamp is a new connection")
    };
    assert!(iss > pair.ends[0].sender.nxt());
    syn.options.timestamps.as_mut().unwrap().value -= 10_000;
    assert!(matches!(respond(&mut value, syn), TimeWaitResponse::Reply(_)), "an old duplicate is not");
    syn.options.timestamps = None;
    assert!(matches!(respond(&mut value, syn), TimeWaitResponse::Reply(_)), "nor is an earlier number");
    syn.seq = fin.seq + 2;
    assert!(matches!(respond(&mut value, syn), TimeWaitResponse::Reopen { .. }));
}

#[test]
fn no_reset_ends_time_wait() {
    // RFC 1337 section 3, fix F1, for the connection and for the value that takes its place.
    let mut pair = Pair::established();
    let _ = (pair.ends[0].close(), pair.wait(Duration::from_millis(1)));
    let _ = pair.ends[1].close();
    pair.until(|pair| pair.ends[0].state() == State::TimeWait);
    let mut value = pair.ends[0].time_wait().unwrap();
    let ends = value.expires_at();
    let exact = pair.forged(1);
    for offset in [0, 1, u32::MAX, 1 << 20] {
        for flags in [Flags::RST, Flags::RST | Flags::ACK] {
            let reset =
                crate::Segment { header: Header { seq: exact.seq + offset, flags, ..exact }, payload: &[] };
            assert_eq!(value.handle_segment(&reset, pair.now), TimeWaitResponse::Ignore);
            assert_eq!(pair.answer(0, reset.header, &[]), None);
        }
    }
    assert_eq!((pair.ends[0].state(), value.expires_at()), (State::TimeWait, ends));
    assert_eq!(pair.ends[0].next_timeout(), Some(ends));
}
