//! The protocols, as state machines between two byte buffers: no sockets, no clock.
//!
//! ```text
//! Connection   input and output buffers, partly received or sent items   connection
//! text, meta   lines                                                     text, meta, stats, words
//! binary       packets                                                   binary, packet
//! a turn       the input of a command, and its next step                 turn
//! a size       the keys of a retrieval, for a dispatcher                 size
//! a list       all items, for administrators                             dump
//! udp          datagrams around either                                   udp
//! ```
//!
//! A client's input is hostile: every length is checked before it is used, every buffer has a
//! bound, and no input ends more than its own connection.

mod binary;
mod buffer;
mod bytes;
mod connection;
mod dump;
mod meta;
mod packet;
mod size;
mod stats;
mod text;
mod turn;
mod udp;
mod words;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Step};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use connection::{KEPT, MAX_OUTPUT};
pub use udp::{MAX_DATAGRAM, UdpServer};
