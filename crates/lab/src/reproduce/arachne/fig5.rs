//! Figure 5: latency while load rises and falls, with and without the core arbiter, alone and
//! beside a background job.
//!
//! Owns the ramp and the claims. Without the arbiter Linux divides the
//! managed cores between the service's kthreads and a background job of ordinary threads at nice
//! 10: the IOKernel assigns user threads to kthreads that Linux may have descheduled. With it the
//! service requests the cores of its estimate, and the same job is lent what is left.

use std::time::Duration;

use tailwater_loadgen::Plan;
use tailwater_workload::schedule::{Segment, Shape};
use tailwater_workload::{LoadSchedule, Rate};

use super::super::contest::System;
use super::super::figure::{
    Claim, Context, FLOWS, Figure, Outcome, Pace, Panel, Rig, Spread, Table, draw, number,
};
use super::super::over_time::{self, Course, Window};
use tailwater_testbed::{on_linux, on_tailwater};

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

/// The length of a window, which is that of a plan by default.
const WINDOW: Duration = Duration::from_millis(100);

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let quick = context.options.quick;
    let length = Duration::from_millis(if quick { 200 } else { 8_000 });
    let rounds = context.rounds(ROUNDS);
    let plan = plan(rig.testbed.cores.managed.len(), length)?;
    let windows = (length.as_nanos() / WINDOW.as_nanos()) as usize;
    let all = over_time::measure(figure, context, &systems(rig), (&plan, windows), rounds)?;
    let pace = Pace { rounds, warm_up: WARM_UP, counted: length };
    let mut notes = rig.notes(&pace, quick);
    notes.extend(rig.linux_notes());
    notes.push(format!(
        "Load rises from {} to {} requests/s and falls again; windows of 100 ms, medians over the rounds.",
        plan.schedule.rate_at(0).per_second(),
        number(plan.schedule.rate_at(plan.warm_up_ns + length.as_nanos() as u64 / 2).per_second())
    ));
    for course in all.iter().filter(|course| !course.shares.is_empty()) {
        notes.push(format!("{}: the job ran at {} of its full speed.", course.name, course.share()));
    }
    Ok(Outcome {
        svg: draw(figure.title, &panels(&all)),
        data: data(&all),
        summary: summary(&all),
        claims: claims(&all),
        notes,
    })
}

fn systems(rig: &Rig) -> Vec<(&'static str, System)> {
    let threads = on_tailwater::Setting { spawns: true, ..Default::default() };
    let alone = on_tailwater::Setting { batch: false, ..threads };
    let linux = on_linux::Setting::threads(rig.wait.mode());
    let systems = [
        System::Tailwater(on_tailwater::Setting { estimates: true, ..alone }),
        System::Tailwater(on_tailwater::Setting { estimates: true, ..threads }),
        System::Tailwater(alone),
        System::Tailwater(on_tailwater::Setting { ordinary_batch: true, ..threads }),
        System::Linux(on_linux::Setting { batch: Some(on_linux::Rank::Nice), ..linux }),
    ];
    NAMES.into_iter().zip(systems).collect()
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

/// Returns the mean over all windows of all rounds; `None` without any.
fn mean(course: &Course, of: fn(&Window) -> f64) -> Option<f64> {
    let all = course.rounds.iter().flatten().map(of);
    let values: Vec<f64> = all.filter(|us| us.is_finite()).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the median over the rounds of the worst window's 99th percentile.
fn worst_us(course: &Course) -> Option<f64> {
    // NaN, of a window without an answer, is not larger than any.
    let worst = |windows: &Vec<Window>| windows.iter().map(p99).reduce(f64::max);
    Spread::of(course.rounds.iter().filter_map(worst)).map(|spread| spread.median)
}

fn p50(window: &Window) -> f64 {
    window.p50_us
}

fn p99(window: &Window) -> f64 {
    window.p99_us
}

fn panels(all: &[Course]) -> [Panel; 2] {
    [("Median latency", p50 as fn(&Window) -> f64), ("Tail latency", p99)].map(|(title, of)| {
        let lines = all.iter().map(|course| course.line(WINDOW, of)).collect();
        Panel::new(title, "s", "us", lines).decades()
    })
}

fn data(all: &[Course]) -> Table {
    let mut table = Table::new("system | round | window | completed | p50_us | p99_us");
    for course in all {
        for (round, windows) in course.rounds.iter().enumerate() {
            for (index, window) in windows.iter().enumerate().filter(|(_, window)| window.completed > 0) {
                let mut cells = vec![course.name.to_owned()];
                cells.extend([round as u64, index as u64, window.completed].map(|n| n.to_string()));
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
    for course in all {
        let figures = [mean(course, p50), mean(course, p99), worst_us(course)].map(text);
        table.row([course.name.to_owned()].into_iter().chain(figures).chain([course.share()]));
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
    let times = |of: fn(&Window) -> f64| Some((mean(all.get(one)?, of)?, mean(all.get(other)?, of)?));
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
    let worst = |index: usize| all.get(index).and_then(worst_us);
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
            completed: 9,
            p50_us: us,
            p99_us: if index == 2 { 100.0 * us } else { us },
            ..Window::EMPTY
        };
        Course { name: "a", rounds: vec![(0..3).map(window).collect(); 2], shares: vec![0.5] }
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
    fn windows_without_an_answer_count_for_nothing() {
        let mut one = course(8.0);
        one.rounds[1].push(Window::EMPTY);
        assert_eq!((mean(&one, p50), worst_us(&one)), (Some(8.0), Some(800.0)));
        let all = [one];
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
