//! Figure 6(b): the size of adaptive batches, and the cycles of a message, by load and by the
//! number of connections.

use std::time::Duration;

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Pace, Panel, Spread, draw, number};
use super::super::rounds;
use crate::bench::tcp::many::{self, OUTSTANDING};
use crate::bench::tcp::messages::{self, Rounds};
use tailwater_testbed::progress::Progress;

/// Numbers of connections, each with as many requests outstanding as IX's clients have, at most.
const PRESSURE: [u32; 7] = [1, 4, 16, 64, 432, 10_000, MOST];
const QUICK_PRESSURE: [u32; 3] = [1, 64, 1_000];
/// The same with one request outstanding over all of them.
const CALM: [u32; 3] = [1, 64, 10_000];
const QUICK_CALM: [u32; 1] = [64];
const MOST: u32 = 50_000;
const PACE: Pace =
    Pace { rounds: 3, warm_up: Duration::from_millis(100), counted: Duration::from_millis(500) };
const QUICK_PACE: Pace =
    Pace { rounds: 1, warm_up: Duration::from_millis(40), counted: Duration::from_millis(150) };
/// Most conditions of a round: the default of a loop, and the paper's bound.
const BOUND: f64 = 64.0;
/// A mean batch of so much of the bound has reached it.
const NEARLY: f64 = 0.9;
/// A round trip of at most this many times the service's cycles of a message has no wait in it: the
/// client's part is about half as long.
const AT_ONCE: f64 = 4.0;
/// Cycles of a message in the paper, at the lowest load and at the least.
const PAPERS_CYCLES: [f64; 2] = [9_000.0, 4_000.0];

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let pace = context.fixed_pace(PACE, QUICK_PACE);
    let points = measure(figure, context, &pace)?;
    let own = [
        pace.note("a service started anew for each round"),
        format!(
            "An event loop on one core echoes 64 bytes; the client is in the IOKernel's port on another one. With pressure every \
             connection has a request outstanding, up to {OUTSTANDING}; without it one request is outstanding over all of them."
        ),
        "Cycles are those of the time-stamp counter while the service's core did not poll without work, by the IOKernel's account, \
         over the conditions of the rounds. Cache misses need counters that virtual machines do not have, and are left out; so \
         are transfers of lines between cores."
            .to_owned(),
    ];
    Ok(Outcome {
        svg: draw(figure.title, &panels(&points)),
        data: rounds::data(&points, "connections | outstanding", cells, &VALUES),
        summary: rounds::summary(&points, "connections | outstanding", cells, &SHOWN),
        claims: claims(&points, context.machine.tsc_hz as f64),
        notes: context.notes(own, pace.rounds)?,
    })
}

/// Numbers of connections and of outstanding requests.
type Key = (u32, u32);
type Point = rounds::Point<Key, Sample>;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    conditions: f64,
    cycles: f64,
    rate_rps: f64,
    p99_us: f64,
}

impl Sample {
    fn new(rounds: &Rounds) -> Self {
        let Rounds { echoed, conditions, cycles } = rounds;
        Self {
            conditions: *conditions,
            cycles: *cycles,
            rate_rps: echoed.rate(),
            p99_us: echoed.latency_us(0.99),
        }
    }
}

const VALUES: [(&str, usize, rounds::Value<Sample>); 4] = [
    ("conditions", 2, |sample| sample.conditions),
    ("cycles", 0, |sample| sample.cycles),
    ("rate_rps", 0, |sample| sample.rate_rps),
    ("p99_us", 3, |sample| sample.p99_us),
];
const SHOWN: [(&str, rounds::Value<Sample>); 4] = [
    ("conditions of a round", |sample| sample.conditions),
    ("cycles of a message", |sample| sample.cycles),
    ("thousand messages/s", |sample| sample.rate_rps / 1e3),
    ("p99 us", |sample| sample.p99_us),
];

fn cells(&(connections, outstanding): &Key) -> Vec<String> {
    vec![connections.to_string(), outstanding.to_string()]
}

fn has_pressure(point: &Point) -> bool {
    point.key.1 == under_pressure(point.key.0)
}

/// Medians over the rounds.
fn conditions(point: &Point) -> f64 {
    point.median(|sample| sample.conditions)
}

fn cycles(point: &Point) -> f64 {
    point.median(|sample| sample.cycles)
}

fn under_pressure(connections: u32) -> u32 {
    connections.min(OUTSTANDING)
}

fn measure(figure: &Figure, context: &Context, pace: &Pace) -> anyhow::Result<Vec<Point>> {
    let interrupt = context.interrupt()?;
    let most = many::max_on_tailwater();
    let (pressure, calm): (&[u32], &[u32]) =
        context.choose((&PRESSURE, &CALM), (&QUICK_PRESSURE, &QUICK_CALM));
    let pressure = pressure.iter().map(|&connections| (connections, under_pressure(connections)));
    let calm = calm.iter().map(|&connections| (connections, 1));
    let mut points: Vec<Point> = Vec::new();
    for (connections, outstanding) in pressure.chain(calm) {
        let known = points.iter().any(|p| p.key == (connections, outstanding));
        if connections <= most && !known {
            points.push(Point::new((connections, outstanding)));
        }
    }
    let loads: Vec<Key> = points.iter().map(|point| point.key).collect();
    let progress = Progress::new(figure.name, (points.len() * pace.rounds) as u64);
    for _ in 0..pace.rounds {
        messages::rounds(loads.iter().copied(), pace.length(), interrupt, |load, measured| {
            let point = points.iter_mut().find(|point| point.key == load);
            point.expect("one of the points").samples.push(Sample::new(measured));
            progress.advance();
        })?;
    }
    Ok(points)
}

fn panels(points: &[Point]) -> Vec<Panel> {
    let panel = |title: &str, y_label: &str, value: fn(&Point) -> f64| {
        let line = |name: &str, pressure: bool| {
            let of = points.iter().filter(|point| point.key.0 == 1 || has_pressure(point) == pressure);
            Line::new(name, of.map(|point| (f64::from(point.key.0), value(point))).collect())
        };
        Panel::new(
            title,
            "established connections",
            y_label,
            vec![line("with pressure", true), line("without", false)],
        )
        .log_x()
    };
    vec![
        panel("size of a batch", "conditions of a round", conditions),
        panel("cycles of a message", "cycles", cycles),
    ]
}

/// Judges the points on a machine with this frequency of the time-stamp counter.
fn claims(points: &[Point], hz: f64) -> Vec<Claim> {
    vec![batches(points), no_wait(points, hz), fewer_cycles(points), many_connections(points)]
}

/// Returns the points under pressure with at most so many connections.
fn pressed(points: &[Point], most: u32) -> Vec<&Point> {
    points.iter().filter(|point| has_pressure(point) && point.key.0 <= most).collect()
}

fn batches(points: &[Point]) -> Claim {
    let paper = format!("as the load increases, batches grow from one to the bound of {BOUND}");
    let all = pressed(points, OUTSTANDING);
    let (Some(first), Some(last)) = (all.first(), all.last()) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    if f64::from(last.key.1) <= BOUND {
        return Claim::not_comparable(
            &paper,
            "no point has more requests outstanding than the bound".to_owned(),
        );
    }
    let shown = |point: &Point| format!("{} ({})", number(conditions(point)), point.key.1);
    let ours = format!("conditions of a round (outstanding): {} to {}", shown(first), shown(last));
    Claim::new(&paper, ours, conditions(first) < 2.0 && conditions(last) >= NEARLY * BOUND)
}

/// Judges the round trip of a request that is alone: a round that waited for more would make it
/// longer, though it would find no more.
fn no_wait(points: &[Point], hz: f64) -> Claim {
    let paper = "a round never waits for more: without pressure a message is a batch of its own, at once";
    let calm = || points.iter().filter(|point| point.key.1 == 1);
    // With one request outstanding, the time between two answers is a round trip.
    let trip = |point: &Point| hz / point.median(|sample| sample.rate_rps) / cycles(point);
    let (Some(size), Some(trips)) = (Spread::of(calm().map(conditions)), Spread::of(calm().map(trip))) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let ours = format!(
        "at most {} conditions of a round over all numbers of connections; a round trip takes {} to {} times the service's \
         cycles of a message",
        number(size.max),
        number(trips.min),
        number(trips.max)
    );
    Claim::new(paper, ours, size.max < 1.5 && trips.max <= AT_ONCE)
}

fn fewer_cycles(points: &[Point]) -> Claim {
    let [alone, least] = PAPERS_CYCLES;
    let paper = format!("a message takes {alone} cycles at the lowest load and under {least} at the highest");
    let all = pressed(points, OUTSTANDING);
    let Some(first) = all.first().map(|point| cycles(point)) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    let best = all.iter().map(|point| cycles(point)).fold(f64::INFINITY, f64::min);
    let ours = format!("{} and {}", number(first), number(best));
    Claim::new(&paper, ours, best < least && best < first)
}

fn many_connections(points: &[Point]) -> Claim {
    let paper = "with very many connections a message takes more cycles again";
    let all = pressed(points, u32::MAX);
    let Some(last) = all.iter().find(|point| point.key.0 == MOST) else {
        return Claim::not_comparable(paper, format!("{MOST} connections were not measured"));
    };
    let best = all.iter().map(|point| cycles(point)).fold(f64::INFINITY, f64::min);
    let ours = format!("{} with {MOST} connections, at the least {}", number(cycles(last)), number(best));
    Claim::new(paper, ours, cycles(last) > best)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    /// The time-stamp counter's frequency at which a request alone has 10,000 cycles.
    const HZ: f64 = 1e9;

    fn verdicts(rows: &[(u32, u32, f64, f64)]) -> Vec<Verdict> {
        let point = |&(connections, outstanding, conditions, cycles): &(u32, u32, f64, f64)| Point {
            key: (connections, outstanding),
            samples: vec![Sample { conditions, cycles, rate_rps: 1e5, p99_us: 10.0 }],
        };
        let points: Vec<Point> = rows.iter().map(point).collect();
        assert_eq!(panels(&points).len(), 2);
        claims(&points, HZ).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let good = [
            (1, 1, 1.0, 3000.0),
            (432, 432, 60.0, 1500.0),
            (MOST, 432, 64.0, 3500.0),
            (10_000, 1, 1.0, 3100.0),
        ];
        assert_eq!(verdicts(&good), [Reached; 4]);
        let mut poor = good;
        (poor[1].2, poor[1].3, poor[2].3, poor[3].2) = (20.0, 3200.0, 2000.0, 2.0);
        assert_eq!(verdicts(&poor), [NotReached; 4]);
        assert_eq!(verdicts(&good[..1]), [NotComparable, Reached, NotReached, NotComparable]);
        assert_eq!(verdicts(&[]), [NotComparable; 4]);
    }

    #[test]
    fn a_round_that_waits_is_noticed_although_it_finds_no_more() {
        assert_eq!(verdicts(&[(64, 1, 1.0, 2_500.0)])[1], Reached);
        assert_eq!(verdicts(&[(64, 1, 1.0, 2_000.0)])[1], NotReached, "five times its cycles");
    }
}
