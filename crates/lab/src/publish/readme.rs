//! The five rows of README: what a reader who has half a minute sees.
//!
//! Owns the choice of figures, each beside Linux or the best peer, the tail first.

use tailwater_plot::table::Table;

use super::demo::{self, README_LOAD};
use super::lines::{marked, wrapped};
use super::results::{Report, Results};
use super::threads;

/// Experiments that the rows are from.
pub const EXPERIMENTS: [&str; 4] = ["demo", "tcp", "threads", "handoff"];

/// Returns the table under a sentence on machine, date and commit.
pub fn table(results: &Results) -> String {
    let mut table = Table::new(&["", "Tailwater", "Linux, or the best peer, in the same run"].join(" | "));
    let mut row = |experiment: &str, label: String, cells: &dyn Fn(&Report<'_>) -> [String; 2]| {
        let row = match results.report(experiment) {
            Some(report) => {
                let [own, peer] = cells(&report);
                vec![marked(report.result, label), own, peer]
            }
            None => vec![label, "not measured".to_owned(), String::new()],
        };
        table.row(row);
    };
    let label = format!(
        "a service beside a batch job at {README_LOAD} % load: windowed p99.9; p50; speed left to the batch job"
    );
    row("demo", label, &|report| ["Tailwater", "Linux"].map(|system| demo_cell(report, system)));
    row("tcp", "64 bytes over TCP there and back: p99; p50".to_owned(), &|report| {
        [
            format!("{} us; {} us", report.figure("/rr_p99_us", 1.0), report.figure("/rr_p50_us", 1.0)),
            format!(
                "{} us; {} us, both sides spin",
                report.figure("/kernel_rr_p99_us", 1.0),
                report.figure("/kernel_rr_p50_us", 1.0)
            ),
        ]
    });
    row("tcp", "TCP echo over 64 connections, thousand requests/s".to_owned(), &|report| {
        ["/echo_rps", "/kernel_echo_rps"].map(|pointer| report.figure(pointer, 1e-3))
    });
    row("threads", "a thread: yield; start and join".to_owned(), &thread_cells);
    row("handoff", "a core moves from a running batch job to a service: p99; p50".to_owned(), &|report| {
        let us = |p99, p50| format!("{} us; {} us", report.figure(p99, 1.0), report.figure(p50, 1.0));
        let linux = us("/signal_p99_us", "/signal_p50_us");
        [us("/busy_p99_us", "/busy_p50_us"), format!("{linux}, by signal and eventfd")]
    });
    format!("{}\n{}", provenance(results), table.to_markdown())
}

fn demo_cell(report: &Report<'_>, system: &str) -> String {
    let point = demo::point(report, system, README_LOAD);
    let of = |pointer: &str| demo::figure(point.as_ref(), pointer);
    let us = |pointer: &str| match of(pointer) {
        number if number.starts_with(|c: char| c.is_ascii_digit()) => format!("{number} us"),
        words => words,
    };
    format!("{}; {}; {}", us("/win_p999_us"), us("/p50_us"), of("/batch_share"))
}

/// Returns the cells of a thread: Tailwater's, and those of `std` and of the best other system.
fn thread_cells(report: &Report<'_>) -> [String; 2] {
    let operations = ["yield", "spawn_join"];
    let ns = |system: &str| {
        operations.map(|operation| format!("{} ns", threads::figure(report, operation, system))).join("; ")
    };
    let best = operations.map(|operation| {
        let of = |(name, system): (&'static str, &str)| {
            Some((name, system.to_owned(), threads::median(report, operation, system)?))
        };
        let peers = [("Go", "go"), ("Tokio", "tokio")].into_iter().filter_map(of);
        peers.min_by(|a, b| a.2.total_cmp(&b.2)).map_or_else(String::new, |(name, system, _)| {
            format!("{name} {} ns", threads::figure(report, operation, &system))
        })
    });
    [ns("tailwater"), format!("`std` {}; best of Go and Tokio: {}", ns("std"), best.join("; "))]
}

fn provenance(results: &Results) -> String {
    let names = EXPERIMENTS.map(str::to_owned);
    let Some(first) = results.of_experiments(&names).next() else {
        return "Not measured yet: `tailwater-lab measure`.\n".to_owned();
    };
    let rounds = results.of_experiments(&names).map(|result| result.rounds).min().unwrap_or(1);
    let quick = if first.quick { " Quick runs: shapes, not results." } else { "" };
    let rounds = match rounds {
        1 => "Single rounds".to_owned(),
        several => format!("Medians of {several} rounds or more (lowest to highest)"),
    };
    wrapped(&format!(
        "{rounds}, {}, commit {}, on {}.{quick}",
        super::day(&first.date),
        first.commit,
        super::machine_in_words(first)
    ))
}
