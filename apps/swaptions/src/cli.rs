//! The command line of `swaptions`, for its own binary and for programs that include it.
//!
//! Owns arguments, the end of the job (time, signal, end of input), progress lines and the report.
//! All of it happens on ordinary threads, which sleep while the workers work.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use tailwater_workload::units::{parse_duration_ns, parse_time_ns};

use crate::job::{Job, Tally};
use crate::linux::{Placement, run_threads};
use crate::portfolio::Portfolio;
use crate::user_threads::run_user_threads;

/// Examples, for `after_help`.
pub const EXAMPLES: &str = "Examples:
  tailwater-swaptions --duration 10s
  tailwater run --name batch --class best-effort -- tailwater-swaptions --report-every 1s
  tailwater-swaptions --linux --threads 1 --core 1 --nice-idle --duration 30s --report-every 100ms
  tailwater-swaptions --linux --trials 20000 --json

Without --linux it runs on Tailwater; TAILWATER_* variables say how (see `tailwater run --help`).";

/// Interval at which the watching thread checks whether the job has ended. While it sleeps it costs
/// the workers nothing.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Command-line arguments.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Run on ordinary kernel threads instead of Tailwater
    #[arg(long)]
    linux: bool,
    /// Worker threads [default: one per kthread, with --linux one per core that may be used]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4_096))]
    threads: Option<u16>,
    /// Stop after this time; without it and without --trials, run until interrupted
    #[arg(long, value_name = "DURATION", value_parser = parse_time_ns)]
    duration: Option<u64>,
    /// Stop when every swaption has been priced with this many paths
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..))]
    trials: Option<u64>,
    /// Swaptions in the portfolio
    #[arg(long, value_name = "N", default_value_t = 32)]
    swaptions: usize,
    /// Paths that count as one swaption priced, when --trials is not given
    #[arg(long, value_name = "T", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    trials_per_swaption: u64,
    /// Seed of the portfolio and of every path
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cores that the workers may use, for instance 1 or 1,3
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "linux")]
    core: Vec<usize>,
    /// Run the workers in the SCHED_IDLE class: only if no other thread in the session needs the
    /// core
    #[arg(long, requires = "linux")]
    nice_idle: bool,
    /// Add this to the workers' nice value, as nice(1) does
    #[arg(long, value_name = "N", default_value_t = 0, requires = "linux", conflicts_with = "nice_idle",
          value_parser = clap::value_parser!(u8).range(0..=39))]
    nice: u8,
    /// Print a line of JSON with the trials so far at this interval, for instance 100ms
    #[arg(long, value_name = "DURATION", value_parser = parse_interval)]
    report_every: Option<Duration>,
    /// Print such a line for every line on standard input, and stop at its end
    #[arg(long, conflicts_with_all = ["report_every", "duration"])]
    report_on_input: bool,
    /// Print the final report as JSON
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration_ns(text) {
        Ok(0) => Err("an interval must be longer than 0".to_owned()),
        Ok(ns) => Ok(Duration::from_nanos(ns)),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the job until it ends, its time is up, its input ends, or SIGINT or SIGTERM arrives; then
/// prints the report.
///
/// # Errors
/// If the job cannot start, or its output cannot be printed.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let portfolio = Portfolio::generate(options.swaptions, options.seed)?;
    let job = Arc::new(Job::new(&portfolio, options.trials, options.seed));
    let start = Instant::now();
    let finished = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (options, job, finished) = (options.clone(), Arc::clone(&job), Arc::clone(&finished));
        std::thread::Builder::new()
            .name("swaptions-watch".to_owned())
            .spawn(move || {
                let watched = watch(&options, &job, start, &finished);
                job.stop();
                watched
            })
            .context("cannot start a thread")?
    };
    let tally = if options.linux {
        run_linux(options, &job)?
    } else {
        run_user_threads(&job, options.threads.map(usize::from))?
    };
    finished.store(true, Relaxed);
    // A watcher that waits for input does not notice the end of the job; the process ends without
    // it.
    if !options.report_on_input {
        watcher.join().expect("watching does not panic")?;
    }
    print_report(options, &tally, start.elapsed().as_secs_f64())
}

/// Runs the job on kernel threads.
fn run_linux(options: &Options, job: &Arc<Job>) -> anyhow::Result<Tally> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let default_threads = if options.core.is_empty() { available } else { options.core.len() };
    let placement =
        Placement { cores: options.core.clone(), idle_class: options.nice_idle, nice: options.nice };
    Ok(run_threads(job, options.threads.map_or(default_threads, usize::from), &placement)?.join()?)
}

/// Waits until the job ends, printing progress as configured.
fn watch(options: &Options, job: &Job, start: Instant, finished: &AtomicBool) -> anyhow::Result<()> {
    if options.report_on_input {
        // Signals keep their default action, which ends the process: reading cannot be interrupted
        // otherwise.
        return report_on_input(std::io::stdin().lock(), job, start);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot catch signals")?;
    }
    let mut reports = 0u32;
    loop {
        let now = start.elapsed();
        let next_report = options.report_every.map(|every| every.saturating_mul(reports + 1));
        if next_report.is_some_and(|at| now >= at) {
            reports += 1;
            print_progress(job, start)?;
            continue;
        }
        let left = limit(options).map(|limit| limit.saturating_sub(now));
        let ended = finished.load(Relaxed) || interrupted.load(Relaxed);
        if ended || left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        let to_report = next_report.map_or(WATCH_INTERVAL, |at| at - now);
        std::thread::sleep(WATCH_INTERVAL.min(left.unwrap_or(WATCH_INTERVAL)).min(to_report));
    }
}

/// Prints the trials of `job` so far, and the time since `start`, for each line of `input`, until
/// its end.
///
/// # Errors
/// If `input` cannot be read, or nothing can be printed.
pub fn report_on_input(input: impl BufRead, job: &Job, start: Instant) -> anyhow::Result<()> {
    for line in input.lines() {
        line.context("cannot read standard input")?;
        print_progress(job, start)?;
    }
    Ok(())
}

/// Prints the exact number of trials so far with the time at which it was read.
fn print_progress(job: &Job, start: Instant) -> anyhow::Result<()> {
    let line = serde_json::json!({ "t_s": start.elapsed().as_secs_f64(), "trials": job.trials_done() });
    writeln!(std::io::stdout(), "{line}").context("cannot print progress")
}

/// Returns the time given by `--duration`.
fn limit(options: &Options) -> Option<Duration> {
    options.duration.map(Duration::from_nanos)
}

fn print_report(options: &Options, tally: &Tally, seconds: f64) -> anyhow::Result<()> {
    let report = tally.report(seconds, options.trials.unwrap_or(options.trials_per_swaption));
    let mut out = std::io::stdout();
    if options.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        writeln!(
            out,
            "{} trials in {:.2} s: {:.0} trials/s, {:.2} swaptions/s of {} trials each",
            report.trials,
            report.seconds,
            report.trials_per_s,
            report.swaptions_per_s,
            report.trials_per_swaption
        )?;
        writeln!(
            out,
            "portfolio of {} swaptions: {:.6} +- {:.6} on notionals of 1",
            options.swaptions, report.portfolio_value, report.portfolio_std_error
        )?;
    }
    Ok(())
}
