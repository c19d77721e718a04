//! Figure 6(a): throughput of messages of 64 bytes over the number of established connections.

use std::time::Duration;

use tailwater_loadgen::tcp::Outcome as Echoed;
use tailwater_plot::{Line, Panel, draw};
use tailwater_sim::report::Table;

use super::super::claim::Claim;
use super::super::contest::turns;
use super::super::context::{Context, Pace};
use super::super::figure::{Figure, Outcome};
use super::super::spread::{Spread, cell};
use crate::bench::tcp::many::{self, OUTSTANDING};
use tailwater_testbed::table::number;

const TAILWATER: &str = "Tailwater";
const LINUX: &str = "Linux";
const COUNTS: [u32; 6] = [10, 100, 1_000, 10_000, 50_000, MAX_CONNECTIONS];
const QUICK_COUNTS: [u32; 3] = [10, 1_000, 5_000];
const PACE: Pace =
    Pace { rounds: 3, warm_up: Duration::from_millis(200), counted: Duration::from_millis(1_000) };
const QUICK_PACE: Pace =
    Pace { rounds: 1, warm_up: Duration::from_millis(50), counted: Duration::from_millis(200) };
/// The paper's largest number of connections, and the part of its peak that IX reaches there.
const MAX_CONNECTIONS: u32 = 250_000;
const PAPERS_REST: f64 = 0.41;
/// Ratio of IX's peak to that of Linux in the paper.
const PAPERS_RATIO: f64 = 11.0;

/// The figure.
#[derive(Debug)]
pub struct Connections;

impl Figure for Connections {
    fn name(&self) -> &'static str {
        "ix-connections"
    }

    fn title(&self) -> &'static str {
        "Throughput over the number of established connections"
    }

    fn paper(&self) -> &'static str {
        "IX (TOCS'17), figure 6"
    }

    fn plan(&self) -> &'static str {
        include_str!("../../../../../experiments/ix-connections.md")
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let pace = context.fixed_pace(PACE, QUICK_PACE);
        let most = [many::max_on_tailwater(), many::max_on_linux()];
        let points = measure(self.name(), context, &pace, most)?;
        let own = [
            pace.note("systems take turns at every number of connections, and every point is processes started anew"),
            format!(
                "64 bytes there and back, {OUTSTANDING} requests at a time over all connections, one on each, connections in turn. \
                 Tailwater: a user thread for each connection on one core that never parks, the client in the IOKernel's port on the \
                 other. Linux: server and client one epoll thread each, on the same two cores, over the loopback device."
            ),
            format!(
                "Linux has up to {} connections, the files that a process may open here; Tailwater {}, for which there is memory.",
                most[1], most[0]
            ),
        ];
        Ok(Outcome {
            svg: draw(self.title(), &[panel(&points)]),
            data: data(&points),
            summary: summary(&points),
            claims: claims(&points),
            notes: context.notes(own, pace.rounds)?,
        })
    }
}

/// A system with a number of connections, and a sample for each round.
#[derive(Debug, Clone)]
struct Point {
    system: &'static str,
    connections: u32,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    rate_rps: f64,
    p50_us: f64,
    p99_us: f64,
    /// Segments that the client sent again; always 0 for Linux, where they are not counted.
    sent_again: u64,
}

impl Sample {
    fn new(echoed: &Echoed) -> Self {
        let latency_us = |quantile| echoed.latency_us(quantile);
        Self {
            rate_rps: echoed.rate(),
            p50_us: latency_us(0.5),
            p99_us: latency_us(0.99),
            sent_again: echoed.retransmissions,
        }
    }
}

impl Point {
    fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }

    /// Median over the rounds.
    fn rate_rps(&self) -> f64 {
        self.spread(|sample| sample.rate_rps).map_or(0.0, |spread| spread.median)
    }
}

/// Measures all points in interleaved rounds. `most` are Tailwater's and Linux's limits; points
/// with more connections are left out.
fn measure(name: &str, context: &Context, pace: &Pace, most: [u32; 2]) -> anyhow::Result<Vec<Point>> {
    let interrupt = context.interrupt()?;
    let length = pace.length();
    let mut points: Vec<Point> = Vec::new();
    for &connections in context.choose(&COUNTS[..], &QUICK_COUNTS) {
        for (system, most) in [TAILWATER, LINUX].into_iter().zip(most) {
            if connections <= most {
                points.push(Point { system, connections, samples: Vec::new() });
            }
        }
    }
    let progress = context.progress(name, (points.len() * pace.rounds) as u64);
    for round in 0..pace.rounds {
        for index in turns(points.len(), round) {
            let point = &mut points[index];
            let echoed = match point.system {
                TAILWATER => many::on_tailwater(point.connections, length, interrupt)?,
                _ => many::on_linux(point.connections, length, interrupt)?,
            };
            point.samples.push(Sample::new(&echoed));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(points)
}

fn data(points: &[Point]) -> Table {
    let columns = ["system", "connections", "round", "rate_rps", "p50_us", "p99_us", "sent_again"];
    let mut table = Table::new(&columns);
    for Point { system, connections, samples } in points {
        for (round, sample) in samples.iter().enumerate() {
            let Sample { rate_rps, p50_us, p99_us, sent_again } = sample;
            table.push(vec![
                (*system).to_owned(),
                connections.to_string(),
                round.to_string(),
                format!("{rate_rps:.0}"),
                format!("{p50_us:.3}"),
                format!("{p99_us:.3}"),
                sent_again.to_string(),
            ]);
        }
    }
    table
}

fn summary(points: &[Point]) -> Table {
    let mut table = Table::new(&["connections", "system", "thousand messages/s", "p50 us", "p99 us"]);
    for point in points {
        table.push(vec![
            point.connections.to_string(),
            point.system.to_owned(),
            cell(point.spread(|sample| sample.rate_rps / 1e3)),
            cell(point.spread(|sample| sample.p50_us)),
            cell(point.spread(|sample| sample.p99_us)),
        ]);
    }
    table
}

fn of<'a>(points: &'a [Point], system: &'a str) -> impl DoubleEndedIterator<Item = &'a Point> {
    points.iter().filter(move |point| point.system == system)
}

fn panel(points: &[Point]) -> Panel {
    let line = |system: &'static str| {
        let points = of(points, system).map(|p| (f64::from(p.connections), p.rate_rps() / 1e3));
        Line::new(system, points.collect())
    };
    Panel {
        title: "64 bytes there and back".to_owned(),
        x_label: "established connections".to_owned(),
        y_label: "thousand messages/s".to_owned(),
        log_x: true,
        lines: vec![line(TAILWATER), line(LINUX)],
        ..Panel::default()
    }
}

/// Returns the point with the highest throughput.
fn peak<'a>(points: &'a [Point], system: &'a str) -> Option<&'a Point> {
    of(points, system).max_by(|a, b| a.rate_rps().total_cmp(&b.rate_rps()))
}

fn claims(points: &[Point]) -> Vec<Claim> {
    vec![rest(points), shape(points), ratio(points)]
}

fn rest(points: &[Point]) -> Claim {
    let paper = format!("with 250,000 connections IX delivers {PAPERS_REST} of its own peak throughput");
    let (Some(peak), Some(last)) = (peak(points, TAILWATER), of(points, TAILWATER).last()) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    let rest = last.rate_rps() / peak.rate_rps();
    let ours = format!(
        "with {} connections {} of the peak, which is with {}",
        last.connections,
        number(rest),
        peak.connections
    );
    match last.connections {
        MAX_CONNECTIONS => Claim::new(&paper, ours, rest >= PAPERS_REST),
        _ => Claim::not_comparable(&paper, ours),
    }
}

fn shape(points: &[Point]) -> Claim {
    let paper = "throughput increases with the number of connections, then decreases for very many";
    let (first, last) = (of(points, TAILWATER).next(), of(points, TAILWATER).last());
    let (Some(peak), Some(first), Some(last)) = (peak(points, TAILWATER), first, last) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let rate = |point: &Point| format!("{} ({})", number(point.rate_rps() / 1e3), point.connections);
    let ours = format!(
        "thousand messages/s (connections): first {}, peak {}, last {}",
        rate(first),
        rate(peak),
        rate(last)
    );
    let inside = peak.connections != first.connections && peak.connections != last.connections;
    Claim::new(paper, ours, inside)
}

fn ratio(points: &[Point]) -> Claim {
    let paper = format!("at the peak IX performs {PAPERS_RATIO} times better than Linux");
    let (Some(own), Some(theirs)) = (peak(points, TAILWATER), peak(points, LINUX)) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    let at_equal = of(points, LINUX).filter_map(|linux| {
        let own = of(points, TAILWATER).find(|own| own.connections == linux.connections)?;
        Some(own.rate_rps() / linux.rate_rps())
    });
    let spread = Spread::of(at_equal).map_or_else(String::new, |all| {
        format!("; with equally many connections {} to {} times", number(all.min), number(all.max))
    });
    let times = own.rate_rps() / theirs.rate_rps();
    Claim::new(&paper, format!("{} times, peak to peak{spread}", number(times)), times >= PAPERS_RATIO)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    fn verdicts(points: &[(&'static str, u32, f64)]) -> Vec<Verdict> {
        let point = |&(system, connections, rate_rps): &(&'static str, u32, f64)| Point {
            system,
            connections,
            samples: vec![Sample { rate_rps, p50_us: 10.0, p99_us: 20.0, sent_again: 0 }],
        };
        let points: Vec<Point> = points.iter().map(point).collect();
        assert_eq!((data(&points).rows().len(), summary(&points).rows().len()), (points.len(), points.len()));
        assert!(panel(&points).lines[0].points.len() > panel(&points).lines[1].points.len());
        claims(&points).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let good = [
            (TAILWATER, 10, 3e5),
            (LINUX, 10, 5e4),
            (TAILWATER, 1000, 6e5),
            (TAILWATER, MAX_CONNECTIONS, 3e5),
        ];
        assert_eq!(verdicts(&good), [Reached; 3]);
        let steep = [
            (TAILWATER, 10, 7e5),
            (LINUX, 10, 9e4),
            (TAILWATER, 1000, 6e5),
            (TAILWATER, MAX_CONNECTIONS, 1e5),
        ];
        assert_eq!(verdicts(&steep), [NotReached; 3]);
    }

    #[test]
    fn fewer_connections_than_the_papers_are_not_compared_with_them() {
        let few = [(TAILWATER, 10, 3e5), (LINUX, 10, 5e4), (TAILWATER, 1000, 6e5), (TAILWATER, 10_000, 5e5)];
        assert_eq!(verdicts(&few), [NotComparable, Reached, Reached]);
    }
}
