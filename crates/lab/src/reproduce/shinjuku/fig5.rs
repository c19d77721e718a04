//! Figure 5: a single queue with preemption against systems without, under three distributions of
//! service times.

use std::sync::Arc;

use tailwater_loadgen::protocol::Spin;
use tailwater_placement::buffer;
use tailwater_workload::{Rate, ServiceTime};

use super::super::contest::{self, Case, Contest, Point, System, cases};
use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Rig, number};
use super::super::stores::UNIT;
use crate::go::GoProgram;
use tailwater_testbed::on_linux;
use tailwater_testbed::program::{PORT, Program};

/// Part of the figure.
struct Part {
    panel: &'static str,
    service: &'static str,
    /// The policy with preemption. Preempted requests go to the head of the queue for light tails,
    /// to the tail of it otherwise (the paper, sections 3.4 and 4.1).
    policy: &'static str,
    /// In thousand requests per second for each worker core.
    loads: &'static [f64],
    quick: &'static [f64],
}

const FIXED: &str = "fixed 1 us";
const EXPONENTIAL: &str = "exponential 1 us";
const BIMODAL: &str = "99.5 % 0.5 us, 0.5 % 500 us";
const PARTS: [Part; 3] = [
    Part {
        panel: FIXED,
        service: "const:1us",
        policy: "sq:5us,head",
        loads: &[50.0, 150.0, 250.0, 350.0, 450.0],
        quick: &[50.0],
    },
    Part {
        panel: EXPONENTIAL,
        service: "exp:1us",
        policy: "sq:5us,head",
        loads: &[50.0, 150.0, 250.0, 350.0, 450.0],
        quick: &[50.0],
    },
    Part {
        panel: BIMODAL,
        service: "bimodal:0.995*500ns+0.005*500us",
        policy: "sq:5us,tail",
        loads: &[5.0, 20.0, 60.0, 100.0, 140.0],
        quick: &[20.0],
    },
];

const PREEMPTIVE: &str = "Tailwater, SQ 5 us";
const CENTRAL: &str = "Tailwater, c-FCFS";
const STEALING: &str = "Tailwater, d-FCFS with stealing";
const LINUX: &str = "Linux, threads";
const GO: &str = "Linux, Go";
const CURVES: [&str; 5] = [PREEMPTIVE, CENTRAL, STEALING, LINUX, GO];
const ROUNDS: usize = 3;
/// Limit of the 99th percentile at which the paper compares throughput under the bimodal mixture.
const LIMIT_US: f64 = 300.0;
/// Throughput at that limit over that of ZygOS, which steals and does not preempt.
const PAPERS_TIMES: f64 = 5.0;
/// "Close": the highest load sustained is at least this part of the other's.
const CLOSE: f64 = 0.9;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let quick = context.options.quick;
    let loads = |part: &Part| if quick { part.quick } else { part.loads };
    let go = GoProgram::build("spin", &[("spin.go", include_str!("spin.go"))])?;
    let systems = CURVES.len() - usize::from(go.is_none());
    let points: usize = PARTS.iter().map(|part| systems * loads(part).len()).sum();
    let pace = context.pace(points, ROUNDS);
    let mut cases = Vec::new();
    for part in &PARTS {
        cases.extend(part.cases(rig, &pace, loads(part), go.as_ref())?);
    }
    let contest = contest::run(figure, context, cases, &pace)?.per(UNIT);
    let mut notes = rig.linux_notes().to_vec();
    notes.push(go.map_or("No Go toolchain in PATH: Go is not measured.".to_owned(), |go| go.version + "."));
    notes.push(
        "Worker cores are the service's own, without a batch job, as in the paper; the load is that of all worker cores."
            .to_owned(),
    );
    let panels = PARTS.map(|part| contest.panel_of(part.panel, "p99 (us)", Point::p99_us, Vec::new()));
    Ok(contest.outcome(&panels, claims(&contest), notes))
}

impl Part {
    fn cases(
        &self,
        rig: &Rig,
        pace: &Pace,
        loads: &[f64],
        go: Option<&GoProgram>,
    ) -> anyhow::Result<Vec<Case>> {
        let service: ServiceTime = self.service.parse()?;
        let spin = |words: &[&str]| {
            let mut program = Program::spin(rig.speed, service.clone()).alone();
            program.arguments.extend(words.iter().map(|&word| word.to_owned()));
            System::Dedicated(program)
        };
        let linux = on_linux::Setting { batch: None, ..on_linux::Setting::threads(rig.wait.mode()) };
        let mut systems = vec![
            (PREEMPTIVE, spin(&["--dispatch", self.policy])),
            (CENTRAL, spin(&["--dispatch", "c-fcfs"])),
            (STEALING, spin(&[])),
            (LINUX, System::Linux(linux)),
        ];
        let workers = rig.testbed.cores.managed.len();
        systems.extend(go.map(|go| (GO, go_server(go, workers, rig.speed, &service))));
        let cores = workers as f64;
        let mut all = Vec::new();
        for &load in loads {
            let load = load * cores;
            let plan = pace.plan_at(Rate::new(load * 1e3)?, &service);
            all.extend(cases(self.panel, &systems, load, &plan));
        }
        Ok(all)
    }
}

/// Returns the server in Go.
fn go_server(go: &GoProgram, workers: usize, speed: u64, service: &ServiceTime) -> System {
    let (workers, speed, buffer) = (workers.to_string(), speed.to_string(), buffer::BYTES.to_string());
    let listen = format!("127.0.0.1:{PORT}");
    let words = ["--listen", &listen, "--threads", &workers, "--speed", &speed, "--buffer", &buffer];
    System::Program(Program::foreign(&go.path(), &words, Arc::new(Spin::new(service.clone()))).alone())
}

/// Returns the systems that were measured, each with `text` of it.
fn listed(contest: &Contest, panel: &str, text: impl Fn(&str) -> String) -> String {
    let measured = CURVES.iter().filter(|curve| !contest.curve(panel, curve).is_empty());
    measured.map(|curve| format!("{curve} {}", text(curve))).collect::<Vec<_>>().join("; ")
}

fn claims(contest: &Contest) -> Vec<Claim> {
    vec![close(contest, FIXED), close(contest, EXPONENTIAL), times(contest), low(contest)]
}

/// Judges whether preemption costs next to nothing where it is not needed.
fn close(contest: &Contest, panel: &str) -> Claim {
    let paper = format!("{panel}: Shinjuku performs close to a system without preemption");
    let of = |curve: &str| contest.capacity(panel, curve);
    let text = |load: Option<f64>| load.map_or("none".to_owned(), number);
    let loads = listed(contest, panel, |curve| text(of(curve)));
    let ours = format!("highest load sustained of those tried, {UNIT}: {loads}");
    let holds = of(CENTRAL).map(|other| of(PREEMPTIVE).is_some_and(|own| own >= CLOSE * other));
    Claim::judged(&paper, ours, holds)
}

/// Returns the highest load under the bimodal mixture with the 99th percentile within the limit.
fn within(contest: &Contest, curve: &str) -> Option<f64> {
    let kept = |point: &Point| point.p99_us().is_some_and(|p99| p99.median <= LIMIT_US);
    contest.highest(BIMODAL, curve, kept).map(|point| point.case.load)
}

/// Judges the throughput within the limit. A system that is within it at no load tried counts as
/// having reached the least of them.
fn times(contest: &Contest) -> Claim {
    let paper = format!(
        "bimodal: {PAPERS_TIMES} times the throughput of ZygOS (d-FCFS with stealing) with a p99 of at most {LIMIT_US} us"
    );
    let least = contest.curve(BIMODAL, PREEMPTIVE).first().map_or(0.0, |point| point.case.load);
    let text = |load: Option<f64>| load.map_or_else(|| format!("below {}", number(least)), number);
    let ours = listed(contest, BIMODAL, |curve| text(within(contest, curve)));
    let (own, others) = (within(contest, PREEMPTIVE), within(contest, STEALING));
    let holds = own.is_some_and(|own| own >= PAPERS_TIMES * others.unwrap_or(least));
    Claim::new(&paper, format!("of the loads tried, {UNIT}: {ours}"), holds)
}

/// Judges the tail at the lowest load.
fn low(contest: &Contest) -> Claim {
    const PAPER: &str = "bimodal: up to 50 % lower tail latency at low load";
    let lowest = |curve| contest.curve(BIMODAL, curve).first().and_then(|point| point.p99_us());
    let (Some(own), Some(other)) = (lowest(PREEMPTIVE), lowest(STEALING)) else {
        return Claim::not_comparable(PAPER, "no answers at the lowest load".to_owned());
    };
    let ours = format!("p99 at the lowest load: {own} us; d-FCFS with stealing {other} us");
    Claim::new(PAPER, ours, own.median < other.median)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// Returns a point whose 99th percentile is `p99_us`.
    fn at(panel: &str, curve: &str, load: f64, p99_us: f64, saturated: bool) -> Point {
        point(curve, load, &[2.0 * p99_us], 0.0, saturated).on(panel)
    }

    fn verdicts(points: Vec<Point>) -> Vec<Verdict> {
        claims(&contest(points)).iter().map(|claim| claim.verdict).collect()
    }

    fn good() -> Vec<Point> {
        let mut points = Vec::new();
        for panel in [FIXED, EXPONENTIAL] {
            points.push(at(panel, PREEMPTIVE, 100.0, 20.0, false));
            points.push(at(panel, CENTRAL, 100.0, 20.0, false));
        }
        for load in [10.0, 50.0] {
            points.push(at(BIMODAL, PREEMPTIVE, load, 30.0, false));
            points.push(at(BIMODAL, STEALING, load, 500.0, false));
        }
        points
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(good()), [Reached; 4]);
        let with = |place: usize, point: Point| {
            let mut points = good();
            points[place] = point;
            verdicts(points)
        };
        assert_eq!(with(0, at(FIXED, PREEMPTIVE, 100.0, 20.0, true))[0], NotReached);
        assert_eq!(with(1, at(FIXED, CENTRAL, 100.0, 20.0, true))[0], NotComparable);
        assert_eq!(with(5, at(BIMODAL, STEALING, 10.0, 200.0, false))[2], Reached, "50 is five times 10");
        assert_eq!(with(6, at(BIMODAL, PREEMPTIVE, 50.0, 400.0, false))[2], NotReached);
        assert_eq!(with(5, at(BIMODAL, STEALING, 10.0, 20.0, false))[3], NotReached);
    }
}
