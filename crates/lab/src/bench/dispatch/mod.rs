//! `tailwater-lab bench dispatch`: what poll points cost, how exact a quantum is, what preemption
//! costs a [`service`] and is worth to it ([`bimodal`], [`rocks`]), and what a quantum does to one
//! that it cannot help ([`harm`]).
//!
//! Owns the rounds and the report. The measured process is this program on the managed core
//! ([`child`]), which runs [`programs`] with and without `#[tailwater::preemptible]`, and two
//! threads or requests that take turns. Each figure is the median over the rounds.

use std::io::{Write, stdout};
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::median_of;
use anyhow::Context;
use serde::Serialize;
use serde_json::{Map, Value};
use tailwater_iokernel::Config;
use tailwater_shm::Clock;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::port::{GENERATOR_IP, tcp_port};
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

mod bed;
mod bimodal;
mod child;
mod harm;
mod programs;
mod rocks;
mod search;
mod service;

pub use child::{ChildArgs, run as run_child};

const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
/// Shinjuku's shortest (section 4).
const QUANTUM_US: u64 = 5;
/// Dispatch without preemption, and with this quantum.
const PLAIN: &str = "c-fcfs";
const PREEMPTIVE: &str = "sq:5us";

/// Measure what poll points cost, how exact a quantum is, and what preemption is worth to a server
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "poll_overhead_percent: programs with #[tailwater::preemptible], against the same without.
quantum_error_us: from the end of a quantum of 5 us until the next thread runs; switch_ns: from one
thread's last instruction to the next one's first; request_*: the same of two requests.
fixed_1us_mrps, low_load, batch_beside: the spin server with a dispatcher, without preemption and with a quantum of 5 us. bimodal, rocks: the highest loads
with which 99 % of the short requests take at most 50 us, searched in each round, and their ratio;
rocks needs tailwater-rocks in PATH or beside this program. 99th percentiles are those of the quiet
half of the time, judged by the generator's own core. quantum: the server without a dispatcher, with
a quantum of 15 us and without, which cannot help it: each percentile should be the same.

Examples:
  tailwater-lab bench dispatch
  tailwater-lab bench dispatch --rounds 11 --json dispatch.json"
)]
pub struct DispatchArgs {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Measure this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Poll points and the quantum
    Threads,
    /// The spin server at saturation, at a low load, and beside a batch job
    Service,
    /// The highest load of short requests beside long ones
    Bimodal,
    /// The highest load of RocksDB's GETs beside SCANs
    Rocks,
    /// What a quantum costs a server that it cannot help
    Quantum,
}

/// The figures of a run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    #[serde(flatten)]
    threads: Option<Threads>,
    #[serde(flatten)]
    service: Option<service::Server>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bimodal: Option<bimodal::Bimodal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rocks: Option<rocks::Store>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantum: Option<Vec<harm::Load>>,
}

#[derive(Debug, Serialize)]
struct Threads {
    poll_overhead_percent: Map<String, Value>,
    quantum_us: u64,
    quantum_error_us: Quantiles,
    switch_ns: f64,
    /// The same of two requests of a dispatcher.
    request_quantum_error_us: Quantiles,
    request_switch_ns: f64,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

/// Measures and prints.
///
/// # Errors
/// If the IOKernel or a process does not start, or on a signal.
pub fn run(args: &DispatchArgs) -> anyhow::Result<Report> {
    let interrupt = Arc::new(Interrupt::catch()?);
    let wants = |part| args.only.is_none_or(|only| only == part);
    let mut report = Report::default();
    if wants(Part::Threads) {
        report.threads = Some(measure_threads(args.rounds, &interrupt)?);
    }
    if args.only != Some(Part::Threads) {
        let bench = bed::Bench::new(Arc::clone(&interrupt))?;
        report.service = wants(Part::Service).then(|| service::run(args.rounds, &bench)).transpose()?;
        report.bimodal = wants(Part::Bimodal).then(|| bimodal::run(args.rounds, &bench)).transpose()?;
        report.rocks = wants(Part::Rocks).then(|| rocks::run(args.rounds, &bench)).transpose()?.flatten();
        report.quantum = wants(Part::Quantum).then(|| harm::measure(&bench, args.rounds)).transpose()?;
    }
    let texts = [
        report.threads.as_ref().map(describe),
        report.service.as_ref().map(service::describe),
        report.bimodal.as_ref().map(bimodal::Bimodal::describe),
        report.rocks.as_ref().map(rocks::Store::describe),
        report.quantum.as_deref().map(harm::describe),
    ];
    for text in texts.into_iter().flatten() {
        writeln!(stdout(), "{text}")?;
    }
    Ok(report)
}

fn measure_threads(rounds: u16, interrupt: &Interrupt) -> anyhow::Result<Threads> {
    let (mut programs, mut turns, mut requests) = (Vec::new(), Vec::new(), Vec::new());
    for _ in progress::over("threads", 0..rounds) {
        programs.push(measure(&["programs", "10"], QUANTUM_US, interrupt)?);
        turns.push(measure(&["turns", "10"], QUANTUM_US, interrupt)?);
        requests.push(measure(&["requests", "10"], 0, interrupt)?);
    }
    let names = programs::programs().map(|program| program.name);
    let overhead =
        names.into_iter().map(|name| (name.to_owned(), Value::from(median_of(&programs, name)))).collect();
    Ok(Threads {
        poll_overhead_percent: overhead,
        quantum_us: QUANTUM_US,
        quantum_error_us: Quantiles { p50: median_of(&turns, "p50"), p99: median_of(&turns, "p99") },
        switch_ns: median_of(&turns, "switch_ns"),
        request_quantum_error_us: Quantiles {
            p50: median_of(&requests, "p50"),
            p99: median_of(&requests, "p99"),
        },
        request_switch_ns: median_of(&requests, "switch_ns"),
    })
}

/// Runs a child with this quantum, 0 for none, on an IOKernel of its own; returns its figures.
fn measure(words: &[&str; 2], quantum_us: u64, interrupt: &Interrupt) -> anyhow::Result<Value> {
    // The port is not used: an IOKernel has one.
    let (port, _client) = tcp_port("client", GENERATOR_IP)?;
    let socket = format!("@tailwater-bench-dispatch-{}", std::process::id());
    let config = Config { socket: socket.clone(), neighbour_share: 0, ..Config::default() };
    let _iokernel = Embedded::start(config, port, None)?;
    let hz = Clock::calibrate(20).hz();
    let arguments =
        [words[0].to_owned(), hz.to_string(), words[1].to_owned(), (QUANTUM_US * 1_000).to_string()];
    let settings = vec![
        ("TAILWATER_IOKERNEL", socket),
        ("TAILWATER_NAME", "dispatch".to_owned()),
        ("TAILWATER_IP", SERVICE_IP.to_string()),
        ("TAILWATER_CLASS", "latency-critical".to_owned()),
        ("TAILWATER_KTHREADS", "1".to_owned()),
        ("TAILWATER_QUANTUM_US", quantum_us.to_string()),
        // The programs without poll points are no stalls.
        ("TAILWATER_STALL_TIMEOUT_MS", "0".to_owned()),
    ];
    let spec = Spec { app: "dispatch", arguments: arguments.into(), settings, ..Spec::default() };
    let line = ChildProcess::start(&spec)?.read_line(interrupt)?;
    serde_json::from_str(&line).with_context(|| format!("the child printed {line:?}, no figures"))
}

fn describe(report: &Threads) -> String {
    let mut table = Table::new("poll points by attribute | longer by, %");
    for (name, percent) in &report.poll_overhead_percent {
        table.row([
            name.clone(),
            percent.as_f64().map_or_else(String::new, |percent| format!("{percent:.2}")),
        ]);
    }
    let mut turns = Table::new("quantum of 5 us, on a lent core | p50 | p99");
    for (what, Quantiles { p50, p99 }) in
        [("thread", &report.quantum_error_us), ("request of a dispatcher", &report.request_quantum_error_us)]
    {
        turns.row([format!("until the next {what} runs, us beyond the quantum"), number(*p50), number(*p99)]);
    }
    let (threads, requests) = (number(report.switch_ns), number(report.request_switch_ns));
    format!("{table}\n{turns}\nfrom thread to thread {threads} ns, from request to request {requests} ns\n")
}
