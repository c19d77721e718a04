//! Shared bytes: queued by reference, sent across boundaries, freed when they are acknowledged.

use super::pair::{Flying, Pair, next_of, opening, pattern, start};
use crate::config::Config;
use crate::connection::{Connection, Events, FastOpenPeer};
use crate::ecn::EcnCodepoint;
use crate::error::{Error, SendError};
use crate::segment::{Cookie, Flags, Header, SackBlock, Segment};
use crate::seq::Seq;
use crate::shared::SharedBytes;
use crate::state::State;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;
use proptest::prelude::*;

/// Bytes of data in a full segment of a pair: [`PATH_MSS`](super::pair::PATH_MSS) less timestamps.
const MSS: usize = 1448;

/// Data, a part of which is shared.
struct Shared {
    memory: Arc<Vec<u8>>,
    bytes: SharedBytes,
}

impl Shared {
    fn new(len: usize) -> Self {
        let memory = Arc::new(pattern(len));
        let bytes = SharedBytes::from(Arc::clone(&memory));
        Self { memory, bytes }
    }

    /// Returns the number of references besides this one's two.
    fn held(&self) -> usize {
        Arc::strong_count(&self.memory) - 2
    }
}

/// Hands over copied and shared bytes in turn; returns all of them. The pieces end within segments.
fn send_mixed(end: &mut Connection, shared: &Shared) -> Vec<u8> {
    let (bytes, cut) = (&shared.bytes, shared.bytes.len() / 2);
    let pieces = [bytes.slice(..cut), bytes.slice(cut..)];
    let mut all = Vec::new();
    for (piece, copied) in pieces.iter().zip([&b"copied bytes"[..], &[9; 777]]) {
        assert_eq!(end.send(copied), Ok(copied.len()));
        assert_eq!(end.send_shared(piece), Ok(piece.len()));
        all.extend_from_slice(copied);
        all.extend_from_slice(piece);
    }
    assert_eq!(end.send(b"the end"), Ok(7));
    all.extend_from_slice(b"the end");
    all
}

/// Returns the data of the segments from the side that connects.
fn data_on_the_wire(pair: &Pair) -> Vec<Vec<u8>> {
    let payload = |flying: &Flying| Segment::parse(&flying.bytes).unwrap().payload.to_vec();
    pair.wires[0].iter().map(payload).filter(|payload| !payload.is_empty()).collect()
}

#[test]
fn segments_are_full_across_the_boundaries_of_copied_and_shared_bytes() {
    let (mut pair, shared) = (Pair::established(), Shared::new(9000));
    let all = send_mixed(&mut pair.ends[0], &shared);
    pair.pump();
    let segments = data_on_the_wire(&pair);
    let (last, full) = segments.split_last().unwrap();
    assert!(full.iter().all(|segment| segment.len() == MSS) && last.len() < MSS);
    assert!(segments.concat() == all);
}

#[test]
fn a_reference_is_kept_until_the_acknowledgment_and_nothing_afterwards() {
    let (mut pair, shared) = (Pair::established(), Shared::new(9000));
    let all = send_mixed(&mut pair.ends[0], &shared);
    pair.pump();
    assert_eq!(shared.held(), 2, "sent is not acknowledged");
    assert!(pair.ends[0].stats().heap_bytes >= all.len());
    pair.wait(Duration::from_secs(3));
    assert_eq!((shared.held(), pair.ends[0].stats().heap_bytes), (0, 0));
    assert!(pair.read(1).0 == all);
}

#[test]
fn a_lost_segment_is_sent_again_from_both_sides_of_a_boundary() {
    // Each segment in turn is lost once; the first begins with copied bytes and ends with shared
    // ones.
    for lost in 0..7 {
        let (mut pair, shared) = (Pair::established(), Shared::new(9000));
        let mut number = 0;
        pair.script = Box::new(move |side, flying| {
            let data = side == 0 && !Segment::parse(&flying.bytes).unwrap().payload.is_empty();
            number += usize::from(data);
            !data || number != lost + 1
        });
        let all = send_mixed(&mut pair.ends[0], &shared);
        pair.wait(Duration::from_secs(3));
        assert!(pair.read(1).0 == all, "segment {lost}");
        assert!(pair.ends[0].stats().retransmissions > 0, "segment {lost}");
        assert_eq!(shared.held(), 0);
    }
}

/// Sends mixed data of which nothing arrives; returns it.
fn send_and_lose(pair: &mut Pair, shared: &Shared) -> Vec<u8> {
    let all = send_mixed(&mut pair.ends[0], shared);
    pair.pump();
    pair.wires[0].clear();
    all
}

/// Delivers an ACK to the side that connects.
fn acknowledge(pair: &mut Pair, ack: Header) {
    let _ =
        pair.ends[0].handle_segment(pair.now, &Segment { header: ack, payload: b"" }, EcnCodepoint::NotEct);
    pair.ends[0].check();
}

/// Returns which bytes of `all` the side that connects sends next, now or when a timer expires;
/// `first` is the number of the first of `all`.
fn next_sent(pair: &mut Pair, all: &[u8], first: Seq) -> Range<usize> {
    let flying = (0..10).find_map(|_| {
        next_of(&mut pair.ends[0], pair.now).or_else(|| {
            pair.now = pair.now.max(pair.ends[0].next_timeout()?);
            let _ = pair.ends[0].handle_timeout(pair.now);
            None
        })
    });
    let bytes = flying.expect("a retransmission").bytes;
    let segment = Segment::parse(&bytes).unwrap();
    let from = (segment.header.seq - first) as usize;
    let sent = from..from + segment.payload.len();
    assert!(!sent.is_empty() && *segment.payload == all[sent.clone()], "{sent:?}");
    sent
}

#[test]
fn after_an_acknowledgment_within_a_piece_its_rest_is_sent_again() {
    // Without SACK there is no tail loss probe: the first unacknowledged byte is sent again first.
    let config = Config { sack: false, ..Config::default() };
    let (mut pair, shared) = (Pair::open(&config, &Config::default()), Shared::new(9000));
    let first = pair.ends[0].sender.una();
    let all = send_and_lose(&mut pair, &shared);
    // Within the first piece, within the bytes between, within the second piece.
    for acked in [2000, 4512 + 500, 7000] {
        let ack = Header { ack: first + acked, window: 60_000, ..pair.forged(1) };
        acknowledge(&mut pair, ack);
        assert_eq!(pair.ends[0].unacknowledged_bytes(), all.len() - acked as usize);
        assert_eq!(next_sent(&mut pair, &all, first).start, acked as usize);
    }
    assert_eq!(shared.held(), 1, "the first piece is acknowledged");
}

#[test]
fn around_the_sacked_middle_of_a_piece_the_rest_of_it_is_sent_again() {
    let (mut pair, shared) = (Pair::established(), Shared::new(9000));
    let first = pair.ends[0].sender.una();
    let all = send_and_lose(&mut pair, &shared);
    // The middles of both pieces, which lie at 12..4512 and 5289..9789.
    let held = [(2000, 4000), (6000, 9000)];
    for (sent, references) in [(1000..2000, 2), (4000..5448, 2), (5448..6000, 1), (9000..9796, 1)] {
        let acked = sent.start as u32;
        let mut ack = Header { ack: first + acked, window: 60_000, ..pair.forged(1) };
        let block = |&(from, to): &(u32, u32)| SackBlock { start: first + from, end: first + to };
        ack.options.sack = held.iter().filter(|held| held.0 > acked).map(block).collect();
        acknowledge(&mut pair, ack);
        assert_eq!(next_sent(&mut pair, &all, first), sent);
        assert_eq!(shared.held(), references);
    }
}

#[test]
fn a_close_behind_shared_bytes_delivers_them() {
    let (mut pair, shared) = (Pair::established(), Shared::new(9000));
    let all = send_mixed(&mut pair.ends[0], &shared);
    let _ = pair.ends[0].close();
    assert_eq!(pair.ends[0].send_shared(&shared.bytes), Err(SendError::Closed));
    pair.wait(Duration::from_secs(1));
    let (got, ended) = pair.read(1);
    assert!(got == all && ended);
    assert_eq!((shared.held(), pair.states()), (0, (State::FinWait2, State::CloseWait)));
}

#[test]
fn a_connection_that_ends_early_drops_its_references() {
    let (mut aborted, shared) = (Pair::established(), Shared::new(9000));
    send_mixed(&mut aborted.ends[0], &shared);
    let _ = aborted.ends[0].abort();
    assert_eq!(shared.held(), 0);

    let mut reset = Pair::established();
    send_mixed(&mut reset.ends[0], &shared);
    reset.pump();
    let mut header = reset.forged(1);
    header.flags = Flags::RST;
    let _ = reset.answer(0, header, b"");
    assert_eq!((reset.ends[0].error(), shared.held()), (Some(Error::Reset), 0));

    let mut silent = Pair::established();
    silent.script = Box::new(|_, _| false);
    send_mixed(&mut silent.ends[0], &shared);
    silent.wait(Duration::from_mins(20));
    assert_eq!((silent.ends[0].error(), shared.held()), (Some(Error::TimedOut), 0));

    let mut dropped = Pair::established();
    send_mixed(&mut dropped.ends[0], &shared);
    assert_eq!(shared.held(), 2);
    drop(dropped);
    assert_eq!(shared.held(), 0);
}

#[test]
fn shared_bytes_have_their_room_in_the_send_buffer() {
    const ROOM: usize = 10_000;
    let config = Config { send_buffer: ROOM as u32, ..Config::default() };
    let (mut pair, shared) = (Pair::open(&config, &Config::default()), Shared::new(50_000));
    let end = &mut pair.ends[0];
    assert_eq!(end.send(&[1; 3000]), Ok(3000));
    assert_eq!(end.send_shared(&shared.bytes), Ok(ROOM - 3000));
    assert_eq!((end.writable_bytes(), end.unacknowledged_bytes()), (0, ROOM));
    assert_eq!(end.send_shared(&shared.bytes), Err(SendError::WouldBlock));
    assert_eq!(end.send(b"x"), Err(SendError::WouldBlock));
    // Fewer bytes than before; what is queued stays.
    end.set_send_buffer(4000);
    end.check();
    pair.events[0] = Events::empty();
    pair.wait(Duration::from_secs(1));
    assert!(pair.events[0].contains(Events::WRITABLE));
    assert_eq!(pair.ends[0].writable_bytes(), 4000);
}

#[test]
fn a_syn_carries_the_beginning_of_shared_bytes() {
    let shared = Shared::new(9000);
    let mut end = Connection::connect(&Config::default(), &opening(40_000, 80, 1000), start());
    end.offer_fast_open(Some(FastOpenPeer { cookie: Cookie::new(&[7; 8]).unwrap(), mss: 1460 }));
    assert_eq!(end.send_shared(&shared.bytes), Ok(9000));
    let syn = next_of(&mut end, start()).expect("a SYN");
    let payload = Segment::parse(&syn.bytes).unwrap().payload;
    assert!(payload.len() > 1000 && *payload == shared.bytes[..payload.len()]);
}

proptest! {
    /// Copied and shared pieces of random lengths over a link that loses and reorders.
    #[test]
    fn every_byte_arrives_in_order_whichever_way_it_was_sent(
        losses in prop::collection::vec(0_usize..150, 0..20),
        swaps in prop::collection::vec(any::<bool>(), 1..50),
        pieces in prop::collection::vec((any::<bool>(), 1_usize..9000), 1..16),
        send_buffer in prop::sample::select(&[4096_u32, 30_000, 1 << 20][..]),
    ) {
        let config = Config { send_buffer, ..Config::default() };
        let mut pair = Pair::open(&config, &Config::default());
        let mut segments = 0;
        pair.script = Box::new(move |side, _| {
            segments += usize::from(side == 0);
            side == 1 || !losses.contains(&segments)
        });
        let data = Shared::new(pieces.iter().map(|piece| piece.1).sum());
        let (mut rest, mut got, mut swaps) = (data.bytes.clone(), Vec::new(), swaps.into_iter().cycle());
        let mut pieces = pieces.into_iter();
        let mut piece = pieces.next();
        pair.until(|pair| {
            while let Some((by_reference, left)) = &mut piece {
                let part = rest.slice(..*left);
                let end = &mut pair.ends[0];
                let sent = if *by_reference { end.send_shared(&part) } else { end.send(&part) };
                let Ok(sent) = sent else { break };
                rest.advance(sent);
                *left -= sent;
                if *left == 0 {
                    piece = pieces.next();
                }
            }
            pair.pump();
            let wire = &mut pair.wires[0];
            if wire.len() > 1 && swaps.next() == Some(true) {
                // What each carries changes places, not when it arrives.
                let last = wire.len() - 1;
                let bytes = core::mem::take(&mut wire[0].bytes);
                wire[0].bytes = core::mem::replace(&mut wire[last].bytes, bytes);
            }
            got.extend(pair.read(1).0);
            pair.pump();
            got.len() == data.memory.len()
        });
        prop_assert!(got == *data.memory);
        drop(rest);
        pair.wait(Duration::from_secs(3));
        prop_assert_eq!(data.held(), 0);
        prop_assert_eq!(pair.ends[0].unacked.capacity(), 0);
    }
}
