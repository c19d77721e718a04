//! Figure 5: latency while load rises and falls, with and without the core arbiter, alone and
//! beside a background job.
//!
//! Owns the ramp, the windows over time, and the claims. Without the arbiter Linux divides the
//! managed cores between the service's kthreads and a background job of ordinary threads at nice
//! 10: the IOKernel assigns user threads to kthreads that Linux may have descheduled. With it the
//! service requests the cores of its estimate, and the same job is lent what is left.

use std::time::Duration;

use tailwater_loadgen::Plan;
use tailwater_workload::schedule::{Segment, Shape};
use tailwater_workload::{Intervals, LoadSchedule, Rate};

use super::super::figure::{
    Claim, Context, FLOWS, Figure, Line, Outcome, Pace, Panel, Rig, Spread, Table, cell, draw, number,
};
use super::super::rounds::in_turn;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::{BatchRates, Measured, on_linux, on_tailwater};

/// About what a request to memcached takes (section 2).
const SERVICE: &str = "exp:10us";
/// Requests of that length that a core serves in a second at most.
const CORE_RPS: f64 = 100_000.0;
/// Parts of that at both ends of the ramp; the paper has 1 and 90 % of its capacity.
const ENDS: [f64; 2] = [0.02, 0.7];
/// Most requests a second of the generator on kernel sockets.
const MAX_RATE: f64 = 250_000.0;
const WARM_UP: Duration = Duration::from_millis(150);
const ROUNDS: usize = 3;
/// "Significantly higher".
const HIGHER: f64 = 1.5;
/// "Almost unaffected".
const UNAFFECTED: f64 = 1.25;
const MILLISECONDS_US: f64 = 1_000.0;

/// The systems, in the order of [`systems`].
const NAMES: [&str; 5] = [
    "arbiter",
    "arbiter, batch job",
    "no arbiter",
    "no arbiter, batch job at nice 10",
    "Linux, batch job at nice 10",
];
const ARBITER: usize = 0;
const ARBITER_BESIDE: usize = 1;
const BARE: usize = 2;
const BARE_BESIDE: usize = 3;
const LINUX_BESIDE: usize = 4;

/// How a system is measured.
#[derive(Debug, Clone, Copy)]
enum Way {
    Tailwater(on_tailwater::Setting),
    Linux(on_linux::Setting),
}

/// A window of 100 ms.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    /// Its number.
    index: u64,
    completed: u64,
    p50_us: f64,
    p99_us: f64,
}

/// The rounds of one system.
#[derive(Debug, Default)]
struct Course {
    rounds: Vec<Vec<Window>>,
    shares: Vec<f64>,
}

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "arachne-fig5",
    title: "Latency while the load rises and falls, with and without dedicated cores",
    paper: "Arachne (OSDI'18), figure 5",
    plan: include_str!("../../../experiments/arachne-fig5.md"),
    run,
    ..Figure::MEASURED
};

fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let quick = context.options.quick;
    let length = Duration::from_millis(if quick { 200 } else { 8_000 });
    let rounds = context.rounds(ROUNDS);
    let plan = plan(rig.testbed.cores.managed.len(), length)?;
    let all = measure(figure, context, rig, &plan, rounds)?;
    let pace = Pace { rounds, warm_up: WARM_UP, counted: length };
    let mut notes = rig.notes(&pace, quick);
    notes.extend(rig.linux_notes());
    notes.push(format!(
        "Load rises from {} to {} requests/s and falls again; windows of 100 ms, medians over the rounds.",
        plan.schedule.rate_at(0).per_second(),
        number(plan.schedule.rate_at(plan.warm_up_ns + length.as_nanos() as u64 / 2).per_second())
    ));
    for (name, course) in NAMES.iter().zip(&all) {
        if !course.shares.is_empty() {
            let share = cell(Spread::of(course.shares.iter().copied()));
            notes.push(format!("{name}: the job ran at {share} of its full speed."));
        }
    }
    Ok(Outcome {
        svg: draw(figure.title(), &panels(&all)),
        data: data(&all),
        summary: summary(&all),
        claims: claims(&all),
        notes,
    })
}

fn systems(rig: &Rig) -> [Way; NAMES.len()] {
    let threads = on_tailwater::Setting { spawns: true, ..Default::default() };
    let alone = on_tailwater::Setting { batch: false, ..threads };
    let linux = on_linux::Setting::threads(rig.wait.mode());
    [
        Way::Tailwater(on_tailwater::Setting { estimates: true, ..alone }),
        Way::Tailwater(on_tailwater::Setting { estimates: true, ..threads }),
        Way::Tailwater(alone),
        Way::Tailwater(on_tailwater::Setting { ordinary_batch: true, ..threads }),
        Way::Linux(on_linux::Setting { batch: Some(on_linux::Rank::Nice), ..linux }),
    ]
}

fn plan(cores: usize, length: Duration) -> anyhow::Result<Plan> {
    let rate = |part: f64| Rate::new((part * CORE_RPS * cores as f64).min(MAX_RATE));
    let [low, high] = [rate(ENDS[0])?, rate(ENDS[1])?];
    let half_ns = length.as_nanos() as u64 / 2;
    let slope = |from, to| Segment { length_ns: half_ns, shape: Shape::Slope { from, to } };
    let warm_up_ns = WARM_UP.as_nanos() as u64;
    let warm_up = LoadSchedule::constant(low, warm_up_ns);
    let segments = [warm_up.segments(), &[slope(low, high), slope(high, low)]].concat();
    let whole = Plan::new(LoadSchedule::new(segments)?, SERVICE.parse()?);
    Ok(Plan { warm_up_ns, flows: FLOWS, intervals: true, ..whole })
}

fn measure(
    figure: &Figure,
    context: &Context,
    rig: &Rig,
    plan: &Plan,
    rounds: usize,
) -> anyhow::Result<Vec<Course>> {
    let systems = systems(rig);
    let mut all: Vec<Course> = NAMES.iter().map(|_| Course::default()).collect();
    in_turn(figure, context, (NAMES.len(), rounds), |index, round| {
        let seed = context.options.seed.wrapping_add(round as u64);
        let measured: Measured = match systems[index] {
            Way::Tailwater(setting) => {
                let mut handoffs = HandoffRecord::default();
                on_tailwater::point(&rig.testbed, rig.speed, plan, seed, setting, &mut handoffs)?
            }
            Way::Linux(setting) => on_linux::point(&rig.testbed, rig.speed, plan, seed, setting)?,
        };
        all[index].shares.extend(measured.batch.map(BatchRates::share));
        all[index].rounds.push(windows(measured.measurement.summary.intervals()));
        Ok(())
    })?;
    Ok(all)
}

/// Returns the windows with an answer.
fn windows(intervals: &Intervals) -> Vec<Window> {
    let window = |interval: &tailwater_workload::Interval| {
        let us = |part| interval.latency_ns(part).map(|ns| ns as f64 / 1e3);
        let (p50_us, p99_us) = (us(0.5)?, us(0.99)?);
        Some(Window { index: interval.index, completed: interval.counts.completed, p50_us, p99_us })
    };
    let mut windows: Vec<Window> = intervals.list.iter().filter_map(window).collect();
    windows.sort_by_key(|window| window.index);
    windows
}

impl Course {
    /// Returns the mean over all windows of all rounds; `None` without any.
    fn mean(&self, of: fn(&Window) -> f64) -> Option<f64> {
        let values: Vec<f64> = self.rounds.iter().flatten().map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Returns the median over the rounds of the worst window's 99th percentile.
    fn worst_us(&self) -> Option<f64> {
        let worst = |windows: &Vec<Window>| windows.iter().map(p99).reduce(f64::max);
        Spread::of(self.rounds.iter().filter_map(worst)).map(|spread| spread.median)
    }

    /// Returns the median over the rounds of a figure, by window.
    fn line(&self, of: fn(&Window) -> f64) -> Vec<(f64, f64)> {
        let last = self.rounds.iter().flatten().map(|window| window.index).max().unwrap_or(0);
        let median = |index: u64| {
            let values = self.rounds.iter().flatten().filter(|window| window.index == index).map(of);
            Some((index as f64 / 10.0, Spread::of(values)?.median))
        };
        (0..=last).filter_map(median).collect()
    }
}

fn p50(window: &Window) -> f64 {
    window.p50_us
}

fn p99(window: &Window) -> f64 {
    window.p99_us
}

fn panels(all: &[Course]) -> [Panel; 2] {
    [("Median latency", p50 as fn(&Window) -> f64), ("Tail latency", p99)].map(|(title, of)| {
        let line = |(name, course): (&&str, &Course)| Line::new(*name, course.line(of));
        let lines: Vec<Line> = NAMES.iter().zip(all).map(line).collect();
        Panel::new(title, "s", "us", lines).decades()
    })
}

fn data(all: &[Course]) -> Table {
    let mut table = Table::new("system | round | window | completed | p50_us | p99_us");
    for (name, course) in NAMES.iter().zip(all) {
        for (round, windows) in course.rounds.iter().enumerate() {
            for window in windows {
                let mut cells = vec![(*name).to_owned()];
                cells.extend([round as u64, window.index, window.completed].map(|n| n.to_string()));
                cells.extend([window.p50_us, window.p99_us].map(|us| format!("{us:.3}")));
                table.row(cells);
            }
        }
    }
    table
}

fn summary(all: &[Course]) -> Table {
    let mut table = Table::new("system | mean p50, us | mean p99 | worst p99 | batch share");
    let text = |us: Option<f64>| us.map_or_else(String::new, number);
    for (name, course) in NAMES.iter().zip(all) {
        let figures = [course.mean(p50), course.mean(p99), course.worst_us()].map(text);
        let share = cell(Spread::of(course.shares.iter().copied()));
        table.row([(*name).to_owned()].into_iter().chain(figures).chain([share]));
    }
    table
}

fn claims(all: &[Course]) -> Vec<Claim> {
    let higher = |times: [f64; 2]| times.iter().all(|times| *times >= HIGHER);
    vec![
        compare(
            all,
            "without dedicated cores latency is significantly higher beside the background job",
            [BARE_BESIDE, ARBITER_BESIDE],
            higher,
        ),
        compare(
            all,
            "without dedicated cores latency is significantly higher without the background job, too",
            [BARE, ARBITER],
            higher,
        ),
        stranded(all),
        compare(
            all,
            "without dedicated cores it is worse than the unmodified program on kernel threads",
            [BARE_BESIDE, LINUX_BESIDE],
            |times| times.iter().all(|times| *times > 1.0),
        ),
        compare(
            all,
            "with dedicated cores the background job leaves latency almost unaffected",
            [ARBITER_BESIDE, ARBITER],
            |times| times.iter().all(|times| *times <= UNAFFECTED),
        ),
    ]
}

/// Judges the mean median and mean 99th percentile of a system over those of another one.
fn compare(all: &[Course], paper: &str, [one, other]: [usize; 2], holds: impl Fn([f64; 2]) -> bool) -> Claim {
    let times = |of: fn(&Window) -> f64| Some((all.get(one)?.mean(of)?, all.get(other)?.mean(of)?));
    let (Some(p50), Some(p99)) = (times(p50), times(p99)) else {
        return Claim::not_comparable(paper, "a system answered no request".to_owned());
    };
    let ratio = |(one, other): (f64, f64)| one / other;
    let text = |pair: (f64, f64)| {
        format!("{} against {} us ({} times)", number(pair.0), number(pair.1), number(ratio(pair)))
    };
    let ours = format!(
        "{} against {}: median {}, p99 {}, means over the windows",
        NAMES[one],
        NAMES[other],
        text(p50),
        text(p99)
    );
    Claim::new(paper, ours, holds([ratio(p50), ratio(p99)]))
}

fn stranded(all: &[Course]) -> Claim {
    const PAPER: &str =
        "without them user threads are stranded on descheduled kernel threads for many milliseconds";
    let worst = |index: usize| all.get(index).and_then(Course::worst_us);
    let (Some(bare), Some(arbiter)) = (worst(BARE_BESIDE), worst(ARBITER_BESIDE)) else {
        return Claim::not_comparable(PAPER, "a system answered no request".to_owned());
    };
    let ours = format!(
        "the worst window's p99 beside the job is {} us, with the arbiter {} us",
        number(bare),
        number(arbiter)
    );
    Claim::new(PAPER, ours, bare >= MILLISECONDS_US && bare > arbiter)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    /// Returns a course of two rounds of three windows with these latencies; the last window's tail
    /// is a hundred times as long.
    fn course(us: f64) -> Course {
        let window = |index| Window {
            index,
            completed: 9,
            p50_us: us,
            p99_us: if index == 2 { 100.0 * us } else { us },
        };
        Course { rounds: vec![(0..3).map(window).collect(); 2], shares: vec![0.5] }
    }

    fn verdicts(us: [f64; NAMES.len()]) -> Vec<Verdict> {
        claims(&us.map(course)).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts([8.0, 9.0, 16.0, 30.0, 20.0]), [Reached; 5]);
        assert_eq!(verdicts([8.0, 12.0, 9.0, 9.0, 20.0]), [NotReached; 5]);
        let empty: Vec<Course> = NAMES.iter().map(|_| Course::default()).collect();
        assert!(claims(&empty).iter().all(|claim| claim.verdict == NotComparable));
    }

    #[test]
    fn a_line_has_the_median_of_each_window() {
        let mut one = course(8.0);
        one.rounds[1][0].p50_us = 10.0;
        assert_eq!(one.line(p50), [(0.0, 10.0), (0.1, 8.0), (0.2, 8.0)]);
        assert_eq!(one.worst_us(), Some(800.0));
        let all = [course(8.0)];
        assert_eq!(data(&all).rows().len(), 6);
        assert_eq!(panels(&all)[1].lines.len(), 1);
        assert_eq!(summary(&all).rows()[0][1], "8.00");
    }

    #[test]
    fn the_load_rises_and_falls() {
        let length = Duration::from_secs(2);
        let plan = plan(2, length).unwrap();
        let at = |ms: u64| plan.schedule.rate_at(plan.warm_up_ns + ms * 1_000_000).per_second().round();
        assert_eq!([at(0), at(1_000), at(1_500)], [4_000.0, 140_000.0, 72_000.0]);
        assert_eq!(self::plan(8, length).unwrap().schedule.rate_at(1_150_000_000).per_second(), MAX_RATE);
    }
}
