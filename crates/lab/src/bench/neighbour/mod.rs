//! `tailwater-lab bench neighbour`: what the machine's other programs get beside Tailwater, and
//! what they cost it.
//!
//! Owns the situations and their order: the other programs alone; beside a batch job and an
//! IOKernel without traffic, and beside the same job on Linux; beside a service at 30 % load and
//! the job, on Tailwater and on Linux, there with the job at nice 0 and in `SCHED_IDLE`; and the
//! service on Tailwater without them. All but the first
//! are measured in rounds, in turn: a virtual machine changes its speed within seconds, so only
//! figures of one round are compared, and the median over the rounds counts. [`load`] has the other
//! programs, which are in a session of their own, like a login; [`batch`] has the batch job alone,
//! which leads one, too. Beside a service the job is in that of the service on both systems.
//! [`report`] has the figures, [`turns`] a polling thread that leaves its share to Linux.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::{BatchRates, Measured, note, on_linux, on_tailwater};

mod batch;
mod load;
mod report;
mod turns;

pub use load::{ChildArgs, run_child};
use load::{Others, Samples, Where};
pub use report::Report;
use report::{BatchOnly, OnLinux, Service30, describe};
use turns::Turns;

use super::{median, median_of_some, spin};

/// Rounds in which the situations with Tailwater and with Linux are measured in turn.
const ROUNDS: u32 = 5;
/// Rounds of the batch job alone, in the time of the others: what the host leaves of a core's speed
/// changes within seconds, and only runs right after each other can be compared.
const BATCH_ROUNDS: u32 = 3 * ROUNDS;
/// Part of the managed cores' capacity that requests ask for.
const LOAD: f64 = 0.3;
/// Work of a request, and how many of them one core serves in a second.
const SERVICE: &str = "exp:10us";
const CORE_RPS: f64 = 100_000.0;
/// First part of a service's load that is not counted.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long the batch job runs alone before and after a service's load.
const SOLO: Duration = Duration::from_millis(300);

/// The machine's other programs beside Tailwater
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater-lab bench neighbour --seconds 20 --json neighbour.json
  tailwater-lab bench neighbour --only service --confine lent    the other programs stay off the polled core
  tailwater-lab bench neighbour --only service --share 0         the polling thread leaves them nothing
  tailwater-lab bench neighbour --only service --turns           Linux gives them the share, in turns")]
pub struct NeighbourArgs {
    /// Seconds of each of the seven situations, in five rounds; in 15 without a service
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Measure beside the batch job alone, or beside the service and the batch job
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// The setting `neighbour-share`: percentage of the polling thread's core for other programs
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=50))]
    share: u8,
    /// Beside a service, have Linux give that share by weight: the polling thread is an ordinary
    /// thread with a slice of 100 us (sched_setattr), and the IOKernel gives no slices and no ranks
    /// (`neighbour-share = 0`). Raises the weight of this session; needs root
    #[arg(long)]
    turns: bool,
    /// Confine the other programs to the lent cores, or to the polling thread's, as a cpuset would;
    /// beside Linux, too
    #[arg(long, value_name = "CORES")]
    confine: Option<Confine>,
}

/// The situations that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A batch job without traffic
    Batch,
    /// A service at 30 % load and a batch job
    Service,
}

/// The cores that other programs are confined to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Confine {
    /// Those that are lent
    Lent,
    /// The polling thread's
    Polled,
}

/// The other programs of a run, and the setting of the IOKernel beside them.
struct Setup {
    testbed: Testbed,
    others: Where,
    share: u8,
    turns: Option<Turns>,
}

/// Measures, prints, and returns the figures.
pub fn run(args: &NeighbourArgs, machine: &Machine) -> anyhow::Result<Report> {
    let testbed = spin::testbed(machine, SOLO)?;
    let cores = &testbed.cores;
    let others = Where {
        cores: args.confine.map(|confine| match confine {
            Confine::Lent => cores.managed.clone(),
            Confine::Polled => vec![cores.polling],
        }),
        pinned: *cores.managed.first().context("no core is lent")?,
    };
    let turns = args.turns.then(|| Turns::new(args.share, 1 + cores.managed.len()));
    let setup = Setup { testbed, others, share: args.share, turns };
    let seconds = Duration::from_secs(args.seconds);
    let interrupt = Arc::clone(&setup.testbed.interrupt);
    let (quiet, ()) = setup.beside_others(|| Ok(interrupt.sleep_until(Instant::now() + seconds)?))?;
    note!("alone: a process takes {:.0} ms", quiet.process_ms());
    let of = |part: Part| args.only.is_none_or(|only| only == part);
    let batch_only = of(Part::Batch).then(|| measure_batch(&setup, seconds / BATCH_ROUNDS)).transpose()?;
    if let Some(BatchOnly { process_ms, linux_process_ms, .. }) = &batch_only {
        note!("batch job: a process takes {process_ms:.0} ms, on Linux {linux_process_ms:.0}");
    }
    let service = of(Part::Service).then(|| measure_service(&setup, seconds / ROUNDS)).transpose()?;
    let (service_30, shell_p99_ms) = service.unzip();
    let report = Report { quiet_ms: quiet.process_ms(), batch_only, service_30, shell_p99_ms };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// Measures the batch job without a service, `time` in each round.
fn measure_batch(setup: &Setup, time: Duration) -> anyhow::Result<BatchOnly> {
    let Setup { testbed, share, .. } = setup;
    let (mut others, mut linux_others) = (Samples::default(), Samples::default());
    let mut rounds = Vec::new();
    for _ in 0..BATCH_ROUNDS {
        let (samples, (got, polling)) = setup.beside_others(|| batch::on_tailwater(testbed, *share, time))?;
        others.add(samples);
        let (samples, linux) = setup.beside_others(|| batch::on_linux(testbed, time))?;
        linux_others.add(samples);
        rounds.push((got, linux, polling));
    }
    let over = |of: fn(&batch::Got) -> f64| median(rounds.iter().map(|(got, linux, _)| of(got) / of(linux)));
    Ok(BatchOnly {
        process_ms: others.process_ms(),
        linux_process_ms: linux_others.process_ms(),
        iokernel_cpu_percent: median(rounds.iter().map(|round| round.2)),
        batch_over_linux: over(|got| got.rate),
        batch_cpu_percent: median(rounds.iter().map(|round| round.0.core_percent)),
        linux_batch_cpu_percent: median(rounds.iter().map(|round| round.1.core_percent)),
        batch_speed_over_linux: over(|got| got.rate / got.core_percent),
        shell_p99_ms: others.shell_p99_ms(),
        linux_shell_p99_ms: linux_others.shell_p99_ms(),
        pinned_wake_p99_ms: others.pinned_p99_ms(),
        linux_pinned_wake_p99_ms: linux_others.pinned_p99_ms(),
    })
}

/// Measures the service at 30 % load, `time` in each round; returns the 99th percentile of a
/// thread's wake-up delay beside it, too.
fn measure_service(setup: &Setup, time: Duration) -> anyhow::Result<(Service30, f64)> {
    let Setup { testbed, share, turns, .. } = setup;
    let speed = testbed.calibrate()?;
    let rps = LOAD * CORE_RPS * testbed.cores.managed.len() as f64;
    let plan = spin::plan(SERVICE, rps, WARM_UP, time)?;
    let setting = match turns {
        Some(turns) => on_tailwater::Setting { polling_nice: Some(turns.nice()), ..Default::default() },
        None => on_tailwater::Setting { neighbour_share: *share, ..Default::default() },
    };
    let tailwater = |handoffs: &mut HandoffRecord| {
        let _weight = turns.as_ref().map(Turns::weigh_session).transpose()?;
        on_tailwater::point(testbed, speed, &plan, 1, setting, handoffs)
    };
    // Without the start of the programs, and the batch job alone.
    let beside_others = |work: &mut dyn FnMut() -> anyhow::Result<Measured>| {
        let (samples, measured) = setup.beside_others(work)?;
        anyhow::Ok((samples.within(&measured.counted), measured))
    };
    let linux = |rank| {
        let setting =
            on_linux::Setting { batch: Some(rank), ..on_linux::Setting::threads(on_linux::Wait::Block) };
        beside_others(&mut || on_linux::point(testbed, speed, &plan, 1, setting))
    };
    let mut others = <[Samples; 3]>::default();
    let mut handoffs = HandoffRecord::default();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let alone = tailwater(&mut HandoffRecord::default())?;
        let (got, beside) = beside_others(&mut || tailwater(&mut handoffs))?;
        let (got_ordinary, ordinary) = linux(on_linux::Rank::Ordinary)?;
        let (got_idle, idle) = linux(on_linux::Rank::Idle)?;
        for (all, got) in others.iter_mut().zip([got, got_ordinary, got_idle]) {
            all.add(got);
        }
        rounds.push([alone, beside, ordinary, idle]);
    }
    let [alone, beside, ordinary, idle] = [0, 1, 2, 3];
    let of = |system: usize| rounds.iter().map(move |round| &round[system]);
    let share = |system| median(of(system).map(|one| one.batch.map_or(0.0, BatchRates::share)));
    let figure = |system, figure: fn(&Measured) -> Option<f64>| median_of_some(of(system).map(figure));
    let win_p999 = |one: &Measured| one.measurement.summary.figures().win_p999_us;
    let p99 = |one: &Measured| one.measurement.summary.figures().p99_us;
    let over_alone = |round: &[Measured; 4]| Some(win_p999(&round[beside])? / win_p999(&round[alone])?);
    let [others, others_ordinary, others_idle] = others;
    let service = Service30 {
        process_ms: others.process_ms(),
        service_win_p999_us: figure(beside, win_p999),
        service_win_p999_alone_us: figure(alone, win_p999),
        service_win_p999_over_alone: median_of_some(rounds.iter().map(over_alone)),
        service_p99_us: figure(beside, p99),
        service_p99_alone_us: figure(alone, p99),
        batch_share: share(beside),
        batch_share_alone: share(alone),
        handoffs: handoffs.figures().kinds,
        linux_process_ms: others_ordinary.process_ms(),
        linux_shell_p99_ms: others_ordinary.shell_p99_ms(),
        linux_service_win_p999_us: figure(ordinary, win_p999),
        linux_service_p99_us: figure(ordinary, p99),
        linux_batch_share: share(ordinary),
        linux_idle: OnLinux {
            process_ms: others_idle.process_ms(),
            shell_p99_ms: others_idle.shell_p99_ms(),
            service_win_p999_us: figure(idle, win_p999),
            service_p99_us: figure(idle, p99),
            batch_share: share(idle),
        },
    };
    Ok((service, others.shell_p99_ms()))
}

impl Setup {
    /// Measures the other programs while `work` runs; returns what they got and what it returns.
    fn beside_others<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(Samples, T)> {
        let others = Others::start(&self.others)?;
        let done = work()?;
        Ok((others.end(&self.testbed.interrupt)?, done))
    }
}
