//! Figure 2, part a: how many threads one thread creates a second, over the number of cores, if
//! each computes for a microsecond.
//!
//! The work of the new threads bounds the figure: a core runs a million of them a second at most.
//! Claims about rates that the cores of this machine cannot run are not judged.

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Panel, decades, draw, number};
use super::super::primitives;
use super::fig2::{GO, KERNEL, OWN, Point, data, of, pair, panel, summary};
use crate::bench::threads::{CHILD_NS, LIVE, Operation, Row};

/// Placed as Arachne places threads.
const PLACED: &str = "tailwater, least loaded";
const PAPERS_RATE: f64 = 5e6;
const PAPERS_TIMES_GO: f64 = 2.5;
const PAPERS_TIMES_KERNEL: f64 = 10.0;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let operations = [Operation::Dispatch, Operation::DispatchPlaced];
    let own = format!(
        "All systems in turn, round by round. Threads are created in batches of {LIVE} for each core; the next batch \
         begins when all threads of the one before have ended."
    );
    let (rows, notes) = primitives::measure(context, &operations, vec![own])?;
    let points: Vec<Point> = rows.iter().filter_map(point).collect();
    Ok(Outcome {
        svg: draw(figure.title, &[bounded(&points)]),
        data: data(&points),
        summary: summary(&points),
        claims: claims(&points),
        notes,
    })
}

/// Reads a row; a placement has a line of its own, for threads with storage of their own.
fn point(row: &Row) -> Option<Point> {
    let point = Point::of(row)?;
    match (row.operation, row.system) {
        (Some(Operation::DispatchPlaced), OWN) => Some(Point { system: PLACED, ..point }),
        (Some(Operation::DispatchPlaced), _) => None,
        _ => Some(point),
    }
}

/// Returns the most threads that so many cores can run in a second.
fn most(cores: usize) -> f64 {
    cores as f64 * 1e9 / CHILD_NS as f64
}

/// Draws the points under what the cores can run.
fn bounded(points: &[Point]) -> Panel {
    let mut panel = panel(points);
    let cores = of(points, OWN).into_iter().map(|point| point.cores);
    let bound = cores.map(|cores| (cores as f64, most(cores) / 1e6)).collect();
    panel.lines.push(Line::new("what the cores can run", bound).dashed());
    panel.y_range = Some(decades(&panel.lines));
    panel
}

fn claims(points: &[Point]) -> Vec<Claim> {
    vec![rate(points), times_go(points), times_kernel_threads(points), few_cores(points)]
}

/// Returns Tailwater's point on the most cores, that of the better of its two placements.
fn best(points: &[Point]) -> Option<&Point> {
    let cores = of(points, OWN).last()?.cores;
    let own = points.iter().filter(|point| point.cores == cores && [OWN, PLACED].contains(&point.system));
    own.min_by(|one, other| one.ns.total_cmp(&other.ns))
}

fn rate(points: &[Point]) -> Claim {
    const PAPER: &str = "one thread creates more than 5 million threads a second";
    let Some(own) = best(points) else { return Claim::not_comparable(PAPER, "not measured".to_owned()) };
    let (rate, bound) = (own.per_second(), most(own.cores));
    let ours = format!(
        "{} million/s on {} cores, which run {} at most",
        number(rate / 1e6),
        own.cores,
        number(bound / 1e6)
    );
    Claim::judged(PAPER, ours, (bound > PAPERS_RATE).then_some(rate > PAPERS_RATE))
}

/// Judges the ratio to another system, unless the cores of this machine bound it.
fn times(points: &[Point], other: &str, paper: &str, papers: f64) -> Claim {
    let Some((own, theirs)) = pair(points, other) else {
        return Claim::not_comparable(paper, format!("{other} was not measured"));
    };
    let cores = of(points, OWN).last().map_or(0, |point| point.cores);
    let ours = format!(
        "{} and {} million/s on {cores} cores: {} times",
        number(own / 1e6),
        number(theirs / 1e6),
        number(own / theirs)
    );
    let holds = own >= papers * theirs;
    // The other system is within that factor of all that the cores can run.
    let is_open = !holds && most(cores) < papers * theirs;
    Claim::judged(paper, ours, (!is_open).then_some(holds))
}

fn times_go(points: &[Point]) -> Claim {
    times(points, GO, "2.5 times the rate of Go", PAPERS_TIMES_GO)
}

fn times_kernel_threads(points: &[Point]) -> Claim {
    times(points, KERNEL, "at least 10 times the rate of kernel threads", PAPERS_TIMES_KERNEL)
}

/// States the ratio to Go on few cores. Not judged: Tailwater's creator runs threads itself, too.
fn few_cores(points: &[Point]) -> Claim {
    const PAPER: &str = "on few cores Go has the higher rate, for the creator's core runs threads, too";
    let ours = match pair(points, GO) {
        None => "Go was not measured".to_owned(),
        Some((own, go)) => {
            format!("Go has {} times Tailwater's rate, whose creator's core does so, too", number(go / own))
        }
    };
    Claim::not_comparable(PAPER, ours)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::*;

    fn row(system: &'static str, operation: Operation, cores: usize, ns: f64) -> Row {
        let op = format!("{}_{cores}", operation.name());
        Row { op, system, ns, min_ns: ns, spread: 0.1, kib: None, operation: Some(operation) }
    }

    fn points(rows: &[Row]) -> Vec<Point> {
        rows.iter().filter_map(point).collect()
    }

    fn verdicts(cores: usize, own: f64, go: f64, kernel: f64) -> Vec<super::super::super::claim::Verdict> {
        let rows = [(OWN, own), (GO, go), (KERNEL, kernel)];
        let rows = rows.map(|(system, ns)| row(system, Operation::Dispatch, cores, ns));
        claims(&points(&rows)).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(8, 180.0, 450.0, 2_000.0), [Reached, Reached, Reached, NotComparable]);
        assert_eq!(verdicts(8, 210.0, 500.0, 2_000.0), [NotReached, NotReached, NotReached, NotComparable]);
    }

    #[test]
    fn what_two_cores_cannot_run_is_not_judged() {
        assert_eq!(
            verdicts(2, 520.0, 600.0, 8_000.0),
            [NotComparable, NotComparable, Reached, NotComparable]
        );
        assert_eq!(
            verdicts(2, 900.0, 1_300.0, 8_000.0)[1..3],
            [NotReached; 2],
            "Go leaves room for 2.5 times"
        );
        assert_eq!(claims(&[]).iter().filter(|claim| claim.verdict == NotComparable).count(), 4);
    }

    #[test]
    fn a_placement_has_a_line_of_its_own_and_the_better_one_counts() {
        let rows = [
            row(OWN, Operation::Dispatch, 8, 300.0),
            row(OWN, Operation::DispatchPlaced, 8, 150.0),
            row("tailwater-shared-tls", Operation::DispatchPlaced, 8, 100.0),
        ];
        let points = points(&rows);
        assert_eq!(points.iter().map(|point| point.system).collect::<Vec<_>>(), [OWN, PLACED]);
        assert_eq!(rate(&points).verdict, Reached);
        assert_eq!(bounded(&points).lines.len(), 3);
        assert_eq!(data(&points).rows().len(), 2);
    }
}
