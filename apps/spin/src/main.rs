//! `spin`: serves spin requests until it is told to stop.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tailwater_spin::linux::{Config, Mode, Server};

/// Serve spin requests: compute for as long as each asks, then answer.
///
/// Examples:
///   spin --linux --listen 127.0.0.1:5000
///   spin --linux --listen 127.0.0.1:5000 --wait busy --core 1
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
struct Options {
    /// Serve on kernel sockets and ordinary threads
    #[arg(long, required = true)]
    linux: bool,
    /// Address and UDP port; port 0 lets the kernel choose
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5000")]
    listen: SocketAddr,
    /// How threads wait for requests
    #[arg(long, value_enum, default_value_t = Wait::Block)]
    wait: Wait,
    /// Threads on the socket
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Core to bind all threads to
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Wait {
    /// Sleep in the kernel
    Block,
    /// Ask again and again
    Busy,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    // Before anything starts, so that no signal is missed.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    serve_linux(&options, &mut signals)
}

/// Serves on kernel sockets until a signal comes.
fn serve_linux(options: &Options, signals: &mut Signals) -> anyhow::Result<()> {
    let mode = match options.wait {
        Wait::Block => Mode::Blocking,
        Wait::Busy => Mode::BusyPoll,
    };
    let config = Config { listen: options.listen, mode, threads: options.threads, core: options.core };
    let server = Server::start(&config)?;
    writeln!(std::io::stdout(), "listening on {}", server.local_addr())?;
    let _ = signals.forever().next();
    let counts = server.stop();
    writeln!(
        std::io::stdout(),
        "{} served, {} malformed, {} unsent",
        counts.served,
        counts.malformed,
        counts.unsent
    )?;
    Ok(())
}
