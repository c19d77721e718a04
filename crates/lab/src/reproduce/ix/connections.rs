//! Figure 6(a): throughput of messages of 64 bytes over the number of established connections.

use std::time::Duration;

use tailwater_loadgen::tcp::Outcome as Echoed;

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Pace, Panel, Spread, draw, number};
use super::super::rounds::{self, in_turn};
use crate::bench::tcp::many::{self, OUTSTANDING};

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

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let pace = context.fixed_pace(PACE, QUICK_PACE);
    let most = [many::max_on_tailwater(), many::max_on_linux()];
    let points = measure(figure, context, &pace, most)?;
    let own = [
        pace.note(
            "systems take turns at every number of connections, and every point is processes started anew",
        ),
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
        svg: draw(figure.title, &[panel(&points)]),
        data: rounds::data(&points, "system | connections", cells, &VALUES),
        summary: rounds::summary(
            &points,
            "connections | system",
            |&(s, n)| vec![n.to_string(), s.to_owned()],
            &SHOWN,
        ),
        claims: claims(&points),
        notes: context.notes(own, pace.rounds)?,
    })
}

/// A system and a number of connections.
type Key = (&'static str, u32);
type Point = rounds::Point<Key, Sample>;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    rate_rps: f64,
    p50_us: f64,
    p99_us: f64,
    /// Segments that the client sent again; always 0 for Linux, where they are not counted.
    sent_again: f64,
}

impl Sample {
    fn new(echoed: &Echoed) -> Self {
        let latency_us = |quantile| echoed.latency_us(quantile);
        Self {
            rate_rps: echoed.rate(),
            p50_us: latency_us(0.5),
            p99_us: latency_us(0.99),
            sent_again: echoed.retransmissions as f64,
        }
    }
}

const VALUES: [(&str, usize, rounds::Value<Sample>); 4] = [
    ("rate_rps", 0, |sample| sample.rate_rps),
    ("p50_us", 3, |sample| sample.p50_us),
    ("p99_us", 3, |sample| sample.p99_us),
    ("sent_again", 0, |sample| sample.sent_again),
];
const SHOWN: [(&str, rounds::Value<Sample>); 3] = [
    ("thousand messages/s", |sample| sample.rate_rps / 1e3),
    ("p50 us", |sample| sample.p50_us),
    ("p99 us", |sample| sample.p99_us),
];

fn cells(&(system, connections): &Key) -> Vec<String> {
    vec![system.to_owned(), connections.to_string()]
}

/// Median over the rounds.
fn rate_rps(point: &Point) -> f64 {
    point.median(|sample| sample.rate_rps)
}

/// Measures all points in interleaved rounds. `most` are Tailwater's and Linux's limits; points
/// with more connections are left out.
fn measure(figure: &Figure, context: &Context, pace: &Pace, most: [u32; 2]) -> anyhow::Result<Vec<Point>> {
    let (interrupt, length) = (context.interrupt()?, pace.length());
    let mut points: Vec<Point> = Vec::new();
    for &connections in context.choose(&COUNTS[..], &QUICK_COUNTS) {
        let systems = [TAILWATER, LINUX].into_iter().zip(most).filter(|&(_, most)| connections <= most);
        points.extend(systems.map(|(system, _)| Point::new((system, connections))));
    }
    in_turn(figure, context, (points.len(), pace.rounds), |index, _| {
        let (system, connections) = points[index].key;
        let echoed = match system {
            TAILWATER => many::on_tailwater(connections, length, interrupt)?,
            _ => many::on_linux(connections, length, interrupt)?,
        };
        points[index].samples.push(Sample::new(&echoed));
        Ok(())
    })?;
    Ok(points)
}

fn of<'a>(points: &'a [Point], system: &'a str) -> impl DoubleEndedIterator<Item = &'a Point> {
    points.iter().filter(move |point| point.key.0 == system)
}

fn panel(points: &[Point]) -> Panel {
    let line = |system: &'static str| {
        let points = of(points, system).map(|p| (f64::from(p.key.1), rate_rps(p) / 1e3));
        Line::new(system, points.collect())
    };
    Panel::new(
        "64 bytes there and back",
        "established connections",
        "thousand messages/s",
        vec![line(TAILWATER), line(LINUX)],
    )
    .log_x()
}

/// Returns the point with the highest throughput.
fn peak<'a>(points: &'a [Point], system: &'a str) -> Option<&'a Point> {
    of(points, system).max_by(|a, b| rate_rps(a).total_cmp(&rate_rps(b)))
}

fn claims(points: &[Point]) -> Vec<Claim> {
    vec![rest(points), shape(points), ratio(points)]
}

fn rest(points: &[Point]) -> Claim {
    let paper = format!("with 250,000 connections IX delivers {PAPERS_REST} of its own peak throughput");
    let (Some(peak), Some(last)) = (peak(points, TAILWATER), of(points, TAILWATER).last()) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    let rest = rate_rps(last) / rate_rps(peak);
    let ours =
        format!("with {} connections {} of the peak, which is with {}", last.key.1, number(rest), peak.key.1);
    Claim::judged(&paper, ours, (last.key.1 == MAX_CONNECTIONS).then_some(rest >= PAPERS_REST))
}

fn shape(points: &[Point]) -> Claim {
    let paper = "throughput increases with the number of connections, then decreases for very many";
    let (first, last) = (of(points, TAILWATER).next(), of(points, TAILWATER).last());
    let (Some(peak), Some(first), Some(last)) = (peak(points, TAILWATER), first, last) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let rate = |point: &Point| format!("{} ({})", number(rate_rps(point) / 1e3), point.key.1);
    let ours = format!(
        "thousand messages/s (connections): first {}, peak {}, last {}",
        rate(first),
        rate(peak),
        rate(last)
    );
    let inside = peak.key.1 != first.key.1 && peak.key.1 != last.key.1;
    Claim::new(paper, ours, inside)
}

fn ratio(points: &[Point]) -> Claim {
    let paper = format!("at the peak IX performs {PAPERS_RATIO} times better than Linux");
    let (Some(own), Some(theirs)) = (peak(points, TAILWATER), peak(points, LINUX)) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    let at_equal = of(points, LINUX).filter_map(|linux| {
        let own = of(points, TAILWATER).find(|own| own.key.1 == linux.key.1)?;
        Some(rate_rps(own) / rate_rps(linux))
    });
    let spread = Spread::of(at_equal).map_or_else(String::new, |all| {
        format!("; with equally many connections {} to {} times", number(all.min), number(all.max))
    });
    let times = rate_rps(own) / rate_rps(theirs);
    Claim::new(&paper, format!("{} times, peak to peak{spread}", number(times)), times >= PAPERS_RATIO)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    fn verdicts(points: &[(&'static str, u32, f64)]) -> Vec<Verdict> {
        let point = |&(system, connections, rate_rps): &(&'static str, u32, f64)| Point {
            key: (system, connections),
            samples: vec![Sample { rate_rps, p50_us: 10.0, p99_us: 20.0, sent_again: 0.0 }],
        };
        let points: Vec<Point> = points.iter().map(point).collect();
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
