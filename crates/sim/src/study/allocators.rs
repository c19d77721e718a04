//! Core-allocation policies compared: tail latency, efficiency and batch share of several services
//! over load.
//!
//! Owns the description and the fan-out; the machine is [`machine`](crate::machine), the policies
//! are `sched::alloc`'s.

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tailwater_sched::Nanos;
use tailwater_sched::alloc::{Config, CongestionDetection, Policy, PolicyName};
use tailwater_sched::dispatch::{CentralFcfs, Dispatch};
use tailwater_sched::topology::Topology;
use tailwater_workload::units::parse_duration_ns;
use tailwater_workload::{ArrivalProcess, Rate};

use super::Effort;
use crate::costs::Costs;
use crate::machine::{Machine, Outcome, Service, Setup};
use crate::measure::{Budget, Measured};
use crate::mix::Mix;
use crate::notation::parse_loads;
use crate::report::{percent, us, us_with_error};
use crate::scenario::{parallel, seed_of};
use crate::source::Synthetic;
use crate::stats::Estimate;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// The comparison's parameters. Every field has a default, so a scenario file states only the
/// differences.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AllocatorStudy {
    /// Allocators, separated by commas: `congestion-detection[:INTERVAL[:QUANTUM]]`,
    /// `delay-threshold[:THRESHOLD]`, `arachne`, `ix-consolidation`, `ix-energy`, `static`.
    pub allocators: String,
    /// Service time of every service.
    pub service: String,
    /// Managed cores (the IOKernel's is not among them).
    pub cores: u16,
    /// Hyperthreads per physical core.
    pub smt: u16,
    /// Latency-critical services, each of which may use all cores.
    pub services: u16,
    /// Cores guaranteed to each service; all together at most `cores`. The static allocator uses
    /// them as partitions, or even shares when they are 0.
    pub guaranteed: u16,
    /// True if a batch job takes what is left.
    pub batch: bool,
    /// Loads of all services together, as a fraction of all cores.
    pub loads: String,
    /// Arrival process of every service.
    pub arrivals: ArrivalProcess,
    /// Cost profile: a built-in name or a file.
    pub costs: String,
    /// Time for which an idle kthread polls before it parks, as in `50us`; `never` for never.
    pub park_after: String,
    /// The amount to run: `requests` are those of all services together.
    pub effort: Effort,
}

impl Default for AllocatorStudy {
    fn default() -> Self {
        Self {
            allocators: "congestion-detection,delay-threshold,arachne,ix-consolidation,static".to_owned(),
            service: "exp:10us".to_owned(),
            cores: 8,
            smt: 1,
            services: 2,
            guaranteed: 0,
            batch: true,
            loads: "0.1..0.8/8".to_owned(),
            arrivals: ArrivalProcess::OnOff { on_ns: 2_000_000, off_ns: 2_000_000 },
            costs: "paper-2019".to_owned(),
            park_after: "50us".to_owned(),
            effort: Effort { requests: 1_000_000, replications: 1, ..Effort::default() },
        }
    }
}

/// One allocator at one load; services are joined.
#[derive(Clone, Debug, Serialize)]
pub struct AllocatorRow {
    /// Allocator in notation.
    pub allocator: String,
    /// Offered work of all services as a fraction of all cores.
    pub load: f64,
    /// Latency p50.
    pub p50_ns: Estimate,
    /// Latency p99.
    pub p99_ns: Estimate,
    /// Latency p99.9.
    pub p999_ns: Estimate,
    /// Requests' own work as a fraction of the core time the services held (Shenango's CPU
    /// efficiency).
    pub efficiency: f64,
    /// Core time of the batch job as a fraction of all.
    pub batch_share: f64,
    /// Core time spent in hand-offs as a fraction of all.
    pub handoff_share: f64,
    /// Hand-offs per second.
    pub handoffs_per_s: f64,
    /// True if there was no steady state.
    pub saturated: bool,
}

/// Builds an allocator from its notation.
///
/// # Errors
///
/// If the name or a parameter is unknown; the message lists what there is. And for `arbiter`:
/// simulated programs request no cores by themselves.
pub fn parse_allocator(text: &str, seed: u64) -> anyhow::Result<Box<dyn Policy>> {
    let (name, parameter) = text.trim().split_once(':').map_or((text.trim(), None), |(n, p)| (n, Some(p)));
    let name: PolicyName = name.parse()?;
    ensure!(
        name != PolicyName::Arbiter,
        "`arbiter` divides the cores that programs request, and simulated programs request none: simulate \
         `congestion-detection`, which lends all other cores, or `arachne`, which estimates the requests"
    );
    let times = parameter.into_iter().flat_map(|times| times.split(':'));
    let times: Result<Vec<Nanos>, _> = times.map(|time| parse_duration_ns(time).map(Nanos)).collect();
    let times = times.with_context(|| format!("allocator `{text}`"))?;
    // Checks the first time, also where two make an allocator of their own.
    let built = name.build(times.first().copied(), seed)?;
    match (name, &times[..]) {
        (PolicyName::Congestion, &[interval, quantum]) => {
            let quanta = Config { burst_quantum: quantum, service_quantum: quantum, ..Config::default() };
            Ok(Box::new(CongestionDetection::new(Config { interval, seed, ..quanta })))
        }
        (_, [] | [_]) => Ok(built),
        _ => bail!("allocator `{text}`: only congestion-detection takes a second time, and none a third"),
    }
}

impl AllocatorStudy {
    fn names(&self) -> anyhow::Result<Vec<String>> {
        let names: Vec<String> = self
            .allocators
            .split([',', ' '])
            .map(str::trim)
            .filter(|n| !n.is_empty())
            .map(str::to_owned)
            .collect();
        ensure!(
            !names.is_empty(),
            "the list of allocators is empty; try congestion-detection,arachne,static"
        );
        for name in &names {
            parse_allocator(name, 0)?;
        }
        Ok(names)
    }

    /// Returns all points: every allocator at every load.
    ///
    /// # Errors
    ///
    /// If a field does not make sense; the message says which and what to write.
    pub fn points(&self) -> anyhow::Result<Vec<(String, f64)>> {
        ensure!((1..=1024).contains(&self.cores), "{} cores: use 1 to 1024", self.cores);
        ensure!((1..=64).contains(&self.services), "{} services: use 1 to 64", self.services);
        let wanted = u32::from(self.guaranteed) * u32::from(self.services);
        ensure!(
            wanted <= u32::from(self.cores),
            "{} services with {} guaranteed cores each need {wanted} cores, there are {}",
            self.services,
            self.guaranteed,
            self.cores
        );
        let loads = parse_loads(&self.loads)?;
        Ok(self
            .names()?
            .into_iter()
            .flat_map(|n| loads.clone().into_iter().map(move |l| (n.clone(), l)))
            .collect())
    }

    /// Runs the study.
    ///
    /// # Errors
    ///
    /// As [`AllocatorStudy::points`].
    pub fn run(&self, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<AllocatorRow>> {
        let points = self.points()?;
        let costs = Costs::load(&self.costs)?;
        let mix = Mix::parse(&self.service)?;
        let replications = self.effort.replications.max(1) as usize;
        let outcomes = parallel(points.len() * replications, self.effort.threads(), tick, |job| {
            let (name, load) = &points[job / replications];
            self.run_once(name, *load, &costs, &mix, seed_of(self.effort.seed, (job % replications) as u32))
        });
        let mut rows = Vec::new();
        for (chunk, (name, load)) in outcomes.chunks(replications).zip(&points) {
            let all: Vec<&Outcome> = chunk
                .iter()
                .map(|o| o.as_ref().map_err(|e| anyhow::anyhow!("{e:#}")))
                .collect::<Result<_, _>>()?;
            rows.push(row(name, *load, &all));
        }
        Ok(rows)
    }

    /// Runs one allocator at one load.
    ///
    /// # Errors
    ///
    /// As [`AllocatorStudy::points`].
    pub fn run_once(
        &self,
        name: &str,
        load: f64,
        costs: &Costs,
        mix: &Mix,
        seed: u64,
    ) -> anyhow::Result<Outcome> {
        let rate = Rate::for_load(load, f64::from(self.cores) / f64::from(self.services), mix.mean_ns())?;
        let requests = self.effort.requests.max(100);
        let duration_ns = (requests as f64 / f64::from(self.services) / rate.per_second() * 1e9) as u64;
        let budget = Budget { warmup: 0, requests: requests / u64::from(self.services), batches: 10 };
        let mut services = Vec::new();
        for i in 0..self.services {
            let max = if name == "static" && self.guaranteed == 0 { self.share(i) } else { self.cores };
            let source = Synthetic::new(self.arrivals, rate, mix.clone(), None, seed_of(seed, u32::from(i)));
            let dispatch: Box<dyn Dispatch + Send> = Box::new(CentralFcfs::new(usize::from(max)));
            let measured = Measured::new(mix.classes().len(), budget);
            services.push(Service {
                source: Box::new(source),
                dispatch,
                guaranteed: self.guaranteed,
                max,
                estimates: false,
                measured,
            });
        }
        let never = self.park_after.trim() == "never";
        let park_after_ns = if never { None } else { Some(parse_duration_ns(&self.park_after)?) };
        // Under a policy that keeps idle cores the kthreads must not park, or they would park and
        // be woken all the time.
        let keeps_idle_cores = matches!(name, "arachne" | "static");
        // Slow controllers need several of their periods to find their level.
        let settling_ns = match name {
            _ if keeps_idle_cores => 2_000_000_000,
            "ix-consolidation" | "ix-energy" => 1_000_000_000,
            _ => 0,
        };
        let setup = Setup {
            topology: Topology::uniform(self.cores, self.smt, 1)?,
            costs,
            policy: parse_allocator(name, seed)?,
            services,
            batch: self.batch,
            park_after_ns: if keeps_idle_cores { None } else { park_after_ns },
            warmup_ns: (duration_ns / 5).max(settling_ns),
            duration_ns,
            hardware: None,
            window_ns: None,
        };
        Ok(Machine::new(setup)?.run())
    }

    /// Returns the cores of service `i` if the machine is divided evenly, the batch job counting as
    /// one more if there is room.
    fn share(&self, i: u16) -> u16 {
        let parts = self.services + u16::from(self.batch && self.cores > self.services);
        (self.cores / parts + u16::from(i < self.cores % parts)).max(1)
    }
}

fn row(name: &str, load: f64, outcomes: &[&Outcome]) -> AllocatorRow {
    let mut services = outcomes.iter().flat_map(|o| &o.services);
    let mut measured = services.next().expect("a study has at least one service").measured.clone();
    services.for_each(|s| measured.merge(&s.measured));
    let sum = |f: &dyn Fn(&Outcome) -> u64| outcomes.iter().map(|o| f(o)).sum::<u64>() as f64;
    let core_ns = sum(&|o| o.core_ns).max(1.0);
    let held = sum(&|o| o.services.iter().map(|s| s.held_ns).sum());
    AllocatorRow {
        allocator: name.to_owned(),
        load,
        p50_ns: measured.latency.quantile(0),
        p99_ns: measured.latency.quantile(2),
        p999_ns: measured.latency.quantile(3),
        efficiency: measured.spent.busy_ns as f64 / held.max(1.0),
        batch_share: sum(&|o| o.batch_ns) / core_ns,
        handoff_share: sum(&|o| o.handoff_ns) / core_ns,
        handoffs_per_s: sum(&|o| o.handoffs) / (core_ns / 1e9) * outcomes[0].cores as f64,
        saturated: measured.saturated,
    }
}

/// Returns the rows as a table.
#[must_use]
pub fn table(rows: &[AllocatorRow]) -> Table {
    let mut table = Table::new(
        "allocator | load | p50 us | p99 us | p99.9 us | efficiency | batch | hand-offs | \
         hand-offs/s",
    );
    for r in rows {
        let mut cells = vec![r.allocator.clone(), percent(r.load)];
        if r.saturated {
            cells.extend(std::iter::repeat_n("saturated".to_owned(), 3));
        } else {
            cells.extend([us(r.p50_ns.value), us(r.p99_ns.value), us_with_error(&r.p999_ns)]);
        }
        cells.extend([percent(r.efficiency), percent(r.batch_share), percent(r.handoff_share)]);
        cells.push(format!("{:.0}", r.handoffs_per_s));
        table.row(cells);
    }
    table
}

/// Tail latency, efficiency and batch share over load.
#[must_use]
pub fn panels(rows: &[AllocatorRow]) -> Vec<Panel> {
    let panel = |title: &str, y_label: &str, log_y, figure: &dyn Fn(&AllocatorRow) -> f64| Panel {
        log_y,
        y_range: if log_y { None } else { Some((0.0, 100.0)) },
        ..Panel::new(title, "load (% of all cores)", y_label, curves(rows, figure))
    };
    vec![
        panel("Tail latency", "p99.9 latency (us)", true, &|r| r.p999_ns.value / 1e3),
        panel("Efficiency", "useful share of the services' core time (%)", false, &|r| r.efficiency * 100.0),
        panel("Batch job", "share of all core time (%)", false, &|r| r.batch_share * 100.0),
    ]
}

fn curves(rows: &[AllocatorRow], figure: &dyn Fn(&AllocatorRow) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for r in rows {
        if lines.last().is_none_or(|l| l.name != r.allocator) {
            lines.push(Line::new(r.allocator.clone(), Vec::new()));
        }
        if let (Some(line), false) = (lines.last_mut(), r.saturated) {
            line.points.push((r.load * 100.0, figure(r)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(allocators: &str, load: &str) -> AllocatorStudy {
        AllocatorStudy {
            allocators: allocators.to_owned(),
            loads: load.to_owned(),
            cores: 4,
            arrivals: ArrivalProcess::Poisson,
            effort: Effort { requests: 8_000, replications: 1, seed: 5, threads: 2 },
            ..AllocatorStudy::default()
        }
    }

    #[test]
    fn fast_allocation_leaves_the_batch_job_what_static_partitions_waste() {
        let rows = study("congestion-detection,delay-threshold,static", "0.3").run(&|| ()).unwrap();
        let [congestion, delay, fixed] = &rows[..] else { panic!("three rows") };
        assert!(congestion.batch_share > fixed.batch_share + 0.1, "{congestion:?} {fixed:?}");
        assert!(delay.batch_share > fixed.batch_share + 0.1, "{delay:?}");
        assert!(congestion.p999_ns.value < 200_000.0, "{congestion:?}");
        assert!(congestion.efficiency > fixed.efficiency, "{congestion:?} {fixed:?}");
    }

    #[test]
    fn equals_that_preempt_at_once_hand_cores_over_more_often() {
        let base =
            study("congestion-detection,congestion-detection:5us:100us,congestion-detection:5us:0us", "0.6");
        let rows = AllocatorStudy { cores: 1, services: 2, guaranteed: 0, ..base }.run(&|| ()).unwrap();
        let [usual, same, at_once] = &rows[..] else { panic!("three rows") };
        assert_eq!((usual.handoffs_per_s, usual.p99_ns), (same.handoffs_per_s, same.p99_ns));
        assert!(at_once.handoffs_per_s > 1.1 * usual.handoffs_per_s, "{at_once:?} {usual:?}");
    }

    #[test]
    fn slow_controllers_run_and_conserve_requests() {
        let slow = AllocatorStudy {
            effort: Effort { requests: 500, ..study("", "").effort },
            ..study("arachne,ix-energy", "0.02")
        };
        for row in slow.run(&|| ()).unwrap() {
            assert!(row.batch_share > 0.05 && !row.saturated, "{row:?}");
        }
    }

    #[test]
    fn the_arbiter_of_requests_that_are_not_made_is_refused() {
        for name in ["arbiter", "arbiter:5us"] {
            let refused = study(name, "0.4").run(&|| ()).unwrap_err().to_string();
            assert!(refused.contains("simulated programs request none"), "{refused}");
        }
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let of = |threads| {
            let base = study("congestion-detection,delay-threshold", "0.4,0.6");
            let effort = Effort { threads, requests: 2_000, replications: 2, ..base.effort };
            format!("{:?}", AllocatorStudy { effort, ..base }.run(&|| ()).unwrap())
        };
        assert_eq!(of(1), of(5));
    }

    #[test]
    fn impossible_machines_are_refused_with_the_arithmetic() {
        let refused = |s: AllocatorStudy| format!("{:#}", s.run(&|| ()).unwrap_err());
        let base = study("congestion-detection", "0.5");
        let over = AllocatorStudy { services: 3, guaranteed: 2, ..base.clone() };
        assert!(refused(over).contains("need 6 cores, there are 4"));
        assert!(refused(study("borg", "0.5")).contains("use one of congestion"));
        assert!(refused(study("static:5us", "0.5")).contains("no parameter"));
        assert!(refused(study("delay-threshold:5us:0us", "0.5")).contains("only congestion-detection takes"));
        assert!(refused(AllocatorStudy { cores: 0, ..base }).contains("0 cores"));
    }
}
