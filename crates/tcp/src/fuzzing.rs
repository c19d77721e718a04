//! Two connections and a hostile network driven by a list of operations of a few bytes each: one
//! model for property tests and for fuzzing.
//!
//! Owns the pair, the segments between them, and the checks. After each operation the connections'
//! invariants hold, and memory and output are bounded. Without forgeries, the bytes read are the
//! bytes written. At the end, on a network that is good again, both come to rest. The module is no
//! stable interface for other repositories.
//!
//! The first byte of the input selects the pair. Its two highest bits: 0, established; 1, two SYNs
//! that will cross; 2, established after a cookie of Fast Open that the peer did not hand out; 3,
//! opened by data on a SYN with a valid cookie. The others are options.
//!
//! | first byte | argument bytes | operation, on the side of its lowest bit |
//! |---|---|---|
//! | 0-31 | length | send: copied or shared, with more announced or not, by the length |
//! | 32-63 | length | receive |
//! | 64-95 | - | the oldest segment on the way to it arrives |
//! | 96-127 | which | a segment on the way is lost, or arrives now, or arrives twice |
//! | 128-159 | exponent | time passes: up to 2^40 ns, or until its next timer |
//! | 160-175 | what | an option changes |
//! | 176-187 | - | close, shut down reading, release or abort |
//! | 188-255 | eight bytes | a forged segment arrives |

mod opened;

pub use opened::fast_open_cookie;

use crate::closed::answer_closed;
use crate::config::{Config, InitialNumbers, Keepalive, Opening};
use crate::connection::{Connection, FastOpenPeer, IcmpError, Transmit};
use crate::ecn::EcnCodepoint;
use crate::listen;
use crate::segment::{Cookie, FastOpen, Flags, Header, Options, SackBlock, Segment, Timestamps};
use crate::seq::Seq;
use crate::shared::SharedBytes;
use crate::state::State;
use crate::time::Instant;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

/// Operations in one run: more find nothing that fewer do not.
const MAX_OPERATIONS: usize = 400;
/// Most segments on the way in one direction; a network drops the rest.
const MAX_FLYING: usize = 64;
/// Steps after which two ends on a good network must have come to rest.
const MAX_SETTLING: usize = 20_000;
const BUFFER: u32 = 20_000;
/// Data in the smallest full segment: the least MSS, 48, less 40 bytes of timestamps and three SACK
/// blocks.
const LEAST_DATA: u32 = 8;
/// Most segments sent at once: all data again, all new data, and segments without data.
const MAX_BURST: u32 = 2 * BUFFER / LEAST_DATA + 100;

struct Flying {
    bytes: Vec<u8>,
    ecn: EcnCodepoint,
}

struct Model {
    now: Instant,
    ends: [Connection; 2],
    /// Segments on the way to each end.
    wires: [VecDeque<Flying>; 2],
    /// Bytes each end has accepted, and bytes it has returned.
    sent: [u64; 2],
    received: [u64; 2],
    /// True if a forgery arrived or an end stopped reading: then no property of the data is
    /// checked.
    forged: bool,
}

/// Returns the byte at a position of the stream from `side`.
fn byte(side: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ side as u8
}

fn opening(local_port: u16, remote_port: u16, seq: u32) -> Opening {
    let numbers = InitialNumbers { seq: Seq(seq), timestamp_offset: 0 };
    Opening { local_port, remote_port, numbers, path_mss: 1000, default_mss: 536 }
}

/// Returns a cookie that no listener hands out.
fn cookie() -> Cookie {
    Cookie::new(&[7; 8]).expect("eight bytes are a cookie")
}

/// Takes the next byte of the input.
fn next(input: &mut &[u8]) -> u8 {
    let (&first, rest) = input.split_first().unwrap_or((&0, &[]));
    *input = rest;
    first
}

impl Model {
    /// Creates the pair that the first byte of the input selects: its options and how far the
    /// connections have come.
    fn new(kind: u8) -> Self {
        let config = Config {
            receive_buffer: BUFFER,
            send_buffer: BUFFER,
            timestamps: kind & 1 == 0,
            sack: kind & 2 == 0,
            window_scaling: kind & 4 == 0,
            ecn: kind & 8 != 0,
            nodelay: kind & 16 != 0,
            keepalive: (kind & 32 != 0).then(Keepalive::default),
            ..Config::default()
        };
        let now = Instant(1_000_000_000);
        let (client, server) = (opening(1, 2, u32::MAX - 5000), opening(2, 1, 77));
        let by_cookie = kind & 192 == 192;
        let ends = if by_cookie {
            opened::by_cookie(&config, &client, now)
        } else {
            [Connection::connect(&config, &client, now), Connection::connect(&config, &server, now)]
        };
        let mut model = Self {
            now,
            ends,
            wires: [VecDeque::new(), VecDeque::new()],
            sent: [if by_cookie { opened::EARLY as u64 } else { 0 }, 0],
            received: [0; 2],
            forged: false,
        };
        if kind & 192 == 128 {
            // Neither end knows of the other's cookie: data on a SYN is never accepted, but forged
            // answers acknowledge it.
            model.ends[0].offer_fast_open(Some(FastOpenPeer { cookie: cookie(), mss: 1000 }));
        }
        if kind & 64 == 0 {
            // They become established by opening at once.
            model.settle();
            assert!(model.ends.iter().all(|end| end.state() == State::Established));
        }
        model
    }

    fn pump(&mut self, side: usize) {
        for turn in 0.. {
            assert!(turn < MAX_BURST, "side {side} never stops sending");
            let mut left = None;
            let transmit = self.ends[side].poll_transmit(self.now, |outgoing| {
                let mut bytes = vec![0xa5; outgoing.len()];
                assert_eq!(outgoing.emit(&mut bytes), bytes.len());
                left = Some(Flying { bytes, ecn: outgoing.ecn });
                Ok(())
            });
            self.ends[side].check();
            let _ = self.ends[side].take_writable();
            let Some(flying) = left else {
                assert_eq!(transmit, Transmit::Nothing);
                return;
            };
            if self.wires[1 - side].len() < MAX_FLYING {
                self.wires[1 - side].push_back(flying);
            }
        }
    }

    fn arrive(&mut self, to: usize, flying: &Flying) {
        let segment = Segment::parse(&flying.bytes).expect("what was sent parses");
        if self.ends[to].is_closed() {
            // A host without such a connection answers so.
            if let Some(reset) = answer_closed(&segment) {
                let mut bytes = vec![0; reset.len()];
                reset.emit(&mut bytes);
                self.wires[1 - to].push_back(Flying { bytes, ecn: EcnCodepoint::NotEct });
            }
            return;
        }
        let _ = self.ends[to].handle_segment(self.now, &segment, flying.ecn);
        self.ends[to].check();
        self.pump(to);
    }

    fn send(&mut self, side: usize, len: usize) {
        let data: Vec<u8> = (0..len as u64).map(|i| byte(side, self.sent[side] + i)).collect();
        let end = &mut self.ends[side];
        let taken = match len % 3 {
            0 => end.send_more(&data),
            1 => end.send(&data),
            _ => end.send_shared(&SharedBytes::from(data)),
        };
        self.sent[side] += taken.unwrap_or(0) as u64;
        self.pump(side);
    }

    fn receive(&mut self, side: usize, len: usize) {
        let mut buffer = vec![0; len];
        if let Ok(got) = self.ends[side].recv(&mut buffer)
            && !self.forged
        {
            let expected = |i: usize| byte(1 - side, self.received[side] + i as u64);
            assert!((0..got).all(|i| buffer[i] == expected(i)), "the stream to {side} is not what was sent");
            self.received[side] += got as u64;
            assert!(self.received[side] <= self.sent[1 - side]);
        }
        self.pump(side);
    }

    fn operate(&mut self, operation: u8, input: &mut &[u8]) {
        let side = usize::from(operation & 1);
        match operation {
            0..=31 => self.send(side, usize::from(next(input)) * 37),
            32..=63 => self.receive(side, usize::from(next(input)) * 53),
            64..=95 => {
                if let Some(flying) = self.wires[side].pop_front() {
                    self.arrive(side, &flying);
                }
            }
            96..=127 => self.misbehave(side, next(input)),
            128..=159 => {
                let exponent = next(input) % 42;
                self.now = match self.ends[side].next_timeout() {
                    Some(at) if exponent == 41 => self.now.max(at),
                    _ => self.now + Duration::from_nanos(1 << exponent.min(40)),
                };
                for side in 0..2 {
                    let _ = self.ends[side].handle_timeout(self.now);
                    self.pump(side);
                }
            }
            160..=175 => self.change(side, next(input)),
            176..=187 => {
                let end = &mut self.ends[side];
                self.forged |= matches!(operation, 180..=183);
                match (operation - 176) / 2 {
                    0 | 1 => drop(end.close()),
                    2 => end.shutdown_read(),
                    3 => drop(end.release(self.now)),
                    4 => drop(end.abort()),
                    _ => drop(end.probe(self.now)),
                }
                self.pump(side);
            }
            188..=255 => self.forge(side, input),
        }
    }

    /// Drops, delivers or repeats a segment on the way.
    fn misbehave(&mut self, side: usize, what: u8) {
        let wire = &mut self.wires[side];
        if wire.is_empty() {
            return;
        }
        let which = usize::from(what >> 2) % wire.len();
        match what & 3 {
            0 => drop(wire.remove(which)),
            1 => wire.swap(0, which),
            2 => wire[which].ecn = EcnCodepoint::Ce,
            _ => {
                let Flying { bytes, ecn } = &wire[which];
                let twice = Flying { bytes: bytes.clone(), ecn: *ecn };
                self.arrive(side, &twice);
            }
        }
    }

    fn change(&mut self, side: usize, what: u8) {
        let (end, now) = (&mut self.ends[side], self.now);
        let size = u32::from(what >> 3) * 1000;
        match what & 7 {
            0 => end.set_receive_buffer(size.min(BUFFER)),
            1 => end.set_send_buffer(size.min(BUFFER)),
            2 => end.set_nodelay(size > 0),
            3 => end.set_keepalive((size > 0).then(Keepalive::default)),
            4 => end.set_user_timeout(Some(Duration::from_millis(size.into()))),
            5 => drop(end.set_path_mtu(size as u16, None, now)),
            6 => drop(end.handle_icmp(IcmpError::PortUnreachable, Seq(size))),
            _ => match what >> 3 {
                0 => end.push(),
                1 | 2 => end.set_cork(what >> 3 == 1),
                3..=15 => end.set_max_segment(Some(what.into())),
                16 => end.widen_path(8960, 1000, now),
                17 => end.set_window_ceiling(2920),
                _ => drop(end.set_notsent_lowat((what < 240).then_some(size))),
            },
        }
        let _ = end.info(20, now);
        self.pump(side);
    }

    /// Delivers a forged segment: its numbers are close to the peer's state, everything else is as
    /// the input says.
    fn forge(&mut self, to: usize, input: &mut &[u8]) {
        let bytes: [u8; 8] = core::array::from_fn(|_| next(input));
        let near = |base: Seq, by: u8| base + (i32::from(by as i8) * 150) as u32;
        let (seq, ack) = self.ends[to].numbers();
        let timestamps = Timestamps {
            value: (self.now.0 / 1_000_000) as u32 - u32::from(bytes[5] & 3),
            echo: bytes[5].into(),
        };
        let block = SackBlock { start: near(ack, bytes[6]), end: near(ack, bytes[7]) };
        let options = Options {
            timestamps: (bytes[3] & 1 == 0).then_some(timestamps),
            sack: (bytes[3] & 2 != 0).then_some(block).into_iter().collect(),
            mss: (bytes[3] & 4 != 0).then_some(u16::from(bytes[6]) << 3),
            window_scale: (bytes[3] & 8 != 0).then_some(bytes[7]),
            sack_permitted: bytes[3] & 16 != 0,
            fast_open: if bytes[3] & 32 != 0 { FastOpen::Cookie(cookie()) } else { FastOpen::None },
        };
        let header = Header {
            source: 2 - to as u16,
            destination: 1 + to as u16,
            seq: near(seq, bytes[0]),
            ack: near(ack, bytes[1]),
            flags: Flags::from_bits_retain(bytes[2]),
            window: u16::from(bytes[4]) << (bytes[4] & 7),
            options,
        };
        let payload = [0x5a; 256];
        let segment =
            Segment { header, payload: &payload[..usize::from(bytes[6]) * usize::from(bytes[3] >> 7)] };
        self.forged = true;
        let _ = self.ends[to].handle_segment(self.now, &segment, EcnCodepoint::from_bits(bytes[3] >> 5));
        self.ends[to].check();
        self.pump(to);
    }

    /// Runs a good network with both ends reading until everything has arrived or a connection has
    /// ended, and checks that nothing is left to do.
    fn settle(&mut self) {
        (0..2).for_each(|side| self.pump(side));
        for _ in 0..MAX_SETTLING {
            let mut idle = true;
            for side in 0..2 {
                if let Some(flying) = self.wires[side].pop_front() {
                    self.arrive(side, &flying);
                    idle = false;
                }
                if self.ends[side].readable_bytes() > 0 {
                    self.receive(side, 4096);
                    idle = false;
                }
            }
            if !idle {
                continue;
            }
            let waits = |end: &Connection| end.unacknowledged_bytes() > 0 || end.stats().in_flight > 0;
            let waiting = self.ends.iter().any(|end| !end.is_closed() && waits(end));
            let due = self.ends.iter().filter_map(Connection::next_timeout).min();
            let (true, Some(at)) = (waiting, due) else { return };
            self.now = self.now.max(at);
            for side in 0..2 {
                let _ = self.ends[side].handle_timeout(self.now);
                self.pump(side);
            }
        }
        panic!("no rest: {:?} and {:?}", self.ends[0].state(), self.ends[1].state());
    }

    /// Checks two ends at rest that saw no forgery.
    fn check_delivery(&self) {
        if self.forged || self.ends.iter().any(|end| end.error().is_some()) {
            return;
        }
        for side in 0..2 {
            let reads =
                self.ends[side].readable_bytes() == 0 && self.ends[1 - side].state().is_synchronized();
            if reads && self.ends[side].state() == State::Established {
                assert_eq!(self.received[side], self.sent[1 - side], "bytes are missing at {side}");
            }
        }
    }
}

/// Runs the operations in `input`; the first byte selects options.
///
/// # Panics
/// If a check fails, which is a defect of this crate.
pub fn operations(mut input: &[u8]) {
    let mut model = Model::new(next(&mut input));
    for _ in 0..MAX_OPERATIONS {
        if input.is_empty() {
            break;
        }
        let operation = next(&mut input);
        model.operate(operation, &mut input);
    }
    model.settle();
    model.check_delivery();
}

/// Passes `input` as a segment to the parser, to a closed port, to a listener and to connections.
///
/// # Panics
/// If a check fails, which is a defect of this crate.
pub fn segment(input: &[u8]) {
    let Ok(segment) = Segment::parse(input) else { return };
    let mut bytes = vec![0; segment.header.len() + segment.payload.len()];
    let at = segment.header.emit(&mut bytes);
    bytes[at..].copy_from_slice(segment.payload);
    let again = Segment::parse(&bytes).expect("what was read can be written");
    assert_eq!(
        (again.header.seq, again.header.flags, again.payload),
        (segment.header.seq, segment.header.flags, segment.payload)
    );
    if let Some(reset) = answer_closed(&segment) {
        assert!(answer_closed(&Segment { header: reset, payload: &[] }).is_none(), "a reset is answered");
    }
    let now = Instant(1 << 40);
    let flow = opened::flow(segment.header.destination, segment.header.source);
    for syn_queue in [0, 2] {
        let config = listen::ListenConfig { syn_queue, fast_open: 1, ..listen::ListenConfig::default() };
        let mut listener = listen::Listener::new(config, opened::SECRET);
        for _ in 0..2 {
            let ecn = EcnCodepoint::Ect0;
            let arrival = listen::Arrival { flow, segment, ecn, path_mss: 1460, room: true, iss: None };
            if let listen::Answer::Accept(mut connection, _) = listener.handle_segment(now, &arrival) {
                connection.check();
                assert!(connection.readable_bytes() <= segment.payload.len());
                let _ = connection.handle_segment(now, &segment, ecn);
                connection.check();
            }
        }
        assert!(listener.pending() <= syn_queue);
    }
    for kind in [0, 7, 64, 192] {
        let mut model = Model::new(kind);
        for to in 0..2 {
            let _ = model.ends[to].handle_segment(model.now, &segment, EcnCodepoint::Ce);
            model.ends[to].check();
            model.pump(to);
        }
    }
    let mut model = Model::new(0);
    for end in &mut model.ends {
        let _ = end.close();
    }
    model.settle();
    for end in &model.ends {
        if let Some(mut value) = end.time_wait() {
            let _ = value.handle_segment(&segment, model.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates operations with few forgeries, so that many runs check the data.
    fn honest() -> impl Strategy<Value = Vec<u8>> {
        let operation = prop_oneof![
            4 => (0..128_u8, any::<u8>()).prop_map(|(operation, argument)| vec![operation, argument]),
            2 => (64..96_u8).prop_map(|operation| vec![operation]),
            1 => (128..160_u8, 15..42_u8).prop_map(|(operation, argument)| vec![operation, argument]),
            1 => (160..172_u8, any::<u8>()).prop_map(|(operation, argument)| vec![operation, argument]),
        ];
        (any::<u8>(), prop::collection::vec(operation, 0..200)).prop_map(|(kind, operations)| {
            let mut bytes = vec![kind];
            bytes.extend(operations.concat());
            bytes
        })
    }

    #[test]
    fn old_acks_do_not_keep_a_connection_whose_window_is_closed() {
        // A segment is lost; a forged ACK acknowledges it and closes the window.
        operations(&[9, 0, 2, 0x65, 0x10, 0, 0xbe, 0xbe, 0x19, 0xd6, 0x39, 0, 0, 0x40]);
    }

    proptest! {
        #[test]
        fn any_operations_leave_the_invariants(input in prop::collection::vec(any::<u8>(), 0..600)) {
            operations(&input);
        }

        #[test]
        fn a_bad_network_loses_no_byte(input in honest()) {
            operations(&input);
        }

        #[test]
        fn any_bytes_are_survived_as_a_segment(input in prop::collection::vec(any::<u8>(), 20..120)) {
            segment(&input);
        }
    }
}
