//! Two ends, the links between them, and the applications on top.

use core::time::Duration;

use tailwater_tcp::listen::{Arrival, ListenConfig};
use tailwater_tcp::{
    Answer, Config, Connection, EcnCodepoint, Error, Events, Flow, Header, InitialNumbers, Instant, Listener,
    Opening, RecvError, Secret, Segment, SendError, Seq, State, Transmit, answer_closed,
};

use crate::dice::Dice;
use crate::link::{Link, LinkPlan, Packet};

pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;
const PORTS: [u16; 2] = [40_000, 80];
/// Segments one side may send without anything else happening.
const MAX_BURST: u32 = 20_000;
/// Memory of a connection beyond its buffers and four times that: rounding, ranges.
const SLACK: usize = 1 << 18;

/// What one application does.
#[derive(Clone, Debug)]
pub struct AppPlan {
    /// Bytes it sends, then it closes.
    pub bytes: u64,
    /// Bytes at most in one call.
    pub write: usize,
    pub read: usize,
    /// Between calls at most.
    pub pause: Duration,
    /// Aborts when so much was read.
    pub aborts_after: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub configs: [Config; 2],
    pub apps: [AppPlan; 2],
    /// From the client to the server, and back.
    pub links: [LinkPlan; 2],
    pub path_mss: u16,
    /// True if both connect and neither listens.
    pub crossing: bool,
    pub max_steps: u32,
}

/// How a side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It sent all, read all and closed.
    Clean,
    /// It got a connection and lost it.
    Failed(Error),
    /// For a peer who is gone.
    Waits,
}

#[derive(Debug)]
struct Side {
    connection: Option<Connection>,
    app: AppPlan,
    written: u64,
    read: u64,
    eof: bool,
    closed: bool,
    acts_at: Instant,
    failed: Option<Error>,
}

#[derive(Debug)]
pub struct World {
    pub now: Instant,
    plan: Plan,
    sides: [Side; 2],
    links: [Link; 2],
    listener: Listener,
    dice: Dice,
    buffer: Vec<u8>,
    pub steps: u32,
}

/// Byte number `at` of what `side` sends.
fn byte(side: usize, at: u64) -> u8 {
    ((at + side as u64 * 77).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51) as u8
}

fn flow() -> Flow {
    Flow {
        local: [10, 0, 0, 2].into(),
        remote: [10, 0, 0, 1].into(),
        local_port: PORTS[SERVER],
        remote_port: PORTS[CLIENT],
    }
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let now = Instant(1_000_000_000);
        let mut dice = Dice(plan.seed ^ 0x5EED);
        let mut connect = |side: usize| {
            let numbers =
                InitialNumbers { seq: Seq(dice.next() as u32), timestamp_offset: dice.next() as u32 };
            let opening = Opening {
                local_port: PORTS[side],
                remote_port: PORTS[1 - side],
                numbers,
                path_mss: plan.path_mss,
                default_mss: 536,
            };
            Connection::connect(&plan.configs[side], &opening, now)
        };
        let connections = [Some(connect(CLIENT)), plan.crossing.then(|| connect(SERVER))];
        let listen = ListenConfig { connection: plan.configs[SERVER].clone(), ..ListenConfig::default() };
        let mut apps = plan.apps.clone().into_iter();
        let sides = connections.map(|connection| Side {
            connection,
            app: apps.next().expect("two"),
            written: 0,
            read: 0,
            eof: false,
            closed: false,
            acts_at: now,
            failed: None,
        });
        Self {
            now,
            sides,
            links: [
                Link::new(plan.links[0].clone(), plan.seed ^ 0xA),
                Link::new(plan.links[1].clone(), plan.seed ^ 0xB),
            ],
            listener: Listener::new(listen, Secret([7; 16])),
            dice,
            buffer: vec![0; 1 << 16],
            plan,
            steps: 0,
        }
    }

    /// Runs until both sides have ended.
    pub fn run(&mut self) -> [End; 2] {
        self.run_until(|_| false);
        [self.end(CLIENT), self.end(SERVER)]
    }

    /// Runs until both sides have ended, or `done`.
    pub fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        loop {
            self.steps += 1;
            assert!(self.steps < self.plan.max_steps, "livelock: {}", self.describe());
            for side in [CLIENT, SERVER] {
                self.act(side);
                self.transmit(side);
                self.check(side);
            }
            if done(self) || self.is_over() {
                return;
            }
            let at = self.next_event();
            let at = at.unwrap_or_else(|| panic!("a deadlock: {}", self.describe()));
            self.now = self.now.max(at);
            self.elapse();
        }
    }

    /// Returns true if both sides have ended, or wait for one who is gone and left nothing on the
    /// way: a server that never heard of its client, and one who has sent all and reads, without
    /// keep-alive. Neither can know.
    fn is_over(&self) -> bool {
        let quiet = self.links.iter().all(|link| link.next_arrival().is_none());
        [(CLIENT, SERVER), (SERVER, CLIENT)].iter().all(|&(side, other)| {
            let (side, other) = (&self.sides[side], &self.sides[other]);
            side.has_ended() || quiet && other.failed.is_some() && other.is_over() && side.only_waits()
        })
    }

    /// Returns what it looks like, without the bytes in it.
    pub fn describe(&self) -> String {
        use core::fmt::Write;
        let mut out = format!("at {:?} after {} steps, {:#?}", self.now, self.steps, self.plan);
        for side in &self.sides {
            let connection = side.connection.as_ref();
            let _ = write!(
                out,
                "\n{:?} written {} read {} eof {} closed {} failed {:?} acts at {:?} timer {:?} wants {:?} {:#?}",
                connection.map(Connection::state),
                side.written,
                side.read,
                side.eof,
                side.closed,
                side.failed,
                side.wants_to_act().then_some(side.acts_at),
                connection.map(Connection::next_timeout),
                connection.map(|connection| connection.wants_transmit(self.now)),
                connection.map(Connection::stats),
            );
        }
        out
    }

    pub fn read_bytes(&self, side: usize) -> u64 {
        self.sides[side].read
    }

    fn end(&self, side: usize) -> End {
        let side = &self.sides[side];
        match side.failed {
            Some(error) => End::Failed(error),
            None if !side.has_ended() => End::Waits,
            None => End::Clean,
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let timers = self.sides.iter().filter_map(|side| side.connection.as_ref()?.next_timeout());
        let apps = self.sides.iter().filter(|side| side.wants_to_act()).map(|side| side.acts_at);
        let links = self.links.iter().filter_map(Link::next_arrival);
        timers.chain(apps).chain(links).chain(self.listener.next_timeout()).min()
    }

    /// Whatever is due happens.
    fn elapse(&mut self) {
        for side in [CLIENT, SERVER] {
            while let Some(packet) = self.links[side].arrive(self.now) {
                self.arrive(1 - side, packet);
            }
            if let Some(connection) = &mut self.sides[side].connection
                && connection.next_timeout().is_some_and(|at| at <= self.now)
            {
                let events = connection.handle_timeout(self.now);
                self.note(side, events);
            }
        }
        let (link, now) = (&mut self.links[SERVER], self.now);
        self.listener.poll_transmit(now, |_, header| {
            let mut bytes = vec![0; header.len()];
            header.emit(&mut bytes);
            link.send(now, &bytes, EcnCodepoint::NotEct);
            Ok(())
        });
    }

    fn arrive(&mut self, to: usize, packet: Packet) {
        match packet {
            Packet::Damaged { bytes } => {
                // It must not panic; the result is ignored.
                let _ = Segment::parse(&bytes);
            }
            Packet::TooBig { path_mss, quoted } => {
                if let Some(connection) = &mut self.sides[to].connection {
                    let events = connection.set_path_mtu(path_mss, Some(quoted), self.now);
                    self.note(to, events);
                }
            }
            Packet::Segment { bytes, ecn } => {
                let segment = Segment::parse(&bytes).expect("what was sent parses");
                if self.sides[to].connection.as_ref().is_some_and(Connection::is_closed) {
                    // As a host does that knows nothing of it any more.
                    if let Some(header) = answer_closed(&segment) {
                        self.reply(to, &header);
                    }
                } else if let Some(connection) = &mut self.sides[to].connection {
                    let events = connection.handle_segment(self.now, &segment, ecn);
                    self.note(to, events);
                } else if to == SERVER {
                    self.listen(&segment, ecn);
                }
            }
        }
    }

    fn reply(&mut self, side: usize, header: &Header) {
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        self.links[side].send(self.now, &bytes, EcnCodepoint::NotEct);
    }

    fn listen(&mut self, segment: &Segment<'_>, ecn: EcnCodepoint) {
        let arrival = Arrival {
            flow: flow(),
            segment: *segment,
            ecn,
            path_mss: self.plan.path_mss,
            room: true,
            iss: None,
        };
        match self.listener.handle_segment(self.now, &arrival) {
            Answer::Ignore => {}
            Answer::Reply(header) => {
                self.reply(SERVER, &header);
            }
            Answer::Accept(connection, events) => {
                self.sides[SERVER].connection = Some(*connection);
                self.sides[SERVER].acts_at = self.now;
                self.note(SERVER, events);
            }
        }
    }

    /// Something changed: the application may act at once.
    fn note(&mut self, side: usize, events: Events) {
        let side = &mut self.sides[side];
        if events.contains(Events::ERROR) {
            side.failed = side.connection.as_ref().and_then(Connection::error);
        }
        if events.intersects(Events::READABLE | Events::WRITABLE | Events::ESTABLISHED)
            && side.app.pause.is_zero()
        {
            side.acts_at = self.now;
        }
    }

    fn transmit(&mut self, side: usize) {
        let Some(connection) = &mut self.sides[side].connection else { return };
        let mut answers = Vec::new();
        for burst in 0.. {
            assert!(burst < MAX_BURST, "side {side} never stops sending: {:?}", connection.stats());
            let (link, now) = (&mut self.links[side], self.now);
            let transmit = connection.poll_transmit(now, |outgoing| {
                let mut bytes = vec![0; outgoing.len()];
                outgoing.emit(&mut bytes);
                answers.extend(link.send(now, &bytes, outgoing.ecn));
                Ok(())
            });
            if transmit != Transmit::Sent {
                break;
            }
        }
        for answer in answers {
            self.arrive(side, answer);
        }
    }

    fn act(&mut self, index: usize) {
        let pause = self.sides[index].app.pause;
        let side = &mut self.sides[index];
        if side.acts_at > self.now || !side.wants_to_act() {
            return;
        }
        side.acts_at = self.now + self.dice.up_to(pause).max(Duration::from_micros(1));
        let write = self.dice.between(1, side.app.write as u64);
        let read = self.dice.between(1, side.app.read as u64) as usize;
        side.write(index, write, self.now, &mut self.buffer);
        side.read(index, read, &mut self.buffer);
        let aborts = side.app.aborts_after.is_some_and(|bytes| side.read >= bytes);
        if let Some(connection) = side.connection.as_mut().filter(|_| aborts && side.failed.is_none()) {
            let events = connection.abort();
            self.note(index, events);
        }
    }

    fn check(&self, index: usize) {
        let Some(connection) = &self.sides[index].connection else { return };
        connection.check();
        let config = &self.plan.configs[index];
        let bound = 4 * (config.receive_buffer + config.send_buffer) as usize + SLACK;
        let heap = connection.stats().heap_bytes;
        assert!(heap <= bound, "{heap} bytes, not {bound}");
    }
}

impl Side {
    fn has_ended(&self) -> bool {
        self.failed.is_some_and(|_| self.is_over())
            || self.eof && self.closed && self.is_over() && self.written == self.app.bytes
    }

    /// It has nothing to say that the peer does not know.
    fn only_waits(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| {
            connection.unacknowledged_bytes() == 0
                && matches!(connection.state(), State::Established | State::FinWait2)
        })
    }

    /// Nothing is to come any more.
    fn is_over(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            matches!(connection.state(), State::Closed | State::TimeWait)
                && !connection.wants_transmit(Instant(u64::MAX / 2))
        })
    }

    /// Returns true if it has anything to do but to wait for events. A reader that pauses must come
    /// back by itself.
    fn wants_to_act(&self) -> bool {
        let Some(connection) = &self.connection else { return false };
        if self.failed.is_some() {
            return false;
        }
        let writes = !self.closed && (self.written == self.app.bytes || connection.writable_bytes() > 0);
        let writes = writes && !matches!(connection.state(), State::SynSent | State::SynReceived);
        writes || (!self.eof && connection.is_readable())
    }

    fn write(&mut self, index: usize, most: u64, now: Instant, buffer: &mut [u8]) {
        let Some(connection) = &mut self.connection else { return };
        if self.closed {
            return;
        }
        if self.written == self.app.bytes {
            if !matches!(connection.state(), State::SynSent | State::SynReceived) {
                let _ = connection.close();
                self.closed = true;
            }
            return;
        }
        let len = most.min(self.app.bytes - self.written).min(buffer.len() as u64) as usize;
        for (offset, slot) in buffer[..len].iter_mut().enumerate() {
            *slot = byte(index, self.written + offset as u64);
        }
        match connection.send(&buffer[..len]) {
            Ok(taken) => self.written += taken as u64,
            Err(SendError::WouldBlock) => {}
            Err(error) => panic!("side {index} cannot send at {now:?}: {error}"),
        }
    }

    fn read(&mut self, index: usize, most: usize, buffer: &mut [u8]) {
        let Some(connection) = &mut self.connection else { return };
        if self.eof {
            return;
        }
        let most = most.min(buffer.len());
        match connection.recv(&mut buffer[..most]) {
            Ok(0) => self.eof = true,
            Ok(len) => {
                for (offset, got) in buffer[..len].iter().enumerate() {
                    let at = self.read + offset as u64;
                    assert_eq!(*got, byte(1 - index, at), "byte {at} to side {index}");
                }
                self.read += len as u64;
            }
            Err(RecvError::WouldBlock) => {}
            Err(RecvError::Failed(error)) => self.failed = Some(error),
        }
    }
}

impl World {
    /// # Panics
    /// If a side that ended cleanly did not get all the other sent.
    pub fn check_streams(&self) {
        for (side, other) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            let (side, other) = (&self.sides[side], &self.sides[other]);
            if side.eof {
                assert_eq!(side.read, other.app.bytes, "the stream ended early");
            }
        }
    }
}
