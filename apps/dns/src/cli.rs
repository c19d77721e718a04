//! The command line of `dns`, for its own binary and for programs that include it.
//!
//! Owns arguments, signals, and the few lines of output. Files are read and lines printed on
//! ordinary threads only.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use domain::base::Name;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tailwater::dispatch::Policy;
use tailwater_workload::units::parse_time_ns;

use crate::dispatched::{Dispatched, Order};
use crate::linux;
use crate::name::store;
use crate::serve::{Limits, Shared, udp};
use crate::service::Service;
use crate::store::{Reloaded, Source, Store};
use crate::zone::Node;
use crate::zone::problem::Problem;

/// Examples, for `after_help`.
pub const EXAMPLES: &str = "Examples:
  tailwater-dns --zone example.com=example.com.zone --check
  tailwater run --kthreads 2 --ip 10.77.0.2 -- tailwater-dns --zone example.com=example.com.zone
  tailwater run --name dns -- tailwater-dns --dispatch mq:5us --zone example.com=example.com.zone
  tailwater-dns --linux --listen 127.0.0.1:5300 --zone example.com=example.com.zone
  kill -HUP PID                                 read the zone files again
  kill -USR1 PID                                print the counters

Without --linux it runs on Tailwater; TAILWATER_* variables say how (see `tailwater run --help`).";

/// Port of DNS (RFC 1035, section 4.2).
const PORT: u16 = 53;

/// Number of attempts to free what a reload has replaced, [`udp::REFRESH`] apart: by the second
/// attempt each thread has used the new zones.
const SWEEPS: u32 = 5;

/// Time between two checks for open connections.
const LOOK: Duration = Duration::from_millis(10);
/// Checks in a row that find no connection before the service ends.
const QUIET_LOOKS: u32 = 10;

/// Longest time that an idle connection may be kept.
const MOST_IDLE: Duration = Duration::from_secs(3_600);

/// Command-line arguments.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// A zone and its master file; give as many as you like
    #[arg(long = "zone", value_name = "NAME=FILE", required = true)]
    zones: Vec<ZoneFile>,
    /// Address and port for UDP and TCP, again for more; port 0 lets the system choose [default:
    /// port 53 of 0.0.0.0, with --linux of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<SocketAddr>,
    /// Read and check the zones, and exit
    #[arg(long)]
    check: bool,
    /// Maximum number of TCP connections
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections as u32,
        value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Time after which a TCP connection is closed without a whole query, or with answers that the
    /// client does not read; at most 1h
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_idle)]
    idle_timeout: Duration,
    /// Run queries in the order of this policy, so that others do not wait behind those that take
    /// hashes of NSEC3: c-fcfs, steal[:N], ps:QUANTUM, sq:QUANTUM[,head|tail],
    /// mq:QUANTUM[,head|tail], or jbsq:K[,QUANTUM] with a dispatcher of its own
    #[arg(long, value_name = "POLICY", conflicts_with = "linux",
          value_parser = |text: &str| text.parse().and_then(Policy::for_unknown_work))]
    dispatch: Option<Policy>,
    /// Dispatchers with a kthread of their own, which hand queries to the others; 0: each kthread
    /// schedules itself, unless the policy is jbsq
    #[arg(long, value_name = "N", default_value_t = 0, requires = "dispatch",
        value_parser = clap::value_parser!(u16).range(0..=64))]
    dispatchers: u16,
    /// Serve on kernel sockets and ordinary threads instead of Tailwater
    #[arg(long)]
    linux: bool,
    /// Threads for datagrams
    #[arg(long, value_name = "N", default_value_t = 1, requires = "linux",
          value_parser = clap::value_parser!(u16).range(1..=4_096))]
    threads: u16,
}

/// Reads the time after which an idle connection is closed.
fn parse_idle(text: &str) -> Result<Duration, String> {
    let ns = parse_time_ns(text).map_err(|error| error.to_string())?;
    let idle = Duration::from_nanos(ns);
    if idle <= MOST_IDLE { Ok(idle) } else { Err("at most 1h".to_owned()) }
}

impl Options {
    /// Returns the order of queries, if one was asked for.
    fn order(&self) -> Option<Order> {
        self.dispatch.map(|policy| Order { policy, dispatchers: self.dispatchers.into() })
    }
}

/// `NAME=FILE`.
#[derive(Debug, Clone)]
struct ZoneFile(Source);

impl FromStr for ZoneFile {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (origin, file) =
            text.split_once('=').context("give the zone's name and its file as NAME=FILE")?;
        let name = Name::<Vec<u8>>::from_str(origin)
            .map_err(|error| anyhow::anyhow!("`{origin}` is not a domain name: {error}"))?;
        Ok(Self(Source { origin: store(&name), file: PathBuf::from(file) }))
    }
}

/// Serves until SIGINT or SIGTERM, and then prints counters; reads the zones again at SIGHUP, and
/// prints counters at SIGUSR1. If another instance has taken this one's place, it finishes its
/// connections first. On Tailwater it ends the process, because user threads end with it; on Linux
/// it returns.
///
/// # Errors
/// If a zone has problems, which are printed, or the server cannot start.
pub fn run(options: &Options) -> anyhow::Result<()> {
    // Before anything starts, so that no signal is missed.
    let mut signals = Signals::new([SIGHUP, SIGUSR1, SIGINT, SIGTERM]).context("cannot catch signals")?;
    let sources: Vec<_> = options.zones.iter().map(|zone| zone.0.clone()).collect();
    let store = match Store::open(sources) {
        Ok(store) => store,
        Err(problems) => {
            print_problems(&problems)?;
            bail!("{} problems in the zones", problems.len());
        }
    };
    print_zones(&store)?;
    if options.check {
        return Ok(());
    }
    let limits = Limits { connections: options.connections as usize, idle: options.idle_timeout };
    let shared = Arc::new(Shared::new(store, limits));
    let default = if options.linux { [127, 0, 0, 1] } else { [0, 0, 0, 0] };
    let listen = match &*options.listen {
        [] => vec![SocketAddr::from((default, PORT))],
        listen => listen.to_vec(),
    };
    if options.linux {
        let server = linux::Server::start(&listen, options.threads.into(), &shared)?;
        announce(server.addresses())?;
        let running = Running { shared, dispatched: None };
        follow_signals(&mut signals, &running)?;
        // From here on every answer is counted.
        server.stop();
        running.print_counts()?;
        return Ok(());
    }
    let (ready, started) = channel();
    std::thread::Builder::new()
        .name("dns-signals".to_owned())
        .spawn(move || end_on_signal(&started, signals))
        .context("cannot start a thread")?;
    let (mut builder, order) = (tailwater::RuntimeBuilder::new(), options.order());
    if order.is_some() {
        builder = builder.without_quantum(
            "queries run in the order of --dispatch, whose policy has a quantum of its own, or none",
        );
    }
    builder.run(move || serve(&listen, shared, order, &ready))??;
    Ok(())
}

/// Starts the service and reports it as `ready`; returns only if it fails.
fn serve(
    listen: &[SocketAddr],
    shared: Arc<Shared>,
    order: Option<Order>,
    ready: &Sender<(Vec<SocketAddr>, Running)>,
) -> std::io::Result<()> {
    // A send fails only if the other thread cannot print, and then it ends the process.
    let Some(order) = order else {
        let service = Service::start(listen, &shared)?;
        tailwater::signal::end_earlier();
        let _ = ready.send((service.addresses().to_vec(), Running { shared, dispatched: None }));
        return service.join();
    };
    let service = Dispatched::start(listen, &shared, order)?;
    tailwater::signal::end_earlier();
    let _ = ready.send((service.addresses(), Running { shared, dispatched: Some(service) }));
    loop {
        tailwater::thread::park();
    }
}

/// A server that runs.
struct Running {
    shared: Arc<Shared>,
    dispatched: Option<Dispatched>,
}

impl Running {
    /// Returns the number of open connections.
    fn connections(&self) -> u64 {
        match &self.dispatched {
            Some(dispatched) => dispatched.connections(),
            None => self.shared.connections() as u64,
        }
    }

    fn print_counts(&self) -> std::io::Result<()> {
        let Some(dispatched) = &self.dispatched else {
            return writeln!(std::io::stdout(), "{}", self.shared.counts());
        };
        writeln!(std::io::stdout(), "{}", dispatched.counts())?;
        let mut classes = dispatched.classes().into_iter();
        classes.try_for_each(|(at, class)| writeln!(std::io::stdout(), "at {at}, class {class}"))
    }
}

/// Prints the addresses of the service, and ends the process on a signal.
fn end_on_signal(started: &Receiver<(Vec<SocketAddr>, Running)>, mut signals: Signals) {
    // If the service failed to start, the other thread prints the reason.
    let Ok((addresses, running)) = started.recv() else { return };
    let printed = announce(&addresses).and_then(|()| follow_signals(&mut signals, &running));
    if tailwater::signal::is_replaced() {
        finish_connections(&running);
    }
    let printed = printed.and_then(|()| running.print_counts());
    std::process::exit(i32::from(printed.is_err()));
}

/// Waits until no connection is open: the next ones are the later instance's. A client that goes on
/// asking is cut off after the idle time.
fn finish_connections(running: &Running) {
    let began = Instant::now();
    // A connection is counted a moment after it was accepted, so the count may be zero in between.
    let mut quiet = 0;
    while quiet < QUIET_LOOKS && began.elapsed() < running.shared.limits().idle {
        std::thread::sleep(LOOK);
        quiet = if running.connections() == 0 { quiet + 1 } else { 0 };
    }
}

/// Reloads on SIGHUP and prints counters on SIGUSR1; returns at the other signals.
fn follow_signals(signals: &mut Signals, running: &Running) -> std::io::Result<()> {
    for signal in signals.forever() {
        match signal {
            SIGHUP => reload(&running.shared)?,
            SIGUSR1 => running.print_counts()?,
            _ => break,
        }
    }
    Ok(())
}

fn reload(shared: &Arc<Shared>) -> std::io::Result<()> {
    let Reloaded { loaded, kept, problems } = shared.store.reload();
    sweep(shared);
    print_problems(&problems)?;
    if kept > 0 {
        writeln!(std::io::stderr(), "{kept} zones stay as they were until their files are right")?;
    }
    print_zones(&shared.store)?;
    writeln!(std::io::stdout(), "reloaded {loaded} zones, kept {kept}")
}

/// Frees what a reload has replaced, on a thread of its own, once no thread answers from it any
/// more. What is still in use after [`SWEEPS`] is left to the next reload.
fn sweep(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    // Without a thread the next reload frees it.
    drop(std::thread::Builder::new().name("dns-sweep".to_owned()).spawn(move || {
        for _ in 0..SWEEPS {
            std::thread::sleep(udp::REFRESH);
            if shared.store.sweep() == 0 {
                break;
            }
        }
    }));
}

fn announce(addresses: &[SocketAddr]) -> std::io::Result<()> {
    addresses.iter().try_for_each(|address| writeln!(std::io::stdout(), "listening on {address}"))
}

fn print_problems(problems: &[Problem]) -> std::io::Result<()> {
    problems.iter().try_for_each(|problem| writeln!(std::io::stderr(), "{problem}"))
}

fn print_zones(store: &Store) -> std::io::Result<()> {
    let catalog = store.zones();
    let mut zones: Vec<_> = catalog.zones().collect();
    zones.sort_by(|a, b| a.apex().name().cmp(b.apex().name()));
    for zone in zones {
        let records: usize = zone.nodes().iter().flat_map(Node::rrsets).map(|rrset| rrset.data.len()).sum();
        let serial = zone.soa().and_then(|(soa, _)| soa.soa_serial()).unwrap_or_default();
        let name = zone.apex().name().fmt_with_dot().to_string();
        writeln!(std::io::stdout(), "zone {name} serial {serial}, {records} records")?;
    }
    Ok(())
}
