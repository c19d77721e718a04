//! Table 3: the highest load of a key-value store within a latency limit, for the workloads ETC and
//! USR.

use tailwater_loadgen::search::Slo;
use tailwater_plot::draw;
use tailwater_workload::keyvalue::Workload;

use super::super::claim::Claim;
use super::super::context::Context;
use super::super::figure::{Figure, Outcome};
use super::super::limit::{Contender, Highest, data, highest, notes, panels, summary};
use super::super::ratio::{TAILWATER, times};
use super::super::stores::{self, MEDIUM, asked};
use tailwater_testbed::program::Program;

const MEMCACHED: &str = "memcached on Linux";
/// The paper's limit, without a batch job.
const PAPERS: &str = "p99=500us";
/// Ratios of IX's load to Linux's in the paper (table III): 5,817 to 902 and 4,186 to 898 thousand
/// requests per second.
const PAPERS_RATIOS: [(&str, f64); 2] = [("USR", 6.4), ("ETC", 4.7)];

/// The table.
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

fn contenders(threads: usize, quick: bool) -> anyhow::Result<Vec<Contender>> {
    let slo: Slo = PAPERS.parse()?;
    let workloads: &[(&str, Workload)] =
        if quick { &[("USR", Workload::Usr)] } else { &[("USR", Workload::Usr), ("ETC", Workload::Etc)] };
    let mut contenders = Vec::new();
    for &(name, workload) in workloads {
        let programs = [
            Some((TAILWATER, Program::kv(threads, asked(workload)))),
            Program::memcached(threads, asked(workload)).map(|program| (MEMCACHED, program)),
        ];
        contenders.extend(programs.into_iter().flatten().map(|(system, program)| Contender {
            asked: name.to_owned(),
            name: system.to_owned(),
            program: program.over(MEDIUM).alone(),
            slo: slo.clone(),
        }));
    }
    Ok(contenders)
}

fn claims(all: &[Highest]) -> Vec<Claim> {
    let tried =
        PAPERS_RATIOS.iter().filter(|(name, _)| all.iter().any(|highest| highest.contender.asked == *name));
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
                .flat_map(|asked| {
                    [(TAILWATER, own), (MEMCACHED, 100e3)]
                        .map(|(name, load)| reached(asked, name, load, Bound::Limit))
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
    fn without_the_rival_nothing_is_claimed() {
        let all = vec![reached("USR", TAILWATER, 4e5, Bound::Limit)];
        assert_eq!(claims(&all).iter().map(|claim| claim.verdict).collect::<Vec<_>>(), [NotComparable]);
    }
}
