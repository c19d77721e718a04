//! Text tables for people: columns as wide as their widest cell.
//!
//! Owns the alignment: the first column to the left, the others, mostly numbers, to the right.

/// Rows of cells under a header.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with this header.
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    /// Adds a row; cells beyond the header's are kept, missing cells are blank.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &'_ Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|c| self.rows.iter().map(|row| cell(row, c).chars().count()).max().unwrap_or(0))
            .collect();
        for row in &self.rows {
            let line = widths.iter().enumerate().map(|(c, &width)| match c {
                0 => format!("{:<width$}", cell(row, c)),
                _ => format!("  {:>width$}", cell(row, c)),
            });
            writeln!(f, "{}", line.collect::<String>().trim_end())?;
        }
        Ok(())
    }
}

/// Returns a number with three significant digits, or all those before the point: 7.71, 23.4, 1234.
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

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["name", "us"]);
        table.row(["a longer name".to_owned(), "7".to_owned()]);
        table.row(["b".to_owned(), "1234".to_owned()]);
        assert_eq!(table.to_string(), "name             us\na longer name     7\nb              1234\n");
    }

    #[test]
    fn numbers_keep_three_digits_or_so() {
        assert_eq!([7.713, 23.44, 1234.4].map(number), ["7.71", "23.4", "1234"]);
    }
}
