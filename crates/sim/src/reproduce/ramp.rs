//! Arachne (OSDI'18), figure 4: a service whose load rises and falls, with the cores that it has
//! over time, alone and beside a batch job.
//!
//! The machine has the 14 cores that the paper's server leaves to worker threads: of 16
//! hyperthreads one is the dispatch thread's and one is not managed. The policy `arachne` decides:
//! the estimator that live programs use, and an arbiter. Requests wait in one queue, and each runs
//! on the first core that is free. Beside it stand all cores for the service; congestion detection,
//! which lends cores by the microsecond; and this project's `arbiter`, where the service requests
//! the cores of the same estimate and is lent others by congestion.

use super::{Claim, Drawing, Options, Reproduction};
use crate::costs::Costs;
use crate::course::Window;
use crate::machine::{Machine, Service, Setup};
use crate::measure::{Budget, Measured};
use crate::mix::Mix;
use crate::scenario::parallel;
use crate::source::Synthetic;
use crate::study::Effort;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};
use tailwater_sched::alloc::PolicyName;
use tailwater_sched::dispatch::CentralFcfs;
use tailwater_sched::topology::Topology;
use tailwater_workload::{ArrivalProcess, LoadPattern};

const CORES: u16 = 14;
/// Windows under less than this part of the highest load are the low ones, and those under more
/// than the rest the high ones.
const LOW_PART: f64 = 0.25;
/// "Near-constant": the highest of the windows' medians and p99 over the lowest.
const CONSTANT: f64 = 2.0;
/// "Almost unaffected": latencies beside a batch job over those without.
const UNAFFECTED: f64 = 1.1;

/// A policy, with or without a batch job.
#[derive(Clone, Copy)]
struct System {
    name: &'static str,
    policy: PolicyName,
    batch: bool,
}

const SYSTEMS: [System; 6] = [
    System { name: "arachne", policy: PolicyName::Arachne, batch: false },
    System { name: "arachne, batch job", policy: PolicyName::Arachne, batch: true },
    System { name: "arbiter", policy: PolicyName::Arbiter, batch: false },
    System { name: "arbiter, batch job", policy: PolicyName::Arbiter, batch: true },
    System { name: "congestion detection, batch job", policy: PolicyName::Congestion, batch: true },
    System { name: "all cores, no batch job", policy: PolicyName::Static, batch: false },
];
const ALONE: usize = 0;
const BESIDE: usize = 1;
const ARBITER_ALONE: usize = 2;
const ARBITER_BESIDE: usize = 3;
const CONGESTION: usize = 4;
const ALL_CORES: usize = 5;

/// Points of the figure, for its progress.
pub(super) const POINTS: u64 = SYSTEMS.len() as u64;

/// The load: up from a hundredth of `most` and down again.
struct Ramp {
    /// Requests per second at its top.
    most: f64,
    service_us: f64,
    length_ms: u64,
    window_ms: u64,
}

impl Ramp {
    /// Returns the paper's rates, or a quarter of them with longer requests.
    fn new(options: &Options) -> Self {
        match options.quick {
            true => Self { most: 1e6 / 8.0, service_us: 80.0, length_ms: 1_600, window_ms: 100 },
            false => Self { most: 1e6, service_us: 10.0, length_ms: 8_000, window_ms: 200 },
        }
    }

    fn pattern(&self) -> anyhow::Result<LoadPattern> {
        let (half, low, most) = (self.length_ms / 2, self.most / 100.0, self.most);
        Ok(format!("{half}ms@{low:.0}..{most:.0},{half}ms@{most:.0}..{low:.0}").parse()?)
    }

    /// Returns the offered work in cores at a time.
    fn work(&self, at_s: f64) -> f64 {
        let half_s = self.length_ms as f64 / 2e3;
        let height = 1.0 - ((at_s - half_s) / half_s).abs();
        let part = 0.01 + 0.99 * height.clamp(0.0, 1.0);
        part * self.most * self.service_us / 1e6
    }

    fn run(&self, system: System, options: &Options) -> anyhow::Result<Vec<Window>> {
        let costs = Costs::load("paper-2019")?;
        let mix = Mix::parse(&format!("exp:{}us", self.service_us))?;
        let schedule = self.pattern()?.schedule(options.seed);
        let budget = Budget { warmup: 0, requests: u64::MAX, batches: 1 };
        let service = Service {
            measured: Measured::new(mix.classes().len(), budget),
            source: Box::new(Synthetic::scheduled(
                ArrivalProcess::Poisson,
                schedule,
                mix,
                None,
                options.seed,
            )),
            dispatch: Box::new(CentralFcfs::new(usize::from(CORES))),
            guaranteed: if system.policy == PolicyName::Static { CORES } else { 0 },
            max: CORES,
            estimates: system.policy == PolicyName::Arbiter,
        };
        let setup = Setup {
            topology: Topology::uniform(CORES, 1, 1)?,
            costs: &costs,
            policy: system.policy.build(None, options.seed)?,
            services: vec![service],
            batch: system.batch,
            // Arachne's threads poll on the cores that their program requested.
            park_after_ns: matches!(system.policy, PolicyName::Congestion | PolicyName::Arbiter)
                .then_some(50_000),
            warmup_ns: 0,
            duration_ns: self.length_ms * 1_000_000,
            hardware: None,
            window_ns: Some(self.window_ms * 1_000_000),
        };
        Ok(Machine::new(setup)?.run().used.course)
    }
}

pub(super) fn figure4(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let ramp = Ramp::new(options);
    let threads = Effort { threads: options.threads, ..Effort::default() }.threads();
    let runs = parallel(SYSTEMS.len(), threads, tick, |index| ramp.run(SYSTEMS[index], options));
    let runs = runs.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Reproduction {
        title: format!("Arachne figure 4: a ramp up to {} requests/s on {CORES} cores", ramp.most),
        data: data(&runs),
        drawing: Drawing::new(
            "A load that rises and falls, with the cores over time (Arachne, figure 4)",
            &panels(&ramp, &runs),
        ),
        claims: judge(&ramp, &runs),
    })
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn data(runs: &[Vec<Window>]) -> Table {
    let mut table = Table::new(
        "system | s | requests_per_s | p50_us | p99_us | held_cores | batch_cores | \
         requested_cores",
    );
    for (system, windows) in SYSTEMS.iter().zip(runs) {
        for window in windows {
            let mut cells = vec![system.name.to_owned(), format!("{:.2}", window.end_s)];
            cells.push(format!("{:.0}", window.rate));
            let figures = [us(window.p50_ns), us(window.p99_ns), window.held_cores, window.batch_cores];
            cells.extend(figures.map(|figure| format!("{figure:.2}")));
            let requested = (system.policy == PolicyName::Arbiter).then_some(window.requested_cores);
            cells.push(requested.map_or_else(String::new, |cores| cores.to_string()));
            table.row(cells);
        }
    }
    table
}

fn panels(ramp: &Ramp, runs: &[Vec<Window>]) -> [Panel; 4] {
    let lines = |of: fn(&Window) -> f64| -> Vec<Line> {
        let points =
            |windows: &Vec<Window>| windows.iter().map(|window| (window.end_s, of(window))).collect();
        SYSTEMS.iter().zip(runs).map(|(system, windows)| Line::new(system.name, points(windows))).collect()
    };
    let panel = |title: &str, y_label: &str, log_y, range, lines| Panel {
        log_y,
        ..Panel::new(title, "s", y_label, lines).within(range)
    };
    let cores = f64::from(CORES) + 1.0;
    let mut held = lines(|window| window.held_cores);
    let work = runs[ALONE].iter().map(|window| (window.end_s, ramp.work(window.end_s))).collect();
    let requested = |window: &Window| (window.end_s, f64::from(window.requested_cores));
    let requested = runs[ARBITER_BESIDE].iter().map(requested).collect();
    held.push(Line::new("requested of the arbiter, batch job", requested).dashed());
    held.push(Line::new("work offered", work).dashed());
    [
        panel("a: cores of the service", "cores", false, (0.0, cores), held),
        panel("b: tail latency", "p99 (us)", true, (10.0, 1e4), lines(|window| us(window.p99_ns))),
        panel("c: median latency", "p50 (us)", true, (1.0, 1e3), lines(|window| us(window.p50_ns))),
        panel("d: batch job", "cores", false, (0.0, cores), lines(|window| window.batch_cores)),
    ]
}

/// Returns the windows whose offered work lies in a part of the highest.
fn at_load<'a>(ramp: &Ramp, windows: &'a [Window], low: bool) -> Vec<&'a Window> {
    let most = ramp.work(ramp.length_ms as f64 / 2e3);
    let part = |window: &&Window| ramp.work(window.end_s - ramp.window_ms as f64 / 2e3) / most;
    windows.iter().filter(|w| if low { part(w) < LOW_PART } else { part(w) > 1.0 - LOW_PART }).collect()
}

fn mean(windows: &[&Window], of: fn(&Window) -> f64) -> f64 {
    windows.iter().map(|window| of(window)).sum::<f64>() / windows.len().max(1) as f64
}

/// Returns the lowest and the highest of a figure.
fn extremes(windows: &[Window], of: fn(&Window) -> f64) -> (f64, f64) {
    let values = windows.iter().map(of);
    values.fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(value), high.max(value)))
}

/// The figures of a system alone and beside a batch job, as the claims are about.
struct Pair<'a> {
    alone: &'a [Window],
    beside: &'a [Window],
    /// Cores that count: held, or requested.
    cores: fn(&Window) -> f64,
}

impl Pair<'_> {
    /// Returns the first window's cores, the most, and the last one's, all beside the job: without
    /// one nothing takes the cores that a service no longer requests.
    fn cores(&self) -> (f64, f64, f64) {
        let of = |window: Option<&Window>| window.map_or(0.0, self.cores);
        (of(self.beside.first()), extremes(self.beside, self.cores).1, of(self.beside.last()))
    }

    fn follow_the_load(&self) -> (String, bool) {
        let (first, most, last) = self.cores();
        let text = format!(
            "{first:.1} cores in the first window, {most:.1} of {CORES} at most, {last:.1} in the last"
        );
        (text, first < 2.0 && last < 2.0 && most > f64::from(CORES) - 0.5)
    }

    fn near_constant(&self) -> (String, bool) {
        let (medians, tails) = (extremes(self.alone, p50), extremes(self.alone, p99));
        let text = format!(
            "over the windows the median is {:.0} to {:.0} us, the p99 {:.0} to {:.0} us",
            medians.0, medians.1, tails.0, tails.1
        );
        (text, medians.1 <= CONSTANT * medians.0 && tails.1 <= CONSTANT * tails.0)
    }

    fn unaffected(&self) -> (String, bool) {
        let whole = |windows: &[Window], of| mean(&windows.iter().collect::<Vec<_>>(), of);
        let changes = [p50, p99].map(|of: fn(&Window) -> f64| whole(self.beside, of) / whole(self.alone, of));
        let text = format!(
            "beside the job medians are {:.2} and p99 {:.2} times those without, on average",
            changes[0], changes[1]
        );
        (text, changes.iter().all(|change| *change <= UNAFFECTED))
    }
}

fn p50(window: &Window) -> f64 {
    us(window.p50_ns)
}

fn p99(window: &Window) -> f64 {
    us(window.p99_ns)
}

fn judge(ramp: &Ramp, runs: &[Vec<Window>]) -> Vec<Claim> {
    let papers = Pair { alone: &runs[ALONE], beside: &runs[BESIDE], cores: |window| window.held_cores };
    let (low, high) = (at_load(ramp, papers.alone, true), at_load(ramp, papers.alone, false));
    let (low_p99, high_p99) = (mean(&low, p99), mean(&high, p99));
    let low_all = mean(&at_load(ramp, &runs[ALL_CORES], true), p99);
    let claim = |paper: &str, (ours, holds): (String, bool)| Claim::new(paper, ours, holds);
    let mut claims = vec![
        claim(
            "one worker core at low load, all at the highest, one again at the end",
            papers.follow_the_load(),
        ),
        claim("median and tail latency are near-constant as the load increases", papers.near_constant()),
        Claim::new(
            "the tail is better at high load than at low load",
            format!(
                "mean p99 {high_p99:.0} us in the highest quarter, {low_p99:.0} us in the lowest (all cores: {low_all:.0} us)"
            ),
            high_p99 < low_p99,
        ),
        claim("a batch job beside it leaves latency almost unaffected", papers.unaffected()),
    ];
    claims.extend(judge_arbiter(runs));
    claims
}

/// Judges the same of this project's arbiter, with what it adds to congestion detection.
fn judge_arbiter(runs: &[Vec<Window>]) -> Vec<Claim> {
    let pair = Pair {
        alone: &runs[ARBITER_ALONE],
        beside: &runs[ARBITER_BESIDE],
        cores: |window| f64::from(window.requested_cores),
    };
    let whole = |run: usize, of: fn(&Window) -> f64| mean(&runs[run].iter().collect::<Vec<_>>(), of);
    let [arbiter, congestion] = [ARBITER_BESIDE, CONGESTION].map(|run| whole(run, p99));
    let [with, without] = [ARBITER_BESIDE, CONGESTION].map(|run| whole(run, |window| window.batch_cores));
    let arbiters = |paper: &str| format!("(this project's arbiter) {paper}");
    let claim = |paper: &str, (ours, holds): (String, bool)| Claim::new(&arbiters(paper), ours, holds);
    let (cores, follow) = pair.follow_the_load();
    vec![
        claim(
            "one worker core at low load, all at the highest, one again at the end",
            (format!("requested: {cores}"), follow),
        ),
        claim("median and tail latency are near-constant as the load increases", pair.near_constant()),
        claim("a batch job beside it leaves latency almost unaffected", pair.unaffected()),
        Claim::new(
            &arbiters("requested cores make the tail no longer than lending by congestion alone"),
            format!(
                "mean p99 beside the job {arbiter:.0} us, {congestion:.0} us by congestion alone; the job has {with:.1} cores on \
                 average, {without:.1} by congestion alone"
            ),
            arbiter <= congestion,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(end_s: f64, latency_us: u64, held_cores: f64) -> Window {
        let (p50_ns, p99_ns) = (1_000 * latency_us, 5_000 * latency_us);
        let (watts, batch_cores, rate) = (0.0, 0.0, 1.0);
        let requested_cores = held_cores as u16;
        Window {
            end_s,
            rate,
            p50_ns,
            p99_ns,
            watts,
            held_cores,
            requested_cores,
            batch_cores,
            step: 0,
            cores: 0,
            clock: None,
        }
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let ramp = Ramp { most: 1e6, service_us: 10.0, length_ms: 3_000, window_ms: 1_000 };
        let run = |latencies: [u64; 3], held: [f64; 3]| -> Vec<Window> {
            (0..3).map(|i| window(1.0 + i as f64, latencies[i], held[i])).collect()
        };
        let holds = |alone: &Vec<Window>, beside: &Vec<Window>| -> Vec<bool> {
            let [first, second] = [alone, beside].map(Clone::clone);
            let runs = [&first, &second, &first, &second, &first, &first].map(Clone::clone);
            let holds: Vec<bool> = judge(&ramp, &runs).iter().map(|claim| claim.holds).collect();
            // Both pairs have the same windows; the last claim compares beside with alone.
            assert_eq!([holds[0], holds[1], holds[3]], holds[4..7]);
            [&holds[..4], &holds[7..]].concat()
        };
        let good = run([20, 15, 20], [1.2, 14.0, 1.5]);
        assert_eq!(
            holds(&good, &good),
            [true, true, false, true, true],
            "no window is in the lowest quarter"
        );
        let steep = run([10, 50, 10], [1.0, 12.0, 1.0]);
        assert_eq!(holds(&steep, &good), [true, false, false, true, true]);
        assert_eq!(holds(&good, &steep), [false, true, false, false, false]);
    }

    #[test]
    fn the_work_offered_is_a_triangle() {
        let ramp = Ramp { most: 1e6, service_us: 10.0, length_ms: 8_000, window_ms: 200 };
        let at = [0.0, 2.0, 4.0, 8.0].map(|s| (ramp.work(s) * 100.0).round() / 100.0);
        assert_eq!(at, [0.1, 5.05, 10.0, 0.1]);
        let schedule = ramp.pattern().unwrap().schedule(1);
        assert!((schedule.rate_at(2_000_000_000).per_second() - 505e3).abs() < 1e3);
    }

    #[test]
    fn cores_follow_the_load_up_and_down_and_the_batch_job_has_the_others() {
        let options = Options { quick: true, seed: 1, threads: 2 };
        let ramp = Ramp { most: 50_000.0, service_us: 80.0, length_ms: 1_000, window_ms: 100 };
        for system in [BESIDE, ARBITER_BESIDE] {
            let windows = ramp.run(SYSTEMS[system], &options).unwrap();
            assert_eq!(windows.len(), 10);
            let held: Vec<f64> = windows.iter().map(|window| window.held_cores).collect();
            assert!(held[5] > held[0] + 2.0 && held[5] > held[9] + 1.0, "{held:?}");
            for window in &windows {
                let cores = window.held_cores + window.batch_cores;
                assert!((f64::from(CORES) - cores).abs() < 1.0, "{cores} cores in use");
            }
            if system == ARBITER_BESIDE {
                let requested: Vec<u16> = windows.iter().map(|window| window.requested_cores).collect();
                assert!(requested[5] > requested[0] && requested[5] > requested[9], "{requested:?}");
            }
        }
    }
}
