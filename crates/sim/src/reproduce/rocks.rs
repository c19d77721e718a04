//! Shinjuku (NSDI'19), figure 8: GETs beside SCANs of RocksDB, one queue against a queue for each
//! type, with preemption and without.
//!
//! Service times are those the paper states: 6 us for a GET, 240 us for a SCAN of 1,000 pairs,
//! 1,200 us for one of 5,000. The last panel is the mixture of part a on a single worker with the
//! costs of this project's machine: what `tailwater-rocks` may reach on two cores.

use super::curves::{self, COLUMNS, CORES, Curve, PAPERS_COSTS, System, WORKERS, Workload};
use super::{Claim, Drawing, Options, Reproduction};
use crate::mix::Mix;
use crate::study::policies::PolicyRow;
use tailwater_plot::table::Table;

/// Loads as fractions of all cores.
const LOADS: [f64; 9] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
const QUICK_LOADS: [f64; 2] = [0.1, COMPARED];
/// Load at which latencies are compared; the paper does not state one.
const COMPARED: f64 = 0.6;
/// p99 at which throughput is compared, in nanoseconds; the paper does not state one.
const LIMIT_NS: f64 = 50_000.0;

const RARE: &str = "bimodal:0.995*6us+0.005*240us";
const HALF: &str = "bimodal:0.5*6us+0.5*1200us";

const IX: &str = "d-FCFS (IX)";
const ZYGOS: &str = "d-FCFS with stealing (ZygOS)";
const PLAIN: &str = "one queue, no preemption";
const SINGLE: &str = "one queue, 15 us";
const MULTI: &str = "queue by type, 15 us";

const fn system(name: &'static str, policy: &'static str, workers: usize) -> System {
    System { name, policy, workers }
}

const RARE_SYSTEMS: [System; 3] =
    [system(IX, "d-fcfs", CORES), system(ZYGOS, "steal", CORES), system(SINGLE, "sq:15us,tail", WORKERS)];
const HALF_SYSTEMS: [System; 4] = [
    system(ZYGOS, "steal", CORES),
    system(PLAIN, "c-fcfs", WORKERS),
    system(SINGLE, "sq:15us,tail", WORKERS),
    system(MULTI, "mq:15us,head", WORKERS),
];
const OWN_SYSTEMS: [System; 3] =
    [system(PLAIN, "c-fcfs", 1), system(SINGLE, "sq:15us,tail", 1), system(MULTI, "mq:15us,head", 1)];

/// Part a: 88 % lower tail latency than ZygOS, 6.6 times its throughput.
const PAPERS_LOWER: f64 = 0.88;
const PAPERS_TIMES: f64 = 6.6;

/// Points of the figure, for its progress.
pub(super) fn points(options: &Options) -> u64 {
    let systems = RARE_SYSTEMS.len() + HALF_SYSTEMS.len() + OWN_SYSTEMS.len();
    let each = loads(options).len() * curves::preempted_effort(options).replications as usize;
    (systems * each) as u64
}

fn loads(options: &Options) -> &'static [f64] {
    if options.quick { &QUICK_LOADS } else { &LOADS }
}

/// The p99 of all requests.
fn all_us(row: &PolicyRow) -> f64 {
    row.latency_ns[2].value / 1e3
}

fn class_us(row: &PolicyRow, class: usize) -> f64 {
    row.class_p99_ns.get(class).map_or(f64::NAN, |p99| p99.value / 1e3)
}

fn get_us(row: &PolicyRow) -> f64 {
    class_us(row, 0)
}

fn scan_us(row: &PolicyRow) -> f64 {
    class_us(row, 1)
}

pub(super) fn figure8(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let effort = curves::preempted_effort(options);
    let workload = |name, service: &str, costs, cores| {
        let classes = Mix::parse(service)?;
        anyhow::Ok(Workload { name, classes, costs, cores, loads: loads(options), effort })
    };
    let rare = workload("99.5 % GET, 0.5 % SCAN(1000)", RARE, PAPERS_COSTS, CORES)?;
    let half = workload("50 % GET, 50 % SCAN(5000)", HALF, PAPERS_COSTS, CORES)?;
    let own = workload("99.5 % GET, 0.5 % SCAN(1000), one worker", RARE, "vm-2vcpu", 1)?;
    let mut data = Table::new(COLUMNS);
    let mut run = |workload: &Workload<'_>, systems: &[System]| {
        let curves = workload.run(systems, tick)?;
        workload.push(&mut data, &curves);
        anyhow::Ok(curves)
    };
    let (rare, half, own) =
        (run(&rare, &RARE_SYSTEMS)?, run(&half, &HALF_SYSTEMS)?, run(&own, &OWN_SYSTEMS)?);
    let panels = [
        curves::panel("a: 0.5 % SCANs, all requests", "p99 (us)", (1.0, 1e4), &rare, all_us),
        curves::panel("b: half SCANs, GETs", "p99 (us)", (1.0, 1e5), &half, get_us),
        curves::panel("c: half SCANs, SCANs", "p99 (us)", (1e3, 1e5), &half, scan_us),
        curves::panel("a on one worker here, GETs", "p99 (us)", (1.0, 1e4), &own, get_us),
    ];
    let mut claims = judge_rare(&rare);
    claims.extend(judge_half(&half));
    Ok(Reproduction {
        title: "Shinjuku figure 8: RocksDB, one queue against a queue for each type".to_owned(),
        data,
        drawing: Drawing::new("GETs beside SCANs of RocksDB (Shinjuku, figure 8)", &panels),
        claims,
    })
}

/// Judges part a; the curves are those of [`RARE_SYSTEMS`].
fn judge_rare(curves: &[Curve]) -> Vec<Claim> {
    let [ix, zygos, own] = [0, 1, 2].map(|index| curves[index].at(COMPARED, all_us));
    let within = [0, 1, 2].map(|index| curves[index].within(LIMIT_NS / 1e3, all_us) / 1e3);
    let times = within[2] / within[1];
    vec![
        Claim::new(
            "a: tail latency 88 % lower than ZygOS's",
            format!("p99 at {:.0} % load: IX {ix:.0}, ZygOS {zygos:.0}, own {own:.0} us", 100.0 * COMPARED),
            own <= (1.0 - PAPERS_LOWER) * zygos,
        ),
        Claim::new(
            "a: 6.6 times the throughput of ZygOS",
            format!(
                "of the loads tried with a p99 of at most {:.0} us, thousand/s: IX {:.0}, ZygOS {:.0}, own {:.0}",
                LIMIT_NS / 1e3,
                within[0],
                within[1],
                within[2]
            ),
            times >= PAPERS_TIMES,
        ),
    ]
}

/// Judges parts b and c; the curves are those of [`HALF_SYSTEMS`].
fn judge_half(curves: &[Curve]) -> Vec<Claim> {
    let [zygos, plain, single, multi] = [0, 1, 2, 3].map(|index| curves[index].at(COMPARED, get_us));
    let [_, plain_scan, single_scan, multi_scan] =
        [0, 1, 2, 3].map(|index| curves[index].at(COMPARED, scan_us));
    let at = format!("at {:.0} % load", 100.0 * COMPARED);
    vec![
        Claim::new(
            "b, c: without preemption SCANs are favoured over GETs",
            format!(
                "p99 {at}: GETs {plain:.0} us ({:.0} times their work), SCANs {plain_scan:.0} us ({:.1} times)",
                plain / 6.0,
                plain_scan / 1200.0
            ),
            plain / 6.0 > 10.0 * plain_scan / 1200.0,
        ),
        Claim::new(
            "b: preemption fixes this with a single queue",
            format!("p99 of GETs {at}: {single:.0} us, without preemption {plain:.0} us"),
            single < plain / 10.0,
        ),
        Claim::new(
            "c: a queue for each type improves SCANs",
            format!(
                "p99 of SCANs {at}: {multi_scan:.0} us, with a single queue {single_scan:.0} us; GETs {multi:.0} and {single:.0} us"
            ),
            multi_scan < single_scan,
        ),
        Claim::new(
            "b, c: ZygOS is significantly worse than even one queue without preemption",
            format!("p99 of GETs {at}: {zygos:.0} us, one queue without preemption {plain:.0} us"),
            zygos > 1.5 * plain,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::curves::tests::row;
    use crate::stats::Estimate;

    /// Returns a curve with one load, where everything has these p99.
    fn curve(all_us: f64, get_us: f64, scan_us: f64, rps: f64) -> Curve {
        let of = |us: f64| Estimate { value: 1e3 * us, error: 0.0 };
        let mut only = row(COMPARED, 1.0, rps);
        only.latency_ns = [of(all_us); 4];
        only.class_p99_ns = vec![of(get_us), of(scan_us)];
        Curve { name: "", rows: vec![only] }
    }

    fn holds(claims: &[Claim]) -> Vec<bool> {
        claims.iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let rare = |zygos, own, rps| {
            holds(&judge_rare(&[
                curve(900.0, 0.0, 0.0, 1.0),
                curve(zygos, 0.0, 0.0, 1e5),
                curve(own, 0.0, 0.0, rps),
            ]))
        };
        assert_eq!(rare(49.0, 5.0, 7e5), [true, true]);
        assert_eq!(rare(49.0, 8.0, 6e5), [false, false]);
        assert_eq!(rare(49.0, 60.0, 7e5), [false, false], "beyond the limit it carries nothing");
        let half = |gets: [f64; 4], scans: [f64; 4]| {
            let each = [0, 1, 2, 3].map(|i| curve(0.0, gets[i], scans[i], 1.0));
            holds(&judge_half(&each))
        };
        assert_eq!(half([2000.0, 1000.0, 50.0, 50.0], [3000.0, 2000.0, 5000.0, 3000.0]), [true; 4]);
        assert_eq!(
            half([1400.0, 100.0, 50.0, 50.0], [3000.0, 2400.0, 3000.0, 3000.0]),
            [false, false, false, true]
        );
        assert_eq!(
            half([900.0, 1000.0, 50.0, 50.0], [3000.0, 2400.0, 5000.0, 3000.0]),
            [true, true, true, false]
        );
    }

    #[test]
    fn preemption_keeps_gets_from_waiting_for_scans() {
        let options = Options { quick: true, seed: 1, threads: 2 };
        let result = figure8(&options, &|| ()).unwrap();
        let systems = RARE_SYSTEMS.len() + HALF_SYSTEMS.len() + OWN_SYSTEMS.len();
        assert_eq!(result.data.rows().len(), systems * QUICK_LOADS.len());
        assert!(result.claims[3].holds, "{}", result.claims_text());
    }
}
