//! Output and files after a load.
//!
//! Owns tables, CSV columns and the sections of the HDR log. A file that cannot be written keeps no
//! other from being written.

use std::io::{Write, stdout};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tailwater_loadgen::delivery::DeliveryFigures;
use tailwater_loadgen::log::{Section, write_log};
use tailwater_loadgen::search::Bound;
use tailwater_workload::Figures;

use super::args::LoadArgs;
use super::document::{Document, Point, SearchOutcome};
use crate::output::write;
use tailwater_testbed::table::{Table, number};

/// Checks that the files that `args` name can be written.
///
/// # Errors
/// The first that cannot.
pub fn check(args: &LoadArgs) -> anyhow::Result<()> {
    crate::output::check([&args.json, &args.csv, &args.hdr_log].into_iter().filter_map(Option::as_deref))
}

/// Writes the files that `args` name, and prints the result.
///
/// # Errors
/// The first file that could not be written, or a closed standard output.
pub fn finish(args: &LoadArgs, document: &Document) -> anyhow::Result<()> {
    let json = |path: &Path| write(path, |out| Ok(serde_json::to_writer_pretty(out, document)?));
    let csv = |path: &Path| write(path, |out| Ok(out.write_all(csv(document).as_bytes())?));
    let hdr_log = |path: &Path| write(path, |out| write_hdr_log(out, document));
    let json = args.json.as_deref().map_or(Ok(()), json);
    let csv = args.csv.as_deref().map_or(Ok(()), csv);
    let hdr_log = args.hdr_log.as_deref().map_or(Ok(()), hdr_log);
    // Last: a closed standard output must not cost a file.
    write!(stdout(), "{}", describe(document))?;
    json.and(csv).and(hdr_log)
}

/// Returns the document in words and tables.
pub fn describe(document: &Document) -> String {
    let mut text = match (&document.search, &document.points[..]) {
        (Some(search), points) => describe_points(points) + &describe_search(search),
        (None, [point]) => describe_point(point),
        (None, points) => describe_points(points),
    };
    for warning in &document.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

fn us(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), number)
}

fn describe_point(point: &Point) -> String {
    let Some(report) = &point.report else { return String::new() };
    let figures = &report.figures;
    let mut table = Table::new("latency us | p50 | p90 | p99 | p99.9 | max | windowed p99.9");
    table.row([
        String::new(),
        us(figures.p50_us),
        us(figures.p90_us),
        us(figures.p99_us),
        us(figures.p999_us),
        us(figures.max_us),
        us(figures.win_p999_us),
    ]);
    let mut text = format!(
        "{table}offered {}/s, achieved {}/s, {} lost, {} late; {} windows of 100 ms, {} of them cut by stalls of this core\n",
        number(figures.offered_rps),
        number(figures.achieved_rps),
        figures.lost,
        figures.late,
        figures.windows,
        figures.windows_cut
    );
    if let Some(DeliveryFigures { median, mean }) = report.delivery {
        text += &format!(
            "the server's time for the work, over the time asked for: {median:.2} at the median, {mean:.2} with interruptions\n"
        );
    }
    for warning in &report.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

fn describe_points(points: &[Point]) -> String {
    let mut table = Table::new(
        "load | runs | achieved/s | p50 us | p90 | p99 | p99.9 | max | windowed p99.9 | lost | \
         late",
    );
    let mut warnings = String::new();
    for point in points {
        let Some(report) = &point.report else { continue };
        let figures = &report.figures;
        table.row([
            point.name.clone(),
            point.runs.len().to_string(),
            number(figures.achieved_rps),
            us(figures.p50_us),
            us(figures.p90_us),
            us(figures.p99_us),
            us(figures.p999_us),
            us(figures.max_us),
            us(figures.win_p999_us),
            figures.lost.to_string(),
            figures.late.to_string(),
        ]);
        for warning in &report.warnings {
            warnings += &format!("warning: {}: {warning}\n", point.name);
        }
    }
    format!("{table}{warnings}")
}

/// Returns the outcome of a search, in sentences.
pub fn describe_search(search: &SearchOutcome) -> String {
    let rate = |rate: tailwater_workload::Rate| format!("{}/s", number(rate.per_second()));
    let Some(load) = search.load else {
        let why = match search.bound {
            Bound::Trials => "the search ended before it found one",
            Bound::Limit | Bound::Generator | Bound::Ceiling | Bound::Nothing => {
                "not even the lowest rate tried was; is the limit below the service time?"
            }
        };
        return format!("no load within {}: {why}\n", search.slo);
    };
    let mut text = format!("highest load within {}: {}", search.slo, rate(load));
    let spread = match (search.always_met_up_to, search.never_met_from) {
        (Some(met), Some(missed)) => {
            format!("; always within up to {}, never from {}", rate(met), rate(missed))
        }
        (None, Some(missed)) => {
            format!("; at any rate some trials exceeded the limits, from {} on all", rate(missed))
        }
        (Some(met), None) => format!("; always within up to {}", rate(met)),
        (None, None) => String::new(),
    };
    let (met, tried) = search.votes();
    text += &format!("{spread}\n{met} of {tried} trials there within");
    for (limit, measured) in search.slo.limits().iter().zip(&search.measured_us) {
        let ends = measured.iter().copied().reduce(f64::min).zip(measured.iter().copied().reduce(f64::max));
        if let Some((low, high)) = ends {
            text += &format!(", {} {} to {} us", limit.measure, number(low), number(high));
        }
    }
    text += &format!("; {} trials in all\n", search.trials.len());
    match search.bound {
        Bound::Limit | Bound::Nothing => {}
        Bound::Generator => {
            text += "warning: above this load the generator ran behind, and the server may take more; use --agents, or another machine\n";
        }
        Bound::Ceiling => {
            text += "warning: this is the highest rate that the search may try; raise --max-rate\n";
        }
        Bound::Trials => {
            text += "warning: the search ended before this was confirmed; raise --max-trials\n";
        }
    }
    text
}

/// Returns the document as CSV, one row per load.
pub fn csv(document: &Document) -> String {
    let mut text =
        "load,runs,rate_rps,offered_rps,achieved_rps,p50_us,p90_us,p99_us,p999_us,max_us,win_p999_us,\
                    completed,lost,late,windows,windows_cut,duration_s\n"
            .to_owned();
    for point in &document.points {
        if let Some(report) = &point.report {
            text += &csv_row(point, &report.figures);
        }
    }
    text
}

fn csv_row(point: &Point, figures: &Figures) -> String {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let cells = [
        // Patterns contain commas but no quotes.
        format!("\"{}\"", point.name),
        point.runs.len().to_string(),
        point.offered_rps().to_string(),
        figures.offered_rps.to_string(),
        figures.achieved_rps.to_string(),
        number(figures.p50_us),
        number(figures.p90_us),
        number(figures.p99_us),
        number(figures.p999_us),
        number(figures.max_us),
        number(figures.win_p999_us),
        figures.completed.to_string(),
        figures.lost.to_string(),
        figures.late.to_string(),
        figures.windows.to_string(),
        figures.windows_cut.to_string(),
        figures.duration_s.to_string(),
    ];
    cells.join(",") + "\n"
}

/// Writes one section per run, tagged with the load's name if there are several loads.
fn write_hdr_log(out: &mut dyn Write, document: &Document) -> anyhow::Result<()> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for point in &document.points {
        for run in &point.runs {
            let measured = Duration::from_secs_f64(run.started_unix_s.max(0.0))
                + Duration::from_nanos(point.plan.warm_up_ns);
            sections.push(Section {
                tag: (document.points.len() > 1).then_some(point.name.as_str()),
                start: SystemTime::UNIX_EPOCH + measured,
                intervals: &run.windows,
            });
        }
    }
    sections.sort_by_key(|section| section.start);
    let comment = format!("tailwater load {}, latencies in nanoseconds", document.server);
    Ok(write_log(out, &comment, &sections)?)
}
