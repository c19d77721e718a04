//! Figure 7: mean and 99th percentile of a key-value store's latency over its throughput, for the
//! workloads ETC and USR.

use tailwater_workload::keyvalue::Workload;

use super::super::contest::{self, Contest, Point, program_cases};
use super::super::figure::{Claim, Context, Figure, Outcome, Spread, number};
use super::super::ratio::Between;
use super::super::stores::{MAX_GENERATOR_RATE, MEDIUM, MEMCACHED, TAILWATER, UNIT, conditions, requests};
use tailwater_testbed::program::Program;

/// The paper's panels, with the ratio of IX's load to Linux's at a p99 of [`LIMIT_US`] (table III).
const WORKLOADS: [(&str, Workload, f64); 2] = [("ETC", Workload::Etc, 4.7), ("USR", Workload::Usr, 6.4)];
/// Tailwater's curve of the claims is an event loop's, which is what IX is.
const THREADS: &str = "Tailwater, user threads";
const LIMIT_US: f64 = 500.0;
const LOADS: [f64; 8] = [5.0, 25.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0];
const QUICK_LOADS: [f64; 1] = [25.0];
const ROUNDS: usize = 3;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let threads = rig.testbed.cores.managed.len();
    let loads: &[f64] = if context.options.quick { &QUICK_LOADS } else { &LOADS };
    let workloads = if context.options.quick { &WORKLOADS[1..] } else { &WORKLOADS[..] };
    let programs: Vec<_> =
        workloads.iter().map(|&(name, workload, _)| (name, programs(threads, workload))).collect();
    let count: usize = programs.iter().map(|(_, programs)| programs.len()).sum();
    let pace = context.pace(loads.len() * count, ROUNDS);
    let mut cases = Vec::new();
    for (name, programs) in &programs {
        cases.extend(program_cases(name, programs, &pace, loads)?);
    }
    let contest = contest::run(figure, context, cases, &pace)?.per(UNIT);
    let panels = workloads.iter().flat_map(|&(name, ..)| {
        let mean = contest.panel_of(name, "mean (us)", Point::mean_us, Vec::new());
        [mean, contest.panel_of(name, "p99 (us)", Point::p99_us, Vec::new())]
    });
    let panels: Vec<_> = panels.collect();
    let claims = workloads.iter().flat_map(|(name, _, ratio)| claims(&contest, name, *ratio)).collect();
    Ok(contest.outcome(&panels, claims, conditions()))
}

/// Returns the stores, with nothing beside them.
fn programs(threads: usize, workload: Workload) -> Vec<(&'static str, Program)> {
    let memcached = Program::memcached(threads, requests(workload)).map(|program| (MEMCACHED, program));
    let own = Program::kv(threads, requests(workload));
    let all = [(TAILWATER, own.clone().run_to_completion()), (THREADS, own)].into_iter().chain(memcached);
    all.map(|(curve, program)| (curve, program.over(MEDIUM).alone())).collect()
}

fn claims(contest: &Contest, workload: &str, ratio: f64) -> [Claim; 2] {
    [at_the_limit(contest, workload, ratio), lower(contest, workload)]
}

/// Judges the highest loads tried within the limit: the true limit of a system lies between that
/// load and the next one.
fn at_the_limit(contest: &Contest, workload: &str, ratio: f64) -> Claim {
    let paper =
        format!("{workload}: at a p99 of {LIMIT_US} us IX serves {ratio} times as many requests as Linux");
    let within = |point: &Point| point.p99_us().is_some_and(|p99| p99.median <= LIMIT_US);
    let shown = |Between { at_least, at_most }| match at_least {
        0.0 => "none of the loads tried".to_owned(),
        load if at_most.is_finite() => format!("{load} to {at_most} thousand/s"),
        load => format!("{load} thousand/s, the highest load tried, or more"),
    };
    let [own, mut theirs] = [TAILWATER, MEMCACHED].map(|curve| contest.between(workload, curve, within));
    let ours = format!("{}, memcached on Linux {}", shown(own), shown(theirs));
    // The generator on kernel sockets may be what bounds memcached.
    if theirs.at_most > MAX_GENERATOR_RATE {
        theirs.at_most = f64::INFINITY;
    }
    let is_known = own.at_least > 0.0 && theirs.at_least > 0.0;
    Claim::judged(&paper, ours, own.is_times(ratio, theirs).filter(|_| is_known))
}

/// Judges whether both latencies are lower at every load at which both systems keep up.
fn lower(contest: &Contest, workload: &str) -> Claim {
    let paper =
        format!("{workload}: mean and p99 are lower on IX than on Linux at every load of Linux's curve");
    let mut ratios = Vec::new();
    let mut listed = Vec::new();
    for point in contest.curve(workload, TAILWATER) {
        let load = point.case.load;
        let Some(other) = contest.at(workload, MEMCACHED, load).filter(|other| !other.saturated()) else {
            continue;
        };
        let ratio = |value: fn(&Point) -> Option<Spread>| -> Option<f64> {
            // A system that does not keep up has no latency to compare.
            let own = if point.saturated() { f64::INFINITY } else { value(point)?.median };
            Some(value(other)?.median / own)
        };
        let (Some(mean), Some(p99)) = (ratio(Point::mean_us), ratio(Point::p99_us)) else { continue };
        ratios.extend([mean, p99]);
        listed.push(format!("{} and {} ({load})", number(mean), number(p99)));
    }
    if ratios.is_empty() {
        return Claim::not_comparable(&paper, "there is no load at which memcached keeps up".to_owned());
    }
    let ours =
        format!("mean and p99 of memcached in times of Tailwater's (thousand/s): {}", listed.join(", "));
    Claim::new(&paper, ours, ratios.iter().all(|&ratio| ratio > 1.0))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// Judges points by curve, load, p99 and whether they are saturated.
    fn verdicts(rows: &[(&'static str, f64, f64, bool)]) -> Vec<Verdict> {
        let make = |&(curve, load, p99_us, saturated): &(&str, f64, f64, bool)| {
            point(curve, load, &[2.0 * p99_us], 0.5, saturated).on("USR")
        };
        let contest = contest(rows.iter().map(make).collect());
        claims(&contest, "USR", 6.4).iter().map(|claim| claim.verdict).collect()
    }

    const GOOD: [(&str, f64, f64, bool); 6] = [
        (TAILWATER, 25.0, 20.0, false),
        (MEMCACHED, 25.0, 60.0, false),
        (TAILWATER, 50.0, 30.0, false),
        (MEMCACHED, 50.0, 900.0, false),
        (TAILWATER, 400.0, 300.0, false),
        (MEMCACHED, 400.0, 9000.0, true),
    ];

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(&GOOD), [Reached; 2]);
        let mut slow = GOOD;
        (slow[2].2, slow[4].2, slow[3].2) = (1000.0, 2000.0, 950.0);
        assert_eq!(verdicts(&slow), [NotReached; 2]);
    }

    #[test]
    fn intervals_that_overlap_and_a_missing_rival_decide_nothing() {
        let mut close = GOOD;
        close[3].2 = 400.0;
        assert_eq!(verdicts(&close)[0], NotComparable, "memcached's limit lies between 50 and 400");
        let own: Vec<_> = GOOD.into_iter().filter(|row| row.0 == TAILWATER).collect();
        assert_eq!(verdicts(&own), [NotComparable; 2]);
    }
}
