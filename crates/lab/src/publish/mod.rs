//! `tailwater-lab publish`: the figures in README and the book, from the results of `measure`.
//!
//! Owns the pages, their regions and the command. What is in a region is a pure function of the
//! results; text outside of the regions is never changed.
//!
//! | module | owns |
//! |---|---|
//! | [`region`] | the markers in a page |
//! | [`results`] | the results of a machine, one commit, how a figure is written |
//! | [`lines`] | the tables of `tables.txt`; no row without a peer; the mark of a disturbed row |
//! | [`benchmarks`], [`demo`], [`threads`] | which figures are published |
//! | [`figures`] | the papers' figures: index, claims, verdicts |
//! | [`readme`] | the figures of README |

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::Context;

mod benchmarks;
mod demo;
mod figures;
mod lines;
mod readme;
mod region;
mod results;
mod threads;

use lines::{section, tables};
use results::{Report, Results, of_one_commit};
use tailwater_plot::table::Table;
use tailwater_testbed::note;

use crate::measure::envelope::{Envelope, MAX_LOST_PERCENT};

/// Pages with regions, from the root of a clone, and a region of each.
const PAGES: [(&str, &str); 5] = [
    ("docs/src/numbers.md", "machine"),
    ("docs/src/reproduce.md", "machine"),
    ("docs/src/guide/batch.md", "programs"),
    ("docs/src/guide/programs.md", "posix"),
    ("README.md", "readme"),
];
/// The demo's drawing.
const DRAWING: &str = "docs/src/images/demo.svg";
/// First parts of the names of figures, each with a region `figures-PAPER`.
const PAPERS: [&str; 6] = ["shenango", "shinjuku", "arachne", "ix", "dns", "foreign"];

/// Write the measured figures into README and the book
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  tailwater-lab measure && tailwater-lab publish    measure everything, then write the pages
  tailwater-lab publish --check                     fail if a page differs from the results
  tailwater-lab publish --machine xeon-2            the results of another machine

Runs in the root of a clone. Replaces what is between <!-- figures: NAME --> and <!-- end figures -->
in docs/src/numbers.md, docs/src/reproduce.md, docs/src/guide/batch.md and README.md, and draws
docs/src/images/demo.svg. All rows of a page are of one commit. What is not measured yet says so.")]
pub struct PublishArgs {
    /// Write nothing; exit with 1 if a page differs from the results
    #[arg(long)]
    check: bool,
    /// Folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "results")]
    results: PathBuf,
    /// Machine whose results are published [default: the only one there is]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
}

/// Writes the pages, or compares them.
///
/// # Errors
/// Without results, if results of a page are of several commits, if a page's markers are wrong, if
/// a file cannot be read or written, or, to check, with the names of the pages that differ.
pub fn run(args: &PublishArgs) -> anyhow::Result<()> {
    let results = Results::read(&folder(&args.results, args.machine.as_deref())?)?;
    let mut differ = Vec::new();
    for (path, new) in files(&results)? {
        let old = std::fs::read_to_string(path).unwrap_or_default();
        if old == new {
            continue;
        }
        differ.push(path);
        if !args.check {
            tailwater_sim::report::write_file(Path::new(path), &new)?;
            writeln!(stdout(), "{path} is written")?;
        }
    }
    if differ.is_empty() {
        writeln!(stdout(), "all pages are as the results")?;
    }
    anyhow::ensure!(
        !args.check || differ.is_empty(),
        "not as the results: {}; `tailwater-lab publish` writes them",
        differ.join(", ")
    );
    Ok(())
}

/// Returns the folder of the machine whose results are published.
fn folder(results: &Path, machine: Option<&str>) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(results).with_context(|| {
        format!(
            "there are no results in {}: run `tailwater-lab measure` first, 40 minutes",
            results.display()
        )
    })?;
    let mut machines: Vec<String> = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            machines.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    machines.sort();
    let there_are = || match machines.is_empty() {
        true => "there is none: run `tailwater-lab measure`".to_owned(),
        false => format!("there are {}", machines.join(", ")),
    };
    match (machine, &machines[..]) {
        (Some(name), all) => {
            anyhow::ensure!(
                all.iter().any(|machine| machine == name),
                "{} has no results of a machine {name}; {}",
                results.display(),
                there_are()
            );
            Ok(results.join(name))
        }
        (None, [only]) => Ok(results.join(only)),
        (None, _) => anyhow::bail!("--machine chooses whose results are published; {}", there_are()),
    }
}

/// Returns the text of each page, and of the drawing.
fn files(results: &Results) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut files = Vec::new();
    for (path, first) in PAGES {
        let page = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {path}: publish runs in the root of a clone"))?;
        let names = region::names(&page).map_err(|error| anyhow::anyhow!("{path}, {error}"))?;
        if names.is_empty() {
            note!(
                "{path} has no region: put <!-- figures: {first} --> and <!-- end figures --> where figures belong"
            );
        }
        files.push((path, page_of(&page, results).map_err(|error| anyhow::anyhow!("{path}: {error}"))?));
    }
    files.extend(demo::drawing(results).map(|svg| (DRAWING, svg)));
    Ok(files)
}

/// Returns a page with the content of all regions.
///
/// # Errors
/// If its results are of several commits, a region is not known, or a marker has no partner.
fn page_of(page: &str, results: &Results) -> Result<String, String> {
    let mut experiments = Vec::new();
    for name in region::names(page)? {
        experiments.extend(experiments_of(&name)?);
    }
    of_one_commit(results.of_experiments(&experiments))?;
    region::replace(page, |name| content(name, results, &experiments))
}

/// A region with the tables of one benchmark.
type Benchmark = (&'static str, &'static str, fn(&Report<'_>) -> Vec<Table>);

/// Regions by name, with their experiment.
const BENCHMARKS: [Benchmark; 17] = [
    ("demo", "demo", demo::tables),
    ("handoff", "handoff", |report| tables("handoff", report)),
    ("request", "cores", |report| tables("request", report)),
    ("cores", "cores", |report| [tables("cores", report), vec![benchmarks::creation(report)]].concat()),
    ("switch", "switch", |report| tables("switch", report)),
    ("tcp", "tcp", |report| tables("tcp", report)),
    ("events", "events", |report| tables("events", report)),
    ("threads", "threads", |report| vec![threads::table(report)]),
    ("dispatch", "dispatch", |report| tables("dispatch", report)),
    ("scale", "scale", |report| vec![benchmarks::scale(report)]),
    ("services", "services", |report| vec![benchmarks::services(report)]),
    ("neighbour", "neighbour", |report| tables("neighbour", report)),
    ("programs", "programs", |report| vec![benchmarks::programs(report)]),
    ("posix", "posix", benchmarks::posix),
    ("hostile", "hostile", |report| [vec![benchmarks::attacks(report)], tables("hostile", report)].concat()),
    ("ports", "ports", |report| tables("ports", report)),
    ("energy", "energy", benchmarks::energy),
];

/// Returns the names of the experiments of a region.
///
/// # Errors
/// Names the regions that there are.
fn experiments_of(region: &str) -> Result<Vec<String>, String> {
    if let Some((_, experiment, _)) = BENCHMARKS.iter().find(|(name, ..)| *name == region) {
        return Ok(vec![(*experiment).to_owned()]);
    }
    let figures = |paper: Option<&str>| {
        let is_of = |name: &str| paper.is_none_or(|paper| name.split('-').next() == Some(paper));
        figures::figures().iter().map(|figure| figure.name.to_owned()).filter(|name| is_of(name)).collect()
    };
    match region {
        "machine" => Ok(Vec::new()),
        "readme" => Ok(readme::EXPERIMENTS.map(str::to_owned).to_vec()),
        "figures-index" => Ok(figures(None)),
        _ => match region.strip_prefix("figures-") {
            Some(paper) if PAPERS.contains(&paper) => Ok(figures(Some(paper))),
            _ => {
                let benchmarks: Vec<&str> = BENCHMARKS.iter().map(|(name, ..)| *name).collect();
                Err(format!(
                    "there is no region {region}; there are machine, readme, figures-index, figures-{}, {}",
                    PAPERS.join(", figures-"),
                    benchmarks.join(", ")
                ))
            }
        },
    }
}

/// Returns the content of a region of a page with these experiments.
fn content(region: &str, results: &Results, experiments: &[String]) -> Result<String, String> {
    if let Some((_, experiment, tables)) = BENCHMARKS.iter().find(|(name, ..)| *name == region) {
        return Ok(section(results, experiment, tables));
    }
    Ok(match region {
        "machine" => machine(results, experiments),
        "readme" => readme::table(results),
        "figures-index" => figures::index(results),
        _ => figures::claims(results, region.strip_prefix("figures-").unwrap_or(region)),
    })
}

/// Says on which machine, when, and of which commit the figures of a page are.
fn machine(results: &Results, experiments: &[String]) -> String {
    let all = || results.of_experiments(experiments);
    let Some(first) = all().min_by(|a, b| a.date.cmp(&b.date)) else {
        return "Not measured yet: `tailwater-lab measure`.\n".to_owned();
    };
    let last = all().map(|result| result.date.as_str()).max().unwrap_or_default();
    let mut names: Vec<&str> = all().map(|result| result.experiment.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let disturbed: Vec<&str> =
        names.iter().copied().filter(|name| results.get(name).is_some_and(Envelope::is_disturbed)).collect();
    let disturbed = match disturbed.len() {
        0 => "none".to_owned(),
        _ => disturbed.join(", "),
    };
    let mut table = Table::new(&["", ""].join(" | "));
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    row("machine", format!("{}: {}", first.machine_name, machine_in_words(first)));
    row("commit", first.commit.clone());
    row("time", format!("{} to {} UTC", time(&first.date), time(last)));
    row("mode", if first.quick { "quick: shapes, not results" } else { "the default" }.to_owned());
    row("experiments", names.len().to_string());
    row(&format!("`disturbed`: a core lost over {MAX_LOST_PERCENT} % right before or after"), disturbed);
    table.to_markdown()
}

/// Describes the machine of a result.
fn machine_in_words(result: &Envelope) -> String {
    let machine = &result.machine;
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown").to_owned();
    let number = |key: &str| machine[key].as_f64().unwrap_or(0.0);
    let is_virtual = machine["virtual_machine"].as_bool() == Some(true);
    format!(
        "{} {}cores of {}, TSC {:.1} GHz, {:.0} GiB, Linux {}",
        number("cores"),
        if is_virtual { "virtual " } else { "" },
        text("cpu_model"),
        number("tsc_hz") / 1e9,
        number("memory_mib") / 1024.0,
        text("kernel")
    )
}

/// Returns the day of a date.
fn day(date: &str) -> &str {
    date.split('T').next().unwrap_or(date)
}

/// Returns day and minute of a date.
fn time(date: &str) -> String {
    date.chars().take("2026-11-29T04:30".len()).map(|c| if c == 'T' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
