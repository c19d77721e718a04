//! Figure 11: the steps of a core request over time.

use tailwater_shm::Clock;

use super::super::figure::{Bar, Claim, Context, Figure, Outcome, Panel, Table, draw, number};
use super::super::rounds::in_turn;
use super::fig10::{PAPERS_US, SITUATIONS, notes, size};
use crate::bench::cores::request::sample_traced;
use crate::bench::cores::request::steps::Steps;
use crate::bench::quantile;

/// The time of a step, in microseconds since the request; `None` if the request had no such step.
type Time = fn(&Steps) -> Option<f64>;

/// The steps by their names, in their usual order.
const STEPS: [(&str, Time); 5] = [
    ("work is runnable", |steps| Some(steps.runnable)),
    ("IOKernel decides, asks holder", |steps| steps.decided),
    ("core seen given up", |steps| steps.ceded),
    ("kthread seen running", |steps| steps.running),
    ("user thread runs", |steps| Some(steps.ran)),
];

/// The requests of each situation.
type Requests = [Vec<Steps>; SITUATIONS.len()];

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let clock = Clock::from_hz(context.machine.tsc_hz);
    let (rounds, count) = size(context.options.quick);
    let mut all = Requests::default();
    in_turn(figure, context, (SITUATIONS.len(), rounds), |index, _| {
        let case = SITUATIONS[index].1;
        let (samples, events) = sample_traced(&context.machine, context.interrupt()?, case, count)?;
        all[index].extend(samples.into_iter().map(|sample| Steps::of(sample, &events, &clock)));
        Ok(())
    })?;
    let steps = "Each step's median over the requests that have it, so steps need not be in order. The IOKernel looks every 5 us: \
        it may see a kthread run after its user thread has.";
    Ok(Outcome {
        svg: draw(figure.title, &panels(&all)),
        data: data(&all),
        summary: summary(&all),
        claims: claims(&all),
        notes: notes(context, Some(steps))?,
    })
}

/// Returns the times of a step, of the requests that have it.
fn times(requests: &[Steps], time: Time) -> Vec<f64> {
    requests.iter().filter_map(time).collect()
}

/// Returns the time within which this part of them lies.
fn at(times: &[f64], part: f64) -> f64 {
    quantile(times.iter().copied(), part)
}

/// Draws the median of each step that occurs, with the quartiles.
fn panels(all: &Requests) -> Vec<Panel> {
    let bars = |requests: &[Steps]| {
        let all = STEPS.into_iter().map(|(name, time)| (name, times(requests, time)));
        let bar = |(name, times): (&str, Vec<f64>)| Bar {
            name: name.to_owned(),
            value: at(&times, 0.5),
            range: (at(&times, 0.25), at(&times, 0.75)),
        };
        all.filter(|(_, times)| !times.is_empty()).map(bar).collect()
    };
    let panel = |((name, _), requests): (&(&str, _), &Vec<Steps>)| {
        Panel::of_bars(name, "us since the request", bars(requests))
    };
    SITUATIONS.iter().zip(all).map(panel).collect()
}

fn data(all: &Requests) -> Table {
    let mut table = Table::new("situation | request | step | us");
    for ((name, _), requests) in SITUATIONS.iter().zip(all) {
        for (request, steps) in requests.iter().enumerate() {
            for (step, time) in STEPS {
                let Some(us) = time(steps) else { continue };
                table.row([(*name).to_owned(), request.to_string(), step.to_owned(), format!("{us:.3}")]);
            }
        }
    }
    table
}

fn summary(all: &Requests) -> Table {
    let mut table = Table::new("situation | step | us since the request, median | p90 | requests");
    for ((name, _), requests) in SITUATIONS.iter().zip(all) {
        for (step, time) in STEPS {
            let times = times(requests, time);
            if times.is_empty() {
                continue;
            }
            let [median, late] = [0.5, 0.9].map(|part| number(at(&times, part)));
            let count = times.len().to_string();
            table.row([(*name).to_owned(), step.to_owned(), median, late, count]);
        }
    }
    table
}

fn claims(all: &Requests) -> Vec<Claim> {
    const WHOLE: &str = "a core that another application holds is had about 30 us after the request";
    const SOCKETS: &str = "about 80 % of the time is spent in socket communication";
    let held = &all[1];
    if held.is_empty() {
        return [WHOLE, SOCKETS].map(|paper| Claim::not_comparable(paper, "no request".to_owned())).into();
    }
    let median = |time: Time| at(&times(held, time), 0.5);
    let (decided, ran) = (median(|steps| steps.decided), median(|steps| Some(steps.ran)));
    let parts = format!(
        "a request is a word in shared memory: the IOKernel has decided {} us after it, {} % of the time until the thread runs",
        number(decided),
        number(100.0 * decided / ran)
    );
    vec![
        Claim::new(WHOLE, format!("{} us", number(ran)), ran <= PAPERS_US),
        Claim::not_comparable(SOCKETS, parts),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::*;

    fn steps(ceded: Option<f64>, ran: f64) -> Steps {
        Steps { runnable: 1.0, decided: Some(2.0), ceded, running: Some(ran - 1.0), ran }
    }

    #[test]
    fn each_claim_follows_the_held_core() {
        let verdicts = |ran| {
            let all = [vec![steps(None, 90.0)], vec![steps(Some(3.0), ran)]];
            claims(&all).iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(30.0), [Reached, NotComparable]);
        assert_eq!(verdicts(31.0), [NotReached, NotComparable]);
        let none = claims(&Requests::default());
        assert!(none.iter().all(|claim| claim.verdict == NotComparable));
    }

    #[test]
    fn a_free_core_is_given_up_by_none() {
        let all = [vec![steps(None, 9.0)], vec![steps(Some(3.0), 9.0)]];
        let bars = panels(&all).iter().map(|panel| panel.bars.len()).collect::<Vec<_>>();
        assert_eq!(bars, [4, 5]);
        assert_eq!((data(&all).rows().len(), summary(&all).rows().len()), (9, 9));
    }
}
