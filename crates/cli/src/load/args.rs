//! The command line of `tailwater load`, and the plans it means.
//!
//! Owns the arguments, their examples, and the checks that the parser does not make.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::Context;
use clap::Args;
use tailwater_loadgen::Plan;
use tailwater_loadgen::lanes::{DEFAULT_PIPELINE, MAX_CONNECTIONS, MAX_PIPELINE};
use tailwater_loadgen::search::{Measure, SearchPlan, Slo};
use tailwater_workload::summary::WINDOW_NS;
use tailwater_workload::units::parse_duration_ns;
use tailwater_workload::{ArrivalProcess, LoadPattern, Rate, RateList, ServiceTime};

use super::transport::{Over, Way};

/// Length of a load, unless given.
const DURATION_NS: u64 = 10_000_000_000;

/// Service time of spin requests, unless given: exponentially distributed, 10 us on average.
const SERVICE: &str = "exp:10us";

/// How long the server may take to give its first answer, unless given: it is running, or has to
/// attach first.
const WAIT_NS: u64 = 2_000_000_000;
const PORT_WAIT_NS: u64 = 60_000_000_000;

/// The first rate that a search tries, unless given.
const FIRST_RATE: f64 = 1_000.0;

/// Help of `--iokernel`, which two ways of a request read.
static SOCKET: LazyLock<String> = LazyLock::new(|| {
    format!(
        "Control socket of the IOKernel to attach to, or with --over port to start; @NAME is an abstract address \
         [default: @tailwater to start one, else {}]",
        crate::socket::FOUND
    )
});

/// Length of the windows in files, unless given.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Length of a trial of a search, unless given.
const TRIAL_NS: u64 = 3_000_000_000;

/// What an agent does not heed: its coordinator says it.
const OF_COORDINATORS: [&str; 32] = [
    "server",
    "protocol",
    "tcp",
    "connections",
    "pipeline",
    "over",
    "iokernel",
    "wait",
    "no_preload",
    "rate",
    "duration",
    "schedule",
    "service",
    "arrivals",
    "warm_up",
    "timeout",
    "flows",
    "seed",
    "runs",
    "slo",
    "max_rate",
    "resolution",
    "repeats",
    "max_trials",
    "agents",
    "coordinate",
    "live",
    "quiet",
    "interval",
    "json",
    "csv",
    "hdr_log",
];

/// Generate open-loop load against a server over UDP or TCP, measure latency, search for the
/// highest load within a limit
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater load 127.0.0.1:5000 --rate 50k --duration 10s
  tailwater load 10.77.0.2:5000 --rate 20k --service bimodal:0.9*5us+0.1*55us --json load.json
  tailwater load 127.0.0.1:11211 --tcp --connections 64 --protocol memcached:usr --rate 100k

A load that changes over time, segments joined by commas:
  tailwater load 127.0.0.1:5000 --schedule 1s@10k,100ms@200k,1s@10k
  tailwater load 127.0.0.1:5000 --schedule 10s@10k..90k                        slope
  tailwater load 127.0.0.1:5000 --schedule 10s@10k..50k/10k                    stairs of 2 s each
  tailwater load 127.0.0.1:5000 --schedule 10s@50k~40k/1s+noise=5k/100ms       sine and noise

Several loads, one row each:
  tailwater load 127.0.0.1:5000 --rate 10k..200k/10k --duration 3s --runs 5 --csv sweep.csv
  tailwater load 127.0.0.1:5000 --rate 1k..64k*2,100k --json sweep.json

The highest load within a limit:
  tailwater load 127.0.0.1:5000 --slo p99.9=200us
  tailwater load 127.0.0.1:5000 --slo p50=30us,win-p99.9=150us --rate 20k --resolution 2%

Several generators, here and on other machines:
  tailwater load 127.0.0.1:5000 --rate 400k --agents 2 --core 0,1
  tailwater load --agent 10.0.0.2:7171                                         on the other machine
  tailwater load 10.0.0.9:5000 --rate 1M --coordinate 10.0.0.2:7171,10.0.0.3:7171

A program on Tailwater, asked by another program on Tailwater, or from inside an IOKernel that is started for it:
  tailwater load 10.77.0.9:5000 --over tailwater --rate 20k
  tailwater load 10.77.0.9:5000 --over port --iokernel @load --core 0 --rate 200k &
  tailwater run --iokernel @load --ip 10.77.0.9 -- spin

Two versions of a server:
  tailwater load 127.0.0.1:5000 --rate 50k --runs 10 --json a.json
  tailwater compare a.json b.json

PROTOCOL is one of spin, echo:64 (bytes), memcached:usr, memcached:etc or memcached:ycsb (with keys=10000,get=0.998), \
dns:FILE (a name a line, and the address or nxdomain that is expected), \
rocks:keys=10000,value=64,scan=0.01,put=0,count=5000, or http:/,/index.html.

Requests are due at times drawn beforehand, and latency counts from the time a request was due, not from when it was \
sent. SERVICE is one of const:10us, exp:10us, bimodal:0.9*5us+0.1*55us, lognormal:10us,sigma=1.5, \
pareto:10us,alpha=2.1.")]
pub struct LoadArgs {
    /// Address or name, and port, of the server
    #[arg(required_unless_present = "agent", value_parser = parse_server)]
    pub(super) server: Option<Server>,
    /// Protocol of requests and answers; see PROTOCOL below
    #[arg(long, default_value = "spin")]
    pub(super) protocol: String,
    /// Use TCP instead of UDP; http always does
    #[arg(long)]
    pub(super) tcp: bool,
    /// TCP connections of each generator, over which requests are spread [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    connections: Option<u32>,
    /// Maximum number of unanswered requests on one TCP connection; further requests wait for a
    /// connection with room [default: 4]
    #[arg(long, value_name = "N", value_parser = parse_pipeline)]
    pipeline: Option<usize>,
    /// How requests travel
    #[arg(long, value_enum, default_value = "kernel", help_heading = "Transport")]
    pub(super) over: Over,
    /// Control socket of the IOKernel.
    #[arg(long, value_name = "SOCKET", value_parser = crate::socket::parse, help = SOCKET.as_str(), help_heading = "Transport")]
    iokernel: Option<String>,
    /// How long the server may take to give its first answer [default: 2s, 60s with --over port]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns, help_heading = "Transport")]
    wait: Option<u64>,
    /// Do not first store the items that memcached and rocks read later
    #[arg(long)]
    pub(super) no_preload: bool,
    /// Requests per second: 50k, a list 10k,20k, or a range 10k..200k/10k or 1k..64k*2; the first
    /// rate of a search
    #[arg(long, value_name = "RATES", required_unless_present_any = ["schedule", "slo", "agent"], conflicts_with = "schedule")]
    pub(super) rate: Option<RateList>,
    /// Length of each load, warm-up included [default: 10s, or 3s a trial with --slo]
    #[arg(long, value_parser = parse_length, conflicts_with = "schedule")]
    duration: Option<u64>,
    /// Rates over time, instead of --rate and --duration
    #[arg(long, value_name = "PATTERN", alias = "pattern")]
    schedule: Option<LoadPattern>,
    /// Service time of spin requests [default: exp:10us]
    #[arg(long)]
    service: Option<ServiceTime>,
    /// Arrival process: poisson, const or onoff:on=1ms,off=9ms
    #[arg(long, default_value = "poisson")]
    arrivals: ArrivalProcess,
    /// First part of the load, which is not counted
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns, default_value = "500ms")]
    warm_up: u64,
    /// A request without a reply for this long is lost
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns, default_value = "200ms")]
    timeout: u64,
    /// UDP source ports of each generator [default: 1]
    #[arg(long, value_name = "N")]
    flows: Option<u16>,
    /// Seed of arrivals, service times and noise
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Core to run on; with --agents, cores in turn; with --over port, the core that the IOKernel
    /// polls on
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub(super) core: Vec<usize>,
    /// Runs of each load, all loads in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "slo")]
    pub(super) runs: u32,

    /// Search for the highest load within limits, as in p99.9=200us,p50=30us; win-p99.9 is the
    /// windowed percentile
    #[arg(long, value_name = "LIMITS", conflicts_with = "schedule", help_heading = "Search")]
    slo: Option<Slo>,
    /// The highest rate to try
    #[arg(long, value_name = "RATE", default_value = "10M", requires = "slo", help_heading = "Search")]
    pub(super) max_rate: Rate,
    /// Distance at which the rates above and below the limit are close enough
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent, requires = "slo", help_heading = "Search")]
    pub(super) resolution: f64,
    /// Trials of which the majority decides whether a rate is within the limits; odd
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = parse_odd, requires = "slo", help_heading = "Search")]
    pub(super) repeats: u32,
    /// Maximum number of trials
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "slo", help_heading = "Search")]
    pub(super) max_trials: u32,

    /// Generate from this many processes of this machine, started together, beside those of
    /// --coordinate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), help_heading = "Several generators")]
    pub(super) agents: Option<u16>,
    /// Generate from these agents, started together, beside those of --agents
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', help_heading = "Several generators")]
    pub(super) coordinate: Vec<SocketAddr>,
    /// Be an agent: listen here and generate what coordinators order; of the other options only
    /// --core has an effect. Every program that reaches this port can order
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = OF_COORDINATORS, help_heading = "Several generators")]
    pub(super) agent: Option<SocketAddr>,
    /// As an agent, end when the first coordinator leaves or standard input ends
    #[arg(long, hide = true, requires = "agent")]
    pub(super) once: bool,

    /// Print a line a second to standard error even if that is no terminal
    #[arg(long, conflicts_with = "quiet", help_heading = "Output")]
    pub(super) live: bool,
    /// Print nothing while running
    #[arg(long, help_heading = "Output")]
    pub(super) quiet: bool,
    /// Length of the windows in --json and --hdr-log, in steps of 100 ms [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = parse_interval, help_heading = "Output")]
    interval: Option<u64>,
    /// Write everything as JSON, as `tailwater compare` reads it
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) json: Option<PathBuf>,
    /// Write one row per load as CSV
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) csv: Option<PathBuf>,
    /// Write latencies as an HdrHistogram interval log, in nanoseconds
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) hdr_log: Option<PathBuf>,
}

fn read_percent(text: &str) -> Option<f64> {
    let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

/// Reads `5%` as 0.05.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let advice = || format!("`{text}` is not a percentage above 0% and up to 100%, for instance 5%");
    read_percent(text).filter(|part| *part > 0.0).ok_or_else(advice)
}

/// Reads a percentage that may be 0%.
pub fn parse_margin(text: &str) -> Result<f64, String> {
    read_percent(text).ok_or_else(|| format!("`{text}` is not a percentage from 0% to 100%, for instance 5%"))
}

/// A server, as it was written and resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Address or name, and port: the authority of HTTP.
    pub authority: String,
    /// Its addresses, at least one.
    pub addresses: Vec<SocketAddr>,
}

/// Reads an address or a name, and a port.
fn parse_server(text: &str) -> Result<Server, String> {
    resolve(text).map(|addresses| Server { authority: text.to_owned(), addresses })
}

fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    let example = "for instance 127.0.0.1:5000 or [::1]:5000";
    let port = text.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.is_empty());
    match port.filter(|port| port.bytes().all(|digit| digit.is_ascii_digit())) {
        None => return Err(format!("`{text}` has no port; write address and port, {example}")),
        Some(port) if !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            return Err(format!("`{port}` is not a port: ports are numbers from 1 to 65535, {example}"));
        }
        Some(_) => {}
    }
    let found = text.to_socket_addrs().map_err(|error| format!("{error}; write its address, {example}"))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => Err(format!("`{text}` has no address; write it, {example}")),
        false => Ok(addresses),
    }
}

/// Reads the length of a load.
fn parse_length(text: &str) -> Result<u64, String> {
    match parse_duration_ns(text) {
        Ok(0) => Err(format!("a load of `{text}` has no request: write a longer one, for instance 10s")),
        Ok(length_ns) => Ok(length_ns),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_pipeline(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=MAX_PIPELINE).contains(&number) => Ok(number),
        _ => Err(format!("`{text}` is not a number of requests from 1 to {MAX_PIPELINE}")),
    }
}

fn parse_odd(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..=99) if number % 2 == 1 => Ok(number),
        _ => Err(format!("`{text}` is not an odd number from 1 to 99; an even number may have no majority")),
    }
}

fn parse_interval(text: &str) -> Result<u64, String> {
    let interval_ns = parse_duration_ns(text).map_err(|error| error.to_string())?;
    if interval_ns == 0 || !interval_ns.is_multiple_of(WINDOW_NS) {
        return Err(format!("`{text}` is not a multiple of 100ms, for instance 100ms, 1s or 1min"));
    }
    Ok(interval_ns)
}

/// A plan and its name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedPlan {
    /// The rate or the pattern, as written.
    pub name: String,
    /// The whole load, before it is divided among agents.
    pub plan: Plan,
}

/// A search and its limits.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchTask {
    /// The limits.
    pub slo: Slo,
    /// How to search.
    pub plan: SearchPlan,
}

/// The task of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// Measure these loads.
    Points(Vec<NamedPlan>),
    /// Search for a load.
    Search(SearchTask),
}

impl LoadArgs {
    /// Returns the task that the arguments mean.
    ///
    /// # Errors
    /// If a plan or a search is impossible, or an option has no effect.
    pub fn task(&self) -> anyhow::Result<Task> {
        self.check_effects()?;
        if let Some(slo) = &self.slo {
            let plan = self.search_plan()?;
            self.check_windows(slo, plan.from)?;
            return Ok(Task::Search(SearchTask { slo: slo.clone(), plan }));
        }
        if let Some(pattern) = &self.schedule {
            return Ok(Task::Points(vec![self.named(pattern.to_string(), pattern)?]));
        }
        let rates = self.rate.as_ref().context("--rate is missing")?;
        Ok(Task::Points(rates.rates().iter().map(|&rate| self.plan_at(rate)).collect::<Result<_, _>>()?))
    }

    /// Returns the plan at one constant rate.
    ///
    /// # Errors
    /// If the plan is impossible.
    pub fn plan_at(&self, rate: Rate) -> anyhow::Result<NamedPlan> {
        let default_ns = if self.slo.is_some() { TRIAL_NS } else { DURATION_NS };
        self.named(rate.to_string(), &LoadPattern::constant(rate, self.duration.unwrap_or(default_ns)))
    }

    /// Returns the plan of a search.
    ///
    /// # Errors
    /// If it starts at several rates, or above the highest.
    pub fn search_plan(&self) -> anyhow::Result<SearchPlan> {
        let from = match &self.rate {
            None => Rate::new(FIRST_RATE)?,
            Some(list) => list.single().context("a search starts at one --rate, not at several")?,
        };
        anyhow::ensure!(
            self.max_rate >= from,
            "the search starts at {from} requests a second, above --max-rate {}",
            self.max_rate
        );
        Ok(SearchPlan {
            from,
            up_to: self.max_rate,
            resolution: self.resolution,
            repeats: self.repeats,
            max_trials: self.max_trials,
        })
    }

    /// Refuses a limit on windows in trials that have no such windows.
    fn check_windows(&self, slo: &Slo, from: Rate) -> anyhow::Result<()> {
        let windowed = slo.limits().iter().any(|limit| limit.measure == Measure::WindowedP999);
        let kept_ns = self.plan_at(from)?.plan.interval_length_ns().unwrap_or(WINDOW_NS);
        anyhow::ensure!(
            !(windowed && self.has_agents() && kept_ns > WINDOW_NS),
            "agents keep windows of 100 ms, which win-p99.9 is about, for at most 6 minutes of measurement: choose a shorter \
             --duration, or leave agents out"
        );
        Ok(())
    }

    /// Returns whether agents generate.
    fn has_agents(&self) -> bool {
        self.agents.is_some() || !self.coordinate.is_empty()
    }

    /// Returns the length of the windows in files.
    pub fn interval_ns(&self) -> u64 {
        self.interval.unwrap_or(INTERVAL_NS)
    }

    /// Returns whether requests go over TCP.
    pub fn is_tcp(&self) -> bool {
        self.tcp || self.protocol_name() == "http"
    }

    /// TCP connections of each generator.
    pub fn connections(&self) -> u32 {
        self.connections.unwrap_or(1)
    }

    /// How to reach the server.
    pub fn way(&self) -> Way {
        let default_wait = if self.over == Over::Port { PORT_WAIT_NS } else { WAIT_NS };
        let connections = (self.connections(), self.pipeline.unwrap_or(DEFAULT_PIPELINE));
        Way {
            over: self.over,
            iokernel: match self.over {
                Over::Port => {
                    Some(self.iokernel.clone().unwrap_or_else(|| crate::socket::DEFAULT.to_owned()))
                }
                Over::Kernel | Over::Tailwater => self.iokernel.clone(),
            },
            connections: self.is_tcp().then_some(connections),
            wait_ns: self.wait.unwrap_or(default_wait),
        }
    }

    fn protocol_name(&self) -> &str {
        self.protocol.split(':').next().unwrap_or_default()
    }

    /// Refuses options that would have no effect here.
    fn check_effects(&self) -> anyhow::Result<()> {
        let (spin, tcp) = (self.protocol_name() == "spin", self.is_tcp());
        let stores = matches!(self.protocol_name(), "memcached" | "rocks");
        let agents = self.has_agents();
        let given = [
            (
                self.over == Over::Kernel && self.iokernel.is_some(),
                "--iokernel is for --over tailwater and --over port",
            ),
            (
                self.over == Over::Tailwater && !self.core.is_empty(),
                "--core is for kernel sockets and for --over port: an IOKernel lends its cores itself",
            ),
            (self.over == Over::Port && agents, "--over port is one generator: leave agents out"),
            (self.core.len() > 1 && !agents, "one generator runs on one --core: give several with --agents"),
            (
                !self.core.is_empty() && agents && self.agents.is_none(),
                "--core is for generators of this machine: give it to each `tailwater load --agent`",
            ),
            (
                self.no_preload && !stores,
                "--no-preload is for memcached and rocks: other protocols store nothing first",
            ),
            (
                self.interval.is_some() && self.json.is_none() && self.hdr_log.is_none(),
                "--interval is the length of the windows in --json and --hdr-log: write one of them",
            ),
            (
                self.connections.is_some() && !tcp,
                "--connections is for TCP: add --tcp, or use --flows over UDP",
            ),
            (self.pipeline.is_some() && !tcp, "--pipeline is for TCP: add --tcp"),
            (self.flows.is_some() && tcp, "--flows is for UDP: over TCP use --connections"),
            (
                self.service.is_some() && !spin,
                "--service is for spin servers: leave it out, or use --protocol spin",
            ),
        ];
        match given.iter().find(|(useless, _)| *useless) {
            Some((_, advice)) => anyhow::bail!("{advice}"),
            None => Ok(()),
        }
    }

    fn named(&self, name: String, pattern: &LoadPattern) -> anyhow::Result<NamedPlan> {
        let service = self.service.clone().map_or_else(|| SERVICE.parse(), Ok)?;
        let plan = Plan {
            arrivals: self.arrivals,
            warm_up_ns: self.warm_up,
            timeout_ns: self.timeout,
            flows: self.flows.unwrap_or(1),
            intervals: true,
            ..Plan::new(pattern.schedule(self.seed), service)
        };
        plan.check()?;
        Ok(NamedPlan { name, plan })
    }
}
