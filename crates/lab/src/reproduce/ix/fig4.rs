//! Figure 4: goodput and latency of a single flow by the length of its messages (NetPIPE).

use std::time::Duration;

use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Panel, Verdict, decades, draw, number};
use super::points::{LINUX, Point, Points, Sample, TAILWATER};
use crate::bench::tcp::messages::{self, MESSAGES};
use tailwater_testbed::progress::Progress;

const PANEL: &str = "one connection";
/// Linux with both sides polling their sockets, which the paper does not measure.
const LINUX_SPINS: &str = "Linux, both sides spin";
const QUICK_LENGTHS: [usize; 4] = [64, 4 << 10, 64 << 10, 512 << 10];
const PACE: Pace =
    Pace { rounds: 5, warm_up: Duration::from_millis(50), counted: Duration::from_millis(200) };
const QUICK_PACE: Pace =
    Pace { rounds: 1, warm_up: Duration::from_millis(20), counted: Duration::from_millis(60) };
/// One-way latency of 64 bytes in the paper.
const PAPERS_LATENCY: [f64; 2] = [5.8, 19.0];

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let pace = context.fixed_pace(PACE, QUICK_PACE);
    let points = measure(figure.name, context, &pace)?;
    let own = [
        pace.note("in each round all lengths on Tailwater, then on Linux, in every second one Linux first"),
        "Both ends are on the same machine, with a core each: Tailwater's client in the IOKernel's port and its service a user \
         thread that polls; Linux's two threads over the loopback device, whose packets are 64 KiB. There is no wire, so goodput \
         is bounded by copies, not by 10 Gbit/s."
            .to_owned(),
    ];
    Ok(Outcome {
        svg: draw(figure.title, &panels(&points)),
        data: points.data("bytes"),
        summary: points.summary("bytes"),
        claims: claims(&points),
        notes: context.notes(own, pace.rounds)?,
    })
}

fn measure(name: &str, context: &Context, pace: &Pace) -> anyhow::Result<Points> {
    let interrupt = context.interrupt()?;
    let lengths = context.choose(&MESSAGES[..], &QUICK_LENGTHS);
    let mut points = Points::default();
    let progress = Progress::new(name, (3 * lengths.len() * pace.rounds) as u64);
    for round in 0..pace.rounds {
        for own in [round % 2 == 0, round % 2 == 1] {
            if own {
                messages::ping_pong(lengths.iter().copied(), pace.length(), interrupt, |bytes, echoed| {
                    points.add(PANEL, TAILWATER, bytes as u64, one_way(echoed, bytes));
                    progress.advance();
                })?;
                continue;
            }
            for &bytes in lengths {
                for (system, spins) in [(LINUX, false), (LINUX_SPINS, true)] {
                    let echoed = messages::ping_pong_on_linux(bytes, spins, pace.length())?;
                    points.add(PANEL, system, bytes as u64, one_way(&echoed, bytes));
                    progress.advance();
                    interrupt.check()?;
                }
            }
        }
    }
    Ok(points)
}

/// Returns the sample of a message there and back, with the time and goodput of one way: NetPIPE
/// counts both directions.
fn one_way(echoed: &tailwater_loadgen::tcp::Outcome, bytes: usize) -> Sample {
    let there_and_back = Sample::new(echoed, bytes);
    Sample {
        gbps: 2.0 * there_and_back.gbps,
        p50_us: there_and_back.p50_us / 2.0,
        p99_us: there_and_back.p99_us / 2.0,
        ..there_and_back
    }
}

fn panels(points: &Points) -> Vec<Panel> {
    let systems = [TAILWATER, LINUX, LINUX_SPINS];
    let goodput = points.chart(PANEL, &systems, ("goodput", "bytes", "Gbit/s"), |sample| sample.gbps);
    let latency = points.chart(PANEL, &systems, ("latency", "bytes", "one way, p50 us"), |s| s.p50_us);
    vec![goodput, Panel { log_y: true, y_range: Some(decades(&latency.lines)), ..latency }]
}

fn claims(points: &Points) -> Vec<Claim> {
    vec![latency(points), half(points)]
}

fn latency(points: &Points) -> Claim {
    let [ix, linux] = PAPERS_LATENCY;
    let ratio = linux / ix;
    let paper =
        format!("64 bytes take {ix} us one way on IX and {linux} us on Linux, {} times", number(ratio));
    let us = |system| points.at(PANEL, system, 64).map(|point| point.median(|sample| sample.p50_us));
    let (Some(own), Some(theirs)) = (us(TAILWATER), us(LINUX)) else {
        return Claim::not_comparable(&paper, "there is no point".to_owned());
    };
    let spins =
        us(LINUX_SPINS).map_or_else(String::new, |us| format!(", {} us if both sides spin", number(us)));
    let ours =
        format!("{} us, on Linux {} us, {} times{spins}", number(own), number(theirs), number(theirs / own));
    Claim::new(&paper, ours, theirs >= ratio * own)
}

/// Returns the shortest messages with half of the highest goodput of a system.
fn half_of_most(points: &[&Point]) -> Option<u64> {
    let gbps = |point: &Point| point.median(|sample| sample.gbps);
    let most = points.iter().map(|point| gbps(point)).fold(0.0, f64::max);
    Some(points.iter().find(|point| gbps(point) >= most / 2.0 && most > 0.0)?.key.2)
}

fn half(points: &Points) -> Claim {
    let paper =
        "half of the highest goodput is reached with messages of 20,000 bytes on IX, of 192 KB on Linux";
    let of = |system| half_of_most(&points.of(PANEL, system));
    let (Some(own), Some(theirs)) = (of(TAILWATER), of(LINUX)) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let most = |system| {
        let all = points.of(PANEL, system);
        number(all.iter().map(|point| point.median(|sample| sample.gbps)).fold(0.0, f64::max))
    };
    let ours = format!(
        "of its own highest ({} Gbit/s) with {own} bytes, on Linux ({} Gbit/s) with {theirs}",
        most(TAILWATER),
        most(LINUX)
    );
    let verdict = match own.cmp(&theirs) {
        std::cmp::Ordering::Equal => Verdict::NotComparable,
        order => Verdict::of(order.is_lt()),
    };
    Claim { verdict, ..Claim::new(paper, ours, true) }
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::*;

    /// A system, its one-way latency of 64 bytes, and the goodput of each length.
    type Row<'a> = (&'static str, f64, &'a [(u64, f64)]);

    fn verdicts(systems: &[Row<'_>]) -> Vec<Verdict> {
        let mut points = Points::default();
        for &(system, us, goodput) in systems {
            for &(bytes, gbps) in goodput {
                let sample = Sample { rate_rps: 1e3, gbps, p50_us: us, p99_us: us };
                points.add(PANEL, system, bytes, sample);
            }
        }
        assert_eq!(panels(&points).len(), 2);
        claims(&points).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let early: &[_] = &[(64, 0.5), (4096, 20.0), (65_536, 30.0)];
        let late: &[_] = &[(64, 0.1), (4096, 3.0), (65_536, 30.0)];
        assert_eq!(verdicts(&[(TAILWATER, 1.0, early), (LINUX, 4.0, late)]), [Reached; 2]);
        assert_eq!(verdicts(&[(TAILWATER, 1.0, late), (LINUX, 3.0, early)]), [NotReached; 2]);
        assert_eq!(verdicts(&[(TAILWATER, 1.0, late), (LINUX, 4.0, late)]), [Reached, NotComparable]);
        assert_eq!(verdicts(&[]), [NotComparable; 2]);
    }
}
