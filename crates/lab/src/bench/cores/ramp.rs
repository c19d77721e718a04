//! A load that rises and falls, beside a batch job: whether cores follow it.
//!
//! Owns the plans, and the figures that come of a round. A round is, for each of [`WAYS`] in turn,
//! a ramp and a constant load for a tenth of its length at each of [`STEADY`]; every other ramp
//! begins at the top, so that a machine whose speed drifts makes no difference on average.
//!
//! # The lag
//!
//! Cores that follow the load later by `lag` are had for less than the load needs while it rises,
//! and for more while it falls. With a slope of `s` cores a second the two halves of a ramp differ
//! by `2 s lag` cores on average. That difference is known far more exactly than how many cores a
//! program has in any one window, in which the number of requests is random.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tailwater_loadgen::Plan;
use tailwater_testbed::account::Shares;
use tailwater_testbed::bed::{START_TIMEOUT, Testbed};
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::{BatchRates, Measured, note, on_tailwater, progress};
use tailwater_workload::schedule::{Segment, Shape};
use tailwater_workload::{LoadSchedule, Rate};

use crate::bench::quantile;

const WARM_UP: Duration = Duration::from_millis(150);
/// Parts of the capacity between which load moves.
const ENDS: [f64; 2] = [0.05, 0.95];
/// Parts of the capacity of the constant loads, ascending.
const STEADY: [f64; 7] = [0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95];
/// Work of a request, and how many of them a core would serve in a second without any overhead.
pub(super) const SERVICE: &str = "exp:10us";
pub(super) const CORE_RPS: f64 = 100_000.0;
/// Part of that at which the capacity is measured: few hand-offs, and no standing queue.
const TRIAL: f64 = 0.8;
/// How long the batch job runs alone before and after a load.
pub(super) const SOLO: Duration = Duration::from_millis(90);
const FLOWS: u16 = 64;

/// How the service gets cores: lent by congestion detection, or requested by the estimate under
/// `arbiter` and lent by congestion beyond. By name, and whether it requests.
const WAYS: [(&str, bool); 2] = [("congestion-detection", false), ("arbiter, estimate", true)];

/// The figures of both ways.
#[derive(Debug, Serialize)]
pub struct Ramps {
    /// Lent by congestion detection.
    pub lent: Ramp,
    /// Requested by the estimate.
    pub requested: Ramp,
}

/// The figures.
#[derive(Debug, Serialize)]
pub struct Ramp {
    /// Requests a second that the managed cores serve.
    capacity_rps: f64,
    /// By how much cores follow the load later, in milliseconds: the median over the rounds.
    follow_ms: f64,
    /// The same of each round.
    follow_ms_rounds: Vec<f64>,
    p999_over_steady: Ratios,
    /// The batch job's part of what the requests leave.
    batch_of_rest: f64,
    /// 99.9th percentiles under constant load, in microseconds.
    steady: Vec<Steady>,
}

/// The windows of all ramps, each over the constant load at its rate.
#[derive(Debug, Serialize)]
struct Ratios {
    p50: f64,
    p90: f64,
    /// Part of the windows that are at most twice as slow.
    within_twice: f64,
}

#[derive(Debug, Serialize)]
struct Steady {
    /// Part of the capacity.
    load: f64,
    p999_us: f64,
}

/// Measures so many rounds with ramps of this length.
pub fn measure(
    machine: &Machine,
    interrupt: Arc<Interrupt>,
    rounds: u16,
    length: Duration,
) -> anyhow::Result<Ramps> {
    let testbed = Testbed::new(machine.usable_cores.clone(), interrupt, SOLO)?;
    let speed = testbed.calibrate()?;
    let cores = testbed.cores.managed.len() as f64;
    let point = |plan: &Plan, seed, setting| {
        on_tailwater::point(&testbed, speed, plan, seed, setting, &mut HandoffRecord::default())
    };
    let constant = |rps| anyhow::Ok(LoadSchedule::constant(Rate::new(rps)?, nanos(length / 10)));
    let capacity_rps = measure_capacity(cores, length / 10, |plan| {
        let alone = on_tailwater::Setting { batch: false, ..Default::default() };
        point(plan, 0, alone)
    })?;
    note!("capacity: {capacity_rps:.0} requests a second");
    let mut all = WAYS.map(|_| Rounds::default());
    for round in progress::over("ramps", 0..rounds) {
        let (seed, rises_first) = (u64::from(round), round % 2 == 0);
        for ((_, estimates), rounds) in WAYS.into_iter().zip(&mut all) {
            let setting = on_tailwater::Setting { estimates, ..Default::default() };
            let halves = on_tailwater::Setting { in_halves: true, ..setting };
            let ramp = point(&plan(&schedule(capacity_rps, length, rises_first)?)?, seed, halves)?;
            rounds.add(&ramp, length, rises_first);
            for (&load, tails_us) in STEADY.iter().zip(&mut rounds.steady) {
                let measured = point(&plan(&constant(load * capacity_rps)?)?, seed, setting)?;
                tails_us.extend(tails(&measured).map(|(_, p999_us)| p999_us));
            }
        }
    }
    let [lent, requested] = all.map(|rounds| rounds.figures(capacity_rps));
    Ok(Ramps { lent, requested })
}

/// What the rounds of one way gave.
#[derive(Default)]
struct Rounds {
    lags: Vec<f64>,
    rests: Vec<f64>,
    /// Part of the capacity requested in a window of a ramp, and its 99.9th percentile.
    windows: Vec<(f64, f64)>,
    steady: [Vec<f64>; STEADY.len()],
}

impl Rounds {
    /// Takes in a ramp.
    fn add(&mut self, ramp: &Measured, length: Duration, rises_first: bool) {
        self.lags.extend(lag_ms(ramp, length, rises_first));
        self.rests.extend(ramp.batch.map(|batch| BatchRates::share(batch) / (1.0 - middle(ENDS))));
        self.windows.extend(tails(ramp).map(|(window, p999_us)| (load_of(window, rises_first), p999_us)));
    }

    fn figures(self, capacity_rps: f64) -> Ramp {
        let Self { lags, rests, windows, steady } = self;
        let steady = STEADY.iter().zip(steady);
        let steady: Vec<Steady> =
            steady.map(|(&load, all)| Steady { load, p999_us: quantile(all, 0.5) }).collect();
        let ratios: Vec<f64> =
            windows.into_iter().map(|(load, p999_us)| p999_us / steady_us(&steady, load)).collect();
        Ramp {
            capacity_rps,
            follow_ms: quantile(lags.clone(), 0.5),
            follow_ms_rounds: lags,
            p999_over_steady: Ratios {
                within_twice: ratios.iter().filter(|&&ratio| ratio <= 2.0).count() as f64
                    / ratios.len() as f64,
                p50: quantile(ratios.clone(), 0.5),
                p90: quantile(ratios, 0.9),
            },
            batch_of_rest: quantile(rests, 0.5),
            steady,
        }
    }
}

/// Returns how many requests a second so many cores serve: those that are answered below it, per
/// core in fact used. Repeated for longer while other programs have the cores.
fn measure_capacity(
    cores: f64,
    mut length: Duration,
    point: impl Fn(&Plan) -> anyhow::Result<Measured>,
) -> anyhow::Result<f64> {
    let rate = Rate::new(TRIAL * CORE_RPS * cores)?;
    let give_up = Instant::now() + START_TIMEOUT;
    loop {
        let trial = point(&plan(&LoadSchedule::constant(rate, nanos(length)))?)?;
        let answered = trial.measurement.summary.figures().completed as f64 / length.as_secs_f64();
        // Alone, it polls on when it has no request.
        let used = had(&trial.account) - trial.account.iter().map(|shares| shares.service_idle).sum::<f64>();
        let capacity = answered * cores / used;
        // The work alone permits no more: then the account is of another time than the answers.
        if answered > 0.0 && used > 0.0 && capacity <= 2.0 * CORE_RPS * cores {
            return Ok(capacity);
        }
        anyhow::ensure!(Instant::now() < give_up, "no request is answered: the machine is overloaded");
        length *= 2;
    }
}

fn nanos(length: Duration) -> u64 {
    length.as_nanos() as u64
}

fn middle([low, high]: [f64; 2]) -> f64 {
    (low + high) / 2.0
}

/// Returns the schedule of a ramp, without its warm-up.
fn schedule(capacity_rps: f64, length: Duration, rises_first: bool) -> anyhow::Result<LoadSchedule> {
    let [low, high] = [Rate::new(ENDS[0] * capacity_rps)?, Rate::new(ENDS[1] * capacity_rps)?];
    let slope = |from, to| Segment { length_ns: nanos(length / 2), shape: Shape::Slope { from, to } };
    let (first, then) = if rises_first { (low, high) } else { (high, low) };
    Ok(LoadSchedule::new(vec![slope(first, then), slope(then, first)])?)
}

/// Returns the plan of a schedule, with a warm-up at the rate at which it begins.
fn plan(schedule: &LoadSchedule) -> anyhow::Result<Plan> {
    let warm_up = LoadSchedule::constant(schedule.rate_at(0), nanos(WARM_UP));
    let segments = [warm_up.segments(), schedule.segments()].concat();
    let whole = Plan::new(LoadSchedule::new(segments)?, SERVICE.parse()?);
    Ok(Plan { warm_up_ns: nanos(WARM_UP), flows: FLOWS, intervals: true, ..whole })
}

/// Returns the part of the capacity that is requested in the middle of a window of a ramp, which is
/// given by its middle as a part of the ramp.
fn load_of(at: f64, rises_first: bool) -> f64 {
    // 1 in the middle of the ramp, 0 at its ends.
    let near = 1.0 - (2.0 * at - 1.0).abs();
    let part = if rises_first { near } else { 1.0 - near };
    ENDS[0] + part * (ENDS[1] - ENDS[0])
}

/// Returns the middle of each window, as a part of the counted time, and its 99.9th percentile in
/// microseconds.
fn tails(measured: &Measured) -> impl Iterator<Item = (f64, f64)> {
    let intervals = measured.measurement.summary.intervals();
    let count = intervals.list.iter().map(|interval| interval.index + 1).max().unwrap_or(1) as f64;
    let middle = move |index: u64| (index as f64 + 0.5) / count;
    intervals
        .list
        .iter()
        .filter_map(move |interval| Some((middle(interval.index), interval.latency_ns(0.999)? as f64 / 1e3)))
}

/// Returns how many cores the service had, those that changed hands included.
fn had(account: &[Shares]) -> f64 {
    account.iter().map(|shares| 1.0 - shares.free - shares.held_by_batch()).sum()
}

fn lag_ms(ramp: &Measured, length: Duration, rises_first: bool) -> Option<f64> {
    let [first, last] = ramp.halves.as_ref()?.each_ref().map(|half| had(half));
    let (rising, falling) = if rises_first { (first, last) } else { (last, first) };
    Some(lag_of((rising, falling), length))
}

/// Returns the lag in milliseconds, by how many cores were had while the load rose and fell.
fn lag_of((rising, falling): (f64, f64), length: Duration) -> f64 {
    // Requests cost more than their work: the slope is that of the cores in fact had.
    let cores_per_load = middle([rising, falling]) / middle(ENDS);
    let slope = (ENDS[1] - ENDS[0]) * cores_per_load / (length / 2).as_secs_f64();
    1e3 * (falling - rising) / (2.0 * slope)
}

/// Returns the 99.9th percentile under a constant load between those measured.
fn steady_us(steady: &[Steady], load: f64) -> f64 {
    let above = steady.iter().position(|one| one.load >= load).unwrap_or(steady.len() - 1).max(1);
    let (low, high) = (&steady[above - 1], &steady[above]);
    let part = ((load - low.load) / (high.load - low.load)).clamp(0.0, 1.0);
    low.p999_us + part * (high.p999_us - low.p999_us)
}

/// Returns the figures in words.
pub fn describe(Ramps { lent, requested }: &Ramps) -> String {
    let [(first, _), (second, _)] = WAYS;
    format!("{first}:\n{}\n{second}:\n{}", describe_one(lent), describe_one(requested))
}

fn describe_one(ramp: &Ramp) -> String {
    let mut table = Table::new("constant load, % of capacity | p99.9 of windows of 100 ms, us");
    for Steady { load, p999_us } in &ramp.steady {
        table.row([number(100.0 * load), number(*p999_us)]);
    }
    let Ratios { p50, p90, within_twice } = &ramp.p999_over_steady;
    format!(
        "{table}\ncapacity {} requests a second; load from {} to {} % and back:\n\
         cores follow within {} ms (rounds: {}); p99.9 over that of a constant load: median {}, nine tenths within {}, {} % within 2;\n\
         the batch job gets {} of what is left\n",
        number(ramp.capacity_rps),
        number(100.0 * ENDS[0]),
        number(100.0 * ENDS[1]),
        number(ramp.follow_ms),
        ramp.follow_ms_rounds.iter().copied().map(number).collect::<Vec<_>>().join(", "),
        number(*p50),
        number(*p90),
        number(100.0 * within_twice),
        number(ramp.batch_of_rest)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_follow_later_are_had_for_less_on_the_way_up_and_for_more_on_the_way_down() {
        // A fifth of a second late; the load changes by 0.18 cores a second.
        let (late, length) = (0.2 * 0.18, Duration::from_secs(10));
        let lag = lag_of((0.5 - late, 0.5 + late), length);
        assert!((lag - 200.0).abs() < 1e-6, "{lag}");
        assert_eq!(lag_of((0.55, 0.55), length), 0.0);
    }

    #[test]
    fn a_ramp_is_where_its_schedule_is() {
        let length = Duration::from_secs(4);
        for rises_first in [true, false] {
            let schedule = schedule(1_000.0, length, rises_first).unwrap();
            for at in [0.05, 0.3, 0.5, 0.9] {
                let rate = schedule.rate_at((at * nanos(length) as f64) as u64).per_second();
                let load = load_of(at, rises_first);
                assert!((rate - 1_000.0 * load).abs() < 1e-3, "{rate} at {at}, not {load}");
            }
        }
    }

    #[test]
    fn a_load_between_two_has_a_tail_between_theirs() {
        let steady = [(0.2, 10.0), (0.4, 20.0), (0.8, 100.0)];
        let steady = steady.map(|(load, p999_us)| Steady { load, p999_us });
        let tail = |load| steady_us(&steady, load);
        assert!((tail(0.3) - 15.0).abs() < 1e-9 && (tail(0.6) - 60.0).abs() < 1e-9);
        assert_eq!([tail(0.1), tail(0.9)], [10.0, 100.0]);
    }
}
