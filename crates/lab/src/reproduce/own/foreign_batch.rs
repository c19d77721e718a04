//! A service beside a batch job that was not written for Tailwater, over load.
//!
//! Owns the jobs, which `bench programs` has as well, and the aims: the median and the tail of the
//! service, and the speed of the job, against Linux.

use std::time::Duration;

use tailwater_testbed::{on_linux, on_tailwater};

use super::super::contest::{self, Contest, Point, System, cases};
use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Spread, number};
use crate::bench::programs::jobs::{Files, Job};

const TAILWATER: &str = "Tailwater";
const LINUX: &str = "Linux";
/// Work of a request.
const SERVICE: &str = "const:10us";
const JOBS: [Job; 2] = [Job::Cc, Job::Ffmpeg];
const ROUNDS: usize = 3;
/// First part of a point that is not counted: the IOKernel notices a job within about a second.
const WARM_UP: Duration = Duration::from_secs(1);
/// The aims: the median on Linux is at least so many times that on Tailwater, the windowed p99.9 on
/// Tailwater at most so many times that on Linux, and the job's speed at least so many times.
const MEDIAN: f64 = 2.0;
const TAIL: f64 = 1.0;
const SPEED: f64 = 0.95;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let (rig, quick) = (context.rig()?, context.options.quick);
    let loads: &[f64] = if quick { &[30.0] } else { &[10.0, 30.0, 50.0, 70.0] };
    let files = Files::new()?;
    let jobs = if quick { &JOBS[..1] } else { &JOBS };
    let installed: Vec<_> = jobs.iter().map(|&job| (job, job.command(&files))).collect();
    let (service, cores) = (SERVICE.parse()?, rig.testbed.cores.managed.len());
    let counted = Duration::from_millis(if quick { 500 } else { 1_000 });
    let pace = Pace { rounds: context.rounds(ROUNDS), warm_up: WARM_UP, counted };
    let mut all = Vec::new();
    for (job, command) in &installed {
        let Some(command) = command else { continue };
        for &load in loads {
            all.extend(cases(job.name(), &systems(command), load, &pace.plan(&service, load, cores)?));
        }
    }
    let contest = contest::run(figure, context, all, &pace)?;
    let mut notes = vec![
        "The job runs as by `tailwater run --batch`, and on Linux in SCHED_IDLE in the session of the service, whose threads \
         block. IOKernels have the default `neighbour-share`, and the generator's port does not state when requests are due, as \
         no network card does."
            .to_owned(),
    ];
    let absent = installed.iter().filter(|(_, command)| command.is_none());
    notes.extend(absent.map(|(job, _)| format!("{}: not installed, left out.", job.name())));
    let panels: Vec<_> = contest
        .names(|case| &case.panel)
        .iter()
        .flat_map(|panel| [contest.latency_panel(panel, Vec::new()), contest.batch_panel(panel, Vec::new())])
        .collect();
    Ok(contest.outcome(&panels, claims(&contest), notes))
}

/// Returns both systems, with this program as the batch job.
fn systems(job: &[String]) -> [(&'static str, System); 2] {
    let neighbour_share = tailwater_iokernel::Config::default().neighbour_share;
    let tailwater = on_tailwater::Setting { neighbour_share, announced: false, ..Default::default() };
    let linux = on_linux::Setting::threads(on_linux::Wait::Block);
    [(TAILWATER, System::Tailwater(tailwater)), (LINUX, System::Linux(linux))]
        .map(|(name, system)| (name, System::Beside(Box::new(system), job.to_vec())))
}

fn claims(contest: &Contest) -> Vec<Claim> {
    let rate = |point: &Point| {
        Spread::of(point.samples.iter().filter_map(|sample| sample.batch).map(|batch| batch.beside))
    };
    let worst =
        |ratios: &[f64], least: bool| ratios.iter().copied().reduce(if least { f64::min } else { f64::max });
    let mut all = Vec::new();
    for job in contest.names(|case| &case.panel) {
        let mut judge =
            |what: &str, value: &dyn Fn(&Point) -> Option<Spread>, inverse: bool, bound: f64, least: bool| {
                let paper = format!("(this project's aim) {what} ({job})");
                let ratios = ratios(contest, &job, value, inverse);
                let listed: Vec<String> =
                    ratios.iter().map(|(load, ratio)| format!("{} ({load} %)", number(*ratio))).collect();
                let values: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
                all.push(match worst(&values, least) {
                    None => Claim::not_comparable(&paper, "Linux keeps up with no load tried".to_owned()),
                    Some(worst) => Claim::new(
                        &paper,
                        listed.join(", "),
                        if least { worst >= bound } else { worst <= bound },
                    ),
                });
            };
        let median = format!("the median on Linux is at least {MEDIAN} times Tailwater's at each load");
        judge(&median, &Point::p50_us, true, MEDIAN, true);
        let tail = format!("the windowed p99.9 is at most {TAIL} times Linux's at each load");
        judge(&tail, &Point::tail_us, false, TAIL, false);
        let speed = format!("the job's speed is at least {SPEED} times that on Linux at each load");
        judge(&speed, &rate, false, SPEED, true);
    }
    all
}

/// Returns Tailwater's value over that of Linux, or the `inverse`, at each load that Linux keeps up
/// with.
fn ratios(
    contest: &Contest,
    job: &str,
    value: &dyn Fn(&Point) -> Option<Spread>,
    inverse: bool,
) -> Vec<(f64, f64)> {
    let of = |point: &Point| {
        let linux = contest.at(job, LINUX, point.case.load).filter(|linux| !linux.saturated())?;
        let ratio = value(point)?.median / value(linux)?.median;
        Some((point.case.load, if inverse { 1.0 / ratio } else { ratio }))
    };
    contest.curve(job, TAILWATER).into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// The system, the load, the tail, of which the median is a tenth, the job's share, and whether
    /// it is saturated.
    type Row = (&'static str, f64, f64, f64, bool);

    fn verdicts(rows: &[Row]) -> Vec<Verdict> {
        let make = |&(curve, load, tail, share, saturated): &Row| {
            point(curve, load, &[tail], share, saturated).on("cc")
        };
        claims(&contest(rows.iter().map(make).collect())).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_aim_has_to_be_met_at_every_load_that_linux_keeps_up_with() {
        let mut rows = [
            (TAILWATER, 10.0, 100.0, 0.80, false),
            (LINUX, 10.0, 200.0, 0.80, false),
            (TAILWATER, 30.0, 100.0, 0.48, false),
            (LINUX, 30.0, 300.0, 0.50, false),
        ];
        assert_eq!(verdicts(&rows), [Reached; 3]);
        rows[3].2 = 150.0;
        assert_eq!(verdicts(&rows), [NotReached, Reached, Reached]);
        rows[3].2 = 90.0;
        assert_eq!(verdicts(&rows), [NotReached, NotReached, Reached]);
        rows[3].3 = 0.60;
        assert_eq!(verdicts(&rows), [NotReached; 3]);
        rows[3].4 = true;
        assert_eq!(verdicts(&rows), [Reached; 3], "it does not keep up there");
        rows[1].4 = true;
        assert_eq!(verdicts(&rows), [NotComparable; 3]);
    }
}
