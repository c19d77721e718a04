//! What a figure is and what it gives.
//!
//! A [`Claim`] is a sentence of the paper beside our numbers, with a [`Verdict`] computed from them. A claim that does not hold is
//! reported as such: the point is to know, not to pass.

use serde::Serialize;
use tailwater_sim::report::Table;

use super::context::Context;

/// A figure or table of a paper that can be run.
pub trait Figure {
    /// Its name on the command line and of its files.
    fn name(&self) -> &'static str;
    /// What it shows, in a line.
    fn title(&self) -> &'static str;
    /// Paper, year, number of the figure.
    fn paper(&self) -> &'static str;
    /// Its page in `experiments/`: what runs, what is needed, what shape is expected.
    fn plan(&self) -> &'static str;
    /// Whether it runs on this machine's cores, and so needs what `tailwater doctor` checks.
    fn is_measured(&self) -> bool {
        true
    }
    /// Runs it.
    ///
    /// # Errors
    /// [`Interrupted`](crate::interrupt::Interrupted), or what went wrong with a process.
    fn run(&self, context: &Context) -> anyhow::Result<Outcome>;
}

/// What came out of a figure.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The drawing.
    pub svg: String,
    /// Every number of every round.
    pub data: Table,
    /// The same in few lines, for a person.
    pub summary: Table,
    /// What the paper says, and whether it holds here.
    pub claims: Vec<Claim>,
    /// Conditions of this run that a reader must know.
    pub notes: Vec<String>,
}

/// One statement of a paper against our numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// What the paper says.
    pub paper: String,
    /// What came out here.
    pub ours: String,
    /// Whether it agrees.
    pub verdict: Verdict,
}

/// Whether a paper's claim holds here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It does.
    Reached,
    /// It does not.
    NotReached,
    /// This machine or this program has not what the claim is about.
    NotComparable,
}

impl Verdict {
    /// Reached if `holds`.
    pub fn of(holds: bool) -> Self {
        if holds { Self::Reached } else { Self::NotReached }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reached => "reached",
            Self::NotReached => "NOT REACHED",
            Self::NotComparable => "not comparable",
        })
    }
}

impl Claim {
    /// A claim that can be judged.
    pub fn new(paper: &str, ours: String, holds: bool) -> Self {
        Self { paper: paper.to_owned(), ours, verdict: Verdict::of(holds) }
    }

    /// A claim that cannot, and why.
    pub fn not_comparable(paper: &str, why: String) -> Self {
        Self { paper: paper.to_owned(), ours: why, verdict: Verdict::NotComparable }
    }
}
