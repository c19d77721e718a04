//! TCP sockets as programs use them: `std::net`'s names over the stack's connections.
//!
//! Owns waiting, timeouts, and the translation to `std::io`. Errors are those that `std` on Linux
//! reports.

mod corked;
pub(super) mod deferred;
mod error;
mod listener;
mod loan;
mod open;
mod options;
mod rounds;
mod settings;
pub(super) mod setup;
mod shared;
mod stream;
mod tuning;

pub use corked::Corked;
pub use listener::{Incoming, TcpListener};
pub use loan::Loan;
pub use options::{Congestion, TcpOptions};
pub use stream::TcpStream;
pub use tailwater_tcp::{
    Info as TcpInfo, Keepalive as TcpKeepalive, SharedBytes, State as TcpState, Stats as TcpStats,
};

#[cfg(feature = "future")]
pub(crate) use listener::closed;
pub(crate) use setup::window_of_ring;
#[cfg(feature = "future")]
pub(crate) use {rounds::lend, stream::each};

use super::platform::Kthreads;

/// A connection of the stack.
pub(crate) type Socket = tailwater_net::tcp::Socket<Kthreads>;
/// The locked part of a connection.
pub(crate) type Inner = tailwater_net::tcp::Inner<Kthreads>;
/// A listening socket of the stack.
pub(crate) type Listening = tailwater_net::tcp::Listening<Kthreads>;
/// The locked part of a listening socket.
pub(crate) type ListenInner = tailwater_net::tcp::ListenInner<Kthreads>;
