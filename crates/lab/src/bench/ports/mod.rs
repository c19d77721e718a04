//! `tailwater-lab bench ports`: a service on Tailwater, a plain Linux client on the same machine.
//!
//! Owns the four variants, their rounds and figures. A variant is the way between a client and an
//! echo service over TCP, 64 bytes there and back:
//!
//! | variant | service | way | client |
//! |---|---|---|---|
//! | `tap` | Tailwater, a user thread for each connection | TAP device of the IOKernel | Linux |
//! | `xdp_veth` | the same | veth pair, one end with AF_XDP | Linux, in another namespace |
//! | `loopback` | Linux, one epoll thread ([`echo`]) | loopback device | Linux |
//! | `veth` | the same | veth pair | Linux, in another namespace |
//!
//! The client ([`client`]) is the same process in each. All have the same two cores: the client is
//! on the first, beside the IOKernel where there is one, and the service on the second. All are in
//! one session (autogroup). Variants are measured in turn, and the median over the rounds counts.
//! Namespaces and devices ([`network`]) end with this process.

use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use tailwater_iokernel::Config;
use tailwater_iokernel::port::Port;
use tailwater_iokernel::port::tap::{TapPort, TapSpec};
use tailwater_iokernel::port::xdp::XdpPort;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::{Machine, cpu_set};
use tailwater_testbed::table::{Table, number};

mod client;
mod echo;
mod network;

use client::Counted;
use network::Namespace;

/// Bytes of a request and of its answer.
const REQUEST: usize = 64;
/// Port of echo (RFC 862).
const ECHO: u16 = 7;
/// Linux's side of the network, and the service.
const CLIENT: &str = "10.77.0.1";
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
/// Connections of the loaded measurements.
const CONNECTIONS: usize = 64;
/// Requests per second of the open loop.
const RATE: f64 = 8_000.0;
/// Bars: throughput at 64 connections over that of the kernel's way, and p99 over its p99.
const LEAST_RPS: f64 = 0.6;
const MOST_P99: f64 = 1.5;

/// A plain Linux client of a service on the same machine: TAP, AF_XDP on veth, next to the kernel's
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "rps_1, rps_64: answers per second over 1 and 64 TCP connections, one request of 64 bytes
outstanding on each. p99_us: 99th percentile at 8,000 requests a second, from the time each is due. The client is on
the first core, beside the IOKernel, the service on the second.
Runs as root; needs ip (iproute2), unshare and nsenter (util-linux).

Examples:
  tailwater-lab bench ports
  tailwater-lab bench ports --variants tap,loopback --rounds 5 --json ports.json
  tailwater-lab bench ports --tap-words offload --variants tap"
)]
pub struct PortsArgs {
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Length of each of a variant's three measurements in a round
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
    ms: u64,
    /// What to measure, of `tap`, `xdp_veth`, `loopback`, `veth`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values = ["tap", "xdp_veth", "loopback", "veth"])]
    variants: Vec<Variant>,
    /// Words of the TAP device, as `queues=2,napi,offload` behind the name of `iokernel --tap`
    #[arg(long, value_name = "WORDS", default_value = "")]
    tap_words: String,
    /// Cores of the client [default: the first, which is the IOKernel's]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    client_cores: Vec<usize>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// A way between client and service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Variant {
    Tap,
    XdpVeth,
    Loopback,
    Veth,
}

/// The figures of a run; a variant that was not asked for is absent.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    tap: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp_veth: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loopback: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    veth: Option<Figures>,
}

/// Medians over the rounds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    rps_1: f64,
    rps_64: f64,
    p50_us: f64,
    p99_us: f64,
    /// Times that the client waited for each answer, over 64 connections.
    waits_64: f64,
}

/// A round of one variant: closed loops over 1 and 64 connections, and the open loop.
type Round = [Counted; 3];

/// Measures, prints, and returns the figures.
///
/// # Errors
/// Without the privileges for namespaces and devices, if a process does not start or ends, or on a
/// signal.
pub fn run(args: &PortsArgs, machine: &Machine) -> Result<Report> {
    let [first, second, ..] = machine.usable_cores[..] else { anyhow::bail!("two cores are needed") };
    let interrupt = Interrupt::catch()?;
    let terms = Terms {
        cores: [first, second],
        client_cores: match &args.client_cores[..] {
            [] => vec![first],
            cores => cores.to_vec(),
        },
        tap: format!("tw0,{}", args.tap_words).parse().context("--tap-words")?,
        lasts_ms: args.ms,
        interrupt: &interrupt,
    };
    let mut rounds: Vec<(Variant, Vec<Round>)> =
        args.variants.iter().map(|&variant| (variant, Vec::new())).collect();
    for _ in 0..args.rounds {
        for (variant, measured) in &mut rounds {
            // A thread of its own, because its namespace is.
            let round = std::thread::scope(|scope| scope.spawn(|| terms.measure(*variant)).join());
            interrupt.check()?;
            let round = round.map_err(|_| anyhow::anyhow!("a measurement panicked"))?;
            measured.push(round.with_context(|| format!("{variant:?}"))?);
        }
    }
    let of = |variant| rounds.iter().find(|(one, _)| *one == variant).map(|(_, rounds)| Figures::of(rounds));
    let report = Report {
        tap: of(Variant::Tap),
        xdp_veth: of(Variant::XdpVeth),
        loopback: of(Variant::Loopback),
        veth: of(Variant::Veth),
    };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// What all measurements have in common.
struct Terms<'a> {
    cores: [usize; 2],
    client_cores: Vec<usize>,
    tap: TapSpec,
    lasts_ms: u64,
    interrupt: &'a Interrupt,
}

impl Terms<'_> {
    /// Measures a round of a variant, in namespaces of its own; moves the calling thread.
    fn measure(&self, variant: Variant) -> Result<Round> {
        rustix::thread::sched_setaffinity(None, &cpu_set(&self.cores))?;
        let here = Namespace::new(self.interrupt)?;
        here.enter()?;
        let there = match variant {
            Variant::Tap | Variant::Loopback => None,
            Variant::XdpVeth | Variant::Veth => Some(Namespace::new(self.interrupt)?),
        };
        if let Some(there) = &there {
            let service = format!("{SERVICE}/16");
            let address = (variant == Variant::Veth).then_some(&service[..]);
            there.join(("veth0", address), ("veth1", &format!("{CLIENT}/16")))?;
        }
        match variant {
            Variant::Tap => {
                let port = TapPort::with_spec(self.tap.clone(), CLIENT.parse()?);
                self.on_tailwater(Box::new(port), there.as_ref())
            }
            Variant::XdpVeth => {
                let spec = format!("veth0,gateway={CLIENT},fill-checksums");
                self.on_tailwater(Box::new(XdpPort::new(spec.parse()?)), there.as_ref())
            }
            Variant::Loopback => self.on_linux(Ipv4Addr::LOCALHOST, there.as_ref()),
            Variant::Veth => self.on_linux(SERVICE, there.as_ref()),
        }
    }

    fn on_tailwater(&self, port: Box<dyn Port>, there: Option<&Namespace>) -> Result<Round> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = format!("@tailwater-bench-ports-{}-{number}", std::process::id());
        let [polling, managed] = self.cores.map(|core| core as u16);
        let config = Config {
            socket: socket.clone(),
            iokernel_core: Some(polling),
            managed_cores: Some(vec![managed]),
            ..Config::default()
        };
        let _iokernel = Embedded::start(config, port, None)?;
        let settings = vec![
            ("TAILWATER_IOKERNEL", socket),
            ("TAILWATER_NAME", "service".to_owned()),
            ("TAILWATER_IP", SERVICE.to_string()),
            ("TAILWATER_KTHREADS", "1".to_owned()),
        ];
        let arguments = vec!["serve".to_owned()];
        let _service = self.start(&Spec { app: "tcp", arguments, settings, ..Spec::default() })?;
        self.ask(SERVICE, there)
    }

    fn on_linux(&self, to: Ipv4Addr, there: Option<&Namespace>) -> Result<Round> {
        let arguments = vec!["serve".to_owned(), ECHO.to_string()];
        let cores = vec![self.cores[1]];
        let _service = self.start(&Spec { app: "ports", arguments, cores, ..Spec::default() })?;
        self.ask(to, there)
    }

    fn start(&self, spec: &Spec) -> Result<ChildProcess> {
        let mut child = ChildProcess::start(spec)?;
        let line = child.read_line(self.interrupt)?;
        ensure!(line == "ready", "the service printed {line:?}, not `ready`");
        Ok(child)
    }

    /// Runs the clients one after the other, `there` or in the namespace of this thread, which is
    /// moved.
    fn ask(&self, service: Ipv4Addr, there: Option<&Namespace>) -> Result<Round> {
        if let Some(there) = there {
            there.enter()?;
        }
        let to = SocketAddrV4::new(service, ECHO);
        let ask = |connections: usize, rate: Option<f64>| -> Result<Counted> {
            let words = [to.to_string(), connections.to_string(), self.lasts_ms.to_string()];
            let rate = rate.map(|rate| rate.to_string());
            let arguments = ["ask".to_owned()].into_iter().chain(words).chain(rate).collect();
            let cores = self.client_cores.clone();
            let mut child = ChildProcess::start(&Spec { app: "ports", arguments, cores, ..Spec::default() })?;
            let line = child.read_line(self.interrupt)?;
            serde_json::from_str(&line).with_context(|| format!("the client printed {line:?}"))
        };
        Ok([ask(1, None)?, ask(CONNECTIONS, None)?, ask(CONNECTIONS, Some(RATE))?])
    }
}

impl Figures {
    fn of(rounds: &[Round]) -> Self {
        let median = |of: fn(&Round) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Self {
            rps_1: median(|round| round[0].rps),
            rps_64: median(|round| round[1].rps),
            p50_us: median(|round| round[2].p50_us),
            p99_us: median(|round| round[2].p99_us),
            waits_64: median(|round| round[1].waits),
        }
    }
}

fn describe(report: &Report) -> String {
    let Report { tap, xdp_veth, loopback, veth } = report;
    let mut table = Table::new([
        "TCP echo of 64 bytes",
        "1 connection, answers/s",
        "64 connections, answers/s",
        "8,000/s, p50 us",
        "p99 us",
    ]);
    for (name, figures) in [
        ("Tailwater over TAP", tap),
        ("Linux over loopback", loopback),
        ("Tailwater over AF_XDP on veth", xdp_veth),
        ("Linux over veth", veth),
    ] {
        let Some(figures) = figures else { continue };
        let cells = [figures.rps_1, figures.rps_64, figures.p50_us, figures.p99_us].map(number);
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    let mut text = format!("{table}\n");
    for (name, ours, linux) in [("TAP", tap, loopback), ("AF_XDP on veth", xdp_veth, veth)] {
        let (Some(ours), Some(linux)) = (ours, linux) else { continue };
        let (rps, p99) = (ours.rps_64 / linux.rps_64, ours.p99_us / linux.p99_us);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name}: {rps:.2} of Linux's throughput (bar {LEAST_RPS}), {p99:.2} times its p99 (bar {MOST_P99})"
        );
    }
    text
}

/// The roles of children.
#[derive(Debug, Args)]
pub struct ChildArgs {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Echo on kernel sockets until killed
    Serve {
        /// TCP port
        port: u16,
    },
    /// Measure a service, and print figures
    Ask {
        /// The service
        to: SocketAddrV4,
        /// Number of connections
        connections: usize,
        /// Length in milliseconds
        lasts_ms: u64,
        /// Requests per second; without it one is outstanding on each connection
        rate: Option<f64>,
    },
}

/// Plays a role.
///
/// # Errors
/// A socket's, or if the service does not answer.
pub fn run_child(args: &ChildArgs) -> Result<()> {
    match args.role {
        Role::Serve { port } => echo::serve(port),
        Role::Ask { to, connections, lasts_ms, rate } => {
            let counted = client::run(to, connections, rate, Duration::from_millis(lasts_ms))?;
            Ok(writeln!(stdout(), "{}", serde_json::to_string(&counted)?)?)
        }
    }
}
