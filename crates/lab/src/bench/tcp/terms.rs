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
        Order::Echo { warm_up, lasts, .. } => *warm_up + *lasts,
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
