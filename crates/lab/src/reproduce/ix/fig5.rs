//! Figure 5, parts b and c: throughput by the number of messages on a connection, and by their
//! length.

use std::time::Duration;

use tailwater_plot::{Panel, decades, draw};

use super::super::claim::Claim;
use super::super::context::Context;
use super::super::figure::{Figure, Outcome};
use super::super::spread::Spread;
use super::points::{LINUX, Points, Sample, TAILWATER};
use crate::bench::tcp::many::Length;
use crate::bench::tcp::messages::{self, MANY_CONNECTIONS, MAX_EVENT_MESSAGE, MESSAGES};
use tailwater_testbed::table::number;

const BY_COUNT: &str = "b: messages on a connection";
const BY_LENGTH: &str = "c: bytes of a message";
const COUNTS: [u32; 8] = [1, 2, 8, 32, 64, 128, 512, MOST];
const QUICK_COUNTS: [u32; 2] = [1, MOST];
const QUICK_LENGTHS: [usize; 2] = [64, MAX_EVENT_MESSAGE];
const ROUNDS: usize = 5;
/// The paper's most messages on a connection, and the ratio of IX to Linux with them.
const MOST: u32 = 1_024;
const PAPERS_RATIO: f64 = 6.6;
/// Bytes of a message of part b.
const BYTES: usize = 64;

/// The figure.
#[derive(Debug)]
pub struct Figure5;

impl Figure for Figure5 {
    fn name(&self) -> &'static str {
        "ix-fig5"
    }

    fn title(&self) -> &'static str {
        "Throughput by messages on a connection and by their length"
    }

    fn paper(&self) -> &'static str {
        "IX (TOCS'17), figure 5"
    }

    fn plan(&self) -> &'static str {
        include_str!("../../../../../experiments/ix-fig5.md")
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let rig = context.rig()?;
        let quick = context.options.quick;
        let points = measure(self.name(), context)?;
        let mut notes = vec![
            format!(
                "{} round(s), {} ms counted per point; in each round all points on Tailwater, then on Linux, in every second one \
                 Linux first.",
                rounds(quick),
                length(quick).lasts.as_millis()
            ),
            format!(
                "{MANY_CONNECTIONS} connections at a time with one message outstanding on each. Tailwater: an event loop on one core \
                 that never parks, the client in the IOKernel's port on the other. Linux: server and client one epoll thread each, on \
                 the same two cores, over the loopback device. Clients end a connection with a reset, and the time to open the next \
                 one counts."
            ),
            "Part a, throughput over cores, needs more cores than two, and is left out.".to_owned(),
        ];
        notes.extend(rig.noise_notes());
        if quick {
            notes.push("Quick run: one short round. A shape, not a result.".to_owned());
        }
        Ok(Outcome {
            svg: draw(self.title(), &panels(&points)),
            data: points.data("messages_or_bytes"),
            summary: points.summary("messages or bytes"),
            claims: claims(&points),
            notes,
        })
    }
}

fn rounds(quick: bool) -> usize {
    if quick { 1 } else { ROUNDS }
}

fn length(quick: bool) -> Length {
    let ms = Duration::from_millis;
    if quick {
        Length { warm_up: ms(30), lasts: ms(100) }
    } else {
        Length { warm_up: ms(50), lasts: ms(300) }
    }
}

fn measure(name: &str, context: &Context) -> anyhow::Result<Points> {
    let interrupt = &context.rig()?.testbed.interrupt;
    let quick = context.options.quick;
    let of_an_event_loop = || MESSAGES.into_iter().filter(|&bytes| bytes <= MAX_EVENT_MESSAGE);
    let lengths: Vec<usize> = if quick { QUICK_LENGTHS.to_vec() } else { of_an_event_loop().collect() };
    let counts: &[u32] = if quick { &QUICK_COUNTS } else { &COUNTS };
    let mut points = Points::default();
    let progress = context.progress(name, (2 * (lengths.len() + counts.len()) * rounds(quick)) as u64);
    for round in 0..rounds(quick) {
        for own in [round % 2 == 0, round % 2 == 1] {
            let length = length(quick);
            if own {
                messages::connections(counts.iter().copied(), length, interrupt, |count, echoed| {
                    points.add(BY_COUNT, TAILWATER, count.into(), Sample::new(echoed, BYTES));
                    progress.inc(1);
                })?;
                messages::echo(lengths.iter().copied(), length, interrupt, |bytes, echoed| {
                    points.add(BY_LENGTH, TAILWATER, bytes as u64, Sample::new(echoed, bytes));
                    progress.inc(1);
                })?;
                continue;
            }
            for &count in counts {
                let echoed = messages::connections_on_linux(count, length)?;
                points.add(BY_COUNT, LINUX, count.into(), Sample::new(&echoed, BYTES));
                progress.inc(1);
                interrupt.check()?;
            }
            for &bytes in &lengths {
                let echoed = messages::echo_on_linux(bytes, length)?;
                points.add(BY_LENGTH, LINUX, bytes as u64, Sample::new(&echoed, bytes));
                progress.inc(1);
                interrupt.check()?;
            }
        }
    }
    progress.finish_and_clear();
    Ok(points)
}

fn panels(points: &Points) -> Vec<Panel> {
    let systems = [TAILWATER, LINUX];
    let (by_count, by_length) = ((BY_COUNT, "messages on a connection"), (BY_LENGTH, "bytes"));
    let rate = |(panel, x)| {
        points.chart(panel, &systems, (panel, x, "thousand messages/s"), |sample| sample.rate_rps / 1e3)
    };
    let goodput = points.chart(BY_LENGTH, &systems, (BY_LENGTH, "bytes", "Gbit/s"), |sample| sample.gbps);
    let logarithmic = |panel: Panel| Panel { log_y: true, y_range: Some(decades(&panel.lines)), ..panel };
    vec![logarithmic(rate(by_count)), logarithmic(rate(by_length)), goodput]
}

fn claims(points: &Points) -> Vec<Claim> {
    vec![
        many_messages(points),
        more(points, BY_COUNT, "IX serves more messages than Linux, however many a connection has"),
        rise(points),
        more(points, BY_LENGTH, "IX has a higher goodput than Linux with messages of all lengths up to 8 KB"),
    ]
}

fn many_messages(points: &Points) -> Claim {
    let paper = format!(
        "with {MOST} messages on a connection IX serves {PAPERS_RATIO} times as many a second as Linux"
    );
    let ratios = points.ratios(BY_COUNT, LINUX, |sample| sample.rate_rps);
    match ratios.iter().find(|(count, _)| *count == u64::from(MOST)) {
        Some((_, ratio)) => Claim::new(&paper, format!("{} times", number(*ratio)), *ratio >= PAPERS_RATIO),
        None => Claim::not_comparable(&paper, "there is no point".to_owned()),
    }
}

fn more(points: &Points, panel: &str, paper: &str) -> Claim {
    let ratios = points.ratios(panel, LINUX, |sample| sample.rate_rps);
    let Some(all) = Spread::of(ratios.iter().map(|(_, ratio)| *ratio)) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let list: Vec<String> = ratios.iter().map(|(x, ratio)| format!("{} ({x})", number(*ratio))).collect();
    Claim::new(paper, format!("times Linux's: {}", list.join(", ")), all.min > 1.0)
}

fn rise(points: &Points) -> Claim {
    let paper = "throughput increases with the number of messages on a connection";
    let own = points.of(BY_COUNT, TAILWATER);
    let (Some(first), Some(last)) = (own.first(), own.last()) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let rates = [first, last].map(|point| point.median(|sample| sample.rate_rps));
    let ours = format!(
        "thousand messages/s: {} ({}), {} ({})",
        number(rates[0] / 1e3),
        first.x,
        number(rates[1] / 1e3),
        last.x
    );
    Claim::new(paper, ours, rates[1] > rates[0])
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::points::tests::sample;
    use super::*;

    fn verdicts(rows: &[(&'static str, &'static str, u64, f64)]) -> Vec<Verdict> {
        let mut points = Points::default();
        for &(panel, system, x, rate) in rows {
            points.add(panel, system, x, sample(rate, 1.0));
        }
        assert_eq!(panels(&points).len(), 3);
        claims(&points).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let good = [
            (BY_COUNT, TAILWATER, 1, 3e5),
            (BY_COUNT, LINUX, 1, 2e4),
            (BY_COUNT, TAILWATER, 1024, 1.4e6),
            (BY_COUNT, LINUX, 1024, 2e5),
            (BY_LENGTH, TAILWATER, 64, 1.4e6),
            (BY_LENGTH, LINUX, 64, 2e5),
        ];
        assert_eq!(verdicts(&good), [Reached; 4]);
        let mut poor = good;
        (poor[0].3, poor[2].3, poor[5].3) = (1e4, 5e3, 2e6);
        assert_eq!(verdicts(&poor), [NotReached; 4]);
        assert_eq!(verdicts(&[]), [NotComparable; 4]);
    }
}
