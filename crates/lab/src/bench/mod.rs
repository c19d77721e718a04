//! `tailwater-lab bench`: benchmarks of single mechanisms.
//!
//! Owns tables and files of `handoff` and `switch`, which `tailwater-iokernel-testing` measures;
//! [`cores`], [`dispatch`], [`energy`], [`hostile`], [`neighbour`], [`ports`], [`programs`],
//! [`services`], [`tcp`] and [`threads`] are measured here; [`scale`] by `tailwater-iokernel`.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tailwater_iokernel_testing::bench::{
    ECHO_NAME, HandoffOptions, HandoffReport, SwitchOptions, SwitchReport, handoff, switch,
};

pub mod cores;
pub mod dispatch;
pub mod energy;
pub mod hostile;
pub mod neighbour;
pub mod ports;
pub mod programs;
pub mod scale;
pub mod services;
mod spin;
pub mod tcp;
pub mod threads;

use crate::measure::merge::merge;
use tailwater_testbed::app;
use tailwater_testbed::machine::{Machine, commit};
use tailwater_testbed::requirements;
use tailwater_testbed::table::{Table, number};

/// Longest time between the first and the last request of a round of hand-offs.
const ROUND_US: u64 = 1_000_000;

/// Measure a mechanism by itself
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater-lab bench handoff                    how fast a core changes hands, next to signal and eventfd
  tailwater-lab bench switch --json switch.json  frames per second through one IOKernel core
  tailwater-lab bench cores                      how soon new threads and requested cores run; a ramp of load
  tailwater-lab bench dispatch                   what poll points cost, and how exact a quantum is
  tailwater-lab bench energy                     processor time by load, sleeping and polling
  tailwater-lab bench events                     an echo run to completion, next to user threads and epoll
  tailwater-lab bench hostile                    what a service notices of a program that attacks the IOKernel
  tailwater-lab bench neighbour                  what the machine's other programs get beside Tailwater
  tailwater-lab bench ports                      a Linux client of a service on the same machine
  tailwater-lab bench programs                   programs of the system as batch jobs beside a service
  tailwater-lab bench scale                      cost of the IOKernel's loop with up to 64 cores and programs
  tailwater-lab bench services                   services that share cores, and whether each gets its part
  tailwater-lab bench tcp                        TCP through the IOKernel, next to the kernel's
  tailwater-lab bench threads                    user threads next to OS threads, Tokio, may and Go")]
pub struct BenchArgs {
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Clone, Subcommand)]
enum Bench {
    /// Hand-off of a core between processes, next to signal and eventfd
    #[command(after_help = "Example:
  tailwater-lab bench handoff --rounds 10 --json handoff.json")]
    Handoff(HandoffArgs),
    /// Frames from one runtime to another through the IOKernel, and the round trip of an echo
    #[command(after_help = "Example:
  tailwater-lab bench switch --rounds 10 --json switch.json")]
    Switch(Rounds),
    Cores(cores::CoresArgs),
    Dispatch(dispatch::DispatchArgs),
    Energy(energy::EnergyArgs),
    Events(tcp::events::EventsArgs),
    Hostile(hostile::HostileArgs),
    Neighbour(neighbour::NeighbourArgs),
    Ports(ports::PortsArgs),
    Programs(programs::ProgramsArgs),
    Scale(scale::ScaleArgs),
    Services(services::ServicesArgs),
    Tcp(tcp::TcpArgs),
    Threads(threads::ThreadsArgs),
}

#[derive(Debug, Clone, Args)]
struct HandoffArgs {
    #[command(flatten)]
    common: Rounds,
    /// Pause before each request to a service whose core a batch job has, in microseconds; after
    /// 10,000 and more its kthread sleeps
    #[arg(long, value_name = "US", default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    gap_us: u64,
}

impl HandoffArgs {
    fn options(&self) -> HandoffOptions {
        let rounds = self.common.rounds.into();
        let standard = HandoffOptions::default();
        // Longer pauses make fewer hand-offs, not longer rounds.
        let per_round = standard.per_round.min((ROUND_US / self.gap_us) as usize).max(20);
        HandoffOptions { rounds, per_round, gap: Duration::from_micros(self.gap_us) }
    }
}

#[derive(Debug, Clone, Args)]
struct Rounds {
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
}

/// Returns the names of all benchmarks.
#[cfg(test)]
pub fn names() -> Vec<String> {
    let bench = Bench::augment_subcommands(clap::Command::new("bench"));
    bench.get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

/// Measures, prints and writes.
///
/// # Errors
/// If the machine lacks something, if a process does not start, or if the file cannot be
/// written.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    requirements::check()?;
    let machine = Machine::describe();
    writeln!(stdout(), "{machine}\n")?;
    let document = match &args.bench {
        Bench::Handoff(args) => {
            // Not by path: a newer build may have replaced the file.
            let report = handoff(args.options(), &|| Command::new("/proc/self/exe"))?;
            write!(stdout(), "{}", describe_handoff(&report))?;
            document(Ok(report))
        }
        Bench::Switch(args) => {
            let options = SwitchOptions { rounds: args.rounds.into(), ..SwitchOptions::default() };
            let report = switch(options, &echo_service)?;
            write!(stdout(), "{}", describe_switch(&report))?;
            document(Ok(report))
        }
        Bench::Cores(args) => document(cores::run(args, &machine)),
        Bench::Dispatch(args) => document(dispatch::run(args)),
        Bench::Energy(args) => document(energy::run(args, &machine)),
        Bench::Events(args) => document(tcp::events::run(args)),
        Bench::Hostile(args) => document(hostile::run(args, &machine)),
        Bench::Neighbour(args) => document(neighbour::run(args, &machine)),
        Bench::Ports(args) => document(ports::run(args, &machine)),
        Bench::Programs(args) => document(programs::run(args, &machine)),
        Bench::Scale(args) => document(scale::run(args)),
        Bench::Services(args) => document(services::run(args, &machine)),
        Bench::Tcp(args) => document(tcp::run(args)),
        Bench::Threads(args) => document(threads::run(args, &machine)),
    }?;
    args.json.as_deref().map_or(Ok(()), |path| write(path, &machine, document))
}

/// Returns the keys of a report.
fn document(report: anyhow::Result<impl Serialize>) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(report?)?)
}

/// Returns this program as an echo service that never parks.
fn echo_service(socket: &str) -> Command {
    let mut command = app::command(&[]);
    command
        .arg("echo")
        .env("TAILWATER_IOKERNEL", socket)
        .env("TAILWATER_NAME", ECHO_NAME)
        .env("TAILWATER_KTHREADS", "1")
        .env("TAILWATER_IDLE_TIMEOUT_US", "0");
    command
}

fn describe_handoff(report: &HandoffReport) -> String {
    let mut table = Table::new("from decision to the other running, us | p50 | p99");
    let mut row = |name: &str, p50: f64, p99: Option<f64>| {
        table.row([name.to_owned(), number(p50), p99.map_or_else(String::new, number)]);
    };
    row("busy, polling batch -> service", report.busy_p50_us, Some(report.busy_p99_us));
    row("  its first own time stamp", report.first_p50_us, Some(report.first_p99_us));
    row("  the batch job at its poll point", report.gave_up_p50_us, None);
    row("  the core seen ceded", report.ceded_p50_us, None);
    row("signal, then eventfd (Shenango section 6.1)", report.signal_p50_us, Some(report.signal_p99_us));
    row("signal and eventfd together", report.signal_together_p50_us, None);
    row("idle kthread, still polling", report.idle_p50_us, Some(report.idle_p99_us));
    row("parked kthread, core halted", report.wake_p50_us, None);
    row("parked kthread, IOKernel asleep", report.asleep_p50_us, None);
    row("  the IOKernel polls again", report.polls_again_p50_us, Some(report.polls_again_p99_us));
    row(
        "  the same, woken by a frame at its port",
        report.frame_polls_again_p50_us,
        Some(report.frame_polls_again_p99_us),
    );
    format!(
        "{table}\n{} hand-offs, {} of them needed a signal or eviction; {} ns of IOKernel time each; {:.1} times faster than \
         signal and eventfd\n",
        report.handoffs,
        report.escalated,
        report.iokernel_ns,
        report.signal_p50_us / report.busy_p50_us.max(f64::MIN_POSITIVE)
    )
}

fn describe_switch(report: &SwitchReport) -> String {
    let mut table = Table::new("million frames/s | typical | best | overall");
    let name = format!("{} bytes, runtime -> runtime", report.frame_bytes);
    table.row([name, number(report.mpps), number(report.mpps_best), number(report.mpps_overall)]);
    let mut echo = Table::new("round trip, us | p50 | p99 | p99.9");
    let mut row = |name: &str, latencies: [f64; 3]| {
        echo.row([name.to_owned()].into_iter().chain(latencies.map(number)));
    };
    row(
        "UDP echo, port -> user thread -> port",
        [report.echo_p50_us, report.echo_p99_us, report.echo_p999_us],
    );
    row(
        "  by a bare kthread, without socket",
        [report.raw_echo_p50_us, report.raw_echo_p99_us, report.raw_echo_p999_us],
    );
    format!(
        "{table}\n{echo}\nfirewall, ns a packet: {} by 1 rule, {} by 10, {} by 100\n\n{} windows of 1 ms; {} were cut by stalls of the machine and count in `overall` only\n",
        number(report.firewall_1_ns),
        number(report.firewall_10_ns),
        number(report.firewall_100_ns),
        report.windows,
        report.windows_cut
    )
}

/// Writes the report's keys, with the machine and the commit beside them.
fn write(path: &Path, machine: &Machine, mut document: Value) -> anyhow::Result<()> {
    document["machine"] = serde_json::to_value(machine)?;
    document["commit"] = commit().into();
    std::fs::write(path, serde_json::to_string_pretty(&document)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the median of each number over the rounds that have it.
///
/// # Errors
/// If there is no round, or no round has a number that must be there.
fn medians<R: Serialize + DeserializeOwned>(rounds: &[R]) -> anyhow::Result<R> {
    let rounds: Result<Vec<Value>, _> = rounds.iter().map(serde_json::to_value).collect();
    let merged = merge(&rounds?).context("nothing was measured")?;
    Ok(serde_json::from_value(merged.median)?)
}

/// Returns the value below which this part of the values lies; NaN without values.
pub fn quantile(values: impl IntoIterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Returns the upper of the middle two values, or the middle one; NaN without values.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// Returns the median of the values that there are.
fn median_of_some(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    Some(median(values.into_iter().flatten())).filter(|median| !median.is_nan())
}

/// Returns the median of a figure over the rounds that have it; NaN if none does.
fn median_of(rounds: &[Value], key: &str) -> f64 {
    median(rounds.iter().filter_map(|round| round[key].as_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|part| quantile(values, part)), [1.0, 3.0, 4.0, 4.0]);
        assert!(median([]).is_nan());
        assert_eq!(median_of_some([Some(3.0), None, Some(1.0), Some(2.0)]), Some(2.0));
        assert_eq!(median_of_some([None]), None);
        let rounds = [serde_json::json!({"ns": 5}), serde_json::json!({}), serde_json::json!({"ns": 7})];
        assert_eq!(median_of(&rounds, "ns"), 7.0);
    }
}
