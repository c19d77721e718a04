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

use tailwater_plot::Panel;
use tailwater_plot::table::Table;

/// A figure that can be reproduced.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on the command line and in file names.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Its paper, conference and number.
    pub paper: &'static str,
    run: Run,
    ticks: fn(&Options) -> u64,
}

/// Runs a figure; calls the second argument once for each part of the work.
type Run = fn(&Options, &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction>;

/// All figures.
pub const FIGURES: [Figure; 15] = [
    Figure {
        name: "shenango-fig1",
        title: "CPU efficiency of core allocators at 1 ms and 5 us",
        paper: "Shenango (NSDI'19), figure 1",
        run: shenango::figure1,
        ticks: |_| (shenango::CURVES * shenango::POINTS) as u64,
    },
    Figure {
        name: "shinjuku-fig1",
        title: "Four scheduling policies under three service-time distributions",
        paper: "Shinjuku (NSDI'19), figure 1",
        run: shinjuku::figure1,
        ticks: |options| 12 * shinjuku::LOADS as u64 * options.replications(),
    },
    Figure {
        name: "shinjuku-fig2",
        title: "Short and long requests apart",
        paper: "Shinjuku (NSDI'19), figure 2",
        run: shinjuku::figure2,
        ticks: |options| 4 * shinjuku::LOADS as u64 * options.replications(),
    },
    Figure {
        name: "shinjuku-fig4",
        title: "Connections needed for balance under RSS",
        paper: "Shinjuku (NSDI'19), figure 4",
        run: shinjuku::figure4,
        ticks: |_| 12,
    },
    Figure {
        name: "shinjuku-fig6",
        title: "Several types of requests with SLOs of their own",
        paper: "Shinjuku (NSDI'19), figure 6",
        run: preemption::figure6,
        ticks: |options| preemption::POINTS as u64 * options.replications(),
    },
    Figure {
        name: "shinjuku-fig7",
        title: "Preemption intervals, and dispatchers over workers",
        paper: "Shinjuku (NSDI'19), figure 7",
        run: dispatchers::figure7,
        ticks: dispatchers::points,
    },
    Figure {
        name: "shinjuku-fig8",
        title: "GETs beside SCANs: one queue, a queue for each type, no preemption",
        paper: "Shinjuku (NSDI'19), figure 8",
        run: rocks::figure8,
        ticks: rocks::points,
    },
    Figure {
        name: "arachne-fig4",
        title: "A load that rises and falls, with the cores over time",
        paper: "Arachne (OSDI'18), figure 4",
        run: ramp::figure4,
        ticks: |_| ramp::POINTS,
    },
    Figure {
        name: "arachne-fig6",
        title: "Throughput when connections are not equally active",
        paper: "Arachne (OSDI'18), figure 6",
        run: skew::figure6,
        ticks: |_| skew::POINTS,
    },
    Figure {
        name: "ix-fig8",
        title: "Static frontier for energy and for a batch job",
        paper: "IX (TOCS'17), figure 8",
        run: ix::figure8,
        ticks: ix::configurations,
    },
    Figure {
        name: "ix-fig9",
        title: "Energy with clock rates only, and with cores and hyperthreads",
        paper: "IX (TOCS'17), figure 9",
        run: ix::figure9,
        ticks: ix::energy_configurations,
    },
    Figure {
        name: "ix-fig10",
        title: "The control loop under the slope pattern",
        paper: "IX (TOCS'17), figure 10",
        run: |options, tick| ix::over_time(options, ix::Pattern::Slope, 10, tick),
        ticks: |options| ix::ticks(options, 1),
    },
    Figure {
        name: "ix-fig11",
        title: "The control loop under the step pattern",
        paper: "IX (TOCS'17), figure 11",
        run: |options, tick| ix::over_time(options, ix::Pattern::Step, 11, tick),
        ticks: |options| ix::ticks(options, 1),
    },
    Figure {
        name: "ix-fig12",
        title: "The control loop under the sine+noise pattern",
        paper: "IX (TOCS'17), figure 12",
        run: |options, tick| ix::over_time(options, ix::Pattern::Sine, 12, tick),
        ticks: |options| ix::ticks(options, 1),
    },
    Figure {
        name: "ix-table4",
        title: "Energy and batch work gained by the control loop",
        paper: "IX (TOCS'17), table IV",
        run: ix::table4,
        ticks: |options| ix::ticks(options, 3),
    },
];

impl Figure {
    /// Returns the figure of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        FIGURES.into_iter().find(|figure| figure.name == name)
    }

    /// Runs the figure.
    ///
    /// # Errors
    ///
    /// Only if its built-in parameters are malformed, which tests exclude.
    pub fn run(&self, options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
        (self.run)(options, tick)
    }

    /// Returns the most calls of `tick`.
    #[must_use]
    pub fn ticks(&self, options: &Options) -> u64 {
        (self.ticks)(options)
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

    fn replications(&self) -> u64 {
        self.effort().replications.into()
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
        let result = Figure::named("shinjuku-fig4").unwrap().run(&options, &|| ()).unwrap();
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
