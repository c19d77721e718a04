//! `tailwater-lab bench energy`: processor time of IOKernel and service together by load, sleeping
//! as they do by default and polling always.
//!
//! Owns the loads, the bars and the report. Idle time is what a core has for other programs, or
//! halts in; power counters are not needed. IOKernel and generator are one thread of this process,
//! so the time that a client's machine would spend is in the figure.
//!
//! Sleeping is measured twice. *Announced*: the generator's port states when its next request is
//! due, as timers of programs are known, and the polling thread wakes before it. *Unannounced*
//! ([`unannounced`](tailwater_testbed::unannounced)): it does not, as no network card does, and the
//! request wakes the polling thread.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tailwater_batch::proc::Stat;
use tailwater_loadgen::protocol::Medium;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::Service;
use tailwater_testbed::embedded::lending;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::port::{self, GENERATOR_IP};
use tailwater_testbed::program::Program;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::unannounced::Unannounced;

use super::medians;
use super::spin::{self, Target};

/// Loads as fractions of the managed cores, each with the largest fraction of all cores that it may
/// keep busy. Under the last one queues grow without bound, so its latency is not judged.
const LOADS: [(f64, f64); 5] = [(0.0, 0.01), (0.01, 0.08), (0.1, 0.3), (0.5, 0.75), (FULL, 1.0)];
const FULL: f64 = 1.0;
/// Bar: the p99, as a multiple of that of always polling.
const MOST_P99: f64 = 1.5;
/// The work of a request, and how many of them one core serves in a second.
const SERVICE: &str = "exp:10us";
const CORE_RPS: f64 = 100_000.0;
/// First part of each measurement, which is not counted.
const WARM_UP: Duration = Duration::from_millis(500);

/// Measure how much processor time a service takes by its load, and what sleeping costs in latency
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "busy: processor time of the IOKernel, with the clients in its port, and of the service, as a fraction
of the polling core and the managed ones. A load of 100 % keeps all managed cores busy with the work of requests
(exponential, 10 us). announced: the defaults, and the port states when its next request is due; unannounced: the
defaults, and a request comes unforeseen, as from a network card; polling: neither the IOKernel nor a kthread ever
sleeps. bar: the largest busy fraction that is accepted; met: that, and a p99 of at most 1.5 times that of
polling, which is not judged at 100 %.

Examples:
  tailwater-lab bench energy
  tailwater-lab bench energy --rounds 5 --seconds 3 --json energy.json"
)]
pub struct EnergyArgs {
    /// Rounds, each with all three ways in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Counted seconds of each load
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

/// The figures of a run: medians over the rounds.
#[derive(Debug, Serialize)]
pub struct Report {
    loads: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    load: f64,
    /// Sleeping, with requests that are announced.
    sleeping: Figures,
    /// Sleeping, with requests that are not.
    unannounced: Figures,
    polling: Figures,
    /// The bar for `busy`.
    busy_bar: f64,
    /// Whether both bars are met with announced requests; without requests, and under full load,
    /// there is no latency to judge.
    met: bool,
    met_unannounced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Figures {
    /// Fraction of all cores; `None` if this machine let the measurement begin too late.
    busy: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Sleeping,
    Unannounced,
    Polling,
}

const WAYS: [Way; 3] = [Way::Sleeping, Way::Unannounced, Way::Polling];

/// Measures, prints, and returns the figures.
pub fn run(args: &EnergyArgs, machine: &Machine) -> anyhow::Result<Report> {
    let testbed = spin::testbed(machine, Duration::ZERO)?;
    let speed = testbed.calibrate()?;
    let counted = Duration::from_secs(args.seconds);
    let mut seen = vec![[const { Vec::new() }; WAYS.len()]; LOADS.len()];
    for round in progress::over("energy", 0..args.rounds) {
        for turn in 0..WAYS.len() {
            let at = if round % 2 == 0 { turn } else { WAYS.len() - 1 - turn };
            let way = WAYS[at];
            let target = start(&testbed, speed, way)?;
            for (&(load, _), seen) in LOADS.iter().zip(&mut seen) {
                seen[at].push(measure(&target, load, counted)?);
            }
            target.end()?;
        }
    }
    let row = |(&(load, busy_bar), [sleeping, unannounced, polling]): (&_, &[Vec<Figures>; WAYS.len()])| {
        anyhow::Ok(Row::new(load, busy_bar, [medians(sleeping)?, medians(unannounced)?, medians(polling)?]))
    };
    let report = Report { loads: LOADS.iter().zip(&seen).map(row).collect::<Result<_, _>>()? };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

impl Row {
    /// Returns the row of these figures, in the order of [`WAYS`].
    fn new(load: f64, busy_bar: f64, [sleeping, unannounced, polling]: [Figures; WAYS.len()]) -> Self {
        let met = |figures: Figures| {
            let soon = match (figures.p99_us, polling.p99_us) {
                (Some(p99_us), Some(polling)) => p99_us <= MOST_P99 * polling,
                _ => load == 0.0,
            };
            (soon || load >= FULL) && figures.busy.is_some_and(|busy| busy <= busy_bar)
        };
        let (met, met_unannounced) = (met(sleeping), met(unannounced));
        Self { load, sleeping, unannounced, polling, busy_bar, met, met_unannounced }
    }
}

/// Starts an IOKernel and the service in one of the ways.
fn start(testbed: &Testbed, speed: u64, way: Way) -> anyhow::Result<Target<'_>> {
    let (mut port, generator) = port::port(Medium::Datagram, GENERATOR_IP)?;
    if let Way::Unannounced = way {
        port = Box::new(Unannounced::new(port)?);
    }
    let socket = format!("@tailwater-energy-{}", std::process::id());
    let mut config = lending(&socket, testbed.cores.polling, &testbed.cores.managed);
    let mut settings: &[_] = &[];
    if let Way::Polling = way {
        config.idle_sleep_us = 0;
        settings = &[("TAILWATER_IDLE_TIMEOUT_US", "0")];
    }
    let program = Program::spin(speed, SERVICE.parse()?);
    Target::start(testbed, program, (config, vec![port], generator), settings)
}

/// Measures at a fraction of the managed cores.
fn measure(target: &Target<'_>, load: f64, counted: Duration) -> anyhow::Result<Figures> {
    if load == 0.0 {
        let busy = busy_from(target, Instant::now() + WARM_UP, counted)?;
        return Ok(Figures { busy, p50_us: None, p99_us: None });
    }
    let rps = load * CORE_RPS * target.testbed.cores.managed.len() as f64;
    let plan = spin::plan(SERVICE, rps, WARM_UP, counted)?;
    let began = target.begin(&plan)?;
    let busy = busy_from(target, began + WARM_UP, counted)?;
    let figures = target.finish(&plan)?;
    Ok(Figures { busy, p50_us: figures.p50_us, p99_us: figures.p99_us })
}

/// Returns the fraction of all cores that is busy from `from` on, if it was observed for at least
/// half of the time.
fn busy_from(target: &Target<'_>, from: Instant, counted: Duration) -> anyhow::Result<Option<f64>> {
    let interrupt = &target.testbed.interrupt;
    interrupt.sleep_until(from)?;
    let (begin, before) = (Instant::now(), cpu_ns(&target.service)?);
    interrupt.sleep_until(from + counted)?;
    let (elapsed, after) = (begin.elapsed(), cpu_ns(&target.service)?);
    let cores = 1 + target.testbed.cores.managed.len();
    let busy = after.saturating_sub(before) as f64 / elapsed.as_nanos() as f64 / cores as f64;
    Ok((elapsed * 2 >= counted).then_some(busy))
}

/// Returns the processor time of this process and of the service.
fn cpu_ns(service: &Service) -> anyhow::Result<u64> {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let stat = Stat::of_process(service.id().cast_signed()).context("the service has ended")?;
    Ok(own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64 + stat.process_ns)
}

fn describe(report: &Report) -> String {
    let mut table = Table::new(
        "load | busy: bar | announced | unannounced | polling | p50 us: announced | \
         unannounced | polling | p99 us: announced | unannounced | polling | met | unannounced",
    );
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let busy = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), percent);
    let us = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    for Row { load, sleeping, unannounced, polling, busy_bar, met, met_unannounced } in &report.loads {
        let ways = [sleeping, unannounced, polling];
        let busy = ways.map(|way| busy(way.busy));
        let (p50, p99) = (ways.map(|way| us(way.p50_us)), ways.map(|way| us(way.p99_us)));
        let met = [met, met_unannounced].map(|met| if *met { "yes" } else { "no" }.to_owned());
        let cells = [percent(*load), percent(*busy_bar)].into_iter().chain(busy).chain(p50);
        table.row(cells.chain(p99).chain(met));
    }
    format!(
        "{table}\nBars: busy, and a p99 of at most {MOST_P99} times that of always polling, below a load of {}.\n",
        percent(FULL)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bars_must_be_met_and_lost_answers_meet_none() {
        let figures = |busy, p99_us| Figures { busy: Some(busy), p50_us: p99_us, p99_us };
        let polling = figures(1.0, Some(40.0));
        let met = |load, sleeping, polling| Row::new(load, 0.3, [sleeping, polling, polling]).met;
        let unannounced = Row::new(0.1, 0.3, [polling, figures(0.3, Some(60.0)), polling]);
        assert!(unannounced.met_unannounced && !unannounced.met, "each way for itself");
        assert!(met(FULL, figures(0.3, Some(1e6)), polling), "latency under full load is not judged");
        assert!(met(0.1, figures(0.3, Some(60.0)), polling));
        assert!(!met(0.1, figures(0.31, Some(60.0)), polling));
        assert!(!met(0.1, figures(0.3, Some(60.1)), polling));
        assert!(!met(0.1, figures(0.1, None), polling), "no request was answered");
        assert!(!met(0.1, Figures { busy: None, ..polling }, polling), "nothing was counted");
        assert!(met(0.0, figures(0.01, None), figures(1.0, None)));
    }
}
