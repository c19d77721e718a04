//! Tables for people (aligned text) and for programs (CSV), and writing result files.
//!
//! Owns formatting only. Numbers are formatted by the caller or by the helpers here, always the
//! same way, so that equal results are equal bytes.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;

use crate::stats::Estimate;

/// A table of text cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table with these column names.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        Self { header: columns.iter().map(|&c| c.to_owned()).collect(), rows: Vec::new() }
    }

    /// Appends a row.
    ///
    /// # Panics
    ///
    /// If it has not as many cells as the table has columns.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.header.len(), "a row must fill every column");
        self.rows.push(row);
    }

    /// Returns the rows of this table, then those of another one, under the columns of both; cells
    /// that a row does not have are blank.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        let more = other.header.iter().filter(|&column| !self.header.contains(column));
        let header: Vec<String> = self.header.iter().chain(more).cloned().collect();
        let widened = |table: &Self| -> Vec<Vec<String>> {
            let at = |column: &String| table.header.iter().position(|own| own == column);
            let places: Vec<Option<usize>> = header.iter().map(at).collect();
            let cell = |row: &Vec<String>, place: &Option<usize>| {
                place.map_or_else(String::new, |at| row[at].clone())
            };
            table.rows.iter().map(|row| places.iter().map(|place| cell(row, place)).collect()).collect()
        };
        let rows = [widened(self), widened(other)].concat();
        Self { header, rows }
    }

    /// Returns the column names.
    #[must_use]
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Returns the rows, each as long as the header.
    #[must_use]
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Returns aligned text: the first column to the left, the others to the right.
    #[must_use]
    pub fn to_text(&self) -> String {
        let width = |i: usize| {
            let cells = self.rows.iter().map(|r| &r[i]).chain([&self.header[i]]);
            cells.map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(&self.header).chain(&self.rows) {
            let mut line = String::new();
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ =
                    if i == 0 { write!(line, "{cell:<width$}") } else { write!(line, "  {cell:>width$}") };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns comma-separated values with a header line (RFC 4180 quoting, line feeds only).
    #[must_use]
    pub fn to_csv(&self) -> String {
        let quote = |cell: &String| {
            if cell.contains([',', '"', '\n']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell.clone()
            }
        };
        let line = |row: &Vec<String>| row.iter().map(quote).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(&self.header).chain(&self.rows).map(line).collect()
    }

    /// Returns a Markdown table; bars in cells are escaped.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let escaped = |row: &[String]| row.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>();
        let line = |row: &Vec<String>| format!("| {} |\n", escaped(row).join(" | "));
        let rule = format!("|{}\n", "---|".repeat(self.header.len()));
        line(&self.header) + &rule + &self.rows.iter().map(line).collect::<String>()
    }
}

/// Formats nanoseconds as microseconds with three significant digits or more.
#[must_use]
pub fn us(ns: f64) -> String {
    let us = ns / 1_000.0;
    if us >= 100.0 {
        format!("{us:.0}")
    } else if us >= 10.0 {
        format!("{us:.1}")
    } else {
        format!("{us:.2}")
    }
}

/// Returns a value with its relative error in percent: `12.3 ±0.4%`.
#[must_use]
pub fn us_with_error(e: &Estimate) -> String {
    if e.error.is_finite() && e.value > 0.0 {
        format!("{} ±{:.1}%", us(e.value), 100.0 * e.relative_error())
    } else {
        us(e.value)
    }
}

/// Returns a fraction as a percentage.
#[must_use]
pub fn percent(fraction: f64) -> String {
    format!("{:.1}%", 100.0 * fraction)
}

/// Writes a result file, creating its folder.
///
/// # Errors
///
/// If it cannot be written; the message names it.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot create folder {}", parent.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_tables_have_the_columns_of_both() {
        let table = |columns: &[&str], cells: &[&str]| {
            let mut table = Table::new(columns);
            table.push(cells.iter().map(|&cell| cell.to_owned()).collect());
            table
        };
        let joined = table(&["a", "b"], &["1", "2"]).joined(&table(&["c", "b"], &["3", "4"]));
        assert_eq!(joined.header(), ["a", "b", "c"]);
        assert_eq!(joined.rows(), [["1", "2", ""], ["", "4", "3"]]);
    }

    #[test]
    fn text_is_aligned_and_csv_is_quoted() {
        let mut table = Table::new(&["policy", "p99"]);
        table.push(vec!["c-FCFS".into(), "9.5".into()]);
        table.push(vec!["PS, 1us".into(), "10.25".into()]);
        assert_eq!(table.to_text(), "policy     p99\nc-FCFS     9.5\nPS, 1us  10.25\n");
        assert_eq!(table.to_csv(), "policy,p99\nc-FCFS,9.5\n\"PS, 1us\",10.25\n");
        assert_eq!(table.to_markdown().lines().nth(1), Some("|---|---|"));
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([us(1_234.0), us(12_345.0), us(1_234_567.0)], ["1.23", "12.3", "1235"]);
        assert_eq!(us_with_error(&Estimate { value: 1_000.0, error: 10.0 }), "1.00 ±1.0%");
    }
}
