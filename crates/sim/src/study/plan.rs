//! Capacity planning: for a service's workload and SLO, the policy, the number of cores, and what
//! is left for batch work.
//!
//! Owns the search, which [`fleet`](super::fleet) uses, too. For each dispatch policy it finds the
//! fewest cores that meet the SLO (latency falls with cores, so halving works), then computes what
//! a batch job gets on the whole machine: the cores left over if the service's are set aside for
//! it, and the core time left over if cores are lent by congestion detection with those cores as
//! the limit. The workload is a rate and a distribution, or a recorded trace of arrivals and
//! service times.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tailwater_sched::alloc::{Config, CongestionDetection};
use tailwater_sched::dispatch::{CentralFcfs, PolicySpec};
use tailwater_sched::topology::Topology;
use tailwater_workload::units::parse_duration_ns;
use tailwater_workload::{ArrivalProcess, Rate, ServiceTime};

use super::Effort;
use crate::costs::Costs;
use crate::machine::{Machine, Service, Setup};
use crate::measure::{Budget, Measured};
use crate::mix::{Class, Mix};
use crate::notation::parse_policies;
use crate::report::{percent, us};
use crate::scenario::{Scenario, parallel, run_all};
use crate::source::{Incoming, Recorded, Source, Synthetic, parse_trace};
use tailwater_plot::table::Table;
use tailwater_plot::{Bar, Panel};

/// The question's parameters. Every field has a default, so a scenario file states only the
/// differences.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanStudy {
    /// Service-time distribution; ignored when `class` lists classes or a trace is given.
    pub service: String,
    /// Request classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Mix>,
    /// Offered requests per second.
    pub rate: Rate,
    /// A recorded trace instead: CSV of arrival_ns, service_ns and optionally class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// The objective, as in `p99.9<100us`; p50, p90, p99 or p99.9.
    pub slo: String,
    /// Managed cores of the machine.
    pub cores: usize,
    /// Policies to consider.
    pub policies: String,
    /// Arrival process.
    pub arrivals: ArrivalProcess,
    /// Cost profile.
    pub costs: String,
    /// Flows; absent for unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// The amount to run per candidate.
    pub effort: Effort,
}

impl Default for PlanStudy {
    fn default() -> Self {
        Self {
            service: "exp:10us".to_owned(),
            class: None,
            rate: Rate::for_load(1.0, 8.0, 10_000.0).unwrap_or(Rate::ZERO),
            trace: None,
            slo: "p99.9<100us".to_owned(),
            cores: 16,
            policies: "d-fcfs,steal,c-fcfs,sq:5us,mq:5us,reserved".to_owned(),
            arrivals: ArrivalProcess::Poisson,
            costs: "paper-2019".to_owned(),
            connections: None,
            effort: Effort { requests: 200_000, replications: 2, ..Effort::default() },
        }
    }
}

/// A latency objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slo {
    /// Position in [`QUANTILES`](crate::measure::QUANTILES).
    pub(super) quantile: usize,
    pub(super) limit_ns: u64,
}

pub(super) fn parse_slo(text: &str) -> anyhow::Result<Slo> {
    let help = || format!("SLO `{text}`: write p50, p90, p99 or p99.9, then < and a time, as in p99.9<100us");
    // With `=`, limits of `tailwater load`.
    let (quantile, limit) = text.split_once(['<', '=']).with_context(help)?;
    let quantile = match quantile.trim() {
        "p50" => 0,
        "p90" => 1,
        "p99" => 2,
        "p99.9" => 3,
        _ => bail!(help()),
    };
    let limit_ns = parse_duration_ns(limit.trim()).with_context(help)?;
    ensure!(limit_ns > 0, help());
    Ok(Slo { quantile, limit_ns })
}

/// Returns the fewest cores above `floor`, of at most `most`, whose result meets the objective, and
/// that result; without any, the result of `most`. More cores must never be worse.
pub(super) fn fewest<T>(
    floor: usize,
    most: usize,
    mut at: impl FnMut(usize) -> anyhow::Result<T>,
    met: impl Fn(&T) -> bool,
) -> anyhow::Result<(Option<usize>, T)> {
    let mut best = at(most)?;
    if !met(&best) {
        return Ok((None, best));
    }
    // The fewest is in (low, high].
    let (mut low, mut high) = (floor.min(most - 1), most);
    while high - low > 1 {
        let middle = low.midpoint(high);
        let result = at(middle)?;
        if met(&result) {
            (high, best) = (middle, result);
        } else {
            low = middle;
        }
    }
    Ok((Some(high), best))
}

/// The answer for one policy.
#[derive(Clone, Debug, Serialize)]
pub struct PlanRow {
    /// Policy in notation.
    pub policy: String,
    /// Fewest cores that meet the SLO; `None` if the machine has not enough.
    pub cores: Option<usize>,
    /// The SLO's percentile with that many cores (with the whole machine when it is not met).
    pub latency_ns: f64,
    /// Largest p99 slowdown.
    pub slowdown_p99: f64,
    /// Share of the whole machine left if the service's cores are set aside.
    pub left_static: f64,
}

/// The result for a batch job if the cores of the best policy are lent, not set aside.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Lending {
    /// Limit of the service's cores.
    pub cores: usize,
    /// The SLO's percentile.
    pub latency_ns: f64,
    /// Share of the whole machine's core time the batch job got.
    pub batch_share: f64,
    /// True if the SLO still holds.
    pub meets_slo: bool,
}

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Offered work in cores.
    pub offered_cores: f64,
    /// One row per policy.
    pub rows: Vec<PlanRow>,
    /// Lending, if any policy meets the SLO.
    pub lending: Option<Lending>,
    /// The answer in words.
    pub verdict: String,
}

/// The workload in the form the simulators take.
struct Workload {
    mix: Mix,
    rate: Rate,
    trace: Option<Arc<[Incoming]>>,
}

impl PlanStudy {
    fn workload(&self) -> anyhow::Result<Workload> {
        let Some(path) = &self.trace else {
            let mix = self.class.clone().map_or_else(|| Mix::parse(&self.service), Ok)?;
            ensure!(
                self.rate.per_second() > 0.0,
                "the rate is 0: give the offered requests per second, as in 500k"
            );
            return Ok(Workload { mix, rate: self.rate, trace: None });
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read trace {}", path.display()))?;
        let trace = parse_trace(&text).with_context(|| format!("trace {}", path.display()))?;
        let length_ns = trace.last().map_or(0, |r| r.at_ns).max(1);
        let rate = Rate::new(trace.len() as f64 / length_ns as f64 * 1e9)?;
        Ok(Workload { mix: mix_of(&trace)?, rate, trace: Some(trace.into()) })
    }

    /// Answers the question. `tick` is called once per policy.
    ///
    /// # Errors
    ///
    /// If a field does not make sense or the trace cannot be read; the message says which and what
    /// to write.
    pub fn run(&self, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Plan> {
        ensure!((1..=4096).contains(&self.cores), "{} cores: use 1 to 4096", self.cores);
        let (slo, costs, workload) = (parse_slo(&self.slo)?, Costs::load(&self.costs)?, self.workload()?);
        let policies = parse_policies(&self.policies)?;
        let results = parallel(policies.len(), self.effort.threads(), tick, |i| {
            let (name, policy) = &policies[i];
            self.fewest(name, *policy, slo, &costs, &workload)
        });
        let rows = results.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let best = rows.iter().filter(|r| r.cores.is_some()).min_by_key(|r| r.cores);
        let lending = best.and_then(|r| r.cores).map(|n| self.lend(n, slo, &costs, &workload)).transpose()?;
        let offered_cores = workload.rate.per_second() * workload.mix.mean_ns() / 1e9;
        let verdict = self.verdict(best, lending.as_ref(), offered_cores);
        Ok(Plan { offered_cores, rows: rows.clone(), lending, verdict })
    }

    fn scenario(&self, policy: PolicySpec, cores: usize, costs: &Costs, workload: &Workload) -> Scenario {
        Scenario {
            cores,
            mix: workload.mix.clone(),
            arrivals: self.arrivals,
            load: workload.rate.per_second() * workload.mix.mean_ns() / 1e9 / cores as f64,
            connections: self.connections,
            policy,
            costs: costs.clone(),
            budget: self.effort.budget(),
            seed: self.effort.seed,
        }
    }

    fn measure(
        &self,
        policy: PolicySpec,
        cores: usize,
        costs: &Costs,
        workload: &Workload,
    ) -> anyhow::Result<Measured> {
        let scenario = self.scenario(policy, cores, costs, workload);
        match &workload.trace {
            Some(trace) => scenario.run_trace(trace),
            None => Ok(run_all(&[scenario], self.effort.replications, 1, &|| ())?.remove(0)),
        }
    }

    fn fewest(
        &self,
        name: &str,
        policy: PolicySpec,
        slo: Slo,
        costs: &Costs,
        w: &Workload,
    ) -> anyhow::Result<PlanRow> {
        let met =
            |m: &Measured| !m.saturated && m.latency.quantile(slo.quantile).value <= slo.limit_ns as f64;
        let row = |cores: Option<usize>, m: &Measured| PlanRow {
            policy: name.to_owned(),
            cores,
            latency_ns: if m.saturated { f64::INFINITY } else { m.latency.quantile(slo.quantile).value },
            slowdown_p99: m.slowdown(2).value,
            left_static: cores.map_or(0.0, |n| 1.0 - n as f64 / self.cores as f64),
        };
        let at = |cores: usize| self.measure(policy, cores, costs, w);
        // Below the offered work there is no steady state.
        let offered = w.rate.per_second() * w.mix.mean_ns() / 1e9;
        let (found, best) = fewest(offered.floor() as usize, self.cores, at, met)?;
        Ok(row(found, &best))
    }

    /// Lends the service up to `limit` of the machine's cores by congestion detection; a batch job
    /// has the rest.
    fn lend(&self, limit: usize, slo: Slo, costs: &Costs, w: &Workload) -> anyhow::Result<Lending> {
        let (cores, max) = (u16::try_from(self.cores)?, u16::try_from(limit)?);
        let requests = w.trace.as_ref().map_or(self.effort.requests.max(100), |t| t.len() as u64);
        let duration_ns = (requests as f64 / w.rate.per_second() * 1e9) as u64;
        let source: Box<dyn Source> = match &w.trace {
            Some(trace) => Box::new(Recorded::new(Arc::clone(trace))),
            None => Box::new(Synthetic::new(
                self.arrivals,
                w.rate,
                w.mix.clone(),
                self.connections,
                self.effort.seed,
            )),
        };
        let budget = Budget { warmup: 0, requests, batches: 10 };
        let service = Service {
            source,
            dispatch: Box::new(CentralFcfs::new(limit)),
            guaranteed: 0,
            max,
            estimates: false,
            measured: Measured::new(w.mix.classes().len(), budget),
        };
        let setup = Setup {
            topology: Topology::uniform(cores, 1, 1)?,
            costs,
            policy: Box::new(CongestionDetection::new(Config {
                seed: self.effort.seed,
                ..Config::default()
            })),
            services: vec![service],
            batch: true,
            park_after_ns: Some(50_000),
            warmup_ns: if w.trace.is_some() { 0 } else { duration_ns / 10 },
            duration_ns,
            hardware: None,
            window_ns: None,
        };
        let outcome = Machine::new(setup)?.run();
        let measured = &outcome.services[0].measured;
        let latency_ns = measured.latency.quantile(slo.quantile).value;
        let meets_slo = !measured.saturated && latency_ns <= slo.limit_ns as f64;
        let batch_share = outcome.batch_ns as f64 / outcome.core_ns.max(1) as f64;
        Ok(Lending { cores: limit, latency_ns, batch_share, meets_slo })
    }

    fn verdict(&self, best: Option<&PlanRow>, lending: Option<&Lending>, offered: f64) -> String {
        let (Some(best), Some(lending)) = (best, lending) else {
            return format!(
                "No policy meets {} on {} cores: the work alone needs {offered:.1}. Use more cores, a looser objective or a \
                 lower rate.",
                self.slo, self.cores
            );
        };
        let kept =
            if lending.meets_slo { "the objective still holds" } else { "the objective no longer holds" };
        format!(
            "{} meets {} with {} of {} cores ({offered:.1} cores of work). Set aside, they leave {} of the machine to batch \
             work; lent by congestion detection with c-FCFS inside the service, {} ({kept}: {} us).",
            best.policy,
            self.slo,
            lending.cores,
            self.cores,
            percent(best.left_static),
            percent(lending.batch_share),
            us(lending.latency_ns)
        )
    }
}

/// Returns the classes of a trace, for policies that use means and shares.
fn mix_of(trace: &[Incoming]) -> anyhow::Result<Mix> {
    let classes = trace.iter().map(|r| usize::from(r.class)).max().unwrap_or(0) + 1;
    ensure!(classes <= 64, "the trace has class number {}: use 0 to 63", classes - 1);
    let mut sums = vec![(0u64, 0u64); classes];
    for r in trace {
        let (count, work) = &mut sums[usize::from(r.class)];
        *count += 1;
        *work += r.service_ns;
    }
    let class = |(i, &(count, work)): (usize, &(u64, u64))| Class {
        name: format!("class {i}"),
        share: count as f64,
        // Only the mean is used: the trace itself brings the service times.
        service: ServiceTime::constant((work / count.max(1)).max(1)),
        slo_ns: 0,
    };
    Mix::new(sums.iter().enumerate().map(class).collect())
}

/// Returns the answer as a table.
#[must_use]
pub fn table(plan: &Plan, slo: &str) -> Table {
    let percentile = slo.split('<').next().unwrap_or("").trim();
    let head = format!("policy | cores needed | {percentile} us | p99 slowdown | left if set aside");
    let mut table = Table::new(&head);
    for r in &plan.rows {
        table.row([
            r.policy.clone(),
            r.cores.map_or_else(|| "not met".to_owned(), |n| n.to_string()),
            if r.latency_ns.is_finite() { us(r.latency_ns) } else { "saturated".to_owned() },
            format!("{:.1}", r.slowdown_p99),
            percent(r.left_static),
        ]);
    }
    table
}

/// Draws the cores that each policy needs.
#[must_use]
pub fn panels(plan: &Plan) -> Vec<Panel> {
    let bar = |row: &PlanRow| {
        let cores = row.cores? as f64;
        Some(Bar { name: row.policy.clone(), value: cores, range: (cores, cores) })
    };
    vec![Panel::of_bars("Cores needed", "cores", plan.rows.iter().filter_map(bar).collect())]
}

/// Returns the question in words.
#[must_use]
pub fn describe(study: &PlanStudy) -> String {
    let work = match &study.trace {
        Some(path) => format!("trace {}", path.display()),
        None => format!("{} requests/s of {}", study.rate, study.service),
    };
    format!("{work}; {} on {} cores, {} costs", study.slo, study.cores, study.costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study() -> PlanStudy {
        PlanStudy {
            policies: "d-fcfs c-fcfs".to_owned(),
            costs: "ideal".to_owned(),
            effort: Effort { requests: 10_000, replications: 1, seed: 1, threads: 2 },
            ..PlanStudy::default()
        }
    }

    #[test]
    fn a_shared_queue_needs_fewer_cores_than_separate_ones_and_lending_leaves_more() {
        // 4 cores of work; M/M/n needs one or two spare cores for p99.9 < 100 us, separate queues
        // many more.
        let plan = PlanStudy { rate: "400k".parse().unwrap(), cores: 24, ..study() }.run(&|| ()).unwrap();
        let [d, c] = &plan.rows[..] else { panic!("two rows") };
        assert!(c.cores.unwrap() <= 6 && d.cores.unwrap() >= 9, "{d:?} {c:?}");
        let lending = plan.lending.unwrap();
        assert!(lending.batch_share > c.left_static, "{lending:?}");
        assert!(plan.verdict.contains("c-fcfs meets p99.9<100us"), "{}", plan.verdict);
    }

    #[test]
    fn what_cannot_be_met_is_said_plainly() {
        let plan = PlanStudy { rate: "2M".parse().unwrap(), cores: 8, ..study() }.run(&|| ()).unwrap();
        assert!(plan.rows.iter().all(|r| r.cores.is_none()) && plan.lending.is_none());
        assert!(
            plan.verdict.contains("No policy meets") && plan.verdict.contains("needs 20.0"),
            "{}",
            plan.verdict
        );
    }

    #[test]
    fn a_recorded_trace_is_planned_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        let line = |i: u64| {
            let long = i.is_multiple_of(10);
            format!("{},{},{}\n", i * 5_000, if long { 50_000 } else { 5_000 }, u64::from(long))
        };
        std::fs::write(&path, (0..5_000).map(line).collect::<String>()).unwrap();
        let study = PlanStudy {
            trace: Some(path),
            slo: "p99<60us".to_owned(),
            policies: "c-fcfs,mq:5us,reserved".to_owned(),
            ..study()
        };
        let plan = study.run(&|| ()).unwrap();
        assert!((plan.offered_cores - 1.9).abs() < 0.02, "{plan:?}");
        assert_eq!(plan.rows[0].cores, Some(2), "{plan:?}");
    }

    #[test]
    fn bad_objectives_and_traces_are_explained() {
        for (slo, fragment) in
            [("100us", "as in p99.9<100us"), ("p42<1us", "p50, p90"), ("p99<0us", "then <")]
        {
            let message =
                format!("{:#}", PlanStudy { slo: slo.to_owned(), ..study() }.run(&|| ()).unwrap_err());
            assert!(message.contains(fragment), "{slo}: {message}");
        }
        let [limit, objective] = ["p99.9=1ms", "p99.9<1ms"].map(|slo| parse_slo(slo).unwrap());
        assert_eq!(limit, objective);
        let missing = PlanStudy { trace: Some("/nonexistent/trace.csv".into()), ..study() };
        assert!(format!("{:#}", missing.run(&|| ()).unwrap_err()).contains("cannot read trace"));
    }
}
