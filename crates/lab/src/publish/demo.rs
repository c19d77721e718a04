//! The demo's tables and its drawing.
//!
//! Owns which of its figures are published. [`tailwater_plot::demo`] draws the panels.

use tailwater_plot::table::Table;
use tailwater_plot::{Line, demo};

use super::lines::push;
use super::results::{Report, Results};

/// The load of the row in README, in per cent.
pub const README_LOAD: f64 = 50.0;

/// Returns the points of a system.
fn points<'a>(report: &Report<'a>, system: &str) -> impl Iterator<Item = Report<'a>> {
    let system = system.to_lowercase();
    report.items("/points").into_iter().filter(move |point| point.text("/system") == system)
}

/// Returns the point of a system at a load.
pub fn point<'a>(report: &Report<'a>, system: &str, load: f64) -> Option<Report<'a>> {
    points(report, system).find(|point| point.median("/load") == Some(load))
}

fn is_saturated(point: &Report<'_>) -> bool {
    point.value("/saturated").and_then(serde_json::Value::as_bool) == Some(true)
}

/// Returns the figure of a point; a saturated one has no latency.
fn figure(point: Option<&Report<'_>>, pointer: &str) -> String {
    let Some(point) = point else { return String::new() };
    if is_saturated(point) && pointer.ends_with("_us") {
        "saturated".to_owned()
    } else {
        point.figure(pointer, 1.0)
    }
}

/// Returns the median of a point; a saturated one has no latency.
pub fn median(point: Option<&Report<'_>>, pointer: &str) -> Option<f64> {
    let point = point.filter(|point| !(is_saturated(point) && pointer.ends_with("_us")))?;
    point.median(pointer)
}

/// Returns a table for the tail, for the median, and for the batch job.
pub fn tables(report: &Report<'_>) -> Vec<Table> {
    let heads = [
        ("windowed p99.9, us, at a load of", "/win_p999_us"),
        ("p50, us", "/p50_us"),
        ("the batch job's speed, alone = 1", "/batch_share"),
    ];
    heads.map(|(head, pointer)| table(report, head, pointer)).to_vec()
}

fn table(report: &Report<'_>, head: &str, pointer: &str) -> Table {
    let mut table = Table::new(
        &[head, "Tailwater", "Linux", "ideal queue", "ideal queue under the host's stalls"].join(" | "),
    );
    for ideal in report.items("/ideal") {
        let Some(load) = ideal.median("/load") else { continue };
        let of = |system| figure(point(report, system, load).as_ref(), pointer);
        let [queue, stalled] = ["", "/stalled"].map(|at| ideal.figure(&format!("{at}{pointer}"), 1.0));
        push(&mut table, report, format!("{load} %"), vec![of("Tailwater"), of("Linux"), queue, stalled]);
    }
    table
}

/// Returns the drawing as SVG; `None` without a result.
pub fn drawing(results: &Results) -> Option<String> {
    let report = results.report("demo")?;
    let system = |name: &str, pointer: &str, keep_saturated: bool| {
        // The job may be faster beside an idle service than alone.
        let top = if keep_saturated { 1.0 } else { f64::INFINITY };
        let own = points(&report, name).take_while(|point| keep_saturated || !is_saturated(point));
        let at = |point: Report<'_>| Some((point.median("/load")?, top.min(point.median(pointer)?)));
        Line::new(name, own.filter_map(at).collect())
    };
    let ideal = |name: &str, pointer: &str| {
        let at = |ideal: Report<'_>| Some((ideal.median("/load")?, ideal.median(pointer)?));
        Line::new(name, report.items("/ideal").into_iter().filter_map(at).collect()).dashed()
    };
    let latency = |key: &str| {
        vec![
            system("Tailwater", key, false),
            system("Linux", key, false),
            ideal(demo::IDEAL, key),
            ideal(demo::STALLED, &format!("/stalled{key}")),
        ]
    };
    let share = "/batch_share";
    let shares =
        vec![system("Tailwater", share, true), system("Linux", share, true), ideal(demo::IDEAL, share)];
    let service = points(&report, "Tailwater").next().map_or("", |point| point.text("/service")).to_owned();
    Some(demo::draw(&service, latency("/p50_us"), latency("/win_p999_us"), shares))
}
