//! Figure 3: a key-value store under the workload USR beside a batch job; tail latency and batch throughput over load.

use std::sync::Arc;

use tailwater_loadgen::protocol::Protocol;
use tailwater_sim::plot::draw;
use tailwater_workload::keyvalue::Workload;
use tailwater_workload::{Rate, ServiceTime};

use super::super::contest::{Case, Contest, Point, System, run};
use super::super::context::{Context, Pace, Rig};
use super::super::figure::{Claim, Figure, Outcome};
use super::super::stores::{MEDIUM, MEMCACHED, TAILWATER, UNIT, asked, conditions};
use crate::table::number;
use crate::testbed::program::Program;

const USR: &str = "USR";
const KV_ON_LINUX: &str = "Linux, kv";
const ROUNDS: usize = 3;
/// Section 7.1, at five million requests per second: median and 99.9th percentile.
const PAPER_P50_US: f64 = 37.0;
const PAPER_P999_US: f64 = 93.0;
/// Two batch shares within this of each other are the same.
const SAME_SHARE: f64 = 0.02;

/// See the [module](self).
#[derive(Debug)]
pub struct Figure3;

impl Figure for Figure3 {
    fn name(&self) -> &'static str {
        "shenango-fig3"
    }

    fn title(&self) -> &'static str {
        "A key-value store under USR beside a batch job"
    }

    fn paper(&self) -> &'static str {
        "Shenango (NSDI'19), figure 3"
    }

    fn plan(&self) -> &'static str {
        include_str!("../../../../../experiments/shenango-fig3.md")
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let rig = context.rig()?;
        let loads: &[f64] = if context.options.quick {
            &[25.0, 100.0]
        } else {
            &[25.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0, 500.0, 600.0, 800.0]
        };
        let pace = context.pace(loads.len() * 3, ROUNDS);
        let mut contest = run(self.name(), context, cases(rig, &pace, loads)?, pace.rounds)?;
        contest.unit = UNIT;
        let mut notes = rig.notes(&pace, context.options.quick);
        notes.push(contest.handoff_note());
        notes.extend(conditions());
        Ok(Outcome {
            svg: draw(
                self.title(),
                &[contest.latency_panel(USR, Vec::new()), contest.batch_panel(USR, Vec::new())],
            ),
            data: contest.data(),
            summary: contest.summary(),
            claims: claims(&contest),
            notes,
        })
    }
}

fn usr() -> Arc<dyn Protocol> {
    asked(Workload::Usr)
}

fn cases(rig: &Rig, pace: &Pace, loads: &[f64]) -> anyhow::Result<Vec<Case>> {
    let threads = rig.testbed.cores.managed.len();
    let mut programs =
        vec![(TAILWATER, Program::kv(threads, usr())), (KV_ON_LINUX, Program::kv_on_linux(threads, usr()))];
    programs.extend(Program::memcached(threads, usr()).map(|program| (MEMCACHED, program)));
    let mut cases = Vec::new();
    for &load in loads {
        let plan = pace.plan_at(Rate::new(load * 1e3)?, &ServiceTime::constant(0));
        cases.extend(programs.iter().map(|(curve, program)| Case {
            panel: USR.to_owned(),
            curve: (*curve).to_owned(),
            load,
            plan: plan.clone(),
            system: System::Program(program.clone().over(MEDIUM)),
        }));
    }
    Ok(cases)
}

fn claims(contest: &Contest) -> Vec<Claim> {
    let mut claims = vec![latency(contest)];
    if contest.curve(USR, MEMCACHED).is_empty() {
        const WHY: &str = "memcached is not installed";
        claims.push(Claim::not_comparable(MORE, WHY.to_owned()));
        claims.push(Claim::not_comparable(BATCH, WHY.to_owned()));
    } else {
        claims.extend([more(contest), batch(contest)]);
    }
    claims
}

const MORE: &str = "over five million requests/s on Shenango; about 800,000 with memcached on Linux, even with no batch job, and a far higher tail";
/// What that is in Linux's load.
const PAPERS_RATIO: f64 = 6.25;
const BATCH: &str = "Shenango leaves the batch job more than Linux does at all but the lowest loads";

/// The highest load that the program kept up with, and its figures there.
fn highest<'a>(contest: &'a Contest, curve: &str) -> Option<&'a Point> {
    contest.curve(USR, curve).into_iter().take_while(|point| !point.saturated()).last()
}

fn latency(contest: &Contest) -> Claim {
    let paper = "at over five million requests/s (12 hyperthreads) a median of 37 us and a 99.9th percentile of 93 us";
    let within = |point: &&Point| {
        !point.saturated()
            && point.p50_us().is_some_and(|p50| p50.median <= PAPER_P50_US)
            && point.tail_us().is_some_and(|tail| tail.median <= PAPER_P999_US)
    };
    let kept = contest.curve(USR, TAILWATER).into_iter().take_while(within).last();
    let Some(point) = kept else {
        return Claim::new(paper, "at no load were both within these bounds".to_owned(), false);
    };
    let ours = format!(
        "on the shared cores of this machine both are within these bounds up to {} thousand requests/s: median {} us, windowed \
         p99.9 {} us",
        point.case.load,
        point.p50_us().map_or_else(String::new, |p50| p50.to_string()),
        point.tail_us().map_or_else(String::new, |tail| tail.to_string()),
    );
    Claim::new(paper, ours, true)
}

fn more(contest: &Contest) -> Claim {
    let text = |point: Option<&Point>| match point.and_then(|point| Some((point, point.tail_us()?))) {
        Some((point, tail)) => format!("{} thousand/s at a windowed p99.9 of {tail} us", point.case.load),
        None => "none".to_owned(),
    };
    let (own, theirs) = (highest(contest, TAILWATER), highest(contest, MEMCACHED));
    let mut slower = Vec::new();
    for point in contest.curve(USR, TAILWATER) {
        let Some(other) = contest.at(USR, MEMCACHED, point.case.load).filter(|other| !other.saturated())
        else {
            continue;
        };
        if point.saturated() || point.tail_us().map(|t| t.median) >= other.tail_us().map(|t| t.median) {
            slower.push(number(point.case.load));
        }
    }
    let load = |point: Option<&Point>| point.map_or(0.0, |point| point.case.load);
    let ours = format!(
        "highest load of those tried with at most 1 % lost: {}, memcached {}; Tailwater's tail is not lower at: {}",
        text(own),
        text(theirs),
        if slower.is_empty() { "none".to_owned() } else { slower.join(", ") }
    );
    Claim::new(MORE, ours, slower.is_empty() && load(own) >= PAPERS_RATIO * load(theirs) && load(own) > 0.0)
}

fn batch(contest: &Contest) -> Claim {
    let mut less = Vec::new();
    for own in contest.curve(USR, TAILWATER) {
        let Some(other) = contest.at(USR, MEMCACHED, own.case.load).filter(|other| !other.saturated()) else {
            continue;
        };
        let (Some(a), Some(b)) = (own.share(), other.share()) else { continue };
        if a.median + SAME_SHARE < b.median {
            less.push(format!("{} ({:.2}, Linux {:.2})", own.case.load, a.median, b.median));
        }
    }
    let ours = format!(
        "of the shared cores memcached on Linux leaves the batch job more at: {}",
        if less.is_empty() { "no load".to_owned() } else { less.join(", ") }
    );
    Claim::new(BATCH, ours, less.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::super::contest::tests::{contest, point};
    use super::super::super::figure::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    fn verdicts(points: Vec<(&str, f64, f64, f64, bool)>) -> Vec<Verdict> {
        let make = |(curve, load, tail, share, saturated): (&str, f64, f64, f64, bool)| {
            let mut point = point(curve, load, &[tail], share, saturated);
            point.case.panel = USR.to_owned();
            point
        };
        claims(&contest(points.into_iter().map(make).collect())).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let good = vec![
            (TAILWATER, 25.0, 50.0, 0.9, false),
            (MEMCACHED, 25.0, 150.0, 0.8, false),
            (TAILWATER, 200.0, 80.0, 0.6, false),
            (MEMCACHED, 200.0, 9000.0, 0.1, true),
        ];
        assert_eq!(verdicts(good.clone()), [Reached; 3]);
        let mut slow = good.clone();
        (slow[0].2, slow[2].2) = (120.0, 200.0);
        assert_eq!(verdicts(slow)[0], NotReached);
        let mut rival = good.clone();
        rival[3].4 = false;
        assert_eq!(verdicts(rival)[1], NotReached);
        let mut greedy = good.clone();
        greedy[0].3 = 0.5;
        assert_eq!(verdicts(greedy)[2], NotReached);
        assert_eq!(verdicts(vec![good[0], good[2]]), [Reached, NotComparable, NotComparable]);
    }
}
