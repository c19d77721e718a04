//! Table 5: how long flow groups take to move to another kthread.

use std::sync::Arc;

use tailwater_loadgen::kernel_udp::Load;

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Panel, Spread, draw, number};
use super::super::rounds::{self, in_turn};
use tailwater_testbed::handoffs::{HandoffRecord, MoveFigures};
use tailwater_testbed::on_tailwater;
use tailwater_testbed::program::Program;

const SERVICE: &str = "exp:10us";
/// Loads in percent of the shared cores: at each, cores come and go with every burst.
const LOADS: [f64; 4] = [20.0, 40.0, 60.0, 80.0];
const QUICK_LOADS: [f64; 2] = [20.0, 60.0];
const ROUNDS: usize = 3;
/// Least number of shared cores with which a core can be added to one that works.
const MIN_CORES: usize = 2;
/// Kthreads of the service, so that a group has another one to go to: they take turns on one core.
const MIN_KTHREADS: usize = 2;
/// Total time of a move when a core is added in the paper, in microseconds: mean and 95th
/// percentile.
const PAPERS_MEAN_US: f64 = 462.0;
const PAPERS_P95_US: f64 = 1_227.0;
/// Flows of the generator: two for each flow group.
const FLOWS: u16 = 256;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let cores = rig.testbed.cores.managed.len();
    let loads: &[f64] = if context.options.quick { &QUICK_LOADS } else { &LOADS };
    let pace = context.pace(loads.len(), ROUNDS);
    let service = SERVICE.parse()?;
    let mut points: Vec<Point> = loads.iter().map(|&load| Point::new(load)).collect();
    in_turn(figure, context, (points.len(), pace.rounds), |index, round| {
        let point = &mut points[index];
        let plan = pace.plan(&service, point.key, cores)?;
        let plan = tailwater_loadgen::Plan { flows: FLOWS, ..plan };
        let program = Program::spin(rig.speed, service.clone());
        let seed = context.options.seed.wrapping_add(round as u64);
        let load = Load { protocol: Arc::clone(&program.protocol), seed, preload: false };
        let more_kthreads = MIN_KTHREADS.saturating_sub(cores);
        let setting = on_tailwater::Setting { batch: false, more_kthreads, ..Default::default() };
        let mut record = HandoffRecord::default();
        let measured = on_tailwater::measure(&rig.testbed, &program, &plan, &load, setting, &mut record)?;
        let figures = measured.measurement.report().figures;
        point.samples.push(Sample {
            moves: record.moves(),
            lost: figures.lost,
            completed: figures.completed,
            seconds: (plan.schedule.length_ns() as f64) / 1e9,
        });
        Ok(())
    })?;
    let mut notes = rig.notes(&pace, context.options.quick);
    notes.push(format!(
        "Requests over UDP in {FLOWS} flows, to a service with a kthread for each shared core, and at least {MIN_KTHREADS}, and \
         nothing beside it. A group has moved if its next frame goes to another kthread than the one before; if the earlier frames still wait in the other ring, \
         a fence has them read first, and the time until then is measured. A move itself is one entry of a map, and takes no time \
         of its own."
    ));
    if cores < MIN_CORES {
        notes.push(format!(
            "Two kthreads take turns on the shared core, and groups move between them; {NEEDS}."
        ));
    }
    Ok(Outcome {
        svg: draw(figure.title, &[panel(&points)]),
        data: rounds::data(&points, "load", cells, &VALUES),
        summary: rounds::summary(&points, "load (% of the shared cores)", cells, &SHOWN),
        claims: claims(&points, cores),
        notes,
    })
}

const NEEDS: &str = "no core can be added to the only shared one: two shared cores are needed, three in all";

/// By its load.
type Point = rounds::Point<f64, Sample>;

#[derive(Debug, Clone, Copy)]
struct Sample {
    moves: MoveFigures,
    lost: u64,
    completed: u64,
    seconds: f64,
}

impl Sample {
    /// Mean, 95th percentile or largest of the waits; NaN without any.
    fn wait(&self, which: usize) -> f64 {
        self.moves.waits_us.map_or(f64::NAN, |us| us[which])
    }
}

const VALUES: [(&str, usize, rounds::Value<Sample>); 8] = [
    ("moved", 0, |sample| sample.moves.moved as f64),
    ("fenced", 0, |sample| sample.moves.fenced as f64),
    ("mean_us", 2, |sample| sample.wait(0)),
    ("p95_us", 2, |sample| sample.wait(1)),
    ("max_us", 2, |sample| sample.wait(2)),
    ("dropped", 0, |sample| sample.moves.dropped as f64),
    ("lost", 0, |sample| sample.lost as f64),
    ("completed", 0, |sample| sample.completed as f64),
];
const SHOWN: [(&str, rounds::Value<Sample>); 6] = [
    ("moves/s", |sample| sample.moves.moved as f64 / sample.seconds),
    ("fenced/s", |sample| sample.moves.fenced as f64 / sample.seconds),
    ("wait, mean us", |sample| sample.wait(0)),
    ("p95 us", |sample| sample.wait(1)),
    ("longest us", |sample| sample.wait(2)),
    ("frames dropped", |sample| sample.moves.dropped as f64),
];

fn cells(load: &f64) -> Vec<String> {
    vec![load.to_string()]
}

/// Mean, 95th percentile or largest of the waits, over the rounds.
fn wait(point: &Point, which: usize) -> Option<Spread> {
    point.spread(|sample| sample.wait(which))
}

fn panel(points: &[Point]) -> Panel {
    let line = |name: &str, which: usize| {
        let waits = points.iter().filter_map(|point| Some((point.key, wait(point, which)?.median)));
        Line::new(name, waits.collect())
    };
    Panel::new(
        "until the earlier frames have been read",
        "load (% of the shared cores)",
        "us",
        vec![line("mean", 0), line("p95", 1)],
    )
}

fn claims(points: &[Point], cores: usize) -> Vec<Claim> {
    const TIME: &str = "a flow group takes 462 us on average to move when a core is added, and less than 1.5 ms in 95 % of cases";
    const LOSS: &str = "packets that arrive during a move are deferred, not dropped";
    if cores < MIN_CORES {
        return [TIME, LOSS].map(|paper| Claim::not_comparable(paper, NEEDS.to_owned())).into();
    }
    let fenced: u64 = points.iter().flat_map(|p| &p.samples).map(|sample| sample.moves.fenced).sum();
    let moved: u64 = points.iter().flat_map(|p| &p.samples).map(|sample| sample.moves.moved).sum();
    let worst = |which| points.iter().filter_map(|p| wait(p, which)).map(|s| s.median).reduce(f64::max);
    let time = match (worst(0), worst(1)) {
        (Some(mean), Some(p95)) => {
            let ours = format!(
                "{moved} moves, {fenced} of which had frames to wait for; at the load with the longest waits a mean of {} us, p95 {} us",
                number(mean),
                number(p95)
            );
            Claim::new(TIME, ours, mean <= PAPERS_MEAN_US && p95 <= PAPERS_P95_US)
        }
        _ => Claim::not_comparable(TIME, format!("{moved} moves, none of which had frames to wait for")),
    };
    let dropped: u64 = points.iter().flat_map(|p| &p.samples).map(|sample| sample.moves.dropped).sum();
    let loss = match moved {
        0 => Claim::not_comparable(LOSS, "no flow group moved".to_owned()),
        _ => {
            Claim::new(LOSS, format!("{dropped} frames dropped at full rings in {moved} moves"), dropped == 0)
        }
    };
    vec![time, loss]
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    fn verdicts(cores: usize, moves: MoveFigures) -> Vec<Verdict> {
        let sample = Sample { moves, lost: 0, completed: 1, seconds: 2.0 };
        let points = [Point { key: 20.0, samples: vec![sample] }];
        assert_eq!(panel(&points).lines.len(), 2);
        claims(&points, cores).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let good = MoveFigures { moved: 9, fenced: 2, dropped: 0, waits_us: Some([9.0, 30.0, 500.0]) };
        assert_eq!(verdicts(2, good), [Reached; 2]);
        let slow = MoveFigures { dropped: 1, waits_us: Some([9.0, 1_300.0, 2_000.0]), ..good };
        assert_eq!(verdicts(2, slow), [NotReached; 2]);
        assert_eq!(verdicts(2, MoveFigures { fenced: 0, waits_us: None, ..good }), [NotComparable, Reached]);
        assert_eq!(verdicts(2, MoveFigures::default()), [NotComparable; 2]);
        assert_eq!(verdicts(1, good), [NotComparable; 2], "there is no other kthread");
    }
}
