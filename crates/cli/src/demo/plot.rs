//! The demo's picture: latency over load, and the batch job's speed, for both systems and the ideal
//! queue, with and without the machine's stalls.
//!
//! Owns the curves and axes; [`tailwater_plot`] draws them. A curve of latency ends where its
//! system saturates: beyond, latency depends on the length of the overload.

use tailwater_plot::{Line, Panel, draw as draw_panels};

use super::outcome::{IdealPoint, Outcome, Point, QueueFigures, System};

/// Returns the plot as SVG text.
pub fn draw(outcome: &Outcome) -> String {
    let panels = [
        latency("Median", outcome, |p| p.p50_us, |q| q.p50_us),
        latency("p99.9 of a typical 100 ms window", outcome, |p| p.win_p999_us, |q| q.win_p999_us),
        batch(outcome),
    ];
    let service = outcome.points.first().map_or("", |p| &p.service);
    draw_panels(&format!("A service ({service}) and a batch job on the same cores"), &panels)
}

fn latency(
    title: &str,
    outcome: &Outcome,
    of_point: impl Fn(&Point) -> f64 + Copy,
    of_queue: impl Fn(&QueueFigures) -> f64,
) -> Panel {
    let sustained = |p: &Point| !p.saturated;
    let ideal = |figures: &dyn Fn(&IdealPoint) -> Option<&QueueFigures>| -> Vec<(f64, f64)> {
        outcome.ideal.iter().filter_map(|i| Some((i.load, of_queue(figures(i)?)))).collect()
    };
    let lines = vec![
        line(outcome, System::Tailwater, of_point, sustained),
        line(outcome, System::Linux, of_point, sustained),
        Line::new("ideal queue", ideal(&|i| Some(&i.queue))).dashed(),
        Line::new("ideal with this machine's stalls", ideal(&|i| i.stalled.as_ref())).dashed(),
    ];
    Panel::new(title, "load (%)", "latency (us)", lines).decades()
}

fn batch(outcome: &Outcome) -> Panel {
    Panel::new(
        "Batch job",
        "load (%)",
        "speed (alone = 1)",
        vec![
            line(outcome, System::Tailwater, |p| p.batch_share.min(1.0), |_| true),
            line(outcome, System::Linux, |p| p.batch_share.min(1.0), |_| true),
            Line::new("ideal queue", outcome.ideal.iter().map(|i| (i.load, i.queue.batch_share)).collect())
                .dashed(),
        ],
    )
    .within((0.0, 1.0))
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
