//! The highest load of the bimodal mixture at which short requests stay within a limit, without
//! preemption and with it: the spin server, and the simulator's prediction.
//!
//! Owns the limit. The prediction is that of the same policy, with the cost of a request that was
//! measured here.

use serde::Serialize;
use tailwater_sim::costs::Costs;
use tailwater_sim::measure::Budget;
use tailwater_sim::mix::Mix;
use tailwater_sim::scenario::Scenario;
use tailwater_testbed::program::Program;
use tailwater_testbed::table::Table;
use tailwater_workload::ArrivalProcess;

use super::bed::{Bench, Load, SEED};
use super::search::{Loads, Server, Simulated, search, step_seconds};
use super::service::{BIMODAL, saturated};
use super::{PLAIN, PREEMPTIVE};

/// Limit of the 99th percentile of the short class.
pub const SLO_US: f64 = 50.0;

/// Highest loads within the limit.
#[derive(Debug, Serialize)]
pub struct Bimodal {
    slo_us: f64,
    #[serde(flatten)]
    measured: Loads,
    #[serde(flatten)]
    simulated: Simulated,
}

/// Searches the highest loads.
pub fn run(rounds: u16, bench: &Bench) -> anyhow::Result<Bimodal> {
    let packet_ns = saturated(rounds, bench)?.packet_ns();
    let servers = [bench.spin(BIMODAL, Some(PLAIN))?, bench.spin(BIMODAL, Some(PREEMPTIVE))?];
    Ok(Bimodal {
        slo_us: SLO_US,
        measured: search_servers(rounds, bench, &servers)?,
        simulated: simulate(packet_ns)?,
    })
}

/// Searches the highest loads at which the 99th percentile of the first class is within the limit,
/// with nothing lost, of a server without preemption and one with it.
pub fn search_servers(rounds: u16, bench: &Bench, servers: &[Program; 2]) -> anyhow::Result<Loads> {
    search(rounds, |server, rps| {
        let load = Load { by_class: true, ..Load::new(rps, step_seconds(rps)) };
        let point = bench.point(&servers[server as usize], load)?;
        Ok(point.first_class_us(0.99) <= SLO_US && point.figures.lost == 0)
    })
}

/// Returns the highest loads within the limit that the simulator finds on one core, where a request
/// costs `packet_ns` beside its work.
fn simulate(packet_ns: u64) -> anyhow::Result<Simulated> {
    let mix = Mix::parse(BIMODAL)?;
    Simulated::search(|server, rps| {
        let policy = if server == Server::Plain { PLAIN } else { PREEMPTIVE };
        let scenario = Scenario {
            cores: 1,
            mix: mix.clone(),
            arrivals: ArrivalProcess::Poisson,
            load: rps * mix.mean_ns() / 1e9,
            connections: None,
            policy: policy.parse()?,
            costs: Costs { packet_ns, ..Costs::ideal() },
            budget: Budget { warmup: 10_000, requests: 200_000, batches: 10 },
            seed: SEED,
        };
        let measured = scenario.run_once(0)?;
        // The short requests' 99th percentile, the third of the quantiles.
        let p99 = measured.class_latency[0].quantile(2).value;
        Ok(!measured.saturated && p99 <= SLO_US * 1e3)
    })
}

impl Bimodal {
    /// Returns the table of the figures.
    pub fn describe(&self) -> String {
        let mut table = Table::new(
            "spin server, 99.5 % of 0.5 us, 0.5 % of 500 us: per second with p99 of the short within 50 us | \
             without preemption | quantum of 5 us | ratio",
        );
        self.measured.add_to(&mut table, "measured");
        self.simulated.add_to(&mut table, "simulated");
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_predicts_a_multiple_with_preemption() {
        let found = simulate(500).unwrap();
        let (plain, preemptive) =
            (found.simulated_no_preempt_rps.unwrap(), found.simulated_preempt_rps.unwrap());
        assert!(preemptive > 20.0 * plain, "{plain} {preemptive}");
    }
}
