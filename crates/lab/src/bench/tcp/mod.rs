//! `tailwater-lab bench tcp`: the cost of TCP through the IOKernel and through the kernel, in one
//! interleaved run.
//!
//! Owns the rounds and their figures. The client is a port of the IOKernel
//! (`tailwater_loadgen::tcp`); the services are this program on the managed core ([`service`]); the
//! baseline is TCP over the kernel's loopback device with one thread on each of the two cores
//! ([`kernel`]). Every figure is the median over the rounds, beside the lowest and the highest.

use std::io::{Write, stdout};
use std::time::Duration;

use anyhow::Result;

pub mod bounds;
pub mod bulk;
mod calls;
mod event_service;
pub mod events;
mod figures;
mod hello;
mod host;
mod idle;
mod kernel;
mod loops;
pub mod many;
pub mod messages;
mod rounds;
mod service;
mod soak;
mod terms;

pub use bulk::serve as serve_bulk;
pub use calls::serve as serve_echo;
pub use figures::Figures;
pub use service::{ServiceArgs, run as run_service};
pub use terms::{DISCARD, GENERATE};

use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::progress;

/// Measure TCP through the IOKernel, next to the kernel's: latency, throughput, bulk, memory
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "rr: one connection, 64 bytes there and back. echo: 64 connections, one request outstanding on each, the
service on one core; the kernel gets both. bulk: one connection and then 16 between two runtimes
that share the managed core; one from a port to a runtime (upload), back (download), and within one runtime.
Packets: 9000 bytes between runtimes, 1500 at the port, 32 KiB within one.
idle: resident memory of a service for each established connection without traffic.
The kernel's figures are of its loopback device, whose packets are 64 KiB.

Examples:
  tailwater-lab bench tcp                                 everything, half a minute
  tailwater-lab bench tcp --rounds 11 --json tcp.json
  tailwater-lab bench tcp --rounds 1 --idle 250000        a quarter of a million connections, opened and asked once
  tailwater-lab bench tcp --soak 10                       ten minutes of churn, bulk and loss; fails if anything is left"
)]
pub struct TcpArgs {
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Connections of the memory measurement; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(0..=250_000))]
    idle: u32,
    /// Instead of measuring, open, use and close connections over a lossy network for so long, and
    /// check that none is left
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes)]
    soak: Option<f64>,
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
/// If a process does not start or answer, if a soak leaves something, or on a signal.
pub fn run(args: &TcpArgs) -> Result<Figures> {
    let interrupt = Interrupt::catch()?;
    if let Some(minutes) = args.soak {
        return soak::run(Duration::from_secs_f64(minutes * 60.0), &interrupt);
    }
    let mut figures = Figures::default();
    for _ in progress::over("tcp", 0..args.rounds) {
        rounds::service(&mut figures, &interrupt)?;
        rounds::kernel(&mut figures)?;
        interrupt.check()?;
        rounds::runtimes(&mut figures, &interrupt)?;
        interrupt.check()?;
    }
    if args.idle > 0 {
        idle::measure(args.idle, &mut figures, &interrupt)?;
    }
    write!(stdout(), "{figures}")?;
    Ok(figures)
}
