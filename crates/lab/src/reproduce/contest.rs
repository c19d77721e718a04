//! Measures several systems under several loads, beside a batch job, in interleaved rounds: the
//! common part of figures of latency over load.
//!
//! In each round every load is offered to all systems in turn ([`in_turn`]). Every point is a newly
//! started system.

use std::sync::Arc;

use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_workload::{Figures, Rate, ServiceTime};

use super::figure::{Claim, Context, Figure, Line, Outcome, Pace, Panel, Spread, Table, cell, draw, number};
use super::ratio::Between;
use super::rounds::in_turn;
use tailwater_testbed::handoffs::{HandoffFigures, HandoffRecord};
use tailwater_testbed::point::point;
use tailwater_testbed::program::Program;
use tailwater_testbed::{
    BatchRates, Measured, Testbed, is_saturated, latency_or_timeout, on_linux, on_tailwater,
    standing_queue_us,
};

/// A system in a setting.
#[derive(Debug, Clone)]
pub enum System {
    /// The spin server on Tailwater.
    Tailwater(on_tailwater::Setting),
    /// The spin server on Linux.
    Linux(on_linux::Setting),
    /// Another program, on its host.
    Program(Program),
    /// A program on Tailwater whose cores are its own: they are not lent to others when it is idle.
    Dedicated(Program),
    /// One of these beside a program of the system, with its arguments, as the batch job.
    Beside(Box<Self>, Vec<String>),
}

/// The default unit of loads, on axes and in tables.
pub const PERCENT: &str = "% of the shared cores";

/// One point of the figure.
#[derive(Debug, Clone)]
pub struct Case {
    /// The title of its panel.
    pub panel: String,
    /// The system's name in the legend.
    pub curve: String,
    /// The load in the contest's unit.
    pub load: f64,
    pub plan: Plan,
    pub system: System,
}

/// One point in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub figures: Figures,
    /// The time that the server spent on work over the time asked for, at the median.
    pub work: Option<f64>,
    pub batch: Option<BatchRates>,
    /// 99th percentiles of the protocol's first class and of the others, in microseconds, if the
    /// plan keeps the first one apart.
    pub by_class_us: Option<[f64; 2]>,
}

/// A case and its rounds, at least one.
#[derive(Debug, Clone)]
pub struct Point {
    pub case: Case,
    pub samples: Vec<Sample>,
}

/// All points of a contest.
#[derive(Debug)]
pub struct Contest {
    pub points: Vec<Point>,
    /// The unit of loads, [`PERCENT`] by default.
    pub unit: &'static str,
    /// The figure's title.
    title: &'static str,
    /// The conditions of the run.
    pub notes: Vec<String>,
}

/// Returns a case for each system, with its name: all in `panel`, at `load` under `plan`.
pub fn cases(panel: &str, systems: &[(&str, System)], load: f64, plan: &Plan) -> impl Iterator<Item = Case> {
    systems.iter().map(move |(curve, system)| Case {
        panel: panel.to_owned(),
        curve: (*curve).to_owned(),
        load,
        plan: plan.clone(),
        system: system.clone(),
    })
}

/// Returns the cases of `programs` in `panel`, one curve each, at all `loads` in thousand requests
/// per second.
pub fn program_cases(
    panel: &str,
    programs: &[(&str, Program)],
    pace: &Pace,
    loads: &[f64],
) -> anyhow::Result<Vec<Case>> {
    let systems: Vec<_> =
        programs.iter().map(|(curve, program)| (*curve, System::Program(program.clone()))).collect();
    let mut all = Vec::new();
    for &load in loads {
        let plan = pace.plan_at(Rate::new(load * 1e3)?, &ServiceTime::constant(0));
        all.extend(cases(panel, &systems, load, &plan));
    }
    Ok(all)
}

/// Runs `cases`, in which the systems of a load are adjacent, in interleaved rounds.
pub fn run(figure: &Figure, context: &Context, cases: Vec<Case>, pace: &Pace) -> anyhow::Result<Contest> {
    let rig = context.rig()?;
    let mut points: Vec<Point> =
        cases.into_iter().map(|case| Point { case, samples: Vec::with_capacity(pace.rounds) }).collect();
    let mut handoffs = HandoffRecord::default();
    in_turn(figure, context, (points.len(), pace.rounds), |index, round| {
        let Point { case, samples } = &mut points[index];
        let seed = context.options.seed.wrapping_add(round as u64);
        let beds = (&rig.testbed, rig.speed);
        let measured = measure(beds, &case.system, (&case.plan, seed), &mut handoffs)?;
        samples.push(Sample::new(&measured));
        Ok(())
    })?;
    let mut notes = rig.notes(pace, context.options.quick);
    let HandoffFigures { p50, p99, count, .. } = handoffs.figures();
    if count > 0 {
        notes.push(format!(
            "On Tailwater a core went from the running batch job to the service {count} times, in {} us at the median and {} us at \
             p99.",
            number(p50),
            number(p99)
        ));
    }
    Ok(Contest { points, unit: PERCENT, title: figure.title, notes })
}

/// Measures one point of a system, whose work is calibrated to `speed`.
pub fn measure(
    (testbed, speed): (&Testbed, u64),
    system: &System,
    (plan, seed): (&Plan, u64),
    handoffs: &mut HandoffRecord,
) -> anyhow::Result<Measured> {
    match system {
        System::Tailwater(setting) => on_tailwater::point(testbed, speed, plan, seed, *setting, handoffs),
        System::Linux(setting) => on_linux::point(testbed, speed, plan, seed, *setting),
        System::Program(program) => point(program, testbed, plan, seed, handoffs),
        System::Dedicated(program) => dedicated(testbed, program, plan, seed, handoffs),
        System::Beside(system, job) => {
            let testbed = testbed.with_job(job.clone());
            measure((&testbed, speed), system, (plan, seed), handoffs)
        }
    }
}

/// Measures one point of a program on Tailwater whose cores are its own.
pub fn dedicated(
    testbed: &Testbed,
    program: &Program,
    plan: &Plan,
    seed: u64,
    handoffs: &mut HandoffRecord,
) -> anyhow::Result<Measured> {
    let load = Load { protocol: Arc::clone(&program.protocol), seed, preload: false };
    let setting = on_tailwater::Setting { batch: false, idle_timeout_us: 0, ..Default::default() };
    on_tailwater::measure(testbed, program, plan, &load, setting, handoffs)
}

impl System {
    /// Returns how long a request may wait for a core without a standing queue: congestion
    /// detection takes two allocator intervals.
    fn delay_us(&self) -> f64 {
        match self {
            Self::Tailwater(setting) => 2.0 * setting.interval_us as f64,
            Self::Linux(_) | Self::Program(_) | Self::Dedicated(_) => 0.0,
            Self::Beside(system, _) => system.delay_us(),
        }
    }
}

impl Sample {
    /// Returns the figures of a point.
    pub fn new(measured: &Measured) -> Self {
        let report = measured.measurement.report();
        let work = report.delivery.map(|delivery| delivery.median);
        let us = |ns: Option<u64>| latency_or_timeout(ns.map(|ns| ns as f64 / 1e3));
        let by_class_us = measured.measurement.by_class_ns(0.99).map(|classes| classes.map(us));
        Self { figures: report.figures, work, batch: measured.batch, by_class_us }
    }

    /// Returns whether the system of `case` did not keep up.
    pub fn saturated(&self, case: &Case) -> bool {
        let by_design_us = case.system.delay_us();
        is_saturated(&self.figures, standing_queue_us(&case.plan.service) + by_design_us)
    }
}

impl Point {
    /// Returns a figure over the rounds.
    pub fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }

    /// Mean latency over the rounds.
    pub fn mean_us(&self) -> Option<Spread> {
        self.spread(|sample| latency_or_timeout(sample.figures.mean_us))
    }

    /// Median latency over the rounds.
    pub fn p50_us(&self) -> Option<Spread> {
        self.spread(|sample| latency_or_timeout(sample.figures.p50_us))
    }

    /// 99th percentile of all requests over the rounds.
    pub fn p99_us(&self) -> Option<Spread> {
        self.spread(|sample| latency_or_timeout(sample.figures.p99_us))
    }

    /// 99th percentile of the protocol's first class over the rounds, if it is kept apart.
    pub fn first_class_us(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|sample| Some(sample.by_class_us?[0])))
    }

    /// 99th percentile of the other classes over the rounds, if the first one is kept apart.
    pub fn other_classes_us(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|sample| Some(sample.by_class_us?[1])))
    }

    /// Windowed 99.9th percentile over the rounds.
    pub fn tail_us(&self) -> Option<Spread> {
        self.spread(|sample| latency_or_timeout(sample.figures.win_p999_us))
    }

    /// Batch share over the rounds.
    pub fn share(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|sample| sample.batch).map(BatchRates::share))
    }

    /// Time that the server spent on work over the time asked for, over the rounds.
    pub fn work(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|sample| sample.work))
    }

    /// Returns whether it was saturated in most rounds.
    pub fn saturated(&self) -> bool {
        2 * self.samples.iter().filter(|sample| sample.saturated(&self.case)).count() > self.samples.len()
    }
}

impl Contest {
    /// Returns the same contest with loads in another unit.
    #[must_use]
    pub fn per(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// Returns the outcome of a figure that this contest is, with more notes.
    pub fn outcome(
        &self,
        panels: &[Panel],
        claims: Vec<Claim>,
        more: impl IntoIterator<Item = String>,
    ) -> Outcome {
        let notes = self.notes.iter().cloned().chain(more).collect();
        Outcome { svg: draw(self.title, panels), data: self.data(), summary: self.summary(), claims, notes }
    }

    /// Points of one curve, by load.
    pub fn curve<'a>(&'a self, panel: &str, curve: &str) -> Vec<&'a Point> {
        let own = |point: &&Point| point.case.panel == panel && point.case.curve == curve;
        let mut points: Vec<&Point> = self.points.iter().filter(own).collect();
        points.sort_by(|a, b| a.case.load.total_cmp(&b.case.load));
        points
    }

    /// Returns the point of a curve at a load.
    pub fn at(&self, panel: &str, curve: &str, load: f64) -> Option<&Point> {
        self.curve(panel, curve).into_iter().find(|point| point.case.load == load)
    }

    /// Returns the smallest ratio of work done to work asked for among the systems at a load, which
    /// bounds what an ideal system could do there; 1 if none states it.
    pub fn fastest_work(&self, panel: &str, load: f64) -> f64 {
        let here = |point: &&Point| point.case.panel == panel && point.case.load == load;
        let ratios = self.points.iter().filter(here).filter_map(Point::work).map(|spread| spread.median);
        ratios.reduce(f64::min).unwrap_or(1.0)
    }

    /// Returns the highest load that did not saturate the system, whether or not lower loads did;
    /// `None` if all did.
    pub fn capacity(&self, panel: &str, curve: &str) -> Option<f64> {
        self.highest(panel, curve, |_| true).map(|point| point.case.load)
    }

    /// Returns the point of the highest load that did not saturate the system and for which
    /// `holds`, whether or not it does at lower loads.
    pub fn highest(&self, panel: &str, curve: &str, holds: impl Fn(&Point) -> bool) -> Option<&Point> {
        self.curve(panel, curve).into_iter().rfind(|point| !point.saturated() && holds(point))
    }

    /// Returns the interval in which a curve's [highest](Self::highest) load lies, up to the next
    /// one that was tried.
    pub fn between(&self, panel: &str, curve: &str, holds: impl Fn(&Point) -> bool) -> Between {
        let at_least = self.highest(panel, curve, holds).map_or(0.0, |point| point.case.load);
        let loads = self.curve(panel, curve).into_iter().map(|point| point.case.load);
        let next = loads.into_iter().find(|&load| load > at_least);
        Between { at_least, at_most: next.unwrap_or(f64::INFINITY) }
    }

    /// Titles of panels or names of curves, each once, in order of their first point.
    pub fn names(&self, of: impl Fn(&Case) -> &str) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for point in &self.points {
            let name = of(&point.case);
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// Returns a table with a row for each point and round.
    pub fn data(&self) -> Table {
        let mut table = Table::new(
            "panel | system | load | round | offered_rps | achieved_rps | mean_us | p50_us | \
             p99_us | p999_us | win_p999_us | class0_p99_us | class1_p99_us | batch_share | \
             batch_alone | work | completed | lost | late | windows | windows_cut | saturated",
        );
        for Point { case, samples } in &self.points {
            for (round, sample) in samples.iter().enumerate() {
                table.row(row(case, round, sample));
            }
        }
        table
    }

    /// Returns a table with a row for each point: medians with their extremes. *Work* is the time
    /// that the server spent on it over the time asked for.
    pub fn summary(&self) -> Table {
        let mut table = Table::new(&format!(
            "service | system | load ({}) | achieved/s | p50 us | p99 us | windowed p99.9 us | batch share | work | ",
            self.unit
        ));
        for point in &self.points {
            let Case { panel, curve, load, .. } = &point.case;
            let achieved =
                point.spread(|sample| sample.figures.achieved_rps).map(|s| format!("{:.0}", s.median));
            let note = if point.saturated() { "saturated" } else { "" };
            table.row([
                panel.clone(),
                curve.clone(),
                load.to_string(),
                achieved.unwrap_or_default(),
                cell(point.p50_us()),
                cell(point.p99_us()),
                cell(point.tail_us()),
                cell(point.share()),
                cell(point.work()),
                note.to_owned(),
            ]);
        }
        table
    }

    /// Returns a logarithmic panel of tail latency over load. A curve ends where its system
    /// saturates. `more` are reference curves.
    pub fn latency_panel(&self, panel: &str, more: Vec<Line>) -> Panel {
        self.panel_of(panel, "windowed p99.9 (us)", Point::tail_us, more)
    }

    /// Returns a logarithmic panel of some latency over load. A curve ends where its system
    /// saturates. `more` are reference curves.
    pub fn panel_of(
        &self,
        panel: &str,
        label: &str,
        value: impl Fn(&Point) -> Option<Spread>,
        more: Vec<Line>,
    ) -> Panel {
        let median = |point: &Point| Some(value(point)?.median);
        self.panel(panel, label, |point| !point.saturated(), median, more).decades()
    }

    /// Returns a panel of the batch share over load. `more` are reference curves.
    pub fn batch_panel(&self, panel: &str, more: Vec<Line>) -> Panel {
        let share = |point: &Point| Some(point.share()?.median.min(1.0));
        self.panel(panel, "batch job (alone = 1)", |_| true, share, more).within((0.0, 1.0))
    }

    /// Returns a panel of some value over load: each curve up to its last point to draw, and
    /// reference curves.
    fn panel(
        &self,
        panel: &str,
        y_label: &str,
        drawn: impl Fn(&Point) -> bool,
        value: impl Fn(&Point) -> Option<f64>,
        more: Vec<Line>,
    ) -> Panel {
        let line = |curve: &String| {
            let points = self.curve(panel, curve).into_iter().take_while(|point| drawn(point));
            Line::new(curve.clone(), points.filter_map(|p| Some((p.case.load, value(p)?))).collect())
        };
        let lines = self.names(|case| &case.curve).iter().map(line).chain(more).collect();
        let x_label = format!("load ({})", self.unit);
        Panel::new(panel, &x_label, y_label, lines)
    }
}

fn row(case: &Case, round: usize, sample: &Sample) -> Vec<String> {
    let figures = &sample.figures;
    let us = |value: Option<f64>| value.map_or_else(String::new, |us| format!("{us:.3}"));
    let batch = |value: &dyn Fn(BatchRates) -> f64, digits: usize| {
        sample.batch.map_or_else(String::new, |rates| format!("{:.digits$}", value(rates)))
    };
    vec![
        case.panel.clone(),
        case.curve.clone(),
        case.load.to_string(),
        round.to_string(),
        format!("{:.0}", figures.offered_rps),
        format!("{:.0}", figures.achieved_rps),
        us(figures.mean_us),
        us(figures.p50_us),
        us(figures.p99_us),
        us(figures.p999_us),
        us(figures.win_p999_us),
        us(sample.by_class_us.map(|classes| classes[0])),
        us(sample.by_class_us.map(|classes| classes[1])),
        batch(&|rates| rates.share(), 4),
        batch(&|rates| rates.solo, 0),
        sample.work.map_or_else(String::new, |work| format!("{work:.3}")),
        figures.completed.to_string(),
        figures.lost.to_string(),
        figures.late.to_string(),
        figures.windows.to_string(),
        figures.windows_cut.to_string(),
        sample.saturated(case).to_string(),
    ]
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a point of `curve` at `load` with these windowed tails and this batch share; if
    /// `saturated`, with a hundredth more lost requests than a system that keeps up may lose.
    pub fn point(curve: &str, load: f64, tails_us: &[f64], share: f64, saturated: bool) -> Point {
        let plan = Plan::new("1s@1k".parse().unwrap(), "exp:10us".parse().unwrap());
        let setting = on_tailwater::Setting::default();
        let (panel, curve) = ("exp".to_owned(), curve.to_owned());
        let case = Case { panel, curve, load, plan, system: System::Tailwater(setting) };
        let sample = |&tail_us: &f64| Sample {
            figures: Figures {
                offered_rps: load * 1e3,
                achieved_rps: load * 1e3,
                mean_us: Some(tail_us / 8.0),
                p50_us: Some(tail_us / 10.0),
                p90_us: Some(tail_us / 5.0),
                p99_us: Some(tail_us / 2.0),
                p999_us: Some(tail_us),
                max_us: Some(tail_us),
                win_p999_us: Some(tail_us),
                windows: 10,
                windows_cut: 0,
                completed: 98,
                lost: if saturated { 2 } else { 0 },
                late: 0,
                duration_s: 1.0,
            },
            work: None,
            batch: Some(BatchRates { beside: share * 1e6, solo: 1e6, speed: None }),
            by_class_us: None,
        };
        Point { case, samples: tails_us.iter().map(sample).collect() }
    }

    impl Point {
        /// Returns the point as one of this panel.
        pub fn on(mut self, panel: &str) -> Self {
            panel.clone_into(&mut self.case.panel);
            self
        }
    }

    /// Returns a contest of these points.
    pub fn contest(points: Vec<Point>) -> Contest {
        Contest { points, unit: PERCENT, title: "", notes: Vec::new() }
    }

    #[test]
    fn a_standing_queue_saturates_and_a_long_interval_between_looks_is_none() {
        let mut slow = point("a", 50.0, &[15_000.0], 0.5, false);
        assert!(slow.saturated(), "a median of 1.5 ms, without loss");
        slow.case.system =
            System::Tailwater(on_tailwater::Setting { interval_us: 1_000, ..Default::default() });
        assert!(!slow.saturated());
    }

    #[test]
    fn curves_are_sorted_and_end_where_they_saturate() {
        let contest = contest(vec![
            point("a", 90.0, &[900.0], 0.1, true),
            point("a", 10.0, &[30.0, 10.0, 20.0], 0.9, false),
            point("b", 10.0, &[50.0], 0.8, true),
            point("b", 20.0, &[50.0], 0.8, false),
        ]);
        let loads: Vec<f64> = contest.curve("exp", "a").iter().map(|p| p.case.load).collect();
        assert_eq!(loads, [10.0, 90.0]);
        let capacity = |curve: &str| contest.capacity("exp", curve);
        assert_eq!(capacity("a"), Some(10.0));
        assert_eq!(capacity("b"), Some(20.0), "one disturbed point is not a limit");
        assert_eq!(capacity("c"), None);
        let panel = contest.latency_panel("exp", Vec::new());
        assert_eq!(panel.lines[0].points, [(10.0, 20.0)]);
        assert_eq!(panel.y_range, Some((10.0, 100.0)));
        assert_eq!(contest.batch_panel("exp", Vec::new()).lines[0].points.len(), 2);
        assert_eq!(contest.data().rows().len(), 6);
        assert_eq!(contest.summary().rows()[1][6], "20.0 (10.0 to 30.0)");
    }

    #[test]
    fn an_ideal_system_works_as_fast_as_the_fastest_system_at_that_load() {
        let at = |curve: &str, load: f64, work: Option<f64>| {
            let mut point = point(curve, load, &[20.0], 0.5, false);
            point.samples[0].work = work;
            point
        };
        let contest = contest(vec![
            at("a", 10.0, Some(1.1)),
            at("b", 10.0, Some(1.02)),
            at("c", 10.0, None),
            at("a", 20.0, Some(0.9)),
            at("a", 30.0, None),
        ]);
        let fastest = [10.0, 20.0, 30.0].map(|load| contest.fastest_work("exp", load));
        assert_eq!(fastest, [1.02, 0.9, 1.0]);
    }
}
