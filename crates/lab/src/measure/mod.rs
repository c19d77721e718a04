//! `tailwater-lab measure`: all benchmarks and figures of this machine in one session, as files.
//!
//! Owns the command. `publish` makes the pages from the files.
//!
//! | module | owns |
//! |---|---|
//! | [`list`] | the experiments, as data |
//! | [`session`] | their order, what is kept, what a failure leaves |
//! | [`program`] | one round: the child process and its report |
//! | [`merge`] | median, lowest and highest over the rounds |
//! | [`noise`] | the host's stalls before and after |
//! | [`envelope`] | the format of a result |

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::PossibleValuesParser;

pub mod envelope;
pub mod list;
pub mod merge;
mod noise;
mod program;
mod session;

use list::{Experiment, Kind};
use session::{Hands, Session};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::{Machine, commit};
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::{note, requirements};

/// Length of each measurement of the host's noise.
const NOISE: Duration = Duration::from_millis(500);
const QUICK_NOISE: Duration = Duration::from_millis(100);

/// Measure everything that the book and README publish: benchmarks, the demo, the papers' figures
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  tailwater-lab measure                       everything: at most 40 minutes on two idle cores
  tailwater-lab measure --quick               that everything runs: at most 7 minutes, no results
  tailwater-lab measure --only tcp,handoff    two experiments
  tailwater-lab measure --list                what there is, and how long each takes
  tailwater-lab publish                       then: writes the figures into the book

Writes results/MACHINE/EXPERIMENT.json as each experiment ends. An experiment that has a file of
this commit and mode is not measured again without --again, so an interrupted session goes on where
it ended. One that fails is recorded with its error. A result is `disturbed` if the host took over
5 % of a core in stalls over 50 us right before or after it. Needs tailwater beside this program for
the demo; what is missing of the other programs in --list is left out.")]
pub struct MeasureArgs {
    /// A smoke test: everything once and shortly
    #[arg(long)]
    quick: bool,
    /// Measure these experiments only
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()), hide_possible_values = true)]
    only: Vec<String>,
    /// Print the experiments and measure nothing
    #[arg(long)]
    list: bool,
    /// Measure again what has a result of this commit
    #[arg(long)]
    again: bool,
    /// Folder for the results; results-quick unless given with --quick
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "results",
        default_value_if("quick", "true", "results-quick")
    )]
    out: PathBuf,
    /// Name of this machine [default: of its processor and number of cores, such as epyc-2]
    #[arg(long, value_name = "NAME", value_parser = machine_name)]
    machine: Option<String>,
}

fn names() -> Vec<&'static str> {
    list::all().iter().map(|experiment| experiment.name).collect()
}

/// Accepts the name of a folder.
fn machine_name(text: &str) -> Result<String, String> {
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !text.is_empty() && text.chars().all(valid) {
        true => Ok(text.to_owned()),
        false => Err("a name has letters, digits, - and _".to_owned()),
    }
}

/// Measures, or prints the list.
///
/// # Errors
/// [`requirements::Unsupported`] if an experiment is chosen that needs more than this machine has;
/// an interrupt; a file that cannot be written; or, after all others, the failed experiments.
pub fn run(args: &MeasureArgs) -> anyhow::Result<()> {
    let is_chosen = |e: &Experiment| args.only.is_empty() || args.only.iter().any(|name| name == e.name);
    let list: Vec<Experiment> = list::all().into_iter().filter(is_chosen).collect();
    if args.list {
        return print_list(&list, args.quick);
    }
    if list.iter().any(|experiment| experiment.kind != Kind::Simulated) {
        requirements::check()?;
    }
    let (machine, commit) = (Machine::describe(), commit());
    let machine_name =
        args.machine.clone().unwrap_or_else(|| envelope::machine_name(&machine.cpu_model, machine.cores));
    let interrupt = Arc::new(Interrupt::catch()?);
    let folder = args.out.join(&machine_name);
    let session = Session {
        commit: &commit,
        machine_name: &machine_name,
        machine: serde_json::to_value(&machine)?,
        folder: &folder,
        quick: args.quick,
        again: args.again,
    };
    let left: Vec<&Experiment> = list.iter().filter(|experiment| !session.is_measured(experiment)).collect();
    let (count, minutes) = (left.len(), minutes(left, args.quick));
    note!("{machine}, commit {commit}: {count} of {} experiments, about {minutes:.0} minutes", list.len());
    let noise = if args.quick { QUICK_NOISE } else { NOISE };
    let mut hands = Hands {
        run: &mut |experiment, plan| {
            let report = program::run(experiment, plan, &commit, &interrupt);
            // A signal ends the program too, and its failure is not a result.
            interrupt.check()?;
            report
        },
        probe: &mut || noise::probe(&machine, &interrupt, noise),
    };
    let failed = session.measure(&list, &mut hands)?;
    note!("results in {}; `tailwater-lab publish` writes them into the book", folder.display());
    anyhow::ensure!(failed.is_empty(), "failed: {}; the reasons are in their files", failed.join(", "));
    Ok(())
}

fn print_list(list: &[Experiment], quick: bool) -> anyhow::Result<()> {
    let mut table =
        Table::new(&["name", "kind", "s", "rounds", "title", "compares", "needs", "runs"].join(" | "));
    for experiment in list {
        let plan = experiment.plan(quick);
        table.row([
            experiment.name.to_owned(),
            experiment.kind.to_string(),
            number(plan.seconds),
            (plan.runs * plan.rounds).to_string(),
            experiment.title.to_owned(),
            experiment.systems.to_owned(),
            experiment.needs.to_owned(),
            plan.command(),
        ]);
    }
    Ok(writeln!(stdout(), "{table}{:.0} minutes in all", minutes(list, quick))?)
}

/// Returns how many minutes these experiments take.
fn minutes<'a>(list: impl IntoIterator<Item = &'a Experiment>, quick: bool) -> f64 {
    list.into_iter().map(|experiment| experiment.plan(quick).seconds).sum::<f64>() / 60.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_a_folder() {
        assert!(machine_name("epyc-2").is_ok());
        assert!(machine_name("../x").is_err() && machine_name("").is_err());
    }
}
