//! Arachne (OSDI'18), figure 6: throughput when connections are not equally active.
//!
//! memcached assigns each connection to one of 16 workers for good. A growing part of the load goes
//! to the connections of one of them, at a constant total. With Arachne each request is a thread,
//! placed on one of 14 cores: here the first that is free, or, as this project's runtime has it,
//! the connection's own core, from which others steal.

use super::{Claim, Drawing, Options, Reproduction};
use crate::costs::Costs;
use crate::engine::Engine;
use crate::measure::Measured;
use crate::mix::Mix;
use crate::scenario::parallel;
use crate::source::{Incoming, Source, Synthetic};
use crate::study::Effort;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};
use tailwater_sched::dispatch::{FlowHash, PolicySpec, Setup};
use tailwater_workload::random::{stream, unit_open_closed};
use tailwater_workload::{ArrivalProcess, Prng, Rate};

/// Requests per second of the paper's experiment.
const TARGET: f64 = 1.5e6;
const SERVICE: &str = "exp:8us";
/// Parts of the load that the hot connections have; the first is an equal part.
const PARTS: [f64; 8] = [1.0 / 16.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0];

/// A system: its name, how it assigns requests, its workers.
type System = (&'static str, PolicySpec, usize);
const FIXED: usize = 0;
const SYSTEMS: [System; 3] = [
    ("a worker for each connection, 16 (memcached)", PolicySpec::DFcfs, 16),
    ("each request to a free core, 14 (Arachne)", PolicySpec::CFcfs, 14),
    ("stealing, 14 (this project's runtime)", PolicySpec::Stealing { batch: 1 }, 14),
];
/// "Not impacted": throughput stays within this part of that under equal load.
const KEPT: f64 = 0.98;
/// "Poor overall throughput": below this part of the target with 60 % of the load on one worker.
const POOR: f64 = 0.6;

/// Points of the figure, for its progress.
pub(super) const POINTS: u64 = (SYSTEMS.len() * PARTS.len()) as u64;

/// Requests of which a part has flows of the first worker; these are class 1, all others class 0.
struct Skewed {
    requests: Synthetic,
    hot: f64,
    /// The part of all hashes that belongs to the first worker.
    home: f64,
    prng: Prng,
}

impl Source for Skewed {
    fn next_request(&mut self) -> Option<Incoming> {
        let request = self.requests.next_request()?;
        let is_hot = unit_open_closed(&mut self.prng) <= self.hot;
        let within = unit_open_closed(&mut self.prng);
        let hash = if is_hot { within * self.home } else { self.home + within * (1.0 - self.home) };
        // The hash of a whole would be the next worker's.
        let hash = (hash * f64::from(u32::MAX)).floor() - if is_hot { 1.0 } else { 0.0 };
        Some(Incoming { flow: FlowHash(hash.max(0.0) as u32), class: u16::from(is_hot), ..request })
    }
}

/// One system at one part.
#[derive(Clone, Copy)]
struct Row {
    /// Requests completed per second, and those of the hot connections.
    rps: f64,
    hot_rps: f64,
}

fn run((_, policy, workers): System, hot: f64, effort: Effort) -> anyhow::Result<Row> {
    let (mix, costs) = (Mix::parse(SERVICE)?, Costs::load("paper-2019")?);
    let seed = effort.seed;
    let requests = Synthetic::new(ArrivalProcess::Poisson, Rate::new(TARGET)?, mix, None, seed);
    let source = Skewed { requests, hot, home: 1.0 / 16.0, prng: stream(seed, 3) };
    let mut policy = policy.build(&Setup { workers, classes: Vec::new(), seed })?;
    let measured = Measured::new(2, effort.budget());
    let measured = Engine::new(&mut *policy, workers, &costs, source, measured).run();
    let per_second = |count: u64| count as f64 * 1e9 / measured.spent.elapsed_ns.max(1) as f64;
    let hot_rps = measured.class_latency.get(1).map_or(0.0, |hot| per_second(hot.count()));
    Ok(Row { rps: per_second(measured.spent.completed), hot_rps })
}

pub(super) fn figure6(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    // The backlog of one worker that has all of the load must stay within the simulator's bound.
    let requests = if options.quick { 4_000 } else { 12_000 };
    let effort = Effort { requests, replications: 1, seed: options.seed, threads: options.threads };
    let rows = parallel(SYSTEMS.len() * PARTS.len(), effort.threads(), tick, |job| {
        run(SYSTEMS[job / PARTS.len()], PARTS[job % PARTS.len()], effort)
    });
    let rows = rows.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let runs: Vec<&[Row]> = rows.chunks(PARTS.len()).collect();
    Ok(Reproduction {
        title: "Arachne figure 6: a part of the load on the connections of one worker".to_owned(),
        data: data(&runs),
        drawing: Drawing::new(
            "Throughput when connections are not equally active (Arachne, figure 6)",
            &[panel(&runs)],
        ),
        claims: judge(&runs),
    })
}

fn data(runs: &[&[Row]]) -> Table {
    let mut table = Table::new("system | hot_part | requests_per_s | hot_requests_per_s");
    for ((name, ..), rows) in SYSTEMS.iter().zip(runs) {
        for (part, row) in PARTS.iter().zip(*rows) {
            let mut cells = vec![(*name).to_owned(), part.to_string()];
            cells.extend([row.rps, row.hot_rps].map(|rate| format!("{rate:.0}")));
            table.row(cells);
        }
    }
    table
}

fn panel(runs: &[&[Row]]) -> Panel {
    let line = |name: &str, rows: &[Row], of: fn(&Row) -> f64| {
        let points = PARTS.iter().zip(rows).map(|(part, row)| (100.0 * part, of(row) / 1e6));
        Line::new(name, points.collect())
    };
    let mut lines: Vec<Line> =
        SYSTEMS.iter().zip(runs).map(|((name, ..), rows)| line(name, rows, |row| row.rps)).collect();
    lines.push(line("memcached's hot worker", runs[FIXED], |row| row.hot_rps).dashed());
    Panel::new("", "load on the connections of one worker (%)", "million requests/s", lines)
        .within((0.0, 2.0))
}

fn judge(runs: &[&[Row]]) -> Vec<Claim> {
    let with_most = |rows: &[Row]| {
        let at = PARTS.iter().position(|part| *part == 0.6).unwrap_or(0);
        rows[at].rps / TARGET
    };
    let kept = |rows: &[Row]| {
        let first = rows[0].rps;
        rows.iter().map(|row| row.rps / first).fold(f64::INFINITY, f64::min)
    };
    let [_, arachne, stealing] = [0, 1, 2].map(|index| kept(runs[index]));
    let poor = with_most(runs[FIXED]);
    vec![
        Claim::new(
            "with connections assigned to workers a hot worker is overloaded while others idle, and throughput is poor",
            format!("{:.0} % of the target with 60 % of the load on one worker", 100.0 * poor),
            poor < POOR,
        ),
        Claim::new(
            "balanced by request, throughput is not impacted by the skew",
            format!(
                "at least {:.1} % of that without skew; with stealing {:.1} %",
                100.0 * arachne,
                100.0 * stealing
            ),
            arachne >= KEPT,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_part_goes_to_the_first_worker() {
        let requests = Synthetic::new(
            ArrivalProcess::Poisson,
            Rate::new(1e6).unwrap(),
            Mix::parse("const:1us").unwrap(),
            None,
            1,
        );
        let mut source = Skewed { requests, hot: 0.3, home: 1.0 / 16.0, prng: stream(1, 3) };
        let mut hot = 0;
        for _ in 0..20_000 {
            let request = source.next_request().unwrap();
            assert_eq!(request.flow.home(16).0 == 0, request.class == 1, "{request:?}");
            hot += i32::from(request.class);
        }
        assert!((5_700..6_300).contains(&hot), "{hot}");
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let rows = |rps: [f64; 8]| rps.map(|rps| Row { rps, hot_rps: 0.0 });
        let holds = |fixed: [f64; 8], arachne: [f64; 8]| -> Vec<bool> {
            let (fixed, arachne) = (rows(fixed), rows(arachne));
            judge(&[&fixed, &arachne, &arachne]).iter().map(|claim| claim.holds).collect()
        };
        let (all, most) = ([1.5e6; 8], [1.5e6, 1.5e6, 1.4e6, 1.3e6, 1.0e6, 0.7e6, 0.4e6, 0.1e6]);
        assert_eq!(holds(most, all), [true, true]);
        assert_eq!(holds(all, most), [false, false]);
    }

    #[test]
    fn a_worker_that_has_all_of_the_load_bounds_it_and_stealing_does_not() {
        let effort = Effort { requests: 2_000, replications: 1, ..Effort::default() };
        let [fixed, _, stealing] = SYSTEMS.map(|system| run(system, 1.0, effort).unwrap());
        assert!((0.1e6..0.14e6).contains(&fixed.rps) && fixed.hot_rps == fixed.rps, "{}", fixed.rps);
        assert!(stealing.rps > 1.4e6, "{}", stealing.rps);
    }
}
