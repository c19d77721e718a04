//! The simulator's figures, which [`tailwater_sim::reproduce`] runs and judges. A figure of which
//! parts are measured as well is not among [`all`]; it contains one of these.

use anyhow::Context as _;
use tailwater_sim::reproduce::{FIGURES, Figure as Study, Options, Reproduction};

use super::figure::{Claim, Context, Figure, Outcome, draw};
use super::shinjuku;

/// The pages of the figures; one page may be of several.
const PLANS: [(&str, &str); 14] = [
    ("shenango-fig1", include_str!("../../experiments/shenango-fig1.md")),
    ("shinjuku-fig1", include_str!("../../experiments/shinjuku-fig1.md")),
    ("shinjuku-fig2", include_str!("../../experiments/shinjuku-fig2.md")),
    ("shinjuku-fig4", include_str!("../../experiments/shinjuku-fig4.md")),
    ("shinjuku-fig6", include_str!("../../experiments/shinjuku-fig6.md")),
    ("shinjuku-fig7", include_str!("../../experiments/shinjuku-fig7.md")),
    ("arachne-fig4", include_str!("../../experiments/arachne-fig4.md")),
    ("arachne-fig6", include_str!("../../experiments/arachne-fig6.md")),
    ("ix-fig8", include_str!("../../experiments/ix-pareto.md")),
    ("ix-fig9", include_str!("../../experiments/ix-pareto.md")),
    ("ix-fig10", include_str!("../../experiments/ix-loop.md")),
    ("ix-fig11", include_str!("../../experiments/ix-loop.md")),
    ("ix-fig12", include_str!("../../experiments/ix-loop.md")),
    ("ix-table4", include_str!("../../experiments/ix-loop.md")),
];

/// Returns all figures that are simulated only.
pub fn all() -> Vec<Figure> {
    let only = FIGURES.into_iter().filter(|study| study.name != shinjuku::fig8::FIGURE.name);
    let figure = |Study { name, title, paper, .. }: Study| {
        let plan = PLANS.into_iter().find(|(of, _)| *of == name).map_or("", |(_, plan)| plan);
        Figure { name, title, paper, plan, is_measured: || false, run, ..Figure::MEASURED }
    };
    only.map(figure).collect()
}

fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
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
///
/// # Errors
/// As [`Study::run`].
pub fn simulate(figure: &Figure, context: &Context) -> anyhow::Result<Reproduction> {
    let (options, name) = (options(context), figure.name());
    let study = Study::named(name).with_context(|| format!("the simulator has no figure {name}"))?;
    let progress = context.progress(name, study.ticks(&options));
    let result = study.run(&options, &|| progress.inc(1));
    progress.finish_and_clear();
    result
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
