//! The search for the highest load within limits: one trial after the other, and what is written of them.
//!
//! Owns what a trial that could not be made, or that was not made at the whole rate, means for the search: it ends, and what it
//! found so far stays. Which rates are tried is `tailwater_loadgen::search`'s, how they are measured the session's.

use anyhow::Context;
use tailwater_loadgen::Plan;
use tailwater_loadgen::search::{Search, SearchPlan};
use tailwater_workload::Rate;

use super::Measured;
use super::args::{LoadArgs, SearchTask};
use super::document::{Document, Point, SearchOutcome};
use super::live::{Progress, describe_trial};
use super::session::Done;

/// The first rate that a search tries when none is given.
const FIRST_RATE: f64 = 1_000.0;

/// Measures a plan as trial of this number.
pub type Trial<'a> = &'a mut dyn FnMut(&Plan, u64) -> anyhow::Result<Done>;

/// Searches for the highest load within the limits, by `trial`, until it is found or `stopped`.
///
/// # Errors
/// When the first trial could not be made. What comes later ends the search.
pub fn search(
    args: &LoadArgs,
    agents: usize,
    task: &SearchTask,
    progress: &Progress,
    trial: Trial<'_>,
    stopped: &dyn Fn() -> bool,
) -> anyhow::Result<Measured> {
    let mut search = Search::new(task.plan);
    let mut points: Vec<Point> = Vec::new();
    let mut ended = None;
    while let Some((rate, purpose)) = search.next_rate() {
        let named = args.plan_at(rate)?;
        let number = search.found().trials.len() as u64;
        let done = trial(&named.plan, number).and_then(all_generated);
        if stopped() {
            break;
        }
        let done = match done {
            Ok(done) => done,
            Err(error) if points.is_empty() => return Err(error),
            Err(error) => {
                ended = Some((named.name, error));
                break;
            }
        };
        let judgement = task.slo.judge(&done.measurement.summary);
        progress.note(&describe_trial(number + 1, rate, purpose, &task.slo, &judgement));
        let index = match points.iter().position(|point| point.name == named.name) {
            Some(index) => index,
            None => {
                points.push(Point::new(&named.name, &named.plan));
                points.len() - 1
            }
        };
        points[index].add(done, args.interval_ns());
        search.record(judgement);
    }
    points.sort_by(|a, b| a.offered_rps().total_cmp(&b.offered_rps()));
    let mut document = Document::new(args, agents);
    document.points = points;
    document.search = Some(SearchOutcome::new(&task.slo, task.plan, search.found(), &document.points));
    Ok(match ended {
        None => Measured::whole(document),
        Some((name, error)) => Measured::until(document, &name, error),
    })
}

/// Refuses a trial at a part of the rate: it says nothing about the whole.
fn all_generated(done: Done) -> anyhow::Result<Done> {
    let failed = done.agents.iter().find_map(|agent| Some((&agent.agent, agent.failure.as_ref()?)));
    match failed {
        Some((agent, problem)) => {
            anyhow::bail!("agent {agent} failed, and a trial without its share does not count: {problem}")
        }
        None => Ok(done),
    }
}

/// The plan of a search, from what was typed.
///
/// # Errors
/// When it starts at several rates, or above the highest.
pub fn search_plan(args: &LoadArgs) -> anyhow::Result<SearchPlan> {
    let from = match &args.rate {
        None => Rate::new(FIRST_RATE)?,
        Some(list) => list.single().context("a search starts at one --rate, not at several")?,
    };
    anyhow::ensure!(
        args.max_rate >= from,
        "the search starts at {from} requests a second, above --max-rate {}",
        args.max_rate
    );
    Ok(SearchPlan {
        from,
        up_to: args.max_rate,
        resolution: args.resolution,
        repeats: args.repeats,
        max_trials: args.max_trials,
    })
}
