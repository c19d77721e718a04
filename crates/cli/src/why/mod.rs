//! `tailwater why NAME`: the chief cause of a program's delays, and what to do about it.
//!
//! Owns the arguments, and the watch in which the evidence is gathered: the IOKernel's record of
//! cores and of requests to the program, names of the programs that ran on its cores, what Linux
//! says of it, and where its kthreads wait. It changes nothing but that more requests are traced
//! meanwhile. Of the past it has only the record.
//!
//! | module | owns |
//! |---|---|
//! | [`verdict`] | the cause, a function of the evidence |
//! | [`evidence`] | the evidence, a function of what was gathered |
//! | [`linux`] | the files of Linux |

mod evidence;
mod linux;
mod verdict;

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tailwater_shm::control::TraceRequest;
use tailwater_testbed::account::Tracepoints;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::socket::IokernelArg;
use tailwater_testbed::statistics::place_of;
use tailwater_workload::units::parse_time_ns;

use crate::trace::collect::Collector;
use crate::trace::watch::Watch;
use crate::{info, query};
use evidence::{Gathered, Look, Seen, Waiting};

/// Time between two looks at where kthreads wait.
const LOOK: Duration = Duration::from_millis(5);
/// Maximum number of events read between two looks.
const EVENTS: usize = 16_384;

/// Say why a program is slow, and what to do about it
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Watches the program for a while, so run it while the program is slow. It needs the IOKernel's user or root, and names \
programs that took time from its cores where eBPF is allowed (root, or CAP_BPF and CAP_PERFMON). --last judges what \
has happened already, by the IOKernel's record of cores and of one request of 1000: as far back as that reaches, and \
without what only a watch sees (programs of Linux on the cores, quotas, locks, the host).

Examples:
  tailwater why web
  tailwater why web --duration 10s --sample 1
  tailwater why web --last 1min"
)]
pub struct WhyArgs {
    /// Name of the program, as `tailwater ps` shows it
    #[arg(value_name = "NAME")]
    name: String,
    /// Time to watch it
    #[arg(long, value_name = "DURATION", value_parser = parse_time_ns, default_value = "2s")]
    duration: u64,
    /// Trace one request of N meanwhile
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Judge the last DURATION from the IOKernel's record, without watching
    #[arg(long, value_name = "DURATION", value_parser = parse_time_ns, conflicts_with_all = ["duration", "sample"])]
    last: Option<u64>,
    #[command(flatten)]
    iokernel: IokernelArg,
}

/// Watches the program, or reads what was recorded of it, and prints the verdict.
///
/// # Errors
/// If nothing listens at the socket, no program has the name, or the IOKernel refuses a trace.
pub fn run(args: &WhyArgs) -> anyhow::Result<()> {
    let document = query::statistics(&args.iokernel)?;
    // While one replaces another, the later one.
    let program = info::programs(&document, &args.name).last().cloned();
    let program = program.ok_or_else(|| anyhow::Error::msg(info::describe_absence(&args.name, &document)))?;
    let gathered = match args.last {
        Some(ns) => look_back(args, program, ns)?,
        None => watch(args, program, &document)?,
    };
    let verdict = verdict::judge(&evidence::of(&gathered));
    writeln!(stdout(), "{}", verdict.text)?;
    Ok(())
}

fn watch(args: &WhyArgs, program: Value, document: &Value) -> anyhow::Result<Gathered> {
    let interrupt = Interrupt::catch()?;
    let tracepoints = Tracepoints::watch(document);
    let request = TraceRequest { every: args.sample, runtime: Some(args.name.clone()) };
    let mut watch = Watch::begin(&args.iokernel, request)?;
    let look = |document: &Value| Look::new(document, &program, &tracepoints);
    let before = look(document);
    let (begun, mut collector) = (Instant::now(), Collector::default());
    let end = begun + Duration::from_nanos(args.duration);
    let mut waiting = Waiting::of(&program);
    while Instant::now() < end {
        interrupt.sleep_until(Instant::now() + LOOK)?;
        waiting.look();
        for _ in 0..EVENTS {
            let Some((at, event)) = watch.next()? else { break };
            collector.push(at, event);
        }
    }
    let after = look(&query::statistics(&args.iokernel)?);
    let time_ns = begun.elapsed().as_nanos() as u64;
    watch.learn_names();
    let (names, clock, seen) = (watch.names.clone(), *watch.clock(), Some(Seen { before, after, waiting }));
    Ok(Gathered { program, time_ns, seen, collector, names, clock })
}

fn look_back(args: &WhyArgs, program: Value, ns: u64) -> anyhow::Result<Gathered> {
    let mut collector = Collector::default();
    let watch = Watch::look_back(&args.iokernel, ns)?.read_into(&mut collector)?;
    watch.note_reach(ns);
    collector.keep_requests_to(&args.name, &watch.names);
    let (names, clock) = (watch.names.clone(), *watch.clock());
    // Before its registration it did nothing.
    let registered = names.registration(place_of(&program), watch.anchor()).map_or(0, |(began, _)| began);
    let lived_ns = clock.to_ns(watch.anchor().saturating_sub(registered));
    let time_ns = ns.min(watch.reach_ns()).min(lived_ns);
    Ok(Gathered { program, time_ns, seen: None, collector, names, clock })
}
