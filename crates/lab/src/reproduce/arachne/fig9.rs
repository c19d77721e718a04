//! Figure 9: the cost of a signal to a parked thread, over the number of other parked threads.
//!
//! Arachne's dispatcher has no run queue: it scans the contexts of its core, parked ones included,
//! until it finds one that is runnable. Tailwater's kthreads do not look at parked threads.

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Panel, Table, draw, number};
use super::super::primitives::{self, numbers, published, spread};
use crate::bench::threads::{ARACHNE, CROWDS, Operation, READY_QUEUE, Row};

const OWN: &str = "tailwater";
/// As many other threads as a core of Arachne has room for.
const PAPERS_MOST: u64 = 56;
/// By how many nanoseconds they make a signal longer in the paper, at most.
const PAPERS_MORE_NS: f64 = 100.0;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let quick = context.options.quick;
    let is_chosen = |op: &Operation| !quick || others(*op).is_some_and(|n| n == 0 || n == PAPERS_MOST);
    let operations: Vec<Operation> = Operation::crowded().filter(is_chosen).collect();
    let own = "All systems in turn, round by round; medians. Those that cannot unpark a thread by its handle are missing. The \
        signal comes from a core that is busy, so the parked thread runs on the other one.";
    let (rows, notes) = primitives::measure(context, &operations, vec![own.to_owned()])?;
    Ok(Outcome {
        svg: draw(figure.title, &[panel(&rows)]),
        data: data(&rows),
        summary: summary(&rows),
        claims: claims(&rows),
        notes,
    })
}

/// Returns how many other threads are parked.
fn others(op: Operation) -> Option<u64> {
    let Operation::UnparkAmong(crowd) = op else { return None };
    CROWDS.get(usize::from(crowd)).map(|(others, _)| *others)
}

/// Returns a system's figures: the number of others, and nanoseconds.
fn course(rows: &[Row], system: &str) -> Vec<(u64, f64)> {
    rows.iter()
        .filter(|row| row.system == system)
        .filter_map(|row| Some((others(row.operation?)?, row.ns)))
        .collect()
}

fn panel(rows: &[Row]) -> Panel {
    let mut systems: Vec<&str> = Vec::new();
    // Kernel threads are ten times slower: in the table only.
    for row in rows.iter().filter(|row| row.system != "std") {
        if !systems.contains(&row.system) {
            systems.push(row.system);
        }
    }
    // Up to what a core of Arachne has room for.
    let line = |system: &&str| {
        let points = course(rows, system).into_iter().filter(|(others, _)| *others <= PAPERS_MOST);
        Line::new(*system, points.map(|(others, ns)| (others as f64, ns)).collect())
    };
    Panel::new("", "other parked threads", "ns until the thread runs", systems.iter().map(line).collect())
}

fn data(rows: &[Row]) -> Table {
    let mut table = Table::new("system | others | ns | best_ns | spread");
    for row in rows {
        let Some(others) = row.operation.and_then(others) else { continue };
        table.row([row.system.to_owned(), others.to_string()].into_iter().chain(numbers(row)));
    }
    table
}

fn summary(rows: &[Row]) -> Table {
    let mut table = Table::new("system | other parked threads | ns | spread");
    for row in rows {
        let Some(others) = row.operation.and_then(others) else { continue };
        table.row([row.system.to_owned(), others.to_string(), number(row.ns), spread(row)]);
    }
    table
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    const FLAT: &str = "56 other blocked threads on the core make a signal less than 100 ns longer";
    let queue_ns = published(ARACHNE, Operation::NotifyRemote, READY_QUEUE).unwrap_or_default();
    let below =
        format!("even then it takes less than with a ready queue, whose notification takes {queue_ns:.0} ns");
    let own = course(rows, OWN);
    let of = |wanted: u64| own.iter().find(|(others, _)| *others == wanted).map(|(_, ns)| *ns);
    let (Some(none), Some(all)) = (of(0), of(PAPERS_MOST)) else {
        return [FLAT, &below]
            .map(|paper| Claim::not_comparable(paper, "not measured: it takes two cores".to_owned()))
            .into();
    };
    let beyond = own.last().filter(|(others, _)| *others > PAPERS_MOST);
    let beyond = beyond.map_or(String::new(), |(others, ns)| format!("; {} ns among {others}", number(*ns)));
    let numbers = format!("{} ns alone, {} ns among {PAPERS_MOST}{beyond}", number(none), number(all));
    vec![
        Claim::new(FLAT, numbers, all - none < PAPERS_MORE_NS),
        Claim::new(&below, format!("{} ns", number(all)), all < queue_ns),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::super::super::primitives::tests::row;
    use super::*;

    /// Returns rows with these nanoseconds, by the crowds.
    fn rows(system: &'static str, ns: [f64; CROWDS.len()]) -> Vec<Row> {
        Operation::crowded().zip(ns).map(|(op, ns)| row(op, system, ns)).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let verdicts = |ns| claims(&rows(OWN, ns)).iter().map(|claim| claim.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts([200.0, 205.0, 210.0, 230.0, 250.0, 260.0, 900.0]), [Reached; 2]);
        assert_eq!(verdicts([200.0, 0.0, 0.0, 0.0, 0.0, 300.0, 0.0]), [NotReached, Reached]);
        assert_eq!(verdicts([500.0, 0.0, 0.0, 0.0, 0.0, 510.0, 0.0]), [Reached, NotReached]);
        assert_eq!(claims(&[]).iter().map(|claim| claim.verdict).collect::<Vec<_>>(), [NotComparable; 2]);
    }

    #[test]
    fn the_drawing_ends_where_a_core_of_the_paper_is_full() {
        let mut all = rows(OWN, [1.0; CROWDS.len()]);
        all.extend(rows("std", [9.0; CROWDS.len()]));
        let lines = panel(&all).lines;
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].points.last(), Some(&(56.0, 1.0)));
        assert_eq!(data(&all).rows().len(), 2 * CROWDS.len());
    }
}
