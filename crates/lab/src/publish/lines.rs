//! Tables whose cells are figures of one report, as data.
//!
//! Owns the rule that a row without anything beside it is not published, the mark of a disturbed
//! row, and the sentence above a table that says what ran. Pure.

use tailwater_plot::table::Table;

use super::results::{Report, Results};
use crate::measure::envelope::Envelope;

/// A table of one experiment.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    pub head: &'static [&'static str],
    /// JSON pointer that all cells begin with.
    pub at: &'static str,
    pub rows: &'static [Line],
}

/// A row: its label, the factor of its figures, and a JSON pointer for each column; `=` begins a
/// fixed text, such as an aim.
pub type Line = (&'static str, f64, &'static [&'static str]);

impl Lines {
    /// Returns the rows that have a figure and something beside it.
    pub fn table(&self, report: &Report<'_>) -> Table {
        let mut table = Table::new(&self.head.join(" | "));
        let report = report.part(self.at);
        for &(label, scale, pointers) in self.rows {
            let cell = |pointer: &&str| match pointer.strip_prefix('=') {
                Some(text) => text.to_owned(),
                None if pointer.is_empty() => String::new(),
                None => report.figure(pointer, scale),
            };
            push(&mut table, &report, label.to_owned(), pointers.iter().map(cell).collect());
        }
        table
    }
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

    const LINES: Lines = Lines {
        head: &["us", "Tailwater", "Linux"],
        at: "",
        rows: &[("p99", 1.0, &["/p99", "/linux_p99"]), ("p50", 1.0, &["/p50", "/linux_p50"])],
    };

    #[test]
    fn a_row_without_a_peer_is_left_out() {
        let results = Results::of([result("tcp", "abc", json!({"p99": 3.0, "linux_p99": 14.0, "p50": 1.5}))]);
        let table = LINES.table(&results.report("tcp").unwrap());
        assert_eq!(table.rows(), [["p99", "3.00", "14.0"]]);
    }

    #[test]
    fn a_disturbed_row_says_so() {
        let mut tcp = result("tcp", "abc", json!({"p99": 3.0, "linux_p99": 14.0}));
        tcp.noise_before[0].lost_percent = 5.1;
        let results = Results::of([tcp]);
        let text = section(&results, "tcp", |report| vec![LINES.table(report)]);
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
