//! `tailwater-lab bench neighbour`: what the machine's other programs get beside Tailwater, and
//! what they cost it.
//!
//! Owns the situations and their order: the other programs alone; beside a batch job and an
//! IOKernel without traffic, and beside the same job on Linux; beside a service at 30 % load and
//! the job, on Tailwater and on Linux; and the service on Tailwater without them. All but the first
//! are measured in rounds, in turn: a virtual machine changes its speed within seconds, so only
//! figures of one round are compared, and the median over the rounds counts. [`load`] has the other
//! programs, which are in a session of their own, like a login; [`batch`] has the batch job alone,
//! which leads one, too. Beside a service the job is in that of the service on both systems.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;
use tailwater_loadgen::Plan;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::{BatchRates, Measured, note, on_linux, on_tailwater};
use tailwater_workload::{LoadSchedule, Rate};

mod batch;
mod load;

pub use load::{ChildArgs, run_child};
use load::{Others, Samples, Where};

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
  tailwater-lab bench neighbour --only service --share 0         the polling thread leaves them nothing")]
pub struct NeighbourArgs {
    /// Seconds of each of the six situations, in five rounds
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Measure beside the batch job alone, or beside the service and the batch job
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// The setting `neighbour-share`: percentage of the polling thread's core for other programs
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=50))]
    share: u8,
    /// Confine the other programs to the lent cores, or to the polling thread's, as a cpuset would;
    /// beside Linux, too
    #[arg(long, value_name = "CORES")]
    confine: Option<Confine>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
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

/// What was measured; times in milliseconds unless said.
#[derive(Debug, Serialize)]
pub struct Report {
    /// A process of 100 ms of processor time, with nothing else on the machine.
    quiet_ms: f64,
    /// A batch job and no traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_only: Option<BatchOnly>,
    /// A service at 30 % load and a batch job.
    #[serde(skip_serializing_if = "Option::is_none")]
    service_30: Option<Service30>,
    /// 99th percentile of a thread's wake-up delay beside service and batch job on Tailwater.
    #[serde(skip_serializing_if = "Option::is_none")]
    shell_p99_ms: Option<f64>,
}

/// The other programs of a run, and the setting of the IOKernel beside them.
struct Setup {
    testbed: Testbed,
    others: Where,
    share: u8,
}

#[derive(Debug, Serialize)]
struct BatchOnly {
    process_ms: f64,
    linux_process_ms: f64,
    /// Processor time of the polling thread, in percent of a core.
    iokernel_cpu_percent: f64,
    /// Trials per second on Tailwater over those on Linux, both beside the other programs.
    batch_over_linux: f64,
    /// Processor time of the batch job, in percent of a core.
    batch_cpu_percent: f64,
    linux_batch_cpu_percent: f64,
    /// Trials per second of processor time, over those on Linux.
    batch_speed_over_linux: f64,
    shell_p99_ms: f64,
    linux_shell_p99_ms: f64,
    /// Of a thread that is bound to a lent core.
    pinned_wake_p99_ms: f64,
    linux_pinned_wake_p99_ms: f64,
}

#[derive(Debug, Serialize)]
struct Service30 {
    process_ms: f64,
    linux_process_ms: f64,
    service_win_p999_us: Option<f64>,
    service_win_p999_alone_us: Option<f64>,
    /// Beside the other programs over alone.
    service_win_p999_over_alone: Option<f64>,
    service_p99_us: Option<f64>,
    service_p99_alone_us: Option<f64>,
    linux_service_win_p999_us: Option<f64>,
    /// The batch job's rate beside the service over its rate alone.
    batch_share: f64,
    batch_share_alone: f64,
    linux_batch_share: f64,
    linux_shell_p99_ms: f64,
    /// Hand-offs by cause while the other programs ran.
    handoffs: serde_json::Value,
}

/// Measures, prints, and returns the figures.
///
/// # Errors
/// When a process does not start or ends, or on a signal.
pub fn run(args: &NeighbourArgs, machine: &Machine) -> anyhow::Result<Report> {
    let testbed = Testbed {
        cores: CorePlan::new(machine.usable_cores.clone())?,
        interrupt: Arc::new(Interrupt::catch()?),
        solo: SOLO,
    };
    let cores = &testbed.cores;
    let others = Where {
        cores: args.confine.map(|confine| match confine {
            Confine::Lent => cores.managed.clone(),
            Confine::Polled => vec![cores.polling],
        }),
        pinned: *cores.managed.first().context("no core is lent")?,
    };
    let setup = Setup { testbed, others, share: args.share };
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
    let Setup { testbed, share, .. } = setup;
    let speed = testbed.calibrate()?;
    let plan = plan(testbed, time)?;
    let setting = on_tailwater::Setting { neighbour_share: *share, ..Default::default() };
    let tailwater =
        |handoffs: &mut HandoffRecord| on_tailwater::point(testbed, speed, &plan, 1, setting, handoffs);
    let (mut others, mut linux_others) = (Samples::default(), Samples::default());
    let mut handoffs = HandoffRecord::default();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let alone = tailwater(&mut HandoffRecord::default())?;
        let (samples, beside) = setup.beside_others(|| tailwater(&mut handoffs))?;
        others.add(samples);
        let (samples, linux) = setup.beside_others(|| {
            on_linux::point(testbed, speed, &plan, 1, on_linux::Setting::threads(on_linux::Wait::Block))
        })?;
        linux_others.add(samples);
        rounds.push([alone, beside, linux]);
    }
    let [alone, beside, linux] = [0, 1, 2];
    let of = |system: usize| rounds.iter().map(move |round| &round[system]);
    let share = |system| median(of(system).map(|one| one.batch.map_or(0.0, BatchRates::share)));
    let figure = |system, figure: fn(&Measured) -> Option<f64>| median_of_some(of(system).map(figure));
    let win_p999 = |one: &Measured| one.measurement.summary.figures().win_p999_us;
    let p99 = |one: &Measured| one.measurement.summary.figures().p99_us;
    let over_alone = |round: &[Measured; 3]| Some(win_p999(&round[beside])? / win_p999(&round[alone])?);
    let service = Service30 {
        process_ms: others.process_ms(),
        linux_process_ms: linux_others.process_ms(),
        service_win_p999_us: figure(beside, win_p999),
        service_win_p999_alone_us: figure(alone, win_p999),
        service_win_p999_over_alone: median_of_some(rounds.iter().map(over_alone)),
        service_p99_us: figure(beside, p99),
        service_p99_alone_us: figure(alone, p99),
        linux_service_win_p999_us: figure(linux, win_p999),
        batch_share: share(beside),
        batch_share_alone: share(alone),
        linux_batch_share: share(linux),
        linux_shell_p99_ms: linux_others.shell_p99_ms(),
        handoffs: serde_json::to_value(handoffs.figures().kinds)?,
    };
    Ok((service, others.shell_p99_ms()))
}

/// Returns the median; 0 of no values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the median of the values that there are.
fn median_of_some(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.flatten().collect();
    (!values.is_empty()).then(|| median(values.into_iter()))
}

impl Setup {
    /// Measures the other programs while `work` runs; returns what they got and what it returns.
    fn beside_others<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(Samples, T)> {
        let others = Others::start(&self.others)?;
        let done = work()?;
        Ok((others.end(&self.testbed.interrupt)?, done))
    }
}

/// Returns the load of the service.
fn plan(testbed: &Testbed, counted: Duration) -> anyhow::Result<Plan> {
    let rate = Rate::new(LOAD * CORE_RPS * testbed.cores.managed.len() as f64)?;
    let length = WARM_UP + counted;
    let schedule = LoadSchedule::constant(rate, length.as_nanos() as u64);
    Ok(Plan { warm_up_ns: WARM_UP.as_nanos() as u64, flows: 64, ..Plan::new(schedule, SERVICE.parse()?) })
}

fn describe(report: &Report) -> String {
    let mut table = Table::new(["beside", "process of 100 ms, ms", "wake-up p99, ms", "batch job"]);
    let mut row = |name: &str, process: f64, shell: Option<f64>, batch: Option<f64>| {
        let shell = shell.map_or_else(String::new, number);
        table.row([name.to_owned(), number(process), shell, batch.map_or_else(String::new, number)]);
    };
    row("nothing", report.quiet_ms, None, None);
    if let Some(b) = &report.batch_only {
        row("batch job, Linux", b.linux_process_ms, Some(b.linux_shell_p99_ms), Some(1.0));
        row("batch job, Tailwater", b.process_ms, Some(b.shell_p99_ms), Some(b.batch_over_linux));
    }
    if let Some(s) = &report.service_30 {
        let (process, shell) = (s.linux_process_ms, Some(s.linux_shell_p99_ms));
        row("service at 30 % and batch job, Linux", process, shell, Some(s.linux_batch_share));
        let name = "service at 30 % and batch job, Tailwater";
        row(name, s.process_ms, report.shell_p99_ms, Some(s.batch_share));
    }
    let mut text = format!(
        "{table}\nThe batch job's rate is over that on Linux without a service, over its own alone beside one.\n"
    );
    if let Some(b) = &report.batch_only {
        text += &format!(
            "The IOKernel beside the batch job: {} % of a core; the batch job: {} %, on Linux {} %, at {} of its speed there.\n\
             Wake-up p99 of a thread that is bound to a lent core, ms: {}, on Linux {}.\n",
            number(b.iokernel_cpu_percent),
            number(b.batch_cpu_percent),
            number(b.linux_batch_cpu_percent),
            number(b.batch_speed_over_linux),
            number(b.pinned_wake_p99_ms),
            number(b.linux_pinned_wake_p99_ms),
        );
    }
    let us = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), number);
    if let Some(s) = &report.service_30 {
        text += &format!(
            "The service's p99 and windowed p99.9, us: {} and {} alone, {} and {} beside the other programs ({} on Linux);\n\
             windowed p99.9 beside over alone: {}.\n",
            us(s.service_p99_alone_us),
            us(s.service_win_p999_alone_us),
            us(s.service_p99_us),
            us(s.service_win_p999_us),
            us(s.linux_service_win_p999_us),
            us(s.service_win_p999_over_alone),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_without_a_figure_does_not_count() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median_of_some([Some(3.0), None, Some(1.0), Some(2.0)].into_iter()), Some(2.0));
        assert_eq!(median_of_some([None].into_iter()), None);
    }
}
