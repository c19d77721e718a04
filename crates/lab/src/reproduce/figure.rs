//! The interface of a figure, and its outcome.
//!
//! A [`Claim`](super::claim::Claim) that does not hold is reported as such.

use tailwater_sim::report::Table;

use super::claim::Claim;
use super::context::Context;

/// A figure or table of a paper that can be run.
pub trait Figure {
    /// Returns its name on the command line and in the names of its files.
    fn name(&self) -> &'static str;
    /// Returns the names of other figures of its paper that are part of this one.
    fn parts(&self) -> &'static [&'static str] {
        &[]
    }
    /// Returns its content in a line.
    fn title(&self) -> &'static str;
    /// Paper, year, number of the figure.
    fn paper(&self) -> &'static str;
    /// Returns its page in `crates/lab/experiments/`: what runs, what is needed, what shape is
    /// expected.
    fn plan(&self) -> &'static str;
    /// Returns whether it runs on this machine's cores, and so needs the requirements of `tailwater
    /// doctor`.
    fn is_measured(&self) -> bool {
        true
    }
    /// Runs the figure.
    ///
    /// # Errors
    /// [`Interrupted`](tailwater_testbed::interrupt::Interrupted), or the failure of a process.
    fn run(&self, context: &Context) -> anyhow::Result<Outcome>;
}

/// The outcome of a figure.
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
