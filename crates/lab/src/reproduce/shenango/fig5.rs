//! Figure 5: sudden changes of load; throughput and tail latency of 10 ms windows over time.

use std::time::Duration;

use tailwater_loadgen::Plan;
use tailwater_workload::{Intervals, LoadSchedule, Rate};

use super::super::arbiter::ARBITER;
use super::super::figure::{
    Claim, Context, FLOWS, Figure, Line, Outcome, Pace, Panel, Rig, Spread, Table, cell, decades, draw,
    number,
};
use super::super::rounds::in_turn;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::{BatchRates, on_linux, on_tailwater};

/// The service time of Shenango section 7.2.
const SERVICE: &str = "const:1us";
const WINDOW_NS: u64 = 10_000_000;
/// Requests per second and shared core, as far as one core goes; the paper has 100,000 to 5 million
/// over 14 hyperthreads.
const BASE: f64 = 20_000.0;
const STEPS: [f64; 3] = [50_000.0, 100_000.0, 200_000.0];
/// Maximum requests per second of the generator on kernel sockets.
const MAX_RATE: f64 = 250_000.0;
const SYSTEMS: [&str; 3] = ["Tailwater", "Linux", ARBITER];
const ROUNDS: usize = 5;

/// Windows after a step that count as the transition: 50 ms.
const TRANSITION: usize = 5;
/// "Almost no additional tail latency": the transition's worst window is at most this many times
/// the worst window of an equally long later interval at the same rate.
const ALMOST_NO_MORE: f64 = 1.5;
/// A system that answers less than this part of the offered load does not keep up.
const KEEPS_UP: f64 = 0.98;
const MILLISECONDS_US: f64 = 1_000.0;

/// The figures of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Window {
    completed: u64,
    /// `None` if no request was answered.
    p999_us: Option<f64>,
}

/// One system's windows in one round.
type Series = Vec<Window>;

/// All rounds of all systems.
#[derive(Debug, Default)]
struct Rounds {
    series: [Vec<Series>; SYSTEMS.len()],
    batch: [Vec<f64>; SYSTEMS.len()],
}

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

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "shenango-fig5",
    title: "Tail latency and throughput while the load changes suddenly",
    paper: "Shenango (NSDI'19), figure 5",
    plan: include_str!("../../../experiments/shenango-fig5.md"),
    run,
    ..Figure::MEASURED
};

fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let quick = context.options.quick;
    let (length, warm_up) =
        (Duration::from_millis(if quick { 300 } else { 1_000 }), Duration::from_millis(150));
    let stages = stages(rig.testbed.cores.managed.len(), length);
    let plan = plan(&stages, length, warm_up)?;
    let rounds = measure(figure, context, rig, (&plan, &stages), context.rounds(ROUNDS))?;
    let pace = Pace { rounds: rounds.series[0].len(), warm_up, counted: length * stages.len() as u32 };
    let mut notes = rig.notes(&pace, quick);
    notes.extend(rig.linux_notes());
    notes.push(format!(
        "Rates are scaled to {} shared core(s), and UDP takes the place of TCP. A window of 10 ms has {:.0} requests at the lowest \
         rate, so its p99.9 is its slowest request, and a single stall of the machine shows.",
        rig.testbed.cores.managed.len(),
        stages[0].rate * WINDOW_NS as f64 / 1e9
    ));
    for (name, shares) in SYSTEMS.iter().zip(&rounds.batch) {
        notes.push(format!(
            "{name}: the batch job ran at {} of its full speed.",
            cell(Spread::of(shares.iter().copied()))
        ));
    }
    Ok(Outcome {
        svg: draw(figure.title(), &panels(&rounds, &stages)),
        data: data(&rounds),
        summary: summary(&rounds, &stages),
        claims: claims(&rounds, &stages),
        notes,
    })
}

/// Returns the stages: the base rate before, between and after the steps.
fn stages(cores: usize, length: Duration) -> Vec<Stage> {
    let scaled = |rate: f64| (rate * cores as f64).min(MAX_RATE);
    let mut rates = vec![scaled(BASE)];
    rates.extend(STEPS.iter().flat_map(|&step| [scaled(step), scaled(BASE)]));
    let windows = (length.as_nanos() / u128::from(WINDOW_NS)) as usize;
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
        interval_ns: WINDOW_NS,
        ..Plan::new(LoadSchedule::new(segments)?, SERVICE.parse()?)
    })
}

fn measure(
    figure: &Figure,
    context: &Context,
    rig: &Rig,
    (plan, stages): (&Plan, &[Stage]),
    rounds: usize,
) -> anyhow::Result<Rounds> {
    let mut all = Rounds::default();
    in_turn(figure, context, (SYSTEMS.len(), rounds), |system, round| {
        let seed = context.options.seed.wrapping_add(round as u64);
        let measured = if SYSTEMS[system] != "Linux" {
            let mut handoffs = HandoffRecord::default();
            let estimates = SYSTEMS[system] == ARBITER;
            let setting = on_tailwater::Setting { estimates, ..Default::default() };
            on_tailwater::point(&rig.testbed, rig.speed, plan, seed, setting, &mut handoffs)?
        } else {
            let setting = on_linux::Setting::threads(rig.wait.mode());
            on_linux::point(&rig.testbed, rig.speed, plan, seed, setting)?
        };
        all.batch[system].extend(measured.batch.map(BatchRates::share));
        let windows = stages.last().map_or(0, |stage| stage.to);
        all.series[system].push(series(measured.measurement.summary.intervals(), windows));
        Ok(())
    })?;
    Ok(all)
}

/// Returns the first `windows` windows, including those without an answer.
fn series(intervals: &Intervals, windows: usize) -> Series {
    let mut series = vec![Window::default(); windows];
    for interval in &intervals.list {
        if let Some(window) = usize::try_from(interval.index).ok().and_then(|index| series.get_mut(index)) {
            window.completed = interval.counts.completed;
            window.p999_us = interval.latency_ns(0.999).map(|ns| ns as f64 / 1e3);
        }
    }
    series
}

/// Returns the worst tail of an interval; `None` if no request was answered in it.
fn worst_us(windows: &[Window]) -> Option<f64> {
    windows.iter().filter_map(|window| window.p999_us).reduce(f64::max)
}

/// Returns the figures of a stage; `None` if no round has an answer in it.
fn figures_of(rounds: &[Series], stage: Stage) -> Option<StageFigures> {
    let half = stage.from + (stage.to - stage.from) / 2;
    let in_stage = |series: &Series, from: usize| -> Series {
        series.get(from.min(series.len())..stage.to.min(series.len())).unwrap_or_default().to_vec()
    };
    let median = |values: Vec<f64>| Spread::of(values).map(|spread| spread.median);
    let (mut achieved, mut steady, mut extra) = (Vec::new(), Vec::new(), Vec::new());
    for series in rounds {
        let (whole, late) = (in_stage(series, stage.from), in_stage(series, half));
        let completed: u64 = late.iter().map(|window| window.completed).sum();
        achieved.push(completed as f64 * 1e9 / (late.len().max(1) as u64 * WINDOW_NS) as f64);
        steady.extend(median(late.iter().filter_map(|window| window.p999_us).collect()));
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

fn panels(rounds: &Rounds, stages: &[Stage]) -> [Panel; 2] {
    let count = stages.last().map_or(0, |stage| stage.to);
    let second = |window: usize| window as f64 * WINDOW_NS as f64 / 1e9;
    let line = |system: usize, value: &dyn Fn(&Window) -> Option<f64>| {
        let median = |window: usize| {
            let values = rounds.series[system].iter().filter_map(|series| value(series.get(window)?));
            Some((second(window), Spread::of(values)?.median))
        };
        Line::new(SYSTEMS[system], (0..count).filter_map(median).collect())
    };
    let offered =
        stages.iter().flat_map(|stage| [stage.from, stage.to].map(|at| (second(at), stage.rate / 1e3)));
    let all = std::array::from_fn::<_, { SYSTEMS.len() }, _>(|system| system);
    let tails: Vec<Line> = all.map(|system| line(system, &|window| window.p999_us)).to_vec();
    let rate = |window: &Window| Some(window.completed as f64 * 1e6 / WINDOW_NS as f64);
    let mut rates: Vec<Line> = all.map(|system| line(system, &rate)).to_vec();
    rates.push(Line::new("offered", offered.collect()).dashed());
    let panel = |title: &str, y_label: &str| Panel {
        title: title.to_owned(),
        x_label: "time (s)".to_owned(),
        y_label: y_label.to_owned(),
        ..Panel::default()
    };
    [
        Panel {
            log_y: true,
            y_range: Some(decades(&tails)),
            lines: tails,
            ..panel("Tail latency", "p99.9 of 10 ms (us)")
        },
        Panel { lines: rates, ..panel("Throughput", "thousand requests/s") },
    ]
}

fn data(rounds: &Rounds) -> Table {
    let mut table = Table::new("system | round | at_ms | completed | p999_us");
    for (name, all) in SYSTEMS.iter().zip(&rounds.series) {
        for (round, series) in all.iter().enumerate() {
            for (number, window) in series.iter().enumerate() {
                table.row([
                    (*name).to_owned(),
                    round.to_string(),
                    (number as u64 * WINDOW_NS / 1_000_000).to_string(),
                    window.completed.to_string(),
                    window.p999_us.map_or_else(String::new, |us| format!("{us:.3}")),
                ]);
            }
        }
    }
    table
}

fn summary(rounds: &Rounds, stages: &[Stage]) -> Table {
    let mut table = Table::new(
        "system | offered/s | achieved/s | typical window's p99.9 us | step's worst / later worst",
    );
    for (name, all) in SYSTEMS.iter().zip(&rounds.series) {
        for &stage in stages {
            let Some(figures) = figures_of(all, stage) else { continue };
            table.row([
                (*name).to_owned(),
                format!("{:.0}", stage.rate),
                format!("{:.0}", figures.achieved),
                figures.steady_us.to_string(),
                figures.extra.to_string(),
            ]);
        }
    }
    table
}

fn claims(rounds: &Rounds, stages: &[Stage]) -> Vec<Claim> {
    let of = |system: usize, stage: Stage| figures_of(&rounds.series[system], stage);
    let reacts = reacts(
        "Shenango incurs almost no additional tail latency after a sudden change of load",
        &rounds.series[0],
        stages,
    );
    let arbiter = reacts_arbiter(rounds, stages);
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
    vec![reacts, range, linux, arbiter]
}

fn reacts_arbiter(rounds: &Rounds, stages: &[Stage]) -> Claim {
    const PAPER: &str = "(this project's arbiter) nor where the service requests the cores of Arachne's estimate, which decides every 50 ms";
    reacts(PAPER, &rounds.series[2], stages)
}

/// Judges whether a system's tail stays as it is after each step.
fn reacts(paper: &str, rounds: &[Series], stages: &[Stage]) -> Claim {
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
    use super::super::super::claim::Verdict;
    use super::*;
    use tailwater_workload::LatencyRecorder;

    /// Returns a series of `stages` in which each window answers the offered load with a tail of
    /// `tail_us(stage, window in it)`.
    fn made_up(stages: &[Stage], tail_us: impl Fn(usize, usize) -> u64) -> Series {
        let windows = stages.iter().enumerate().flat_map(|(i, stage)| {
            let tail_us = &tail_us;
            (stage.from..stage.to).map(move |window| Window {
                completed: (stage.rate * WINDOW_NS as f64 / 1e9) as u64,
                p999_us: Some(tail_us(i, window - stage.from) as f64),
            })
        });
        windows.collect()
    }

    fn verdicts(tailwater: impl Fn(usize, usize) -> u64, linux_us: u64) -> Vec<Verdict> {
        let stages = stages(1, Duration::from_secs(1));
        let rounds = Rounds {
            series: [
                vec![made_up(&stages, &tailwater)],
                vec![made_up(&stages, |_, _| linux_us)],
                vec![made_up(&stages, &tailwater)],
            ],
            batch: Default::default(),
        };
        claims(&rounds, &stages).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn a_backlog_after_a_step_is_seen() {
        use Verdict::{NotComparable, NotReached, Reached};
        assert_eq!(verdicts(|_, _| 20, 5_000), [Reached, NotComparable, Reached, Reached]);
        let backlog = |stage: usize, window: usize| if stage == 3 && window < 3 { 900 } else { 20 };
        assert_eq!(verdicts(backlog, 90), [NotReached, NotComparable, NotReached, NotReached]);
    }

    #[test]
    fn linux_without_answers_is_not_judged() {
        let stages = stages(1, Duration::from_secs(1));
        let own = vec![made_up(&stages, |_, _| 20)];
        let rounds = Rounds { series: [own, Vec::new(), Vec::new()], batch: Default::default() };
        assert_eq!(claims(&rounds, &stages)[2].verdict, Verdict::NotComparable);
    }

    #[test]
    fn the_plan_has_a_stage_for_each_step_and_one_around_each() {
        let length = Duration::from_millis(300);
        let stages = stages(1, length);
        assert_eq!((stages.len(), stages[6].to), (7, 210));
        let plan = plan(&stages, length, Duration::from_millis(150)).unwrap();
        assert_eq!(plan.schedule.length_ns(), 150_000_000 + 7 * 300_000_000);
        assert_eq!((plan.check(), plan.interval_length_ns()), (Ok(()), Some(WINDOW_NS)));
        assert_eq!(super::stages(8, length)[5].rate, MAX_RATE);
    }

    #[test]
    fn a_window_without_requests_is_present_and_empty() {
        let mut recorder = LatencyRecorder::with_intervals(0, WINDOW_NS);
        for (now_ns, latency_ns) in [(5, 2_000), (2 * WINDOW_NS, 3_000), (3 * WINDOW_NS, 4_000)] {
            recorder.record(now_ns, latency_ns);
        }
        let seen = super::series(recorder.finish(4 * WINDOW_NS).intervals(), 3);
        let answered = |us| Window { completed: 1, p999_us: Some(us) };
        assert_eq!(seen, [answered(2.0), Window::default(), answered(3.0)]);
    }

    #[test]
    fn a_series_that_is_too_short_or_empty_has_no_figures() {
        let stage = Stage { rate: 1.0, from: 0, to: 10 };
        assert_eq!(figures_of(&[], stage), None);
        assert_eq!(figures_of(&[Vec::new()], stage), None);
    }
}
