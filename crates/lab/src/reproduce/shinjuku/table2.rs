//! Table 2: context switches, measured as by `tailwater-lab bench threads`.

use super::super::figure::{Claim, Context, Figure, Outcome, Panel, Table, draw, number};
use super::super::primitives::{self, bar, numbers};
use crate::bench::threads::{Operation, Row};

const OWN: &str = "tailwater";
const KERNEL: &str = "std";
/// Shinjuku's switches, in cycles.
const PAPERS_CYCLES: (f64, f64) = (36.0, 109.0);
/// "Significant": a switch by the kernel costs at least this many of ours.
const SIGNIFICANT: f64 = 2.0;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let own = vec![
        "One core; all systems in turn, round by round. A yield is one switch with what the scheduler does for it.".to_owned(),
        "The paper's swapcontext of ucontext is not run.".to_owned(),
    ];
    let (rows, notes) = primitives::measure(context, &[Operation::Yield], own)?;
    let hz = context.machine.tsc_hz as f64;
    Ok(Outcome {
        svg: draw(figure.title, &[panel(&rows)]),
        data: data(&rows, hz),
        summary: data(&rows, hz),
        claims: claims(&rows, hz),
        notes,
    })
}

/// Returns the panel. Kernel threads are in the table only: they would hide the others.
fn panel(rows: &[Row]) -> Panel {
    Panel::of_bars("yield", "ns", rows.iter().filter(|row| row.system != KERNEL).map(bar).collect())
}

fn cycles(row: &Row, hz: f64) -> f64 {
    row.ns * hz / 1e9
}

fn data(rows: &[Row], hz: f64) -> Table {
    let mut table = Table::new("system | ns | best_ns | spread | cycles");
    for row in rows {
        let cycles = format!("{:.0}", cycles(row, hz));
        table.row([row.system.to_owned()].into_iter().chain(numbers(row)).chain([cycles]));
    }
    table
}

fn claims(rows: &[Row], hz: f64) -> Vec<Claim> {
    let (low, most) = PAPERS_CYCLES;
    let paper = format!("a switch without system calls costs {low} to {most} cycles (18 to 55 ns at 2 GHz)");
    const KERNEL_CLAIM: &str = "a switch that enters the kernel costs significantly more";
    let of = |system: &str| rows.iter().find(|row| row.system == system);
    let Some(own) = of(OWN) else {
        return vec![Claim::not_comparable(&paper, "not measured".to_owned())];
    };
    let ours = format!("Tailwater {} ns, {} cycles", number(own.ns), number(cycles(own, hz)));
    let mut claims = vec![Claim::new(&paper, ours.clone(), cycles(own, hz) <= most)];
    claims.push(match of(KERNEL) {
        Some(kernel) => Claim::new(
            KERNEL_CLAIM,
            format!("kernel threads {} ns; {ours}", number(kernel.ns)),
            kernel.ns >= SIGNIFICANT * own.ns,
        ),
        None => Claim::not_comparable(KERNEL_CLAIM, "kernel threads were not measured".to_owned()),
    });
    claims
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::super::super::primitives::tests::row;
    use super::*;

    #[test]
    fn each_claim_follows_the_numbers() {
        let row = |system, ns| row(Operation::Yield, system, ns);
        let verdicts =
            |rows: &[Row]| -> Vec<_> { claims(rows, 2e9).iter().map(|claim| claim.verdict).collect() };
        assert_eq!(verdicts(&[row(OWN, 40.0), row(KERNEL, 600.0)]), [Reached; 2]);
        assert_eq!(verdicts(&[row(OWN, 60.0), row(KERNEL, 100.0)]), [NotReached; 2]);
        assert_eq!(verdicts(&[row(OWN, 40.0)]), [Reached, NotComparable]);
        assert_eq!(verdicts(&[row(KERNEL, 40.0)]), [NotComparable]);
        assert_eq!(panel(&[row(OWN, 40.0), row(KERNEL, 600.0)]).bars.len(), 1);
    }
}
