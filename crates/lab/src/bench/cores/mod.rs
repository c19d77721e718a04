//! `tailwater-lab bench cores`: how soon new threads run, by where they are placed at their
//! creation; and how soon a background thread gives way.
//!
//! Owns the rounds and the report. The measured process is this program on its own OS threads
//! ([`child`]): two kthreads, which both have a CPU on the smallest machine. The placements take
//! turns; each figure is the median over the rounds. The background has one kthread.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::table::{Table, number};

mod child;

use super::median;
pub use child::{ChildArgs, run as run_child};
use child::{Load, Way};

/// Kthreads of the measured process.
const KTHREADS: u16 = 2;

/// Measure how soon new threads run, by where they are placed, and background threads give way
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "bursts: one thread creates 16 threads of 2 us each, all together, then waits for them.
skew: the same while another thread computes all the time on one of the two kthreads.
start_us: from before a thread's creation to its first instruction; create_ns: the creator's time
for one thread.
background_switch_ns: from the last loop of a background thread to the first instruction of the
ordinary thread, woken by a timer on the same kthread, to which it gives way.

Examples:
  tailwater-lab bench cores
  tailwater-lab bench cores --rounds 11 --json cores.json"
)]
pub struct CoresArgs {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    creation: Vec<Row>,
    background_switch_ns: f64,
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
///
/// # Errors
/// If a process does not start, or on a signal.
pub fn run(args: &CoresArgs) -> anyhow::Result<Report> {
    let interrupt = Interrupt::catch()?;
    let cases: Vec<(Load, Way)> =
        Load::ALL.into_iter().flat_map(|load| Way::ALL.map(|way| (load, way))).collect();
    let (mut figures, mut switches) = (vec![Vec::new(); cases.len()], Vec::new());
    for _ in 0..args.rounds {
        for (&(load, way), figures) in cases.iter().zip(&mut figures) {
            figures.push(measure(load, Some(way), KTHREADS, &interrupt)?);
        }
        switches.push(measure(Load::Background, None, 1, &interrupt)?);
    }
    let row = |(&(load, placement), figures): (&(Load, Way), &Vec<Value>)| {
        let of = |key| median(figures, key);
        let start_us = Quantiles { p50: of("p50_us"), p99: of("p99_us") };
        Row { load, placement, start_us, create_ns: of("create_ns") }
    };
    let report = Report {
        creation: cases.iter().zip(&figures).map(row).collect(),
        background_switch_ns: median(&switches, "switch_ns"),
    };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// Runs a child; returns its figures.
fn measure(load: Load, way: Option<Way>, kthreads: u16, interrupt: &Interrupt) -> anyhow::Result<Value> {
    let settings = vec![("TAILWATER_NAME", "cores".to_owned()), ("TAILWATER_KTHREADS", kthreads.to_string())];
    let arguments = core::iter::once(load.as_str()).chain(way.map(Way::as_str)).map(str::to_owned).collect();
    let spec = Spec { app: "cores", arguments, settings, ..Spec::default() };
    let line = ChildProcess::start(&spec)?.read_line(interrupt)?;
    serde_json::from_str(&line).with_context(|| format!("the child printed {line:?}, no figures"))
}

fn describe(report: &Report) -> String {
    let mut table = Table::new(["threads created", "placed", "start p50, us", "p99", "creator, ns each"]);
    for Row { load, placement, start_us, create_ns } in &report.creation {
        let figures = [start_us.p50, start_us.p99, *create_ns].map(number);
        table.row([load.as_str().to_owned(), placement.as_str().to_owned()].into_iter().chain(figures));
    }
    format!("{table}\na background thread gives way in {} ns\n", number(report.background_switch_ns))
}
