//! `tailwater load`: the open-loop generator as a command, against any server.
//!
//! Owns the choice between one load or several, a search, and an agent, and the order of the runs.
//! The measurement is in the crate `tailwater-loadgen`.
//!
//! | module | owns |
//! |---|---|
//! | [`args`] | the command line and the plans it means |
//! | [`session`], [`agents`] | the generator: this process, or a fleet of agents |
//! | [`job`] | the server and how to ask it, as agents get it |
//! | [`transport`], [`port`], [`hint`] | how requests travel, and advice when none arrives |
//! | [`search`] | the search for the highest load within limits |
//! | [`live`] | what is printed while a load runs |
//! | [`document`], [`measured`], [`output`] | the measurements, complete or not, and the files made of them |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use tailwater_loadgen::Plan;

mod agents;
mod args;
pub mod document;
mod hint;
mod job;
mod live;
mod measured;
mod output;
mod port;
mod search;
mod session;
#[cfg(test)]
mod tests;
mod transport;

pub use args::{LoadArgs, parse_margin, parse_percent};

use args::Task;
use document::{Document, Point};
use live::Progress;
use measured::Measured;
use session::Session;
use tailwater_testbed::exit::EndsWith2;
use tailwater_testbed::interrupt::Interrupted;

/// Generates, prints and writes; or serves as an agent.
///
/// # Errors
/// If no server answers, if the plan cannot be run, if an agent fails, or if a file cannot
/// be written. Earlier measurements are printed and written all the same.
pub fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: a second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch signals")?;
    }
    if let Some(listen) = args.agent {
        return agents::serve(args, listen, &stop);
    }
    // Checked before anything starts.
    let task = args.task().map_err(EndsWith2::wrap)?;
    output::check(args)?;
    let mut session = Session::open(args, &stop)?;
    let (agents, progress) = (session.agents(), Progress::new(args.live, args.quiet));
    let measured = match task {
        Task::Points(points) => measure(args, &mut session, &points, &progress),
        Task::Search(plan) => {
            let mut trial = |plan: &Plan, number| session.measure(plan, number, &progress);
            search::search(args, agents, &plan, &progress, &mut trial, &|| stop.load(Relaxed))
        }
    };
    // The error of a run that was interrupted before its start is that no server answered.
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

/// Measures every point as often as the options say: all points once before any point again.
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
                // Earlier measurements are kept.
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
