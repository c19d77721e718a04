//! Raw echo: the server returns the same bytes.
//!
//! A payload begins with the request's id and continues with bytes derived from it, so a swapped,
//! cut or changed echo is detected. In a stream the payload's length is the frame; nothing marks
//! its end.

use tailwater_workload::{Prng, content};

use super::{Ids, Malformed, Medium, Protocol, Request, Ticket, Verdict};

/// Bytes of the id.
const ID: usize = 8;

/// Longest payload; one UDP datagram over IPv4 holds it.
pub const MAX_BYTES: usize = 65_507;

/// The length of an echo is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an echo has {ID} to {MAX_BYTES} bytes, not {bytes}")]
pub struct EchoError {
    /// What was given.
    pub bytes: usize,
}

/// Sends bytes and expects the same.
#[derive(Debug, Clone)]
pub struct Echo {
    bytes: usize,
}

impl Echo {
    /// Creates a protocol with payloads of `bytes` bytes.
    ///
    /// # Errors
    /// [`EchoError`] unless there are 8 to [`MAX_ECHO`](super::MAX_ECHO).
    pub fn new(bytes: usize) -> Result<Self, EchoError> {
        if !(ID..=MAX_BYTES).contains(&bytes) {
            return Err(EchoError { bytes });
        }
        Ok(Self { bytes })
    }
}

impl Protocol for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn ids(&self, medium: Medium) -> Ids {
        match medium {
            Medium::Datagram => Ids::Long,
            // A stream that skips or repeats bytes is wrong, whatever ids it contains.
            Medium::Stream => Ids::Order,
        }
    }

    fn draw(&self, _prng: &mut Prng) -> Ticket {
        0
    }

    fn encode(&self, request: &Request, _medium: Medium, out: &mut Vec<u8>) {
        out.extend_from_slice(&request.id.to_le_bytes());
        content::fill(request.id, self.bytes - ID, out);
    }

    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed> {
        Ok((stream.len() >= self.bytes).then_some(self.bytes))
    }

    fn id(&self, answer: &[u8], _medium: Medium) -> Option<u64> {
        answer.first_chunk().map(|id| u64::from_le_bytes(*id))
    }

    fn check(&self, request: &Request, answer: &[u8], medium: Medium) -> Verdict {
        let same = answer.len() == self.bytes
            && self.id(answer, medium) == Some(request.id)
            && content::is_content(request.id, &answer[ID..]);
        if same { Verdict::Right } else { Verdict::Wrong }
    }

    fn contact(&self) -> Ticket {
        0
    }
}
