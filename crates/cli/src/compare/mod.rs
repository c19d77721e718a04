//! `tailwater compare`: compares two files of `tailwater load --json`.
//!
//! Owns the pairing of loads, the choice between runs and windows, the table and the exit status.
//! The statistics are in `tailwater_loadgen::compare`; [`trust`] finds what must not be compared.

mod trust;

use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tailwater_loadgen::compare::{Comparison, FEWEST_UNITS, MAX_RESAMPLES, Options, Verdict, compare};
use tailwater_workload::Interval;

use crate::load::document::{Document, Point};
use crate::load::{parse_margin, parse_percent};
use crate::output;
use tailwater_testbed::exit::EndsWith2;
use tailwater_testbed::table::{Table, number};
use trust::{Side, broken_runs, differences};

/// Compare two results of `tailwater load --json`, with confidence
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater compare before.json after.json
  tailwater compare before.json after.json --fail-on worse --margin 10%  in a script: 1 when worse
  tailwater compare before.json after.json --by windows --json verdict.json

Prints the ratio of each percentile, B / A, with a bootstrap confidence interval. It resamples runs when both files \
have at least 5 of each load (`tailwater load --runs`), otherwise windows, which do not show what differs from run to \
run. B is worse when the whole interval lies above 1 by more than the margin. Loads of the same name are compared.

It refuses runs that were interrupted or that lack an agent's share, and loads that differ in protocol, load, \
arrivals, service time, timeout or warm-up. Other differences and the warnings of both files are printed.

Exit status: 0; 1 if --fail-on says so; 2 for wrong usage and errors.")]
pub struct CompareArgs {
    /// The measurement that is the reference
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The measurement to judge
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// What is resampled
    #[arg(long, value_enum, default_value_t = By::Auto)]
    by: By,
    /// Largest difference that counts as none
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_margin)]
    margin: f64,
    /// Probability that all intervals of a load together contain the true ratios
    #[arg(long, value_name = "PERCENT", default_value = "95%", value_parser = parse_percent)]
    confidence: f64,
    /// Number of resamples
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(100..=i64::from(MAX_RESAMPLES)))]
    resamples: u32,
    /// Seed of the resamples
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// When to end with exit status 1
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = FailOn::Never)]
    fail_on: FailOn,
    /// Compare loads and runs that are refused otherwise
    #[arg(long)]
    force: bool,
    /// Write the comparison as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// Runs if both files have 5 of them, else windows
    Auto,
    /// Runs
    Runs,
    /// Windows of all runs
    Windows,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// Whatever the verdict
    Never,
    /// When B is worse at any percentile of any load
    Worse,
    /// When B is better or worse at any percentile of any load
    Difference,
}

#[derive(Debug, Serialize)]
struct Compared {
    load: String,
    unit: &'static str,
    /// Differences between the two beside the server.
    differences: Vec<String>,
    /// The warnings of each.
    warnings: [Vec<String>; 2],
    #[serde(flatten)]
    comparison: Comparison,
}

/// Compares, prints, writes and judges.
///
/// # Errors
/// [`EndsWith2`] if there is no verdict, or when it is one to fail on.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let compared = compare_files(args).map_err(EndsWith2::wrap)?;
    judge(args.fail_on, &compared)
}

/// Compares, prints and writes.
///
/// # Errors
/// If a file cannot be read or written, if the files have no load in common, too little of it
/// or loads that must not be compared.
fn compare_files(args: &CompareArgs) -> anyhow::Result<Vec<Compared>> {
    output::check(args.json.as_deref())?;
    let (a, b) = (Document::read(&args.a)?, Document::read(&args.b)?);
    let options = Options {
        resamples: args.resamples,
        confidence: args.confidence,
        margin: args.margin,
        seed: args.seed,
    };
    let pairs = pairs(&a, &b);
    anyhow::ensure!(!pairs.is_empty(), "no load is in both files: A has {}, B has {}", names(&a), names(&b));
    let mut all = Vec::new();
    for (point_a, point_b) in pairs {
        let sides = [Side { document: &a, point: point_a }, Side { document: &b, point: point_b }];
        let (differences, warnings) = (weighed(sides, args.force)?, [warnings(point_a), warnings(point_b)]);
        let (unit, units_a, units_b) = units(args.by, point_a, point_b);
        let comparison = compare(&units_a, &units_b, &options)
            .map_err(|error| anyhow::anyhow!("{}: {error}", point_a.name))?;
        let compared = Compared { load: point_a.name.clone(), unit, differences, warnings, comparison };
        write!(stdout(), "{}", describe(&compared, point_a, point_b))?;
        all.push(compared);
    }
    for (document, name) in [(&a, 'A'), (&b, 'B')] {
        for warning in &document.warnings {
            writeln!(stdout(), "warning: {name}: {warning}")?;
        }
    }
    for (document, other, name) in [(&a, &b, 'A'), (&b, &a, 'B')] {
        let only: Vec<&str> = document
            .points
            .iter()
            .filter(|point| !all.iter().any(|compared| compared.load == point.name))
            .filter(|point| other.points.iter().all(|theirs| theirs.name != point.name))
            .map(|point| point.name.as_str())
            .collect();
        if !only.is_empty() && other.points.len() + document.points.len() > 2 {
            writeln!(stdout(), "only in {name}, not compared: {}", only.join(", "))?;
        }
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&all)? + "\n";
        output::write(path, |out| Ok(out.write_all(text.as_bytes())?))?;
    }
    Ok(all)
}

/// Lists the differences between two loads.
///
/// # Errors
/// If the loads must not be compared, unless `forced`.
fn weighed([a, b]: [Side<'_>; 2], forced: bool) -> anyhow::Result<Vec<String>> {
    let differences = differences(a, b);
    let mut objections: Vec<String> =
        differences.iter().filter(|difference| difference.is_grave).map(|d| d.text.clone()).collect();
    for (side, name) in [(a, 'A'), (b, 'B')] {
        objections.extend(broken_runs(side.point).into_iter().map(|broken| format!("in {name}, {broken}")));
    }
    anyhow::ensure!(
        forced || objections.is_empty(),
        "{} cannot be compared: {}; --force compares them all the same",
        a.point.name,
        objections.join("; ")
    );
    Ok(differences.into_iter().map(|difference| difference.text).collect())
}

/// Returns the warnings of a load.
fn warnings(point: &Point) -> Vec<String> {
    let report = point.report.as_ref().map_or_else(Vec::new, |report| report.warnings.clone());
    let mut all = broken_runs(point);
    all.extend(report);
    all
}

fn judge(fail_on: FailOn, all: &[Compared]) -> anyhow::Result<()> {
    let fails = |verdict: Verdict| match fail_on {
        FailOn::Never => false,
        FailOn::Worse => matches!(verdict, Verdict::Worse | Verdict::Mixed),
        FailOn::Difference => verdict != Verdict::NoDifference,
    };
    let failed: Vec<String> = all
        .iter()
        .filter(|compared| fails(compared.comparison.verdict))
        .map(|compared| format!("{} at {}", compared.comparison.verdict, compared.load))
        .collect();
    anyhow::ensure!(failed.is_empty(), "B is {}", failed.join(", "));
    Ok(())
}

/// Pairs of loads with the same name; if each file has one load, that pair, whatever the names.
fn pairs<'a>(a: &'a Document, b: &'a Document) -> Vec<(&'a Point, &'a Point)> {
    if let ([a], [b]) = (&a.points[..], &b.points[..]) {
        return vec![(a, b)];
    }
    a.points
        .iter()
        .filter_map(|point| Some((point, b.points.iter().find(|other| other.name == point.name)?)))
        .collect()
}

fn names(document: &Document) -> String {
    let names: Vec<&str> = document.points.iter().map(|point| point.name.as_str()).collect();
    names.join(", ")
}

/// Returns the name of the resampled units, and those of each file.
fn units(by: By, a: &Point, b: &Point) -> (&'static str, Vec<Interval>, Vec<Interval>) {
    let enough = a.runs.len().min(b.runs.len()) >= FEWEST_UNITS;
    if by == By::Runs || (by == By::Auto && enough) {
        let runs = |point: &Point| -> Vec<Interval> {
            let whole = |windows: &[Interval]| {
                let mut whole = Interval::default();
                windows.iter().for_each(|window| whole.merge(window));
                whole
            };
            point.runs.iter().map(|run| whole(&run.windows.list)).collect()
        };
        return ("runs", runs(a), runs(b));
    }
    let windows =
        |point: &Point| point.runs.iter().flat_map(|run| run.windows.list.iter().cloned()).collect();
    ("windows", windows(a), windows(b))
}

fn describe(compared: &Compared, a: &Point, b: &Point) -> String {
    let Compared { load, unit, differences, warnings, comparison } = compared;
    let head = if a.name == b.name { load.clone() } else { format!("{load} in A, {} in B", b.name) };
    let mut table = Table::new("latency | A us | B us | B / A | from | to | B is");
    for ratio in &comparison.ratios {
        table.row([
            format!("p{}", (ratio.quantile * 1e6).round() / 1e4),
            number(ratio.a_us),
            number(ratio.b_us),
            format!("{:.3}", ratio.ratio),
            format!("{:.3}", ratio.low),
            format!("{:.3}", ratio.high),
            ratio.verdict.to_string(),
        ]);
    }
    let [units_a, units_b] = comparison.units;
    let mut text = format!("{head}, over {units_a} and {units_b} {unit}: {}\n{table}", comparison.verdict);
    for difference in differences {
        text += &format!("difference: {difference}\n");
    }
    for (warnings, name) in warnings.iter().zip(["A", "B"]) {
        for warning in warnings {
            text += &format!("warning: {name}: {warning}\n");
        }
    }
    if *unit == "windows" {
        text += "windows of few runs: the intervals do not contain what differs from run to run; see `tailwater load --runs`\n";
    }
    text
}
