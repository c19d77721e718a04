//! IX (TOCS'17): the static frontier (figures 8 and 9) and the control loop under three load
//! patterns (figures 10 to 12, table IV).
//!
//! The machine is the paper's: eight cores with two hyperthreads each, 1.2 to 2.4 GHz and Turbo
//! Boost; its power is [`Power::IX_2017`](crate::hardware::Power::IX_2017). Requests take 10 us
//! instead of under 2, so that there are fewer, and a pattern takes a tenth of the paper's four
//! minutes; the loop decides every 100 ms, as in the paper. Idle cores halt. The paper compares
//! with all cores polling at Turbo Boost, and so do these figures.

use tailwater_sched::alloc::Clock;
use tailwater_workload::LoadPattern;

use super::{Claim, Drawing, Options, Reproduction};
use crate::course::Window;
use crate::scenario::parallel;
use crate::study::Effort;
use crate::study::pareto::{Aim, Pareto, ParetoPoint, ParetoStudy, table};
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// The p99 of the paper's objective.
const LIMIT_NS: u64 = 500_000;
/// Length of a window of a pattern: the paper's second, by a tenth.
const WINDOW_NS: u64 = 100_000_000;

fn study(aim: Aim, options: &Options) -> ParetoStudy {
    let requests = if options.quick { 2_000 } else { 10_000 };
    let Options { seed, threads, .. } = *options;
    ParetoStudy { aim, effort: Effort { requests, replications: 1, seed, threads }, ..ParetoStudy::default() }
}

/// Returns the number of configurations of both frontiers.
pub(super) fn configurations(options: &Options) -> u64 {
    let count = |aim| study(aim, options).configurations().len() as u64;
    count(Aim::Energy) + count(Aim::Batch)
}

pub(super) fn energy_configurations(options: &Options) -> u64 {
    study(Aim::Energy, options).configurations().len() as u64
}

fn line(name: &str, points: &[ParetoPoint], of: fn(&ParetoPoint) -> f64) -> Line {
    Line::new(name, points.iter().map(|point| (point.rate / 1e3, of(point))).collect())
}

fn panel(title: &str, y_label: &str, high: f64, lines: Vec<Line>) -> Panel {
    Panel::new(title, "requests/s (thousands)", y_label, lines).within((0.0, high))
}

/// Returns the points of one configuration.
fn of_configuration(pareto: &Pareto, cores: u16, threads: u16, mhz: u32) -> Vec<ParetoPoint> {
    let is_it = |p: &&ParetoPoint| (p.cores, p.threads, p.mhz) == (cores, threads, Some(mhz));
    pareto.points.iter().filter(is_it).copied().collect()
}

pub(super) fn figure8(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let energy = study(Aim::Energy, options).run(tick)?;
    let batch = study(Aim::Batch, options).run(tick)?;
    let watts: fn(&ParetoPoint) -> f64 = |point| point.watts;
    let left: fn(&ParetoPoint) -> f64 = |point| point.batch * 100.0;
    let mut by_energy = vec![line("frontier", &energy.frontier, watts)];
    for (name, cores, threads, mhz) in [
        ("1 core, 1.2 GHz", 1, 1, 1_200),
        ("4 cores, 1.2 GHz", 4, 1, 1_200),
        ("8 cores, 1.2 GHz", 8, 1, 1_200),
        ("8 cores, 2 threads, 1.2 GHz", 8, 2, 1_200),
        ("8 cores, 2 threads, 1.8 GHz", 8, 2, 1_800),
        ("8 cores, 2 threads, 2.4 GHz", 8, 2, 2_400),
        ("8 cores, 2 threads, turbo", 8, 2, 2_800),
    ] {
        by_energy.push(line(name, &of_configuration(&energy, cores, threads, mhz), watts).dashed());
    }
    let mut by_batch = vec![line("frontier", &batch.frontier, left)];
    for cores in [2, 4, 6, 8] {
        let points = of_configuration(&batch, cores, 2, 2_400);
        by_batch.push(line(&format!("{cores} cores, 2 threads"), &points, left).dashed());
    }
    let title = "Static frontier for energy and for a batch job (IX, figure 8)";
    let panels = [
        panel("Energy", "watts", 100.0, by_energy),
        panel("Batch job", "speed of the batch job (%)", 100.0, by_batch),
    ];
    let mut data = Table::new("aim | requests/s | cores | threads | MHz | p99 us | watts | batch");
    for (aim, pareto) in [("energy", &energy), ("batch", &batch)] {
        for row in table(&pareto.frontier, "p99").rows() {
            data.row([aim.to_owned()].into_iter().chain(row.iter().cloned()));
        }
    }
    Ok(Reproduction {
        title: "IX figure 8: 8 cores, 16 hyperthreads, 14 clock rates".to_owned(),
        data,
        drawing: Drawing::new(title, &panels),
        claims: claims8(&energy, &batch),
    })
}

fn claims8(energy: &Pareto, batch: &Pareto) -> Vec<Claim> {
    let (low, high): (Vec<&ParetoPoint>, Vec<&ParetoPoint>) = energy
        .frontier
        .iter()
        .partition(|point| point.rate < 0.35 * energy.frontier.last().map_or(0.0, |p| p.rate));
    let slow = low.iter().filter(|point| point.mhz.is_some_and(|mhz| mhz <= 1_500)).count();
    let whole = high.iter().filter(|point| point.cores >= 7).count();
    let count = |points: &[ParetoPoint]| {
        let mut distinct: Vec<&ParetoPoint> = Vec::new();
        for point in points {
            if !distinct.iter().any(|other| other.is_like(point)) {
                distinct.push(point);
            }
        }
        distinct.len()
    };
    // The paper's frontier for the batch job ends where the nominal clock rate does.
    let nominal: Vec<&ParetoPoint> = batch.frontier.iter().filter(|point| !point.turbo).collect();
    let falls = nominal.is_sorted_by(|a, b| a.batch >= b.batch);
    let ends = nominal.first().zip(nominal.last());
    let (first, last) = ends.map_or((0.0, 0.0), |(first, last)| (first.batch, last.batch));
    vec![
        Claim::new(
            "configurations have very different dynamic ranges, and many of them form the frontier",
            format!(
                "{} configurations at {} loads form the frontier",
                count(&energy.frontier),
                energy.frontier.len()
            ),
            count(&energy.frontier) >= 10,
        ),
        Claim::new(
            "at the low end the frontier runs at the lowest clock rate, on a few or many cores",
            format!("{slow} of the {} lower loads at 1.5 GHz or less", low.len()),
            slow == low.len(),
        ),
        Claim::new(
            "at the high end it uses all eight cores, with rising clock rates up to turbo",
            format!("{whole} of the {} higher loads on seven or eight cores", high.len()),
            whole == high.len() && energy.frontier.last().is_some_and(|point| point.turbo),
        ),
        Claim::new(
            "what is left to the batch job decreases with the service's load",
            format!("from {:.0} to {:.0} % of its speed on the idle machine", first * 100.0, last * 100.0),
            falls,
        ),
    ]
}

pub(super) fn figure9(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let study = study(Aim::Energy, options);
    let pareto = study.run(tick)?;
    let whole: Vec<ParetoPoint> = pareto
        .points
        .iter()
        .filter(|p| (p.cores, p.threads) == (study.cores, study.threads))
        .copied()
        .collect();
    let clocks_only: Vec<ParetoPoint> = whole
        .chunk_by(|a, b| a.level == b.level)
        .filter_map(|at| at.iter().min_by(|a, b| a.watts.total_cmp(&b.watts)).copied())
        .collect();
    let watts: fn(&ParetoPoint) -> f64 = |point| point.watts;
    let polling: Vec<ParetoPoint> =
        pareto.frontier.iter().map(|point| ParetoPoint { watts: pareto.polling_w, ..*point }).collect();
    let lines = vec![
        line("frontier", &pareto.frontier, watts),
        line("clock rates only, idle cores halt", &clocks_only, watts),
        line("all cores poll at turbo", &polling, watts).dashed(),
    ];
    let excess = |share: f64| {
        let rate = share * pareto.frontier.last().map_or(0.0, |point| point.rate);
        let at = pareto.frontier.iter().zip(&clocks_only).find(|(point, _)| point.rate >= rate);
        at.map_or(f64::NAN, |(best, clocks)| clocks.watts / best.watts - 1.0)
    };
    let excesses = [0.1, 0.3].map(|share| excess(share) * 100.0);
    let mut data = Table::new("requests/s | frontier W | clock rates only W | polling W");
    for (best, clocks) in pareto.frontier.iter().zip(&clocks_only) {
        let cells = [best.rate, best.watts, clocks.watts, pareto.polling_w];
        data.row(cells.map(|value| format!("{value:.1}")));
    }
    Ok(Reproduction {
        title: "IX figure 9: clock rates alone against cores, hyperthreads and clock rates".to_owned(),
        data,
        drawing: Drawing::new(
            "Energy with clock rates only, and with cores and hyperthreads (IX, figure 9)",
            &[panel("", "watts", 100.0, lines)],
        ),
        claims: vec![Claim::new(
            "where idle cores halt (Linux), clock rates alone come very close to the frontier",
            format!(
                "at 10 and 30 % of the highest load {:.0} and {:.0} % more power than the frontier",
                excesses[0], excesses[1]
            ),
            excesses.iter().all(|excess| *excess <= 10.0),
        )],
    })
}

/// A load pattern of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Slope,
    Step,
    Sine,
}

impl Pattern {
    const ALL: [Self; 3] = [Self::Slope, Self::Step, Self::Sine];

    fn name(self) -> &'static str {
        match self {
            Self::Slope => "slope",
            Self::Step => "step",
            Self::Sine => "sine+noise",
        }
    }

    /// Returns the pattern in notation: nearly idle, up to `most` requests per second, and back.
    ///
    /// The paper's noise is uniform within 250 of 6,200 thousand requests per second, which has a
    /// standard deviation of 2.3 %; it changes every five seconds of four minutes.
    fn notation(self, most: f64, length_s: f64) -> String {
        let (half, k) = (length_s / 2.0, most / 1e3);
        let ms = |seconds: f64| format!("{:.0}ms", seconds * 1e3);
        let low = k / 100.0;
        match self {
            Self::Slope => format!("{0}@{low:.1}k..{k:.1}k,{0}@{k:.1}k..{low:.1}k", ms(half)),
            Self::Step => {
                let step = (k - low) / 12.0;
                let high = low + 12.0 * step;
                format!("{0}@{low:.3}k..{high:.3}k/{step:.3}k,{0}@{high:.3}k..{low:.3}k/{step:.3}k", ms(half))
            }
            // A quarter of the period as a slope, so that it begins nearly idle.
            Self::Sine => {
                let mean = k / 2.0;
                let noise = format!("+noise={:.1}k/{}", k * 0.023, ms(length_s / 48.0));
                format!(
                    "{}@{low:.1}k..{mean:.1}k{noise},{}@{mean:.1}k~{:.1}k/{}{noise}",
                    ms(length_s / 4.0),
                    ms(length_s * 0.75),
                    mean * 0.95,
                    ms(length_s)
                )
            }
        }
    }
}

/// One aim under one pattern.
struct Run {
    aim: Aim,
    pattern: Pattern,
    windows: Vec<Window>,
    /// By window: what the frontier has at that load.
    bound: Vec<f64>,
    polling_w: f64,
    /// True if the backlog grew without bound, which ended the run.
    saturated: bool,
}

impl Run {
    fn value(&self, window: &Window) -> f64 {
        match self.aim {
            Aim::Energy => window.watts,
            Aim::Batch => window.batch_cores / f64::from(ParetoStudy::default().cores) * 100.0,
        }
    }

    /// Returns the means over the pattern: measured, and by the frontier.
    fn means(&self) -> (f64, f64) {
        let count = self.windows.len().max(1) as f64;
        let measured: f64 = self.windows.iter().map(|window| self.value(window)).sum();
        (measured / count, self.bound.iter().sum::<f64>() / count)
    }

    fn late(&self) -> usize {
        self.windows.iter().filter(|window| window.p99_ns > LIMIT_NS).count()
    }

    /// Returns the part of the bound on the gain that was reached.
    fn reached(&self) -> f64 {
        let (measured, bound) = self.means();
        match self.aim {
            Aim::Energy => (self.polling_w - measured) / (self.polling_w - bound),
            Aim::Batch => measured / bound,
        }
    }
}

/// Returns what the frontier has at a load, on straight lines between its points.
fn bound_at(study: &ParetoStudy, pareto: &Pareto, rate: f64) -> f64 {
    let of = |point: &ParetoPoint| match study.aim {
        Aim::Energy => point.watts,
        Aim::Batch => point.batch * 100.0,
    };
    let after = pareto.frontier.iter().position(|point| point.rate >= rate);
    match after {
        None => pareto.frontier.last().map_or(0.0, of),
        Some(0) => of(&pareto.frontier[0]),
        Some(at) => {
            let (low, high) = (&pareto.frontier[at - 1], &pareto.frontier[at]);
            let share = (rate - low.rate) / (high.rate - low.rate);
            of(low) + share * (of(high) - of(low))
        }
    }
}

/// Returns how often `tick` is called by [`patterns`].
pub(super) fn ticks(options: &Options, patterns: u64) -> u64 {
    configurations(options) + 2 * patterns
}

/// Runs both aims under each pattern.
fn runs(options: &Options, patterns: &[Pattern], tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<Run>> {
    let mut frontiers = Vec::new();
    for aim in [Aim::Energy, Aim::Batch] {
        let study = study(aim, options);
        frontiers.push((study.run(tick)?, study));
    }
    let length_s = if options.quick { 6.0 } else { 24.0 };
    // Beyond this load no configuration meets the objective.
    let most = frontiers.iter().filter_map(|(pareto, _)| Some(pareto.frontier.last()?.rate));
    let most = 0.95 * most.fold(f64::INFINITY, f64::min);
    let jobs: Vec<_> = patterns.iter().flat_map(|&pattern| [0, 1].map(|aim| (pattern, aim))).collect();
    let all = parallel(jobs.len(), study(Aim::Energy, options).effort.threads(), tick, |job| {
        let (pattern, aim) = jobs[job];
        let (pareto, study) = &frontiers[aim];
        let load: LoadPattern = pattern.notation(most, length_s).parse()?;
        let schedule = load.schedule(options.seed);
        let rates = schedule.clone();
        let outcome = study.simulate(Vec::new(), schedule, 0, Some(WINDOW_NS))?;
        let saturated = outcome.services[0].measured.saturated;
        let windows = outcome.used.course;
        let middle = |window: &Window| (window.end_s * 1e9) as u64 - WINDOW_NS / 2;
        let bound = windows
            .iter()
            .map(|window| bound_at(study, pareto, rates.rate_at(middle(window)).per_second()))
            .collect();
        Ok(Run { aim: study.aim, pattern, windows, bound, polling_w: pareto.polling_w, saturated })
    });
    all.into_iter().collect()
}

/// Figures 10 to 12: one pattern over time.
pub(super) fn over_time(
    options: &Options,
    pattern: Pattern,
    number: u32,
    tick: &(dyn Fn() + Sync),
) -> anyhow::Result<Reproduction> {
    let runs = runs(options, &[pattern], tick)?;
    let mut panels = Vec::new();
    let mut data = Table::new("aim | s | requests/s | p99 us | step | cores | MHz | watts | batch % | bound");
    for run in &runs {
        panels.extend(course_panels(run));
        for (window, bound) in run.windows.iter().zip(&run.bound) {
            let mhz = match window.clock {
                Some(Clock::Mhz(mhz)) => mhz.to_string(),
                Some(Clock::Turbo) => "turbo".to_owned(),
                None => "-".to_owned(),
            };
            data.row([
                run.aim.policy().to_owned(),
                format!("{:.1}", window.end_s),
                format!("{:.0}", window.rate),
                format!("{:.1}", window.p99_ns as f64 / 1e3),
                window.step.to_string(),
                window.cores.to_string(),
                mhz,
                format!("{:.1}", window.watts),
                format!("{:.1}", window.batch_cores / 8.0 * 100.0),
                format!("{bound:.1}"),
            ]);
        }
    }
    Ok(Reproduction {
        title: format!("IX figure {number}: the control loop under the {} pattern", pattern.name()),
        data,
        drawing: Drawing::new(
            &format!("The control loop under the {} pattern (IX, figure {number})", pattern.name()),
            &panels,
        ),
        claims: runs.iter().flat_map(claims_of).collect(),
    })
}

fn course_panels(run: &Run) -> Vec<Panel> {
    let over = |name: &str, of: &dyn Fn(&Window) -> f64| {
        Line::new(name, run.windows.iter().map(|window| (window.end_s, of(window))).collect())
    };
    let (what, y_label, high) = match run.aim {
        Aim::Energy => ("ix-energy", "watts", 100.0),
        Aim::Batch => ("ix-consolidation", "batch job (%)", 100.0),
    };
    let bound = run.windows.iter().zip(&run.bound).map(|(window, bound)| (window.end_s, *bound)).collect();
    let panel = |title: String, y_label: &str, y_range, log_y, lines| Panel {
        y_range,
        log_y,
        ..Panel::new(&title, "s", y_label, lines)
    };
    vec![
        panel(
            format!("{what}: load"),
            "requests/s (thousands)",
            None,
            false,
            vec![over("completed", &|window| window.rate / 1e3)],
        ),
        panel(
            format!("{what}: latency"),
            "p99 (us)",
            Some((10.0, 100_000.0)),
            true,
            vec![
                over("p99", &|window| (window.p99_ns as f64 / 1e3).max(10.0)),
                over("limit", &|_| LIMIT_NS as f64 / 1e3).dashed(),
            ],
        ),
        panel(
            format!("{what}: effect"),
            y_label,
            Some((0.0, high)),
            false,
            vec![over("control loop", &|window| run.value(window)), Line::new("frontier", bound).dashed()],
        ),
    ]
}

fn claims_of(run: &Run) -> Vec<Claim> {
    let (measured, bound) = run.means();
    let reached = run.reached() * 100.0;
    let pattern = run.pattern.name();
    let (late, windows) = (run.late(), run.windows.len());
    let first = match run.aim {
        Aim::Energy => {
            let (paper, part) = match run.pattern {
                Pattern::Slope => ("43 W of 92 W, the frontier 38 W: 92", 92.0),
                Pattern::Step => ("46 W of 93 W, the frontier 38 W: 86", 86.0),
                Pattern::Sine => ("51 W of 94 W, the frontier 43 W: 85", 85.0),
            };
            Claim::new(
                &format!("energy, {pattern}: {paper} % of the possible saving"),
                format!(
                    "{measured:.0} W of {:.0} W, the frontier {bound:.0} W: {reached:.0} % of the possible saving",
                    run.polling_w
                ),
                reached >= part && !run.saturated,
            )
        }
        Aim::Batch => {
            let (paper, part) = match run.pattern {
                Pattern::Slope => ("47 % of its speed alone, the frontier 53 %: 89", 89.0),
                Pattern::Step => ("43 % of its speed alone, the frontier 51 %: 84", 84.0),
                Pattern::Sine => ("35 % of its speed alone, the frontier 44 %: 80", 80.0),
            };
            Claim::new(
                &format!("batch job, {pattern}: {paper} % of the bound"),
                format!(
                    "{measured:.0} % of its speed alone, the frontier {bound:.0} %: {reached:.0} % of the bound"
                ),
                reached >= part && !run.saturated,
            )
        }
    };
    let second = Claim::new(
        &format!("{}, {pattern}: the p99 stays below 500 us with few exceptions", run.aim.policy()),
        match run.saturated {
            true => format!("ended after {windows} windows of 0.1 s: the backlog grew without bound"),
            false => format!("{late} of {windows} windows of 0.1 s above it"),
        },
        late * 20 <= windows && !run.saturated,
    );
    vec![first, second]
}

/// Table IV: the means of all patterns.
pub(super) fn table4(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let runs = runs(options, &Pattern::ALL, tick)?;
    let mut data =
        Table::new("policy | pattern | most W | measured | frontier | reached | late windows | windows");
    for run in &runs {
        let (measured, bound) = run.means();
        data.row([
            run.aim.policy().to_owned(),
            run.pattern.name().to_owned(),
            format!("{:.0}", run.polling_w),
            format!("{measured:.1}"),
            format!("{bound:.1}"),
            format!("{:.2}", run.reached()),
            run.late().to_string(),
            run.windows.len().to_string(),
        ]);
    }
    let panels: Vec<Panel> = runs.iter().filter_map(|run| course_panels(run).pop()).collect();
    Ok(Reproduction {
        title: "IX table IV: energy and batch work gained by the control loop".to_owned(),
        data,
        drawing: Drawing::new("What the control loop gains under three patterns (IX, table IV)", &panels),
        claims: runs.iter().flat_map(claims_of).collect(),
    })
}

#[cfg(test)]
mod tests {
    use tailwater_workload::Rate;

    use super::*;

    #[test]
    fn patterns_have_their_length_and_stay_within_the_load() {
        for pattern in Pattern::ALL {
            let load: LoadPattern = pattern.notation(1_000_000.0, 24.0).parse().unwrap();
            let schedule = load.schedule(1);
            let lengths = schedule.length_ns().abs_diff(24_000_000_000);
            assert!(lengths <= 1_000_000, "{pattern:?} is off by {lengths} ns");
            let peak = schedule.peak_rate().per_second();
            assert!((950_000.0..1_100_000.0).contains(&peak), "{pattern:?}: {peak}");
            let (first, last) = (schedule.rate_at(0), schedule.rate_at(schedule.length_ns() - 1_000_000));
            let ends = [first, last].map(Rate::per_second);
            assert!(ends.iter().all(|rate| *rate < 100_000.0), "{pattern:?}: {ends:?}");
        }
    }

    #[test]
    fn the_loop_follows_a_slope_up_and_down() {
        let study = ParetoStudy {
            cores: 2,
            mhz: vec![1_200, 2_400],
            service: "exp:50us".to_owned(),
            ..ParetoStudy::default()
        };
        let load: LoadPattern = "1s@200..40k,1s@40k..200".parse().unwrap();
        let outcome = study.simulate(Vec::new(), load.schedule(1), 0, Some(WINDOW_NS)).unwrap();
        let windows = outcome.used.course;
        assert_eq!(windows.len(), 20);
        let most = windows.iter().map(|window| window.step).max().unwrap();
        let (first, last) = (&windows[0], windows.last().unwrap());
        assert!(most >= 3 && last.step < most, "{windows:?}");
        assert!(first.watts < 0.7 * windows[10].watts && last.watts < windows[10].watts, "{windows:?}");
        let spent: f64 = windows.iter().map(|window| window.watts * 0.1).sum();
        assert!((spent - outcome.used.joules).abs() < 0.01 * spent, "{spent} J of {}", outcome.used.joules);
    }
}
