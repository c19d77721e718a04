//! The search for the highest load within limits: one trial after another, and the document of
//! them.
//!
//! Owns the end of a search by a trial that fails, or that lacks an agent's share of the rate;
//! earlier trials stay in the document. `tailwater_loadgen::search` chooses the rates, the session
//! measures them.

use tailwater_loadgen::Plan;
use tailwater_loadgen::search::Search;

use super::args::{LoadArgs, SearchTask};
use super::document::{Document, Point, SearchOutcome};
use super::live::{Progress, describe_trial};
use super::measured::Measured;
use super::session::Done;

/// Measures a plan as the trial of this number.
pub type Trial<'a> = &'a mut dyn FnMut(&Plan, u64) -> anyhow::Result<Done>;

/// Searches for the highest load within the limits, by `trial`, until it is found or `stopped`.
///
/// # Errors
/// If the first trial fails. A later failure ends the search and is in the result.
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

/// Refuses a trial that lacks an agent's share: it is no trial at the whole rate.
fn all_generated(done: Done) -> anyhow::Result<Done> {
    let failed = done.agents.iter().find_map(|agent| Some((&agent.agent, agent.failure.as_ref()?)));
    match failed {
        Some((agent, problem)) => {
            anyhow::bail!("agent {agent} failed, and a trial without its share does not count: {problem}")
        }
        None => Ok(done),
    }
}
