//! `tailwater load`: the open-loop generator as a tool, against any server.
//!
//! Owns: which of four things is done (one load or several, a search, serving as an agent), and their order. The
//! measurement is the `tailwater-loadgen` crate's. Neighbours: [`args`] has what a person types, [`session`] who
//! generates (this process, or agents), [`transport`] and [`port`] how requests travel, [`live`] what shows meanwhile, [`output`] what is written afterwards,
//! [`document`] the file that `tailwater compare` reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use tailwater_loadgen::search::{Search, SearchPlan};

mod agents;
mod args;
pub mod document;
mod live;
mod output;
mod port;
mod session;
#[cfg(test)]
mod tests;
mod transport;

pub use args::{LoadArgs, parse_percent};

use crate::interrupt::Interrupted;
use args::Task;
use document::{Document, Point, SearchOutcome};
use live::Progress;
use session::Session;

/// The first rate that a search tries when none is given.
const FIRST_RATE: f64 = 1_000.0;

/// Generates, prints and writes; or serves as an agent.
///
/// # Errors
/// When no server answers, the plan cannot be run, an agent fails, or a file cannot be written. What was measured
/// before is printed and written all the same.
pub fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: a second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch signals")?;
    }
    if let Some(listen) = args.agent {
        return agents::serve(args, listen, &stop);
    }
    // Before anything starts, so that mistakes are seen first.
    let task = args.task()?;
    let mut session = Session::open(args, &stop)?;
    let progress = Progress::new(args.live, args.quiet);
    let measured = match task {
        Task::Points(points) => measure(args, &mut session, &points, &progress),
        Task::Search(plan) => search(args, &mut session, &plan, &progress),
    };
    // What a run that was interrupted before its start says is that nothing answered.
    let document = if stop.load(Relaxed) { measured.map_err(|_| Interrupted)? } else { measured? };
    output::finish(args, &document)?;
    let failed = document.failed_agents();
    anyhow::ensure!(
        failed.is_empty(),
        "agents failed, and their share of the load is missing: {}",
        failed.join(", ")
    );
    if stop.load(Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}

/// Measures every point as often as asked for, all of them before any of them again.
fn measure(
    args: &LoadArgs,
    session: &mut Session<'_>,
    points: &[args::NamedPlan],
    progress: &Progress,
) -> anyhow::Result<Document> {
    let mut document = Document::new(args, session.agents());
    document.points = points.iter().map(|named| Point::new(&named.name, &named.plan)).collect();
    let count = points.len() as u64;
    for run in 0..u64::from(args.runs) {
        for (index, named) in points.iter().enumerate() {
            if points.len() > 1 || args.runs > 1 {
                progress.note(&format!("run {} of {}, {}", run + 1, args.runs, named.name));
            }
            match session.measure(&named.plan, run * count + index as u64, progress) {
                Ok(done) => document.points[index].add(done, args.interval),
                // What was measured before is not lost.
                Err(error) if document.points.iter().any(Point::is_measured) => {
                    document.warnings.push(format!("ended at {}: {error:#}", named.name));
                    return Ok(document.pruned());
                }
                Err(error) => return Err(error),
            }
            if session.stopped() {
                return Ok(document.pruned());
            }
        }
    }
    Ok(document.pruned())
}

/// Searches for the highest load within the limits.
fn search(
    args: &LoadArgs,
    session: &mut Session<'_>,
    plan: &args::SearchTask,
    progress: &Progress,
) -> anyhow::Result<Document> {
    let mut document = Document::new(args, session.agents());
    let mut search = Search::new(plan.plan);
    let mut points: Vec<Point> = Vec::new();
    while let Some((rate, purpose)) = search.next_rate() {
        let named = args.plan_at(rate)?;
        let number = search.found().trials.len() as u64;
        let done = session.measure(&named.plan, number, progress)?;
        if session.stopped() {
            break;
        }
        let judgement = plan.slo.judge(&done.measurement.summary);
        progress.note(&live::describe_trial(number + 1, rate, purpose, &plan.slo, &judgement));
        let index = match points.iter().position(|point| point.name == named.name) {
            Some(index) => index,
            None => {
                points.push(Point::new(&named.name, &named.plan));
                points.len() - 1
            }
        };
        points[index].add(done, args.interval);
        search.record(judgement);
    }
    let found = search.found();
    points.sort_by(|a, b| a.offered_rps().total_cmp(&b.offered_rps()));
    document.points = points;
    document.search = Some(SearchOutcome::new(&plan.slo, plan.plan, found, &document.points));
    Ok(document)
}

/// The plan of a search, from what was typed.
fn search_plan(args: &LoadArgs) -> anyhow::Result<SearchPlan> {
    let from = match &args.rate {
        None => tailwater_workload::Rate::new(FIRST_RATE)?,
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
