//! Figure 10: how long a program waits for a core that it requests.

use tailwater_shm::Clock;

use super::super::figure::{Claim, Context, Figure, Line, Outcome, Panel, Table, draw, number};
use super::super::rounds::in_turn;
use crate::bench::cores::request::{Case, Conditions, FREE, HELD, sample};
use crate::bench::quantile;

/// The situations by their names.
pub const SITUATIONS: [(&str, Case); 2] = [("free core", FREE), ("core held by a batch job", HELD)];
/// Arachne's time, in microseconds.
pub const PAPERS_US: f64 = 30.0;
/// This project's aims for the median, in microseconds: a free core, a held one.
const AIMS_US: [f64; 2] = [4.0, 6.0];

/// Returns the number of rounds, and of requests of each.
pub fn size(quick: bool) -> (usize, u32) {
    if quick { (1, 10) } else { (5, 100) }
}

/// Returns what both figures say about this run; `more` is one's own.
pub fn notes(context: &Context, more: Option<&str>) -> anyhow::Result<Vec<String>> {
    let (rounds, count) = size(context.options.quick);
    let both = [
        format!("{rounds} round(s) of {count} requests in each situation, in turn, 20 ms apart."),
        "Measured until the first user thread runs on the core; the paper measures until the kernel thread wakes. The request \
         is made by an ordinary thread, which on two cores shares the polling thread's."
            .to_owned(),
    ];
    context.notes(both.into_iter().chain(more.map(str::to_owned)), rounds)
}

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let clock = Clock::from_hz(context.machine.tsc_hz);
    let (rounds, count) = size(context.options.quick);
    let mut all = SITUATIONS.map(|_| Vec::new());
    in_turn(figure, context, (SITUATIONS.len(), rounds), |index, _| {
        let (interrupt, conditions) = (context.interrupt()?, Conditions::default());
        let samples = sample(&context.machine, interrupt, conditions, SITUATIONS[index].1, count)?;
        all[index].extend(samples.into_iter().map(|sample| sample.us(&clock)));
        Ok(())
    })?;
    all.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    Ok(Outcome {
        svg: draw(figure.title, &[panel(&all)]),
        data: data(&all),
        summary: summary(&all),
        claims: claims(&all),
        notes: notes(context, None)?,
    })
}

/// Draws the distributions of the sorted times.
fn panel(all: &[Vec<f64>; 2]) -> Panel {
    let line = |((name, _), times): (&(&str, Case), &Vec<f64>)| {
        let part = |at: usize| (at + 1) as f64 / times.len() as f64;
        Line::new(*name, times.iter().enumerate().map(|(at, &us)| (us, part(at))).collect())
    };
    Panel::new(
        "",
        "us from the request to the first user thread",
        "part of the requests",
        SITUATIONS.iter().zip(all).map(line).collect(),
    )
    .log_x()
    .within((0.0, 1.0))
}

fn data(all: &[Vec<f64>; 2]) -> Table {
    let mut table = Table::new("situation | us");
    for ((name, _), times) in SITUATIONS.iter().zip(all) {
        for us in times {
            table.row([(*name).to_owned(), format!("{us:.3}")]);
        }
    }
    table
}

fn summary(all: &[Vec<f64>; 2]) -> Table {
    let mut table = Table::new("situation | p10, us | p50 | p90 | p99");
    for ((name, _), times) in SITUATIONS.iter().zip(all) {
        let figures = [0.1, 0.5, 0.9, 0.99].map(|part| number(quantile(times.iter().copied(), part)));
        table.row([(*name).to_owned()].into_iter().chain(figures));
    }
    table
}

fn claims(all: &[Vec<f64>; 2]) -> Vec<Claim> {
    let median = |at: usize| quantile(all[at].iter().copied(), 0.5);
    let ours = |at: usize| format!("median {} us", number(median(at)));
    let both = format!("medians {} and {} us", number(median(0)), number(median(1)));
    let reached = (0..2).all(|at| median(at) <= AIMS_US[at]);
    vec![
        Claim::new(
            "a free core runs the program's kernel thread within 30 us",
            ours(0),
            median(0) <= PAPERS_US,
        ),
        Claim::new(
            "a core is reclaimed from another application in about 30 us",
            ours(1),
            median(1) <= PAPERS_US,
        ),
        Claim::new("this project's aim, not the paper's: a free core 4 us, a held one 6 us", both, reached),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotReached, Reached};
    use super::*;

    #[test]
    fn each_claim_follows_the_medians() {
        let verdicts = |free, held| {
            let all = [vec![free, free, 99.0], vec![1.0, held, held]];
            claims(&all).iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(4.0, 6.0), [Reached; 3]);
        assert_eq!(verdicts(5.0, 6.0), [Reached, Reached, NotReached]);
        assert_eq!(verdicts(31.0, 30.0), [NotReached, Reached, NotReached]);
        assert_eq!(verdicts(3.0, 31.0), [Reached, NotReached, NotReached]);
    }

    #[test]
    fn a_distribution_ends_at_one() {
        let all = [vec![1.0, 2.0], vec![3.0]];
        let lines = panel(&all).lines;
        assert_eq!(lines[0].points, [(1.0, 0.5), (2.0, 1.0)]);
        assert_eq!(lines[1].points, [(3.0, 1.0)]);
        assert_eq!(data(&all).rows().len(), 3);
    }
}
