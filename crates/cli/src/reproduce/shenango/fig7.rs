//! Figure 7: few connections, which hash unevenly over cores, with and without stealing packets.

use tailwater_loadgen::Plan;
use tailwater_loadgen::plan::MAX_FLOWS;
use tailwater_sim::plot::draw;

use super::super::contest::{Case, Contest, System, run};
use super::super::context::{Context, Pace, Rig};
use super::super::figure::{Claim, Figure, Outcome};
use crate::table::number;
use crate::testbed::{on_linux, on_tailwater};

const SERVICE: &str = "exp:10us";
const LINUX: &str = "Linux";
const ROUNDS: usize = 3;
/// The paper's few connections, and the hyperthreads of its server that they are spread over (16 less the IOKernel's two).
const PAPER_FEW: usize = 24;
const PAPER_THREADS: usize = 14;
/// "Almost as good": the tail with few connections is at most this many times that with many.
const ALMOST: f64 = 1.5;
/// "Degrades significantly": at least this many times.
const SIGNIFICANTLY: f64 = 2.0;
/// Shared cores below which there is nobody to steal from.
const LEAST_CORES: usize = 2;

/// See the [module](self).
#[derive(Debug)]
pub struct Figure7;

impl Figure for Figure7 {
    fn name(&self) -> &'static str {
        "shenango-fig7"
    }

    fn title(&self) -> &'static str {
        "Tail latency with few connections, packet stealing on and off"
    }

    fn paper(&self) -> &'static str {
        "Shenango (NSDI'19), figure 7"
    }

    fn plan(&self) -> &'static str {
        include_str!("../../../../../experiments/shenango-fig7.md")
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let rig = context.rig()?;
        let cores = rig.testbed.cores.managed.len();
        let loads: &[f64] = if context.options.quick { &[60.0] } else { &[10.0, 30.0, 50.0, 70.0, 85.0] };
        let pace = context.pace(loads.len() * 5, ROUNDS);
        let few = few_connections(cores);
        let contest = run(self.name(), context, cases(rig, &pace, loads, few)?, pace.rounds)?;
        let mut notes = rig.notes(&pace, context.options.quick);
        notes.push(contest.handoff_note());
        notes.push(on_linux::queue_note());
        notes.push(format!(
            "Connections are UDP flows: {few} for the paper's {PAPER_FEW} over {PAPER_THREADS} hyperthreads, {MAX_FLOWS} for its 1200. \
             Without packet stealing user threads are still stolen, as in ZygOS. Linux has one socket, whatever the flows."
        ));
        Ok(Outcome {
            svg: draw(self.title(), &[contest.latency_panel(SERVICE, Vec::new())]),
            data: contest.data(),
            summary: contest.summary(),
            claims: claims(&contest, loads, cores, few),
            notes,
        })
    }
}

/// As many per core as in the paper, rounded up.
fn few_connections(cores: usize) -> u16 {
    (PAPER_FEW * cores).div_ceil(PAPER_THREADS).clamp(1, usize::from(MAX_FLOWS)) as u16
}

fn curve(flows: u16, stealing: bool) -> String {
    format!("{flows} flows, stealing {}", if stealing { "on" } else { "off" })
}

fn cases(rig: &Rig, pace: &Pace, loads: &[f64], few: u16) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for &load in loads {
        let plan = pace.plan(&SERVICE.parse()?, load, rig.testbed.cores.managed.len())?;
        let case = |curve: String, flows: u16, system: System| Case {
            panel: SERVICE.to_owned(),
            curve,
            load,
            plan: Plan { flows, ..plan.clone() },
            system,
        };
        for flows in [MAX_FLOWS, few] {
            for packet_stealing in [true, false] {
                let setting = on_tailwater::Setting { packet_stealing, ..Default::default() };
                cases.push(case(curve(flows, packet_stealing), flows, System::Tailwater(setting)));
            }
        }
        let linux = on_linux::Setting::threads(rig.wait.mode());
        cases.push(case(LINUX.to_owned(), 1, System::Linux(linux)));
    }
    Ok(cases)
}

fn claims(contest: &Contest, loads: &[f64], cores: usize, few: u16) -> Vec<Claim> {
    const WITH: &str = "by stealing packets, 24 connections do almost as well as 1200";
    const WITHOUT: &str =
        "where packets are not stolen (ZygOS), latency degrades significantly with 24 connections";
    // The worst ratio of tails, few to many connections, over the loads that both sustain.
    let worst = |stealing: bool| -> Option<f64> {
        let tail = |flows: u16, load: f64| {
            let point = contest.at(SERVICE, &curve(flows, stealing), load)?;
            (!point.saturated()).then(|| point.tail_us())?
        };
        let ratios =
            loads.iter().filter_map(|&load| Some(tail(few, load)?.median / tail(MAX_FLOWS, load)?.median));
        ratios.reduce(f64::max)
    };
    let (on, off) = (worst(true), worst(false));
    let text = |ratio: Option<f64>| ratio.map_or("nothing to compare".to_owned(), number);
    if cores < LEAST_CORES {
        let why = format!(
            "one shared core has one queue: nobody steals, and the option must change nothing. Largest ratio of windowed p99.9, few to \
             many flows: {} with stealing, {} without",
            text(on),
            text(off)
        );
        return [WITH, WITHOUT].map(|paper| Claim::not_comparable(paper, why.clone())).to_vec();
    }
    let ours =
        |ratio| format!("largest ratio of windowed p99.9, {few} to {MAX_FLOWS} flows: {}", text(ratio));
    vec![
        Claim::new(WITH, ours(on), on.is_some_and(|ratio| ratio <= ALMOST)),
        Claim::new(WITHOUT, ours(off), off.is_some_and(|ratio| ratio >= SIGNIFICANTLY)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::contest::tests::{contest, point};
    use super::super::super::figure::Verdict;
    use super::*;

    fn verdicts(cores: usize, tails: [f64; 4]) -> Vec<Verdict> {
        let curves = [(MAX_FLOWS, true), (MAX_FLOWS, false), (4, true), (4, false)];
        let points = curves.iter().zip(tails).map(|(&(flows, stealing), tail)| {
            let mut point = point(&curve(flows, stealing), 50.0, &[tail], 0.5, false);
            point.case.panel = SERVICE.to_owned();
            point
        });
        let claims = claims(&contest(points.collect()), &[50.0], cores, 4);
        claims.iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        use Verdict::{NotReached, Reached};
        assert_eq!(verdicts(2, [100.0, 100.0, 120.0, 300.0]), [Reached, Reached]);
        assert_eq!(verdicts(2, [100.0, 100.0, 220.0, 120.0]), [NotReached, NotReached]);
    }

    #[test]
    fn one_core_has_nobody_to_steal_from() {
        assert_eq!(verdicts(1, [100.0; 4]), [Verdict::NotComparable; 2]);
    }

    #[test]
    fn connections_follow_the_cores() {
        assert_eq!([1, 3, 14].map(few_connections), [2, 6, 24]);
    }
}
