//! `tailwater-lab reproduce`: figures and tables of the papers, run on this machine, with a verdict
//! on each claim.
//!
//! Owns the command and the order of figures: first the simulated figures, which run on any
//! machine, then the measured ones. Each figure is run, judged and written before the next begins,
//! so an interrupted run keeps its finished figures. A figure that fails is in the report with its
//! error, and the others still run.
//!
//! | module | owns |
//! |---|---|
//! | [`figure`], [`claim`] | the interface of a figure, its outcome, claims and verdicts |
//! | [`catalogue`] | the list of figures, as data |
//! | [`context`] | the arguments of every figure: options, testbed, calibration, time |
//! | [`contest`] | several systems under several loads, in interleaved rounds |
//! | [`over_time`] | several systems under a load that changes, by windows of time |
//! | [`limit`] | the highest load within a latency limit, for several programs in turn |
//! | [`aims`] | this project's aims beside a batch job, and their verdicts |
//! | [`arbiter`] | the arbiter's curve beside a batch job |
//! | [`batch`] | the comparison of two systems' batch shares |
//! | [`stores`] | the common part of figures with key-value stores |
//! | [`primitives`] | the common part of figures of thread operations |
//! | [`compare`] | the comparison of two curves of latency over load |
//! | [`rounds`], [`spread`] | interleaved rounds; median and extremes over them |
//! | [`pages`], [`html`] | the files |
//! | `shenango`, `shinjuku`, `arachne`, `ix`, `own`, [`simulated`] | the figures |
//!
//! A new figure is one file with a function `run`, a row in the catalogue, and its plan in
//! `crates/lab/experiments/`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

mod aims;
mod arachne;
mod arbiter;
mod batch;
mod catalogue;
mod claim;
mod compare;
mod contest;
mod context;
mod figure;
mod html;
mod ix;
mod limit;
mod over_time;
mod own;
mod pages;
mod primitives;
mod ratio;
mod rounds;
mod shenango;
mod shinjuku;
mod simulated;
mod spread;
mod stores;

pub use catalogue::{Row, all as rows};
use context::{Context, Options};
use figure::{Figure, Outcome, Table, number};
use html::Entry;

use tailwater_testbed::interrupt::Interrupted;
use tailwater_testbed::machine::{Machine, commit};
use tailwater_testbed::note;
use tailwater_testbed::requirements;

/// The argument for all figures.
const ALL: &str = "all";

/// Reproduce the papers' figures, simulated and measured on this machine
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater-lab reproduce --list                   name, kind, duration and title of each figure
  tailwater-lab reproduce                          everything, on an otherwise idle machine
  tailwater-lab reproduce shenango-fig4            one figure
  tailwater-lab reproduce all --quick              the shapes
  tailwater-lab reproduce ix-fig4 --quick --rounds 3 three short rounds, with their spread
  tailwater-lab reproduce shinjuku-fig1 --out /tmp/figures

Writes NAME.svg, NAME.csv, NAME.json and NAME.md for each figure and report.html over all. Measured
figures need two cores; most compare with Linux in the same run. What each figure runs, and what its
paper states, is in report.html.")]
pub struct ReproduceArgs {
    /// Figures to reproduce, or all (the default)
    #[arg(value_name = "FIGURE", value_parser = PossibleValuesParser::new(names()))]
    figures: Vec<String>,
    /// Print the figures and run none
    #[arg(long)]
    list: bool,
    /// Folder for the results
    #[arg(long, value_name = "FOLDER", default_value = "figures")]
    out: PathBuf,
    /// Do a fraction of the work: the shape, without spread
    #[arg(long)]
    quick: bool,
    /// Rounds of a quick run
    #[arg(long, value_name = "N", default_value_t = 1, requires = "quick", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads of the simulator; 0 for all of the machine. Changes only the running time
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

/// Returns the names of all figures; one that is part of another is a second name of that.
fn names() -> Vec<PossibleValue> {
    let name = |row: Row| PossibleValue::new(row.figure.name).aliases(row.figure.parts);
    catalogue::all().into_iter().map(name).chain([PossibleValue::new(ALL)]).collect()
}

/// Runs the figures and writes their outcomes.
///
/// # Errors
/// [`requirements::Unsupported`] if a measured figure is chosen and the machine lacks something;
/// [`Interrupted`]; a file that cannot be written; or, after all others have run, the failed
/// figures.
pub fn run(args: &ReproduceArgs) -> anyhow::Result<()> {
    let rows = chosen(&args.figures);
    if args.list {
        return print_list(&rows);
    }
    let figures: Vec<Figure> = rows.iter().map(|row| row.figure).collect();
    for figure in &figures {
        let parts = figure.parts.iter().filter(|part| args.figures.iter().any(|name| name == *part));
        parts.for_each(|part| note!("{part} is part of {}", figure.name));
    }
    if figures.iter().any(Figure::is_measured) {
        requirements::check().inspect_err(|_| {
            note!("Figures that are simulated run anywhere: {}.", simulated_names().join(", "));
        })?;
    }
    let options = Options {
        quick: args.quick,
        quick_rounds: args.rounds.into(),
        seed: args.seed,
        threads: args.threads,
    };
    let context = Context::new(options, Machine::describe());
    print(&format!("{}, commit {}\n", context.machine, commit()))?;
    let mut entries: Vec<Entry> = Vec::new();
    for figure in figures {
        let outcome = outcome(&figure, &context);
        if let Err(error) = &outcome
            && error.is::<Interrupted>()
        {
            note!("{} of the figures are complete, in {}", entries.len(), args.out.display());
            return outcome.map(drop);
        }
        context.check()?;
        let entry = Entry { figure, outcome };
        report(&entry, &context, &args.out)?;
        entries.push(entry);
    }
    let path = args.out.join("report.html");
    write(&path, &html::report(&entries, &context))?;
    print(&format!("report in {}", path.display()))?;
    let failed: Vec<&str> = entries.iter().filter(|e| e.outcome.is_err()).map(|e| e.figure.name).collect();
    anyhow::ensure!(failed.is_empty(), "not reproduced: {}; the reasons are above", failed.join(", "));
    Ok(())
}

fn print_list(rows: &[Row]) -> anyhow::Result<()> {
    let mut table = Table::new("name | kind | s | s, quick | title");
    for row in rows {
        let kind = if row.figure.is_measured() { "measured" } else { "simulated" };
        let seconds = [row.full_s(), row.quick_s].map(number);
        let [name, kind, title] = [row.figure.name, kind, row.figure.title].map(str::to_owned);
        table.row([name, kind].into_iter().chain(seconds).chain([title]));
    }
    let minutes = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>() / 60.0;
    let (full, quick) = (minutes(Row::full_s), minutes(|row| row.quick_s));
    print(&format!("{table}{full:.0} minutes in all, {quick:.0} quickly"))
}

/// Runs a figure; withdraws its verdicts if the machine was busy.
fn outcome(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    if !figure.is_measured() {
        return (figure.run)(figure, context);
    }
    // Before the first measured figure, even if it needs no testbed: this measures how busy the
    // machine is.
    context.rig()?;
    let mut outcome = (figure.run)(figure, context)?;
    context.withhold_if_busy(&mut outcome.claims);
    Ok(outcome)
}

/// Prints the outcome and writes the figure's files.
fn report(entry: &Entry, context: &Context, out: &Path) -> anyhow::Result<()> {
    let figure = &entry.figure;
    let outcome = match &entry.outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            note!("{}: {error:#}", figure.name);
            return Ok(());
        }
    };
    let file = |extension: &str| out.join(format!("{}.{extension}", figure.name));
    write(&file("svg"), &outcome.svg)?;
    write(&file("csv"), &outcome.data.to_csv())?;
    write(&file("json"), &pages::json(figure, outcome, context)?)?;
    write(&file("md"), &pages::markdown(figure, outcome, context))?;
    print(&format!("{}: {}\n{}", figure.name, figure.title, outcome.summary))?;
    for claim in &outcome.claims {
        print(&format!("  [{}] paper: {}\n      here: {}", claim.verdict, claim.paper, claim.ours))?;
    }
    print(&format!("  drawn in {}\n", file("svg").display()))
}

fn chosen(names: &[String]) -> Vec<Row> {
    let all = names.is_empty() || names.iter().any(|name| name == ALL);
    let is_named = |Row { figure, .. }: &Row| {
        names.iter().any(|name| name == figure.name || figure.parts.contains(&name.as_str()))
    };
    catalogue::all().into_iter().filter(|row| all || is_named(row)).collect()
}

fn simulated_names() -> Vec<&'static str> {
    let all = catalogue::all().into_iter().map(|row| row.figure);
    all.filter(|figure| !figure.is_measured()).map(|figure| figure.name).collect()
}

fn print(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    tailwater_sim::report::write_file(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_names_or_with_all_every_figure_is_chosen_once() {
        let count = catalogue::all().len();
        assert_eq!(chosen(&[]).len(), count);
        assert_eq!(chosen(&["shinjuku-fig4".to_owned(), ALL.to_owned()]).len(), count);
        let twice = vec!["shinjuku-fig4".to_owned(); 2];
        assert_eq!(chosen(&twice).iter().map(|row| row.figure.name).collect::<Vec<_>>(), ["shinjuku-fig4"]);
    }

    #[test]
    fn a_figure_that_is_part_of_another_is_accepted_and_runs_that() {
        use clap::builder::TypedValueParser;
        let command = clap::Command::new("reproduce");
        let parse = |name: &str| PossibleValuesParser::new(names()).parse_ref(&command, None, name.as_ref());
        assert_eq!(parse("arachne-fig7").unwrap(), "arachne-fig7");
        assert!(parse("arachne-fig70").is_err());
        let chosen = chosen(&["arachne-fig7".to_owned()]);
        assert_eq!(chosen.iter().map(|row| row.figure.name).collect::<Vec<_>>(), ["arachne-fig8"]);
    }
}
