//! Systems compared over load: each is a dispatch policy on a number of workers.
//!
//! Owns the runs of a workload's systems and the figures read off their curves. Loads are fractions
//! of the same number of cores for all systems, so that one with fewer workers has fewer to carry
//! them.

use super::Options;
use crate::mix::Mix;
use crate::study::Effort;
use crate::study::policies::{PolicyRow, PolicyStudy};
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// Hyperthreads of the server that Shinjuku's paper uses, and those that Shinjuku leaves to
/// workers: network and dispatcher take two.
pub(super) const CORES: usize = 16;
pub(super) const WORKERS: usize = 14;
/// Flows of the paper's load generator.
pub(super) const FLOWS: u32 = 1920;
/// The costs of the papers' machines.
pub(super) const PAPERS_COSTS: &str = "paper-2019";

/// A system: its name in the legend, its policy in notation, its workers.
#[derive(Clone, Copy)]
pub(super) struct System {
    pub name: &'static str,
    pub policy: &'static str,
    pub workers: usize,
}

/// What the systems serve.
pub(super) struct Workload<'a> {
    /// Name in tables.
    pub name: &'a str,
    pub classes: Mix,
    pub costs: &'a str,
    /// Loads are fractions of this number of cores.
    pub cores: usize,
    pub loads: &'a [f64],
    pub effort: Effort,
}

impl Workload<'_> {
    /// Runs every system at every load.
    pub fn run(&self, systems: &[System], tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<Curve>> {
        let each = |system: &System| Ok(Curve { name: system.name, rows: self.rows(system, tick)? });
        systems.iter().map(each).collect()
    }

    fn rows(&self, system: &System, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<PolicyRow>> {
        let scale = self.cores as f64 / system.workers as f64;
        let loads: Vec<String> = self.loads.iter().map(|load| (load * scale).to_string()).collect();
        let study = PolicyStudy {
            policies: system.policy.to_owned(),
            class: Some(self.classes.clone()),
            cores: system.workers,
            loads: loads.join(","),
            costs: self.costs.to_owned(),
            connections: Some(FLOWS),
            effort: self.effort,
            ..PolicyStudy::default()
        };
        let mut rows = study.run(tick)?;
        rows.iter_mut().zip(self.loads).for_each(|(row, &load)| row.load = load);
        Ok(rows)
    }

    /// Appends a row for each point.
    pub fn push(&self, table: &mut Table, curves: &[Curve]) {
        for curve in curves {
            for row in &curve.rows {
                let mut cells = vec![self.name.to_owned(), curve.name.to_owned(), row.load.to_string()];
                cells.extend([row.offered_rps, row.achieved_rps].map(|rate| format!("{rate:.0}")));
                let us = |ns: f64| format!("{:.3}", ns / 1e3);
                cells.push(us(row.latency_ns[2].value));
                let by_class =
                    |class: usize| row.class_p99_ns.get(class).map_or(String::new(), |p| us(p.value));
                cells.extend([by_class(0), by_class(1)]);
                cells.extend([format!("{:.3}", row.slowdown[2].value), row.saturated.to_string()]);
                table.row(cells);
            }
        }
    }
}

/// Columns of [`Workload::push`].
pub(super) const COLUMNS: &str = "workload | system | load | offered_rps | achieved_rps | p99_us | class0_p99_us | \
     class1_p99_us | p99_slowdown | saturated";

/// One system under one workload.
pub(super) struct Curve {
    pub name: &'static str,
    pub rows: Vec<PolicyRow>,
}

impl Curve {
    /// Returns a figure at a load; infinite without a steady state.
    pub fn at(&self, load: f64, of: impl Fn(&PolicyRow) -> f64) -> f64 {
        let row = self.rows.iter().find(|row| (row.load - load).abs() < 1e-9);
        row.filter(|row| !row.saturated).map_or(f64::INFINITY, of)
    }

    /// Returns the highest throughput of those tried at which a figure is within a limit, in
    /// requests per second; 0 if there is none.
    pub fn within(&self, limit: f64, of: impl Fn(&PolicyRow) -> f64) -> f64 {
        let kept = |row: &&PolicyRow| !row.saturated && of(row) <= limit;
        self.rows.iter().filter(kept).map(|row| row.achieved_rps).fold(0.0, f64::max)
    }

    fn line(&self, of: fn(&PolicyRow) -> f64) -> Line {
        let steady = self.rows.iter().filter(|row| !row.saturated);
        Line::new(self.name, steady.map(|row| (row.offered_rps / 1e3, of(row))).collect())
    }
}

/// The p99 of slowdown.
pub(super) fn slowdown(row: &PolicyRow) -> f64 {
    row.slowdown[2].value
}

/// Draws a figure of all curves over throughput.
pub(super) fn panel(
    title: &str,
    y_label: &str,
    range: (f64, f64),
    curves: &[Curve],
    of: fn(&PolicyRow) -> f64,
) -> Panel {
    Panel::new(title, "thousand requests/s", y_label, curves.iter().map(|curve| curve.line(of)).collect())
        .log_y()
        .within(range)
}

/// Returns the effort of a figure whose requests are preempted many times each: a quarter of the
/// requests of others.
pub(super) fn preempted_effort(options: &Options) -> Effort {
    let Options { quick, seed, threads } = *options;
    let (requests, replications) = if quick { (6_000, 1) } else { (100_000, 4) };
    Effort { requests, replications, seed, threads }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::stats::Estimate;

    /// Returns a row with these figures for everything.
    pub fn row(load: f64, slowdown: f64, rps: f64) -> PolicyRow {
        let of = |value| Estimate { value, error: 0.0 };
        PolicyRow {
            policy: String::new(),
            load,
            offered_rps: rps,
            achieved_rps: rps,
            saturated: false,
            mean_ns: of(0.0),
            latency_ns: [of(0.0); 4],
            slowdown: [of(slowdown); 4],
            class_p99_ns: Vec::new(),
            busy: 0.0,
            overhead: 0.0,
            preemptions: 0.0,
            steals: 0.0,
            events: 0,
        }
    }

    #[test]
    fn figures_of_a_saturated_load_are_infinite_and_never_within_a_limit() {
        let mut rows = vec![row(0.1, 2.0, 1e5), row(0.5, 3.0, 5e5), row(0.9, 1.0, 9e5)];
        rows[2].saturated = true;
        let curve = Curve { name: "c", rows };
        assert_eq!((curve.at(0.5, slowdown), curve.at(0.9, slowdown)), (3.0, f64::INFINITY));
        assert_eq!((curve.within(3.0, slowdown), curve.within(2.5, slowdown)), (5e5, 1e5));
        assert_eq!(curve.within(0.5, slowdown), 0.0);
    }

    #[test]
    fn loads_are_fractions_of_the_same_cores_for_all_systems() {
        let workload = Workload {
            name: "w",
            classes: Mix::parse("const:1us").unwrap(),
            costs: "ideal",
            cores: 16,
            loads: &[0.5],
            effort: Effort { requests: 500, replications: 1, ..Effort::default() },
        };
        let systems =
            [("all", 16), ("fewer", 14)].map(|(name, workers)| System { name, policy: "c-fcfs", workers });
        let curves = workload.run(&systems, &|| ()).unwrap();
        for curve in &curves {
            assert!((curve.rows[0].offered_rps - 8e6).abs() < 1.0 && curve.rows[0].load == 0.5);
        }
        let mut table = Table::new(COLUMNS);
        workload.push(&mut table, &curves);
        assert_eq!(table.rows().len(), 2);
    }
}
