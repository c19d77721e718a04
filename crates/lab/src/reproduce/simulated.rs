//! The simulator's figures, which [`tailwater_sim::reproduce`] runs and judges. A figure of which
//! parts are measured as well is not among [`all`]; it contains one of these.

use tailwater_plot::draw;
use tailwater_sim::reproduce::{Figure as Study, Options, Reproduction};

use super::claim::Claim;
use super::context::Context;
use super::figure::{Figure, Outcome};

/// A figure of the simulator.
#[derive(Debug)]
pub struct Simulated(pub Study);

/// Returns all figures that are simulated only.
pub fn all() -> Vec<Box<dyn Figure>> {
    let only = Study::all().iter().filter(|&&study| study != Study::Shinjuku8);
    only.map(|&study| Box::new(Simulated(study)) as Box<dyn Figure>).collect()
}

impl Figure for Simulated {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn title(&self) -> &'static str {
        self.0.title()
    }

    fn paper(&self) -> &'static str {
        self.0.paper()
    }

    fn plan(&self) -> &'static str {
        match self.0 {
            Study::Shenango1 => include_str!("../../../../experiments/shenango-fig1.md"),
            Study::Shinjuku1 => include_str!("../../../../experiments/shinjuku-fig1.md"),
            Study::Shinjuku2 => include_str!("../../../../experiments/shinjuku-fig2.md"),
            Study::Shinjuku4 => include_str!("../../../../experiments/shinjuku-fig4.md"),
            Study::Shinjuku6 => include_str!("../../../../experiments/shinjuku-fig6.md"),
            Study::Shinjuku7 => include_str!("../../../../experiments/shinjuku-fig7.md"),
            Study::Shinjuku8 => include_str!("../../../../experiments/shinjuku-fig8.md"),
            Study::Arachne4 => include_str!("../../../../experiments/arachne-fig4.md"),
            Study::Arachne6 => include_str!("../../../../experiments/arachne-fig6.md"),
            Study::Ix8 | Study::Ix9 => include_str!("../../../../experiments/ix-pareto.md"),
            Study::Ix10 | Study::Ix11 | Study::Ix12 | Study::IxTable4 => {
                include_str!("../../../../experiments/ix-loop.md")
            }
        }
    }

    fn is_measured(&self) -> bool {
        false
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let result = self.simulate(context)?;
        let notes = vec![format!("Simulated: {}. The machine does not matter.", result.title)];
        Ok(Outcome {
            svg: draw(&result.drawing.title, &result.drawing.panels),
            claims: claims(&result.claims),
            data: result.data,
            notes,
            ..Outcome::default()
        })
    }
}

impl Simulated {
    /// Runs the simulation.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn simulate(&self, context: &Context) -> anyhow::Result<Reproduction> {
        let options = options(context);
        let progress = context.progress(self.name(), self.0.ticks(&options));
        let result = self.0.run(&options, &|| progress.inc(1));
        progress.finish_and_clear();
        result
    }
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
