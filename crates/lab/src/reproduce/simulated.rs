//! The simulator's figures, which [`tailwater_sim::reproduce`] runs and judges. A figure of which
//! parts are measured as well contains one of these.

use anyhow::Context as _;
use tailwater_sim::reproduce::{Figure as Study, Options, Reproduction};

use super::figure::{Claim, Context, Figure, Outcome, draw};
use tailwater_testbed::progress::Progress;

/// Runs a figure that is simulated only.
pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let result = simulate(figure, context)?;
    Ok(Outcome {
        svg: draw(&result.drawing.title, &result.drawing.panels),
        claims: claims(&result.claims),
        notes: vec![note(&result)],
        data: result.data,
        ..Outcome::default()
    })
}

/// Returns the note of a simulated figure.
pub fn note(result: &Reproduction) -> String {
    format!("Simulated: {}. The machine does not matter.", result.title)
}

/// Runs the simulation of a figure.
pub fn simulate(figure: &Figure, context: &Context) -> anyhow::Result<Reproduction> {
    let (options, name) = (options(context), figure.name);
    let study = Study::named(name).with_context(|| format!("the simulator has no figure {name}"))?;
    let progress = Progress::new(name, study.ticks(&options));
    study.run(&options, &|| progress.advance())
}

/// Returns the simulator's options.
pub fn options(context: &Context) -> Options {
    let super::Options { quick, seed, threads, .. } = context.options;
    Options { quick, seed, threads }
}

/// Returns the claims of a simulation.
pub fn claims(simulated: &[tailwater_sim::reproduce::Claim]) -> Vec<Claim> {
    simulated.iter().map(|c| Claim::new(&c.paper, c.ours.clone(), c.holds).simulated()).collect()
}
