//! UDP sockets (RFC 768): the queues behind them, the table that finds them, and the type programs use.

mod endpoint;
mod ring;
mod slab;
mod socket;
mod table;

pub use endpoint::{Endpoint, Offer, SocketError, Take, covers};
pub use socket::UdpSocket;
pub use table::{BindError, UdpTable};
