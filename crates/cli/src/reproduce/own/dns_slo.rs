//! The highest load of an authoritative name server within a latency limit, beside a batch job: ours against those that many
//! rely on.

use tailwater_loadgen::search::Slo;
use tailwater_sim::plot::draw;

use super::super::aims::{BESIDE_BATCH, TAILWATER, beside_batch};
use super::super::context::Context;
use super::super::figure::{Claim, Figure, Outcome};
use super::super::limit::{Contender, Highest, data, highest, notes, panels, summary};
use crate::testbed::name_server::{ABSENT, NAMES, dns, dns_on_linux, knot, nsd};
use crate::testbed::on_linux;
use crate::testbed::program::Program;

const DNS: &str = "DNS";
const DNS_ON_LINUX: &str = "our dns on Linux";
const NSD: &str = "NSD on Linux";
const KNOT: &str = "Knot DNS on Linux";
/// Who is compared with; our own server on Linux only shows what is the server's and what the system's.
const RIVALS: [&str; 2] = [NSD, KNOT];

/// See the [module](self).
#[derive(Debug)]
pub struct DnsSlo;

impl Figure for DnsSlo {
    fn name(&self) -> &'static str {
        "dns-slo"
    }

    fn title(&self) -> &'static str {
        "Highest load of a name server within a latency limit, beside a batch job"
    }

    fn paper(&self) -> &'static str {
        "A figure of this project's own"
    }

    fn plan(&self) -> &'static str {
        include_str!("../../../../../experiments/dns-slo.md")
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let rig = context.rig()?;
        let threads = rig.testbed.cores.managed.len();
        let all = highest(self.name(), context, contenders(threads, context.options.quick)?)?;
        let mut conditions = vec![format!("{}.", rig.testbed.cores.describe())];
        conditions.extend(rig.noise_notes());
        conditions.extend(self::conditions(threads));
        conditions.extend(notes(context.options.quick));
        Ok(Outcome {
            svg: draw(self.title(), &panels(&all)),
            data: data(&all),
            summary: summary(&all),
            claims: claims(&all, context.options.quick),
            notes: conditions,
        })
    }
}

/// The programs, and whether a quick run has them too.
fn contenders(threads: usize, quick: bool) -> anyhow::Result<Vec<Contender>> {
    let slo: Slo = BESIDE_BATCH.parse()?;
    let programs: [(&str, Option<Program>, bool); 4] = [
        (TAILWATER, Some(dns()), true),
        (NSD, nsd(threads), true),
        (KNOT, knot(threads), false),
        (DNS_ON_LINUX, Some(dns_on_linux(threads)), false),
    ];
    let contender = |(name, program, in_quick): (&str, Option<Program>, bool)| {
        program.filter(|_| in_quick || !quick).map(|program| Contender {
            asked: DNS.to_owned(),
            name: name.to_owned(),
            program,
            slo: slo.clone(),
        })
    };
    Ok(programs.into_iter().filter_map(contender).collect())
}

fn conditions(threads: usize) -> Vec<String> {
    let mut conditions = vec![
        format!(
            "One zone of {NAMES} names for all, asked over UDP, each equally often, and as often {ABSENT} that are not there. Every \
             answer is checked."
        ),
        "On Linux the generator is on kernel sockets on the core that polls otherwise, over one flow; the servers have one \
         thread or process per shared core for datagrams and the highest priority."
            .to_owned(),
        on_linux::queue_note(),
        "NSD's sockets are told to hold as much. Knot DNS has no such setting: its hold what net.core.rmem_default allows, about \
         256 small datagrams where that is 212,992."
            .to_owned(),
        "Rate limits of NSD are off, and its answers have no records that were not asked for, as those of the others.".to_owned(),
    ];
    for (name, program) in [(NSD, nsd(threads)), (KNOT, knot(threads))] {
        if program.is_none() {
            conditions.push(format!("{name}: not installed, left out."));
        }
    }
    conditions
}

fn claims(all: &[Highest], quick: bool) -> Vec<Claim> {
    let rivals = RIVALS.iter().filter(|&&rival| !quick || rival == NSD);
    rivals.flat_map(|rival| beside_batch(all, DNS, rival)).collect()
}

#[cfg(test)]
mod tests {
    use tailwater_loadgen::search::Bound;

    use super::super::super::figure::Verdict::{NotComparable, NotReached, Reached};
    use super::super::super::limit::tests::reached;
    use super::*;

    #[test]
    fn each_rival_is_judged_by_itself() {
        let all = vec![
            reached(DNS, TAILWATER, 400e3, Bound::Limit, 0.5),
            reached(DNS, NSD, 100e3, Bound::Limit, 0.5),
            reached(DNS, KNOT, 110e3, Bound::Limit, 0.6),
        ];
        let verdicts =
            |all: &[Highest]| claims(all, false).iter().map(|claim| claim.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&all), [Reached, Reached, NotReached, NotReached]);
        assert_eq!(verdicts(&all[..2]), [Reached, Reached, NotComparable, NotComparable]);
    }

    #[test]
    fn a_quick_run_has_ours_and_at_most_one_other() {
        let names = |quick| -> Vec<String> {
            contenders(1, quick).unwrap().into_iter().map(|contender| contender.name).collect()
        };
        assert!(names(true).iter().all(|name| name == TAILWATER || name == NSD));
        let full = names(false);
        assert_eq!(
            (full.first().unwrap().as_str(), full.last().unwrap().as_str()),
            (TAILWATER, DNS_ON_LINUX)
        );
    }
}
