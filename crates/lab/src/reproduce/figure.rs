//! A figure, its outcome, and the names that most figures use.

pub use tailwater_plot::table::{Table, number};
pub use tailwater_plot::{Bar, Line, Panel, decades, draw};

pub use super::claim::{Claim, Verdict};
pub use super::context::{Context, FLOWS, Pace, Rig};
pub use super::spread::{Spread, cell};

/// A figure or table of a paper that can be run.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Its name on the command line and in the names of its files.
    pub name: &'static str,
    /// The names of other figures of its paper that are part of this one.
    pub parts: &'static [&'static str],
    /// Its content in a line.
    pub title: &'static str,
    /// Paper, year, number of the figure.
    pub paper: &'static str,
    /// Its page in `crates/lab/experiments`: what runs, what it needs, what shape is expected.
    pub plan: &'static str,
    /// Whether it runs on this machine's cores, and so needs the requirements of `tailwater
    /// doctor`.
    pub is_measured: fn() -> bool,
    /// Runs it; fails by [`Interrupted`](tailwater_testbed::interrupt::Interrupted), or as a
    /// process does.
    pub run: fn(&Figure, &Context) -> anyhow::Result<Outcome>,
}

impl Figure {
    /// Returns a measured figure.
    pub const fn measured(
        [name, title, paper, plan]: [&'static str; 4],
        run: fn(&Figure, &Context) -> anyhow::Result<Outcome>,
    ) -> Self {
        Self { name, parts: &[], title, paper, plan, is_measured: || true, run }
    }

    /// Returns whether it is measured.
    pub fn is_measured(&self) -> bool {
        (self.is_measured)()
    }
}

/// The outcome of a figure. A [`Claim`] that does not hold is reported as such.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The drawing.
    pub svg: String,
    /// Every number of every round.
    pub data: Table,
    /// A summary in few lines.
    pub summary: Table,
    /// The paper's claims, each with its verdict here.
    pub claims: Vec<Claim>,
    /// The conditions of this run.
    pub notes: Vec<String>,
}
