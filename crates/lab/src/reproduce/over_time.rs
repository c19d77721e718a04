//! Systems under a load that changes, seen by windows of time: the common part of two figures.
//!
//! Owns the rounds, in which the systems take turns, and the figures of each window.

use std::time::Duration;

use tailwater_loadgen::Plan;
use tailwater_testbed::BatchRates;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_workload::Intervals;

use super::contest::{self, System};
use super::figure::{Context, Figure, Line, Spread, cell};
use super::rounds::in_turn;

/// The figures of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    pub completed: u64,
    /// Percentiles in microseconds; NaN if no request was answered.
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

impl Window {
    /// A window in which no request was answered.
    pub const EMPTY: Self = Self { completed: 0, p50_us: f64::NAN, p99_us: f64::NAN, p999_us: f64::NAN };
}

/// The windows of a system.
#[derive(Debug, Clone, Default)]
pub struct Course {
    pub name: &'static str,
    pub rounds: Vec<Vec<Window>>,
    /// The batch job's speed in each round, as a part of its full speed.
    pub shares: Vec<f64>,
}

/// Measures all systems under a plan of so many windows.
pub fn measure(
    figure: &Figure,
    context: &Context,
    systems: &[(&'static str, System)],
    (plan, windows): (&Plan, usize),
    rounds: usize,
) -> anyhow::Result<Vec<Course>> {
    let rig = context.rig()?;
    let mut all: Vec<Course> =
        systems.iter().map(|&(name, _)| Course { name, ..Course::default() }).collect();
    in_turn(figure, context, (systems.len(), rounds), |index, round| {
        let seed = context.options.seed.wrapping_add(round as u64);
        let beds = (&rig.testbed, rig.speed);
        let measured =
            contest::measure(beds, &systems[index].1, (plan, seed), &mut HandoffRecord::default())?;
        all[index].shares.extend(measured.batch.map(BatchRates::share));
        all[index].rounds.push(series(measured.measurement.summary.intervals(), windows));
        Ok(())
    })?;
    Ok(all)
}

/// Returns the first `windows` windows, including those without an answer.
pub fn series(intervals: &Intervals, windows: usize) -> Vec<Window> {
    let mut series = vec![Window::EMPTY; windows];
    for interval in &intervals.list {
        if let Some(window) = usize::try_from(interval.index).ok().and_then(|index| series.get_mut(index)) {
            let us = |part| interval.latency_ns(part).map_or(f64::NAN, |ns| ns as f64 / 1e3);
            let completed = interval.counts.completed;
            *window = Window { completed, p50_us: us(0.5), p99_us: us(0.99), p999_us: us(0.999) };
        }
    }
    series
}

impl Course {
    /// Returns a line over time: by window, the median of a value over the rounds.
    pub fn line(&self, window: Duration, value: impl Fn(&Window) -> f64) -> Line {
        let count = self.rounds.iter().map(Vec::len).max().unwrap_or(0);
        let median = |index: usize| {
            let values = self.rounds.iter().filter_map(|windows| windows.get(index)).map(&value);
            Some((index as f64 * window.as_secs_f64(), Spread::of(values)?.median))
        };
        Line::new(self.name, (0..count).filter_map(median).collect())
    }

    /// Returns the batch job's speed as a table cell.
    pub fn share(&self) -> String {
        cell(Spread::of(self.shares.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_workload::LatencyRecorder;

    #[test]
    fn a_window_without_requests_is_present_and_empty() {
        const NS: u64 = 10_000_000;
        let mut recorder = LatencyRecorder::with_intervals(0, NS);
        for (now_ns, latency_ns) in [(5, 2_000), (2 * NS, 3_000), (3 * NS, 4_000)] {
            recorder.record(now_ns, latency_ns);
        }
        let windows = series(recorder.finish(4 * NS).intervals(), 3);
        assert_eq!([0, 1, 2].map(|at| windows[at].completed), [1, 0, 1]);
        assert!(windows[1].p50_us.is_nan());
        let course = Course { name: "a", rounds: vec![windows.clone(), windows], shares: Vec::new() };
        let line = course.line(Duration::from_nanos(NS), |window| window.p999_us);
        assert_eq!(line.points, [(0.0, 2.0), (0.02, 3.0)]);
    }
}
