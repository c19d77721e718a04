//! What client, services and baseline have in common: sizes, addresses, ports, and the lines that
//! children print.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, Result};
use tailwater_loadgen::tcp::Order;

/// Address of the services, outside those that the IOKernel chooses, which begin at .2.
pub const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
/// Bytes of a request and of its echo.
pub const REQUEST: usize = 64;
/// Connections of the throughput measurement.
pub const CONNECTIONS: u32 = 64;

/// Port of echo (RFC 862).
pub const ECHO: u16 = 7;
/// Port of an echo with time stamps in it.
pub const STAMP: u16 = 8;
/// Port of discard (RFC 863).
pub const DISCARD: u16 = 9;
/// Port of the character generator (RFC 864), without its pattern.
pub const GENERATE: u16 = 19;
/// First port of an echo without a thread per connection; each port serves 50,000 connections of
/// one client.
pub const HOLD: u16 = 6000;
/// First port of an echo with a thread per connection.
pub const MANY: u16 = 6100;
/// Number of ports from each of these on.
pub const MANY_PORTS: u16 = 5;
/// First port of an echo on event loops: one for each of [`BATCHES`].
pub const EVENTS: u16 = 6200;
/// Conditions in a round of those loops.
pub const BATCHES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Port of an echo with an event loop for each kthread.
pub const LOOPS: u16 = 6250;
/// Port of an echo with a task, a future, for each connection.
pub const ASYNC: u16 = 6300;
/// Port of an echo on an event loop that counts its rounds.
pub const COUNTED: u16 = 6301;
/// Port of an event loop that answers each request with [`LARGE`] bytes, which it copies into the
/// send buffer.
pub const LARGE_COPIED: u16 = 6302;
/// Port of the same on shared bytes.
pub const LARGE_SHARED: u16 = 6303;
/// Bytes of a large answer.
pub const LARGE: usize = 16 << 10;
/// First port of a service that answers when the whole message has arrived, with a thread for each
/// connection: one for each of [`MESSAGES`].
pub const WHOLE: u16 = 6400;
/// First port of the same on event loops, for those of [`MESSAGES`] up to [`MAX_EVENT_MESSAGE`].
pub const WHOLE_EVENTS: u16 = 6500;
/// Bytes of the messages of these services.
pub const MESSAGES: [usize; 14] = [
    64,
    128,
    256,
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
];
/// Largest message that an event loop keeps on loan until it is complete; far below the window.
pub const MAX_EVENT_MESSAGE: usize = 8 << 10;

/// Returns the port of the service for messages of `bytes` bytes, counted from `first`.
///
/// # Errors
/// If there is none for that length.
pub fn port_for(first: u16, bytes: usize) -> Result<u16> {
    let found = (first..).zip(MESSAGES).find_map(|(port, size)| (size == bytes).then_some(port));
    found.with_context(|| format!("there is no service for messages of {bytes} bytes"))
}

/// Returns where a service listens.
pub fn at(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(SERVICE_IP, port)
}

/// Returns a time longer than the order takes.
pub fn patience(order: &Order) -> Duration {
    let lasts = match order {
        Order::Open { wait, .. }
        | Order::EchoOnce { wait, .. }
        | Order::Preload { wait, .. }
        | Order::Close { wait } => *wait,
        Order::Echo { warm_up, lasts, .. }
        | Order::Fetch { warm_up, lasts, .. }
        | Order::Calls { warm_up, lasts, .. } => *warm_up + *lasts,
        Order::Stages { lasts, .. }
        | Order::Upload { lasts }
        | Order::Download { lasts }
        | Order::Churn { lasts, .. } => *lasts,
    };
    lasts + Duration::from_secs(20)
}

/// The unspecified address, where services listen.
pub const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// Returns a number in a line that a child printed: `name VALUE`.
pub fn value_of(line: &str, name: &str) -> Result<f64> {
    let value = line.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
    value.with_context(|| format!("expected `{name} NUMBER` of a child, not {line:?}"))
}
