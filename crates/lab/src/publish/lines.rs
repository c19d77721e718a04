//! Tables whose cells are figures of one report, as `tables.txt` has them.
//!
//! Owns the rule that a row without anything beside it is not published, the mark of a disturbed
//! row, and the sentence above a table that says what ran. Pure.

use tailwater_plot::table::Table;

use super::results::{Report, Results};
use crate::measure::envelope::Envelope;

/// Returns the tables of a region of a report: rows that have a figure and something beside it.
pub fn tables(region: &str, report: &Report<'_>) -> Vec<Table> {
    let mut regions =
        include_str!("tables.txt").split("\n= ").skip(1).filter_map(|text| text.split_once('\n'));
    let own = regions.find(|(name, _)| *name == region).map_or("", |(_, tables)| tables);
    own.split("\n\n").filter_map(|text| table(text, report)).collect()
}

/// Returns a table by its head and its rows; `None` without any.
fn table(text: &str, report: &Report<'_>) -> Option<Table> {
    let mut lines = text.trim().lines();
    let mut table = Table::new(lines.next()?);
    for line in lines {
        let (label, cells) = line.split_once(" | ")?;
        let cell = |cell: &str| match (cell.trim().strip_prefix('='), cell.trim().strip_prefix('k')) {
            (Some(text), _) => text.to_owned(),
            (_, Some(pointer)) => report.figure(pointer, 1e-3),
            _ if cell.trim().is_empty() => String::new(),
            _ => report.figure(cell.trim(), 1.0),
        };
        push(&mut table, report, label.to_owned(), cells.split(" |").map(cell).collect());
    }
    Some(table)
}

/// Adds a row of a report, if at least two of its cells have something.
pub fn push(table: &mut Table, report: &Report<'_>, label: String, mut cells: Vec<String>) {
    if cells.iter().filter(|cell| !cell.is_empty()).count() < 2 {
        return;
    }
    cells.resize(table.header().len() - 1, String::new());
    table.row([vec![marked(report.result, label)], cells].concat());
}

/// Returns a label that says if its row is disturbed.
pub fn marked(result: &Envelope, label: String) -> String {
    if result.is_disturbed() { format!("{label}, `disturbed`") } else { label }
}

/// Returns the tables of an experiment under the sentence that says what ran; or why there are
/// none.
pub fn section(
    results: &Results,
    experiment: &str,
    tables: impl FnOnce(&Report<'_>) -> Vec<Table>,
) -> String {
    let Some(report) = results.report(experiment) else { return missing(results, experiment) };
    let mut text = caption(report.result);
    for table in tables(&report) {
        if !table.rows().is_empty() {
            text += &format!("\n{}", table.to_markdown());
        }
    }
    text
}

/// Says why an experiment has no figures.
pub fn missing(results: &Results, experiment: &str) -> String {
    match results.get(experiment).and_then(|result| result.error.as_deref()) {
        Some(error) => wrapped(&format!("`{experiment}` failed in this session: {error}")),
        None => format!("Not measured yet: `tailwater-lab measure --only {experiment}`.\n"),
    }
}

/// Says what ran, and what the host did meanwhile.
fn caption(result: &Envelope) -> String {
    let rounds = match result.rounds {
        1 => "One round".to_owned(),
        several if result.lowest.is_null() => format!("{several} rounds"),
        several => format!("Medians of {several} rounds (lowest to highest)"),
    };
    let quick = if result.quick { ", a quick run that shows shapes, not results" } else { "" };
    wrapped(&format!("{rounds} of `{}`{quick}; {}.", result.command, noise(result)))
}

/// Says what the host took right before and after.
pub fn noise(result: &Envelope) -> String {
    let all = || result.noise_before.iter().chain(&result.noise_after);
    let most = |of: fn(&crate::measure::envelope::CoreNoise) -> f64| all().map(of).fold(0.0, f64::max);
    let disturbed = if result.is_disturbed() { "`disturbed`: " } else { "" };
    format!(
        "{disturbed}the host took up to {:.1} % of a core in up to {:.0} stalls a second",
        most(|core| core.lost_percent),
        most(|core| core.stalls_per_s)
    )
}

/// Returns text in lines of at most 120 columns.
pub fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 120;
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        match column {
            0 => column = width,
            _ if column + 1 + width > COLUMNS => {
                lines.push('\n');
                column = width;
            }
            _ => {
                lines.push(' ');
                column += 1 + width;
            }
        }
        lines += word;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::result;
    use super::*;

    const LINES: &str =
        "us | Tailwater | Linux\np99 | /p99 | /linux_p99\np50 | /p50 | /linux_p50\naim | =4 | k/linux_p99";

    #[test]
    fn a_row_without_a_peer_is_left_out() {
        let results = Results::of([result("tcp", "abc", json!({"p99": 3.0, "linux_p99": 14.0, "p50": 1.5}))]);
        let table = table(LINES, &results.report("tcp").unwrap()).unwrap();
        assert_eq!(table.rows(), [["p99", "3.00", "14.0"], ["aim", "4", "0.01"]]);
    }

    #[test]
    fn a_disturbed_row_says_so() {
        let mut tcp = result("tcp", "abc", json!({"p99": 3.0, "linux_p99": 14.0}));
        tcp.noise_before[0].lost_percent = 5.1;
        let results = Results::of([tcp]);
        let text = section(&results, "tcp", |report| table(LINES, report).into_iter().collect());
        assert!(text.contains("| p99, `disturbed` | 3.00 | 14.0 |"), "{text}");
    }

    #[test]
    fn a_failure_is_published_with_its_reason() {
        let mut tcp = result("tcp", "abc", json!(null));
        tcp.error = Some("no core".to_owned());
        let results = Results::of([tcp]);
        assert_eq!(section(&results, "tcp", |_| Vec::new()), "`tcp` failed in this session: no core\n");
        assert!(section(&results, "demo", |_| Vec::new()).contains("measure --only demo"));
    }

    #[test]
    fn long_sentences_are_wrapped() {
        let text = wrapped(&"word ".repeat(40));
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.len() <= 120), "{text}");
    }
}
