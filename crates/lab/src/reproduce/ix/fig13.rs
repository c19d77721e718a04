//! Figure 13: latency over throughput, by the bound of adaptive batches.

use std::time::Duration;

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Pace, Panel, Spread, draw, number};
use super::super::rounds::{self, turns};
use crate::bench::tcp::bounds::{self, MAX_OUTSTANDING};
use tailwater_testbed::progress::Progress;

/// The bounds of the paper, and outstanding requests, over as many connections as the most.
const BOUNDS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const LOADS: [u32; 5] = [1, 4, 16, 32, MAX_OUTSTANDING];
const QUICK_BOUNDS: [usize; 3] = [1, 16, 64];
const QUICK_LOADS: [u32; 2] = [1, MAX_OUTSTANDING];
const PACE: Pace =
    Pace { rounds: 5, warm_up: Duration::from_millis(50), counted: Duration::from_millis(300) };
const QUICK_PACE: Pace = Pace { rounds: 1, counted: Duration::from_millis(100), ..PACE };
/// Gain in throughput of a bound of 16 over one of 1 in the paper.
const PAPERS_GAIN: f64 = 1.29;
/// "No impact" and "no gain": within the spread of a virtual machine.
const EQUAL: f64 = 0.15;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let pace = context.fixed_pace(PACE, QUICK_PACE);
    let points = measure(figure, context, &pace)?;
    let own = [
        pace.note(&format!(
            "the bounds in turn, each over {MAX_OUTSTANDING} connections, and a service started anew for each round"
        )),
        "An echo of 64 bytes with a fixed number of requests outstanding, not the paper's key-value store under USR, whose clients \
         send at a rate: latencies at a load are not those of the paper. Service and client have a core each."
            .to_owned(),
    ];
    Ok(Outcome {
        svg: draw(figure.title, &[panel(&points)]),
        data: rounds::data(&points, "bound | outstanding", cells, &VALUES),
        summary: rounds::summary(&points, "bound | outstanding", cells, &SHOWN),
        claims: claims(&points),
        notes: context.notes(own, pace.rounds)?,
    })
}

/// A bound, and a number of outstanding requests.
type Key = (usize, u32);
type Point = rounds::Point<Key, Sample>;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    rate_rps: f64,
    p50_us: f64,
    p99_us: f64,
}

const VALUES: [(&str, usize, rounds::Value<Sample>); 3] = [
    ("rate_rps", 0, |sample| sample.rate_rps),
    ("p50_us", 3, |sample| sample.p50_us),
    ("p99_us", 3, |sample| sample.p99_us),
];
const SHOWN: [(&str, rounds::Value<Sample>); 3] = [
    ("thousand messages/s", |sample| sample.rate_rps / 1e3),
    ("p50 us", |sample| sample.p50_us),
    ("p99 us", |sample| sample.p99_us),
];

fn cells(&(bound, outstanding): &Key) -> Vec<String> {
    vec![bound.to_string(), outstanding.to_string()]
}

/// Medians over the rounds.
fn rate_rps(point: &Point) -> f64 {
    point.median(|sample| sample.rate_rps)
}

fn p99_us(point: &Point) -> f64 {
    point.median(|sample| sample.p99_us)
}

/// Measures all points in interleaved rounds.
fn measure(figure: &Figure, context: &Context, pace: &Pace) -> anyhow::Result<Vec<Point>> {
    let interrupt = context.interrupt()?;
    let (all, loads): (&[usize], &[u32]) = context.choose((&BOUNDS, &LOADS), (&QUICK_BOUNDS, &QUICK_LOADS));
    let mut points: Vec<Point> = Vec::new();
    for &bound in all {
        points.extend(loads.iter().map(|&outstanding| Point::new((bound, outstanding))));
    }
    let progress = Progress::new(figure.name, (points.len() * pace.rounds) as u64);
    for round in 0..pace.rounds {
        let in_turn = turns(all.len(), round).map(|index| all[index]);
        bounds::round(in_turn, loads, pace.length(), interrupt, |bound, outstanding, echoed| {
            let latency_us = |quantile| echoed.latency_us(quantile);
            let sample =
                Sample { rate_rps: echoed.rate(), p50_us: latency_us(0.5), p99_us: latency_us(0.99) };
            let point = points.iter_mut().find(|p| p.key == (bound, outstanding));
            point.expect("one of the points").samples.push(sample);
            progress.advance();
        })?;
    }
    Ok(points)
}

fn panel(points: &[Point]) -> Panel {
    let line = |of: &[Point]| {
        let points = of.iter().map(|point| (rate_rps(point) / 1e3, p99_us(point)));
        Line::new(format!("B = {}", of[0].key.0), points.collect())
    };
    Panel::new(
        "64 bytes there and back",
        "thousand messages/s",
        "p99 us",
        points.chunk_by(|a, b| a.key.0 == b.key.0).map(line).collect(),
    )
}

/// Returns the point of a bound under the least or the most load.
fn at(points: &[Point], bound: usize, most: bool) -> Option<&Point> {
    let mut of = points.iter().filter(|point| point.key.0 == bound);
    if most { of.next_back() } else { of.next() }
}

fn bounds(points: &[Point]) -> impl Iterator<Item = usize> {
    points.chunk_by(|a, b| a.key.0 == b.key.0).map(|of| of[0].key.0)
}

fn claims(points: &[Point]) -> Vec<Claim> {
    vec![low_load(points), gain(points), plateau(points)]
}

fn low_load(points: &[Point]) -> Claim {
    let paper = "at low load the bound does not change the tail of the latency";
    let tails = bounds(points).filter_map(|bound| Some(p99_us(at(points, bound, false)?)));
    let Some(tails) = Spread::of(tails) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let ours = format!(
        "one request at a time: p99 of {} to {} us over all bounds",
        number(tails.min),
        number(tails.max)
    );
    Claim::new(paper, ours, tails.max <= tails.min * (1.0 + EQUAL))
}

fn gain(points: &[Point]) -> Claim {
    let paper = format!("a bound of 16 has {PAPERS_GAIN} times the throughput of one of 1");
    let (Some(one), Some(sixteen)) = (at(points, 1, true), at(points, 16, true)) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    let times = rate_rps(sixteen) / rate_rps(one);
    Claim::new(&paper, format!("{} times", number(times)), times >= PAPERS_GAIN)
}

fn plateau(points: &[Point]) -> Claim {
    let paper = "a bound of 16 or more maximises throughput";
    let of = |is: fn(usize) -> bool| {
        let rates = bounds(points).filter(|&bound| is(bound)).filter_map(|bound| at(points, bound, true));
        Spread::of(rates.map(rate_rps))
    };
    let (Some(small), Some(large)) = (of(|bound| bound < 16), of(|bound| bound >= 16)) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let ours = format!(
        "thousand messages/s: at most {} below, {} to {} from 16 on",
        number(small.max / 1e3),
        number(large.min / 1e3),
        number(large.max / 1e3)
    );
    Claim::new(paper, ours, large.max >= small.max && large.min >= large.max * (1.0 - EQUAL))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    /// Judges points with one request at a time and with the most, by bound.
    fn verdicts(points: &[(usize, f64, f64)]) -> Vec<Verdict> {
        let point = |bound, outstanding, rate_rps, p99_us| Point {
            key: (bound, outstanding),
            samples: vec![Sample { rate_rps, p50_us: 1.0, p99_us }],
        };
        let points: Vec<Point> = points
            .iter()
            .flat_map(|&(bound, rate, p99)| {
                [point(bound, 1, 5e5, p99), point(bound, MAX_OUTSTANDING, rate, 60.0)]
            })
            .collect();
        assert_eq!(panel(&points).lines.len() * 2, points.len());
        claims(&points).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(&[(1, 1e6, 2.0), (16, 1.3e6, 2.1), (64, 1.3e6, 2.2)]), [Reached; 3]);
        assert_eq!(verdicts(&[(1, 1.8e6, 2.0), (16, 1.4e6, 2.1), (64, 1.7e6, 4.0)]), [NotReached; 3]);
        assert_eq!(verdicts(&[(1, 1e6, 2.0)]), [Reached, NotComparable, NotComparable]);
        assert_eq!(verdicts(&[]), [NotComparable; 3]);
    }
}
