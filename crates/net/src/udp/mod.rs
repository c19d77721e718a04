//! UDP sockets (RFC 768): the queues behind them, the table that finds them, and the type programs
//! use.

pub(crate) mod endpoint;
mod groups;
mod ring;
mod slab;
mod table;

pub use endpoint::{Binding, Endpoint, Inbound, Offer, SocketError, Take, covers};
pub use groups::{GroupError, Groups, MAX_GROUPS};
pub use ring::{DatagramRing, Received};
pub use table::{BindError, UdpTable};
