//! Two connections and a link between them, in virtual time. A segment sent by one arrives at the
//! other a little later, unless the test's script drops it.

use crate::config::{Config, InitialNumbers, Opening};
use crate::connection::Connection;
use crate::connection::{Events, Outgoing, Purpose, Transmit};
use crate::ecn::EcnCodepoint;
use crate::error::RecvError;
use crate::isn::{Flow, Secret};
use crate::listen::Listener;
use crate::listen::{Answer, Arrival, ListenConfig};
use crate::segment::{Flags, Header, Options, Segment};
use crate::seq::Seq;
use crate::state::State;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

pub const PATH_MSS: u16 = 1460;
const DELAY: Duration = Duration::from_micros(50);
/// Steps after which a test fails because nothing converges.
const MAX_STEPS: usize = 200_000;

/// A segment on the link.
pub struct Flying {
    pub at: Instant,
    pub bytes: Vec<u8>,
    pub ecn: EcnCodepoint,
    pub purpose: Purpose,
}

pub type Script = Box<dyn FnMut(usize, &mut Flying) -> bool>;

pub struct Pair {
    pub now: Instant,
    /// The side that connects, and the other.
    pub ends: [Connection; 2],
    pub wires: [VecDeque<Flying>; 2],
    /// Events returned by each side's calls.
    pub events: [Events; 2],
    /// Decides whether a segment of that side arrives; may change it.
    pub script: Script,
    pub delay: Duration,
}

pub fn flow() -> Flow {
    Flow { local: [10, 0, 0, 2].into(), remote: [10, 0, 0, 1].into(), local_port: 80, remote_port: 40_000 }
}

pub fn opening(local_port: u16, remote_port: u16, seq: u32) -> Opening {
    let numbers = InitialNumbers { seq: Seq(seq), timestamp_offset: seq / 2 };
    Opening { local_port, remote_port, numbers, path_mss: PATH_MSS, default_mss: 536 }
}

pub fn start() -> Instant {
    Instant(1_000_000_000_000)
}

pub fn emit(outgoing: &Outgoing<'_>, at: Instant) -> Flying {
    let mut bytes = vec![0; outgoing.len()];
    outgoing.emit(&mut bytes);
    Flying { at, bytes, ecn: outgoing.ecn, purpose: outgoing.purpose }
}

impl Pair {
    /// Returns an established pair with default configurations.
    pub fn established() -> Self {
        Self::open(&Config::default(), &Config::default())
    }

    /// Returns a pair established through a listener, with nothing in flight.
    pub fn open(client: &Config, server: &Config) -> Self {
        let mut now = start();
        let mut a = Connection::connect(client, &opening(40_000, 80, u32::MAX - 3000), now);
        let config = ListenConfig { connection: server.clone(), ..ListenConfig::default() };
        let mut listener = Listener::new(config, Secret([1; 16]));
        let arrival = |flying: &Flying, listener: &mut Listener, now| {
            let segment = Segment::parse(&flying.bytes).unwrap();
            let arrival =
                Arrival { flow: flow(), segment, ecn: flying.ecn, path_mss: PATH_MSS, room: true, iss: None };
            listener.handle_segment(now, &arrival)
        };
        let syn = next_of(&mut a, now).expect("a SYN");
        let Answer::Reply(answer) = arrival(&syn, &mut listener, now) else { panic!("no SYN-ACK") };
        now = now + DELAY + DELAY;
        let mut events =
            a.handle_segment(now, &Segment { header: answer, payload: &[] }, EcnCodepoint::NotEct);
        let ack = next_of(&mut a, now).expect("an ACK");
        let Answer::Accept(b, accepted) = arrival(&ack, &mut listener, now) else { panic!("not accepted") };
        events.remove(Events::TRANSMIT);
        Self {
            now,
            ends: [a, *b],
            wires: [VecDeque::new(), VecDeque::new()],
            events: [events, accepted],
            script: Box::new(|_, _| true),
            delay: DELAY,
        }
    }

    /// Returns a pair in which both ends open at once.
    pub fn crossing() -> Self {
        Self::crossing_with(&Config::default(), DELAY)
    }

    /// Returns such a pair on a path with this delay.
    pub fn crossing_with(config: &Config, delay: Duration) -> Self {
        let now = start();
        let a = Connection::connect(config, &opening(40_000, 80, 1000), now);
        let b = Connection::connect(config, &opening(80, 40_000, 2000), now);
        Self {
            now,
            ends: [a, b],
            wires: [VecDeque::new(), VecDeque::new()],
            events: [Events::empty(); 2],
            script: Box::new(|_, _| true),
            delay,
        }
    }

    pub fn states(&self) -> (State, State) {
        (self.ends[0].state(), self.ends[1].state())
    }

    /// Sends everything that is ready to leave.
    pub fn pump(&mut self) {
        for side in 0..2 {
            for turn in 0.. {
                assert!(turn < 10_000, "side {side} never stops sending");
                let Some(mut flying) = next_of(&mut self.ends[side], self.now) else { break };
                flying.at = self.now + self.delay;
                if (self.script)(side, &mut flying) {
                    self.wires[side].push_back(flying);
                }
            }
            self.ends[side].check();
        }
    }

    /// Handles the next arrival or timer; returns false if there is none.
    pub fn step(&mut self) -> bool {
        self.step_until(Instant(u64::MAX))
    }

    fn step_until(&mut self, limit: Instant) -> bool {
        self.pump();
        let arrival = |side: usize| self.wires[side].front().map(|flying| flying.at);
        let timer = |side: usize| self.ends[side].next_timeout();
        let next = [arrival(0), arrival(1), timer(0), timer(1)];
        let Some(at) = next.into_iter().flatten().min() else { return false };
        if at > limit {
            return false;
        }
        self.now = self.now.max(at);
        for side in 0..2 {
            if next[side].is_some_and(|at| at <= self.now) {
                let flying = self.wires[side].pop_front().expect("something arrives");
                self.deliver(1 - side, &flying);
            }
            if next[2 + side].is_some_and(|at| at <= self.now) {
                self.events[side] |= self.ends[side].handle_timeout(self.now);
            }
            self.ends[side].check();
        }
        self.pump();
        true
    }

    pub fn deliver(&mut self, to: usize, flying: &Flying) {
        let segment = Segment::parse(&flying.bytes).expect("what is sent parses");
        self.events[to] |= self.ends[to].handle_segment(self.now, &segment, flying.ecn);
    }

    /// Steps until `done` returns true.
    pub fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        self.pump();
        for _ in 0..MAX_STEPS {
            if done(self) {
                return;
            }
            assert!(self.step(), "nothing happens any more: {:?}", self.states());
        }
        panic!("no end: {:?}", self.states());
    }

    /// Lets `time` pass.
    pub fn wait(&mut self, time: Duration) {
        let limit = self.now + time;
        for _ in 0..MAX_STEPS {
            if !self.step_until(limit) {
                self.now = limit;
                return;
            }
        }
        panic!("no end: {:?}", self.states());
    }

    /// Sends `data` from one side and reads all of it at the other.
    pub fn transfer(&mut self, from: usize, data: &[u8]) {
        let (mut sent, mut got, mut buffer) = (0, Vec::new(), vec![0; 100_000]);
        self.until(|pair| {
            sent += pair.ends[from].send(&data[sent..]).unwrap_or(0);
            while let Ok(n) = pair.ends[1 - from].recv(&mut buffer) {
                if n == 0 {
                    break;
                }
                got.extend_from_slice(&buffer[..n]);
            }
            pair.pump();
            got.len() >= data.len()
        });
        assert!(got == data, "what arrived is not what was sent");
    }

    /// Returns a segment as `from` could send it now, for the test to alter.
    pub fn forged(&self, from: usize) -> Header {
        let (end, other) = (&self.ends[from], &self.ends[1 - from]);
        let timestamps = other.set.contains(super::super::Set::TIMESTAMPS).then(|| end.timestamps(self.now));
        Header {
            source: end.local_port(),
            destination: end.remote_port(),
            seq: end.sender.nxt(),
            ack: end.receive.next,
            flags: Flags::ACK,
            window: 1000,
            options: Options { timestamps, ..Options::default() },
        }
    }

    /// Delivers a segment to `to`; returns its answer, if it has one.
    pub fn answer(&mut self, to: usize, header: Header, payload: &[u8]) -> Option<Header> {
        self.events[to] |=
            self.ends[to].handle_segment(self.now, &Segment { header, payload }, EcnCodepoint::NotEct);
        self.ends[to].check();
        let flying = next_of(&mut self.ends[to], self.now)?;
        Some(Segment::parse(&flying.bytes).unwrap().header)
    }

    /// Reads everything readable; returns the bytes, and true if the stream ended.
    pub fn read(&mut self, side: usize) -> (Vec<u8>, bool) {
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.ends[side].recv(&mut buffer) {
                Ok(0) => return (got, true),
                Ok(n) => got.extend_from_slice(&buffer[..n]),
                Err(RecvError::WouldBlock | RecvError::Failed(_)) => return (got, false),
            }
        }
    }
}

/// Returns the next segment of `end`.
pub fn next_of(end: &mut Connection, now: Instant) -> Option<Flying> {
    let mut flying = None;
    let wanted = end.wants_transmit(now);
    let transmit = end.poll_transmit(now, |outgoing| {
        flying = Some(emit(outgoing, now));
        Ok(())
    });
    assert_eq!(transmit == Transmit::Sent, wanted && flying.is_some());
    flying
}

/// Returns bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
