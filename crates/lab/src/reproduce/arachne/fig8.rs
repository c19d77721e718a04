//! Figures 7 and 8: throughput of a store whose writes wait for two backups, under writes only and
//! under YCSB.

use std::sync::Arc;

use tailwater_loadgen::protocol::{Memcached, Protocol};
use tailwater_workload::keyvalue::Workload;

use super::super::contest::{self, Case, Contest, Point, program_cases};
use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Panel, Rig, number};
use super::super::stores::{MEDIUM, UNIT};
use tailwater_testbed::program::{Host, Program};

/// A mix of requests.
struct Mix {
    panel: &'static str,
    get_share: f64,
    /// In thousand requests per second.
    loads: &'static [f64],
}

const WRITES: &str = "writes only";
const YCSB_A: &str = "YCSB-A, half writes";
const YCSB_B: &str = "YCSB-B, 5 % writes";
const YCSB_C: &str = "YCSB-C, reads only";
const MIXES: [Mix; 4] = [
    Mix { panel: WRITES, get_share: 0.0, loads: &[5.0, 10.0, 20.0, 40.0, 80.0] },
    Mix { panel: YCSB_A, get_share: 0.5, loads: &[5.0, 10.0, 20.0, 40.0, 80.0] },
    Mix { panel: YCSB_B, get_share: 0.95, loads: &[10.0, 20.0, 40.0, 80.0, 160.0] },
    Mix { panel: YCSB_C, get_share: 1.0, loads: &[20.0, 40.0, 80.0, 160.0, 320.0] },
];
/// Mixes of a quick run, at the lowest load each.
const QUICK_MIXES: usize = 2;

const TAILWATER: &str = "Tailwater, two backups";
const TAILWATER_ALONE: &str = "Tailwater, no backup";
const LINUX: &str = "Linux, two backups";
const LINUX_ALONE: &str = "Linux, no backup";
/// RAMCloud's own number of copies besides the primary's is three; two fit on one core.
const BACKUPS: usize = 2;
const KEYS: u64 = 2_000;
const ROUNDS: usize = 3;

/// Throughput of RAMCloud on Arachne over that on its own threads: under writes, YCSB-A and -C.
const PAPERS_WRITES: f64 = 2.5;
const PAPERS_A: f64 = 1.54;
const PAPERS_C: f64 = 0.85;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let quick = context.options.quick;
    let mixes = if quick { &MIXES[..QUICK_MIXES] } else { &MIXES };
    let loads = |mix: &Mix| if quick { &mix.loads[..1] } else { mix.loads };
    let points = mixes.iter().map(|mix| 4 * loads(mix).len()).sum();
    let pace = context.pace(points, ROUNDS);
    let mut cases = Vec::new();
    for mix in mixes {
        cases.extend(mix.cases(rig, &pace, loads(mix))?);
    }
    let contest = contest::run(figure, context, cases, &pace)?.per(UNIT);
    let note = format!(
        "A primary and {BACKUPS} backups, three programs, share the worker core(s) of this machine; the paper has 12 servers. \
         {KEYS} keys are stored, at all three, before each point, and every answer is checked."
    );
    Ok(contest.outcome(&panels(&contest), claims(&contest), [note]))
}

impl Mix {
    fn cases(&self, rig: &Rig, pace: &Pace, loads: &[f64]) -> anyhow::Result<Vec<Case>> {
        let threads = rig.testbed.cores.managed.len();
        let requests = Memcached::new(Workload::Ycsb, KEYS, MEDIUM)?.with_get_share(self.get_share)?;
        let requests: Arc<dyn Protocol> = Arc::new(requests);
        let store = |host, backups| {
            Ok::<_, anyhow::Error>(
                Program::kv_with_backups(host, threads, Arc::clone(&requests), backups)?.alone(),
            )
        };
        let programs = [
            (TAILWATER, store(Host::Tailwater, BACKUPS)?),
            (LINUX, store(Host::Linux, BACKUPS)?),
            (TAILWATER_ALONE, store(Host::Tailwater, 0)?),
            (LINUX_ALONE, store(Host::Linux, 0)?),
        ];
        program_cases(self.panel, &programs, pace, loads)
    }
}

fn panels(contest: &Contest) -> Vec<Panel> {
    let titles = contest.names(|case| &case.panel);
    titles.iter().map(|title| contest.panel_of(title, "p99 (us)", Point::p99_us, Vec::new())).collect()
}

fn claims(contest: &Contest) -> Vec<Claim> {
    [
        (
            WRITES,
            PAPERS_WRITES,
            "2.5 times the throughput of RAMCloud's own threads under writes of 100 bytes",
        ),
        (YCSB_A, PAPERS_A, "54 % higher throughput under YCSB-A"),
        (YCSB_C, PAPERS_C, "15 % lower throughput under YCSB-C, where no thread waits for another server"),
    ]
    .into_iter()
    .map(|(panel, times, paper)| throughput(contest, panel, times, paper))
    .collect()
}

/// Judges the highest load sustained with backups by that of the same store on kernel threads. One
/// that sustains no load tried counts as sustaining the least of them.
fn throughput(contest: &Contest, panel: &str, times: f64, paper: &str) -> Claim {
    let of = |curve| contest.capacity(panel, curve);
    let text = |curve| format!("{curve} {}", of(curve).map_or("none".to_owned(), number));
    let curves = [TAILWATER, LINUX, TAILWATER_ALONE, LINUX_ALONE].map(text);
    let ours = format!("{panel}, highest load sustained of those tried, {UNIT}: {}", curves.join("; "));
    let tried: Vec<f64> = contest.curve(panel, TAILWATER).iter().map(|point| point.case.load).collect();
    let (Some(own), Some(&least), Some(&most)) = (of(TAILWATER), tried.first(), tried.last()) else {
        return Claim::not_comparable(paper, ours);
    };
    let holds = own >= times * of(LINUX).unwrap_or(least);
    // A higher load may be sustained than any that was tried.
    Claim::judged(paper, ours, (own < most || holds).then_some(holds))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// Returns the verdicts if each panel's curves sustain loads up to the given ones.
    fn verdicts(tailwater: f64, linux: f64) -> Vec<Verdict> {
        let mut points = Vec::new();
        for mix in MIXES {
            for &load in mix.loads {
                for (curve, most) in [(TAILWATER, tailwater), (LINUX, linux)] {
                    points.push(point(curve, load, &[50.0], 0.0, load > most).on(mix.panel));
                }
            }
        }
        claims(&contest(points)).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(40.0, 10.0), [Reached; 3]);
        assert_eq!(verdicts(20.0, 10.0), [NotReached, Reached, Reached]);
        assert_eq!(verdicts(20.0, 40.0), [NotReached; 3]);
        assert_eq!(verdicts(40.0, 1.0), [Reached; 3], "below the least counts as the least");
        assert_eq!(verdicts(1.0, 1.0), [NotComparable; 3]);
        assert_eq!(verdicts(1e3, 1e3), [NotComparable, NotComparable, Reached], "both may be higher");
    }
}
