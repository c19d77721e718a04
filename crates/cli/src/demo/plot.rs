//! The curves of the demo's picture: both systems, and the ideal queue with and without the
//! machine's stalls.
//!
//! [`tailwater_plot::demo`] owns the panels. A curve of latency ends where its system saturates:
//! beyond, latency depends on the length of the overload.

use tailwater_plot::{Line, demo};

use super::outcome::{IdealPoint, Outcome, Point, QueueFigures, System};

/// Returns the plot as SVG text.
pub fn draw(outcome: &Outcome) -> String {
    let service = outcome.points.first().map_or("", |p| &p.service);
    let p50_us = latency(outcome, |p| p.p50_us, |q| q.p50_us);
    let win_p999_us = latency(outcome, |p| p.win_p999_us, |q| q.win_p999_us);
    demo::draw(service, p50_us, win_p999_us, batch_share(outcome))
}

fn latency(
    outcome: &Outcome,
    of_point: impl Fn(&Point) -> f64 + Copy,
    of_queue: impl Fn(&QueueFigures) -> f64,
) -> Vec<Line> {
    let sustained = |p: &Point| !p.saturated;
    let ideal = |figures: &dyn Fn(&IdealPoint) -> Option<&QueueFigures>| -> Vec<(f64, f64)> {
        outcome.ideal.iter().filter_map(|i| Some((i.load, of_queue(figures(i)?)))).collect()
    };
    vec![
        line(outcome, System::Tailwater, of_point, sustained),
        line(outcome, System::Linux, of_point, sustained),
        Line::new(demo::IDEAL, ideal(&|i| Some(&i.queue))).dashed(),
        Line::new(demo::STALLED, ideal(&|i| i.stalled.as_ref())).dashed(),
    ]
}

fn batch_share(outcome: &Outcome) -> Vec<Line> {
    let ideal = outcome.ideal.iter().map(|i| (i.load, i.queue.batch_share)).collect();
    vec![
        line(outcome, System::Tailwater, |p| p.batch_share.min(1.0), |_| true),
        line(outcome, System::Linux, |p| p.batch_share.min(1.0), |_| true),
        Line::new(demo::IDEAL, ideal).dashed(),
    ]
}

fn line(
    outcome: &Outcome,
    system: System,
    value: impl Fn(&Point) -> f64,
    keep: impl Fn(&Point) -> bool,
) -> Line {
    let own = outcome.points.iter().filter(|p| p.system == system).take_while(|p| keep(p));
    Line::new(system.name(), own.map(|p| (p.load, value(p))).collect())
}
