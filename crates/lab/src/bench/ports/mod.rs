//! `tailwater-lab bench ports`: a service on Tailwater, a plain Linux client on the same machine.
//!
//! Owns the variants, their rounds and figures. A variant is the way between a client and a service
//! over TCP, which echoes 64 bytes, and sends and takes bulk data:
//!
//! | variant | service | way | client |
//! |---|---|---|---|
//! | `tap` | Tailwater, a user thread for each connection | TAP device of the IOKernel | Linux |
//! | `xdp_veth` | the same | veth pair, one end with AF_XDP | Linux, in another namespace |
//! | `loopback` | Linux, one epoll thread | loopback device | Linux |
//! | `veth` | the same | veth pair | Linux, in another namespace |
//! | `tap_unpinned`, `loopback_unpinned` | as `tap`, `loopback` | | Linux, on either core |
//! | `tap_client` | as `tap` | | Linux, where `tailwater run --client` puts it |
//!
//! The client ([`client`]) is the same process in each. All have the same two cores: the client is
//! on the first, beside the IOKernel where there is one, and the service on the second. All are in
//! one session (autogroup). Variants are measured in turn, and the median over the rounds counts.
//! Before each round a thread spins on each core for a moment and counts how often the core stands
//! still: a stalling host decides the p99 of all variants. Namespaces and devices ([`network`]) end
//! with this process.

use std::io::{Write, stdout};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use tailwater_iokernel::Config;
use tailwater_loadgen::noise::Gaps;
use tailwater_ports::Port;
use tailwater_ports::tap::{TapPort, TapSpec};
use tailwater_ports::xdp::{MAX_MTU, XdpPort, XdpSpec};
use tailwater_shm::ring::MAX_PACKET;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::clients::Place;
use tailwater_testbed::embedded::{Embedded, lending};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::{Machine, cpu_set};
use tailwater_testbed::progress;

mod client;
pub mod network;
mod report;

use super::tcp::{DISCARD, GENERATE, serve_bulk, serve_echo};
use client::Counted;
use network::Namespace;
pub use report::Report;
use report::describe;

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
/// Time for which the host's stalls are counted before each round.
const PROBE: Duration = Duration::from_millis(200);

/// A plain Linux client of a service on the same machine: TAP, AF_XDP on veth, next to the kernel's
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "rps_1, rps_64: answers per second over 1 and 64 TCP connections, one request of 64 bytes
outstanding on each. bulk_to_gbps, bulk_from_gbps: data to the client and from it over one connection. p99_us: 99th percentile at 8,000 requests a second, from the time each is due; p99_range_us: least
and most in a round; win_p99_us: median of the p99 of each 100 ms, which stalls of the host hardly change. host: what
the cores lose while a thread spins on each before each round. The client is on the first core, beside the IOKernel,
the service on the second.
Runs as root; needs ip (iproute2), unshare and nsenter (util-linux).

Examples:
  tailwater-lab bench ports
  tailwater-lab bench ports --variants tap,loopback --rounds 5 --json ports.json
  tailwater-lab bench ports --tap-words offload=off --variants tap"
)]
pub struct PortsArgs {
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Length of each of a variant's five measurements in a round
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
    ms: u64,
    /// What to measure, of `tap`, `xdp_veth`, `loopback`, `veth`, and, with a client that Linux may
    /// put on any core, `tap_unpinned`, `loopback_unpinned`; `tap_client` is placed as by
    /// `tailwater run --client`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values = ["tap", "xdp_veth", "loopback", "veth"])]
    variants: Vec<Variant>,
    /// Words of the TAP device, as `queues=2,napi,offload=off` behind the name of `iokernel --tap`
    #[arg(long, value_name = "WORDS", default_value = "")]
    tap_words: String,
    /// Longest IP packet of the IOKernel's network and of the veth pairs, in bytes; AF_XDP carries
    /// fewer than TAP
    #[arg(long, value_name = "BYTES", default_value_t = Config::default().mtu, value_parser = clap::value_parser!(u16).range(576..=MAX_PACKET.into()))]
    mtu: u16,
    /// Cores of the client [default: the first, which is the IOKernel's]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    client_cores: Vec<usize>,
}

/// A way between client and service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Variant {
    Tap,
    XdpVeth,
    Loopback,
    Veth,
    TapUnpinned,
    TapClient,
    LoopbackUnpinned,
}

/// A round of one variant.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Closed loops over 1 and 64 connections.
    closed: [Counted; 2],
    open: Counted,
    /// Gbit/s over one connection, to the client and from it.
    bulk: [f64; 2],
    /// Times in the open loop that the polling thread did not get its core back from others for
    /// over 1 ms, and milliseconds for which it let none run then.
    long_yields: Option<[f64; 2]>,
}

/// Measures, prints, and returns the figures.
///
/// # Errors
/// Without the privileges for namespaces and devices, if a process does not start or ends, or on a
/// signal.
pub fn run(args: &PortsArgs, machine: &Machine) -> Result<Report> {
    ensure!(
        args.mtu <= MAX_MTU || !args.variants.contains(&Variant::XdpVeth),
        "--mtu {}: AF_XDP carries packets of {MAX_MTU} bytes at most; leave xdp_veth out, as by --variants tap,loopback,veth",
        args.mtu
    );
    let [first, second, ..] = machine.usable_cores[..] else { anyhow::bail!("two cores are needed") };
    let interrupt = Arc::new(Interrupt::catch()?);
    let testbed = Testbed::new(vec![first, second], Arc::clone(&interrupt), Duration::ZERO)?;
    let terms = Terms {
        cores: [first, second],
        client_cores: match &args.client_cores[..] {
            [] => vec![first],
            cores => cores.to_vec(),
        },
        tap: tap(&args.tap_words)?,
        mtu: args.mtu,
        lasts_ms: args.ms,
        interrupt: &interrupt,
    };
    let mut rounds: Vec<(Variant, Vec<Round>)> =
        args.variants.iter().map(|&variant| (variant, Vec::new())).collect();
    let mut host = terms.cores.map(|core| (core, Gaps::default()));
    for _ in progress::over("ports", 0..args.rounds) {
        for ((_, gaps), (_, probe)) in host.iter_mut().zip(testbed.probe_noise(PROBE)?) {
            gaps.merge(&probe.gaps);
        }
        for (variant, measured) in &mut rounds {
            // A thread of its own, because its namespace is.
            let round = std::thread::scope(|scope| scope.spawn(|| terms.measure(*variant)).join());
            interrupt.check()?;
            let round = round.map_err(|_| anyhow::anyhow!("a measurement panicked"))?;
            measured.push(round.with_context(|| format!("{variant:?}"))?);
        }
    }
    let report = Report::new(&rounds, &host);
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// Returns the TAP device with these words, of which there may be none.
fn tap(words: &str) -> Result<TapSpec> {
    let spec = if words.is_empty() { "tw0".to_owned() } else { format!("tw0,{words}") };
    spec.parse().context("--tap-words")
}

/// Returns the end of the veth pair with AF_XDP: in native mode, since in skb mode, which is tried
/// next, bundles are dropped.
fn veth() -> Result<XdpSpec> {
    Ok(format!("veth0,mode=native,gateway={CLIENT},fill-checksums").parse()?)
}

/// What all measurements have in common.
struct Terms<'a> {
    cores: [usize; 2],
    client_cores: Vec<usize>,
    tap: TapSpec,
    mtu: u16,
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
            Variant::XdpVeth | Variant::Veth => Some(Namespace::new(self.interrupt)?),
            _ => None,
        };
        if let Some(there) = &there {
            let service = format!("{SERVICE}/16");
            let address = (variant == Variant::Veth).then_some(&service[..]);
            there.join(("veth0", address), ("veth1", &format!("{CLIENT}/16")), self.mtu)?;
        }
        let place = Place::new(&self.cores, self.cores[0], &self.cores[1..]);
        let client_cores = match variant {
            Variant::TapUnpinned | Variant::LoopbackUnpinned => &self.cores[..],
            Variant::TapClient => place.cores(),
            _ => &self.client_cores,
        };
        match variant {
            Variant::Tap | Variant::TapUnpinned | Variant::TapClient => {
                let port = TapPort::with_spec(self.tap.clone(), CLIENT.parse()?);
                self.on_tailwater(Box::new(port), there.as_ref(), client_cores)
            }
            Variant::XdpVeth => {
                self.on_tailwater(Box::new(XdpPort::new(veth()?)), there.as_ref(), client_cores)
            }
            Variant::Loopback | Variant::LoopbackUnpinned => {
                self.on_linux(Ipv4Addr::LOCALHOST, there.as_ref(), client_cores)
            }
            Variant::Veth => self.on_linux(SERVICE, there.as_ref(), client_cores),
        }
    }

    fn on_tailwater(
        &self,
        port: Box<dyn Port>,
        there: Option<&Namespace>,
        client_cores: &[usize],
    ) -> Result<Round> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = format!("@tailwater-bench-ports-{}-{number}", std::process::id());
        let [polling, managed] = self.cores;
        let config = Config { mtu: self.mtu, ..lending(&socket, polling, &[managed]) };
        let iokernel = Embedded::start(config, port, None)?;
        let settings = vec![
            ("TAILWATER_IOKERNEL", socket),
            ("TAILWATER_NAME", "service".to_owned()),
            ("TAILWATER_IP", SERVICE.to_string()),
            ("TAILWATER_KTHREADS", "1".to_owned()),
        ];
        let arguments = vec!["serve".to_owned()];
        let _service = self.start(&Spec { app: "tcp", arguments, settings, ..Spec::default() })?;
        let counters = &iokernel.stats.polling;
        let look = || [counters.long_yields.get() as f64, counters.withheld_ns.get() as f64 / 1e6];
        self.ask(SERVICE, there, client_cores, Some(&look))
    }

    fn on_linux(&self, to: Ipv4Addr, there: Option<&Namespace>, client_cores: &[usize]) -> Result<Round> {
        let arguments = vec!["serve".to_owned(), ECHO.to_string()];
        let cores = vec![self.cores[1]];
        let _service = self.start(&Spec { app: "ports", arguments, cores, ..Spec::default() })?;
        self.ask(to, there, client_cores, None)
    }

    fn start(&self, spec: &Spec) -> Result<ChildProcess> {
        let mut child = ChildProcess::start(spec)?;
        let line = child.read_line(self.interrupt)?;
        ensure!(line == "ready", "the service printed {line:?}, not `ready`");
        Ok(child)
    }

    /// Runs the clients one after the other, `there` or in the namespace of this thread, which is
    /// moved. `look` reads the counters of [`Round::long_yields`].
    fn ask(
        &self,
        service: Ipv4Addr,
        there: Option<&Namespace>,
        client_cores: &[usize],
        look: Option<&dyn Fn() -> [f64; 2]>,
    ) -> Result<Round> {
        if let Some(there) = there {
            there.enter()?;
        }
        let at = |port: u16| SocketAddrV4::new(service, port).to_string();
        let ask = |connections: usize, rate: Option<f64>| -> Result<Counted> {
            let rate = rate.map(|rate| rate.to_string());
            let words = [at(ECHO), connections.to_string(), self.lasts_ms.to_string()];
            self.client(client_cores, "ask", words.into_iter().chain(rate))
        };
        let bulk = |role: &str, port: u16| -> Result<f64> {
            self.client(client_cores, role, [at(port), self.lasts_ms.to_string()])
        };
        let closed = [ask(1, None)?, ask(CONNECTIONS, None)?];
        let before = look.map(|look| look());
        let open = ask(CONNECTIONS, Some(RATE))?;
        let long_yields = look.zip(before).map(|(look, [calls, ms])| [look()[0] - calls, look()[1] - ms]);
        let bulk = [bulk("fetch", GENERATE)?, bulk("send", DISCARD)?];
        Ok(Round { closed, open, bulk, long_yields })
    }

    /// Runs a client, and returns what it prints.
    fn client<T: DeserializeOwned>(
        &self,
        cores: &[usize],
        role: &str,
        words: impl IntoIterator<Item = String>,
    ) -> Result<T> {
        let arguments = [role.to_owned()].into_iter().chain(words).collect();
        let cores = cores.to_vec();
        let mut child = ChildProcess::start(&Spec { app: "ports", arguments, cores, ..Spec::default() })?;
        let line = child.read_line(self.interrupt)?;
        serde_json::from_str(&line).with_context(|| format!("the client printed {line:?}"))
    }
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
    /// Read what a character generator sends, and print Gbit/s
    Fetch {
        /// The service
        to: SocketAddrV4,
        /// Length in milliseconds
        lasts_ms: u64,
    },
    /// Send to a discard service, and print Gbit/s
    Send {
        /// The service
        to: SocketAddrV4,
        /// Length in milliseconds
        lasts_ms: u64,
    },
}

/// Plays a role.
///
/// # Errors
/// A socket's, or if the service does not answer.
pub fn run_child(args: &ChildArgs) -> Result<()> {
    match args.role {
        Role::Serve { port } => {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).context("cannot listen")?;
            serve_bulk().context("cannot serve bulk data")?;
            writeln!(stdout(), "ready")?;
            Ok(serve_echo(&listener, REQUEST, &AtomicBool::new(false))?)
        }
        Role::Ask { to, connections, lasts_ms, rate } => {
            let counted = client::run(to, connections, rate, Duration::from_millis(lasts_ms))?;
            Ok(writeln!(stdout(), "{}", serde_json::to_string(&counted)?)?)
        }
        Role::Fetch { to, lasts_ms } => print_rate(client::fetch(to, Duration::from_millis(lasts_ms))?),
        Role::Send { to, lasts_ms } => print_rate(client::send(to, Duration::from_millis(lasts_ms))?),
    }
}

fn print_rate(gbps: f64) -> Result<()> {
    Ok(writeln!(stdout(), "{gbps}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_are_described_as_the_ports_want_it_without_further_words_and_with_them() {
        let defaults = PortsArgs::augment_args(clap::Command::new("ports")).get_matches_from(["ports"]);
        let words: &String = defaults.get_one("tap_words").expect("it has a default");
        assert_eq!(tap(words).unwrap(), "tw0".parse().unwrap());
        assert_eq!(tap("offload=off").unwrap(), "tw0,offload=off".parse().unwrap());
        assert!(veth().is_ok());
    }
}
