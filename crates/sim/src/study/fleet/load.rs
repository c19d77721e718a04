//! The services of one machine in one interval, simulated: on cores that are set aside for each, or
//! on cores that are lent to all.
//!
//! Owns how a row of the trace becomes arrivals, and how long a run is.
//!
//! The trace has a mean and a maximum. A service whose maximum is higher is simulated as bursts:
//! Poisson arrivals at the rate of the maximum for [`Effort::burst_ns`], then none for as long as
//! the mean requires. Each service begins at a random moment of its period, so services burst
//! independently of each other.
//!
//! A run is as long as [`Effort::requests`] of all services take, and longer where its rarest
//! service or its longest period needs that, within bounds. A service that has too few requests for
//! its percentile even so is not judged, and counted.

use tailwater_sched::alloc::{Config, CongestionDetection};
use tailwater_sched::dispatch::{CentralFcfs, PolicySpec};
use tailwater_sched::topology::Topology;
use tailwater_workload::random::{stream, unit_open_closed};
use tailwater_workload::{ArrivalProcess, Rate};

use super::trace::{Interval, Load};
use crate::costs::Costs;
use crate::machine::{Machine, Service, Setup};
use crate::measure::{Budget, Measured, QUANTILES};
use crate::mix::Mix;
use crate::scenario::{Scenario, seed_of};
use crate::source::{Incoming, Source, Synthetic};

/// A maximum that exceeds the mean by less than this share is no burst.
const STEADY: f64 = 0.02;
/// Requests beyond a percentile that are enough to judge it.
const BEYOND: f64 = 2.0;
/// Periods of bursts in a run.
const PERIODS: u64 = 10;
/// A run is at most so many times as long as the requests that were asked for take.
const MAX_TIMES_ASKED: f64 = 4.0;
/// Maximum length of a run.
const MAX_RUN_NS: f64 = 10e9;

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort<'a> {
    pub(super) costs: &'a Costs,
    pub(super) requests: u64,
    pub(super) burst_ns: u64,
    pub(super) seed: u64,
}

/// What a machine whose cores are lent had in one interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    /// The largest latency of a service at its percentile, over its limit; infinite if requests
    /// queued without end.
    pub(super) worst: f64,
    /// Cores that a batch job had beside the services.
    pub(super) batch: f64,
    /// Services with too few requests to be judged.
    pub(super) unjudged: usize,
}

/// Simulates an interval on `cores` cores that congestion detection lends, beside a batch job.
///
/// # Errors
///
/// If there are more services than the ledger takes.
pub(super) fn lend(interval: &Interval, cores: u16, effort: &Effort) -> anyhow::Result<Lent> {
    let duration_ns = duration_ns(interval, effort);
    let budget = Budget { warmup: 0, requests: effort.requests, batches: 1 };
    let service = |(index, (_, load)): (usize, &(String, Load))| {
        anyhow::Ok(Service {
            source: Box::new(source(load, effort, seed_of(effort.seed, index as u32))?),
            dispatch: Box::new(CentralFcfs::new(usize::from(cores))),
            guaranteed: 0,
            max: cores,
            estimates: false,
            measured: Measured::new(1, budget),
        })
    };
    let setup = Setup {
        topology: Topology::uniform(cores, 1, 1)?,
        costs: effort.costs,
        policy: Box::new(CongestionDetection::new(Config { seed: effort.seed, ..Config::default() })),
        services: interval.loads.iter().enumerate().map(service).collect::<Result<_, _>>()?,
        batch: true,
        park_after_ns: Some(50_000),
        warmup_ns: duration_ns / 10,
        duration_ns,
        hardware: None,
        window_ns: None,
    };
    let outcome = Machine::new(setup)?.run();
    let (mut worst, mut unjudged) = (0.0_f64, 0);
    for (service, (_, load)) in outcome.services.iter().zip(&interval.loads) {
        match over_limit(&service.measured, load) {
            Some(ratio) => worst = worst.max(ratio),
            None => unjudged += 1,
        }
    }
    if outcome.services.iter().any(|service| service.measured.saturated) {
        worst = f64::INFINITY;
    }
    let batch = outcome.batch_ns as f64 / outcome.core_ns.max(1) as f64 * f64::from(cores);
    Ok(Lent { worst, batch, unjudged })
}

/// Returns the latency of a service over its limit, on `cores` cores that are set aside for it;
/// infinite if requests queue without end.
///
/// # Errors
///
/// If the load is no rate.
pub(super) fn set_aside(load: &Load, cores: usize, effort: &Effort) -> anyhow::Result<f64> {
    let requests = effort.requests.max((10.0 * enough(load)) as u64);
    let scenario = Scenario {
        cores,
        mix: load.mix.clone(),
        arrivals: arrivals(load, effort.burst_ns),
        load: load.cpu / cores as f64,
        connections: None,
        policy: PolicySpec::CFcfs,
        costs: effort.costs.clone(),
        budget: Budget { warmup: requests / 10, requests, batches: 1 },
        seed: effort.seed,
    };
    let measured = scenario.run_once(0)?;
    let ratio = over_limit(&measured, load).unwrap_or(f64::INFINITY);
    Ok(if measured.saturated { f64::INFINITY } else { ratio })
}

/// Returns the latency of a service at its percentile over its limit; `None` if too few requests
/// say so.
fn over_limit(measured: &Measured, load: &Load) -> Option<f64> {
    let latency = measured.latency.quantile(load.slo.quantile).value / load.slo.limit_ns as f64;
    (measured.latency.count() as f64 >= enough(load)).then_some(latency)
}

/// Returns the requests that are enough for the percentile of its objective.
fn enough(load: &Load) -> f64 {
    BEYOND / (1.0 - QUANTILES[load.slo.quantile])
}

fn rate(load: &Load) -> f64 {
    load.cpu * 1e9 / load.mix.mean_ns()
}

fn duration_ns(interval: &Interval, effort: &Effort) -> u64 {
    let loads = || interval.loads.iter().map(|(_, load)| load);
    let all: f64 = loads().map(rate).sum::<f64>() / 1e9;
    let asked = effort.requests as f64 / all;
    let rarest = loads().map(|load| 1.5 * enough(load) / rate(load) * 1e9).fold(0.0, f64::max);
    let period = loads().map(|load| period_ns(&arrivals(load, effort.burst_ns))).max().unwrap_or(0);
    let wanted = asked.max(rarest).max(PERIODS as f64 * period as f64);
    wanted.min(MAX_TIMES_ASKED * asked).min(MAX_RUN_NS) as u64
}

/// Returns the arrivals whose mean and maximum rate are those of a load.
fn arrivals(load: &Load, burst_ns: u64) -> ArrivalProcess {
    let times = load.max_cpu / load.cpu;
    if times < 1.0 + STEADY {
        return ArrivalProcess::Poisson;
    }
    ArrivalProcess::OnOff { on_ns: burst_ns, off_ns: (burst_ns as f64 * (times - 1.0)) as u64 }
}

/// Returns the time after which bursts repeat; 0 without bursts.
fn period_ns(arrivals: &ArrivalProcess) -> u64 {
    match arrivals {
        ArrivalProcess::OnOff { on_ns, off_ns } => on_ns + off_ns,
        _ => 0,
    }
}

/// A source from a random moment of its first period on.
struct Entered {
    source: Synthetic,
    since_ns: u64,
}

fn source(load: &Load, effort: &Effort, seed: u64) -> anyhow::Result<Entered> {
    let arrivals = arrivals(load, effort.burst_ns);
    // Streams 0 to 2 are those of the source itself.
    let since_ns = (unit_open_closed(&mut stream(seed, 3)) * period_ns(&arrivals) as f64) as u64;
    let mix: Mix = load.mix.clone();
    Ok(Entered { source: Synthetic::new(arrivals, Rate::new(rate(load))?, mix, None, seed), since_ns })
}

impl Source for Entered {
    fn next_request(&mut self) -> Option<Incoming> {
        loop {
            let request = self.source.next_request()?;
            if let Some(at_ns) = request.at_ns.checked_sub(self.since_ns) {
                return Some(Incoming { at_ns, ..request });
            }
        }
    }
}
