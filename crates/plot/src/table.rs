//! Tables of text cells: aligned text for people, CSV for programs, Markdown for pages.
//!
//! Owns formatting only. Cells are formatted by the caller, always the same way, so that equal
//! results are equal bytes.

use std::fmt;

/// Rows of cells under a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table with these columns, whose names are separated by ` | ` as in
    /// Markdown.
    #[must_use]
    pub fn new(columns: &str) -> Self {
        Self { header: columns.split(" | ").map(str::to_owned).collect(), rows: Vec::new() }
    }

    /// Appends a row. Cells that it lacks are blank, and so is the name of a column that only it
    /// has.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut row: Vec<String> = cells.into_iter().collect();
        let columns = row.len().max(self.header.len());
        for cells in self.rows.iter_mut().chain([&mut self.header, &mut row]) {
            cells.resize(columns, String::new());
        }
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

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.header).chain(&self.rows)
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
        self.lines().map(|row| row.iter().map(quote).collect::<Vec<_>>().join(",") + "\n").collect()
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

/// Aligned text: the first column to the left, the others, mostly numbers, to the right.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.lines().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        for row in self.lines() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            });
            writeln!(f, "{}", cells.collect::<String>().trim_end())?;
        }
        Ok(())
    }
}

/// Returns a number with three significant digits, or all those before the point: 7.71, 23.4, 1234.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &str, rows: &[&[&str]]) -> Table {
        let mut table = Table::new(columns);
        rows.iter().for_each(|row| table.row(row.iter().map(|&cell| cell.to_owned())));
        table
    }

    #[test]
    fn text_is_aligned_and_csv_is_quoted() {
        let table = table("policy | p99", &[&["c-FCFS", "9.5"], &["PS, 1us", "10.25"]]);
        assert_eq!(table.to_string(), "policy     p99\nc-FCFS     9.5\nPS, 1us  10.25\n");
        assert_eq!(table.to_csv(), "policy,p99\nc-FCFS,9.5\n\"PS, 1us\",10.25\n");
        assert_eq!(table.to_markdown().lines().nth(1), Some("|---|---|"));
    }

    #[test]
    fn a_shorter_row_ends_in_blanks_and_a_longer_one_widens_the_table() {
        let table = table("a | b", &[&["1"], &["2", "3", "4"]]);
        assert_eq!(table.header(), ["a", "b", ""]);
        assert_eq!(table.rows(), [["1", "", ""], ["2", "3", "4"]]);
    }

    #[test]
    fn joined_tables_have_the_columns_of_both() {
        let joined = table("a | b", &[&["1", "2"]]).joined(&table("c | b", &[&["3", "4"]]));
        assert_eq!(joined.header(), ["a", "b", "c"]);
        assert_eq!(joined.rows(), [["1", "2", ""], ["", "4", "3"]]);
    }

    #[test]
    fn numbers_keep_three_digits_or_so() {
        assert_eq!([7.713, 23.44, 1234.4].map(number), ["7.71", "23.4", "1234"]);
    }
}
