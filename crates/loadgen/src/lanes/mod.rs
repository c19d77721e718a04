//! Requests over connections, without sockets and without a clock.
//!
//! Owns the assignment of requests to connections, the bytes that wait on each, the ends of answers
//! in received bytes, and the matching of answers to requests. The [generator](crate::generator)
//! decides what is due and checks answers; a transport moves bytes and reports which connections
//! are up.
//!
//! # Which connection
//! Connections take turns; one without room is skipped. A connection has room while fewer than
//! [`Lanes::pipeline`] requests on it are unanswered and less than [`OUT_LIMIT`] bytes wait to be
//! sent. If none has room, a request is *held back* in the generator, counted, and goes to the
//! first connection that has room again. Its latency counts from its due time all the same, and if
//! its timeout passes first it is lost and never sent. So the schedule never slows down, and the
//! cost of a limit on pipelining is visible.
//!
//! # Which request
//! If answers carry ids, the request is found by id among those unanswered on the connection, else
//! by order. A request that was given up on keeps its place until its answer arrives. After
//! [`RESYNC`] consecutive wrong answers on a connection that goes by order, the order counts as
//! lost.
//!
//! # What ends a connection
//! Besides the errors the transport sees: bytes that are not an answer, an unsolicited answer, a
//! lost order, and an answer that is missing for twice the timeout ([`Lanes::is_stuck`]). The
//! connection's requests in flight are lost.
//!
//! Invariants (`check`): a connection that is down has nothing in flight; each connection is queued
//! for its turn at most once; requests held back in the generator are in the order of due times.

use std::collections::VecDeque;

use crate::generator::{Generator, Outgoing, ReplyOutcome};
use crate::protocol::{Ids, MAX_ANSWER, Malformed, Medium};

/// A connection.
pub type LaneId = u32;

/// Maximum number of connections of one generator.
pub const MAX_CONNECTIONS: u32 = 100_000;

/// Returns the limit of unanswered requests on one connection.
pub const MAX_PIPELINE: usize = 1_024;

/// Default limit of unanswered requests on one connection, as in IX (section 5.2.4).
pub const DEFAULT_PIPELINE: usize = 4;

/// Bytes waiting to be sent with which a connection takes no further request.
pub const OUT_LIMIT: usize = 64 << 10;

/// Consecutive wrong answers after which answers count as out of step with requests.
pub const RESYNC: u8 = 3;

#[derive(Debug, Clone, Copy)]
struct Sent {
    sequence: u64,
    at_ns: u64,
}

#[derive(Debug, Default)]
struct Lane {
    up: bool,
    /// True if it is queued for its turn.
    in_turn: bool,
    /// In the order of sending.
    unanswered: VecDeque<Sent>,
    /// Bytes to send, of which `out_at` are sent.
    out: Vec<u8>,
    out_at: usize,
    /// The beginning of an answer.
    input: Vec<u8>,
    /// Consecutive wrong answers.
    wrong: u8,
    /// True if an answer arrived since the connection was opened.
    answered: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
    pipeline: usize,
    ids: Ids,
    /// Connections that may have room, the next one first.
    turn: VecDeque<LaneId>,
    held_back: VecDeque<Outgoing>,
}

impl Lanes {
    /// Creates `count` connections (1 to [`MAX_CONNECTIONS`]), all down, with up to `pipeline`
    /// requests unanswered on each (1 to [`MAX_PIPELINE`]). Other numbers are clamped.
    #[must_use]
    pub fn new(count: u32, pipeline: usize, ids: Ids) -> Self {
        let count = count.clamp(1, MAX_CONNECTIONS);
        Self {
            lanes: (0..count).map(|_| Lane::default()).collect(),
            pipeline: pipeline.clamp(1, MAX_PIPELINE),
            ids,
            turn: VecDeque::with_capacity(count as usize),
            held_back: VecDeque::new(),
        }
    }

    /// Returns how many connections there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        // At most `MAX_CONNECTIONS`.
        self.lanes.len() as u32
    }

    /// Returns the limit of unanswered requests on one connection.
    #[must_use]
    pub fn pipeline(&self) -> usize {
        self.pipeline
    }

    /// Marks connection `id` as usable.
    pub fn handle_up(&mut self, id: LaneId) {
        let lane = &mut self.lanes[id as usize];
        (lane.up, lane.answered) = (true, false);
        self.offer(id);
    }

    /// Marks connection `id` as ended by clock reading `now_ns`: its requests in flight are lost.
    pub fn handle_down(&mut self, id: LaneId, now_ns: u64, generator: &mut Generator) {
        let lane = &mut self.lanes[id as usize];
        lane.up = false;
        lane.out.clear();
        lane.out_at = 0;
        lane.input.clear();
        lane.wrong = 0;
        for sent in lane.unanswered.drain(..) {
            generator.handle_connection_loss(sent.sequence, now_ns);
        }
    }

    /// Takes the requests due at clock reading `now_ns`, at most `budget`, and assigns them to
    /// connections; appends to `touched` each connection with new bytes to send.
    #[inline]
    pub fn poll_due(
        &mut self,
        generator: &mut Generator,
        now_ns: u64,
        budget: usize,
        mut touched: impl FnMut(LaneId),
    ) {
        while self.held_back.front().is_some_and(|first| !generator.is_waiting(first.sequence)) {
            self.held_back.pop_front();
        }
        for _ in 0..budget {
            let Some(first) = self.held_back.front().copied() else { break };
            if generator.is_waiting(first.sequence) {
                let Some(id) = self.put(generator, &first, now_ns) else { break };
                touched(id);
            }
            self.held_back.pop_front();
        }
        for _ in 0..budget {
            let Some(outgoing) = generator.poll_due(now_ns) else { return };
            let id = if self.held_back.is_empty() { self.put(generator, &outgoing, now_ns) } else { None };
            match id {
                Some(id) => touched(id),
                None => {
                    generator.count_held_back();
                    self.held_back.push_back(outgoing);
                }
            }
        }
    }

    /// Puts a request on the next connection with room, if there is one.
    #[inline]
    fn put(&mut self, generator: &Generator, outgoing: &Outgoing, now_ns: u64) -> Option<LaneId> {
        loop {
            let id = self.turn.pop_front()?;
            let lane = &mut self.lanes[id as usize];
            lane.in_turn = false;
            if !lane.has_room(self.pipeline) {
                continue;
            }
            generator.encode(outgoing, &mut lane.out);
            lane.unanswered.push_back(Sent { sequence: outgoing.sequence, at_ns: now_ns });
            self.offer(id);
            return Some(id);
        }
    }

    /// Queues a connection for its turn again if it has room.
    #[inline]
    fn offer(&mut self, id: LaneId) {
        let lane = &mut self.lanes[id as usize];
        if !lane.in_turn && lane.has_room(self.pipeline) {
            lane.in_turn = true;
            self.turn.push_back(id);
        }
    }

    /// Returns the bytes that connection `id` has to send; [`Lanes::handle_sent`] reports how many
    /// were sent.
    #[inline]
    #[must_use]
    pub fn to_send(&self, id: LaneId) -> &[u8] {
        let lane = &self.lanes[id as usize];
        &lane.out[lane.out_at..]
    }

    /// Records that the first `bytes` of connection `id` were sent.
    #[inline]
    pub fn handle_sent(&mut self, id: LaneId, bytes: usize) {
        let lane = &mut self.lanes[id as usize];
        lane.out_at = (lane.out_at + bytes).min(lane.out.len());
        if lane.out_at == lane.out.len() {
            lane.out.clear();
            lane.out_at = 0;
        } else if lane.out_at >= OUT_LIMIT {
            lane.out.drain(..lane.out_at);
            lane.out_at = 0;
        }
        self.offer(id);
    }

    /// Handles bytes that arrived on connection `id` by clock reading `now_ns`.
    ///
    /// # Errors
    /// [`Malformed`] if the connection is unusable and must be ended, which is counted.
    #[inline]
    pub fn handle_bytes(
        &mut self,
        id: LaneId,
        now_ns: u64,
        bytes: &[u8],
        generator: &mut Generator,
    ) -> Result<(), Malformed> {
        let taken = self.take(id, now_ns, bytes, generator);
        self.offer(id);
        taken.inspect_err(|_| generator.count_malformed())
    }

    /// Records that the server ended connection `id` behind the bytes that arrived, which completes
    /// an answer that ends with its connection. Returns true if the connection was of use and has
    /// no request unanswered, so that it can be opened again at once.
    pub fn handle_end(&mut self, id: LaneId, now_ns: u64, generator: &mut Generator) -> bool {
        let lane = &mut self.lanes[id as usize];
        let input = std::mem::take(&mut lane.input);
        if let Some(len) = generator.protocol().split_at_end(&input) {
            // An unsolicited answer ends the connection, which has ended.
            let _ = lane.handle_answer(self.ids, now_ns, &input[..len], generator);
        }
        lane.answered && lane.unanswered.is_empty()
    }

    fn take(
        &mut self,
        id: LaneId,
        now_ns: u64,
        bytes: &[u8],
        generator: &mut Generator,
    ) -> Result<(), Malformed> {
        let lane = &mut self.lanes[id as usize];
        let mut kept = std::mem::take(&mut lane.input);
        // Whole answers are read where they lie; only the beginning of one is kept.
        let stream = if kept.is_empty() {
            bytes
        } else {
            kept.extend_from_slice(bytes);
            &kept
        };
        let mut at = 0;
        while at < stream.len()
            && let Some(len) = generator.protocol().split(&stream[at..])?
        {
            lane.handle_answer(self.ids, now_ns, &stream[at..at + len], generator)?;
            at += len;
        }
        let rest = stream.len() - at;
        if rest > MAX_ANSWER {
            return Err(Malformed);
        }
        if kept.is_empty() {
            kept.extend_from_slice(&bytes[at..]);
        } else {
            kept.drain(..at);
        }
        lane.input = kept;
        Ok(())
    }

    /// Returns true if connection `id` has not answered a request for twice the timeout.
    #[must_use]
    pub fn is_stuck(&self, id: LaneId, now_ns: u64, generator: &Generator) -> bool {
        let patience_ns = generator.timeout_ns().saturating_mul(2);
        let oldest = self.lanes[id as usize].unanswered.front();
        oldest.is_some_and(|sent| sent.at_ns.saturating_add(patience_ns) < now_ns)
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        for (id, lane) in (0..).zip(&self.lanes) {
            let turns = self.turn.iter().filter(|&&other| other == id).count();
            assert_eq!(turns, usize::from(lane.in_turn), "connection {id}");
            assert!(lane.up || lane.unanswered.is_empty() && lane.out.is_empty(), "connection {id}");
            assert!(lane.unanswered.len() <= self.pipeline, "connection {id}");
            assert!(!lane.has_room(self.pipeline) || lane.in_turn, "connection {id} is forgotten");
        }
        let mut due = self.held_back.iter().map(|outgoing| outgoing.due_ns);
        assert!(due.by_ref().is_sorted());
    }
}

impl Lane {
    #[inline]
    fn has_room(&self, pipeline: usize) -> bool {
        self.up && self.unanswered.len() < pipeline && self.out.len() - self.out_at < OUT_LIMIT
    }

    #[inline]
    fn handle_answer(
        &mut self,
        ids: Ids,
        now_ns: u64,
        answer: &[u8],
        generator: &mut Generator,
    ) -> Result<(), Malformed> {
        let mask = match ids {
            Ids::Order => 0,
            Ids::Short => 0xffff,
            Ids::Long => u64::MAX,
        };
        let id = match ids {
            Ids::Order => 0,
            _ => generator.protocol().id(answer, Medium::Stream).ok_or(Malformed)?,
        };
        // The first request if there are no ids. Bounded by the pipeline.
        let place = self
            .unanswered
            .iter()
            .position(|sent| (generator.stream_id(sent.sequence) ^ id) & mask == 0)
            .ok_or(Malformed)?;
        let sent = self.unanswered.remove(place).ok_or(Malformed)?;
        self.answered = true;
        if generator.handle_answer(now_ns, sent.sequence, answer) == ReplyOutcome::Wrong {
            self.wrong = self.wrong.saturating_add(1);
        } else {
            self.wrong = 0;
        }
        if ids == Ids::Order && self.wrong >= RESYNC { Err(Malformed) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
