//! Table 2: the cost of scheduling primitives, measured as by `tailwater-lab bench threads`.

use super::super::figure::{Claim, Context, Figure, Outcome, Table, draw, number};
use super::super::primitives::{self, ns, papers};
use crate::bench::threads::{ARACHNE, Operation, READY_QUEUE, Row};

/// The paper's rows and its names for them.
const OPERATIONS: [(Operation, &str); 6] = [
    (Operation::CreateRemote, "thread creation"),
    (Operation::Yield, "one-way yield"),
    (Operation::NullYield, "null yield"),
    (Operation::NotifyRemote, "condition notify"),
    (Operation::UnparkRemote, "signal"),
    (Operation::ExitTurnaround, "thread exit turnaround"),
];
const OWN: &str = "tailwater";
/// The paper's Arachne, and the systems of the paper that are measured here.
const PAPERS_OWN: &str = "arachne";
const OTHERS: [&str; 2] = ["std", "go"];
/// The paper's figures with the core's other hyperthread active: of Arachne, and with a ready
/// queue.
const HYPERTHREAD: [(Operation, f64, Option<f64>); 6] = [
    (Operation::CreateRemote, 320.0, Some(520.0)),
    (Operation::Yield, 149.0, Some(199.0)),
    (Operation::NullYield, 23.0, Some(24.0)),
    (Operation::NotifyRemote, 272.0, Some(471.0)),
    (Operation::UnparkRemote, 254.0, None),
    (Operation::ExitTurnaround, 449.0, Some(484.0)),
];

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let own = vec![
        "All systems in turn, round by round. The spread is the distance between the quartiles.".to_owned(),
        "The paper's Arachne, its variant with ready queues and uThreads were not run here; the paper's machine was a Xeon D-1548 \
         at 2.0 GHz, and each thread ran on a core of its own."
            .to_owned(),
    ];
    let (rows, notes) = primitives::measure(context, &OPERATIONS.map(|(op, _)| op), own)?;
    Ok(Outcome {
        svg: draw(figure.title, &primitives::panels(&rows, &OPERATIONS, is_drawn)),
        data: primitives::data(&rows, ARACHNE),
        summary: summary(&rows),
        claims: claims(&rows),
        notes,
    })
}

fn published(op: Operation, system: &str) -> Option<f64> {
    primitives::published(ARACHNE, op, system)
}

/// Returns whether a row is drawn: where the kernel switches it is ten times slower, and in the
/// table only.
fn is_drawn(_op: Operation, row: &Row) -> bool {
    row.system != "std"
}

fn summary(rows: &[Row]) -> Table {
    primitives::summary(rows, &OPERATIONS, "the paper's ns | with hyperthread | ready queue", |op, row| {
        // Arachne's figures stand beside Tailwater.
        let own = row.system == OWN;
        let theirs = published(op, if own { PAPERS_OWN } else { row.system });
        let hyperthread = HYPERTHREAD.iter().find(|(of, ..)| own && *of == op).map(|(_, ns, _)| *ns);
        let ready_queue = own.then(|| published(op, READY_QUEUE)).flatten();
        [theirs, hyperthread, ready_queue].map(papers).to_vec()
    })
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let mut claims: Vec<Claim> = OPERATIONS.into_iter().map(|(op, name)| cost(rows, op, name)).collect();
    for (op, name) in [OPERATIONS[0], OPERATIONS[3]] {
        claims.extend(OTHERS.map(|other| faster(rows, op, name, other)).into_iter().flatten());
    }
    claims
}

/// Judges the cost of a primitive by that of the paper's Arachne, in nanoseconds.
fn cost(rows: &[Row], op: Operation, name: &str) -> Claim {
    let theirs = published(op, PAPERS_OWN).unwrap_or_default();
    let paper = format!("{name}: {theirs:.0} ns");
    match ns(rows, op, OWN) {
        Some(own) => Claim::new(&paper, format!("Tailwater {} ns", number(own)), own <= theirs),
        None => Claim::not_comparable(&paper, "not measured: it takes two cores".to_owned()),
    }
}

/// Judges how much faster than another system Arachne is; `None` if the paper does not have it.
fn faster(rows: &[Row], op: Operation, name: &str, other: &str) -> Option<Claim> {
    let papers = published(op, other)? / published(op, PAPERS_OWN)?;
    let paper = format!("{name}: {} times faster than {other}", number(papers));
    let (Some(own), Some(theirs)) = (ns(rows, op, OWN), ns(rows, op, other)) else {
        return Some(Claim::not_comparable(&paper, format!("Tailwater or {other} was not measured")));
    };
    Some(Claim::new(&paper, format!("{} times", number(theirs / own)), theirs / own >= papers))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::super::super::primitives::tests::row;
    use super::*;

    #[test]
    fn each_claim_follows_the_numbers() {
        let rows = [
            row(Operation::CreateRemote, OWN, 200.0),
            row(Operation::CreateRemote, "std", 20_000.0),
            row(Operation::CreateRemote, "go", 300.0),
            row(Operation::Yield, OWN, 84.0),
            row(Operation::UnparkRemote, OWN, 233.0),
            row(Operation::NotifyRemote, "std", 1000.0),
        ];
        let verdicts: Vec<_> = claims(&rows).iter().map(|claim| claim.verdict).collect();
        let costs = [Reached, NotReached, NotComparable, NotComparable, Reached, NotComparable];
        assert_eq!(verdicts[..6], costs);
        // 100 times kernel threads, where the paper has 48; 1.5 times Go, where it has 1.6.
        assert_eq!(verdicts[6..], [Reached, NotReached, NotComparable, NotComparable]);
    }

    #[test]
    fn the_papers_columns_stand_beside_tailwaters() {
        let rows = [row(Operation::Yield, OWN, 20.0), row(Operation::Yield, "tokio", 60.0)];
        let summary = summary(&rows);
        assert_eq!(summary.rows()[0][4..], ["83", "149", "137"]);
        assert_eq!(summary.rows()[1][4..], ["", "", ""]);
        assert_eq!(primitives::panels(&rows, &OPERATIONS, is_drawn)[1].bars.len(), 2);
        assert_eq!(HYPERTHREAD.map(|(op, ..)| op), OPERATIONS.map(|(op, _)| op));
    }
}
