//! The file that `--json` writes and `tailwater compare` reads.
//!
//! Owns its format. Each load is a point, each point has runs, each run its report and its
//! latencies by window.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater_loadgen::coordinate::fleet::AgentOutcome;
use tailwater_loadgen::search::{Bound, Found, SearchPlan, Slo, Trial, Verdict};
use tailwater_loadgen::{Measurement, Plan, Report};
use tailwater_workload::{Intervals, Rate};

use super::args::LoadArgs;
use super::session::Done;
use super::transport::Over;
use tailwater_testbed::machine::{Machine, commit};

/// Name and version of the format.
pub const FORMAT: &str = "tailwater-load 1";

/// The measurements of one command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Document {
    /// [`FORMAT`].
    pub format: String,
    /// The commit this program was built from.
    pub commit: String,
    /// The machine that ran this program, as in `tailwater doctor --json`.
    pub machine: serde_json::Value,
    /// The server's address.
    pub server: String,
    /// The protocol, as it was written.
    pub protocol: String,
    /// How requests travelled.
    #[serde(default = "kernel")]
    pub over: Over,
    /// TCP connections of each generator; 0 over UDP.
    pub connections: u32,
    /// The seed from which all others are derived.
    pub seed: u64,
    /// Number of agents; 0 when the command itself generated.
    pub agents: usize,
    /// The loads, in order.
    pub points: Vec<Point>,
    /// The outcome of a search.
    pub search: Option<SearchOutcome>,
    /// Problems outside the measurements.
    pub warnings: Vec<String>,
}

/// One load.
#[derive(Debug, Serialize, Deserialize)]
pub struct Point {
    /// Its rate or pattern as it was written; points of two files with the same name are compared.
    pub name: String,
    /// The offered load of all generators together.
    pub plan: Plan,
    /// The report of all its runs together; none before the first.
    pub report: Option<Report>,
    /// Its runs.
    pub runs: Vec<Run>,
    #[serde(skip)]
    merged: Option<Measurement>,
}

/// One run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// When its schedule started, in seconds since 1970.
    pub started_unix_s: f64,
    /// Its figures.
    pub report: Report,
    /// Its agents, if there were any.
    pub agents: Vec<AgentOutcome>,
    /// Latencies by window: values in nanoseconds, and the number of each.
    pub windows: Intervals,
}

/// The outcome of a search.
#[derive(Debug, Serialize, Deserialize)]
pub struct SearchOutcome {
    /// The limits.
    pub slo: Slo,
    /// The parameters of the search.
    pub plan: SearchPlan,
    /// The highest load within the limits.
    pub load: Option<Rate>,
    /// What bounds it.
    pub bound: Bound,
    /// The highest rate up to which every trial was within the limits.
    pub always_met_up_to: Option<Rate>,
    /// The lowest rate from which on no trial was within the limits.
    pub never_met_from: Option<Rate>,
    /// The limited latencies in the trials at that load in microseconds, one list per limit.
    pub measured_us: Vec<Vec<f64>>,
    /// The name of that load's point.
    pub point: Option<String>,
    /// All trials, in order.
    pub trials: Vec<Trial>,
}

/// Returns the transport of documents that do not name one.
fn kernel() -> Over {
    Over::Kernel
}

impl Document {
    /// Returns a document without points.
    pub fn new(args: &LoadArgs, agents: usize) -> Self {
        Self {
            format: FORMAT.to_owned(),
            commit: commit(),
            machine: serde_json::to_value(Machine::describe()).unwrap_or_default(),
            server: args.server.as_ref().map_or_else(String::new, |server| match &server.addresses[..] {
                [address] => address.to_string(),
                _ => server.authority.clone(),
            }),
            protocol: args.protocol.clone(),
            over: args.over,
            connections: if args.is_tcp() { args.connections() } else { 0 },
            seed: args.seed,
            agents,
            points: Vec::new(),
            search: None,
            warnings: Vec::new(),
        }
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read or has another format.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let head: serde_json::Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        anyhow::ensure!(
            head["format"] == FORMAT,
            "{} does not have the format `{FORMAT}`; write it with `tailwater load --json`",
            path.display()
        );
        serde_json::from_value(head).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Returns the document without points that were not measured.
    pub fn pruned(mut self) -> Self {
        self.points.retain(Point::is_measured);
        self
    }

    /// Agents that failed in any run, by address, each once.
    pub fn failed_agents(&self) -> Vec<String> {
        let runs = self.points.iter().flat_map(|point| &point.runs);
        let mut failed: Vec<String> = runs
            .flat_map(|run| &run.agents)
            .filter_map(|agent| agent.failure.as_ref().map(|problem| format!("{} ({problem})", agent.agent)))
            .collect();
        failed.sort_unstable();
        failed.dedup();
        failed
    }
}

impl Point {
    /// Returns a point without runs.
    pub fn new(name: &str, plan: &Plan) -> Self {
        Self { name: name.to_owned(), plan: plan.clone(), report: None, runs: Vec::new(), merged: None }
    }

    /// Returns whether it has a run.
    pub fn is_measured(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Returns the rate of its schedule, averaged over time.
    pub fn offered_rps(&self) -> f64 {
        self.plan.schedule.expected_arrivals() * 1e9 / self.plan.schedule.length_ns() as f64
    }

    /// Adds a run, its latencies in windows of `interval_ns`.
    pub fn add(&mut self, done: Done, interval_ns: u64) {
        let Done { measurement, seed, started, agents } = done;
        let mut report = measurement.report();
        for agent in &agents {
            if let Some(problem) = &agent.failure {
                report
                    .warnings
                    .push(format!("agent {} failed, its share is missing: {problem}", agent.agent));
            }
        }
        self.runs.push(Run {
            seed,
            started_unix_s: unix_seconds(started),
            report,
            agents,
            windows: measurement.summary.intervals().coarsened(interval_ns),
        });
        match &mut self.merged {
            None => self.merged = Some(measurement),
            Some(merged) => merged.merge(&measurement),
        }
        self.report = self.merged.as_ref().map(Measurement::report);
        let agents =
            self.runs.iter().flat_map(|run| &run.report.warnings).filter(|w| w.starts_with("agent "));
        if let Some(report) = &mut self.report {
            report.warnings.extend(agents.cloned());
        }
    }
}

impl SearchOutcome {
    /// Returns the outcome of a search that measured `points` and found `found`.
    pub fn new(slo: &Slo, plan: SearchPlan, found: Found, points: &[Point]) -> Self {
        let at_load: Vec<&Trial> =
            found.trials.iter().filter(|trial| Some(trial.rate) == found.load).collect();
        let measured = |limit: usize| -> Vec<f64> {
            at_load
                .iter()
                .filter_map(|trial| trial.judgement.measured_us.get(limit).copied().flatten())
                .collect()
        };
        let name = found.load.map(|load| load.to_string());
        Self {
            slo: slo.clone(),
            plan,
            load: found.load,
            bound: found.bound,
            always_met_up_to: found.always_met_up_to,
            never_met_from: found.never_met_from,
            measured_us: (0..slo.limits().len()).map(measured).collect(),
            point: name.filter(|name| points.iter().any(|point| point.name == *name)),
            trials: found.trials,
        }
    }

    /// Returns the number of trials at the load found that were within the limits, and number of
    /// trials there.
    pub fn votes(&self) -> (usize, usize) {
        let at_load = || self.trials.iter().filter(|trial| Some(trial.rate) == self.load);
        (at_load().filter(|trial| trial.judgement.verdict == Verdict::Met).count(), at_load().count())
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
