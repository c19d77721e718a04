//! Figure 7: few connections, which hash unevenly over cores, with and without packet stealing.

use tailwater_loadgen::Plan;
use tailwater_loadgen::plan::MAX_FLOWS;

use super::super::contest::{self, Case, Contest, System};
use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Rig, number};
use tailwater_testbed::{on_linux, on_tailwater};

const SERVICE: &str = "exp:10us";
const LINUX: &str = "Linux";
const ROUNDS: usize = 3;
/// The paper's few connections, and the hyperthreads of its server over which they are spread (16
/// less the IOKernel's two).
const PAPER_FEW: usize = 24;
const PAPER_THREADS: usize = 14;
/// "Almost as good": the tail with few connections is at most this many times that with many.
const ALMOST: f64 = 1.5;
/// "Degrades significantly": at least this many times.
const SIGNIFICANTLY: f64 = 2.0;
/// Least number of shared cores with which there is another core to steal from.
const MIN_CORES: usize = 2;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let cores = rig.testbed.cores.managed.len();
    let loads: &[f64] = if context.options.quick { &[60.0] } else { &[10.0, 30.0, 50.0, 70.0, 85.0] };
    let pace = context.pace(loads.len() * 5, ROUNDS);
    let few = few_connections(cores);
    let contest = contest::run(figure, context, cases(rig, &pace, loads, few)?, &pace)?;
    let mut notes = rig.linux_notes().to_vec();
    notes.push(format!(
        "Connections are UDP flows: {few} for the paper's {PAPER_FEW} over {PAPER_THREADS} hyperthreads, {MAX_FLOWS} for its 1200. \
         Without packet stealing user threads are still stolen, as in ZygOS. Linux has one socket, whatever the flows."
    ));
    let panel = contest.latency_panel(SERVICE, Vec::new());
    Ok(contest.outcome(&[panel], claims(&contest, loads, cores, few), notes))
}

/// Returns the number of few connections: as many per core as in the paper, rounded up.
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
    let ratios = |stealing: bool| -> Vec<(f64, f64)> {
        loads.iter().filter_map(|&load| Some((load, ratio(contest, few, stealing, load)?))).collect()
    };
    let (on, off) = (ratios(true), ratios(false));
    if cores < MIN_CORES {
        let why = format!(
            "one shared core has one queue: nothing is stolen, and the option must change nothing. Windowed p99.9, few to many flows (load): {} \
             with stealing; {} without",
            listed(&on),
            listed(&off)
        );
        return [WITH, WITHOUT].map(|paper| Claim::not_comparable(paper, why.clone())).to_vec();
    }
    let judged = |paper: &str, ours: String, ratios: &[(f64, f64)], holds: bool| {
        Claim::judged(paper, ours, (!ratios.is_empty()).then_some(holds))
    };
    let flows = format!("windowed p99.9, {few} to {MAX_FLOWS} flows (load in %)");
    let almost = |ratio: f64| ratio <= ALMOST;
    // Noise degrades both alike: a load counts if stealing keeps the latency that is lost without
    // it.
    let lost = |&(load, ratio): &(f64, f64)| {
        ratio >= SIGNIFICANTLY && on.iter().any(|&(other, ratio)| other == load && almost(ratio))
    };
    vec![
        judged(WITH, format!("{flows}: {}", listed(&on)), &on, on.iter().all(|&(_, ratio)| almost(ratio))),
        judged(
            WITHOUT,
            format!("{flows}: {} without stealing, {} with it", listed(&off), listed(&on)),
            &off,
            off.iter().any(lost),
        ),
    ]
}

/// Returns the ratio of the tail with few flows to that with many; infinite where only many are
/// sustained, `None` where many are not.
fn ratio(contest: &Contest, few: u16, stealing: bool, load: f64) -> Option<f64> {
    let point = |flows: u16| contest.at(SERVICE, &curve(flows, stealing), load);
    let (few, many) = (point(few)?, point(MAX_FLOWS)?);
    if many.saturated() {
        return None;
    }
    Some(if few.saturated() { f64::INFINITY } else { few.tail_us()?.median / many.tail_us()?.median })
}

fn listed(ratios: &[(f64, f64)]) -> String {
    let one = |&(load, ratio): &(f64, f64)| match ratio.is_finite() {
        true => format!("{} times ({load})", number(ratio)),
        false => format!("saturated with few ({load})"),
    };
    let all: Vec<String> = ratios.iter().map(one).collect();
    if all.is_empty() { "nothing to compare".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict;
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// The tail of a saturated system.
    const SATURATED: f64 = f64::INFINITY;

    /// Returns the verdicts for these tails at each load: many flows with and without stealing,
    /// then few.
    fn at_loads(cores: usize, rows: &[(f64, [f64; 4])]) -> Vec<Verdict> {
        let curves = [(MAX_FLOWS, true), (MAX_FLOWS, false), (4, true), (4, false)];
        let points = rows.iter().flat_map(|&(load, tails)| {
            curves.iter().zip(tails).map(move |(&(flows, stealing), tail)| {
                let saturated = tail == SATURATED;
                let tail = if saturated { 9e4 } else { tail };
                point(&curve(flows, stealing), load, &[tail], 0.5, saturated).on(SERVICE)
            })
        });
        let loads: Vec<f64> = rows.iter().map(|row| row.0).collect();
        let claims = claims(&contest(points.collect()), &loads, cores, 4);
        claims.iter().map(|claim| claim.verdict).collect()
    }

    fn verdicts(cores: usize, tails: [f64; 4]) -> Vec<Verdict> {
        at_loads(cores, &[(50.0, tails)])
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        use Verdict::{NotReached, Reached};
        assert_eq!(verdicts(2, [100.0, 100.0, 120.0, 300.0]), [Reached, Reached]);
        assert_eq!(verdicts(2, [100.0, 100.0, 220.0, 120.0]), [NotReached, NotReached]);
    }

    #[test]
    fn few_flows_that_saturate_where_many_do_not_are_a_loss() {
        use Verdict::{NotComparable, NotReached, Reached};
        let calm = (10.0, [100.0, 100.0, 100.0, 100.0]);
        assert_eq!(at_loads(2, &[calm, (85.0, [100.0, 100.0, SATURATED, SATURATED])]), [NotReached; 2]);
        assert_eq!(at_loads(2, &[calm, (85.0, [100.0, 100.0, 120.0, SATURATED])]), [Reached; 2]);
        assert_eq!(at_loads(2, &[(85.0, [SATURATED; 4])]), [NotComparable; 2]);
    }

    #[test]
    fn without_stealing_only_a_load_that_stealing_saves_counts() {
        use Verdict::NotReached;
        // Noise at one load, with and without stealing.
        let noisy = [(10.0, [100.0, 100.0, 400.0, 400.0]), (50.0, [100.0; 4])];
        assert_eq!(at_loads(2, &noisy), [NotReached; 2]);
    }

    #[test]
    fn one_core_has_no_other_to_steal_from() {
        assert_eq!(verdicts(1, [100.0; 4]), [Verdict::NotComparable; 2]);
    }

    #[test]
    fn connections_follow_the_cores() {
        assert_eq!([1, 3, 14].map(few_connections), [2, 6, 24]);
    }
}
