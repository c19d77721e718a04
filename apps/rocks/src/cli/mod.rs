//! The command line of `rocks`, for its own binary and for programs that include it.
//!
//! Owns the arguments; `serve` uses them, if the program is built with RocksDB.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tailwater::dispatch::Policy;
use tailwater_workload::units::parse_time_ns;

#[cfg(feature = "rocksdb")]
mod serve;

/// Examples, for `after_help`.
pub const EXAMPLES: &str = "Examples:
  tailwater-rocks --load 100000
  tailwater run --name rocks --kthreads 1 --ip 10.77.0.2 -- tailwater-rocks --load 100000
  tailwater-rocks --linux --listen 127.0.0.1:5001 --load 100000
  tailwater load 127.0.0.1:5001 --protocol rocks:keys=100000,scan=0.005,count=1000 --no-preload

Without --linux it runs on Tailwater; TAILWATER_* variables say how (see `tailwater run --help`). Needs the system's \
librocksdb: sudo apt install librocksdb-dev, then build with --features rocksdb.";

/// Longest time that an idle connection may be kept.
const MOST_IDLE: Duration = Duration::from_secs(3_600);

/// Command-line arguments.
#[derive(Debug, Clone, Args)]
// Without RocksDB the options are only parsed.
#[cfg_attr(not(feature = "rocksdb"), allow(dead_code, reason = "parsed, so that wrong ones are told apart"))]
pub struct Options {
    /// Serve on kernel sockets and ordinary threads instead of Tailwater
    #[arg(long)]
    linux: bool,
    /// Address and port, for UDP and TCP; port 0 lets the system choose [default: port 5001 of
    /// 0.0.0.0, with --linux of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Folder of the store; made if there is none
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm/tailwater-rocks")]
    path: PathBuf,
    /// Write the keys 0 to N-1 first, with the values that `tailwater load --protocol rocks`
    /// expects
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    load: Option<u64>,
    /// Bytes of each value that --load writes
    #[arg(long, value_name = "BYTES", default_value_t = 64, requires = "load",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    value: u32,
    /// Keep a write-ahead log, so that no PUT is lost when the process dies
    #[arg(long)]
    wal: bool,
    /// Maximum number of entries of a SCAN; larger ones are refused
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    max_scan: u32,
    /// Longest value of a PUT in bytes; longer ones are refused
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    max_value: u32,
    /// Time after which a TCP connection is closed that sends nothing and waits for nothing, or
    /// whose request or reply takes longer; at most 1h
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_idle)]
    idle_timeout: Duration,
    /// Run GETs, PUTs and SCANs, a class each, in the order of this policy: c-fcfs, steal[:N],
    /// ps:QUANTUM, sq:QUANTUM[,head|tail], mq:QUANTUM[,head|tail], or jbsq:K[,QUANTUM] with a
    /// dispatcher of its own
    #[arg(long, value_name = "POLICY", default_value = "mq:15us", conflicts_with = "linux",
          value_parser = |text: &str| text.parse().and_then(Policy::for_unknown_work))]
    dispatch: Policy,
    /// Dispatchers with a kthread of their own, which hand requests to the others; 0: each kthread
    /// schedules itself, unless the policy is jbsq
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "linux",
          value_parser = clap::value_parser!(u16).range(0..=64))]
    dispatchers: u16,
    /// Threads on the UDP socket
    #[arg(long, value_name = "N", default_value_t = 1, requires = "linux",
          value_parser = clap::value_parser!(u16).range(1..=4_096))]
    threads: u16,
    /// Core to bind all serving threads to
    #[arg(long, value_name = "CORE", requires = "linux")]
    core: Option<usize>,
}

/// Reads the time after which an idle connection is closed.
fn parse_idle(text: &str) -> Result<Duration, String> {
    let ns = parse_time_ns(text).map_err(|error| error.to_string())?;
    let idle = Duration::from_nanos(ns);
    if idle <= MOST_IDLE { Ok(idle) } else { Err("at most 1h".to_owned()) }
}

/// Serves until SIGINT or SIGTERM, then writes what is in memory to the store and prints counters.
/// On Tailwater it then ends the process, because user threads end with it; on Linux it returns.
///
/// # Errors
/// If the service cannot start, with the reason. Without the feature `rocksdb` always: the error
/// says what to install.
#[cfg(feature = "rocksdb")]
pub fn run(options: &Options) -> anyhow::Result<()> {
    serve::run(options)
}

/// Returns an error that says what is missing: this program was built without the feature
/// `rocksdb`.
///
/// # Errors
/// Always.
#[cfg(not(feature = "rocksdb"))]
pub fn run(_: &Options) -> anyhow::Result<()> {
    anyhow::bail!(
        "this program was built without RocksDB: sudo apt install librocksdb-dev, then build with --features rocksdb"
    )
}
