//! `swaptions`: prices a portfolio of swaptions for as long as it is told and says how fast that went.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use tailwater_swaptions::job::{Job, Tally};
use tailwater_swaptions::linux::{Placement, run_threads};
use tailwater_swaptions::portfolio::Portfolio;
use tailwater_workload::units::parse_duration_ns;

/// How often the main thread looks whether the job has ended. Sleeping, it takes nothing from the workers.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Price a portfolio of European swaptions by Monte Carlo under a three-factor HJM model.
///
/// Examples:
///   swaptions --linux --seconds 10
///   swaptions --linux --threads 1 --core 1 --nice-idle --seconds 30 --report-every 100ms
///   swaptions --linux --trials 20000 --json
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
struct Options {
    /// Run on ordinary kernel threads
    #[arg(long, required = true)]
    linux: bool,
    /// Worker threads [default: one per core that may be used]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Stop after this many seconds; without it and without --trials, run until interrupted
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Stop when every swaption has been priced with this many paths
    #[arg(long, value_name = "T")]
    trials: Option<u64>,
    /// Swaptions in the portfolio
    #[arg(long, value_name = "N", default_value_t = 32)]
    swaptions: usize,
    /// Paths that count as one swaption priced, when --trials is not given
    #[arg(long, value_name = "T", default_value_t = 20_000)]
    trials_per_swaption: u64,
    /// Decides the portfolio and every path
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cores that the workers may use, for instance 1 or 1,3
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    core: Vec<usize>,
    /// Run the workers in the SCHED_IDLE class: only when nothing else in the session wants the core
    #[arg(long)]
    nice_idle: bool,
    /// Print a line of JSON with the trials so far at this interval, for instance 100ms
    #[arg(long, value_name = "DURATION", value_parser = parse_interval)]
    report_every: Option<Duration>,
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

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    anyhow::ensure!(
        options.seconds.is_none_or(|s| s.is_finite() && s > 0.0),
        "--seconds must be above 0; leave it out to run until interrupted"
    );
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot catch signals")?;
    }
    let portfolio = Portfolio::generate(options.swaptions, options.seed)?;
    let job = Arc::new(Job::new(&portfolio, options.trials, options.seed));
    let start = Instant::now();
    let tally = run_linux(&options, &job, start, &interrupted)?;
    print_report(&options, &tally, start.elapsed().as_secs_f64())
}

/// Runs the job on kernel threads until it ends, its time is up, or a signal comes.
fn run_linux(
    options: &Options,
    job: &Arc<Job>,
    start: Instant,
    interrupted: &AtomicBool,
) -> anyhow::Result<Tally> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let default_threads = if options.core.is_empty() { available } else { options.core.len() };
    let placement = Placement { cores: options.core.clone(), idle_class: options.nice_idle };
    let workers = run_threads(job, options.threads.unwrap_or(default_threads), &placement)?;
    let watched = watch(options, job, start, || workers.are_finished() || interrupted.load(Relaxed));
    job.stop();
    let tally = workers.join()?;
    watched?;
    Ok(tally)
}

/// Waits until the time is up or `ended` says so, printing progress at the interval asked for.
fn watch(options: &Options, job: &Job, start: Instant, ended: impl Fn() -> bool) -> anyhow::Result<()> {
    let mut reports = 0u32;
    loop {
        let now = start.elapsed();
        let next_report = options.report_every.map(|every| every.saturating_mul(reports + 1));
        if next_report.is_some_and(|at| now >= at) {
            reports += 1;
            let line = serde_json::json!({ "t_s": now.as_secs_f64(), "trials": job.trials_done() });
            writeln!(std::io::stdout(), "{line}").context("cannot print progress")?;
            continue;
        }
        let left = limit(options).map(|limit| limit.saturating_sub(now));
        if ended() || left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        let to_report = next_report.map_or(WATCH_INTERVAL, |at| at - now);
        std::thread::sleep(WATCH_INTERVAL.min(left.unwrap_or(WATCH_INTERVAL)).min(to_report));
    }
}

/// The time given by `--seconds`; what `Duration` cannot hold is as good as forever.
fn limit(options: &Options) -> Option<Duration> {
    options.seconds.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX))
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
