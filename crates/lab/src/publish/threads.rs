//! The table of thread operations: a row for each, a column for each system.
//!
//! Owns the words for the operations. The report names them as `bench threads` does.

use tailwater_plot::table::Table;

use super::lines::push;
use super::results::Report;

/// Columns, and the systems as the report names them.
const SYSTEMS: [(&str, &str); 6] = [
    ("Tailwater", "tailwater"),
    ("shared TLS", "tailwater-shared-tls"),
    ("Go", "go"),
    ("Tokio", "tokio"),
    ("`may`", "may"),
    ("`std`", "std"),
];

/// Operations as the report names them, and in words.
const OPERATIONS: [(&str, &str); 20] = [
    ("mutex", "uncontended mutex"),
    ("yield", "yield, one switch"),
    ("null_yield", "yield with no other thread"),
    ("condvar", "condition variable, one hop"),
    ("spawn_join", "start and join"),
    ("fan_out", "1000 started, then joined, each"),
    ("channel", "message sent and received, one thread"),
    ("channel_many", "the same, channel with many receivers"),
    ("channel_hop", "message between two threads, one hop"),
    ("select", "select over channels, one ready"),
    ("rwlock_read", "reader-writer lock, read"),
    ("rwlock_write", "reader-writer lock, write"),
    ("exit_turnaround", "exit to the next thread's first instruction"),
    ("create_remote", "creation to first instruction, other core"),
    ("notify_remote", "notification of a thread on another core"),
    ("unpark_remote", "unparking of a thread on another core"),
    ("throughput_1", "a thread starts the next, one core"),
    ("throughput_2", "the same, two cores"),
    ("idle_fresh", "creation of an idle thread, new stack"),
    ("idle_recycled", "the same, used stack"),
];

/// Returns the table of times.
pub fn table(report: &Report<'_>) -> Table {
    let head: Vec<&str> = ["ns"].into_iter().chain(SYSTEMS.map(|(column, _)| column)).collect();
    let mut table = Table::new(&head.join(" | "));
    for (operation, words) in OPERATIONS {
        let cells = SYSTEMS.map(|(_, system)| figure(report, operation, system));
        push(&mut table, report, words.to_owned(), cells.to_vec());
    }
    table
}

/// Returns the nanoseconds of an operation of a system; blank without.
pub fn figure(report: &Report<'_>, operation: &str, system: &str) -> String {
    row(report, operation, system).map_or_else(String::new, |row| row.figure("/ns", 1.0))
}

/// Returns the median nanoseconds of an operation of a system.
pub fn median(report: &Report<'_>, operation: &str, system: &str) -> Option<f64> {
    row(report, operation, system)?.median("/ns")
}

fn row<'a>(report: &Report<'a>, operation: &str, system: &str) -> Option<Report<'a>> {
    let is_it = |row: &Report<'_>| row.text("/op") == operation && row.text("/system") == system;
    report.items("/rows").into_iter().find(is_it)
}
