//! The figures as a table and as a document, with the papers' figures beside them.

use serde::Serialize;

use super::operation::{ARACHNE, Operation, Published, READY_QUEUE, SHENANGO};
use super::rounds::Row;
use tailwater_testbed::table::{Table, number};

/// The figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    pub rows: Vec<Row>,
    /// Number of idle threads at a time, where a system allows so many.
    pub idle_threads: u64,
    /// The Go toolchain, if there is one.
    pub go: Option<String>,
}

/// Returns the table of nanoseconds and cycles at `hz`.
pub fn table(rows: &[Row], hz: u64) -> Table {
    let mut table = Table::new("operation | system | ns | best | spread | cycles | Shenango | Arachne");
    let mut begun: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.kib.is_none()) {
        if !begun.contains(&row.op.as_str()) {
            begun.push(&row.op);
            paper_rows(row.operation, &mut table);
        }
        table.row([
            row.op.clone(),
            row.system.to_owned(),
            number(row.ns),
            number(row.min_ns),
            percent(row.spread),
            number(row.ns * hz as f64 / 1e9),
            figure(SHENANGO, row.operation, row.system),
            figure(ARACHNE, row.operation, row.system),
        ]);
    }
    table
}

/// Returns the table of idle threads.
pub fn idle_table(rows: &[Row]) -> Table {
    let mut table = Table::new("idle threads | system | KiB each | ns each | best | spread | million/s");
    for row in rows {
        let Some(kib) = row.kib else { continue };
        table.row([
            row.op.clone(),
            row.system.to_owned(),
            number(kib),
            number(row.ns),
            number(row.min_ns),
            percent(row.spread),
            number(1000.0 / row.ns),
        ]);
    }
    table
}

/// Adds rows for the systems that only the papers measured.
fn paper_rows(op: Option<Operation>, table: &mut Table) {
    let systems = [
        ("shenango", "(Shenango)"),
        ("arachne", "(Arachne)"),
        (READY_QUEUE, "(Arachne RQ)"),
        ("uthreads", "(uThreads)"),
    ];
    for (system, name) in systems {
        let figures = [figure(SHENANGO, op, system), figure(ARACHNE, op, system)];
        if let Some(op) = op
            && figures.iter().any(|figure| !figure.is_empty())
        {
            let blank = std::iter::repeat_n(String::new(), 4);
            table.row([op.name().to_owned(), name.to_owned()].into_iter().chain(blank).chain(figures));
        }
    }
}

/// Returns a paper's figure for an operation of a system; blank without one.
fn figure(paper: &[Published], op: Option<Operation>, system: &str) -> String {
    let found = paper.iter().find(|p| Some(p.op) == op && p.system == system);
    found.map_or_else(String::new, |p| format!("{:.0}", p.ns))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(op: Operation, system: &'static str, kib: Option<f64>) -> Row {
        Row {
            op: op.name().to_owned(),
            system,
            ns: 10.0,
            min_ns: 9.0,
            spread: 0.25,
            kib,
            operation: Some(op),
        }
    }

    #[test]
    fn the_papers_figures_stand_beside_those_of_the_same_system() {
        let rows = [row(Operation::Yield, "tailwater", None), row(Operation::Yield, "go", None)];
        let text = table(&rows, 2_500_000_000).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["yield", "(Shenango)", "52"]);
        assert_eq!(lines[2], ["yield", "(Arachne)", "79", "83"]);
        assert_eq!(lines[3], ["yield", "(Arachne", "RQ)", "137"]);
        assert_eq!(lines[5], ["yield", "tailwater", "10.0", "9.00", "25", "%", "25.0"]);
        assert_eq!(lines[6].last(), Some(&"109"), "{text}");
        assert_eq!(lines.len(), 7, "{text}");
    }

    #[test]
    fn idle_threads_have_a_table_of_their_own() {
        let rows = [row(Operation::Idle, "tailwater", Some(9.5)), row(Operation::Mutex, "std", None)];
        assert!(!table(&rows, 1_000_000_000).to_string().contains("9.50"));
        let text = idle_table(&rows).to_string();
        assert!(text.contains("9.50") && text.contains("100") && !text.contains("std"), "{text}");
    }

    #[test]
    fn the_document_has_the_keys_that_its_readers_know() {
        let rows = vec![row(Operation::Mutex, "std", None), row(Operation::Idle, "go", Some(2.5))];
        let report = Report { rows, idle_threads: 1000, go: None };
        let json = serde_json::to_value(&report).unwrap();
        let expected =
            serde_json::json!({"op": "mutex", "system": "std", "ns": 10.0, "min_ns": 9.0, "spread": 0.25});
        assert_eq!(json["rows"][0], expected);
        assert_eq!(json["rows"][1]["kib"], 2.5);
    }
}
