//! The demo's scenario, simulated: one service and a batch job on one managed core, for comparison
//! with the measured run.
//!
//! Owns the parameters (exponential 10 us service, loads 10 to 90 %) and the table. The ideal
//! columns are the same queue without any overhead (M/M/1 in closed form) and the core time it
//! leaves.

use serde::Serialize;
use tailwater_sched::alloc::{Config, CongestionDetection};
use tailwater_sched::dispatch::CentralFcfs;
use tailwater_sched::topology::Topology;
use tailwater_workload::{ArrivalProcess, Rate};

use super::Effort;
use crate::costs::Costs;
use crate::machine::{Machine, Outcome, Service, Setup};
use crate::measure::{Budget, Measured};
use crate::mix::Mix;
use crate::report::{percent, us, us_with_error};
use crate::scenario::{parallel, seed_of};
use crate::source::Synthetic;
use crate::stats::Estimate;
use crate::theory;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// One load.
#[derive(Clone, Debug, Serialize)]
pub struct DemoRow {
    /// Offered work as a fraction of the core.
    pub load: f64,
    /// Latency p50, p99, p99.9.
    pub p50_ns: Estimate,
    /// Latency p99.
    pub p99_ns: Estimate,
    /// Latency p99.9.
    pub p999_ns: Estimate,
    /// Share of the core the batch job got.
    pub batch_share: f64,
    /// Share of the core spent handing it over.
    pub handoff_share: f64,
    /// Times the core changed hands, per second.
    pub handoffs_per_s: f64,
    /// True if there was no steady state.
    pub saturated: bool,
    /// The same queue without overheads: p50, p99, p99.9.
    pub ideal_ns: [f64; 3],
}

/// Simulates the demo at each load with congestion detection and the given costs. `tick` is called
/// once per load and replication.
///
/// # Errors
///
/// If a load is not above 0, or the costs are unknown.
pub fn run(
    service: &Mix,
    loads: &[f64],
    costs: &Costs,
    effort: &Effort,
    tick: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<DemoRow>> {
    let replications = effort.replications.max(1) as usize;
    let outcomes = parallel(loads.len() * replications, effort.threads(), tick, |job| {
        let seed = seed_of(effort.seed, (job % replications) as u32);
        run_once(service, loads[job / replications], costs, effort.budget(), seed)
    });
    let mut rows = Vec::new();
    for (chunk, &load) in outcomes.chunks(replications).zip(loads) {
        let all: Vec<&Outcome> = chunk
            .iter()
            .map(|o| o.as_ref().map_err(|e| anyhow::anyhow!("{e:#}")))
            .collect::<Result<_, _>>()?;
        rows.push(row(load, service.mean_ns(), &all));
    }
    Ok(rows)
}

fn run_once(service: &Mix, load: f64, costs: &Costs, budget: Budget, seed: u64) -> anyhow::Result<Outcome> {
    anyhow::ensure!(load > 0.0 && load.is_finite(), "load {load}: give a fraction of the core above 0");
    let rate = Rate::for_load(load, 1.0, service.mean_ns())?;
    let duration_ns = (budget.requests as f64 / rate.per_second() * 1e9) as u64;
    let source = Synthetic::new(ArrivalProcess::Poisson, rate, service.clone(), None, seed);
    let budget = Budget { warmup: 0, ..budget };
    let tenant = Service {
        source: Box::new(source),
        dispatch: Box::new(CentralFcfs::new(1)),
        guaranteed: 1,
        max: 1,
        estimates: false,
        measured: Measured::new(service.classes().len(), budget),
    };
    let setup = Setup {
        topology: Topology::uniform(1, 1, 1)?,
        costs,
        policy: Box::new(CongestionDetection::new(Config { seed, ..Config::default() })),
        services: vec![tenant],
        batch: true,
        park_after_ns: None,
        warmup_ns: duration_ns / 10,
        duration_ns,
        hardware: None,
        window_ns: None,
    };
    Ok(Machine::new(setup)?.run())
}

fn row(load: f64, mean_ns: f64, outcomes: &[&Outcome]) -> DemoRow {
    let mut measured = outcomes[0].services[0].measured.clone();
    for other in &outcomes[1..] {
        measured.merge(&other.services[0].measured);
    }
    let sum = |f: fn(&Outcome) -> u64| outcomes.iter().map(|o| f(o)).sum::<u64>() as f64;
    let core_ns = sum(|o| o.core_ns);
    DemoRow {
        load,
        p50_ns: measured.latency.quantile(0),
        p99_ns: measured.latency.quantile(2),
        p999_ns: measured.latency.quantile(3),
        batch_share: sum(|o| o.batch_ns) / core_ns,
        handoff_share: sum(|o| o.handoff_ns) / core_ns,
        handoffs_per_s: sum(|o| o.handoffs) / core_ns * 1e9,
        saturated: measured.saturated || load >= 1.0,
        ideal_ns: [0.5, 0.99, 0.999].map(|p| theory::mm1_latency_quantile(load.min(0.999_999), mean_ns, p)),
    }
}

/// Returns the rows as a table; the ideal columns are M/M/1, which is right for an exponential
/// service time only.
#[must_use]
pub fn table(rows: &[DemoRow]) -> Table {
    let mut table = Table::new(
        "load | p50 us | p99 us | p99.9 us | batch | hand-offs | hand-offs/s | ideal p50 | \
         ideal p99.9 | ideal batch",
    );
    for r in rows {
        let mut cells = vec![percent(r.load)];
        if r.saturated {
            cells.extend(std::iter::repeat_n("saturated".to_owned(), 3));
        } else {
            cells.extend([us(r.p50_ns.value), us(r.p99_ns.value), us_with_error(&r.p999_ns)]);
        }
        cells.extend([percent(r.batch_share), percent(r.handoff_share), format!("{:.0}", r.handoffs_per_s)]);
        cells.extend([us(r.ideal_ns[0]), us(r.ideal_ns[2]), percent(1.0 - r.load)]);
        table.row(cells);
    }
    table
}

/// Tail latency and batch share over load, beside the ideal.
#[must_use]
pub fn panels(rows: &[DemoRow]) -> Vec<Panel> {
    let line = |name: &str, figure: &dyn Fn(&DemoRow) -> f64| {
        let stable = rows.iter().filter(|r| !r.saturated);
        Line::new(name, stable.map(|r| (r.load * 100.0, figure(r))).collect())
    };
    let panel = |title: &str, y_label: &str, log_y, lines| Panel {
        log_y,
        ..Panel::new(title, "load (% of the core)", y_label, lines)
    };
    let p50 = vec![
        line("simulated", &|r| r.p50_ns.value / 1e3),
        line("no overheads", &|r| r.ideal_ns[0] / 1e3).dashed(),
    ];
    let p999 = vec![
        line("simulated", &|r| r.p999_ns.value / 1e3),
        line("no overheads", &|r| r.ideal_ns[2] / 1e3).dashed(),
    ];
    let batch = vec![
        line("simulated", &|r| r.batch_share * 100.0),
        line("no overheads", &|r| (1.0 - r.load) * 100.0).dashed(),
    ];
    vec![
        panel("Median", "p50 latency (us)", true, p50),
        panel("Tail", "p99.9 latency (us)", true, p999),
        panel("Batch job", "share of the core (%)", false, batch),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(costs: &str) -> Vec<DemoRow> {
        let effort = Effort { requests: 10_000, replications: 1, seed: 3, threads: 1 };
        let service = Mix::parse("exp:10us").unwrap();
        run(&service, &[0.3, 0.7], &Costs::load(costs).unwrap(), &effort, &|| ()).unwrap()
    }

    #[test]
    fn without_costs_the_service_sees_mm1_and_the_batch_job_gets_the_rest() {
        for r in rows("ideal") {
            assert!((r.batch_share - (1.0 - r.load)).abs() < 0.03, "{r:?}");
            assert!((r.p50_ns.value / r.ideal_ns[0] - 1.0).abs() < 0.08, "{r:?}");
        }
    }

    #[test]
    fn hand_offs_cost_the_service_latency_and_the_batch_job_time() {
        for (real, ideal) in rows("vm-2vcpu").iter().zip(rows("ideal")) {
            assert!(real.batch_share < ideal.batch_share - 0.05, "{real:?}");
            let added = real.p50_ns.value - ideal.p50_ns.value;
            assert!((1_000.0..15_000.0).contains(&added), "{added} ns more than ideal");
            assert!(real.handoffs_per_s > 1_000.0);
        }
    }
}
