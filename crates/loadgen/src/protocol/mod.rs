//! Protocols: requests and the checks of their answers, without transports.
//!
//! Owns the drawing of the next request, its bytes, the end of an answer in a stream, the request
//! it belongs to, and the check of everything in it. A protocol is pure: it does not change while
//! it is used (except http, which remembers the first body of each page), so threads share one.
//! Randomness is an argument; time belongs to the [generator](crate::generator), connections to the
//! [lanes](crate::lanes).
//!
//! A request is remembered as one number, its [`Ticket`], from which the protocol makes the request
//! and checks the answer. Values are derived from keys, so nothing else is remembered.
//!
//! Answers are untrusted: [`Protocol::split`] and [`Protocol::id`] are total, and only
//! [`Protocol::check`] decides that an answer is right. None of them panics on any bytes.

use std::fmt::Debug;

use tailwater_workload::Prng;

use crate::delivery::Served;

mod dns;
mod echo;
mod http;
mod memcached;
mod name;
mod rocks;
mod spin;

pub use dns::{Dns, DnsError};
pub use echo::{Echo, EchoError, MAX_BYTES as MAX_ECHO};
pub use http::{Http, HttpError};
pub use memcached::{MAX_UDP_VALUE, Memcached};
pub use name::{ProtocolError, from_name};
pub use rocks::{Rocks, RocksError};
pub use spin::Spin;

/// The content of one request, as its protocol numbers it.
pub type Ticket = u64;

/// Longest answer accepted on a stream; one that announces more is malformed.
pub const MAX_ANSWER: usize = 4 << 20;

/// The carrier of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// One message in each datagram.
    Datagram,
    /// One after the other.
    Stream,
}

/// How an answer identifies its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Not at all: answers arrive in the order of requests.
    Order,
    /// By 16 bits of its id.
    Short,
    /// By 64 bits.
    Long,
}

/// A request to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The id that an answer returns, as far as the protocol has room.
    pub id: u64,
    /// What to request.
    pub ticket: Ticket,
    /// When it was due, on the generator's clock.
    pub due_ns: u64,
}

/// The verdict on an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything in it is right.
    Right,
    /// The key has no value, which is legal for a cache.
    Miss,
    /// The server refused the request.
    Refused,
    /// Something in it is wrong.
    Wrong,
}

/// A stream in which no further answer can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes received are not an answer of this protocol")]
pub struct Malformed;

/// One kind of request and answer. See the [module](self).
pub trait Protocol: Debug + Send + Sync {
    /// Returns its name on the command line.
    fn name(&self) -> &'static str;

    /// Returns how answers identify their requests.
    fn ids(&self, medium: Medium) -> Ids;

    /// Draws the next request.
    fn draw(&self, prng: &mut Prng) -> Ticket;

    /// Appends the bytes of a request.
    fn encode(&self, request: &Request, medium: Medium, out: &mut Vec<u8>);

    /// Returns the length of the first answer in `stream`, at most `stream.len()`; `None` while its
    /// end has not arrived.
    ///
    /// # Errors
    /// [`Malformed`] if no answer can begin like this.
    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed>;

    /// Returns the length of the answer in `stream` that is complete because the connection ended
    /// behind it; `None` if there is none, as in protocols that state the length of each answer.
    fn split_at_end(&self, stream: &[u8]) -> Option<usize> {
        let _ = stream;
        None
    }

    /// Returns the id in an answer; `None` if it is no answer. Unused with [`Ids::Order`].
    fn id(&self, answer: &[u8], medium: Medium) -> Option<u64>;

    /// Checks `answer` as the answer to `request`.
    fn check(&self, request: &Request, answer: &[u8], medium: Medium) -> Verdict;

    /// Returns the work that `request` asked for and the time that the server states in `answer`,
    /// the right answer, to have spent on it; `None` if the protocol or the server states none.
    fn served(&self, _request: &Request, _answer: &[u8]) -> Option<Served> {
        None
    }

    /// Returns the class of a request, from 0: of those that a server may tell apart, the first is
    /// the shortest. 0 if the protocol has no classes.
    fn class(&self, ticket: Ticket) -> usize {
        let _ = ticket;
        0
    }

    /// Returns a harmless request that any server answers, used for the first contact.
    fn contact(&self) -> Ticket;

    /// Returns the number of requests that must be answered before the measurement, for instance to
    /// store data that is read later.
    fn preloads(&self) -> u64 {
        0
    }

    /// Returns the `index`-th of them, for an index below [`Protocol::preloads`].
    fn preload(&self, index: u64) -> Ticket {
        index
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
