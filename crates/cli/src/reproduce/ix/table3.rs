//! Table 3: the highest load of a key-value store within a latency limit, for the workloads ETC and USR; and the same beside a
//! batch job, within a limit of our own.

use tailwater_loadgen::search::{Bound, Slo};
use tailwater_sim::plot::{Bar, Panel, draw};
use tailwater_workload::keyvalue::Workload;

use super::super::context::Context;
use super::super::figure::{Claim, Figure, Outcome};
use super::super::limit::{Contender, Highest, data, highest, summary};
use super::super::shenango::fig3::{MEDIUM, asked, conditions};
use crate::table::number;
use crate::testbed::BatchRates;
use crate::testbed::program::Program;

pub const TAILWATER: &str = "Tailwater";
const MEMCACHED: &str = "memcached on Linux";
/// The limit beside a batch job.
pub const BESIDE_BATCH: &str = "win-p99.9=200us";
/// The paper's limit, with nothing beside.
const PAPERS: &str = "p99=500us";
/// How many times Linux's load this project aims at beside a batch job.
pub const AIM: f64 = 4.0;
/// What the paper reaches, in Linux's loads (table III): 5,817 to 902 and 4,186 to 898 thousand requests per second.
const PAPERS_RATIOS: [(&str, f64); 2] = [("USR", 6.4), ("ETC", 4.7)];
/// Two batch shares within this of each other are the same.
const SAME_SHARE: f64 = 0.02;

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
        let mut notes = vec![format!("{}.", rig.testbed.cores.describe())];
        notes.extend(rig.noise_notes());
        notes.extend(conditions());
        notes.extend(limit_notes(context.options.quick));
        Ok(Outcome {
            svg: draw(self.title(), &panels(&all)),
            data: data(&all),
            summary: summary(&all),
            claims: claims(&all),
            notes,
        })
    }
}

/// What a reader must know of any search.
pub fn limit_notes(quick: bool) -> Vec<String> {
    let mut notes = vec![
        "A load counts as within the limit when a majority of up to three trials of a second says so, and is tried afresh at \
         the end; at most 1 % of the requests may be lost. Searches take turns, a trial each."
            .to_owned(),
        "win-p99.9 is the median over 100 ms windows of each one's p99.9, because a virtual machine's own stalls are in any \
         raw p99.9; p99 is that of all requests."
            .to_owned(),
    ];
    if quick {
        notes.push("Quick run: five short trials, coarse steps. A shape, not a result.".to_owned());
    }
    notes
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

/// A chart per question.
pub fn panels(all: &[Highest]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for highest in all {
        let (title, load) = (&highest.contender.asked, highest.load_rps() / 1e3);
        let sure = |rate: Option<tailwater_workload::Rate>| rate.map_or(load, |rate| rate.per_second() / 1e3);
        let (low, high) = (sure(highest.found.always_met_up_to), sure(highest.found.never_met_from));
        let range = (low.min(load), high.max(load));
        let bar = Bar { name: highest.contender.name.clone(), value: load, range };
        match panels.iter_mut().find(|panel| panel.title == *title) {
            Some(panel) => panel.bars.push(bar),
            None => panels.push(Panel {
                title: title.clone(),
                y_label: "thousand requests/s within the limit".to_owned(),
                bars: vec![bar],
                ..Panel::default()
            }),
        }
    }
    panels
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

/// What this project aims at beside a batch job: load, and what is left for the batch job at equal load.
pub fn beside_batch(all: &[Highest], asked: &str, rival: &str) -> [Claim; 2] {
    let paper = format!(
        "(this project's aim) {asked} beside a batch job, p99.9 at most 200 us: {AIM} times the load of {rival}"
    );
    let batch =
        format!("(this project's aim) {asked} at equal load: the batch job gets no less than beside {rival}");
    [times(all, asked, rival, &paper, AIM), shares(all, asked, rival, &batch)]
}

fn pair<'a>(all: &'a [Highest], asked: &str, rival: &str) -> Option<(&'a Highest, &'a Highest)> {
    let of = |name: &str| all.iter().find(|h| h.contender.asked == asked && h.contender.name == name);
    Some((of(TAILWATER)?, of(rival)?))
}

/// Whether Tailwater's load is `ratio` times the rival's.
fn times(all: &[Highest], asked: &str, rival: &str, paper: &str, ratio: f64) -> Claim {
    let Some((own, theirs)) = pair(all, asked, rival) else {
        return Claim::not_comparable(paper, format!("{rival} is not there"));
    };
    let of = |highest: &Highest| format!("{:.0} (bound by {})", highest.load_rps(), highest.bound());
    let times = own.load_rps() / theirs.load_rps();
    let said = if theirs.load_rps() > 0.0 { format!(", {} times", number(times)) } else { String::new() };
    let ours = format!("{} requests/s, {rival} {}{said}", of(own), of(theirs));
    // A rival that its generator held back may be better than it seems; nothing more can be said.
    match theirs.found.bound {
        Bound::Generator => Claim::not_comparable(paper, ours),
        _ => Claim::new(paper, ours, own.load_rps() > 0.0 && own.load_rps() >= ratio * theirs.load_rps()),
    }
}

fn shares(all: &[Highest], asked: &str, rival: &str, paper: &str) -> Claim {
    let share = |highest: &Highest| highest.at_equal_load(|sample| sample.batch.map(BatchRates::share));
    let shares = pair(all, asked, rival).and_then(|(own, theirs)| Some((share(own)?, share(theirs)?)));
    let Some((own, theirs)) = shares else {
        return Claim::not_comparable(paper, "there is no load that both serve within the limit".to_owned());
    };
    let ours = format!("of the shared cores {own} of its full speed, beside {rival} {theirs}");
    Claim::new(paper, ours, own.median + SAME_SHARE >= theirs.median)
}

#[cfg(test)]
mod tests {
    use super::super::super::figure::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::limit::tests::reached;
    use super::*;

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
