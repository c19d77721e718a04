use super::*;
use proptest::prelude::*;
use tailwater_workload::random::{standard_normal, stream, unit_open_closed};

/// An M/M/1 queue seen through a noisy machine: the p99.9 of its sojourn time is ln(1000) /
/// (capacity - rate), each trial is off by a lognormal factor, and some meet a stall that no load
/// caused.
struct Queue {
    capacity: f64,
    limit_s: f64,
    sigma: f64,
    stalls: f64,
    /// The generator cannot do more than this.
    generator: f64,
}

impl Queue {
    fn knee(&self) -> f64 {
        self.capacity - 1000f64.ln() / self.limit_s
    }

    fn try_rate(&self, rate: f64, prng: &mut tailwater_workload::Prng) -> Judgement {
        let stalled = unit_open_closed(prng) < self.stalls;
        let noise = (self.sigma * standard_normal(prng)).exp();
        let p999_s = if rate >= self.capacity || stalled {
            f64::INFINITY
        } else {
            noise * 1000f64.ln() / (self.capacity - rate)
        };
        let verdict = if rate > self.generator {
            Verdict::GeneratorBehind
        } else if p999_s <= self.limit_s {
            Verdict::Met
        } else {
            Verdict::Missed
        };
        Judgement { verdict, measured_us: vec![p999_s.is_finite().then_some(p999_s * 1e6)] }
    }

    fn search(&self, seed: u64, plan: SearchPlan) -> Found {
        let mut prng = stream(seed, 0);
        let mut search = Search::new(plan);
        while let Some((rate, _)) = search.next_rate() {
            search.record(self.try_rate(rate.per_second(), &mut prng));
        }
        search.found()
    }
}

fn rate(per_second: f64) -> Rate {
    Rate::new(per_second).unwrap()
}

fn plan() -> SearchPlan {
    SearchPlan { from: rate(1e3), up_to: rate(10e6), resolution: 0.03, repeats: 3, max_trials: 80 }
}

fn quiet(capacity: f64) -> Queue {
    Queue { capacity, limit_s: 200e-6, sigma: 0.0, stalls: 0.0, generator: f64::INFINITY }
}

#[test]
fn rates_between_two_are_numbers_that_can_be_read() {
    assert_eq!([between(2e3, 4e3), between(2830.0, 4e3), between(40.0, 50.0)], [2830.0, 3360.0, 44.7]);
    // Three digits do not lie between these.
    let tight = between(2830.0, 2831.0);
    assert!(2830.0 < tight && tight < 2831.0, "{tight}");
}

#[test]
fn without_noise_the_knee_is_found_to_the_resolution_and_confirmed() {
    let queue = quiet(200e3);
    let found = queue.search(1, plan());
    let load = found.load.unwrap().per_second();
    assert!(load <= queue.knee() && load > queue.knee() / 1.03, "{load} for {}", queue.knee());
    assert_eq!(found.bound, Bound::Limit);
    assert_eq!(found.always_met_up_to, found.load);
    assert!(found.never_met_from.unwrap().per_second() <= load * 1.03);
    let confirmations = found.trials.iter().filter(|t| t.purpose == Purpose::Confirm);
    assert_eq!(confirmations.map(|t| t.rate.per_second()).collect::<Vec<_>>(), [load, load]);
}

#[test]
fn a_generator_that_cannot_do_more_is_named_as_the_bound() {
    let found = Queue { generator: 50e3, ..quiet(200e3) }.search(1, plan());
    assert_eq!(found.bound, Bound::Generator);
    let load = found.load.unwrap().per_second();
    assert!(load <= 50e3 && load > 50e3 / 1.03, "{load}");
}

#[test]
fn the_highest_rate_to_try_is_a_bound_of_its_own() {
    let found = quiet(200e3).search(1, SearchPlan { up_to: rate(30e3), ..plan() });
    assert_eq!((found.load, found.bound), (Some(rate(30e3)), Bound::Ceiling));
    assert_eq!(found.never_met_from, None);
}

#[test]
fn a_server_that_never_keeps_the_limit_ends_the_search() {
    let found = quiet(10.0).search(1, plan());
    assert_eq!((found.load, found.bound), (None, Bound::Nothing));
    assert_eq!(found.always_met_up_to, None);
}

#[test]
fn a_first_rate_that_is_too_high_is_halved() {
    let queue = quiet(200e3);
    let found = queue.search(1, SearchPlan { from: rate(1e6), ..plan() });
    let load = found.load.unwrap().per_second();
    assert!(load <= queue.knee() && load > queue.knee() / 1.03, "{load}");
}

#[test]
fn trials_that_run_out_say_so() {
    let found = quiet(200e3).search(1, SearchPlan { max_trials: 5, ..plan() });
    assert_eq!((found.trials.len(), found.bound), (5, Bound::Trials));
    assert_eq!(found.load, Some(rate(16e3)));
}

#[test]
fn through_noise_most_searches_end_near_the_knee() {
    let queue = Queue { sigma: 0.15, stalls: 0.1, ..quiet(200e3) };
    let near = (0..400)
        .filter(|&seed| {
            let found = queue.search(seed, plan());
            let load = found.load.map_or(0.0, Rate::per_second);
            found.bound == Bound::Limit && (load / queue.knee() - 1.0).abs() < 0.08
        })
        .count();
    assert!(near >= 380, "only {near} of 400");
}

proptest! {
    #[test]
    fn any_search_ends_with_a_load_that_a_majority_met(
        capacity in 1e3..5e6f64, sigma in 0.0..1.0f64, stalls in 0.0..0.5f64, generator in 1e3..5e6f64, seed: u64,
        repeats in prop_oneof![Just(1u32), Just(3), Just(5)]
    ) {
        let queue = Queue { capacity, limit_s: 1e-3, sigma, stalls, generator };
        let plan = SearchPlan { repeats, ..plan() };
        let found = queue.search(seed, plan);
        prop_assert!(found.trials.len() <= plan.max_trials as usize);
        if let (Some(load), Bound::Limit | Bound::Generator | Bound::Ceiling) = (found.load, found.bound) {
            let confirmed = found.trials.iter().filter(|t| {
                t.purpose == Purpose::Confirm && t.rate == load && t.judgement.verdict == Verdict::Met
            });
            prop_assert!(confirmed.count() as u32 > repeats / 2);
            prop_assert!(load <= plan.up_to && load.per_second() <= queue.capacity.min(queue.generator));
        }
        if let (Some(met), Some(missed)) = (found.always_met_up_to, found.never_met_from) {
            prop_assert!(met < missed);
        }
    }
}
