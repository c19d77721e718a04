//! Figure 2, part b: how many threads are created a second, over the number of cores. [`fig2a`]
//! draws its points in the same way.
//!
//! [`fig2a`]: super::fig2a

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Panel, Table, draw, number};
use super::super::primitives;
use crate::bench::threads::{Operation, Row};

pub(super) const OWN: &str = "tailwater";
pub(super) const KERNEL: &str = "std";
pub(super) const GO: &str = "go";
/// "Scaled": at least this many times the throughput for each doubling of the cores.
const SCALED: f64 = 1.5;
/// Arachne's throughput over that of kernel threads.
const PAPERS_TIMES: f64 = 100.0;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let own = "All systems in turn, round by round. The spread is the distance between the quartiles.";
    let (rows, notes) = primitives::measure(context, &[Operation::Throughput], vec![own.to_owned()])?;
    let points: Vec<Point> = rows.iter().filter_map(Point::of).collect();
    Ok(Outcome {
        svg: draw(figure.title, &[panel(&points)]),
        data: data(&points),
        summary: summary(&points),
        claims: claims(&points),
        notes,
    })
}

/// A system on a number of cores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) system: &'static str,
    pub(super) cores: usize,
    /// Time per thread, of all cores together; in the median round and in the best one.
    pub(super) ns: f64,
    pub(super) min_ns: f64,
    pub(super) spread: f64,
}

impl Point {
    /// Reads the number of cores off the row's name.
    pub(super) fn of(row: &Row) -> Option<Self> {
        let cores = row.op.rsplit_once('_')?.1.parse().ok()?;
        Some(Self { system: row.system, cores, ns: row.ns, min_ns: row.min_ns, spread: row.spread })
    }

    pub(super) fn per_second(&self) -> f64 {
        1e9 / self.ns
    }
}

/// Returns the points of a system, fewest cores first.
pub(super) fn of<'a>(points: &'a [Point], system: &str) -> Vec<&'a Point> {
    let mut own: Vec<&Point> = points.iter().filter(|point| point.system == system).collect();
    own.sort_by_key(|point| point.cores);
    own
}

fn systems(points: &[Point]) -> Vec<&'static str> {
    let mut systems = Vec::new();
    for point in points {
        if !systems.contains(&point.system) {
            systems.push(point.system);
        }
    }
    systems
}

pub(super) fn panel(points: &[Point]) -> Panel {
    let line = |system: &'static str| {
        let own = of(points, system);
        Line::new(system, own.iter().map(|point| (point.cores as f64, point.per_second() / 1e6)).collect())
    };
    let lines: Vec<Line> = systems(points).into_iter().map(line).collect();
    Panel::new("", "cores", "million threads/s", lines).decades()
}

pub(super) fn data(points: &[Point]) -> Table {
    let mut table = Table::new("system | cores | threads_per_s | ns | best_ns | spread");
    for point in points {
        let mut cells = vec![point.system.to_owned(), point.cores.to_string()];
        cells.push(format!("{:.0}", point.per_second()));
        cells.extend([point.ns, point.min_ns].map(|ns| format!("{ns:.2}")));
        cells.push(format!("{:.4}", point.spread));
        table.row(cells);
    }
    table
}

pub(super) fn summary(points: &[Point]) -> Table {
    let mut table = Table::new("system | cores | million threads/s | spread");
    for point in points {
        table.row([
            point.system.to_owned(),
            point.cores.to_string(),
            number(point.per_second() / 1e6),
            format!("{:.0} %", 100.0 * point.spread),
        ]);
    }
    table
}

fn claims(points: &[Point]) -> Vec<Claim> {
    vec![scales(points), times_kernel_threads(points), against_go(points)]
}

/// Judges whether throughput grows with the cores.
fn scales(points: &[Point]) -> Claim {
    const PAPER: &str = "throughput scales with the number of cores";
    let own = of(points, OWN);
    let (Some(first), Some(last)) = (own.first(), own.last()) else {
        return Claim::not_comparable(PAPER, format!("{OWN} was not measured"));
    };
    if first.cores == last.cores {
        return Claim::not_comparable(PAPER, "measured on one core only".to_owned());
    }
    let (times, doublings) = (last.per_second() / first.per_second(), (last.cores / first.cores).ilog2());
    let ours = format!("{} times with {} cores as with {}", number(times), last.cores, first.cores);
    Claim::new(PAPER, ours, times >= SCALED.powi(doublings as i32))
}

/// Returns the throughputs of Tailwater and of another system on as many cores as both have.
pub(super) fn pair(points: &[Point], other: &str) -> Option<(f64, f64)> {
    let (own, theirs) = (of(points, OWN), of(points, other));
    let most = own.last()?.cores.min(theirs.last()?.cores);
    let at = |all: &[&Point]| all.iter().find(|point| point.cores == most).map(|point| point.per_second());
    at(&own).zip(at(&theirs))
}

fn times_kernel_threads(points: &[Point]) -> Claim {
    const PAPER: &str = "100 times the throughput of kernel threads";
    let Some((own, theirs)) = pair(points, KERNEL) else {
        return Claim::not_comparable(PAPER, "not both were measured".to_owned());
    };
    let ours = format!(
        "{} and {} million/s: {} times",
        number(own / 1e6),
        number(theirs / 1e6),
        number(own / theirs)
    );
    Claim::new(PAPER, ours, own >= PAPERS_TIMES * theirs)
}

/// States the ratio to Go. Not judged: the paper's claim is about Arachne, which distributes new
/// threads over the cores.
fn against_go(points: &[Point]) -> Claim {
    const PAPER: &str =
        "Go has 1.5 to 2.5 times Arachne's throughput, for its threads start on their creator's core";
    let ours = match pair(points, GO) {
        None => "Go was not measured".to_owned(),
        Some((own, go)) => format!(
            "Go has {} times Tailwater's throughput, whose threads start there, too",
            number(go / own)
        ),
    };
    Claim::not_comparable(PAPER, ours)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::*;

    fn row(system: &'static str, cores: usize, ns: f64) -> Row {
        let (op, operation) = (format!("throughput_{cores}"), Some(Operation::Throughput));
        Row { op, system, ns, min_ns: ns, spread: 0.1, kib: None, operation }
    }

    fn points(rows: &[Row]) -> Vec<Point> {
        rows.iter().filter_map(Point::of).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let verdicts =
            |rows: &[Row]| claims(&points(rows)).iter().map(|claim| claim.verdict).collect::<Vec<_>>();
        let own = |one, four| [row(OWN, 1, one), row(OWN, 4, four)];
        let with = |one, four, kernel| {
            let [first, second] = own(one, four);
            verdicts(&[first, second, row(KERNEL, 1, 1.0), row(KERNEL, 4, kernel), row(GO, 1, 90.0)])
        };
        assert_eq!(with(100.0, 40.0, 4_000.0), [Reached, Reached, NotComparable], "2.5 times, 100 times");
        assert_eq!(with(100.0, 50.0, 4_000.0), [NotReached, NotReached, NotComparable], "twice, 80 times");
        assert_eq!(verdicts(&[row(OWN, 1, 100.0)]), [NotComparable; 3]);
        assert_eq!(verdicts(&[]), [NotComparable; 3]);
    }

    #[test]
    fn systems_are_compared_on_cores_that_both_have() {
        let rows = [row(OWN, 1, 100.0), row(OWN, 2, 50.0), row(GO, 1, 80.0)];
        assert_eq!(pair(&points(&rows), GO), Some((1e7, 1.25e7)));
        assert_eq!(pair(&points(&rows), KERNEL), None);
        assert_eq!(panel(&points(&rows)).lines.len(), 2);
        assert_eq!(data(&points(&rows)).rows().len(), 3);
    }
}
