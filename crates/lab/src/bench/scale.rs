//! `tailwater-lab bench scale`: what an iteration of the IOKernel's loop costs by the number of
//! cores and of programs.
//!
//! Owns the table and the report; [`tailwater_iokernel::scale`] measures. The cores do not exist
//! and the programs have no threads, so two CPUs suffice: one for the loop, one that writes the
//! words of all programs, which the loop then finds in another core's cache, as those of running
//! programs.

use std::io::{Write, stdout};

use clap::Args;
use serde::{Deserialize, Serialize};
use tailwater_iokernel::scale::{Costs, Delivery, Shape, deliver, measure};
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

use super::{medians, quantile};

const CORES: [u16; 4] = [8, 16, 32, 64];
const PROGRAMS: [u16; 3] = [4, 16, 64];
/// Cores beside which frames are counted.
const CORES_OF_FRAMES: u16 = 16;
/// The interval at which the IOKernel looks and decides.
const INTERVAL_NS: f64 = 5_000.0;

/// Cost of the IOKernel's loop by the number of cores and of programs, on cores that do not exist
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:
  tailwater-lab bench scale --changes 1000 --json scale.json")]
pub struct ScaleArgs {
    /// Cores that change hands, for each number of cores and programs
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    changes: u32,
    /// Numbered frames to services whose cores change hands
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    frames: u64,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
}

/// The report: a row for each number of cores and of programs, and what became of frames.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScaleReport {
    scale: Vec<Row>,
    frames: Frames,
}

/// What became of frames to services that share cores with batch jobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Frames {
    delivered: u64,
    lost: u64,
    reordered: u64,
    looks: u64,
    looks_beside_free_core: u64,
    moved_groups: u64,
    fenced_groups: u64,
}

impl From<Delivery> for Frames {
    fn from(seen: Delivery) -> Self {
        Self {
            delivered: seen.delivered,
            lost: seen.lost,
            reordered: seen.reordered,
            looks: seen.looks,
            looks_beside_free_core: seen.looks_beside_free_core,
            moved_groups: seen.moved_groups,
            fenced_groups: seen.fenced_groups,
        }
    }
}

/// What the loop costs with so many cores and programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    cores: u16,
    programs: u16,
    /// An iteration without a look.
    pass_p50_ns: f64,
    /// A look that changes nothing.
    look_p50_ns: f64,
    look_p99_ns: f64,
    /// A look that lends a core.
    grant_p50_ns: f64,
    grant_p99_ns: f64,
    /// Iterations a second if each lends a core.
    decisions_per_s: f64,
    /// Looks from a program's demand to the one that lends it a core.
    looks_to_grant_p50: f64,
    looks_to_grant_p99: f64,
    /// Looks in which all programs without a core are looked at if each look reads one of them: it
    /// reads as many as fit into 1 us, in turn.
    looks_to_turn: f64,
}

impl Row {
    fn of(Shape { cores, programs }: Shape, costs: &Costs) -> Self {
        let part = |values: &[u64], part| quantile(values.iter().map(|&value| value as f64), part);
        let iteration_ns = part(&costs.passes, 0.5) + part(&costs.decisions, 0.5);
        Self {
            cores,
            programs,
            pass_p50_ns: part(&costs.passes, 0.5),
            look_p50_ns: part(&costs.looks, 0.5),
            look_p99_ns: part(&costs.looks, 0.99),
            grant_p50_ns: part(&costs.decisions, 0.5),
            grant_p99_ns: part(&costs.decisions, 0.99),
            decisions_per_s: 1e9 / iteration_ns,
            looks_to_grant_p50: part(&costs.looks_to_grant, 0.5),
            looks_to_grant_p99: part(&costs.looks_to_grant, 0.99),
            looks_to_turn: f64::from(programs.saturating_sub(cores).max(1)),
        }
    }

    /// Returns what an iteration takes that lends a core.
    fn iteration_ns(&self) -> f64 {
        self.pass_p50_ns + self.grant_p50_ns
    }
}

/// Measures and prints.
///
/// # Errors
/// If the table cannot be written.
pub fn run(args: &ScaleArgs) -> anyhow::Result<ScaleReport> {
    let mut rounds = Vec::new();
    for _ in progress::over("round", 0..args.rounds) {
        let shapes = CORES.iter().flat_map(|&cores| PROGRAMS.map(|programs| Shape { cores, programs }));
        let row = |shape| Row::of(shape, &measure(shape, args.changes as usize));
        let frames = deliver(CORES_OF_FRAMES, args.frames).into();
        rounds.push(ScaleReport { scale: shapes.map(row).collect(), frames });
    }
    let report = medians(&rounds)?;
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

fn describe(report: &ScaleReport) -> String {
    let head = [
        "cores, programs",
        "iteration without a look, ns",
        "look, p50",
        "p99",
        "look that lends a core, p50",
        "p99",
        "decisions/s",
        "looks until it is lent, p50",
        "p99",
        "looks until a program's turn",
    ];
    let mut table = Table::new(&head.join(" | "));
    for row in &report.scale {
        let figures = [
            row.pass_p50_ns,
            row.look_p50_ns,
            row.look_p99_ns,
            row.grant_p50_ns,
            row.grant_p99_ns,
            row.decisions_per_s,
            row.looks_to_grant_p50,
            row.looks_to_grant_p99,
            row.looks_to_turn,
        ];
        let label = format!("{}, {}", row.cores, row.programs);
        table.row([label].into_iter().chain(figures.map(number)));
    }
    let beyond = report.scale.iter().find(|row| row.iteration_ns() > INTERVAL_NS);
    let verdict = match beyond {
        None => "an iteration that lends a core takes less than the interval of 5 us everywhere".to_owned(),
        Some(row) => format!(
            "an iteration that lends a core takes longer than the interval of 5 us from {} cores and {} programs on: {} ns",
            row.cores,
            row.programs,
            number(row.iteration_ns())
        ),
    };
    let Frames { delivered, lost, reordered, looks, looks_beside_free_core, moved_groups, fenced_groups } =
        report.frames;
    format!(
        "{table}\n{verdict} (medians)\n\
         with {CORES_OF_FRAMES} cores {delivered} frames were delivered, {lost} lost and {reordered} reordered, while \
         {moved_groups} flow groups moved ({fenced_groups} of them with frames that waited); of {looks} looks \
         {looks_beside_free_core} were beside a core that stayed free\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_point_at_which_an_interval_no_longer_suffices_is_named() {
        let costs = |ns| Costs {
            passes: vec![500],
            looks: vec![100, 200],
            decisions: vec![ns],
            looks_to_grant: vec![1],
        };
        let row = |cores, ns| Row::of(Shape { cores, programs: 4 }, &costs(ns));
        let frames = Frames::from(Delivery::default());
        let shown = |rows| describe(&ScaleReport { scale: rows, frames: frames.clone() });
        assert!(shown(vec![row(8, 4_400), row(16, 4_600)]).contains("from 16 cores and 4 programs on"));
        assert!(shown(vec![row(8, 4_400)]).contains("less than the interval"));
    }

    #[test]
    fn a_turn_is_a_look_for_each_program_that_can_have_no_core() {
        let looks_to_turn =
            |cores, programs| Row::of(Shape { cores, programs }, &Costs::default()).looks_to_turn;
        assert_eq!(
            [(8, 64), (64, 64), (8, 4)].map(|(cores, programs)| looks_to_turn(cores, programs)),
            [56., 1., 1.]
        );
    }
}
