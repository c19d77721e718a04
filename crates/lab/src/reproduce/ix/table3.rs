//! Table 3: the latency of a key-value store without load, and its highest load within a latency
//! limit, for the workloads ETC and USR.

use tailwater_loadgen::search::Slo;
use tailwater_workload::keyvalue::Workload;

use super::super::contest::{self, Contest, Point, program_cases};
use super::super::figure::{Claim, Context, Figure, Outcome, cell, draw, number};
use super::super::limit::{Contender, Highest, data, highest, notes, panels, summary};
use super::super::ratio::{TAILWATER, times};
use super::super::stores::{self, MEDIUM, requests};
use tailwater_testbed::program::Program;

/// Tailwater's contender of the claims is an event loop, which is what IX is.
const THREADS: &str = "Tailwater, user threads";
const MEMCACHED: &str = "memcached on Linux";
/// The paper's limit, without a batch job.
const PAPERS: &str = "p99=500us";
/// Ratios of IX's load to Linux's in the paper (table III): 5,817 to 902 and 4,186 to 898 thousand
/// requests per second.
const PAPERS_RATIOS: [(&str, f64); 2] = [("USR", 6.4), ("ETC", 4.7)];
/// 99th percentiles without load on IX and on Linux in the paper, in microseconds.
const PAPERS_LATENCIES: [(&str, f64, f64); 2] = [("USR", 33.0, 66.0), ("ETC", 34.0, 65.0)];
/// The load that counts as none, in thousand requests per second: a hundredth of a core's time, so
/// that hardly any request meets another one.
const NO_LOAD: f64 = 1.0;
const ROUNDS: usize = 3;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let contenders = contenders(rig.testbed.cores.managed.len(), context.options.quick)?;
    let unloaded = unloaded(figure, context, &contenders)?;
    let all = highest(figure, context, contenders)?;
    let mut conditions = vec![rig.cores_note()];
    conditions.extend(rig.noise_notes());
    conditions.extend(stores::conditions());
    conditions.extend(notes(context.options.quick));
    conditions.push(format!(
        "Without load is {NO_LOAD} thousand requests a second, at random times: {}.",
        unloaded.points.iter().map(latency).collect::<Vec<_>>().join("; ")
    ));
    Ok(Outcome {
        svg: draw(figure.title, &panels(&all)),
        data: data(&all),
        summary: summary(&all),
        claims: latencies(&unloaded).into_iter().chain(claims(&all)).collect(),
        notes: conditions,
    })
}

fn contenders(threads: usize, quick: bool) -> anyhow::Result<Vec<Contender>> {
    let slo: Slo = PAPERS.parse()?;
    let workloads: &[(&str, Workload)] =
        if quick { &[("USR", Workload::Usr)] } else { &[("USR", Workload::Usr), ("ETC", Workload::Etc)] };
    let mut contenders = Vec::new();
    for &(name, workload) in workloads {
        let own = Program::kv(threads, requests(workload));
        let programs = [
            Some((TAILWATER, own.clone().run_to_completion())),
            Some((THREADS, own)),
            Program::memcached(threads, requests(workload)).map(|program| (MEMCACHED, program)),
        ];
        contenders.extend(programs.into_iter().flatten().map(|(system, program)| Contender {
            workload: name.to_owned(),
            name: system.to_owned(),
            program: program.over(MEDIUM).alone(),
            slo: slo.clone(),
        }));
    }
    Ok(contenders)
}

/// Measures all programs at [`NO_LOAD`], in interleaved rounds.
fn unloaded(figure: &Figure, context: &Context, contenders: &[Contender]) -> anyhow::Result<Contest> {
    let pace = context.pace(contenders.len(), ROUNDS);
    let mut cases = Vec::new();
    for Contender { workload, name, program, .. } in contenders {
        cases.extend(program_cases(workload, &[(name, program.clone())], &pace, &[NO_LOAD])?);
    }
    let contest = contest::run(figure, context, cases, &pace)?.per(stores::UNIT);
    Ok(contest)
}

fn latency(point: &Point) -> String {
    let (case, p50, p99) = (&point.case, cell(point.p50_us()), cell(point.p99_us()));
    format!("{} under {} p50 {p50} us, p99 {p99} us", case.curve, case.panel)
}

fn latencies(unloaded: &Contest) -> Vec<Claim> {
    let p99 = |workload: &str, curve: &str| Some(unloaded.at(workload, curve, NO_LOAD)?.p99_us()?.median);
    let tried = PAPERS_LATENCIES.iter().filter(|(workload, ..)| p99(workload, TAILWATER).is_some());
    tried
        .map(|&(workload, ix, linux)| {
            let ratio = linux / ix;
            let paper = format!(
                "without load the p99 under {workload} is {ix} us on IX and {linux} us on Linux, {} times",
                number(ratio)
            );
            match (p99(workload, TAILWATER), p99(workload, MEMCACHED)) {
                (Some(own), Some(theirs)) => {
                    let ours =
                        format!("{} and {} us, {} times", number(own), number(theirs), number(theirs / own));
                    Claim::new(&paper, ours, theirs >= ratio * own)
                }
                _ => Claim::not_comparable(&paper, format!("{MEMCACHED} is not there")),
            }
        })
        .collect()
}

fn claims(all: &[Highest]) -> Vec<Claim> {
    let tried = PAPERS_RATIOS
        .iter()
        .filter(|(name, _)| all.iter().any(|highest| highest.contender.workload == *name));
    tried
        .map(|&(workload, ratio)| {
            let paper =
                format!("IX serves {ratio} times Linux's load under {workload} with a p99 of at most 500 us");
            times(all, workload, MEMCACHED, &paper, ratio)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::super::super::limit::tests::reached;
    use super::*;
    use tailwater_loadgen::search::Bound;

    #[test]
    fn each_workload_has_the_papers_ratio() {
        let verdicts = |own: f64| {
            let all: Vec<Highest> = ["USR", "ETC"]
                .iter()
                .flat_map(|workload| {
                    [(TAILWATER, own), (MEMCACHED, 100e3)]
                        .map(|(name, load)| reached(workload, name, load, Bound::Limit))
                })
                .collect();
            assert_eq!(panels(&all)[0].bars.len(), 2);
            claims(&all).iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(640e3), [Reached; 2]);
        assert_eq!(verdicts(500e3), [NotReached, Reached]);
        assert_eq!(verdicts(460e3), [NotReached; 2]);
    }

    #[test]
    fn latencies_without_load_have_the_papers_ratio() {
        let verdicts = |own: f64, rival: Option<f64>| {
            let systems = [(TAILWATER, Some(own)), (MEMCACHED, rival)];
            let points = systems.iter().filter_map(|&(name, p99_us)| {
                Some(contest::tests::point(name, NO_LOAD, &[2.0 * p99_us?], 1.0, false).on("USR"))
            });
            let claims = latencies(&contest::tests::contest(points.collect()));
            claims.iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(30.0, Some(60.0)), [Reached]);
        assert_eq!(verdicts(30.0, Some(59.0)), [NotReached]);
        assert_eq!(verdicts(30.0, None), [NotComparable]);
    }

    #[test]
    fn without_the_rival_nothing_is_claimed() {
        let all = vec![reached("USR", TAILWATER, 4e5, Bound::Limit)];
        assert_eq!(claims(&all).iter().map(|claim| claim.verdict).collect::<Vec<_>>(), [NotComparable]);
    }
}
