//! What is asked, and whether the answer is right: protocols, without transports.
//!
//! Owns: drawing the next request, its bytes, where an answer ends in a stream, which request it belongs to, and the check of
//! everything in it. Pure: a protocol changes nothing while it is used (but for http, which
//! remembers the first body of each page), so threads share one; randomness is an argument, and time and connections are the [generator](crate::generator)'s and the [lanes](crate::lanes)'.
//!
//! A request is remembered as one number, its [`Ticket`]: what the protocol needs to make the request and to check the answer.
//! Values follow from keys, so nothing else is remembered.
//!
//! Answers are *alleged*: [`Protocol::split`] and [`Protocol::id`] are total, and [`Protocol::check`] alone decides that an
//! answer is right. None of them panics on any bytes.

use std::fmt::Debug;

use tailwater_workload::Prng;

mod dns;
mod echo;
mod http;
mod memcached;
mod name;
mod rocks;
mod spin;

pub use dns::{Dns, DnsError};
pub use echo::{Echo, EchoError};
pub use http::{Http, HttpError};
pub use memcached::Memcached;
pub use name::{ProtocolError, from_name};
pub use rocks::{Rocks, RocksError};
pub use spin::Spin;

/// What one request asks, as its protocol numbers it.
pub type Ticket = u64;

/// Longest answer that is waited for on a stream; one that announces more is malformed.
pub const MAX_ANSWER: usize = 4 << 20;

/// What carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// One message in each datagram.
    Datagram,
    /// One after the other.
    Stream,
}

/// How an answer names its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Not at all: answers come in the order of requests.
    Order,
    /// By 16 bits of it.
    Short,
    /// By 64 bits.
    Long,
}

/// A request to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What an answer returns, as far as the protocol has room.
    pub id: u64,
    /// What to ask.
    pub ticket: Ticket,
    /// When it was due, on the generator's clock.
    pub due_ns: u64,
}

/// What an answer is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything in it is as it must be.
    Right,
    /// There is nothing under that key; which a cache may say.
    Miss,
    /// The server says that it could not.
    Refused,
    /// Something in it is not as it must be.
    Wrong,
}

/// A stream from which no further answer can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came is no answer of this protocol")]
pub struct Malformed;

/// One kind of request and answer. See the [module](self).
pub trait Protocol: Debug + Send + Sync {
    /// What it is called on the command line.
    fn name(&self) -> &'static str;

    /// How answers name their requests.
    fn ids(&self, medium: Medium) -> Ids;

    /// Draws what to ask next.
    fn draw(&self, prng: &mut Prng) -> Ticket;

    /// Appends the bytes of a request.
    fn encode(&self, request: &Request, medium: Medium, out: &mut Vec<u8>);

    /// The length of the first answer in `stream`, at most `stream.len()`; `None` while its end has not come.
    ///
    /// # Errors
    /// [`Malformed`] when no answer can begin like this.
    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed>;

    /// What an answer says it answers; `None` if it is no answer at all. Unused with [`Ids::Order`].
    fn id(&self, answer: &[u8], medium: Medium) -> Option<u64>;

    /// Whether `answer` is the right one to `request`.
    fn check(&self, request: &Request, answer: &[u8], medium: Medium) -> Verdict;

    /// A request that does no harm and that any server answers: the first contact.
    fn contact(&self) -> Ticket;

    /// Requests that must be answered before the measurement, for instance to store what is read later.
    fn preloads(&self) -> u64 {
        0
    }

    /// What the `index`-th of them asks, for an index below [`Protocol::preloads`].
    fn preload(&self, index: u64) -> Ticket {
        index
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
