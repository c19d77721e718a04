//! The papers' simulated figures: run, drawn, and judged claim by claim.
//!
//! Owns the parameters of each figure and the claims of the paper about it, as predicates over the
//! simulated numbers. A claim that does not hold is printed as such: the aim is to know, not to
//! pass.

mod curves;
mod dispatchers;
mod ix;
mod preemption;
mod ramp;
mod rocks;
pub mod scaling;
mod shenango;
mod shinjuku;
mod skew;

use serde::Serialize;

use crate::report::Table;
use tailwater_plot::Panel;

/// A figure that can be reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Shenango (NSDI'19) figure 1: CPU efficiency of core allocators at 1 ms and 5 us.
    Shenango1,
    /// Shinjuku (NSDI'19) figure 1: four policies, three service-time distributions.
    Shinjuku1,
    /// Shinjuku (NSDI'19) figure 2: short and long requests apart.
    Shinjuku2,
    /// Shinjuku (NSDI'19) figure 4: connections needed for balance under RSS.
    Shinjuku4,
    /// Shinjuku (NSDI'19) figure 6: two and three types of requests.
    Shinjuku6,
    /// Shinjuku (NSDI'19) figure 7: preemption intervals; dispatchers over workers.
    Shinjuku7,
    /// Shinjuku (NSDI'19) figure 8: RocksDB, one queue and a queue for each type.
    Shinjuku8,
    /// Arachne (OSDI'18) figure 4: cores and latency as the load rises and falls.
    Arachne4,
    /// Arachne (OSDI'18) figure 6: connections that are not equally active.
    Arachne6,
    /// IX (TOCS'17) figure 8: the static frontier for energy and for a batch job.
    Ix8,
    /// IX (TOCS'17) figure 9: clock rates alone against the whole frontier.
    Ix9,
    /// IX (TOCS'17) figure 10: the control loop under a slope.
    Ix10,
    /// IX (TOCS'17) figure 11: the control loop under steps.
    Ix11,
    /// IX (TOCS'17) figure 12: the control loop under a sine with noise.
    Ix12,
    /// IX (TOCS'17) table IV: what the control loop gains.
    IxTable4,
}

impl Figure {
    /// Returns all figures.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &[
            Self::Shenango1,
            Self::Shinjuku1,
            Self::Shinjuku2,
            Self::Shinjuku4,
            Self::Shinjuku6,
            Self::Shinjuku7,
            Self::Shinjuku8,
            Self::Arachne4,
            Self::Arachne6,
            Self::Ix8,
            Self::Ix9,
            Self::Ix10,
            Self::Ix11,
            Self::Ix12,
            Self::IxTable4,
        ]
    }

    /// Returns its name on the command line and in file names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shenango1 => "shenango-fig1",
            Self::Shinjuku1 => "shinjuku-fig1",
            Self::Shinjuku2 => "shinjuku-fig2",
            Self::Shinjuku4 => "shinjuku-fig4",
            Self::Shinjuku6 => "shinjuku-fig6",
            Self::Shinjuku7 => "shinjuku-fig7",
            Self::Shinjuku8 => "shinjuku-fig8",
            Self::Arachne4 => "arachne-fig4",
            Self::Arachne6 => "arachne-fig6",
            Self::Ix8 => "ix-fig8",
            Self::Ix9 => "ix-fig9",
            Self::Ix10 => "ix-fig10",
            Self::Ix11 => "ix-fig11",
            Self::Ix12 => "ix-fig12",
            Self::IxTable4 => "ix-table4",
        }
    }

    /// Returns its title.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Shenango1 => "CPU efficiency of core allocators at 1 ms and 5 us",
            Self::Shinjuku1 => "Four scheduling policies under three service-time distributions",
            Self::Shinjuku2 => "Short and long requests apart",
            Self::Shinjuku4 => "Connections needed for balance under RSS",
            Self::Shinjuku6 => "Several types of requests with SLOs of their own",
            Self::Shinjuku7 => "Preemption intervals, and dispatchers over workers",
            Self::Shinjuku8 => "GETs beside SCANs: one queue, a queue for each type, no preemption",
            Self::Arachne4 => "A load that rises and falls, with the cores over time",
            Self::Arachne6 => "Throughput when connections are not equally active",
            Self::Ix8 => "Static frontier for energy and for a batch job",
            Self::Ix9 => "Energy with clock rates only, and with cores and hyperthreads",
            Self::Ix10 => "The control loop under the slope pattern",
            Self::Ix11 => "The control loop under the step pattern",
            Self::Ix12 => "The control loop under the sine+noise pattern",
            Self::IxTable4 => "Energy and batch work gained by the control loop",
        }
    }

    /// Returns its paper, conference and number.
    #[must_use]
    pub fn paper(self) -> &'static str {
        match self {
            Self::Shenango1 => "Shenango (NSDI'19), figure 1",
            Self::Shinjuku1 => "Shinjuku (NSDI'19), figure 1",
            Self::Shinjuku2 => "Shinjuku (NSDI'19), figure 2",
            Self::Shinjuku4 => "Shinjuku (NSDI'19), figure 4",
            Self::Shinjuku6 => "Shinjuku (NSDI'19), figure 6",
            Self::Shinjuku7 => "Shinjuku (NSDI'19), figure 7",
            Self::Shinjuku8 => "Shinjuku (NSDI'19), figure 8",
            Self::Arachne4 => "Arachne (OSDI'18), figure 4",
            Self::Arachne6 => "Arachne (OSDI'18), figure 6",
            Self::Ix8 => "IX (TOCS'17), figure 8",
            Self::Ix9 => "IX (TOCS'17), figure 9",
            Self::Ix10 => "IX (TOCS'17), figure 10",
            Self::Ix11 => "IX (TOCS'17), figure 11",
            Self::Ix12 => "IX (TOCS'17), figure 12",
            Self::IxTable4 => "IX (TOCS'17), table IV",
        }
    }

    /// Runs the figure.
    ///
    /// # Errors
    ///
    /// Only if its built-in parameters are malformed, which tests exclude.
    pub fn run(self, options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
        match self {
            Self::Shenango1 => shenango::figure1(options, tick),
            Self::Shinjuku1 => shinjuku::figure1(options, tick),
            Self::Shinjuku2 => shinjuku::figure2(options, tick),
            Self::Shinjuku4 => shinjuku::figure4(options, tick),
            Self::Shinjuku6 => preemption::figure6(options, tick),
            Self::Shinjuku7 => dispatchers::figure7(options, tick),
            Self::Shinjuku8 => rocks::figure8(options, tick),
            Self::Arachne4 => ramp::figure4(options, tick),
            Self::Arachne6 => skew::figure6(options, tick),
            Self::Ix8 => ix::figure8(options, tick),
            Self::Ix9 => ix::figure9(options, tick),
            Self::Ix10 => ix::over_time(options, ix::Pattern::Slope, 10, tick),
            Self::Ix11 => ix::over_time(options, ix::Pattern::Step, 11, tick),
            Self::Ix12 => ix::over_time(options, ix::Pattern::Sine, 12, tick),
            Self::IxTable4 => ix::table4(options, tick),
        }
    }

    /// Returns the most calls of `tick`.
    #[must_use]
    pub fn ticks(self, options: &Options) -> u64 {
        let replications = u64::from(options.effort().replications);
        match self {
            Self::Shenango1 => (shenango::CURVES * shenango::POINTS) as u64,
            Self::Shinjuku1 => 3 * 4 * shinjuku::LOADS as u64 * replications,
            Self::Shinjuku2 => 4 * shinjuku::LOADS as u64 * replications,
            Self::Shinjuku4 => 12,
            Self::Shinjuku6 => preemption::POINTS as u64 * replications,
            Self::Shinjuku7 => dispatchers::points(options),
            Self::Shinjuku8 => rocks::points(options),
            Self::Arachne4 => ramp::POINTS,
            Self::Arachne6 => skew::POINTS,
            Self::Ix8 => ix::configurations(options),
            Self::Ix9 => ix::energy_configurations(options),
            Self::Ix10 | Self::Ix11 | Self::Ix12 => ix::ticks(options, 1),
            Self::IxTable4 => ix::ticks(options, 3),
        }
    }
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A tenth of the work: enough to see the shape.
    pub quick: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// Threads; 0 for all the machine has.
    pub threads: usize,
}

impl Options {
    /// Returns the effort per point these options stand for.
    #[must_use]
    pub fn effort(&self) -> crate::study::Effort {
        let (requests, replications) = if self.quick { (40_000, 2) } else { (200_000, 4) };
        crate::study::Effort { requests, replications, seed: self.seed, threads: self.threads }
    }
}

/// The result of a reproduction.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// Title of the figure.
    pub title: String,
    /// Every number behind it.
    pub data: Table,
    /// The drawing.
    pub drawing: Drawing,
    /// The paper's claims, and whether they hold here.
    pub claims: Vec<Claim>,
}

/// What is drawn of a figure.
#[derive(Clone, Debug, Default)]
pub struct Drawing {
    /// Title above all panels.
    pub title: String,
    /// The charts, side by side.
    pub panels: Vec<Panel>,
}

impl Drawing {
    pub(crate) fn new(title: &str, panels: &[Panel]) -> Self {
        Self { title: title.to_owned(), panels: panels.to_vec() }
    }
}

/// One claim of a paper, compared with the simulated numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// The paper's statement.
    pub paper: String,
    /// The result here.
    pub ours: String,
    /// True if it agrees.
    pub holds: bool,
}

impl Claim {
    pub(crate) fn new(paper: &str, ours: String, holds: bool) -> Self {
        Self { paper: paper.to_owned(), ours, holds }
    }
}

impl Reproduction {
    /// Returns the claims as text, one block each.
    #[must_use]
    pub fn claims_text(&self) -> String {
        let block = |c: &Claim| {
            let verdict = if c.holds { "holds" } else { "DIFFERS" };
            format!("  [{verdict}] paper: {}\n          here:  {}\n", c.paper, c.ours)
        };
        self.claims.iter().map(block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_figure_agrees_with_the_paper_and_is_drawn() {
        let options = Options { quick: true, seed: 1, threads: 2 };
        let result = Figure::Shinjuku4.run(&options, &|| ()).unwrap();
        assert!(result.claims.iter().all(|c| c.holds), "{}", result.claims_text());
        assert_eq!((result.drawing.panels.len(), result.data.to_csv().lines().count()), (1, 13));
    }

    #[test]
    fn a_claim_that_differs_says_so() {
        let claims = vec![Claim::new("up", "down".to_owned(), false), Claim::new("a", "a".to_owned(), true)];
        let shown = Reproduction {
            title: String::new(),
            data: Table::default(),
            drawing: Drawing::default(),
            claims,
        };
        assert!(shown.claims_text().contains("[DIFFERS] paper: up"));
    }
}
