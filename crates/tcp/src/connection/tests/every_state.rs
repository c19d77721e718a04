//! Every state against every combination of control bits and every kind of number: nothing panics,
//! and states change only according to the table.

use super::pair::{Pair, pattern};
use crate::connection::{Connection, Events, Transmit};
use crate::ecn::EcnCodepoint;
use crate::segment::{Flags, Header, Segment};
use crate::state::State;
use core::time::Duration;

/// Returns a pair whose second end is in `state`, with something sent and something to read where
/// possible.
fn pair_in(state: State) -> Pair {
    if matches!(state, State::SynSent | State::SynReceived) {
        let mut pair = Pair::crossing();
        pair.pump();
        if state == State::SynReceived {
            pair.until(|pair| pair.ends[1].state() == State::SynReceived);
        }
        return pair;
    }
    let mut pair = Pair::established();
    let _ = pair.ends[0].send(&pattern(100));
    let _ = pair.ends[1].send(&pattern(100));
    pair.wait(Duration::from_millis(50));
    let close = |pair: &mut Pair, side: usize| {
        let _ = pair.ends[side].close();
    };
    match state {
        State::FinWait1 => close(&mut pair, 1),
        State::FinWait2 => {
            close(&mut pair, 1);
            pair.until(|pair| pair.ends[1].state() == State::FinWait2);
        }
        State::CloseWait | State::LastAck => {
            close(&mut pair, 0);
            pair.until(|pair| pair.ends[1].state() == State::CloseWait);
            if state == State::LastAck {
                close(&mut pair, 1);
            }
        }
        State::Closing | State::TimeWait => {
            close(&mut pair, 0);
            close(&mut pair, 1);
            pair.pump();
            pair.until(|pair| pair.ends[1].state() == State::Closing || pair.ends[1].state() == state);
            if state == State::TimeWait {
                pair.until(|pair| pair.ends[1].state() == state);
            }
        }
        State::Closed => {
            let _ = pair.ends[1].abort();
            pair.pump();
        }
        _ => {}
    }
    assert_eq!(pair.ends[1].state(), state);
    pair
}

/// Returns true if the table leads from one state to the other by the events of one segment: an ACK
/// of the SYN or FIN, then a FIN.
fn reachable(from: State, to: State) -> bool {
    use crate::state::StateEvent;
    let events = [
        StateEvent::Syn,
        StateEvent::SynAck,
        StateEvent::SynAcked,
        StateEvent::Close,
        StateEvent::Fin,
        StateEvent::FinAcked,
        StateEvent::Reset,
        StateEvent::Expired,
    ];
    let step = |state: State| events.iter().filter_map(move |&event| state.after(event));
    from == to
        || step(from).any(|first| {
            first == to || step(first).any(|second| second == to || step(second).any(|third| third == to))
        })
}

fn drain(end: &mut Connection, now: crate::Instant) {
    for turn in 0.. {
        assert!(turn < 1000, "never stops sending");
        if end.poll_transmit(now, |_| Ok(())) == Transmit::Nothing {
            return;
        }
    }
}

#[test]
fn every_state_survives_every_segment() {
    let offsets = [0_u32, 1, 50, u32::MAX, u32::MAX - 100, 60_000, 1 << 20, 1 << 31];
    for state in State::ALL {
        for flags in 0..=u8::MAX {
            let mut pair = pair_in(state);
            for (turn, (seq, ack)) in
                offsets.iter().flat_map(|seq| offsets.map(|ack| (*seq, ack))).enumerate()
            {
                let mut header: Header = pair.forged(0);
                header.seq += seq;
                header.ack += ack;
                header.flags = Flags::from_bits_retain(flags);
                let payload = &b"payload"[..[0, 7][turn % 2]];
                let before = pair.ends[1].state();
                let events =
                    pair.ends[1].handle_segment(pair.now, &Segment { header, payload }, EcnCodepoint::Ce);
                let end = &mut pair.ends[1];
                end.check();
                assert!(reachable(before, end.state()), "{before:?} to {:?} by {header:?}", end.state());
                assert_eq!(events.contains(Events::CLOSED), before != end.state() && end.is_closed());
                assert_eq!(events.contains(Events::TRANSMIT), end.wants_transmit(pair.now));
                drain(end, pair.now);
                end.check();
            }
        }
    }
}

#[test]
fn every_state_survives_every_call() {
    for state in State::ALL {
        for call in 0..10 {
            let mut pair = pair_in(state);
            let now = pair.now;
            let end = &mut pair.ends[1];
            match call {
                0 => drop(end.send(b"data")),
                1 => drop(end.recv(&mut [0; 10])),
                2 => drop(end.close()),
                3 => end.shutdown_read(),
                4 => drop(end.release(now)),
                5 => drop(end.abort()),
                6 => drop(end.probe(now)),
                7 => drop(end.set_path_mtu(100, None, now)),
                8 => end.widen_path(8960, 1460, now),
                _ => end.set_keepalive(Some(crate::Keepalive::default())),
            }
            assert!(reachable(state, end.state()));
            drain(end, now);
            end.check();
            // The connection ends or comes to rest.
            for _ in 0..1000 {
                if !pair.step() {
                    break;
                }
            }
        }
    }
}
