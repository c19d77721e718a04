//! The static frontier of a machine (IX, TOCS'17 section 5.3): for each load the configuration of
//! cores, hyperthreads and clock rate with the least power, or with the most left to a batch job,
//! among those that meet an objective.
//!
//! Owns the description, the simulation of every configuration at every load, the choice of the
//! frontier, and its translation into steps of IX's control loop. A static configuration is that
//! loop with a single step, so the machine and the lending of its cores are those under which the
//! loop runs. Idle cores halt, as under the IOKernel; IX's own poll.
//!
//! A configuration is simulated from the least load up and is out from the first load at which it
//! misses the objective.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tailwater_sched::alloc::{Clock, Clocks, HYPERTHREAD_GAIN, IxConfig, IxControl, Sequence, Step};
use tailwater_sched::dispatch::CentralFcfs;
use tailwater_sched::topology::Topology;
use tailwater_workload::units::parse_duration_ns;
use tailwater_workload::{ArrivalProcess, LoadSchedule, Rate};

use super::Effort;
use super::plan::{Slo, parse_slo};
use crate::costs::Costs;
use crate::hardware::{Hardware, Power};
use crate::machine::{Machine, Outcome, Service, Setup};
use crate::measure::{Budget, Measured};
use crate::mix::Mix;
use crate::report::{percent, us};
use crate::scenario::{parallel, seed_of};
use crate::source::Synthetic;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// A configuration that is worse than the best by no more than this fraction is as good.
const AS_GOOD: f64 = 0.01;

/// What the frontier is the best of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aim {
    /// The least power, with nothing beside the service.
    #[default]
    Energy,
    /// The fastest batch job beside the service.
    Batch,
}

impl Aim {
    /// Returns the name of the policy whose steps serve the aim.
    #[must_use]
    pub fn policy(self) -> &'static str {
        match self {
            Self::Energy => "ix-energy",
            Self::Batch => "ix-consolidation",
        }
    }

    /// Returns the sequence of that policy.
    #[must_use]
    pub fn sequence(self) -> Sequence {
        match self {
            Self::Energy => Sequence::Energy,
            Self::Batch => Sequence::Consolidation,
        }
    }
}

/// The study's parameters; the defaults are the machine of the paper. Every field has a default,
/// so a scenario file states only the differences.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParetoStudy {
    /// What to find the best of.
    pub aim: Aim,
    /// Managed physical cores.
    pub cores: u16,
    /// Hyperthreads of each.
    pub threads: u16,
    /// Clock rates in MHz, ascending, the last of which is the nominal one; empty: none can be set.
    pub mhz: Vec<u32>,
    /// Highest clock rate with Turbo Boost; absent without it.
    pub turbo_mhz: Option<u32>,
    /// The power model.
    pub power: Power,
    /// Service time at the nominal clock rate, on a core without an active hyperthread beside.
    pub service: String,
    /// Objective, as in `p99<500us`.
    pub slo: String,
    /// Loads, in equal steps up to the throughput of the whole machine without overheads.
    pub levels: u16,
    /// Cost profile: a built-in name or a file.
    pub costs: String,
    /// Time for which an idle kthread polls before it parks.
    pub park_after: String,
    /// The amount to run; replications are not used.
    pub effort: Effort,
}

impl Default for ParetoStudy {
    fn default() -> Self {
        Self {
            aim: Aim::Energy,
            cores: 8,
            threads: 2,
            mhz: (12..=24).map(|hundreds| hundreds * 100).collect(),
            turbo_mhz: Some(2_800),
            power: Power::IX_2017,
            service: "exp:10us".to_owned(),
            slo: "p99<500us".to_owned(),
            levels: 24,
            costs: "paper-2019".to_owned(),
            park_after: "50us".to_owned(),
            effort: Effort { requests: 20_000, replications: 1, ..Effort::default() },
        }
    }
}

/// One configuration at one load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ParetoPoint {
    /// Number of the load, from 1.
    pub level: u16,
    /// Requests per second.
    pub rate: f64,
    /// Physical cores.
    pub cores: u16,
    /// Hyperthreads of each.
    pub threads: u16,
    /// Clock rate in MHz; `None` if none can be set.
    pub mhz: Option<u32>,
    /// True for Turbo Boost.
    pub turbo: bool,
    /// The percentile of the objective.
    pub latency_ns: f64,
    /// Mean power in watts.
    pub watts: f64,
    /// Speed of the batch job as a fraction of that on the idle machine at the nominal clock rate.
    pub batch: f64,
}

impl ParetoPoint {
    /// Returns whether both points are of one configuration.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.configuration() == other.configuration()
    }

    fn configuration(&self) -> (u16, u16, Option<u32>) {
        (self.cores, self.threads, self.mhz)
    }

    /// Returns how good the point is; more is better.
    fn merit(&self, aim: Aim) -> f64 {
        match aim {
            Aim::Energy => -self.watts,
            Aim::Batch => self.batch,
        }
    }
}

/// The study's result.
#[derive(Clone, Debug, Serialize)]
pub struct Pareto {
    /// All points that meet the objective, by load. For a batch job those with turbo count only at
    /// loads that no configuration bears without.
    pub points: Vec<ParetoPoint>,
    /// For each load that any configuration bears, the best.
    pub frontier: Vec<ParetoPoint>,
    /// The configurations as steps for the control loop: each has more throughput than the one
    /// before, and is as good as the frontier at the load at which it comes in. The last is the
    /// whole machine.
    pub steps: Vec<ParetoPoint>,
    /// Power of the whole machine at its highest clock rate if no core ever halts.
    pub polling_w: f64,
}

impl ParetoStudy {
    /// Runs the study. `tick` is called once for each of [`ParetoStudy::configurations`].
    ///
    /// # Errors
    ///
    /// If a field makes no sense; the message says which and what to write.
    pub fn run(&self, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Pareto> {
        self.check()?;
        let configurations = self.configurations();
        let found = parallel(configurations.len(), self.effort.threads(), tick, |job| {
            self.climb(configurations[job])
        });
        let mut points: Vec<ParetoPoint> = Vec::new();
        for one in found {
            points.extend(one?);
        }
        points.sort_by_key(|point| point.level);
        if self.aim == Aim::Batch {
            let nominal =
                points.iter().filter(|point| !point.turbo).map(|point| point.level).max().unwrap_or(0);
            points.retain(|point| !point.turbo || point.level > nominal);
        }
        let frontier = self.best(&points);
        ensure!(
            !frontier.is_empty(),
            "no configuration meets {} even at the least load: a looser objective, or more levels",
            self.slo
        );
        let steps = self.steps(&points, &frontier);
        let polling_w = self.hardware().polling_w(&self.topology()?);
        Ok(Pareto { points, frontier, steps, polling_w })
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=256).contains(&self.cores), "{} cores: use 1 to 256 physical ones", self.cores);
        ensure!((1..=4).contains(&self.threads), "{} hyperthreads: use 1 to 4", self.threads);
        ensure!((1..=1_000).contains(&self.levels), "{} levels: use 1 to 1000", self.levels);
        ensure!(
            self.mhz.windows(2).all(|pair| pair[0] < pair[1]) && self.mhz.first() != Some(&0),
            "clock rates {:?}: give them in ascending order, as in 1200,1800,2400",
            self.mhz
        );
        if let Some(turbo) = self.turbo_mhz {
            let above = self.mhz.last().is_some_and(|&nominal| turbo > nominal);
            ensure!(above, "a turbo of {turbo} MHz: it needs lower clock rates to go beyond");
        }
        let Power { uncore_w, halted_w, static_w, dynamic_w, hyperthread } = self.power;
        let parts = [uncore_w, halted_w, static_w, dynamic_w, hyperthread];
        ensure!(
            parts.iter().all(|part| part.is_finite() && *part >= 0.0),
            "power {:?}: give numbers of 0 or more",
            self.power
        );
        parse_slo(&self.slo).map(drop)
    }

    /// Returns all configurations. For a batch job they are of the nominal clock rate, as in the
    /// paper, and turbo is left to the whole machine.
    #[must_use]
    pub fn configurations(&self) -> Vec<Step> {
        let turbo = self.turbo_mhz.map(|_| Clock::Turbo);
        let rates = self.mhz.iter().map(|&mhz| Clock::Mhz(mhz));
        let mut clocks: Vec<Option<Clock>> = match self.aim {
            Aim::Energy => rates.chain(turbo).map(Some).collect(),
            Aim::Batch => self.mhz.last().map(|&mhz| Some(Clock::Mhz(mhz))).into_iter().collect(),
        };
        if clocks.is_empty() {
            clocks.push(None);
        }
        let threads = (1..=self.threads).filter(|threads| *threads == 1 || *threads == self.threads);
        let mut configurations: Vec<Step> = threads
            .flat_map(|threads| (1..=self.cores).map(move |cores| (cores, threads)))
            .flat_map(|(cores, threads)| clocks.iter().map(move |&clock| Step { cores, threads, clock }))
            .collect();
        if self.aim == Aim::Batch {
            configurations.extend(turbo.map(|turbo| Step {
                cores: self.cores,
                threads: self.threads,
                clock: Some(turbo),
            }));
        }
        configurations
    }

    fn clocks(&self) -> Clocks {
        Clocks { mhz: self.mhz.clone(), turbo_mhz: self.turbo_mhz }
    }

    fn hardware(&self) -> Hardware {
        Hardware { clocks: self.clocks(), power: self.power }
    }

    fn topology(&self) -> anyhow::Result<Topology> {
        Ok(Topology::uniform(self.cores * self.threads, self.threads, 1)?)
    }

    /// Returns the throughput of a configuration, in physical cores with one hyperthread at the
    /// nominal clock rate.
    fn capacity(&self, cores: u16, threads: u16, clock: Option<Clock>) -> f64 {
        let gain = 1.0 + HYPERTHREAD_GAIN * f64::from(threads.saturating_sub(1));
        f64::from(cores) * gain * self.clocks().speed(clock)
    }

    /// Returns the throughput of the whole machine without overheads, in requests per second.
    ///
    /// # Errors
    ///
    /// If the service time is malformed.
    pub fn peak_rate(&self) -> anyhow::Result<f64> {
        let clock = self.turbo_mhz.map(|_| Clock::Turbo);
        Ok(self.capacity(self.cores, self.threads, clock) / Mix::parse(&self.service)?.mean_ns() * 1e9)
    }

    /// Runs a configuration at rising loads; returns the points that meet the objective.
    fn climb(&self, step: Step) -> anyhow::Result<Vec<ParetoPoint>> {
        let slo = parse_slo(&self.slo)?;
        let (peak, mean_ns) = (self.peak_rate()?, Mix::parse(&self.service)?.mean_ns());
        let most = self.capacity(step.cores, step.threads, step.clock) / mean_ns * 1e9;
        let mut points = Vec::new();
        for level in 1..=self.levels {
            let rate = peak * f64::from(level) / f64::from(self.levels);
            if rate > most {
                break;
            }
            let length_ns = (self.effort.requests.max(100) as f64 / rate * 1e9) as u64;
            let warmup_ns = length_ns / 5;
            let schedule = LoadSchedule::constant(Rate::new(rate)?, warmup_ns + length_ns);
            let outcome = self.simulate(vec![step], schedule, warmup_ns, None)?;
            let point = self.point(level, rate, step, &outcome, slo);
            if outcome.services[0].measured.saturated || point.latency_ns > slo.limit_ns as f64 {
                break;
            }
            points.push(point);
        }
        Ok(points)
    }

    /// Runs the control loop with these steps (none: those of the paper) under a load schedule to
    /// its end; the time before `warmup_ns` is not measured. With `window_ns` the outcome has its
    /// course over time.
    ///
    /// # Errors
    ///
    /// If a field makes no sense.
    pub fn simulate(
        &self,
        steps: Vec<Step>,
        schedule: LoadSchedule,
        warmup_ns: u64,
        window_ns: Option<u64>,
    ) -> anyhow::Result<Outcome> {
        let (mix, costs) = (Mix::parse(&self.service)?, Costs::load(&self.costs)?);
        let hyperthreads = self.cores * self.threads;
        let length_ns = schedule.length_ns();
        let budget = Budget { warmup: 0, requests: u64::MAX, batches: 1 };
        let seed = seed_of(self.effort.seed, 0);
        let service = Service {
            source: Box::new(Synthetic::scheduled(
                ArrivalProcess::Poisson,
                schedule,
                mix.clone(),
                None,
                seed,
            )),
            dispatch: Box::new(CentralFcfs::new(usize::from(hyperthreads))),
            guaranteed: 0,
            max: hyperthreads,
            estimates: false,
            measured: Measured::new(mix.classes().len(), budget),
        };
        let policy = IxControl::new(IxConfig {
            sequence: self.aim.sequence(),
            steps,
            clocks: self.clocks(),
            ..IxConfig::default()
        });
        let park_after_ns = parse_duration_ns(&self.park_after).context("park_after")?;
        let setup = Setup {
            topology: self.topology()?,
            costs: &costs,
            policy: Box::new(policy),
            services: vec![service],
            batch: self.aim == Aim::Batch,
            park_after_ns: Some(park_after_ns),
            warmup_ns,
            duration_ns: length_ns.saturating_sub(warmup_ns),
            hardware: Some(self.hardware()),
            window_ns,
        };
        Ok(Machine::new(setup)?.run())
    }

    fn point(&self, level: u16, rate: f64, step: Step, outcome: &Outcome, slo: Slo) -> ParetoPoint {
        let elapsed_ns = (outcome.core_ns / outcome.cores.max(1) as u64).max(1) as f64;
        let mhz = match step.clock {
            Some(Clock::Mhz(mhz)) => Some(mhz),
            Some(Clock::Turbo) => self.turbo_mhz,
            None => None,
        };
        ParetoPoint {
            level,
            rate,
            cores: step.cores,
            threads: step.threads,
            mhz,
            turbo: step.clock == Some(Clock::Turbo),
            latency_ns: outcome.services[0].measured.latency.quantile(slo.quantile).value,
            watts: outcome.used.joules / elapsed_ns * 1e9,
            batch: outcome.used.batch_work_ns / elapsed_ns / f64::from(self.cores),
        }
    }

    /// Returns the best point of each load.
    fn best(&self, points: &[ParetoPoint]) -> Vec<ParetoPoint> {
        let better = |a: &&ParetoPoint, b: &&ParetoPoint| a.merit(self.aim).total_cmp(&b.merit(self.aim));
        points
            .chunk_by(|a, b| a.level == b.level)
            .filter_map(|at| at.iter().max_by(better).copied())
            .collect()
    }

    fn throughput(&self, point: &ParetoPoint) -> f64 {
        let clock = if point.turbo { Some(Clock::Turbo) } else { point.mhz.map(Clock::Mhz) };
        self.capacity(point.cores, point.threads, clock)
    }

    /// Returns the steps along the frontier: at each load the configuration with the least
    /// throughput among those that are as good as the best, but none with less than the step
    /// before.
    fn steps(&self, points: &[ParetoPoint], frontier: &[ParetoPoint]) -> Vec<ParetoPoint> {
        let mut steps: Vec<ParetoPoint> = Vec::new();
        for (at, best) in points.chunk_by(|a, b| a.level == b.level).zip(frontier) {
            let reached = steps.last().map_or(0.0, |step| self.throughput(step));
            let merit = best.merit(self.aim);
            let good = |point: &&ParetoPoint| {
                point.merit(self.aim) >= merit - AS_GOOD * merit.abs() && self.throughput(point) >= reached
            };
            let least =
                |a: &&ParetoPoint, b: &&ParetoPoint| self.throughput(a).total_cmp(&self.throughput(b));
            let next = at.iter().filter(good).min_by(least).or_else(|| {
                let keeps = |step: &ParetoPoint| at.iter().any(|point| point.is_like(step));
                match steps.last().is_some_and(keeps) {
                    true => None,
                    false => at.iter().filter(|point| self.throughput(point) >= reached).min_by(least),
                }
            });
            if let Some(next) = next.filter(|next| !steps.last().is_some_and(|step| step.is_like(next))) {
                steps.push(*next);
            }
        }
        let last = points.iter().max_by(|a, b| self.throughput(a).total_cmp(&self.throughput(b)));
        steps.extend(last.filter(|last| !steps.last().is_some_and(|step| step.is_like(last))));
        steps
    }

    /// Returns the steps as a part of an IOKernel's configuration.
    #[must_use]
    pub fn configuration(&self, pareto: &Pareto) -> String {
        let policy = self.aim.policy();
        let mut text = format!(
            "# The static frontier of {} cores with {} hyperthreads each, simulated: {}, {}.\npolicy = \"{policy}\"\n",
            self.cores, self.threads, self.service, self.slo
        );
        for step in &pareto.steps {
            text += &format!("\n[[ix.steps]]\ncores = {}\nthreads = {}\n", step.cores, step.threads);
            match (step.turbo, step.mhz) {
                (true, _) => text += "turbo = true\n",
                (false, Some(mhz)) => text += &format!("mhz = {mhz}\n"),
                (false, None) => {}
            }
        }
        text
    }
}

/// Returns points as a table.
#[must_use]
pub fn table(points: &[ParetoPoint], slo: &str) -> Table {
    let latency = slo.split('<').next().unwrap_or_default().trim();
    let mut table = Table::new(&format!("requests/s | cores | threads | MHz | {latency} us | watts | batch"));
    for point in points {
        table.row([
            format!("{:.0}", point.rate),
            point.cores.to_string(),
            point.threads.to_string(),
            point.mhz.map_or_else(|| "-".to_owned(), |mhz| mhz.to_string()),
            us(point.latency_ns),
            format!("{:.1}", point.watts),
            percent(point.batch),
        ]);
    }
    table
}

/// The aim over load: the frontier, and that of the whole machine with clock rates alone.
#[must_use]
pub fn panels(study: &ParetoStudy, pareto: &Pareto) -> Vec<Panel> {
    let (y_label, of): (_, fn(&ParetoPoint) -> f64) = match study.aim {
        Aim::Energy => ("watts", |point| point.watts),
        Aim::Batch => ("batch job (% of the idle machine)", |point| point.batch * 100.0),
    };
    let line = |name: &str, points: &[ParetoPoint]| {
        Line::new(name, points.iter().map(|point| (point.rate / 1e3, of(point))).collect())
    };
    let all_cores = |point: &&ParetoPoint| point.cores == study.cores && point.threads == study.threads;
    let whole: Vec<ParetoPoint> = pareto.points.iter().filter(all_cores).copied().collect();
    vec![Panel::new(
        "",
        "requests/s (thousands)",
        y_label,
        vec![line("frontier", &pareto.frontier), line("clock rates only", &study.best(&whole))],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(aim: Aim) -> ParetoStudy {
        ParetoStudy {
            aim,
            cores: 2,
            mhz: vec![1_200, 2_400],
            levels: 5,
            effort: Effort { requests: 800, seed: 3, threads: 2, ..Effort::default() },
            ..ParetoStudy::default()
        }
    }

    #[test]
    fn the_frontier_draws_less_than_the_whole_machine_and_ends_with_it() {
        let study = study(Aim::Energy);
        let pareto = study.run(&|| ()).unwrap();
        for best in &pareto.frontier {
            let others = pareto.points.iter().filter(|point| point.level == best.level);
            assert!(others.clone().all(|point| point.watts >= best.watts), "{best:?}");
        }
        let first = pareto.frontier[0];
        assert_eq!(first.mhz, Some(1_200), "the lowest clock rate suffices: {first:?}");
        let turbo = pareto.points.iter().find(|point| point.level == first.level && point.turbo).unwrap();
        assert!(first.watts < turbo.watts, "{first:?} {turbo:?}");
        let throughputs: Vec<f64> = pareto.steps.iter().map(|step| study.throughput(step)).collect();
        assert!(throughputs.is_sorted_by(|a, b| a < b), "{throughputs:?}");
        let last = pareto.steps.last().unwrap();
        assert_eq!((last.cores, last.threads, last.turbo), (2, 2, true));
        let most = pareto.polling_w * 1.0001;
        assert!(pareto.points.iter().all(|point| point.watts <= most));
    }

    #[test]
    fn a_batch_job_gets_less_the_more_the_service_needs() {
        let pareto = study(Aim::Batch).run(&|| ()).unwrap();
        assert!(pareto.points.iter().all(|point| point.mhz != Some(1_200)));
        let left: Vec<f64> = pareto.frontier.iter().map(|point| point.batch).collect();
        assert!(left.is_sorted_by(|a, b| a > b), "{left:?}");
        assert!(left[0] > 0.5 && left[0] < 1.0, "{left:?}");
    }

    #[test]
    fn a_lower_clock_rate_lengthens_requests_by_as_much() {
        let slow = study(Aim::Energy);
        let p50 = |mhz| {
            let step = Step { cores: 2, threads: 1, clock: Some(Clock::Mhz(mhz)) };
            let study =
                ParetoStudy { service: "const:100us".to_owned(), costs: "ideal".to_owned(), ..slow.clone() };
            let load = LoadSchedule::constant(Rate::new(1_000.0).unwrap(), 100_000_000);
            let outcome = study.simulate(vec![step], load, 0, None).unwrap();
            outcome.services[0].measured.latency.quantile(0).value
        };
        assert!((p50(2_400) - 100e3).abs() < 200.0 && (p50(1_200) - 200e3).abs() < 400.0);
    }

    #[test]
    fn senseless_machines_are_refused_with_the_remedy() {
        let refused = |study: ParetoStudy| format!("{:#}", study.run(&|| ()).unwrap_err());
        let base = study(Aim::Energy);
        assert!(refused(ParetoStudy { cores: 0, ..base.clone() }).contains("1 to 256"));
        assert!(refused(ParetoStudy { mhz: vec![2, 1], ..base.clone() }).contains("ascending"));
        assert!(refused(ParetoStudy { mhz: Vec::new(), ..base.clone() }).contains("turbo"));
        assert!(refused(ParetoStudy { slo: "p99<1us".to_owned(), ..base }).contains("looser"));
    }
}
