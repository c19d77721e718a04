//! Figure 3: a key-value store under the workload USR beside a batch job; tail latency and batch
//! throughput over load. Also memcached alone, with which the paper compares throughput.

use std::sync::Arc;

use tailwater_loadgen::protocol::Protocol;
use tailwater_workload::keyvalue::Workload;

use super::super::aims;
use super::super::arbiter::{self, ARBITER};
use super::super::batch;
use super::super::contest::{self, Contest, Point, program_cases};
use super::super::figure::{Claim, Context, Figure, Outcome, Spread, number};
use super::super::stores::{
    MAX_GENERATOR_RATE, MEDIUM, MEMCACHED, MEMCACHED_AS_IT_IS, TAILWATER, UNIT, conditions, requests,
};
use tailwater_testbed::program::Program;

const USR: &str = "USR";
const KV_ON_LINUX: &str = "Linux, kv";
const MEMCACHED_ALONE: &str = "Linux, memcached, nothing beside";
const ROUNDS: usize = 3;
/// Section 7.1: median and 99.9th percentile at five million requests per second.
const PAPER_P50_US: f64 = 37.0;
const PAPER_P999_US: f64 = 93.0;
/// The load per core at that point, five million over 12 hyperthreads, in thousands.
const PAPERS_LOAD_PER_CORE: f64 = 5_000.0 / 12.0;
/// The latency from which on a tail spikes, for both systems. The paper gives no number; this is
/// IX's limit (TOCS'17, table III).
const SPIKE_US: f64 = 500.0;
/// "Far higher": at least this many times.
const FAR: f64 = 2.0;
/// Load in thousands up to which Linux leaves the batch job more in the paper, too.
const LOWEST: f64 = 25.0;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let loads: &[f64] = if context.options.quick {
        &[25.0, 100.0]
    } else {
        &[5.0, 10.0, 25.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0, 500.0, 600.0, 800.0]
    };
    let pace = context.pace(loads.len() * 6, ROUNDS);
    let programs = programs(rig.testbed.cores.managed.len());
    let mut cases = program_cases(USR, &programs, &pace, loads)?;
    let quick = context.options.quick;
    cases.retain(|case| case.curve != ARBITER || arbiter::has_load(quick, loads, case.load));
    let contest = contest::run(figure, context, cases, &pace)?.per(UNIT);
    let panels = [contest.latency_panel(USR, Vec::new()), contest.batch_panel(USR, Vec::new())];
    let mut claims = claims(&contest, rig.testbed.cores.managed.len());
    claims.push(arbiter::claim(&contest, TAILWATER));
    Ok(contest.outcome(&panels, claims, conditions()))
}

fn usr() -> Arc<dyn Protocol> {
    requests(Workload::Usr)
}

fn programs(threads: usize) -> Vec<(&'static str, Program)> {
    let mut programs = vec![
        (TAILWATER, Program::kv(threads, usr())),
        (ARBITER, Program::kv(threads, usr()).estimating()),
        (KV_ON_LINUX, Program::kv_on_linux(threads, usr())),
    ];
    programs.extend(Program::memcached_as_it_is(threads, usr()).map(|program| (MEMCACHED_AS_IT_IS, program)));
    if let Some(program) = Program::memcached(threads, usr()) {
        programs.extend([(MEMCACHED, program.clone()), (MEMCACHED_ALONE, program.alone())]);
    }
    programs.into_iter().map(|(curve, program)| (curve, program.over(MEDIUM))).collect()
}

fn claims(contest: &Contest, cores: usize) -> Vec<Claim> {
    let mut claims = vec![latency(contest, cores)];
    if contest.curve(USR, MEMCACHED).is_empty() {
        const WHY: &str = "memcached is not installed";
        claims.extend([MORE, TAIL, BATCH].map(|paper| Claim::not_comparable(paper, WHY.to_owned())));
    } else {
        let batch = batch::more(contest, [TAILWATER, MEMCACHED], LOWEST, UNIT, BATCH);
        claims.extend([more(contest), tail(contest), batch]);
    }
    for own in [TAILWATER, MEMCACHED_AS_IT_IS] {
        claims.extend(aims::claims(contest, USR, [own, MEMCACHED], MAX_GENERATOR_RATE, UNIT));
    }
    claims
}

const MORE: &str = "over five million requests/s on Shenango beside a batch job; about 800,000 with memcached on Linux before its tail spikes, \
    with nothing beside it";
/// The paper's ratio to the load of memcached on Linux.
const PAPERS_RATIO: f64 = 6.25;
const TAIL: &str = "beside a batch job the tail of memcached on Linux is far higher than that on Shenango (at 400,000 requests/s over 2 ms)";
const BATCH: &str = "Shenango leaves the batch job more than Linux does at all but the lowest loads";

fn shown(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| spread.to_string())
}

/// Judges the paper's bounds at the lowest load tried that is at least the paper's load per core.
fn latency(contest: &Contest, cores: usize) -> Claim {
    let paper = "at over five million requests/s (12 hyperthreads) a median of 37 us and a 99.9th percentile of 93 us";
    let within = |point: &Point| {
        point.p50_us().is_some_and(|p50| p50.median <= PAPER_P50_US)
            && point.tail_us().is_some_and(|tail| tail.median <= PAPER_P999_US)
    };
    let up_to = match contest.highest(USR, TAILWATER, within) {
        Some(point) => {
            format!("both are within these bounds at up to {} thousand requests/s", point.case.load)
        }
        None => "at no load are both within these bounds".to_owned(),
    };
    let least = PAPERS_LOAD_PER_CORE * cores as f64;
    let Some(point) = contest.curve(USR, TAILWATER).into_iter().find(|point| point.case.load >= least) else {
        let why = format!("as much per shared core, {least:.0} thousand requests/s, was not tried; {up_to}");
        return Claim::not_comparable(paper, why);
    };
    let ours = format!(
        "at {} thousand requests/s, the paper's load per core, a median of {} us and a windowed p99.9 of {} us{}; {up_to}",
        point.case.load,
        shown(point.p50_us()),
        shown(point.tail_us()),
        if point.saturated() { ", saturated" } else { "" }
    );
    Claim::new(paper, ours, !point.saturated() && within(point))
}

/// Returns the point of the highest load before the tail spikes.
fn knee<'a>(contest: &'a Contest, curve: &str) -> Option<&'a Point> {
    contest.highest(USR, curve, |point| point.tail_us().is_some_and(|tail| tail.median <= SPIKE_US))
}

fn more(contest: &Contest) -> Claim {
    let (own, theirs) = (knee(contest, TAILWATER), knee(contest, MEMCACHED_ALONE));
    let text = |point: Option<&Point>| match point {
        Some(point) => {
            format!("{} thousand/s (windowed p99.9 {} us)", point.case.load, shown(point.tail_us()))
        }
        None => "none".to_owned(),
    };
    let ours = format!(
        "highest load of those tried with a windowed p99.9 of at most {SPIKE_US} us: {} beside the batch job, memcached with nothing beside {}",
        text(own),
        text(theirs)
    );
    let Some(theirs) = theirs.map(|point| point.case.load) else {
        return Claim::not_comparable(MORE, ours);
    };
    let own = own.map_or(0.0, |point| point.case.load);
    let most = contest.points.iter().map(|point| point.case.load).fold(0.0, f64::max);
    let holds = own >= PAPERS_RATIO * theirs;
    // The generator may bound memcached there, and Tailwater is unknown beyond the highest load
    // tried.
    let is_open = theirs >= MAX_GENERATOR_RATE.min(most) || (own >= most && !holds);
    Claim::judged(MORE, ours, (!is_open).then_some(holds))
}

/// Judges the tails beside the batch job where memcached keeps up.
fn tail(contest: &Contest) -> Claim {
    let mut ratios = Vec::new();
    let mut listed = Vec::new();
    for point in contest.curve(USR, TAILWATER) {
        let load = point.case.load;
        let other = contest.at(USR, MEMCACHED, load).filter(|other| !other.saturated());
        let Some((a, b)) = other.and_then(|other| Some((point.tail_us()?, other.tail_us()?))) else {
            continue;
        };
        // A system that does not keep up has no tail to compare.
        let ratio = if point.saturated() { 0.0 } else { b.median / a.median };
        ratios.push(ratio);
        listed.push(format!("{} ({load})", number(ratio)));
    }
    if ratios.is_empty() {
        return Claim::not_comparable(TAIL, "memcached keeps up with no load tried".to_owned());
    }
    let ours = format!(
        "windowed p99.9 of memcached beside it in times of Tailwater's (thousand/s), where memcached keeps up: {}; far is {FAR}",
        listed.join(", ")
    );
    Claim::new(TAIL, ours, ratios.iter().all(|&ratio| ratio >= FAR))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// Curve, load, tail, share, saturated: the median is a tenth of the tail.
    type Row = (&'static str, f64, f64, f64, bool);

    fn verdicts(rows: &[Row]) -> Vec<Verdict> {
        let make = |&(curve, load, tail, share, saturated): &Row| {
            let mut point = point(curve, load, &[tail], share, saturated).on(USR);
            if curve == MEMCACHED_ALONE {
                point.samples.iter_mut().for_each(|sample| sample.batch = None);
            }
            point
        };
        // The last four are tested in `aims`.
        let mut claims = claims(&contest(rows.iter().map(make).collect()), 1);
        let aims = claims.split_off(claims.len() - 4);
        assert!(aims.iter().all(|claim| claim.paper.contains("this project's aim")));
        claims.iter().map(|claim| claim.verdict).collect()
    }

    const GOOD: [Row; 9] = [
        (TAILWATER, 25.0, 50.0, 0.9, false),
        (MEMCACHED, 25.0, 150.0, 0.95, false),
        (MEMCACHED_ALONE, 25.0, 80.0, 0.0, false),
        (TAILWATER, 50.0, 60.0, 0.8, false),
        (MEMCACHED, 50.0, 2000.0, 0.7, false),
        (MEMCACHED_ALONE, 50.0, 300.0, 0.0, false),
        (TAILWATER, 500.0, 90.0, 0.1, false),
        (MEMCACHED, 500.0, 9000.0, 0.0, true),
        (MEMCACHED_ALONE, 500.0, 9000.0, 0.0, true),
    ];

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(&GOOD), [Reached; 4]);
        let mut slow = GOOD;
        slow[6].2 = 120.0;
        assert_eq!(verdicts(&slow)[0], NotReached, "within the bounds only at lower loads per core");
        let mut close = GOOD;
        close[3].2 = 1500.0;
        assert_eq!(verdicts(&close)[2], NotReached, "1.3 times is not far");
        let mut greedy = GOOD;
        greedy[3].3 = 0.5;
        assert_eq!(verdicts(&greedy)[3], NotReached);
    }

    #[test]
    fn more_is_than_memcached_without_the_batch_job_before_its_tail_spikes() {
        let mut beside = GOOD;
        beside[4].4 = true;
        assert_eq!(verdicts(&beside)[1], Reached, "what it does beside the batch job changes nothing");
        let mut even = GOOD;
        (even[6].1, even[7].1, even[8].1) = (300.0, 300.0, 300.0);
        assert_eq!(verdicts(&even)[1], NotComparable, "nothing above 300 was tried, and 312 are asked");
        let mut spiked = GOOD;
        spiked[6].2 = 600.0;
        assert_eq!(verdicts(&spiked)[1], NotReached, "nothing is lost, but the tail spikes there");
        let mut disturbed = GOOD;
        (disturbed[0].2, disturbed[0].4) = (9000.0, true);
        assert_eq!(verdicts(&disturbed)[1], Reached, "one disturbed load below is no limit");
        let mut unknown = GOOD;
        (unknown[2].2, unknown[5].2) = (700.0, 800.0);
        assert_eq!(verdicts(&unknown)[1], NotComparable, "memcached was within the limit nowhere");
        let mut bounded = GOOD;
        (bounded[8].2, bounded[8].4) = (100.0, false);
        assert_eq!(verdicts(&bounded)[1], NotComparable, "the generator may be what bounds it");
    }

    #[test]
    fn a_load_per_core_below_the_papers_is_not_compared() {
        assert_eq!(verdicts(&GOOD[..6])[0], NotComparable);
    }

    #[test]
    fn equal_shares_and_a_memcached_that_never_keeps_up_decide_nothing() {
        let mut equal = GOOD;
        (equal[3].3, equal[4].3) = (0.7, 0.71);
        assert_eq!(verdicts(&equal)[3], NotComparable);
        let mut never = GOOD;
        (never[1].4, never[4].4) = (true, true);
        assert_eq!(verdicts(&never)[2..], [NotComparable; 2]);
        let own: Vec<Row> = GOOD.into_iter().filter(|row| row.0 == TAILWATER).collect();
        assert_eq!(verdicts(&own), [Reached, NotComparable, NotComparable, NotComparable]);
    }
}
