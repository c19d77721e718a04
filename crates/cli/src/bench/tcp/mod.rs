//! `tailwater bench tcp`: what TCP costs through the IOKernel, beside the kernel's own, in one interleaved run.
//!
//! Owns the rounds and their figures. The client is a port of the IOKernel (`tailwater_loadgen::tcp`), the services are
//! this same program on the managed core ([`service`]), the baseline is TCP over the kernel's loopback with one thread on
//! each of the two cores ([`kernel`]). Every figure is the median over the rounds, with the least and the most beside it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tailwater_loadgen::tcp::Order;

mod bulk;
mod figures;
mod host;
mod idle;
mod kernel;
pub mod many;
mod rounds;
mod service;
mod soak;

pub use figures::Figures;
pub use service::{ServiceArgs, run as run_service};

use crate::interrupt::Interrupt;

/// Bytes of a request and of its echo.
const REQUEST: usize = 64;
/// Connections of the throughput measurement.
const CONNECTIONS: u32 = 64;

/// Measure TCP through the IOKernel, next to the kernel's: latency, throughput, bulk, memory
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "rr: one connection, 64 bytes there and back. echo: 64 connections, one request outstanding on each, the
service on one core; the kernel gets both. bulk: 1500-byte packets, one connection, between two runtimes
that share the managed core, from a port to a runtime (upload) and back (download), and within one runtime.
idle: resident memory of a service per established connection that nobody serves at the moment.
The kernel's figures are of its loopback device, whose packets are 64 KiB.

Examples:
  tailwater bench tcp                                 everything, half a minute
  tailwater bench tcp --rounds 11 --json tcp.json
  tailwater bench tcp --rounds 1 --idle 250000        a quarter of a million connections, opened and asked once
  tailwater bench tcp --soak 10                       ten minutes of churn, bulk and loss; fails if anything is left"
)]
pub struct TcpArgs {
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Connections held for the measurement of memory; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(0..=250_000))]
    idle: u32,
    /// Instead of measuring, open, use and close connections over a lossy network for so long, and check that nothing is
    /// left
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes)]
    soak: Option<f64>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if (0.05..=1440.0).contains(&minutes) => Ok(minutes),
        _ => Err("a number of minutes from 0.05 to 1440".to_owned()),
    }
}

/// Measures and prints.
///
/// # Errors
/// When something does not start or answer, on a signal, or when a soak finds something left.
pub fn run(args: &TcpArgs) -> Result<Figures> {
    let interrupt = Interrupt::catch()?;
    if let Some(minutes) = args.soak {
        return soak::run(Duration::from_secs_f64(minutes * 60.0), &interrupt);
    }
    let mut figures = Figures::default();
    for _ in 0..args.rounds {
        rounds::service(&mut figures, &interrupt)?;
        rounds::kernel(&mut figures)?;
        interrupt.check()?;
        rounds::runtimes(&mut figures, &interrupt)?;
        interrupt.check()?;
    }
    if args.idle > 0 {
        idle::measure(args.idle, &mut figures, &interrupt)?;
    }
    print!("{figures}");
    Ok(figures)
}

/// Where a service listens.
fn at(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(host::SERVICE_IP, port)
}

/// Longer than any order lasts.
fn patience(order: &Order) -> Duration {
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
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// A number in a line that a child printed: `name VALUE`.
fn value_of(line: &str, name: &str) -> Result<f64> {
    let value = line.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
    value.with_context(|| format!("expected `{name} NUMBER` of a child, not {line:?}"))
}
