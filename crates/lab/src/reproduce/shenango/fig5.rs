//! Figure 5: sudden changes of load; throughput and tail latency of 10 ms windows over time.

use std::time::Duration;

use tailwater_loadgen::Plan;
use tailwater_workload::{LoadSchedule, Rate};

use super::super::arbiter::ARBITER;
use super::super::contest::System;
use super::super::figure::{
    Claim, Context, FLOWS, Figure, Line, Outcome, Pace, Panel, Spread, Table, decades, draw, number,
};
use super::super::over_time::{self, Course, Window};
use tailwater_testbed::{on_linux, on_tailwater};

/// The service time of Shenango section 7.2.
const SERVICE: &str = "const:1us";
const WINDOW: Duration = Duration::from_millis(10);
/// Requests per second and shared core, as far as one core goes; the paper has 100,000 to 5 million
/// over 14 hyperthreads.
const BASE: f64 = 20_000.0;
const STEPS: [f64; 3] = [50_000.0, 100_000.0, 200_000.0];
/// Maximum requests per second of the generator on kernel sockets.
const MAX_RATE: f64 = 250_000.0;
const ROUNDS: usize = 5;

/// Windows after a step that count as the transition: 50 ms.
const TRANSITION: usize = 5;
/// "Almost no additional tail latency": the transition's worst window is at most this many times
/// the worst window of an equally long later interval at the same rate.
const ALMOST_NO_MORE: f64 = 1.5;
/// A system that answers less than this part of the offered load does not keep up.
const KEEPS_UP: f64 = 0.98;
const MILLISECONDS_US: f64 = 1_000.0;

/// An interval of constant rate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stage {
    rate: f64,
    /// The first of its windows.
    from: usize,
    to: usize,
}

/// The figures of a stage over the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct StageFigures {
    achieved: f64,
    /// Typical window of the second half.
    steady_us: Spread,
    /// Worst window of the transition, divided by the typical worst window of equally long
    /// intervals in the second half.
    extra: Spread,
}

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let quick = context.options.quick;
    let (length, warm_up) =
        (Duration::from_millis(if quick { 300 } else { 1_000 }), Duration::from_millis(150));
    let stages = stages(rig.testbed.cores.managed.len(), length);
    let plan = plan(&stages, length, warm_up)?;
    let tailwater = |estimates| System::Tailwater(on_tailwater::Setting { estimates, ..Default::default() });
    let linux = System::Linux(on_linux::Setting::threads(rig.wait.mode()));
    let systems = [("Tailwater", tailwater(false)), ("Linux", linux), (ARBITER, tailwater(true))];
    let windows = stages.last().map_or(0, |stage| stage.to);
    let rounds = context.rounds(ROUNDS);
    let all = over_time::measure(figure, context, &systems, (&plan, windows), rounds)?;
    let pace = Pace { rounds, warm_up, counted: length * stages.len() as u32 };
    let mut notes = rig.notes(&pace, quick);
    notes.extend(rig.linux_notes());
    notes.push(format!(
        "Rates are scaled to {} shared core(s), and UDP takes the place of TCP. A window of 10 ms has {:.0} requests at the lowest \
         rate, so its p99.9 is its slowest request, and a single stall of the machine shows.",
        rig.testbed.cores.managed.len(),
        stages[0].rate * WINDOW.as_secs_f64()
    ));
    let share = |course: &Course| {
        format!("{}: the batch job ran at {} of its full speed.", course.name, course.share())
    };
    notes.extend(all.iter().map(share));
    Ok(Outcome {
        svg: draw(figure.title, &panels(&all, &stages)),
        data: data(&all),
        summary: summary(&all, &stages),
        claims: claims(&all, &stages),
        notes,
    })
}

/// Returns the stages: the base rate before, between and after the steps.
fn stages(cores: usize, length: Duration) -> Vec<Stage> {
    let scaled = |rate: f64| (rate * cores as f64).min(MAX_RATE);
    let mut rates = vec![scaled(BASE)];
    rates.extend(STEPS.iter().flat_map(|&step| [scaled(step), scaled(BASE)]));
    let windows = (length.as_nanos() / WINDOW.as_nanos()) as usize;
    rates
        .iter()
        .enumerate()
        .map(|(i, &rate)| Stage { rate, from: i * windows, to: (i + 1) * windows })
        .collect()
}

fn plan(stages: &[Stage], length: Duration, warm_up: Duration) -> anyhow::Result<Plan> {
    let rates: Vec<Rate> = stages.iter().map(|stage| Rate::new(stage.rate)).collect::<Result<_, _>>()?;
    let (length_ns, warm_up_ns) = (length.as_nanos() as u64, warm_up.as_nanos() as u64);
    let mut segments = LoadSchedule::constant(rates[0], warm_up_ns).segments().to_vec();
    segments.extend_from_slice(LoadSchedule::steps(&rates, length_ns)?.segments());
    Ok(Plan {
        warm_up_ns,
        flows: FLOWS,
        intervals: true,
        interval_ns: WINDOW.as_nanos() as u64,
        ..Plan::new(LoadSchedule::new(segments)?, SERVICE.parse()?)
    })
}

/// Returns the worst tail of an interval; `None` if no request was answered in it.
fn worst_us(windows: &[Window]) -> Option<f64> {
    windows.iter().map(|window| window.p999_us).filter(|us| us.is_finite()).reduce(f64::max)
}

/// Returns the figures of a stage; `None` if no round has an answer in it.
fn figures_of(rounds: &[Vec<Window>], stage: Stage) -> Option<StageFigures> {
    let half = stage.from + (stage.to - stage.from) / 2;
    let in_stage = |series: &Vec<Window>, from: usize| -> Vec<Window> {
        series.get(from.min(series.len())..stage.to.min(series.len())).unwrap_or_default().to_vec()
    };
    let median = |values: Vec<f64>| Spread::of(values).map(|spread| spread.median);
    let (mut achieved, mut steady, mut extra) = (Vec::new(), Vec::new(), Vec::new());
    for series in rounds {
        let (whole, late) = (in_stage(series, stage.from), in_stage(series, half));
        let completed: u64 = late.iter().map(|window| window.completed).sum();
        achieved.push(completed as f64 / (late.len().max(1) as f64 * WINDOW.as_secs_f64()));
        steady.extend(median(late.iter().map(|window| window.p999_us).collect()));
        let later = median(late.chunks_exact(TRANSITION).filter_map(worst_us).collect());
        let first = worst_us(&whole[..TRANSITION.min(whole.len())]);
        extra.extend(first.zip(later).map(|(first, later)| first / later));
    }
    Some(StageFigures {
        achieved: Spread::of(achieved)?.median,
        steady_us: Spread::of(steady)?,
        extra: Spread::of(extra)?,
    })
}

fn panels(all: &[Course], stages: &[Stage]) -> [Panel; 2] {
    let second = |window: usize| window as f64 * WINDOW.as_secs_f64();
    let offered =
        stages.iter().flat_map(|stage| [stage.from, stage.to].map(|at| (second(at), stage.rate / 1e3)));
    let tails: Vec<Line> = all.iter().map(|course| course.line(WINDOW, |window| window.p999_us)).collect();
    let rate = |window: &Window| window.completed as f64 / 1e3 / WINDOW.as_secs_f64();
    let mut rates: Vec<Line> = all.iter().map(|course| course.line(WINDOW, rate)).collect();
    rates.push(Line::new("offered", offered.collect()).dashed());
    let tails = Panel {
        log_y: true,
        y_range: Some(decades(&tails)),
        ..Panel::new("Tail latency", "time (s)", "p99.9 of 10 ms (us)", tails)
    };
    [tails, Panel::new("Throughput", "time (s)", "thousand requests/s", rates)]
}

fn data(all: &[Course]) -> Table {
    let mut table = Table::new("system | round | at_ms | completed | p999_us");
    for course in all {
        for (round, series) in course.rounds.iter().enumerate() {
            for (number, window) in series.iter().enumerate() {
                let at_ms = number as u128 * WINDOW.as_millis();
                let us = Some(window.p999_us).filter(|us| us.is_finite());
                table.row([
                    course.name.to_owned(),
                    round.to_string(),
                    at_ms.to_string(),
                    window.completed.to_string(),
                    us.map_or_else(String::new, |us| format!("{us:.3}")),
                ]);
            }
        }
    }
    table
}

fn summary(all: &[Course], stages: &[Stage]) -> Table {
    let mut table = Table::new(
        "system | offered/s | achieved/s | typical window's p99.9 us | step's worst / later worst",
    );
    for course in all {
        for &stage in stages {
            let Some(figures) = figures_of(&course.rounds, stage) else { continue };
            table.row([
                course.name.to_owned(),
                format!("{:.0}", stage.rate),
                format!("{:.0}", figures.achieved),
                figures.steady_us.to_string(),
                figures.extra.to_string(),
            ]);
        }
    }
    table
}

fn claims(all: &[Course], stages: &[Stage]) -> Vec<Claim> {
    let of = |system: usize, stage: Stage| figures_of(&all[system].rounds, stage);
    let own = reacts(
        "Shenango incurs almost no additional tail latency after a sudden change of load",
        &all[0].rounds,
        stages,
    );
    const NOR: &str = "(this project's arbiter) nor where the service requests the cores of Arachne's estimate, which decides every 50 ms";
    let arbiter = reacts(NOR, &all[2].rounds, stages);
    let range = Claim::not_comparable(
        "even from 100,000 to 5 million requests a second",
        "the rates are those that the shared cores of this machine can serve".to_owned(),
    );
    const LINUX_SLOW: &str =
        "Linux (not drawn there) has milliseconds of tail latency even at the lowest load";
    let linux = match of(1, stages[0]) {
        None => Claim::not_comparable(LINUX_SLOW, "Linux answered nothing".to_owned()),
        Some(base) => {
            let own = of(0, stages[0]).map_or("-".to_owned(), |own| number(own.steady_us.median));
            let ours = format!(
                "at {:.0}/s a typical window's p99.9 is {} us on Linux, {own} us on Tailwater",
                stages[0].rate, base.steady_us
            );
            Claim::new(LINUX_SLOW, ours, base.steady_us.median >= MILLISECONDS_US)
        }
    };
    vec![own, range, linux, arbiter]
}

/// Judges whether a system's tail stays as it is after each step.
fn reacts(paper: &str, rounds: &[Vec<Window>], stages: &[Stage]) -> Claim {
    let steps: Vec<Stage> = stages.iter().skip(1).step_by(2).copied().collect();
    let mut holds = true;
    let mut texts = Vec::new();
    for &step in &steps {
        let Some(figures) = figures_of(rounds, step) else {
            holds = false;
            continue;
        };
        let keeps_up = figures.achieved >= KEEPS_UP * step.rate;
        holds &= keeps_up && figures.extra.median <= ALMOST_NO_MORE;
        texts.push(format!(
            "to {:.0}/s: {} times the later worst window{}",
            step.rate,
            figures.extra,
            if keeps_up { "" } else { ", and does not keep up" }
        ));
    }
    Claim::new(paper, format!("first 50 ms after a step, {}", texts.join("; ")), holds)
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::*;

    /// Returns a course of one round in which each window answers the offered load with a tail of
    /// `tail_us(stage, window in it)`.
    fn made_up(stages: &[Stage], tail_us: impl Fn(usize, usize) -> u64) -> Course {
        let windows = stages.iter().enumerate().flat_map(|(i, stage)| {
            let tail_us = &tail_us;
            (stage.from..stage.to).map(move |window| Window {
                completed: (stage.rate * WINDOW.as_secs_f64()) as u64,
                p999_us: tail_us(i, window - stage.from) as f64,
                ..Window::EMPTY
            })
        });
        Course { rounds: vec![windows.collect()], ..Course::default() }
    }

    fn verdicts(tailwater: impl Fn(usize, usize) -> u64, linux_us: u64) -> Vec<Verdict> {
        let stages = stages(1, Duration::from_secs(1));
        let own = made_up(&stages, &tailwater);
        let all = [own.clone(), made_up(&stages, |_, _| linux_us), own];
        claims(&all, &stages).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn a_backlog_after_a_step_is_seen() {
        assert_eq!(verdicts(|_, _| 20, 5_000), [Reached, NotComparable, Reached, Reached]);
        let backlog = |stage: usize, window: usize| if stage == 3 && window < 3 { 900 } else { 20 };
        assert_eq!(verdicts(backlog, 90), [NotReached, NotComparable, NotReached, NotReached]);
    }

    #[test]
    fn linux_without_answers_is_not_judged() {
        let stages = stages(1, Duration::from_secs(1));
        let all = [made_up(&stages, |_, _| 20), Course::default(), Course::default()];
        assert_eq!(claims(&all, &stages)[2].verdict, NotComparable);
    }

    #[test]
    fn the_plan_has_a_stage_for_each_step_and_one_around_each() {
        let length = Duration::from_millis(300);
        let stages = stages(1, length);
        assert_eq!((stages.len(), stages[6].to), (7, 210));
        let plan = plan(&stages, length, Duration::from_millis(150)).unwrap();
        assert_eq!(plan.schedule.length_ns(), 150_000_000 + 7 * 300_000_000);
        assert_eq!((plan.check(), plan.interval_length_ns()), (Ok(()), Some(10_000_000)));
        assert_eq!(super::stages(8, length)[5].rate, MAX_RATE);
    }
}
