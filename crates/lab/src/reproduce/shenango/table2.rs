//! Table 2: thread operations, measured as by `tailwater-lab bench threads`.

use super::super::figure::{Claim, Context, Figure, Outcome, Table, draw, number};
use super::super::primitives::{self, ns, papers};
use crate::bench::threads::{Operation, Row, SHENANGO};

/// The paper's operations and its names for them.
const OPERATIONS: [(Operation, &str); 4] = [
    (Operation::Mutex, "uncontended mutex"),
    (Operation::Yield, "yield ping pong"),
    (Operation::Condvar, "condvar ping pong"),
    (Operation::SpawnJoin, "spawn-join"),
];
const OWN: &str = "tailwater";
/// The systems of the paper that are measured here.
const OTHERS: [&str; 2] = ["std", "go"];

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let own = vec![
        "One core; all systems in turn, round by round. The spread is the distance between the quartiles.".to_owned(),
        "The paper's systems without a column of their own here (Arachne) were not run; its machine was a Xeon E5-2650v4 at \
         2.2 GHz."
            .to_owned(),
    ];
    let (rows, notes) = primitives::measure(context, &OPERATIONS.map(|(op, _)| op), own)?;
    Ok(Outcome {
        svg: draw(figure.title, &primitives::panels(&rows, &OPERATIONS, is_drawn)),
        data: primitives::data(&rows, SHENANGO),
        summary: summary(&rows),
        claims: claims(&rows),
        notes,
    })
}

fn published(op: Operation, system: &str) -> Option<f64> {
    primitives::published(SHENANGO, op, system)
}

/// Returns whether a row is drawn: kernel threads are a hundred times slower where the kernel
/// switches, and are in the table only.
fn is_drawn(op: Operation, row: &Row) -> bool {
    op == Operation::Mutex || row.system != "std"
}

fn summary(rows: &[Row]) -> Table {
    // Shenango's column stands beside Tailwater, which follows its design.
    let theirs = |op, row: &Row| published(op, if row.system == OWN { "shenango" } else { row.system });
    primitives::summary(rows, &OPERATIONS, "the paper's ns", |op, row| vec![papers(theirs(op, row))])
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    OPERATIONS.into_iter().filter_map(|(op, name)| claim(rows, op, name)).collect()
}

/// Returns the claim on an operation; `None` if the paper does not have it.
fn claim(rows: &[Row], op: Operation, name: &str) -> Option<Claim> {
    let shenango = published(op, "shenango")?;
    let others: Vec<(&str, f64)> =
        OTHERS.iter().filter_map(|&system| Some((system, ns(rows, op, system)?))).collect();
    // Only systems that are measured here: the distance to a missing system would allow too much.
    let theirs = |&(system, _): &(&'static str, f64)| Some((system, published(op, system)?));
    let mut paper: Vec<(&str, f64)> = others.iter().filter_map(theirs).collect();
    paper.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some(&fastest) = paper.first() else {
        let paper_text = format!("{name}: Shenango {shenango:.0} ns");
        return Some(Claim::not_comparable(&paper_text, "none of the other systems was measured".to_owned()));
    };
    let text = |systems: &[(&str, f64)]| -> String {
        systems.iter().map(|(system, ns)| format!("{system} {}", number(*ns))).collect::<Vec<_>>().join(", ")
    };
    let is_first = shenango < fastest.1;
    let judgement = if is_first {
        "the fastest of those also measured here".to_owned()
    } else {
        format!("not the fastest, {:.2} times {}", shenango / fastest.1, fastest.0)
    };
    let paper_text = format!("{name}: Shenango {shenango:.0} ns, {judgement} ({})", text(&paper));
    let Some(own) = ns(rows, op, OWN) else {
        return Some(Claim::not_comparable(&paper_text, "not measured".to_owned()));
    };
    let best = others.iter().map(|(_, ns)| *ns).fold(f64::INFINITY, f64::min);
    // Where Shenango is not the fastest, Tailwater may be as far behind as Shenango is there.
    let holds = own <= best * (shenango / fastest.1).max(1.0);
    Some(Claim::new(&paper_text, format!("Tailwater {} ns ({})", number(own), text(&others)), holds))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict;
    use super::super::super::primitives::tests::row;
    use super::*;

    #[test]
    fn each_claim_follows_the_numbers() {
        let rows = [
            row(Operation::Mutex, OWN, 14.0),
            row(Operation::Mutex, "std", 12.0),
            row(Operation::Mutex, "go", 10.0),
            row(Operation::Yield, OWN, 20.0),
            row(Operation::Yield, "std", 500.0),
            row(Operation::Yield, "go", 90.0),
            row(Operation::Condvar, OWN, 200.0),
            row(Operation::Condvar, "go", 150.0),
        ];
        let verdicts: Vec<_> = claims(&rows).iter().map(|claim| claim.verdict).collect();
        use Verdict::{NotComparable, NotReached, Reached};
        // 1.4 times the fastest, where the paper has 37 to 24; the spawn was not measured.
        assert_eq!(verdicts, [Reached, Reached, NotReached, NotComparable]);
        let slow = [row(Operation::Mutex, OWN, 16.0), row(Operation::Mutex, "go", 10.0)];
        assert_eq!(claims(&slow)[0].verdict, NotReached);
    }

    #[test]
    fn the_distance_allowed_is_the_papers_from_systems_that_are_measured_here() {
        // Without Go the paper's distance is 37 to 30 (pthreads), not 37 to 24.
        let without_go = |own| [row(Operation::Mutex, OWN, own), row(Operation::Mutex, "std", 10.0)];
        assert_eq!(claims(&without_go(14.0))[0].verdict, Verdict::NotReached);
        assert_eq!(claims(&without_go(12.0))[0].verdict, Verdict::Reached);
        assert!(
            claims(&without_go(12.0))[0].paper.ends_with("(std 30.0)"),
            "{:?}",
            claims(&without_go(12.0))
        );
    }

    #[test]
    fn the_papers_column_stands_beside_tailwaters() {
        let rows = [row(Operation::Yield, OWN, 20.0), row(Operation::Yield, "tokio", 60.0)];
        let summary = summary(&rows);
        assert_eq!((&summary.rows()[0][4][..], &summary.rows()[1][4][..]), ("52", ""));
        assert_eq!(primitives::panels(&rows, &OPERATIONS, is_drawn)[1].bars.len(), 2);
    }
}
