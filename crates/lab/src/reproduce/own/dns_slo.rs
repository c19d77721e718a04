//! An authoritative name server beside a batch job, over load: this project's against widely used
//! ones.

use super::super::aims;
use super::super::contest::{self, Contest, program_cases};
use super::super::figure::{Claim, Context, Figure, Outcome};
use super::super::stores::{MAX_GENERATOR_RATE, UNIT};
use crate::name_server::{ABSENT, NAMES, dns, dns_on_linux, knot, nsd};
use tailwater_testbed::on_linux;
use tailwater_testbed::program::Program;

const DNS: &str = "DNS";
const TAILWATER: &str = "Tailwater";
const DNS_ON_LINUX: &str = "our dns on Linux";
const NSD: &str = "NSD on Linux";
const KNOT: &str = "Knot DNS on Linux";
/// The rivals; this project's server on Linux only separates the effects of server and system.
const RIVALS: [&str; 2] = [NSD, KNOT];
const ROUNDS: usize = 3;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let (rig, quick) = (context.rig()?, context.options.quick);
    let threads = rig.testbed.cores.managed.len();
    let loads: &[f64] =
        if quick { &[25.0] } else { &[5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 400.0] };
    let programs = programs(threads, quick);
    let pace = context.pace(loads.len() * programs.len(), ROUNDS);
    let contest =
        contest::run(figure, context, program_cases(DNS, &programs, &pace, loads)?, &pace)?.per(UNIT);
    let panels = [contest.latency_panel(DNS, Vec::new()), contest.batch_panel(DNS, Vec::new())];
    Ok(contest.outcome(&panels, claims(&contest, quick), conditions(threads)))
}

/// Returns the programs; a quick run has Tailwater's and at most one rival.
fn programs(threads: usize, quick: bool) -> Vec<(&'static str, Program)> {
    let all = [
        (TAILWATER, Some(dns()), true),
        (NSD, nsd(threads), true),
        (KNOT, knot(threads), false),
        (DNS_ON_LINUX, Some(dns_on_linux(threads)), false),
    ];
    let chosen = all.into_iter().filter(|&(.., in_quick)| in_quick || !quick);
    chosen.filter_map(|(name, program, _)| Some((name, program?))).collect()
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

fn claims(contest: &Contest, quick: bool) -> Vec<Claim> {
    let rivals = RIVALS.iter().filter(|&&rival| !quick || rival == NSD);
    rivals
        .flat_map(|rival| aims::claims(contest, DNS, [TAILWATER, rival], MAX_GENERATOR_RATE, UNIT))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    #[test]
    fn each_rival_is_judged_separately() {
        let rows = [
            (TAILWATER, 10.0, 100.0, 0.6),
            (NSD, 10.0, 150.0, 0.6),
            (KNOT, 10.0, 150.0, 0.7),
            (TAILWATER, 20.0, 100.0, 0.5),
            (NSD, 20.0, 300.0, 0.4),
            (KNOT, 20.0, 150.0, 0.4),
            (TAILWATER, 80.0, 100.0, 0.4),
            (NSD, 80.0, 500.0, 0.3),
            (KNOT, 80.0, 150.0, 0.3),
        ];
        let verdicts = |rows: &[(&str, f64, f64, f64)]| {
            let make = |&(curve, load, tail, share): &(&str, f64, f64, f64)| {
                point(curve, load, &[tail], share, false).on(DNS)
            };
            let contest = contest(rows.iter().map(make).collect());
            claims(&contest, false).iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&rows), [Reached, Reached, NotComparable, NotReached]);
        let without_knot: Vec<_> = rows.into_iter().filter(|row| row.0 != KNOT).collect();
        assert_eq!(verdicts(&without_knot), [Reached, Reached, NotComparable, NotComparable]);
    }

    #[test]
    fn a_quick_run_has_at_most_one_rival() {
        let names = |quick| -> Vec<&str> { programs(1, quick).into_iter().map(|(name, _)| name).collect() };
        assert!(names(true).iter().all(|&name| name == TAILWATER || name == NSD));
        let full = names(false);
        assert_eq!((full.first(), full.last()), (Some(&TAILWATER), Some(&DNS_ON_LINUX)));
    }
}
