//! `tailwater-lab bench neighbour`: what the machine's other programs get beside Tailwater, and
//! what they cost it.
//!
//! Owns the situations and their order: the other programs alone; beside a batch job and an
//! IOKernel without traffic, and beside the same job on Linux; beside a service at 30 % load and
//! the job, on Tailwater and on Linux; and the service on Tailwater without them. [`load`] has the
//! other programs, which are in a session of their own, like a login. The batch job leads one, too,
//! where it runs without a service; beside a service it is in that of the service on both systems.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tailwater_iokernel::Config;
use tailwater_iokernel::frame::MacAddr;
use tailwater_iokernel::port::{Attachment, memory};
use tailwater_loadgen::Plan;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::{Batch, Spec};
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::port::GENERATOR_IP;
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::{BatchRates, Measured, note, on_linux, on_tailwater};
use tailwater_workload::{LoadSchedule, Rate};

mod load;

pub use load::{ChildArgs, run_child};
use load::{Figures, Others};

/// Part of the managed cores' capacity that requests ask for.
const LOAD: f64 = 0.3;
/// Work of a request, and how many of them one core serves in a second.
const SERVICE: &str = "exp:10us";
const CORE_RPS: f64 = 100_000.0;
/// First part of a service's load that is not counted.
const WARM_UP: Duration = Duration::from_millis(500);
/// The setting that is measured: percentage of the polling thread's core for other programs.
const NEIGHBOUR_SHARE: u8 = 10;
/// How long the batch job runs alone before and after a service's load.
const SOLO: Duration = Duration::from_millis(300);

/// The machine's other programs beside Tailwater with `neighbour-share = 10`
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:
  tailwater-lab bench neighbour --seconds 20 --json neighbour.json")]
pub struct NeighbourArgs {
    /// Seconds of each of the six situations
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// What was measured; times in milliseconds unless said.
#[derive(Debug, Serialize)]
pub struct Report {
    /// A process of 100 ms of processor time, with nothing else on the machine.
    quiet_ms: f64,
    /// A batch job and no traffic.
    batch_only: BatchOnly,
    /// A service at 30 % load and a batch job.
    service_30: Service30,
    /// 99th percentile of a thread's wake-up delay beside service and batch job on Tailwater.
    shell_p99_ms: f64,
}

#[derive(Debug, Serialize)]
struct BatchOnly {
    process_ms: f64,
    linux_process_ms: f64,
    /// Processor time of the polling thread, in percent of a core.
    iokernel_cpu_percent: f64,
    /// Trials per second on Tailwater over those on Linux, both beside the other programs.
    batch_over_linux: f64,
    shell_p99_ms: f64,
    linux_shell_p99_ms: f64,
}

#[derive(Debug, Serialize)]
struct Service30 {
    process_ms: f64,
    linux_process_ms: f64,
    service_win_p999_us: Option<f64>,
    service_win_p999_alone_us: Option<f64>,
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
    let seconds = Duration::from_secs(args.seconds);
    let interrupt = &*testbed.interrupt;
    let (quiet, ()) = beside_others(interrupt, || Ok(interrupt.sleep_until(Instant::now() + seconds)?))?;
    note!("alone: a process takes {:.0} ms", quiet.process_ms);
    let speed = testbed.calibrate()?;
    let (others, (batch_rate, iokernel_cpu_percent)) =
        beside_others(interrupt, || batch_on_tailwater(&testbed, seconds))?;
    let (linux, linux_batch_rate) = beside_others(interrupt, || batch_on_linux(&testbed, seconds))?;
    let batch_only = BatchOnly {
        process_ms: others.process_ms,
        linux_process_ms: linux.process_ms,
        iokernel_cpu_percent,
        batch_over_linux: batch_rate / linux_batch_rate,
        shell_p99_ms: others.shell_p99_ms,
        linux_shell_p99_ms: linux.shell_p99_ms,
    };
    note!("batch job: a process takes {:.0} ms, on Linux {:.0}", others.process_ms, linux.process_ms);
    let plan = plan(&testbed, seconds)?;
    let setting = on_tailwater::Setting { neighbour_share: NEIGHBOUR_SHARE, ..Default::default() };
    let tailwater =
        |handoffs: &mut HandoffRecord| on_tailwater::point(&testbed, speed, &plan, 1, setting, handoffs);
    let alone = tailwater(&mut HandoffRecord::default())?;
    let mut handoffs = HandoffRecord::default();
    let (others, beside) = beside_others(interrupt, || tailwater(&mut handoffs))?;
    let (linux, on_linux) = beside_others(interrupt, || {
        on_linux::point(&testbed, speed, &plan, 1, on_linux::Setting::threads(on_linux::Wait::Block))
    })?;
    let share = |measured: &Measured| measured.batch.map_or(0.0, BatchRates::share);
    let figures = |measured: &Measured| measured.measurement.summary.figures();
    let report = Report {
        quiet_ms: quiet.process_ms,
        batch_only,
        service_30: Service30 {
            process_ms: others.process_ms,
            linux_process_ms: linux.process_ms,
            service_win_p999_us: figures(&beside).win_p999_us,
            service_win_p999_alone_us: figures(&alone).win_p999_us,
            service_p99_us: figures(&beside).p99_us,
            service_p99_alone_us: figures(&alone).p99_us,
            linux_service_win_p999_us: figures(&on_linux).win_p999_us,
            batch_share: share(&beside),
            batch_share_alone: share(&alone),
            linux_batch_share: share(&on_linux),
            linux_shell_p99_ms: linux.shell_p99_ms,
            handoffs: serde_json::to_value(handoffs.figures().kinds)?,
        },
        shell_p99_ms: others.shell_p99_ms,
    };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// Measures the other programs while `work` runs; returns their figures and what it returns.
fn beside_others<T>(
    interrupt: &Interrupt,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Figures, T)> {
    let others = Others::start()?;
    let done = work()?;
    Ok((others.end(interrupt)?, done))
}

/// Returns the load of the service.
fn plan(testbed: &Testbed, counted: Duration) -> anyhow::Result<Plan> {
    let rate = Rate::new(LOAD * CORE_RPS * testbed.cores.managed.len() as f64)?;
    let length = WARM_UP + counted;
    let schedule = LoadSchedule::constant(rate, length.as_nanos() as u64);
    Ok(Plan { warm_up_ns: WARM_UP.as_nanos() as u64, flows: 64, ..Plan::new(schedule, SERVICE.parse()?) })
}

/// Runs the batch job on an IOKernel without traffic; returns its rate and the polling thread's
/// processor time in percent.
fn batch_on_tailwater(testbed: &Testbed, time: Duration) -> anyhow::Result<(f64, f64)> {
    let station = Attachment::Station { mac: MacAddr([2, 0xc1, 0, 0, 0, 1]), ip: Some(GENERATOR_IP) };
    let (port, _station) = memory::pair("station", station)?;
    let cores = &testbed.cores;
    let socket = format!("@tailwater-neighbour-{}", std::process::id());
    let config = Config {
        socket: socket.clone(),
        iokernel_core: Some(cores.polling as u16),
        managed_cores: Some(cores.managed.iter().map(|&core| core as u16).collect()),
        neighbour_share: NEIGHBOUR_SHARE,
        ..Config::default()
    };
    let _iokernel = Embedded::start(config, Box::new(port), None)?;
    let settings = vec![
        ("TAILWATER_IOKERNEL", socket),
        ("TAILWATER_CLASS", "best-effort".to_owned()),
        ("TAILWATER_KTHREADS", cores.managed.len().to_string()),
    ];
    let arguments = vec!["--report-on-input".to_owned()];
    let spec = Spec { app: "swaptions", arguments, settings, own_session: true, ..Spec::default() };
    let mut batch = Batch::start(&spec, &testbed.interrupt)?;
    let (used, began) = (iokernel_time()?, Instant::now());
    let rate = rate(testbed, &mut batch, time)?;
    let used = iokernel_time()?.saturating_sub(used);
    Ok((rate, 100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64()))
}

/// Runs the batch job as an ordinary program with as many threads; returns its rate.
fn batch_on_linux(testbed: &Testbed, time: Duration) -> anyhow::Result<f64> {
    let threads = testbed.cores.managed.len().to_string();
    let arguments = ["--linux", "--threads", &threads, "--report-on-input"].map(str::to_owned).to_vec();
    let spec = Spec { app: "swaptions", arguments, own_session: true, ..Spec::default() };
    rate(testbed, &mut Batch::start(&spec, &testbed.interrupt)?, time)
}

fn rate(testbed: &Testbed, batch: &mut Batch, time: Duration) -> anyhow::Result<f64> {
    let first = batch.progress(&testbed.interrupt)?;
    testbed.interrupt.sleep_until(Instant::now() + time)?;
    Ok(batch.progress(&testbed.interrupt)?.rate_since(first))
}

/// Returns the processor time of this process's thread `iokernel`.
fn iokernel_time() -> anyhow::Result<Duration> {
    for task in std::fs::read_dir("/proc/self/task")?.flatten() {
        let file = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if file("comm").trim() == "iokernel" {
            let ns = file("schedstat").split(' ').next().and_then(|ns| ns.parse().ok());
            return Ok(Duration::from_nanos(ns.unwrap_or(0)));
        }
    }
    anyhow::bail!("the IOKernel's thread has ended")
}

fn describe(report: &Report) -> String {
    let Report { quiet_ms, batch_only, service_30, shell_p99_ms } = report;
    let mut table = Table::new(["beside", "process of 100 ms, ms", "wake-up p99, ms", "batch job"]);
    let mut row = |name: &str, process: f64, shell: Option<f64>, batch: Option<f64>| {
        let shell = shell.map_or_else(String::new, number);
        table.row([name.to_owned(), number(process), shell, batch.map_or_else(String::new, number)]);
    };
    row("nothing", *quiet_ms, None, None);
    let BatchOnly { process_ms, linux_process_ms, shell_p99_ms: shell, linux_shell_p99_ms, .. } = batch_only;
    row("batch job, Linux", *linux_process_ms, Some(*linux_shell_p99_ms), Some(1.0));
    row("batch job, Tailwater", *process_ms, Some(*shell), Some(batch_only.batch_over_linux));
    let s = service_30;
    row(
        "service at 30 % and batch job, Linux",
        s.linux_process_ms,
        Some(s.linux_shell_p99_ms),
        Some(s.linux_batch_share),
    );
    row("service at 30 % and batch job, Tailwater", s.process_ms, Some(*shell_p99_ms), Some(s.batch_share));
    let us = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), number);
    format!(
        "{table}\nThe batch job's rate is over that on Linux without a service, over its own alone beside one.\n\
         The IOKernel beside the batch job: {} % of a core.\n\
         The service's p99 and windowed p99.9, us: {} and {} alone, {} and {} beside the other programs ({} on Linux).\n",
        number(batch_only.iokernel_cpu_percent),
        us(s.service_p99_alone_us),
        us(s.service_win_p999_alone_us),
        us(s.service_p99_us),
        us(s.service_win_p999_us),
        us(s.linux_service_win_p999_us),
    )
}
