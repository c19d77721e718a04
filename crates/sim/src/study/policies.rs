//! Dispatch policies compared over load: latency and slowdown for each policy and load.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tailwater_workload::ArrivalProcess;

use super::Effort;
use crate::costs::Costs;
use crate::measure::Measured;
use crate::mix::Mix;
use crate::notation::{parse_loads, parse_policies};
use crate::report::{percent, us, us_with_error};
use crate::scenario::{Scenario, run_all};
use crate::stats::Estimate;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// The comparison's parameters. Every field has a default, so a scenario file states only the
/// differences.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyStudy {
    /// Policies in [`notation`](crate::notation).
    pub policies: String,
    /// Service-time distribution; ignored when `class` lists classes.
    pub service: String,
    /// Request classes, each with its own share, distribution and SLO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Mix>,
    /// Worker cores.
    pub cores: usize,
    /// Loads in [`notation`](crate::notation).
    pub loads: String,
    /// Arrival process.
    pub arrivals: ArrivalProcess,
    /// Cost profile: a built-in name or a file.
    pub costs: String,
    /// Flows the requests come by; absent for unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// The amount to run.
    pub effort: Effort,
}

impl Default for PolicyStudy {
    fn default() -> Self {
        Self {
            policies: "d-fcfs,c-fcfs,steal,ps:1us,sq:5us".to_owned(),
            service: "exp:10us".to_owned(),
            class: None,
            cores: 16,
            loads: "0.1..0.9/9".to_owned(),
            arrivals: ArrivalProcess::Poisson,
            costs: "ideal".to_owned(),
            connections: None,
            effort: Effort::default(),
        }
    }
}

/// One policy at one load.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyRow {
    /// Policy in notation.
    pub policy: String,
    /// Offered work as a fraction of the cores.
    pub load: f64,
    /// Offered requests per second.
    pub offered_rps: f64,
    /// Completed requests per second of virtual time.
    pub achieved_rps: f64,
    /// True if the backlog grew past the limit: there is no steady state.
    pub saturated: bool,
    /// Mean latency.
    pub mean_ns: Estimate,
    /// Percentiles of latency: p50, p90, p99, p99.9.
    pub latency_ns: [Estimate; 4],
    /// The same of slowdown.
    pub slowdown: [Estimate; 4],
    /// p99 latency per class; empty for a single class.
    pub class_p99_ns: Vec<Estimate>,
    /// Core time spent on requests' own work, as a fraction of all.
    pub busy: f64,
    /// Core time spent on costs.
    pub overhead: f64,
    /// Preemptions per request.
    pub preemptions: f64,
    /// Steals per request.
    pub steals: f64,
    /// Simulated events.
    pub events: u64,
}

impl PolicyStudy {
    /// Returns the request classes.
    ///
    /// # Errors
    ///
    /// If the service time cannot be read.
    pub fn mix(&self) -> anyhow::Result<Mix> {
        self.class.clone().map_or_else(|| Mix::parse(&self.service), Ok)
    }

    /// Returns all points: every policy at every load.
    ///
    /// # Errors
    ///
    /// If a field does not make sense; the message says which and what to write.
    pub fn points(&self) -> anyhow::Result<Vec<(String, Scenario)>> {
        ensure!((1..=4096).contains(&self.cores), "{} cores: a simulated machine has 1 to 4096", self.cores);
        let (mix, costs) = (self.mix()?, Costs::load(&self.costs)?);
        let loads = parse_loads(&self.loads)?;
        let mut points = Vec::new();
        for (name, policy) in parse_policies(&self.policies)? {
            for &load in &loads {
                let scenario = Scenario {
                    cores: self.cores,
                    mix: mix.clone(),
                    arrivals: self.arrivals,
                    load,
                    connections: self.connections,
                    policy,
                    costs: costs.clone(),
                    budget: self.effort.budget(),
                    seed: self.effort.seed,
                };
                points.push((name.clone(), scenario));
            }
        }
        Ok(points)
    }

    /// Runs the study.
    ///
    /// # Errors
    ///
    /// As [`PolicyStudy::points`].
    pub fn run(&self, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<PolicyRow>> {
        let points = self.points()?;
        let scenarios: Vec<Scenario> = points.iter().map(|(_, s)| s.clone()).collect();
        let results = run_all(&scenarios, self.effort.replications, self.effort.threads(), tick)?;
        points.iter().zip(&results).map(|((name, s), m)| row(name, s, m)).collect()
    }
}

fn row(name: &str, scenario: &Scenario, m: &Measured) -> anyhow::Result<PolicyRow> {
    let spent = &m.spent;
    let per_request = |n: u64| n as f64 / spent.completed.max(1) as f64;
    let of_cores = |ns: u64| ns as f64 / spent.core_ns.max(1) as f64;
    Ok(PolicyRow {
        policy: name.to_owned(),
        load: scenario.load,
        offered_rps: scenario.rate()?.per_second(),
        achieved_rps: spent.completed as f64 * 1e9 / spent.elapsed_ns.max(1) as f64,
        saturated: m.saturated,
        mean_ns: m.latency.mean(),
        latency_ns: [0, 1, 2, 3].map(|i| m.latency.quantile(i)),
        slowdown: [0, 1, 2, 3].map(|i| m.slowdown(i)),
        class_p99_ns: m.class_latency.iter().map(|s| s.quantile(2)).collect(),
        busy: of_cores(spent.busy_ns),
        overhead: of_cores(spent.overhead_ns),
        preemptions: per_request(spent.preemptions),
        steals: per_request(spent.steals),
        events: spent.events,
    })
}

/// Returns the rows as a table, with the width of each 99 % interval beside p99.
#[must_use]
pub fn table(rows: &[PolicyRow], mix: &Mix) -> Table {
    let mut head =
        "policy | load | Mrps | p50 us | p99 us | p99.9 us | p99 slowdown | busy | overhead".to_owned();
    if let several @ [_, _, ..] = mix.classes() {
        head.extend(several.iter().map(|c| format!(" | p99 {} us", c.name)));
    }
    let mut table = Table::new(&head);
    for r in rows {
        let mut cells = vec![r.policy.clone(), percent(r.load), format!("{:.3}", r.achieved_rps / 1e6)];
        if r.saturated {
            cells.extend(std::iter::repeat_n("saturated".to_owned(), 4));
        } else {
            cells.push(us(r.latency_ns[0].value));
            cells.push(us_with_error(&r.latency_ns[2]));
            cells.push(us(r.latency_ns[3].value));
            cells.push(format!("{:.1}", r.slowdown[2].value));
        }
        cells.extend([percent(r.busy), percent(r.overhead)]);
        let class = |e: &Estimate| if r.saturated { "saturated".to_owned() } else { us(e.value) };
        cells.extend(r.class_p99_ns.iter().map(class));
        table.row(cells);
    }
    table
}

/// Returns the rows as plain numbers, for CSV.
#[must_use]
pub fn csv(rows: &[PolicyRow]) -> Table {
    let mut table = Table::new(
        "policy | load | offered_rps | achieved_rps | saturated | mean_ns | p50_ns | p90_ns | \
         p99_ns | p99_error_ns | p999_ns | slowdown_p50 | slowdown_p99 | slowdown_p999 | busy | \
         overhead | preemptions | steals",
    );
    for r in rows {
        let [p50, p90, p99, p999] = r.latency_ns;
        let numbers = [
            r.mean_ns.value,
            p50.value,
            p90.value,
            p99.value,
            p99.error,
            p999.value,
            r.slowdown[0].value,
            r.slowdown[2].value,
            r.slowdown[3].value,
            r.busy,
            r.overhead,
            r.preemptions,
            r.steals,
        ];
        let mut cells = vec![r.policy.clone(), r.load.to_string(), r.offered_rps.to_string()];
        cells.extend([r.achieved_rps.to_string(), r.saturated.to_string()]);
        cells.extend(numbers.iter().map(ToString::to_string));
        table.row(cells);
    }
    table
}

/// Returns one curve per policy of a figure over load; leaves saturated points out.
#[must_use]
pub fn curves(rows: &[PolicyRow], figure: impl Fn(&PolicyRow) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for r in rows {
        if lines.last().is_none_or(|l| l.name != r.policy) {
            lines.push(Line::new(r.policy.clone(), Vec::new()));
        }
        if let (Some(line), false) = (lines.last_mut(), r.saturated) {
            line.points.push((r.load * 100.0, figure(r)));
        }
    }
    lines
}

/// Tail latency and tail slowdown over load.
#[must_use]
pub fn panels(rows: &[PolicyRow]) -> Vec<Panel> {
    let panel = |title: &str, y_label: &str, lines| {
        Panel::new(title, "load (% of all cores)", y_label, lines).log_y()
    };
    vec![
        panel("Latency", "p99 latency (us)", curves(rows, |r| r.latency_ns[2].value / 1e3)),
        panel("Slowdown", "p99 slowdown", curves(rows, |r| r.slowdown[2].value)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_file_states_only_what_differs_and_unknown_keys_are_refused() {
        let study: PolicyStudy = toml::from_str("cores = 2\nloads = '0.5'\n[effort]\nseed = 9\n").unwrap();
        assert_eq!((study.cores, study.effort.seed, study.effort.requests), (2, 9, 200_000));
        let error = toml::from_str::<PolicyStudy>("corse = 2").unwrap_err().to_string();
        assert!(error.contains("corse"), "{error}");
    }

    #[test]
    fn classes_of_a_scenario_file_reach_the_table() {
        let text = "
            policies = 'mq:5us c-fcfs'
            loads = '0.5'
            cores = 4
            effort = { requests = 2000, replications = 1 }
            class = [
                { name = 'get', share = 0.9, service = 'const:1us', slo_ns = 10000 },
                { name = 'scan', share = 0.1, service = 'exp:50us' },
            ]";
        let study: PolicyStudy = toml::from_str(text).unwrap();
        let rows = study.run(&|| ()).unwrap();
        let shown = table(&rows, &study.mix().unwrap()).to_string();
        assert!(shown.contains("p99 get us") && shown.contains("c-fcfs"), "{shown}");
        assert!(
            rows[0].class_p99_ns[0].value < rows[1].class_p99_ns[0].value,
            "the queue per class protects gets"
        );
        assert_eq!(csv(&rows).to_csv().lines().count(), 3);
    }
}
