//! One point of a study: a machine, a workload, a load and a policy, run several times in parallel.
//!
//! Owns the description, its validation, and the fan-out over replications. Each replication has
//! its own seed, derived from the scenario's and its index alone, and results are joined in order
//! of index: the number of threads changes nothing but the time it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use tailwater_sched::dispatch::{Dispatch, PolicySpec, Setup};
use tailwater_workload::{ArrivalProcess, Rate};

use crate::costs::Costs;
use crate::engine::Engine;
use crate::measure::{Budget, Measured};
use crate::mix::Mix;
use crate::source::{Incoming, Recorded, Source, Synthetic};

/// A complete description of one simulated point.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Worker cores.
    pub cores: usize,
    /// The request classes.
    pub mix: Mix,
    /// How requests arrive.
    pub arrivals: ArrivalProcess,
    /// Offered work as a fraction of all cores, above 0. Overheads come on top.
    pub load: f64,
    /// Flows the requests come by; `None` for unlimited.
    pub connections: Option<u32>,
    /// The dispatch policy.
    pub policy: PolicySpec,
    /// The machine's costs.
    pub costs: Costs,
    /// The amount to measure, per replication.
    pub budget: Budget,
    /// Seed of everything random.
    pub seed: u64,
}

impl Scenario {
    /// Returns the offered requests per second.
    ///
    /// # Errors
    ///
    /// If the load is not a positive number.
    pub fn rate(&self) -> anyhow::Result<Rate> {
        ensure!(
            self.load.is_finite() && self.load > 0.0,
            "load {}: give a fraction of the cores above 0",
            self.load
        );
        Ok(Rate::for_load(self.load, self.cores as f64, self.mix.mean_ns())?)
    }

    /// Runs one replication.
    ///
    /// # Errors
    ///
    /// If the load or the policy's parameters are invalid.
    pub fn run_once(&self, replication: u32) -> anyhow::Result<Measured> {
        let seed = seed_of(self.seed, replication);
        let source = Synthetic::new(self.arrivals, self.rate()?, self.mix.clone(), self.connections, seed);
        self.run_source(source, seed)
    }

    /// As [`Scenario::run_once`], with a policy that is not one of this project's in the place of
    /// [`Scenario::policy`], built for this scenario's cores.
    ///
    /// # Errors
    ///
    /// If the load is invalid.
    pub fn run_with(&self, policy: &mut dyn Dispatch, replication: u32) -> anyhow::Result<Measured> {
        let seed = seed_of(self.seed, replication);
        let source = Synthetic::new(self.arrivals, self.rate()?, self.mix.clone(), self.connections, seed);
        Ok(self.run_policy(policy, source))
    }

    /// Returns the highest of the rates tried, in requests per second, at which the 99th percentile
    /// of latency is at most `limit_ns`, and one replication at it; `None` if there is none. Tries
    /// `most`, a load as [`Scenario::load`], and below it halves the range of loads `halvings`
    /// times.
    ///
    /// # Errors
    ///
    /// As [`Scenario::run_once`].
    pub fn highest_rate(
        &self,
        most: f64,
        limit_ns: f64,
        halvings: u32,
    ) -> anyhow::Result<Option<(f64, Measured)>> {
        let at = |load: f64| {
            let scenario = Scenario { load, ..self.clone() };
            let measured = scenario.run_once(0)?;
            let kept = !measured.saturated && measured.latency.quantile(2).value <= limit_ns;
            let rate = scenario.rate()?.per_second();
            anyhow::Ok(kept.then_some((rate, measured)))
        };
        let mut found = at(most)?;
        if found.is_some() {
            return Ok(found);
        }
        let (mut carried, mut too_much) = (0.0, most);
        for _ in 0..halvings {
            let load = (carried + too_much) / 2.0;
            match at(load)? {
                Some(kept) => (carried, found) = (load, Some(kept)),
                None => too_much = load,
            }
        }
        Ok(found)
    }

    /// Runs a recorded trace through the machine instead of the synthetic workload; warm-up and
    /// load do not apply.
    ///
    /// # Errors
    ///
    /// As [`Scenario::run_once`].
    pub fn run_trace(&self, trace: &Arc<[Incoming]>) -> anyhow::Result<Measured> {
        let budget = Budget { warmup: 0, requests: trace.len() as u64, batches: self.budget.batches };
        Scenario { budget, ..self.clone() }.run_source(Recorded::new(Arc::clone(trace)), self.seed)
    }

    fn run_source(&self, source: impl Source, seed: u64) -> anyhow::Result<Measured> {
        let setup = Setup { workers: self.cores, classes: self.mix.class_info(), seed };
        let mut policy = self.policy.build(&setup).context("dispatch policy")?;
        Ok(self.run_policy(&mut *policy, source))
    }

    fn run_policy(&self, policy: &mut dyn Dispatch, source: impl Source) -> Measured {
        let measured = Measured::new(self.mix.classes().len(), self.budget);
        Engine::new(policy, self.cores, &self.costs, source, measured).run()
    }
}

/// Returns the seed of a replication: the scenario's seed and the index, mixed (SplitMix64's
/// finaliser) so that neighbouring seeds do not share replications.
#[must_use]
pub fn seed_of(seed: u64, replication: u32) -> u64 {
    let mut z = seed.wrapping_add(u64::from(replication).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Runs `replications` of every scenario on `threads` threads and joins each scenario's results.
/// `tick` is called after each finished replication, from any thread.
///
/// # Errors
///
/// The first scenario's error, in order of the list.
pub fn run_all(
    scenarios: &[Scenario],
    replications: u32,
    threads: usize,
    tick: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<Measured>> {
    let replications = replications.max(1) as usize;
    let results = parallel(scenarios.len() * replications, threads, tick, |job| {
        scenarios[job / replications].run_once((job % replications) as u32)
    });
    let mut joined = Vec::with_capacity(scenarios.len());
    for chunk in results.chunks(replications) {
        let mut whole: Option<Measured> = None;
        for result in chunk {
            let one = result.as_ref().map_err(|e| anyhow::anyhow!("{e:#}"))?;
            match &mut whole {
                None => whole = Some(one.clone()),
                Some(sum) => sum.merge(one),
            }
        }
        joined.extend(whole);
    }
    Ok(joined)
}

/// Runs `work(0..jobs)` on `threads` threads (at least one) and returns the results in order of
/// job.
pub fn parallel<T: Send>(
    jobs: usize,
    threads: usize,
    tick: &(dyn Fn() + Sync),
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let mut indexed: Vec<(usize, T)> = std::thread::scope(|scope| {
        let worker = || {
            let mut mine = Vec::new();
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    return mine;
                }
                mine.push((job, work(job)));
                tick();
            }
        };
        let handles: Vec<_> = (0..threads.clamp(1, jobs.max(1))).map(|_| scope.spawn(worker)).collect();
        let join = |h: std::thread::ScopedJoinHandle<'_, Vec<(usize, T)>>| match h.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().flat_map(join).collect()
    });
    indexed.sort_by_key(|(job, _)| *job);
    indexed.into_iter().map(|(_, result)| result).collect()
}

/// Returns the default number of threads: all the machine has.
#[must_use]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
