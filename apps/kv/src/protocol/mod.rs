//! The protocols, as state machines between two byte buffers: no sockets, no clock.
//!
//! ```text
//! Connection   input buffer, output buffer, what is half received or half sent     connection
//! text, meta   lines                                                               text, meta, stats, words
//! binary       packets                                                             binary, packet
//! a turn       what a command is given, what it wants done next                    turn
//! udp          datagrams around either                                             udp
//! ```
//!
//! What a client sends is hostile: every length is checked before it is used, every buffer has a bound, and nothing it
//! can send ends more than its own connection.

mod binary;
mod buffer;
mod bytes;
mod connection;
mod meta;
mod packet;
mod stats;
mod text;
mod turn;
mod udp;
mod words;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Step};
#[cfg(any(test, fuzzing, feature = "check"))]
pub(crate) use connection::{KEPT, MAX_OUTPUT};
pub use udp::{MAX_DATAGRAM, UdpServer};
