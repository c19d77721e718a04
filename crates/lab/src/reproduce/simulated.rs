//! The simulator's figures, which [`tailwater_sim::reproduce`] runs and judges.

use tailwater_sim::reproduce::{Figure as Study, Options};

use super::claim::Claim;
use super::context::Context;
use super::figure::{Figure, Outcome};

/// A figure of the simulator.
#[derive(Debug)]
struct Simulated(Study);

/// Returns all figures of the simulator.
pub fn all() -> Vec<Box<dyn Figure>> {
    Study::all().iter().map(|&study| Box::new(Simulated(study)) as Box<dyn Figure>).collect()
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
        let super::Options { quick, seed, threads } = context.options;
        let options = Options { quick, seed, threads };
        let progress = context.progress(self.name(), self.0.ticks(&options));
        let result = self.0.run(&options, &|| progress.inc(1));
        progress.finish_and_clear();
        let result = result?;
        let claims = result.claims.iter().map(|c| Claim::new(&c.paper, c.ours.clone(), c.holds));
        Ok(Outcome {
            svg: result.svg,
            data: result.data,
            claims: claims.collect(),
            notes: vec![format!("Simulated: {}. The machine does not matter.", result.title)],
            ..Outcome::default()
        })
    }
}
