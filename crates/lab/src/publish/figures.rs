//! The index of the papers' figures, and each figure's claims with their verdicts.
//!
//! Owns the order, which is the catalogue's, and the counts. A figure without a result is in the
//! index and says so.

use tailwater_plot::table::Table;

use super::lines::{marked, missing, noise, wrapped};
use super::results::{Report, Results};
use crate::measure::list::{Experiment, Kind, all};

/// Rows and columns of a figure's own table up to which it is published; longer ones are drawings.
const MAX_ROWS: usize = 16;
const MAX_COLUMNS: usize = 9;

/// Verdicts as a report has them, and in words.
const VERDICTS: [(&str, &str); 3] =
    [("reached", "reached"), ("not-reached", "**not reached**"), ("not-comparable", "not comparable")];

/// Returns the experiments that are figures.
pub fn figures() -> Vec<Experiment> {
    all().into_iter().filter(|experiment| experiment.kind != Kind::Benchmark).collect()
}

/// Returns a row for each figure: what it is, what it compares, and how many claims hold.
pub fn index(results: &Results) -> String {
    let mut table = Table::new(
        &["figure", "kind", "what it compares", "rounds", "claims reached", "not reached", "not comparable"]
            .join(" | "),
    );
    let mut totals = [0; 3];
    for figure in figures() {
        let link = format!("[`{}`](#{})", figure.name, anchor(&figure));
        let counts = results.report(figure.name).map(|report| counts(&report));
        let cells = match counts {
            Some(counts) => {
                totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
                counts.map(|count| count.to_string()).to_vec()
            }
            None => {
                let why = if results.get(figure.name).is_some() { "failed" } else { "not measured" };
                vec![String::new(), String::new(), why.to_owned()]
            }
        };
        let result = results.get(figure.name);
        let name = result.map_or_else(|| link.clone(), |result| marked(result, link.clone()));
        let rounds = result.map_or_else(String::new, |result| result.rounds.to_string());
        let own = vec![name, figure.kind.to_string(), figure.systems.to_owned(), rounds];
        table.row([own, cells].concat());
    }
    let total = ["**all**", "", "", ""].map(str::to_owned).to_vec();
    table.row([total, totals.map(|total| total.to_string()).to_vec()].concat());
    table.to_markdown()
}

fn counts(report: &Report<'_>) -> [usize; 3] {
    let claims = report.items("/claims");
    VERDICTS.map(|(key, _)| claims.iter().filter(|claim| claim.text("/verdict") == key).count())
}

/// Returns the heading, the claims and the short tables of all figures of a paper, by the first
/// part of their names.
pub fn claims(results: &Results, paper: &str) -> String {
    let of_paper = |figure: &Experiment| figure.name.split('-').next() == Some(paper);
    figures()
        .iter()
        .filter(|figure| of_paper(figure))
        .map(|figure| section(results, figure))
        .collect::<Vec<_>>()
        .join("\n")
}

fn section(results: &Results, figure: &Experiment) -> String {
    let heading = format!("### `{}`: {}\n\n", figure.name, figure.title);
    let Some(report) = results.report(figure.name) else {
        let mut table = claims_table();
        let why = match results.get(figure.name).and_then(|result| result.error.as_deref()) {
            Some(error) => format!("failed: {error}"),
            None => return heading + &missing(results, figure.name),
        };
        table.row(["all of its claims".to_owned(), why, "not comparable".to_owned()].to_vec());
        return heading + &table.to_markdown();
    };
    let host = match figure.kind {
        Kind::Simulated => "simulated, the machine does not matter".to_owned(),
        _ => noise(report.result),
    };
    let quick = if report.result.quick { ", a quick run that shows shapes, not results" } else { "" };
    let lead = wrapped(&format!("`{}`{quick}; {host}.", report.result.command));
    let mut claims = claims_table();
    for claim in report.items("/claims") {
        let verdict = claim.text("/verdict");
        let verdict = VERDICTS.iter().find(|(key, _)| *key == verdict).map_or(verdict, |(_, words)| words);
        claims.row([claim.text("/paper"), claim.text("/ours"), verdict].map(str::to_owned).to_vec());
    }
    let summary = summary(&report).map_or_else(String::new, |table| format!("\n{}", table.to_markdown()));
    format!("{heading}{lead}\n{}{summary}", claims.to_markdown())
}

fn claims_table() -> Table {
    Table::new(&["the paper, or an aim", "here", "verdict"].join(" | "))
}

/// Returns the figure's own table, if it is short.
fn summary(report: &Report<'_>) -> Option<Table> {
    let strings =
        |pointer: &str| -> Vec<&str> { report.items(pointer).iter().map(|item| item.text("")).collect() };
    let header = strings("/summary/header");
    let rows = report.items("/summary/rows").len();
    if header.is_empty() || header.len() > MAX_COLUMNS || rows == 0 || rows > MAX_ROWS {
        return None;
    }
    let mut table = Table::new(&header.join(" | "));
    for index in 0..rows {
        let mut cells: Vec<String> =
            strings(&format!("/summary/rows/{index}")).into_iter().map(str::to_owned).collect();
        cells.resize(header.len(), String::new());
        table.row(cells);
    }
    Some(table)
}

/// Returns the anchor of a figure's heading, as mdBook and GitHub make it.
fn anchor(figure: &Experiment) -> String {
    let heading = format!("{} {}", figure.name, figure.title).to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_that_of_the_heading() {
        let all = figures();
        let figure = all.iter().find(|figure| figure.name == "shinjuku-fig8").unwrap();
        assert_eq!(
            anchor(figure),
            "shinjuku-fig8-gets-beside-scans-one-queue-a-queue-for-each-type-no-preemption"
        );
    }

    #[test]
    fn every_figure_is_of_a_paper_with_a_region() {
        for figure in figures() {
            let paper = figure.name.split('-').next().unwrap();
            assert!(super::super::PAPERS.contains(&paper), "{}", figure.name);
        }
    }
}
