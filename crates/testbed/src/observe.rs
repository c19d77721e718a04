//! The options of `tailwater top` and `tailwater metrics`.
//!
//! Owns their definition, which two programs read: `tailwater`, for its help, manual pages and
//! completions, and `tailwater-observe`, which carries them out, so that the program that may have
//! privileges contains no web server and no screen.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::socket::IokernelArg;
use clap::Args;
use tailwater_workload::units::parse_duration_ns;

/// The program that carries them out.
pub const PROGRAM: &str = "tailwater-observe";

/// Shortest time between two looks: an IOKernel answers ten questions of a user a second.
pub const LEAST_INTERVAL: Duration = Duration::from_millis(250);

/// Port of the metrics, unless given.
const PORT: u16 = 9757;

const LISTEN: &str = "Where to listen. Whoever reaches the address may read everything [default: 127.0.0.1:9757, or \
                      nowhere with --textfile]";

/// Watch cores, programs, latency and drops on this terminal
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Keys: s sorts by the next column, S by the one before, r reverses, / filters by name, p pauses, arrows scroll, ? \
explains the columns, q quits. A pipe gets lines. NO_COLOR is respected. tailwater-observe, which is installed beside \
tailwater, carries this out.

Examples:
  tailwater top
  tailwater top --once                 one look of a second, as lines
  tailwater top --interval 5s | tee top.log"
)]
pub struct TopArgs {
    /// The IOKernel that is asked.
    #[command(flatten)]
    pub iokernel: IokernelArg,
    /// Time between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Print one look as lines
    #[arg(long)]
    pub once: bool,
    /// Only programs with this in their name
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub filter: String,
}

/// Serve metrics for Prometheus, and a web page
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Answers at /metrics (OpenMetrics or Prometheus' text format), /ready, /stats.json, /schema.json, and / (the page). \
tailwater-observe, which is installed beside tailwater, carries this out.

Examples:
  tailwater metrics                                       then open http://127.0.0.1:9757/
  tailwater metrics --once | promtool check metrics
  tailwater metrics --textfile /var/lib/node_exporter/tailwater.prom"
)]
pub struct MetricsArgs {
    /// The IOKernel that is asked.
    #[command(flatten)]
    pub iokernel: IokernelArg,
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address, help = LISTEN)]
    pub listen: Option<SocketAddr>,
    /// Write the metrics to this file, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE")]
    pub textfile: Option<PathBuf>,
    /// Time between two writings of the file
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_interval, requires = "textfile")]
    pub interval: Duration,
    /// Print the metrics, or write the file, once
    #[arg(long, conflicts_with = "listen")]
    pub once: bool,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("no address with a port; write for instance 127.0.0.1:{PORT}"))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let ns = parse_duration_ns(text).map_err(|error| error.to_string())?;
    let interval = Duration::from_nanos(ns);
    if interval < LEAST_INTERVAL {
        return Err(format!("the shortest interval is {}ms", LEAST_INTERVAL.as_millis()));
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        assert_eq!(parse_address("[::1]:80"), Ok("[::1]:80".parse().unwrap()));
        assert!(parse_address("127.0.0.1").unwrap_err().contains("127.0.0.1:9757"));
    }

    #[test]
    fn an_interval_has_a_unit_and_a_minimum() {
        assert_eq!(parse_interval("2s"), Ok(Duration::from_secs(2)));
        assert!(parse_interval("1ms").unwrap_err().contains("250ms"));
        assert!(parse_interval("soon").is_err());
    }
}
