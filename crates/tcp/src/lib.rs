//! TCP (RFC 9293) as pure state machines.
//!
//! Never reads a clock, sends, blocks or touches memory that is not its own. Segments, data, time
//! and secrets are arguments; the caller polls for segments to send. So the runtime, a virtual
//! network and the fuzzers drive the same code. The crate is `no_std`: there is no clock or socket
//! to reach.
//!
//! | module | is |
//! |---|---|
//! | [`segment`] | headers and options on the wire |
//! | [`connection`] | one connection: states, buffers, the receiving half, all timers but the sender's |
//! | [`sender`] | loss recovery and congestion control |
//! | [`listen`] | handshakes before there is a connection: SYN queue and cookies |
//! | [`state`] | the table of states |
//! | [`isn`], [`ports`] | numbers that cannot be guessed |
//! | [`closed`] | answers where there is no connection |

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod assembler;
mod challenge;
pub mod closed;
mod config;
pub mod connection;
mod ecn;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod isn;
pub mod listen;
pub mod ports;
mod ring;
pub mod segment;
mod send_queue;
pub mod sender;
pub mod seq;
mod shared;
pub mod state;
pub mod time;
mod time_wait;

pub use closed::answer_closed;
pub use config::{Config, InitialNumbers, Keepalive, Opening, default_mss};
pub use connection::{
    Buffer, Connection, Events, FastOpenOutcome, FastOpenPeer, Full, IcmpError, Info, Outgoing, Purpose,
    Stats, Transmit,
};
pub use ecn::EcnCodepoint;
pub use error::{Error, RecvError, SendError};
pub use isn::{Flow, Secret};
pub use listen::{Answer, Listener};
pub use segment::{Flags, Header, Segment};
pub use send_queue::Payload;
pub use sender::Sender;
pub use seq::{Range, Seq};
pub use shared::SharedBytes;
pub use state::State;
pub use time::Instant;
pub use time_wait::{TimeWait, TimeWaitResponse};
