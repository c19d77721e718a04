//! The common part of tables and figures of thread operations, which are measured as by
//! `tailwater-lab bench threads`.
//!
//! Owns their notes, their bars, and the table of all numbers beside those of a paper.

use super::figure::{Bar, Context, Panel, Table, number};
use crate::bench::threads::{Operation, Published, Row, measure_rows};

/// Rounds of a quick run of `bench threads`.
const QUICK_ROUNDS: usize = 3;

/// Measures operations of all systems in turn; returns the rows and the notes, `own` ones first.
pub fn measure(
    context: &Context,
    operations: &[Operation],
    own: Vec<String>,
) -> anyhow::Result<(Vec<Row>, Vec<String>)> {
    let quick = context.options.quick;
    let (rows, go) = measure_rows(operations, quick, &context.machine, context.interrupt()?)?;
    Ok((rows, context.notes(own.into_iter().chain(go), QUICK_ROUNDS)?))
}

/// Returns the median time of an operation of a system, in nanoseconds.
pub fn ns(rows: &[Row], op: Operation, system: &str) -> Option<f64> {
    rows.iter().find(|row| row.operation == Some(op) && row.system == system).map(|row| row.ns)
}

/// Returns a paper's time of an operation of a system, in nanoseconds.
pub fn published(paper: &[Published], op: Operation, system: &str) -> Option<f64> {
    paper.iter().find(|figure| figure.op == op && figure.system == system).map(|figure| figure.ns)
}

/// Returns the bar of a row: the median, and half of the spread to either side.
pub fn bar(row: &Row) -> Bar {
    let half = row.ns * row.spread / 2.0;
    Bar { name: row.system.to_owned(), value: row.ns, range: (row.ns - half, row.ns + half) }
}

/// Returns a chart of bars for each of these operations, of the rows that are `drawn`.
pub fn panels(
    rows: &[Row],
    operations: &[(Operation, &str)],
    drawn: impl Fn(Operation, &Row) -> bool,
) -> Vec<Panel> {
    let panel = |&(op, title): &(Operation, &str)| {
        let own = rows.iter().filter(|row| row.operation == Some(op) && drawn(op, row));
        Panel::of_bars(title, "ns", own.map(bar).collect())
    };
    operations.iter().map(panel).collect()
}

/// Returns a table of these operations by their names, with the columns `more` of each row.
pub fn summary(
    rows: &[Row],
    operations: &[(Operation, &str)],
    more: &str,
    cells: impl Fn(Operation, &Row) -> Vec<String>,
) -> Table {
    let mut table = Table::new(&format!("operation | system | ns | spread | {more}"));
    for &(op, name) in operations {
        for row in rows.iter().filter(|row| row.operation == Some(op)) {
            let first = [name.to_owned(), row.system.to_owned(), number(row.ns), spread(row)];
            table.row(first.into_iter().chain(cells(op, row)));
        }
    }
    table
}

/// Returns a paper's time as a table cell.
pub fn papers(ns: Option<f64>) -> String {
    ns.map_or_else(String::new, |ns| format!("{ns:.0}"))
}

/// Returns a row's spread as a table cell.
pub fn spread(row: &Row) -> String {
    format!("{:.0} %", 100.0 * row.spread)
}

/// Returns the cells of the columns `ns`, `best_ns` and `spread` of tables of all numbers.
pub fn numbers(row: &Row) -> [String; 3] {
    [format!("{:.2}", row.ns), format!("{:.2}", row.min_ns), format!("{:.4}", row.spread)]
}

/// Returns a table with every number of each row, and the paper's beside them.
pub fn data(rows: &[Row], paper: &[Published]) -> Table {
    let mut table = Table::new("operation | system | ns | best_ns | spread | paper_ns");
    for row in rows {
        let theirs = row.operation.and_then(|op| published(paper, op, row.system));
        let theirs = theirs.map_or_else(String::new, |ns| ns.to_string());
        let names = [row.op.clone(), row.system.to_owned()];
        table.row(names.into_iter().chain(numbers(row)).chain([theirs]));
    }
    table
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::threads::SHENANGO;

    /// Returns a row with these nanoseconds in every round.
    pub fn row(op: Operation, system: &'static str, ns: f64) -> Row {
        Row { op: op.name().to_owned(), system, ns, min_ns: ns, spread: 0.1, kib: None, operation: Some(op) }
    }

    #[test]
    fn the_papers_number_stands_beside_that_of_the_same_system() {
        let rows = [row(Operation::Yield, "go", 100.0), row(Operation::Yield, "tokio", 60.0)];
        let table = data(&rows, SHENANGO);
        assert_eq!((&table.rows()[0][5][..], &table.rows()[1][5][..]), ("109", ""));
        assert_eq!(ns(&rows, Operation::Yield, "tokio"), Some(60.0));
        assert_eq!(ns(&rows, Operation::Mutex, "tokio"), None);
        assert_eq!((bar(&rows[0]).range, spread(&rows[0])), ((95.0, 105.0), "10 %".to_owned()));
    }
}
