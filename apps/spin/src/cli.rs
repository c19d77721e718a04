//! The command line of `spin`, for its own binary and for programs that include it.
//!
//! Owns arguments, signals, and the few lines of output. Printing happens on ordinary threads:
//! standard output's lock belongs to a kernel thread and must not be held over a switch of user
//! threads.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};

use anyhow::Context;
use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use tailwater::cores::{self, Estimation};
use tailwater::dispatch::{ClassStats, Policy};

use crate::background::Background;
use crate::classes::{Classes, WorkClass};
use crate::service::{CountsReader, Dispatch, Service};
use crate::{Counts, Spinner, linux};

/// Examples, for `after_help`.
pub const EXAMPLES: &str = "Examples:
  tailwater-spin --listen 0.0.0.0:5000
  tailwater run --name spin --kthreads 1 --ip 10.77.0.2 -- tailwater-spin --listen 0.0.0.0:5000
  tailwater-spin --dispatch mq:5us --class 1us=50us --class 1ms=20ms
  tailwater run --name spin --kthreads 1 -- tailwater-spin --background
  tailwater run --name spin --kthreads 4 -- tailwater-spin --estimate-cores
  tailwater-spin --linux --listen 127.0.0.1:5000
  tailwater-spin --linux --wait busy --core 1

Without --linux it runs on Tailwater; TAILWATER_* variables say how (see `tailwater run --help`).";

/// Command-line arguments.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Serve on kernel sockets and ordinary threads instead of Tailwater
    #[arg(long)]
    linux: bool,
    /// Address and UDP port; port 0 lets the system choose [default: port 5000 of 0.0.0.0, with
    /// --linux of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Speed of the work in iterations per millisecond, to give several servers the same [default:
    /// calibrate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    speed: Option<u64>,
    /// Make a user thread for every request
    #[arg(long, conflicts_with = "linux")]
    spawn: bool,
    /// Run requests in the order of this policy: c-fcfs, steal[:N], ps:QUANTUM,
    /// sq:QUANTUM[,head|tail], mq:QUANTUM[,head|tail], srpt, or jbsq:K[,QUANTUM] with a dispatcher
    /// of its own
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["linux", "spawn"])]
    dispatch: Option<Policy>,
    /// Dispatchers with a kthread of their own, which hand requests to the others; 0: each kthread
    /// schedules itself, unless the policy is jbsq
    #[arg(long, value_name = "N", default_value_t = 0, requires = "dispatch",
          value_parser = clap::value_parser!(u16).range(0..=64))]
    dispatchers: u16,
    /// A class of requests: those that ask for at most WORK, with their SLO, as in 1us=50us; once
    /// for each class
    #[arg(long, value_name = "WORK=SLO", requires = "dispatch")]
    class: Vec<WorkClass>,
    /// Price swaptions in background threads of this process, wherever no request runs; requests a
    /// core for each kthread, and prints the trials so far for each line on standard input
    #[arg(long, conflicts_with = "linux")]
    background: bool,
    /// Request as many cores as the load needs by Arachne's estimate; the IOKernel must have policy
    /// = "arbiter"
    #[arg(long, conflicts_with_all = ["linux", "background"])]
    estimate_cores: bool,
    /// How threads wait for requests
    #[arg(long, value_enum, default_value_t = Wait::Block, requires = "linux")]
    wait: Wait,
    /// Threads on the socket
    #[arg(long, value_name = "N", default_value_t = 1, requires = "linux",
          value_parser = clap::value_parser!(u16).range(1..=4_096))]
    threads: u16,
    /// Core to bind all threads to
    #[arg(long, value_name = "CORE", requires = "linux")]
    core: Option<usize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Wait {
    /// Sleep in the kernel
    Block,
    /// Poll without sleeping
    Busy,
}

/// Serves until SIGINT or SIGTERM, then prints counters. On Tailwater it then ends the process,
/// because user threads end with it; on Linux it returns.
///
/// # Errors
/// If the service cannot start, with the reason.
pub fn run(options: &Options) -> anyhow::Result<()> {
    // Before anything starts, so that no signal is missed.
    let signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    let spinner = options.speed.map_or_else(Spinner::calibrate, Spinner::with_speed);
    if options.linux { serve_linux(options, spinner, signals) } else { serve(options, spinner, signals) }
}

/// Returns why time slices of the runtime do not help a service of this kind.
fn why_no_quantum(dispatch: &Dispatch) -> Option<&'static str> {
    match dispatch {
        Dispatch::Workers => Some(
            "each kthread has one thread, which handles one request at a time, so a request that gives way lets no \
             other one run; use --dispatch sq:15us",
        ),
        Dispatch::Policy(_) => {
            Some("requests run in the order of --dispatch, whose policy has a quantum of its own, or none")
        }
        Dispatch::SpawnPerRequest => None,
    }
}

/// A service that runs: its address, its counts, and the job in its background, if there is one.
type Started = (SocketAddr, CountsReader, Option<Background>);

/// Serves on user threads.
fn serve(options: &Options, spinner: Spinner, signals: Signals) -> anyhow::Result<()> {
    let listen = options.listen.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 5000)));
    let dispatch = match options.dispatch {
        Some(policy) => {
            let classes = Classes::new(policy, options.class.clone());
            Dispatch::Policy(classes.dispatchers(options.dispatchers.into()))
        }
        None if options.spawn => Dispatch::SpawnPerRequest,
        None => Dispatch::Workers,
    };
    let (ready, started) = channel();
    std::thread::Builder::new()
        .name("spin-signals".to_owned())
        .spawn(move || end_on_signal(&started, signals))
        .context("cannot start a thread")?;
    let (in_background, estimates) = (options.background, options.estimate_cores);
    let builder = match why_no_quantum(&dispatch) {
        Some(reason) => tailwater::RuntimeBuilder::new().without_quantum(reason),
        None => tailwater::RuntimeBuilder::new(),
    };
    builder.run(move || {
        if estimates {
            cores::estimate(Estimation::default()).context("--estimate-cores has no effect")?;
        }
        let service = Service::start(listen, dispatch, spinner)?;
        let background = in_background.then(Background::start).transpose()?;
        // Fails only if the other thread cannot print, and then it ends the process.
        let _ = ready.send((service.local_addr()?, service.counts_reader(), background));
        anyhow::Ok(service.join()?)
    })??;
    Ok(())
}

/// Prints the address of the service, and ends the process on a signal.
fn end_on_signal(started: &Receiver<Started>, mut signals: Signals) {
    // If the service failed to start, the other thread prints the reason.
    let Ok((address, reader, background)) = started.recv() else { return };
    let printed = announce(address).and_then(|()| {
        if let Some(background) = background {
            // Its end is that of standard input; the service goes on.
            let reporter = move || background.report().unwrap_or_else(|error| eprintln!("{error:#}"));
            std::thread::Builder::new().name("spin-background".to_owned()).spawn(reporter)?;
        }
        let _ = signals.forever().next();
        print_counts(reader.counts())?;
        reader.classes().iter().try_for_each(print_class)
    });
    std::process::exit(i32::from(printed.is_err()));
}

/// Serves on kernel sockets.
fn serve_linux(options: &Options, spinner: Spinner, mut signals: Signals) -> anyhow::Result<()> {
    let mode = match options.wait {
        Wait::Block => linux::Mode::Blocking,
        Wait::Busy => linux::Mode::BusyPoll,
    };
    let listen = options.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 5000)));
    let config = linux::Config { listen, mode, threads: options.threads.into(), core: options.core, spinner };
    let server = linux::Server::start(&config)?;
    announce(server.local_addr())?;
    let _ = signals.forever().next();
    print_counts(server.stop())?;
    Ok(())
}

fn announce(address: SocketAddr) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "listening on {address}")
}

fn print_counts(counts: Counts) -> std::io::Result<()> {
    let Counts { served, malformed, unsent } = counts;
    writeln!(std::io::stdout(), "{served} served, {malformed} malformed, {unsent} unsent")
}

fn print_class(class: &ClassStats) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "class {class}")
}
