//! A station's answers to ARP requests, which wait for its next poll.

use tailwater_ports::Inject;
use tailwater_wire::frame::ARP_FRAME;

use super::wire::{Host, answer_arp};

/// Maximum number of answers waiting to be sent; more are dropped, and asked for again.
const MAX_ANSWERS: usize = 8;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct ArpAnswers {
    own: Host,
    waiting: Vec<[u8; ARP_FRAME]>,
}

impl ArpAnswers {
    /// Answers for `own`.
    pub(crate) fn new(own: Host) -> Self {
        Self { own, waiting: Vec::with_capacity(MAX_ANSWERS) }
    }

    /// Queues the answer to `frame`, if it asks for this station.
    pub(crate) fn handle_frame(&mut self, frame: &[u8]) {
        if self.waiting.len() < MAX_ANSWERS
            && let Some(answer) = answer_arp(frame, self.own)
        {
            self.waiting.push(answer);
        }
    }

    /// Returns true if no answer waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends all answers; returns their number.
    #[inline]
    pub(crate) fn send(&mut self, switch: &mut dyn Inject) -> usize {
        let count = self.waiting.len();
        for answer in self.waiting.drain(..) {
            switch.inject(&answer);
        }
        count
    }
}
