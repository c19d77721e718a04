//! Storing the data that a run reads: requests over one connection, a window at a time.
//!
//! Owns one [`Order::Preload`](super::Order::Preload), over connection 0, which the run uses later.
//! Sans-IO like the client. TCP delivers what is sent, so nothing is repeated: a wrong answer ends
//! the order, and so does the end of the connection.
//!
//! Answers are untrusted: only the protocol decides that one is right.

use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use tailwater_tcp::{Events, Instant};

use super::client::{Client, ConnectionId};
use super::order::Outcome;
use crate::protocol::{Ids, MAX_ANSWER, Malformed, Medium, Protocol, Request, Verdict};

/// The connection that is used.
const CONNECTION: ConnectionId = 0;
/// Requests that are sent before their answers are awaited.
const WINDOW: u64 = 64;
/// Bytes taken at once.
const CHUNK: usize = 64 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Preload {
    protocol: Arc<dyn Protocol>,
    began: Instant,
    until: Instant,
    /// Index of the first request that is in no window yet.
    next: u64,
    /// Those of this window without an answer, in the order of sending.
    window: Vec<Request>,
    /// What is to be sent, of which `sent` bytes are.
    out: Vec<u8>,
    sent: usize,
    /// The beginning of an answer.
    input: Vec<u8>,
    stored: u64,
    failed: bool,
    scratch: Vec<u8>,
}

impl Preload {
    /// Creates the preload of `protocol`, within `wait`.
    pub(super) fn new(protocol: Arc<dyn Protocol>, wait: Duration, now: Instant) -> Self {
        Self {
            protocol,
            began: now,
            until: now + wait,
            next: 0,
            window: Vec::new(),
            out: Vec::new(),
            sent: 0,
            input: Vec::new(),
            stored: 0,
            failed: false,
            scratch: vec![0; CHUNK],
        }
    }

    /// Handles the events of a frame or a timeout.
    pub(super) fn on_events(&mut self, client: &mut Client, id: ConnectionId, events: Events) {
        if id != CONNECTION {
            return;
        }
        if events.contains(Events::READABLE) {
            // Bounded by the receive buffer.
            while let Ok(len @ 1..) = client.recv(CONNECTION, &mut self.scratch) {
                self.input.extend_from_slice(&self.scratch[..len]);
            }
            self.failed |= self.take_answers().is_err();
        }
        self.failed |= events.intersects(Events::ERROR | Events::CLOSED | Events::PEER_CLOSED);
        if events.contains(Events::WRITABLE) {
            self.flush(client);
        }
    }

    fn take_answers(&mut self) -> Result<(), Malformed> {
        let mut at = 0;
        while at < self.input.len()
            && let Some(len) = self.protocol.split(&self.input[at..])?
        {
            let answer = &self.input[at..at + len];
            let place = self.place_of(answer).ok_or(Malformed)?;
            let request = self.window.remove(place);
            if self.protocol.check(&request, answer, Medium::Stream) != Verdict::Right {
                return Err(Malformed);
            }
            self.stored += 1;
            at += len;
        }
        self.input.drain(..at);
        if self.input.len() > MAX_ANSWER { Err(Malformed) } else { Ok(()) }
    }

    /// Returns which request of the window is answered: the first, where there are no ids.
    fn place_of(&self, answer: &[u8]) -> Option<usize> {
        let mask = match self.protocol.ids(Medium::Stream) {
            Ids::Order => return (!self.window.is_empty()).then_some(0),
            Ids::Short => 0xffff,
            Ids::Long => u64::MAX,
        };
        let id = self.protocol.id(answer, Medium::Stream)?;
        self.window.iter().position(|request| (request.id ^ id) & mask == 0)
    }

    /// Sends the next window when this one was answered; returns true when the order is done.
    pub(super) fn poll(&mut self, client: &mut Client, now: Instant) -> bool {
        if self.failed || now > self.until {
            return true;
        }
        if self.window.is_empty() {
            let end = self.protocol.preloads().min(self.next + WINDOW);
            if self.next == end {
                return true;
            }
            (self.out, self.sent) = (Vec::new(), 0);
            for id in self.next..end {
                let request = Request { id, ticket: self.protocol.preload(id), due_ns: 0 };
                self.protocol.encode(&request, Medium::Stream, &mut self.out);
                self.window.push(request);
            }
            self.next = end;
            self.flush(client);
        }
        false
    }

    /// Passes the bytes to send to the client, as far as it has room.
    fn flush(&mut self, client: &mut Client) {
        while self.sent < self.out.len() {
            match client.send(CONNECTION, &self.out[self.sent..]) {
                Ok(sent @ 1..) => self.sent += sent,
                // Again when there is room; a connection that has failed says so by its events.
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Returns when [`poll`](Self::poll) has work to do.
    pub(super) fn next_event(&self) -> Instant {
        let now = self.failed || self.window.is_empty();
        if now { Instant(0) } else { self.until + Duration::from_nanos(1) }
    }

    /// Returns the outcome at its end.
    pub(super) fn outcome(self, now: Instant) -> Outcome {
        Outcome {
            completed: self.stored,
            failed: self.protocol.preloads() - self.stored,
            bytes: 0,
            elapsed: now - self.began,
            latency: Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range"),
            retransmissions: 0,
            stages: None,
        }
    }
}
