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
//! | [`catalogue`] | the list of figures |
//! | [`context`] | the arguments of every figure: options, testbed, calibration, time |
//! | [`contest`] | several systems under several loads, in interleaved rounds |
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
//! A new figure is one file with a [`figure::Figure`], a line in the catalogue, and its
//! plan in `crates/lab/experiments/`.

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

pub use context::BUDGET;
use context::{Context, Options};
use figure::{Figure, Outcome, Table};
use html::Entry;

use crate::measure::list;

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
  tailwater-lab reproduce                          everything: an hour and a half, an otherwise idle machine
  tailwater-lab reproduce shenango-fig4            one figure, about four minutes
  tailwater-lab reproduce all --quick              the shapes, in about two minutes
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

/// A figure of the catalogue, for lists of experiments.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub name: &'static str,
    pub title: &'static str,
    pub measured: bool,
}

/// Returns what the catalogue says about each figure.
pub fn index() -> Vec<About> {
    let about = |figure: &Figure| About {
        name: figure.name(),
        title: figure.title(),
        measured: figure.is_measured(),
    };
    catalogue::all().iter().map(about).collect()
}

/// Returns the names of all figures; one that is part of another is a second name of that.
fn names() -> Vec<PossibleValue> {
    let figures = catalogue::all();
    let names = figures.iter().map(|figure| PossibleValue::new(figure.name()).aliases(figure.parts()));
    names.chain([PossibleValue::new(ALL)]).collect()
}

/// Runs the figures and writes their outcomes.
///
/// # Errors
/// [`requirements::Unsupported`] if a measured figure is chosen and the machine lacks something;
/// [`Interrupted`]; a file that cannot be written; or, after all others have run, the failed
/// figures.
pub fn run(args: &ReproduceArgs) -> anyhow::Result<()> {
    let figures = chosen(&args.figures);
    if args.list {
        return print_list(&figures);
    }
    for figure in &figures {
        let parts = figure.parts().iter().filter(|part| args.figures.iter().any(|name| name == *part));
        parts.for_each(|part| note!("{part} is part of {}", figure.name()));
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
    let failed: Vec<&str> = entries.iter().filter(|e| e.outcome.is_err()).map(|e| e.figure.name()).collect();
    anyhow::ensure!(failed.is_empty(), "not reproduced: {}; the reasons are above", failed.join(", "));
    Ok(())
}

fn print_list(figures: &[Figure]) -> anyhow::Result<()> {
    let mut table = Table::new("name | kind | min | min, quick | title");
    let mut total = [0.0; 2];
    for figure in figures {
        let minutes = list::minutes(figure.name()).unwrap_or_default();
        total = [total[0] + minutes[0], total[1] + minutes[1]];
        table.row([
            figure.name().to_owned(),
            if figure.is_measured() { "measured" } else { "simulated" }.to_owned(),
            format!("{:.1}", minutes[0]),
            format!("{:.1}", minutes[1]),
            figure.title().to_owned(),
        ]);
    }
    print(&format!("{table}{:.0} minutes in all, {:.0} quickly", total[0], total[1]))
}

/// Runs a figure; withdraws its verdicts if the machine was busy.
fn outcome(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    if !figure.is_measured() {
        return figure.run(context);
    }
    // Before the first measured figure, even if it needs no testbed: this measures how busy the
    // machine is.
    context.rig()?;
    let mut outcome = figure.run(context)?;
    context.withhold_if_busy(&mut outcome.claims);
    Ok(outcome)
}

/// Prints the outcome and writes the figure's files.
fn report(entry: &Entry, context: &Context, out: &Path) -> anyhow::Result<()> {
    let figure = &entry.figure;
    let outcome = match &entry.outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            note!("{}: {error:#}", figure.name());
            return Ok(());
        }
    };
    let file = |extension: &str| out.join(format!("{}.{extension}", figure.name()));
    write(&file("svg"), &outcome.svg)?;
    write(&file("csv"), &outcome.data.to_csv())?;
    write(&file("json"), &pages::json(figure, outcome, context)?)?;
    write(&file("md"), &pages::markdown(figure, outcome, context))?;
    print(&format!("{}: {}\n{}", figure.name(), figure.title(), outcome.summary))?;
    for claim in &outcome.claims {
        print(&format!("  [{}] paper: {}\n      here: {}", claim.verdict, claim.paper, claim.ours))?;
    }
    print(&format!("  drawn in {}\n", file("svg").display()))
}

fn chosen(names: &[String]) -> Vec<Figure> {
    let all = names.is_empty() || names.iter().any(|name| name == ALL);
    let is_named = |figure: &Figure| {
        names.iter().any(|name| name == figure.name() || figure.parts().contains(&name.as_str()))
    };
    catalogue::all().into_iter().filter(|figure| all || is_named(figure)).collect()
}

fn simulated_names() -> Vec<&'static str> {
    catalogue::all().iter().filter(|figure| !figure.is_measured()).map(Figure::name).collect()
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
        assert_eq!(chosen(&twice).iter().map(Figure::name).collect::<Vec<_>>(), ["shinjuku-fig4"]);
    }

    #[test]
    fn a_figure_that_is_part_of_another_is_accepted_and_runs_that() {
        use clap::builder::TypedValueParser;
        let command = clap::Command::new("reproduce");
        let parse = |name: &str| PossibleValuesParser::new(names()).parse_ref(&command, None, name.as_ref());
        assert_eq!(parse("arachne-fig7").unwrap(), "arachne-fig7");
        assert!(parse("arachne-fig70").is_err());
        let chosen = chosen(&["arachne-fig7".to_owned()]);
        assert_eq!(chosen.iter().map(Figure::name).collect::<Vec<_>>(), ["arachne-fig8"]);
    }
}
