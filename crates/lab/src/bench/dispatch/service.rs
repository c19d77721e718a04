//! What preemption costs and is worth to the spin server with a dispatcher: requests of 1 us at
//! saturation, a mixture with a few long requests at a low load, and a batch job beside that.
//!
//! Owns the loads and the order, in which the servers alternate. The highest load within a limit is
//! [`bimodal`](super::bimodal)'s.

use serde::Serialize;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

use super::bed::{Bench, Load};
use super::{PLAIN, PREEMPTIVE};
use crate::bench::median;

/// Most requests are short, and the few long ones are most of the work (Shinjuku figure 5c).
pub const BIMODAL: &str = "bimodal:0.995*500ns+0.005*500us";
const FIXED: &str = "const:1us";
/// The quantum of the RocksDB service, Shinjuku's for it (section 4, figure 8).
pub const QUANTUM_DEFAULT_US: u64 = 15;
/// More than the server carries.
const SATURATING_RPS: f64 = 1_500_000.0;
/// 12 % of a core's time in requests of the bimodal mixture.
const LOW_RPS: f64 = 40_000.0;
const SECONDS: f64 = 1.0;

/// The figures of the server.
#[derive(Debug, Serialize)]
pub struct Server {
    pub fixed_1us_mrps: Fixed,
    /// At 12 % load, the server of `tailwater-spin` without a dispatcher.
    low_load: LowLoad,
    batch_beside: BatchBeside,
}

#[derive(Debug, Serialize)]
pub struct Fixed {
    off: f64,
    on_5us: f64,
}

#[derive(Debug, Serialize)]
struct LowLoad {
    no_quantum_us: Latencies,
    quantum_15us_us: Latencies,
    dispatch_5us_us: Latencies,
}

#[derive(Debug, Serialize)]
struct Latencies {
    p50: f64,
    p99: f64,
}

/// Trials per second of a batch job beside the server at the same load.
#[derive(Debug, Serialize)]
struct BatchBeside {
    off_trials_per_s: f64,
    on_5us_trials_per_s: f64,
    /// Median of the ratios in a round.
    ratio: f64,
}

/// Measures the server, `rounds` times each.
pub fn run(rounds: u16, bench: &Bench) -> anyhow::Result<Server> {
    let fixed_1us_mrps = saturated(rounds, bench)?;
    let low_load = low_load(rounds, bench)?;
    let batch_beside = batch_beside(rounds, bench)?;
    Ok(Server { fixed_1us_mrps, low_load, batch_beside })
}

/// Returns what the server carries of requests of 1 us, medians over interleaved rounds.
pub fn saturated(rounds: u16, bench: &Bench) -> anyhow::Result<Fixed> {
    let [off, on_5us] = in_turn(rounds, |policy| {
        let point = bench.point(&bench.spin(FIXED, Some(policy))?, Load::new(SATURATING_RPS, SECONDS))?;
        Ok(point.figures.achieved_rps / 1e6)
    })?;
    Ok(Fixed { off: median(off), on_5us: median(on_5us) })
}

impl Fixed {
    /// Returns the nanoseconds of a request beside its work, without preemption.
    pub fn packet_ns(&self) -> u64 {
        (1e3 / self.off - 1e3).max(0.0) as u64
    }
}

/// Measures the bimodal mixture at a low load: without a quantum, with one, with a dispatcher.
fn low_load(rounds: u16, bench: &Bench) -> anyhow::Result<LowLoad> {
    let variants = [(None, 0), (None, QUANTUM_DEFAULT_US), (Some(PREEMPTIVE), 0)];
    let mut figures = [const { (Vec::new(), Vec::new()) }; 3];
    for _ in progress::over("low load", 0..rounds) {
        for (&(policy, quantum_us), (p50, p99)) in variants.iter().zip(&mut figures) {
            let load = Load { quantum_us, ..Load::new(LOW_RPS, SECONDS) };
            let point = bench.point(&bench.spin(BIMODAL, policy)?, load)?;
            p50.extend(point.figures.p50_us);
            p99.push(point.quiet_us(0.99));
        }
    }
    let [no_quantum_us, quantum_15us_us, dispatch_5us_us] =
        figures.map(|(p50, p99)| Latencies { p50: median(p50), p99: median(p99) });
    Ok(LowLoad { no_quantum_us, quantum_15us_us, dispatch_5us_us })
}

/// Measures a batch job beside the server at a low load of the bimodal mixture.
fn batch_beside(rounds: u16, bench: &Bench) -> anyhow::Result<BatchBeside> {
    let [off, on] = in_turn(rounds, |policy| {
        let load = Load { batch: true, ..Load::new(LOW_RPS, SECONDS) };
        let point = bench.point(&bench.spin(BIMODAL, Some(policy))?, load)?;
        Ok(point.batch.unwrap_or(f64::NAN))
    })?;
    let ratio = median(off.iter().zip(&on).map(|(off, on)| on / off));
    Ok(BatchBeside { off_trials_per_s: median(off), on_5us_trials_per_s: median(on), ratio })
}

/// Measures both policies in each round, each first in every second one.
fn in_turn(
    rounds: u16,
    mut measure: impl FnMut(&str) -> anyhow::Result<f64>,
) -> anyhow::Result<[Vec<f64>; 2]> {
    let mut found = [Vec::new(), Vec::new()];
    for round in progress::over("two policies", 0..rounds) {
        for index in [usize::from(round % 2), usize::from(round % 2 == 0)] {
            found[index].push(measure([PLAIN, PREEMPTIVE][index])?);
        }
    }
    Ok(found)
}

/// Returns the tables of the figures.
pub fn describe(server: &Server) -> String {
    let Server { fixed_1us_mrps: fixed, low_load, batch_beside: batch } = server;
    let mut loads = Table::new("spin server, one core | without preemption | quantum of 5 us | ratio");
    loads.row([
        "requests of 1 us, million per second".to_owned(),
        number(fixed.off),
        number(fixed.on_5us),
        number(fixed.on_5us / fixed.off),
    ]);
    loads.row([
        "99.5 % of 0.5 us, 0.5 % of 500 us, 40,000 per second: trials of a batch job beside, per second"
            .to_owned(),
        number(batch.off_trials_per_s),
        number(batch.on_5us_trials_per_s),
        number(batch.ratio),
    ]);
    let mut latencies = Table::new("the same mixture, 40,000 per second | p50, us | p99, us");
    for (name, us) in [
        ("without quantum", &low_load.no_quantum_us),
        ("quantum of 15 us", &low_load.quantum_15us_us),
        ("dispatcher with a quantum of 5 us", &low_load.dispatch_5us_us),
    ] {
        latencies.row([name.to_owned(), number(us.p50), number(us.p99)]);
    }
    format!("{loads}\n{latencies}")
}
