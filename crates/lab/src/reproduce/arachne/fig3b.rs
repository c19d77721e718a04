//! Figure 3, part b: latency of a key-value store under ETC with fewer cores than it has threads
//! for.
//!
//! Arachne's memcached is limited to 8 cores, and memcached's 16 threads share 8. Here each program
//! is measured as made for the shared cores of this machine, and as made for twice as many.

use tailwater_workload::keyvalue::Workload;

use super::super::compare::{self, listed, middle, times};
use super::super::contest::{self, Contest, Point, program_cases};
use super::super::figure::{Claim, Context, Figure, Outcome};
use super::super::stores::{MEDIUM, MEMCACHED, TAILWATER, UNIT, conditions, requests};
use tailwater_testbed::program::Program;

const PANEL: &str = "ETC, alone";
const TAILWATER_DOUBLE: &str = "Tailwater, kv, kthreads for twice the cores";
const MEMCACHED_DOUBLE: &str = "Linux, memcached, twice the threads";
const ROUNDS: usize = 3;
/// The limit on the median at which the paper compares throughput: 780 to 300 thousand requests per
/// second.
const MEDIAN_LIMIT_US: f64 = 100.0;
const PAPERS_MORE: f64 = 2.6;
/// "About the same".
const SAME: f64 = 1.25;
/// "Significant increases".
const MORE: f64 = 1.5;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let loads: &[f64] =
        if context.options.quick { &[50.0] } else { &[10.0, 25.0, 50.0, 100.0, 150.0, 200.0, 300.0] };
    let programs = programs(rig.testbed.cores.managed.len());
    let pace = context.pace(loads.len() * programs.len(), ROUNDS);
    let cases = program_cases(PANEL, &programs, &pace, loads)?;
    let contest = contest::run(figure, context, cases, &pace)?.per(UNIT);
    let doubled = "The paper halves the cores and keeps the threads; here the cores stay and the threads are doubled. Latency \
        with as many threads as cores stands for part a.";
    let panels = [
        contest.panel_of(PANEL, "p50 (us)", Point::p50_us, Vec::new()),
        contest.panel_of(PANEL, "p99 (us)", Point::p99_us, Vec::new()),
    ];
    Ok(contest.outcome(&panels, claims(&contest), conditions().into_iter().chain([doubled.to_owned()])))
}

fn programs(cores: usize) -> Vec<(&'static str, Program)> {
    let protocol = requests(Workload::Etc);
    let mut programs = vec![
        (TAILWATER, Program::kv(cores, protocol.clone())),
        (TAILWATER_DOUBLE, Program::kv(2 * cores, protocol.clone())),
    ];
    let memcached = [(MEMCACHED, cores), (MEMCACHED_DOUBLE, 2 * cores)];
    for (curve, threads) in memcached {
        programs.extend(Program::memcached(threads, protocol.clone()).map(|program| (curve, program)));
    }
    programs.into_iter().map(|(curve, program)| (curve, program.over(MEDIUM).alone())).collect()
}

fn claims(contest: &Contest) -> Vec<Claim> {
    vec![
        changed(
            contest,
            [TAILWATER, TAILWATER_DOUBLE],
            "with fewer cores Arachne's latency is about the same",
            |times| times <= SAME,
        ),
        changed(
            contest,
            [MEMCACHED, MEMCACHED_DOUBLE],
            "memcached's threads share cores: its median and its tail rise significantly",
            |times| times >= MORE,
        ),
        more(contest),
    ]
}

/// Judges how twice the threads change latencies, by the medians over the loads.
fn changed(contest: &Contest, pair: [&str; 2], paper: &str, holds: impl Fn(f64) -> bool) -> Claim {
    let curves = pair.map(|curve| (PANEL, curve));
    let [p50, p99] = [Point::p50_us, Point::p99_us].map(|value| times(contest, curves, value));
    let Some((median, tail)) = middle(&p50).zip(middle(&p99)) else {
        return Claim::not_comparable(paper, format!("{} was not measured at a load it sustains", pair[0]));
    };
    let ours = format!(
        "in times of as many threads as cores (thousand/s): median {}; p99 {}",
        listed(&p50),
        listed(&p99)
    );
    Claim::new(paper, ours, holds(median) && holds(tail))
}

/// Judges the highest loads with a median within the limit, both with twice the threads.
fn more(contest: &Contest) -> Claim {
    let paper = format!(
        "with fewer cores and a median of at most {MEDIAN_LIMIT_US} us Arachne's memcached supports {PAPERS_MORE} times the \
         throughput (780 to 300 thousand/s on 8 cores)"
    );
    if contest.curve(PANEL, MEMCACHED_DOUBLE).is_empty() {
        return Claim::not_comparable(&paper, "memcached is not installed".to_owned());
    }
    let pair = [(PANEL, TAILWATER_DOUBLE), (PANEL, MEMCACHED_DOUBLE)];
    compare::more(contest, pair, MEDIAN_LIMIT_US, PAPERS_MORE, &paper)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// Curve, load, tail, saturated: the median is a tenth of the tail.
    type Row = (&'static str, f64, f64, bool);

    fn verdicts(rows: &[Row]) -> Vec<Verdict> {
        let make =
            |&(curve, load, tail, saturated): &Row| point(curve, load, &[tail], 0.0, saturated).on(PANEL);
        claims(&contest(rows.iter().map(make).collect())).iter().map(|claim| claim.verdict).collect()
    }

    const GOOD: [Row; 8] = [
        (TAILWATER, 50.0, 100.0, false),
        (TAILWATER_DOUBLE, 50.0, 110.0, false),
        (MEMCACHED, 50.0, 200.0, false),
        (MEMCACHED_DOUBLE, 50.0, 400.0, false),
        (TAILWATER, 150.0, 100.0, false),
        (TAILWATER_DOUBLE, 150.0, 110.0, false),
        (MEMCACHED, 150.0, 200.0, false),
        (MEMCACHED_DOUBLE, 150.0, 9000.0, true),
    ];

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(&GOOD), [Reached; 3]);
        let mut slow = GOOD;
        (slow[1].2, slow[5].2, slow[3].2) = (200.0, 200.0, 250.0);
        (slow[7].2, slow[7].3) = (250.0, false);
        assert_eq!(
            verdicts(&slow),
            [NotReached, NotReached, NotComparable],
            "memcached sustains the highest"
        );
        let mut broken = GOOD;
        (broken[5].2, broken[5].3) = (9000.0, true);
        assert_eq!(verdicts(&broken), [NotReached, Reached, NotReached]);
        let own: Vec<Row> = GOOD.iter().copied().filter(|row| row.0.starts_with("Tailwater")).collect();
        assert_eq!(verdicts(&own), [Reached, NotComparable, NotComparable]);
    }
}
