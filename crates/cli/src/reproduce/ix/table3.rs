//! Table 3: the highest load of a key-value store within a latency limit, for the workloads ETC and USR; and the same beside a
//! batch job, within a limit of our own.

use tailwater_loadgen::search::Slo;
use tailwater_sim::plot::draw;
use tailwater_workload::keyvalue::Workload;

use super::super::aims::{BESIDE_BATCH, TAILWATER, beside_batch, times};
use super::super::context::Context;
use super::super::figure::{Claim, Figure, Outcome};
use super::super::limit::{Contender, Highest, data, highest, notes, panels, summary};
use super::super::stores::{self, MEDIUM, asked};
use crate::testbed::program::Program;

const MEMCACHED: &str = "memcached on Linux";
/// The paper's limit, with nothing beside.
const PAPERS: &str = "p99=500us";
/// What the paper reaches, in Linux's loads (table III): 5,817 to 902 and 4,186 to 898 thousand requests per second.
const PAPERS_RATIOS: [(&str, f64); 2] = [("USR", 6.4), ("ETC", 4.7)];

/// See the [module](self).
#[derive(Debug)]
pub struct Table3;

impl Figure for Table3 {
    fn name(&self) -> &'static str {
        "ix-table3"
    }

    fn title(&self) -> &'static str {
        "Highest load of a key-value store within a latency limit"
    }

    fn paper(&self) -> &'static str {
        "IX (TOCS'17), table III"
    }

    fn plan(&self) -> &'static str {
        include_str!("../../../../../experiments/ix-table3.md")
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let rig = context.rig()?;
        let contenders = contenders(rig.testbed.cores.managed.len(), context.options.quick)?;
        let all = highest(self.name(), context, contenders)?;
        let mut conditions = vec![format!("{}.", rig.testbed.cores.describe())];
        conditions.extend(rig.noise_notes());
        conditions.extend(stores::conditions());
        conditions.extend(notes(context.options.quick));
        Ok(Outcome {
            svg: draw(self.title(), &panels(&all)),
            data: data(&all),
            summary: summary(&all),
            claims: claims(&all),
            notes: conditions,
        })
    }
}

/// The name of a search under the paper's own limit.
fn alone(workload: &str) -> String {
    format!("{workload} alone")
}

fn contenders(threads: usize, quick: bool) -> anyhow::Result<Vec<Contender>> {
    let (beside, papers): (Slo, Slo) = (BESIDE_BATCH.parse()?, PAPERS.parse()?);
    let workloads: &[(&str, Workload)] =
        if quick { &[("USR", Workload::Usr)] } else { &[("USR", Workload::Usr), ("ETC", Workload::Etc)] };
    let mut contenders = Vec::new();
    for &(name, workload) in workloads {
        let programs = [
            Some((TAILWATER, Program::kv(threads, asked(workload)))),
            Program::memcached(threads, asked(workload)).map(|program| (MEMCACHED, program)),
        ];
        for (system, program) in programs.into_iter().flatten() {
            let contender = |asked: String, program: Program, slo: &Slo| Contender {
                asked,
                name: system.to_owned(),
                program,
                slo: slo.clone(),
            };
            let program = program.over(MEDIUM);
            contenders.push(contender(name.to_owned(), program.clone(), &beside));
            if !quick {
                contenders.push(contender(alone(name), program.alone(), &papers));
            }
        }
    }
    Ok(contenders)
}

fn claims(all: &[Highest]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (workload, ratio) in PAPERS_RATIOS {
        if all.iter().any(|highest| highest.contender.asked == alone(workload)) {
            let paper =
                format!("IX serves {ratio} times Linux's load under {workload} with a p99 of at most 500 us");
            claims.push(times(all, &alone(workload), MEMCACHED, &paper, ratio));
        }
    }
    for (workload, _) in PAPERS_RATIOS {
        if all.iter().any(|highest| highest.contender.asked == workload) {
            claims.extend(beside_batch(all, workload, MEMCACHED));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::super::super::figure::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::limit::tests::reached;
    use super::*;
    use tailwater_loadgen::search::Bound;

    fn verdicts(own: (f64, f64), theirs: (f64, f64), bound: Bound) -> Vec<Verdict> {
        let all = vec![
            reached("USR", TAILWATER, own.0, Bound::Limit, own.1),
            reached("USR", MEMCACHED, theirs.0, bound, theirs.1),
        ];
        claims(&all).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts((400e3, 0.5), (100e3, 0.5), Bound::Limit), [Reached; 2]);
        assert_eq!(verdicts((399e3, 0.4), (100e3, 0.5), Bound::Limit), [NotReached; 2]);
        assert_eq!(verdicts((900e3, 0.5), (100e3, 0.4), Bound::Generator), [NotComparable, Reached]);
    }

    #[test]
    fn without_the_rival_nothing_is_claimed() {
        let all = vec![reached("USR", TAILWATER, 4e5, Bound::Limit, 0.5)];
        assert!(claims(&all).iter().all(|claim| claim.verdict == NotComparable));
    }

    #[test]
    fn the_papers_claim_is_judged_without_a_batch_job() {
        let all = vec![
            reached("ETC alone", TAILWATER, 470e3, Bound::Limit, 0.5),
            reached("ETC alone", MEMCACHED, 100e3, Bound::Limit, 0.5),
        ];
        assert_eq!(claims(&all).iter().map(|claim| claim.verdict).collect::<Vec<_>>(), [Reached]);
        assert_eq!(panels(&all)[0].bars.len(), 2);
    }
}
