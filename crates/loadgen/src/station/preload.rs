//! Storing the data that a run reads: requests in a closed loop, a window at a time.
//!
//! Owns one preload between the first contact and the schedule. A window is sent at once,
//! unanswered requests are repeated, and the next window follows when every request of this one was
//! answered rightly. Its port is the first contact's, so a late answer is not taken for an answer
//! to the run.
//!
//! Answers are untrusted: only the protocol decides that one is right.

use tailwater_ports::Inject;

use super::wire::{self, Host};
use super::{CONTACT_INTERVAL_NS, CONTACT_PORT, Order, StationError};
use crate::protocol::{Medium, Request, Verdict};

/// Requests sent before their answers are awaited: a fraction of any ring.
const WINDOW: u64 = 32;

/// Times a window is sent before the preload fails.
const MAX_TRIES: u32 = 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Preload {
    pub(super) order: Box<Order>,
    pub(super) to: Host,
    frame: Vec<u8>,
    /// Index of the first request that is in no window yet.
    next: u64,
    /// Those of this window without the right answer.
    window: Vec<Request>,
    tries: u32,
    ask_at_ns: u64,
}

impl Preload {
    /// Creates the preload of `order`, on the server at `to`.
    pub(super) fn new(order: Box<Order>, own: Host, to: Host, now_ns: u64) -> Self {
        let frame = wire::request_template(own, to, order.server.port());
        let mut preload = Self { order, to, frame, next: 0, window: Vec::new(), tries: 0, ask_at_ns: now_ns };
        preload.fill(now_ns);
        preload
    }

    /// Returns true if every request was answered.
    pub(super) fn is_done(&self) -> bool {
        self.window.is_empty()
    }

    /// Returns when it sends next.
    pub(super) fn next_event_ns(&self) -> u64 {
        self.ask_at_ns
    }

    /// Sends the requests that are due; returns the number of frames.
    ///
    /// # Errors
    /// [`StationError::Preload`] if a window was sent too often.
    pub(super) fn poll(&mut self, now_ns: u64, switch: &mut dyn Inject) -> Result<usize, StationError> {
        if now_ns < self.ask_at_ns {
            return Ok(0);
        }
        if self.tries == MAX_TRIES {
            let all = self.order.protocol.preloads();
            return Err(StationError::Preload { missing: all - self.next + self.window.len() as u64, all });
        }
        self.tries += 1;
        self.ask_at_ns = now_ns + CONTACT_INTERVAL_NS;
        for request in &self.window {
            self.frame.truncate(wire::PAYLOAD);
            self.order.protocol.encode(request, Medium::Datagram, &mut self.frame);
            wire::complete(&mut self.frame, CONTACT_PORT);
            // A frame that is not delivered is not answered, and is repeated.
            switch.inject(&self.frame);
        }
        Ok(self.window.len())
    }

    /// Handles a datagram of the server.
    pub(super) fn handle(&mut self, now_ns: u64, answer: &[u8]) {
        let protocol = &self.order.protocol;
        let Some(id) = protocol.id(answer, Medium::Datagram) else { return };
        let right = |request: &Request| protocol.check(request, answer, Medium::Datagram) == Verdict::Right;
        self.window.retain(|request| request.id != id || !right(request));
        if self.window.is_empty() {
            self.fill(now_ns);
        }
    }

    fn fill(&mut self, now_ns: u64) {
        let end = self.order.protocol.preloads().min(self.next + WINDOW);
        for index in self.next..end {
            // An id of 16 bits distinguishes many times a window.
            let ticket = self.order.protocol.preload(index);
            self.window.push(Request { id: index & 0xffff, ticket, due_ns: 0 });
        }
        (self.next, self.tries, self.ask_at_ns) = (end, 0, now_ns);
    }
}
