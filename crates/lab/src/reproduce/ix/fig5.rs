//! Figure 5: connections of one message over the number of cores (a), throughput by the number of
//! messages on a connection (b), and by their length (c).
//!
//! Part a is measured on the cores that this machine has beside the client's, and simulated up to
//! twice the paper's eight ([`scaling`]): the client and the IOKernel share a core here, so one
//! that serves is all that two cores leave.

use std::time::Duration;

use tailwater_sim::reproduce::scaling;

use super::super::figure::{
    Claim, Context, Figure, Line, Outcome, Pace, Panel, Spread, decades, draw, number,
};
use super::super::simulated;
use super::points::{LINUX, Point, Points, Sample, TAILWATER};
use crate::bench::tcp::messages::{self, MANY_CONNECTIONS, MAX_EVENT_MESSAGE, MESSAGES};
use tailwater_testbed::progress::Progress;

const BY_CORES: &str = "a: cores";
const BY_COUNT: &str = "b: messages on a connection";
const BY_LENGTH: &str = "c: bytes of a message";
const COUNTS: [u32; 8] = [1, 2, 8, 32, 64, 128, 512, MOST];
const QUICK_COUNTS: [u32; 2] = [1, MOST];
const QUICK_LENGTHS: [usize; 2] = [64, MAX_EVENT_MESSAGE];
const PACE: Pace =
    Pace { rounds: 5, warm_up: Duration::from_millis(50), counted: Duration::from_millis(300) };
const QUICK_PACE: Pace =
    Pace { rounds: 1, warm_up: Duration::from_millis(30), counted: Duration::from_millis(100) };
/// The paper's most messages on a connection, and the ratio of IX to Linux with them.
const MOST: u32 = 1_024;
const PAPERS_RATIO: f64 = 6.6;
/// Bytes of a message of parts a and b.
const BYTES: usize = 64;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let pace = context.fixed_pace(PACE, QUICK_PACE);
    let mut points = measure(figure.name, context, &pace)?;
    let rows = simulate(context)?;
    let of = |row: &scaling::ByCores| Sample::of(row.rate_rps, BYTES, row.p50_us, row.p99_us);
    for row in &rows {
        points.add(BY_CORES, row.system, row.cores as u64, of(row));
    }
    let own = [
        pace.note("in each round all points on Tailwater, then on Linux, in every second one Linux first"),
        format!(
            "{MANY_CONNECTIONS} connections at a time with one message outstanding on each. Tailwater: an event loop on each core \
             that serves, which never parks, the client in the IOKernel's port on another one. Linux: one epoll thread on each of \
             the same cores, over the loopback device. Parts b and c have one core that serves. Clients end a connection with a \
             reset, and the time to open the next one counts."
        ),
        format!(
            "Part a beyond {} core(s) that serve is simulated, as its curves say: IX's dispatch policy, and that of Tailwater's \
             event loops under the bound of one polling core, by the simulator's costs of a virtual machine. Measured and \
             simulated points of Tailwater differ where the one client bounds the rate. Linux is not simulated.",
            messages::max_serving_cores()
        ),
    ];
    Ok(Outcome {
        svg: draw(figure.title, &panels(&points)),
        data: points.data("cores_messages_or_bytes"),
        summary: points.summary("cores, messages or bytes"),
        claims: claims(&points, &rows),
        notes: context.notes(own, pace.rounds)?,
    })
}

/// Simulates part a.
fn simulate(context: &Context) -> anyhow::Result<Vec<scaling::ByCores>> {
    let options = simulated::options(context);
    let progress = Progress::new("ix-fig5", scaling::points(&options));
    scaling::connections_by_cores(&options, &|| progress.advance())
}

/// What is measured in a round.
struct Round<'a> {
    context: &'a Context,
    pace: &'a Pace,
    cores: Vec<usize>,
    counts: &'a [u32],
    lengths: Vec<usize>,
}

fn measure(name: &str, context: &Context, pace: &Pace) -> anyhow::Result<Points> {
    let of_an_event_loop = || MESSAGES.into_iter().filter(|&bytes| bytes <= MAX_EVENT_MESSAGE);
    let round = Round {
        context,
        pace,
        cores: (1..=messages::max_serving_cores()).collect(),
        counts: context.choose(&COUNTS[..], &QUICK_COUNTS),
        lengths: context.choose(of_an_event_loop().collect(), QUICK_LENGTHS.to_vec()),
    };
    let mut points = Points::default();
    let each = round.cores.len() + round.counts.len() + round.lengths.len();
    let progress = Progress::new(name, (2 * each * pace.rounds) as u64);
    for number in 0..pace.rounds {
        for own in [number % 2 == 0, number % 2 == 1] {
            if own {
                round.on_tailwater(&mut points, &progress)?;
            } else {
                round.on_linux(&mut points, &progress)?;
            }
        }
    }
    Ok(points)
}

impl Round<'_> {
    fn on_tailwater(&self, points: &mut Points, progress: &Progress) -> anyhow::Result<()> {
        let (interrupt, length) = (self.context.interrupt()?, self.pace.length());
        for &cores in &self.cores {
            let echoed = messages::connections_on_cores(cores, length, interrupt)?;
            points.add(BY_CORES, TAILWATER, cores as u64, Sample::new(&echoed, BYTES));
            progress.advance();
        }
        messages::connections(self.counts.iter().copied(), length, interrupt, |count, echoed| {
            points.add(BY_COUNT, TAILWATER, count.into(), Sample::new(echoed, BYTES));
            progress.advance();
        })?;
        messages::echo(self.lengths.iter().copied(), length, interrupt, |bytes, echoed| {
            points.add(BY_LENGTH, TAILWATER, bytes as u64, Sample::new(echoed, bytes));
            progress.advance();
        })
    }

    fn on_linux(&self, points: &mut Points, progress: &Progress) -> anyhow::Result<()> {
        let length = self.pace.length();
        let mut add = |panel, x, sample| {
            points.add(panel, LINUX, x, sample);
            progress.advance();
            self.context.check()
        };
        for &cores in &self.cores {
            let echoed = messages::connections_on_linux_cores(cores, length)?;
            add(BY_CORES, cores as u64, Sample::new(&echoed, BYTES))?;
        }
        for &count in self.counts {
            let echoed = messages::connections_on_linux(count, length)?;
            add(BY_COUNT, count.into(), Sample::new(&echoed, BYTES))?;
        }
        for &bytes in &self.lengths {
            let echoed = messages::echo_on_linux(bytes, length)?;
            add(BY_LENGTH, bytes as u64, Sample::new(&echoed, bytes))?;
        }
        Ok(())
    }
}

fn panels(points: &Points) -> Vec<Panel> {
    let systems = [TAILWATER, LINUX];
    let rate = |systems: &[&str], (panel, x): (&str, &str)| {
        points.chart(panel, systems, (panel, x, "thousand messages/s"), |sample| sample.rate_rps / 1e3)
    };
    let all: Vec<&str> = systems.into_iter().chain(scaling::systems()).collect();
    let by_cores = rate(&all, (BY_CORES, "cores that serve"));
    // Simulated curves are dashed.
    let dashed = |(index, line): (usize, Line)| if index < systems.len() { line } else { line.dashed() };
    let lines = by_cores.lines.into_iter().enumerate().map(dashed).collect();
    let by_cores = Panel { log_x: false, lines, ..by_cores };
    let by_count = rate(&systems, (BY_COUNT, "messages on a connection"));
    let by_length = rate(&systems, (BY_LENGTH, "bytes"));
    let goodput = points.chart(BY_LENGTH, &systems, (BY_LENGTH, "bytes", "Gbit/s"), |sample| sample.gbps);
    let logarithmic = |panel: Panel| Panel { log_y: true, y_range: Some(decades(&panel.lines)), ..panel };
    vec![by_cores, logarithmic(by_count), logarithmic(by_length), goodput]
}

fn claims(points: &Points, rows: &[scaling::ByCores]) -> Vec<Claim> {
    let mut claims = simulated::claims(&scaling::judge(rows));
    claims.extend([
        Claim::not_comparable(
            "a: four cores of IX saturate a link of 10 Gbit/s, for which mTCP needs eight",
            "there is no link here, and mTCP is not run".to_owned(),
        ),
        more_cores(points),
        many_messages(points),
        more(points, BY_COUNT, "IX serves more messages than Linux, however many a connection has"),
        rise(points),
        more(points, BY_LENGTH, "IX has a higher goodput than Linux with messages of all lengths up to 8 KB"),
    ]);
    claims
}

/// Judges what more cores gain, by what was measured.
fn more_cores(points: &Points) -> Claim {
    let paper = "a: IX scales further with the cores than Linux";
    let gain = |system| {
        let all = points.of(BY_CORES, system);
        let (first, last) = (all.first()?, all.last()?);
        let rate = |point: &Point| point.median(|sample| sample.rate_rps);
        Some((last.key.2, rate(first) / 1e3, rate(last) / rate(first)))
    };
    let (Some((most, own, own_gain)), Some((_, theirs, gain))) = (gain(TAILWATER), gain(LINUX)) else {
        return Claim::not_comparable(paper, "there is no point".to_owned());
    };
    let one = format!("on one core {} thousand connections/s, on Linux {}", number(own), number(theirs));
    if most < 2 {
        let why = format!("one core can serve beside the client's; {one}, {} times", number(own / theirs));
        return Claim::not_comparable(paper, why);
    }
    let ours =
        format!("{one}; on {most} cores {} times as many, on Linux {}", number(own_gain), number(gain));
    Claim::new(paper, ours, own_gain > gain)
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
        first.key.2,
        number(rates[1] / 1e3),
        last.key.2
    );
    Claim::new(paper, ours, rates[1] > rates[0])
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::points::tests::sample;
    use super::*;

    /// Returns the verdicts on what is measured.
    fn verdicts(rows: &[(&'static str, &'static str, u64, f64)]) -> Vec<Verdict> {
        let mut points = Points::default();
        for &(panel, system, x, rate) in rows {
            points.add(panel, system, x, sample(rate, 1.0));
        }
        assert_eq!(panels(&points).len(), 4);
        let (simulated, measured): (Vec<_>, Vec<_>) =
            claims(&points, &[]).into_iter().partition(|claim| claim.simulated);
        assert_eq!(simulated.len(), 2, "tested in the simulator");
        measured.iter().map(|claim| claim.verdict).collect()
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
            (BY_CORES, TAILWATER, 1, 3e5),
            (BY_CORES, LINUX, 1, 2e4),
            (BY_CORES, TAILWATER, 3, 8e5),
            (BY_CORES, LINUX, 3, 5e4),
        ];
        let link = NotComparable;
        assert_eq!(verdicts(&good), [link, Reached, Reached, Reached, Reached, Reached]);
        let mut poor = good;
        (poor[0].3, poor[2].3, poor[5].3, poor[8].3) = (1e4, 5e3, 2e6, 7e5);
        assert_eq!(verdicts(&poor), [link, NotReached, NotReached, NotReached, NotReached, NotReached]);
        assert_eq!(verdicts(&good[..8])[1], NotComparable, "one core serves");
        assert_eq!(verdicts(&[]), [NotComparable; 6]);
    }

    #[test]
    fn simulated_curves_are_dashed_and_named_so() {
        let mut points = Points::default();
        points.add(BY_CORES, TAILWATER, 1, sample(3e5, 1.0));
        let lines = &panels(&points)[0].lines;
        assert!(lines.iter().all(|line| line.dashed == line.name.ends_with(", simulated")), "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.dashed).count(), 2);
    }
}
