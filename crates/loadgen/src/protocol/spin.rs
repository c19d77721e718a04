//! The spin protocol as a [`Protocol`]; its layout is in `tailwater_workload::spin`.
//!
//! A ticket is the work in nanoseconds. Requests of at most the mean work are of class 0, longer
//! ones of class 1.

use tailwater_workload::spin::{REPLY_LEN, Reply, Request as Message};
use tailwater_workload::{Prng, ServiceTime};

use super::{Ids, Malformed, Medium, Protocol, Request, Ticket, Verdict};
use crate::delivery::Served;

/// Requests that a server compute for a time.
#[derive(Debug, Clone)]
pub struct Spin {
    service: ServiceTime,
    mean_ns: f64,
}

impl Spin {
    /// Creates a client whose work is drawn from `service`.
    #[must_use]
    pub fn new(service: ServiceTime) -> Self {
        Self { mean_ns: service.mean_ns(), service }
    }
}

impl Protocol for Spin {
    fn name(&self) -> &'static str {
        "spin"
    }

    fn ids(&self, _medium: Medium) -> Ids {
        Ids::Long
    }

    fn draw(&self, prng: &mut Prng) -> Ticket {
        self.service.sample_ns(prng)
    }

    fn encode(&self, request: &Request, _medium: Medium, out: &mut Vec<u8>) {
        let message = Message { id: request.id, work_ns: request.ticket, sent_ns: request.due_ns };
        out.extend_from_slice(&message.encode());
    }

    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed> {
        match stream.get(..REPLY_LEN) {
            None => Ok(None),
            Some(bytes) => Reply::decode(bytes).map(|_| Some(REPLY_LEN)).map_err(|_| Malformed),
        }
    }

    fn id(&self, answer: &[u8], _medium: Medium) -> Option<u64> {
        Reply::decode(answer).ok().map(|reply| reply.request.id)
    }

    fn check(&self, request: &Request, answer: &[u8], _medium: Medium) -> Verdict {
        let want = Message { id: request.id, work_ns: request.ticket, sent_ns: request.due_ns };
        match Reply::decode(answer) {
            Ok(reply) if reply.request == want => Verdict::Right,
            _ => Verdict::Wrong,
        }
    }

    fn served(&self, request: &Request, answer: &[u8]) -> Option<Served> {
        let taken_ns = Reply::decode(answer).ok()?.served_ns;
        // A server without a clock states 0.
        (taken_ns > 0).then_some(Served { asked_ns: request.ticket, taken_ns })
    }

    fn class(&self, ticket: Ticket) -> usize {
        usize::from(ticket as f64 > self.mean_ns)
    }

    fn contact(&self) -> Ticket {
        0
    }
}
