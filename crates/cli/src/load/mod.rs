//! `tailwater load`: the open-loop generator as a tool, against any server.
//!
//! Owns: which of four things is done (one load or several, a [`search`], serving as an agent), and their order. The
//! measurement is the `tailwater-loadgen` crate's. Neighbours: [`args`] has what a person types, [`session`] who
//! generates (this process, or agents), [`transport`] and [`port`] how requests travel, [`live`] what shows meanwhile, [`output`] what is written afterwards,
//! [`document`] the file that `tailwater compare` reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use tailwater_loadgen::Plan;

mod agents;
mod args;
pub mod document;
mod live;
mod output;
mod port;
mod search;
mod session;
#[cfg(test)]
mod tests;
mod transport;

pub use args::{LoadArgs, parse_margin, parse_percent};

use crate::interrupt::Interrupted;
use args::Task;
use document::{Document, Point};
use live::Progress;
use session::Session;

/// What was measured, and why there is not more of it.
#[derive(Debug)]
struct Measured {
    document: Document,
    /// What ended it early; it is among the document's warnings.
    ended: Option<anyhow::Error>,
}

impl Measured {
    /// All that was to be measured.
    fn whole(document: Document) -> Self {
        Self { document, ended: None }
    }

    /// What was measured before `error` came while measuring the load `name`.
    fn until(mut document: Document, name: &str, error: anyhow::Error) -> Self {
        document.warnings.push(format!("ended at {name}: {error:#}"));
        Self { document, ended: Some(error) }
    }
}

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
    let (agents, progress) = (session.agents(), Progress::new(args.live, args.quiet));
    let measured = match task {
        Task::Points(points) => measure(args, &mut session, &points, &progress),
        Task::Search(plan) => {
            let mut trial = |plan: &Plan, number| session.measure(plan, number, &progress);
            search::search(args, agents, &plan, &progress, &mut trial, &|| stop.load(Relaxed))
        }
    };
    // What a run that was interrupted before its start says is that nothing answered.
    let Measured { document, ended } =
        if stop.load(Relaxed) { measured.map_err(|_| Interrupted)? } else { measured? };
    output::finish(args, &document)?;
    let failed = document.failed_agents();
    anyhow::ensure!(
        failed.is_empty(),
        "agents failed, and their share of the load is missing: {}",
        failed.join(", ")
    );
    match ended {
        _ if stop.load(Relaxed) => Err(Interrupted.into()),
        Some(error) => Err(error.context("the rest was not measured")),
        None => Ok(()),
    }
}

/// Measures every point as often as asked for, all of them before any of them again.
fn measure(
    args: &LoadArgs,
    session: &mut Session<'_>,
    points: &[args::NamedPlan],
    progress: &Progress,
) -> anyhow::Result<Measured> {
    let mut document = Document::new(args, session.agents());
    document.points = points.iter().map(|named| Point::new(&named.name, &named.plan)).collect();
    let count = points.len() as u64;
    for run in 0..u64::from(args.runs) {
        for (index, named) in points.iter().enumerate() {
            if points.len() > 1 || args.runs > 1 {
                progress.note(&format!("run {} of {}, {}", run + 1, args.runs, named.name));
            }
            match session.measure(&named.plan, run * count + index as u64, progress) {
                Ok(done) => document.points[index].add(done, args.interval_ns()),
                // What was measured before is not lost.
                Err(error) if document.points.iter().any(Point::is_measured) => {
                    return Ok(Measured::until(document.pruned(), &named.name, error));
                }
                Err(error) => return Err(error),
            }
            if session.stopped() {
                return Ok(Measured::whole(document.pruned()));
            }
        }
    }
    Ok(Measured::whole(document.pruned()))
}
