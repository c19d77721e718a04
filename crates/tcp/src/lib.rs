//! TCP (RFC 9293) as pure state machines.
//!
//! Never reads a clock, sends, blocks or touches memory that is not its own: segments, data, time and secrets are arguments, and
//! what is to be sent is asked for. That is what lets the runtime, a virtual network and the fuzzers drive the same code.

#![forbid(unsafe_code)]

pub mod sender;
pub mod seq;
pub mod time;

pub use sender::{Range, Sender};
pub use seq::Seq;
pub use time::Instant;
