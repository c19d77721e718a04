//! TCP from inside an IOKernel's polling loop: many connections to a service, without a system call
//! or a second core.
//!
//! There are two layers. The [`Client`] is sans-IO: the connections of one station to one server,
//! over `tailwater-tcp`; frames, time and a place to send are arguments, so any protocol over TCP
//! can build on it. The [station] is a port with a client inside that carries out [orders](Order):
//! open connections, send requests and await their echo, send or receive as much as possible, open
//! and close in turn.
//!
//! Orders are a closed loop: the next request of a connection is sent when its last one was
//! answered. So the rates show a service's capacity, and the latencies are those of that load; they
//! do not replace the open-loop generator's. That runs over the same connections with
//! [`TcpHandle::load`], in any protocol.

pub mod client;
mod open_loop;
mod order;
mod preload;
mod stages;
pub mod station;
mod task;
mod wire;

pub use client::{Client, ConnectionId, Peer};
pub use open_loop::TcpLoad;
pub use order::{Order, Outcome, TcpError};
pub use stages::{STAGES, Stages, Stamps};
pub use station::{LoadProgress, TcpHandle, TcpStation, tcp_station};
