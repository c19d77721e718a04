//! `tailwater-lab bench cores`: how soon new threads run, by where they are placed at their
//! creation; how soon a background thread gives way; how cores follow a load that rises and falls
//! ([`ramp`]); how soon a requested core runs a user thread ([`request`]); how soon the estimate of
//! cores follows a step of load and what its measurement costs ([`estimator`]); what memory a
//! program, a kthread and a thread take ([`memory`]); a batch job in the background of one program
//! instead of in a second one ([`inside`]); and what else runs on the core of an exclusive thread
//! ([`exclusive`]).
//!
//! Owns the rounds and the report. For the first two the measured process is this program on its
//! own OS threads ([`child`]): two kthreads, which both have a CPU on the smallest machine. The
//! placements take turns; each figure is the median over the rounds. The background has one
//! kthread.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

mod child;
mod estimator;
mod exclusive;
mod inside;
mod memory;
mod ramp;
pub mod request;

use super::median_of;
pub use child::{ChildArgs, run as run_child};
use child::{Load, Way};

/// Kthreads of the measured process.
const KTHREADS: u16 = 2;
/// Lengths without `--seconds`.
const RAMP_SECONDS: u64 = 10;
const EXCLUSIVE_SECONDS: u64 = 2;

/// Measure how soon new threads and requested cores run, background threads give way, and cores
/// follow a load
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "bursts: one thread creates 16 threads of 2 us each, all together, then waits for them.
skew: the same while another thread computes all the time on one of the two kthreads.
start_us: from before a thread's creation to its first instruction; create_ns: the creator's time
for one thread.
background_switch_ns: from the last loop of a background thread to the first instruction of the
ordinary thread, woken by a timer on the same kthread, to which it gives way.
ramp: a spin server beside a batch job, under policy congestion-detection; load rises from 5 to 95 %
of its capacity and falls again, or falls and rises, in turn. ramp_arbiter: the same under policy
arbiter, with a server that requests the cores of its estimate. follow_ms: by how much the time on
cores lags behind the load, from the difference between the two halves. p999_over_steady: 99.9th
percentiles of windows of 100 ms over those under constant loads. batch_of_rest: the batch job's part of the capacity that requests leave.
request_to_first_thread_us: from a program's request of a core to the first instruction of the user
thread that it makes runnable, while the core is free (idle) and while a batch job holds it (busy).
work_alone: the same without the request.
estimator: a program whose load steps from nothing to three threads that compute, and back. raise_ms
and lower_ms: from the step until the estimate requests a second core, and one again, at the median;
switch_more_ns: what measuring the load adds to a switch between two threads.
memory: resident KiB of a program with one kthread, of each further kthread, and of each parked user
thread, all with the program's part of the memory that it shares with the IOKernel.
demo_background: a spin server at half of its capacity and a batch job, as two programs and as one
with background threads. batch_share: the job's rate over its rate alone; p50_us, alone_p50_us and
ideal_p50_us: the median latency, that of the server without the job, and that of a queue without
overheads; ideal_share: what such a queue leaves.
exclusive: what else ran on the core of an exclusive thread, beside other user threads and an
ordinary program that computes on all cores: other_user_threads, and by Linux's tracepoints, as
root, ordinary_switches, ordinary_ns and kernel_switches; core_moves of the thread. --keep-off keeps
ordinary threads off its core; kernel threads and interrupts of that core remain.

Examples:
  tailwater-lab bench cores
  tailwater-lab bench cores --only ramp --rounds 4
  tailwater-lab bench cores --only request --requests 500
  tailwater-lab bench cores --only request --iokernel-awake --warm-core
  tailwater-lab bench cores --only request --iokernel-awake --kthread-awake
  tailwater-lab bench cores --only estimator
  tailwater-lab bench cores --only demo-background
  tailwater-lab bench cores --only exclusive --seconds 60
  tailwater-lab bench cores --only exclusive --seconds 60 --keep-off /system.slice,/user.slice
  tailwater-lab bench cores --rounds 11 --json cores.json"
)]
pub struct CoresArgs {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Measure this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Length of a ramp and of the exclusive thread in seconds [default: 10, and 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// Control groups whose threads are kept off the core of the exclusive thread, as
    /// `reserve.keep-off` names them; the first gets the ordinary program
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    keep_off: Vec<String>,
    /// Core requests of a round, of each kind
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    requests: u32,
    /// Rest before each request, in microseconds: after 50 the kthread parks, after 1000 the
    /// IOKernel sleeps
    #[arg(long, value_name = "US", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    rest_us: u64,
    /// Have the IOKernel poll all the time while cores are requested
    #[arg(long)]
    iokernel_awake: bool,
    /// Keep the requested core from halting, by a thread of class SCHED_IDLE there
    #[arg(long)]
    warm_core: bool,
    /// Have the requesting program's kthread poll for ever on a core that it has, in place of at
    /// most 50 us. A batch job that is lent the core makes it park all the same
    #[arg(long)]
    kthread_awake: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// New threads, by where they are placed
    Creation,
    /// Background threads that give way
    Background,
    /// A load that rises and falls
    Ramp,
    /// Requested cores
    Request,
    /// The estimate of cores
    Estimator,
    /// Memory of programs, kthreads and user threads
    Memory,
    /// A batch job in the background of the service's own program
    DemoBackground,
    /// An exclusive thread, on a machine of three CPUs or more
    Exclusive,
}

/// The figures of a run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    creation: Option<Vec<Row>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    background_switch_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ramp: Option<ramp::Ramp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ramp_arbiter: Option<ramp::Ramp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_to_first_thread_us: Option<request::Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimator: Option<estimator::Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<memory::Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    demo_background: Option<inside::Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exclusive: Option<exclusive::Figures>,
}

#[derive(Debug, Serialize)]
struct Row {
    load: Load,
    placement: Way,
    start_us: Quantiles,
    create_ns: f64,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

/// Measures and prints.
pub fn run(args: &CoresArgs, machine: &Machine) -> anyhow::Result<Report> {
    let interrupt = Arc::new(Interrupt::catch()?);
    let wants = |part| args.only.is_none_or(|only| only == part);
    let conditions = request::Conditions {
        rest_us: args.rest_us,
        awake: args.iokernel_awake,
        warm: args.warm_core,
        kthread_awake: args.kthread_awake,
    };
    let count = (args.rounds, args.requests);
    let switch_ns = || {
        let rounds = (0..args.rounds).map(|_| measure(Load::Background, None, 1, &interrupt));
        Ok(median_of(&rounds.collect::<anyhow::Result<Vec<_>>>()?, "switch_ns"))
    };
    let in_words = |ns: &f64| format!("a background thread gives way in {} ns\n", number(*ns));
    let creation = || measure_creation(args.rounds, &interrupt);
    let request = || request::measure(machine, &interrupt, conditions, count);
    let estimator = || estimator::measure(machine, &interrupt, args.rounds);
    let memory = || memory::measure(machine, &interrupt);
    let inside = || inside::measure(machine, Arc::clone(&interrupt), args.rounds);
    let length = Duration::from_secs(args.seconds.unwrap_or(RAMP_SECONDS));
    let ramp = || ramp::measure(machine, Arc::clone(&interrupt), args.rounds, length);
    let mut report = Report {
        creation: part(wants(Part::Creation), creation, |rows| describe(rows).to_string())?,
        background_switch_ns: part(wants(Part::Background), switch_ns, in_words)?,
        request_to_first_thread_us: part(wants(Part::Request), request, request::describe)?,
        estimator: part(wants(Part::Estimator), estimator, estimator::describe)?,
        memory: part(wants(Part::Memory), memory, memory::describe)?,
        demo_background: part(wants(Part::DemoBackground), inside, inside::describe)?,
        ..Report::default()
    };
    if wants(Part::Exclusive) {
        report.exclusive = measure_exclusive(args, machine, &interrupt)?;
    }
    let ramps = part(wants(Part::Ramp), ramp, ramp::describe)?;
    (report.ramp, report.ramp_arbiter) = ramps.map(|ramps| (ramps.lent, ramps.requested)).unzip();
    Ok(report)
}

/// Measures a part that is wanted, and prints it.
fn part<T>(
    wanted: bool,
    measure: impl FnOnce() -> anyhow::Result<T>,
    describe: impl FnOnce(&T) -> String,
) -> anyhow::Result<Option<T>> {
    let figures = wanted.then(measure).transpose()?;
    if let Some(figures) = &figures {
        writeln!(stdout(), "{}", describe(figures))?;
    }
    Ok(figures)
}

/// Measures what runs on the core of an exclusive thread, and prints it. Returns `None` if the
/// machine has too few CPUs and other parts are measured, too.
fn measure_exclusive(
    args: &CoresArgs,
    machine: &Machine,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<exclusive::Figures>> {
    match exclusive::check(machine) {
        Err(why) if args.only.is_none() => {
            writeln!(stdout(), "exclusive is left out: {why}\n")?;
            return Ok(None);
        }
        checked => checked.map_err(anyhow::Error::msg)?,
    }
    let time = Duration::from_secs(args.seconds.unwrap_or(EXCLUSIVE_SECONDS));
    let settings = exclusive::Settings { time, keep_off: args.keep_off.clone() };
    let figures = exclusive::measure(machine, interrupt, &settings)?;
    writeln!(stdout(), "{}", exclusive::describe(&figures))?;
    Ok(Some(figures))
}

/// Measures how soon new threads run.
fn measure_creation(rounds: u16, interrupt: &Interrupt) -> anyhow::Result<Vec<Row>> {
    let cases: Vec<(Load, Way)> =
        Load::ALL.into_iter().flat_map(|load| Way::ALL.map(|way| (load, way))).collect();
    let mut figures = vec![Vec::new(); cases.len()];
    for _ in progress::over("new threads", 0..rounds) {
        for (&(load, way), figures) in cases.iter().zip(&mut figures) {
            figures.push(measure(load, Some(way), KTHREADS, interrupt)?);
        }
    }
    let row = |(&(load, placement), figures): (&(Load, Way), &Vec<Value>)| {
        let of = |key| median_of(figures, key);
        let start_us = Quantiles { p50: of("p50_us"), p99: of("p99_us") };
        Row { load, placement, start_us, create_ns: of("create_ns") }
    };
    Ok(cases.iter().zip(&figures).map(row).collect())
}

/// Runs a child; returns its figures.
fn measure(load: Load, way: Option<Way>, kthreads: u16, interrupt: &Interrupt) -> anyhow::Result<Value> {
    let settings = vec![("TAILWATER_NAME", "cores".to_owned()), ("TAILWATER_KTHREADS", kthreads.to_string())];
    let arguments = core::iter::once(load.as_str()).chain(way.map(Way::as_str)).map(str::to_owned).collect();
    let spec = Spec { app: "cores", arguments, settings, ..Spec::default() };
    let line = ChildProcess::start(&spec)?.read_line(interrupt)?;
    serde_json::from_str(&line).with_context(|| format!("the child printed {line:?}, no figures"))
}

fn describe(rows: &[Row]) -> Table {
    let mut table = Table::new("threads created | placed | start p50, us | p99 | creator, ns each");
    for Row { load, placement, start_us, create_ns } in rows {
        let figures = [start_us.p50, start_us.p99, *create_ns].map(number);
        table.row([load.as_str().to_owned(), placement.as_str().to_owned()].into_iter().chain(figures));
    }
    table
}
