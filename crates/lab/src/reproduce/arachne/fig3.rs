//! Figure 3: latency of a key-value store under ETC over throughput, and, as in section 7.2's
//! colocation experiment (figure 4), the effect of a background job.

use tailwater_workload::keyvalue::Workload;
use tailwater_workload::{Rate, ServiceTime};

use super::super::aims;
use super::super::arbiter::{self, ARBITER};
use super::super::compare::{listed, middle, more, times};
use super::super::contest::{self, Case, Contest, Point, System};
use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Panel, Rig, number};
use super::super::stores::{MAX_GENERATOR_RATE, MEDIUM, MEMCACHED, TAILWATER, UNIT, conditions, requests};
use tailwater_testbed::program::Program;

const ALONE: &str = "ETC, alone";
const BESIDE: &str = "ETC, beside a batch job";
const ROUNDS: usize = 3;
/// The limit on the median at which the paper compares throughput; it measures 1,100 to 800
/// thousand requests per second.
const MEDIAN_LIMIT_US: f64 = 100.0;
const PAPERS_MORE: f64 = 1.375;
/// Least ratio of memcached's 99th percentile to Arachne's in the paper, at equal throughput.
const PAPERS_TAIL: f64 = 3.0;
/// "Doubled", and "almost completely unaffected".
const DOUBLED: f64 = 2.0;
const UNAFFECTED: f64 = 1.25;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let loads: &[f64] =
        if context.options.quick { &[50.0] } else { &[10.0, 25.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0] };
    let pace = context.pace(loads.len() * 5, ROUNDS);
    let contest = contest::run(figure, context, cases(rig, &pace, loads)?, &pace)?.per(UNIT);
    let claims = [claims(&contest), vec![arbiter::claim(&contest, TAILWATER)]].concat();
    Ok(contest.outcome(&panels(&contest), claims, conditions()))
}

fn cases(rig: &Rig, pace: &Pace, loads: &[f64]) -> anyhow::Result<Vec<Case>> {
    let threads = rig.testbed.cores.managed.len();
    let protocol = requests(Workload::Etc);
    let own = Program::kv(threads, protocol.clone()).over(MEDIUM);
    let arbiters = (ARBITER, System::Program(own.clone().estimating()));
    let memcached = Program::memcached(threads, protocol).map(|program| (MEMCACHED, program.over(MEDIUM)));
    let programs: Vec<_> = [(TAILWATER, own)].into_iter().chain(memcached).collect();
    let alone: Vec<_> =
        programs.iter().map(|(curve, program)| (*curve, System::Program(program.clone().alone()))).collect();
    let beside = programs.into_iter().map(|(curve, program)| (curve, System::Program(program)));
    let beside: Vec<_> = beside.chain([arbiters]).collect();
    let mut all = Vec::new();
    for &load in loads {
        let plan = pace.plan_at(Rate::new(load * 1e3)?, &ServiceTime::constant(0));
        all.extend(contest::cases(ALONE, &alone, load, &plan));
        all.extend(contest::cases(BESIDE, &beside, load, &plan));
    }
    Ok(all)
}

fn panels(contest: &Contest) -> Vec<Panel> {
    let mut panels = Vec::new();
    for title in [ALONE, BESIDE] {
        panels.push(contest.panel_of(title, "p50 (us)", Point::p50_us, Vec::new()));
        panels.push(contest.panel_of(title, "p99 (us)", Point::p99_us, Vec::new()));
    }
    panels
}

fn claims(contest: &Contest) -> Vec<Claim> {
    let mut claims = papers_claims(contest);
    claims.extend(aims::claims(contest, BESIDE, [TAILWATER, MEMCACHED], MAX_GENERATOR_RATE, UNIT));
    claims
}

fn papers_claims(contest: &Contest) -> Vec<Claim> {
    let paper_more = format!(
        "with a median of at most {MEDIAN_LIMIT_US} us Arachne's memcached supports {PAPERS_MORE} times the throughput (1,100 to 800 \
         thousand/s on 16 cores)"
    );
    const TAIL: &str = "Arachne's 99th percentile is 3 to 40 times lower than memcached's";
    const LINUX_DOUBLES: &str =
        "beside a background job memcached's latency doubles, at the median and at the 99th percentile";
    const UNAFFECTED_SAID: &str = "Arachne's memcached is almost completely unaffected by it";
    if contest.curve(ALONE, MEMCACHED).is_empty() {
        const WHY: &str = "memcached is not installed";
        let mut claims: Vec<Claim> = [paper_more.as_str(), TAIL, LINUX_DOUBLES]
            .map(|paper| Claim::not_comparable(paper, WHY.to_owned()))
            .to_vec();
        claims.push(affected(contest, TAILWATER, UNAFFECTED_SAID, |times| times <= UNAFFECTED));
        return claims;
    }
    vec![
        more(contest, [(ALONE, TAILWATER), (ALONE, MEMCACHED)], MEDIAN_LIMIT_US, PAPERS_MORE, &paper_more),
        tail(contest, TAIL),
        affected(contest, MEMCACHED, LINUX_DOUBLES, |times| times >= DOUBLED),
        affected(contest, TAILWATER, UNAFFECTED_SAID, |times| times <= UNAFFECTED),
    ]
}

fn tail(contest: &Contest, paper: &str) -> Claim {
    let pair = [(ALONE, TAILWATER), (ALONE, MEMCACHED)];
    let mut ratios = times(contest, pair, Point::p99_us);
    // At equal throughput: a load that memcached does not sustain is not compared; one that only
    // Tailwater does not sustain fails the claim.
    ratios.retain(|(_, times)| times.is_finite());
    let [own, theirs] = pair;
    let behind: Vec<String> = times(contest, [theirs, own], Point::p99_us)
        .into_iter()
        .filter(|(_, times)| times.is_infinite())
        .map(|(load, _)| number(load))
        .collect();
    let mut ours = format!("p99 in times of Tailwater's (thousand/s): {}", listed(&ratios));
    if !behind.is_empty() {
        ours += &format!("; Tailwater alone is saturated at: {}", behind.join(", "));
    }
    let holds = behind.is_empty() && ratios.iter().all(|&(_, times)| times >= PAPERS_TAIL);
    let is_open = ratios.is_empty() && behind.is_empty();
    Claim::judged(paper, ours, (!is_open).then_some(holds))
}

/// Judges how a batch job changes the latencies of `curve`, by the median over the loads.
fn affected(contest: &Contest, curve: &str, paper: &str, holds: impl Fn(f64) -> bool) -> Claim {
    let pair = [(ALONE, curve), (BESIDE, curve)];
    let [p50, p99] = [Point::p50_us, Point::p99_us].map(|value| times(contest, pair, value));
    let ours = format!("times of alone (thousand/s): median {}; p99 {}", listed(&p50), listed(&p99));
    Claim::judged(paper, ours, middle(&p50).zip(middle(&p99)).map(|(p50, p99)| holds(p50) && holds(p99)))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// Panel, curve, load, tail, saturated: the median is a tenth of the tail, the 99th percentile
    /// half of it.
    type Row = (&'static str, &'static str, f64, f64, bool);

    fn verdicts(rows: &[Row]) -> Vec<Verdict> {
        let make = |&(panel, curve, load, tail, saturated): &Row| {
            point(curve, load, &[tail], 0.5, saturated).on(panel)
        };
        let contest = contest(rows.iter().map(make).collect());
        assert_eq!(panels(&contest).len(), 4);
        // The last two are tested in `aims`.
        let mut claims = claims(&contest);
        let aims = claims.split_off(claims.len() - 2);
        assert!(aims.iter().all(|claim| claim.paper.contains("this project's aim")));
        claims.iter().map(|claim| claim.verdict).collect()
    }

    const GOOD: [Row; 8] = [
        (ALONE, TAILWATER, 50.0, 100.0, false),
        (ALONE, MEMCACHED, 50.0, 400.0, false),
        (BESIDE, TAILWATER, 50.0, 110.0, false),
        (BESIDE, MEMCACHED, 50.0, 900.0, false),
        (ALONE, TAILWATER, 100.0, 150.0, false),
        (ALONE, MEMCACHED, 100.0, 9000.0, true),
        (BESIDE, TAILWATER, 100.0, 160.0, false),
        (BESIDE, MEMCACHED, 100.0, 9000.0, true),
    ];

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(&GOOD), [Reached; 4]);
        let mut rival = GOOD;
        (rival[5].3, rival[5].4) = (450.0, false);
        assert_eq!(verdicts(&rival)[0], NotComparable, "memcached sustains the highest load tried");
        let mut slow = GOOD;
        slow[4].3 = 1500.0;
        assert_eq!(verdicts(&slow)[0], NotReached, "within the limit at the same load");
        let mut disturbed = GOOD;
        (disturbed[0].3, disturbed[0].4) = (9000.0, true);
        assert_eq!(verdicts(&disturbed)[0], Reached, "one disturbed load below is no limit");
        let mut close = GOOD;
        close[1].3 = 250.0;
        assert_eq!(verdicts(&close)[1], NotReached, "2.5 times the tail");
        let mut behind = GOOD;
        (behind[0].3, behind[0].4) = (9000.0, true);
        assert_eq!(verdicts(&behind)[1], NotReached, "only memcached sustains that load");
        let mut broken = GOOD;
        for row in [2, 6] {
            (broken[row].3, broken[row].4) = (9000.0, true);
        }
        assert_eq!(verdicts(&broken)[3], NotReached, "Tailwater is saturated only beside the batch job");
        let mut bold = GOOD;
        (bold[3].3, bold[2].3, bold[6].3) = (500.0, 200.0, 300.0);
        assert_eq!(verdicts(&bold)[2..], [NotReached; 2]);
    }

    #[test]
    fn without_memcached_only_tailwaters_claim_is_judged() {
        let own: Vec<Row> = GOOD.iter().copied().filter(|row| row.1 == TAILWATER).collect();
        assert_eq!(verdicts(&own), [NotComparable, NotComparable, NotComparable, Reached]);
    }
}
