//! `tailwater-lab bench programs`: programs that were not written for Tailwater, on its cores.
//!
//! Owns the situations and their order. *Batch*: a spin service beside such a program as a batch
//! job, on Tailwater as `tailwater run --batch` starts it, and on Linux in `SCHED_IDLE` in the
//! session of the service. Each round measures both systems in turn at each load; only figures of
//! one round are compared, and the medians of their ratios count. *Idle*: the same job on an
//! IOKernel without traffic, whose processor time is measured. *Posix*: unmodified services on
//! Tailwater's network and on Linux's ([`posix`]). [`jobs`] has the batch jobs, [`report`] the
//! figures.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use tailwater_stats::HandoffKind;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::{Measured, note, on_linux, on_tailwater, progress};

pub mod jobs;
mod posix;
mod report;

use super::spin;
use jobs::{Files, Job};
use posix::services::Service;
pub use report::Report;
use report::{Beside, Idle, Round, describe};

/// Work of a request, and how many of them one core serves in a second.
const SERVICE: &str = "const:10us";
const CORE_RPS: f64 = 100_000.0;
/// First part of a load that is not counted: what the IOKernel learns of its neighbours takes some
/// tenths of a second.
const WARM_UP: Duration = Duration::from_millis(1_000);
/// How long the job runs alone before and after a load.
const SOLO: Duration = Duration::from_millis(300);

/// Programs that were not written for Tailwater, as batch jobs beside a service
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater-lab bench programs --only batch --json programs.json
  tailwater-lab bench programs --jobs xz-1,xz-4 --loads 10,30,50 --rounds 3
  tailwater-lab bench programs --only idle
  tailwater-lab bench programs --only posix --services redis,memcached-1 --rounds 2")]
pub struct ProgramsArgs {
    /// Seconds that are counted of each situation and round
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Rounds, in which all situations are measured in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Measure these parts only: beside a service, beside an IOKernel without traffic, unmodified
    /// services
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<Part>,
    /// The batch jobs; those that are not installed are left out
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "xz-1,xz-4,cc,python")]
    jobs: Vec<Job>,
    /// Loads of the service in percent of the shared cores
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10,30,50")]
    loads: Vec<f64>,
    /// The setting `neighbour-share` of the IOKernel
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=50))]
    share: u8,
    /// The unmodified services; those that are not installed are left out
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "redis,redis-16,memcached-1,memcached-4,nginx,python"
    )]
    services: Vec<Service>,
    /// Requests of a client of an unmodified service, where it counts them
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    requests: u32,
}

/// The situations that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A service beside a batch job
    Batch,
    /// A batch job and an IOKernel without traffic
    Idle,
    /// Unmodified services on Tailwater's network and on Linux's
    Posix,
}

/// Measures, prints, and returns the figures.
///
/// # Errors
/// When a process does not start or ends, or on a signal.
pub fn run(args: &ProgramsArgs, machine: &Machine) -> anyhow::Result<Report> {
    let files = Files::new()?;
    let mut testbed = spin::testbed(machine, SOLO)?;
    let mut report = Report::default();
    let of = |part: Part| args.only.is_empty() || args.only.contains(&part);
    if of(Part::Posix) {
        report.posix = posix::run(&testbed.interrupt, &files, &args.services, (args.rounds, args.requests))?;
    }
    let jobs = if of(Part::Batch) || of(Part::Idle) { &args.jobs[..] } else { &[] };
    let speed = testbed.calibrate()?;
    for &job in jobs {
        let Some(command) = job.command(&files) else {
            note!("{} is not installed: left out", job.name());
            continue;
        };
        testbed.job = command;
        if of(Part::Idle) {
            let rounds = (0..args.rounds).map(|_| idle(args, &testbed)).collect::<Result<Vec<_>, _>>()?;
            report.idle.push(Idle::new(job.name(), &rounds));
        }
        if of(Part::Batch) {
            let mut rounds = vec![Vec::new(); args.loads.len()];
            for round in progress::over(job.name(), 1..=args.rounds) {
                for (&load, rounds) in args.loads.iter().zip(&mut rounds) {
                    rounds.push(beside(args, &testbed, speed, (load, u64::from(round)))?);
                }
            }
            let of_load = |(load, rounds): (&f64, &Vec<Round>)| Beside::new(job.name(), *load, rounds);
            report.beside.extend(args.loads.iter().zip(&rounds).map(of_load));
        }
    }
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// Measures one round at one load, on both systems.
fn beside(
    args: &ProgramsArgs,
    testbed: &Testbed,
    speed: u64,
    (load, seed): (f64, u64),
) -> anyhow::Result<Round> {
    let rps = load / 100.0 * CORE_RPS * testbed.cores.managed.len() as f64;
    let plan = spin::plan(SERVICE, rps, WARM_UP, Duration::from_secs(args.seconds))?;
    // The requests are not foreseen, as those of a network card are not.
    let setting =
        on_tailwater::Setting { neighbour_share: args.share, announced: false, ..Default::default() };
    let mut handoffs = HandoffRecord::default();
    let tailwater = on_tailwater::point(testbed, speed, &plan, seed, setting, &mut handoffs)?;
    let threads = on_linux::Setting::threads(on_linux::Wait::Block);
    let linux = on_linux::point(testbed, speed, &plan, seed, threads)?;
    let figures = |measured: &Measured| {
        let figures = measured.measurement.summary.figures();
        let batch = measured.batch.context("the batch job was not measured")?;
        anyhow::Ok(report::Figures::new(&figures, batch))
    };
    let wake = handoffs.figures().kinds.get(HandoffKind::Wake.name()).copied().unwrap_or_default();
    Ok(Round { tailwater: figures(&tailwater)?, linux: figures(&linux)?, wake_us: (wake.p50, wake.p99) })
}

/// Measures one round without traffic: the processor time of the IOKernel in percent of a core, and
/// the job's rate over that on Linux.
fn idle(args: &ProgramsArgs, testbed: &Testbed) -> anyhow::Result<(f64, f64)> {
    let time = Duration::from_secs(args.seconds);
    let rate = |batch: &mut tailwater_testbed::child::Batch| {
        let first = batch.progress(&testbed.interrupt)?;
        testbed.interrupt.sleep_until(Instant::now() + time)?;
        anyhow::Ok(batch.progress(&testbed.interrupt)?.rate_since(first))
    };
    let (percent, beside) = on_tailwater::beside_foreign_job(testbed, args.share, rate)?;
    let alone = on_linux::foreign_job(testbed, rate)?;
    Ok((percent, beside / alone))
}
