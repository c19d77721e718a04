//! IX (TOCS'17), figure 5, part a: connections of one message a second, over the number of cores.
//!
//! Owns the cost of a connection, the bound of the polling core, and the claims about scaling.
//! Each core's event loop handles the requests of the flow groups that hash to it: that is all in
//! IX (`d-fcfs`); on Tailwater a core without work takes those of another one as well (`steal`).
//! Connections are new ones each, so no two need be of one group. Not simulated: caches, locks, and
//! the client.
//!
//! All frames of Tailwater pass one polling core. It is a stage before the others, so the rate is
//! at most what it switches; the time that frames wait for it is not simulated. IX has none: its
//! network card divides the flows.
//!
//! `ix-fig5` of the command measures one core, and more where a machine has them.

use super::{Claim, Options};
use crate::costs::Costs;
use crate::mix::Mix;
use crate::scenario::{Scenario, parallel};
use crate::study::Effort;
use tailwater_sched::dispatch::PolicySpec;
use tailwater_workload::ArrivalProcess;

/// A connection of one message on one core: handshake, echo, reset. 269,000 a second were measured
/// on a virtual machine (AMD EPYC, 2.6 GHz, `ix-fig5`).
const CONNECTION: &str = "const:3700ns";
const CONNECTION_NS: f64 = 3_700.0;
/// Frames of such a connection, at least: SYN, SYN and ACK, request, echo, reset.
const FRAMES: f64 = 5.0;
/// Time of the polling core for a frame: 10.6 million a second were measured on such machines
/// (`bench switch`), 5.3 to 15.3 million in other minutes.
const FRAME_NS: f64 = 94.0;
/// The costs of this project's machine; those of a request's packets are in [`CONNECTION`].
const COSTS: &str = "vm-2vcpu";

/// The paper's server has eight cores; twice as many show the polling core's bound.
const MOST: usize = 16;
const QUICK_CORES: [usize; 3] = [1, PAPERS_CORES, MOST];
const PAPERS_CORES: usize = 8;
/// Connections per second of IX with eight cores.
const PAPERS_RPS: f64 = 4.2e6;
/// "Linearly": at least this part of so many times one core.
const LINEAR: f64 = 0.9;

/// A rate is carried if the p99 is at most this; a queue that grows passes it within the run.
const LIMIT_NS: f64 = 200_000.0;
/// Halvings of the range in which the highest rate lies: to 0.4 % of it.
const HALVINGS: u32 = 8;

/// The simulated systems, in the order of [`SYSTEMS`].
const TAILWATER: usize = 0;
/// Name, policy in notation, and whether all frames pass a polling core.
const SYSTEMS: [(&str, &str, bool); 2] =
    [("Tailwater, simulated", "steal", true), ("IX's policy, simulated", "d-fcfs", false)];

/// A system on a number of cores, at its highest rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByCores {
    /// The system.
    pub system: &'static str,
    /// Cores that serve; at least 1.
    pub cores: usize,
    /// Connections per second, each with one message.
    pub rate_rps: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
}

/// Returns the most calls of `tick` of [`connections_by_cores`].
#[must_use]
pub fn points(options: &Options) -> u64 {
    (SYSTEMS.len() * cores(options).len()) as u64
}

fn cores(options: &Options) -> Vec<usize> {
    if options.quick { QUICK_CORES.to_vec() } else { (1..=MOST).collect() }
}

/// Returns the connections per second that one polling core passes.
fn passed_rps() -> f64 {
    1e9 / (FRAMES * FRAME_NS)
}

/// Runs all systems on all numbers of cores.
///
/// # Errors
///
/// Only if the built-in parameters are malformed, which tests exclude.
pub fn connections_by_cores(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<ByCores>> {
    let requests = if options.quick { 5_000 } else { 100_000 };
    let effort = Effort { requests, replications: 1, seed: options.seed, threads: options.threads };
    let cores = cores(options);
    let jobs = SYSTEMS.len() * cores.len();
    let run = |job: usize| highest(SYSTEMS[job / cores.len()], cores[job % cores.len()], effort);
    parallel(jobs, effort.threads(), tick, run).into_iter().collect()
}

fn highest(
    (system, policy, has_polling_core): (&'static str, &str, bool),
    cores: usize,
    effort: Effort,
) -> anyhow::Result<ByCores> {
    let policy: PolicySpec = policy.parse()?;
    let scenario = Scenario {
        cores,
        mix: Mix::parse(CONNECTION)?,
        arrivals: ArrivalProcess::Poisson,
        load: 1.0,
        connections: None,
        policy,
        costs: Costs { packet_ns: 0, ..Costs::load(COSTS)? },
        budget: effort.budget(),
        seed: effort.seed,
    };
    let passed = passed_rps() * CONNECTION_NS / 1e9 / cores as f64;
    let most = if has_polling_core { passed.min(1.0) } else { 1.0 };
    let found = scenario.highest_rate(most, LIMIT_NS, HALVINGS)?;
    let (rate_rps, p50_us, p99_us) = found.map_or((0.0, f64::NAN, f64::NAN), |(rate, measured)| {
        let us = |index| measured.latency.quantile(index).value / 1e3;
        (rate, us(0), us(2))
    });
    Ok(ByCores { system, cores, rate_rps, p50_us, p99_us })
}

/// Returns the simulated systems, Tailwater first.
pub fn systems() -> impl Iterator<Item = &'static str> {
    SYSTEMS.into_iter().map(|(system, ..)| system)
}

/// Judges the paper's claims about part a by what was simulated of Tailwater.
#[must_use]
pub fn judge(all: &[ByCores]) -> Vec<Claim> {
    let at = |cores: usize| {
        let own = |row: &&ByCores| row.system == SYSTEMS[TAILWATER].0 && row.cores == cores;
        all.iter().find(own).map_or(f64::NAN, |row| row.rate_rps)
    };
    let (one, eight, most) = (at(1), at(PAPERS_CORES), at(MOST));
    let part = |rate: f64, cores: usize| rate / (cores as f64 * one);
    let linear = part(eight, PAPERS_CORES);
    vec![
        Claim::new(
            "a: IX scales linearly to eight cores",
            format!(
                "simulated: with {PAPERS_CORES} cores {:.0} % of {PAPERS_CORES} times one core, with {MOST} cores {:.0} % of {MOST} \
                 times; one polling core passes {:.1} million/s",
                100.0 * linear,
                100.0 * part(most, MOST),
                passed_rps() / 1e6
            ),
            linear >= LINEAR,
        ),
        Claim::new(
            "a: 4.2 million connections/s with eight cores over 4 x 10 GbE",
            format!(
                "simulated: {:.2} million/s with {PAPERS_CORES} cores, {:.2} with one",
                eight / 1e6,
                one / 1e6
            ),
            eight >= PAPERS_RPS,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_add_up_until_the_polling_core_passes_no_more() {
        let effort = Effort { requests: 5_000, replications: 1, ..Effort::default() };
        let rate = |system: usize, cores| highest(SYSTEMS[system], cores, effort).unwrap().rate_rps;
        let one = rate(TAILWATER, 1);
        assert!((0.9..=1.0).contains(&(one * CONNECTION_NS / 1e9)), "{one}");
        let four = rate(TAILWATER, 4) / one;
        assert!((3.8..4.3).contains(&four), "{four}");
        assert_eq!(rate(TAILWATER, MOST).round(), passed_rps().round());
        let ix = rate(1, MOST) / rate(1, 1);
        assert!((15.0..17.0).contains(&ix), "{ix}");
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let holds = |one: f64, eight: f64| {
            let row = |cores, rate_rps| ByCores {
                system: SYSTEMS[TAILWATER].0,
                cores,
                rate_rps,
                p50_us: 1.0,
                p99_us: 1.0,
            };
            let all = [row(1, one), row(PAPERS_CORES, eight), row(MOST, eight)];
            judge(&all).iter().map(|claim| claim.holds).collect::<Vec<_>>()
        };
        assert_eq!(holds(0.55e6, 4.3e6), [true, true]);
        assert_eq!(holds(0.7e6, 4.3e6), [false, true]);
        assert_eq!(holds(0.26e6, 2.1e6), [true, false]);
        assert!(judge(&[]).iter().all(|claim| !claim.holds), "nothing was simulated");
    }

    #[test]
    fn every_system_has_every_number_of_cores() {
        let options = Options { quick: true, seed: 1, threads: 2 };
        let all = connections_by_cores(&options, &|| ()).unwrap();
        assert_eq!(all.len() as u64, points(&options));
        for system in systems() {
            let cores: Vec<usize> =
                all.iter().filter(|row| row.system == system).map(|row| row.cores).collect();
            assert_eq!(cores, QUICK_CORES);
        }
        assert!(all.iter().all(|row| row.rate_rps > 0.0 && row.p50_us <= row.p99_us), "{all:?}");
    }
}
