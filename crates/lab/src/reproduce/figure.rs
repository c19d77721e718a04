//! A figure, its outcome, and the names that most figures use.

pub use tailwater_plot::table::{Table, number};
pub use tailwater_plot::{Bar, Line, Panel, decades, draw};

pub use super::claim::{Claim, Verdict};
pub use super::context::{Context, FLOWS, Pace, Rig};
pub use super::spread::{Spread, cell};

/// A figure or table of a paper that can be run.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    pub(super) name: &'static str,
    pub(super) parts: &'static [&'static str],
    pub(super) title: &'static str,
    pub(super) paper: &'static str,
    pub(super) plan: &'static str,
    pub(super) is_measured: fn() -> bool,
    pub(super) run: fn(&Figure, &Context) -> anyhow::Result<Outcome>,
}

impl Figure {
    /// A measured figure, without its name, texts and what it runs.
    pub(super) const MEASURED: Self = Self {
        name: "",
        parts: &[],
        title: "",
        paper: "",
        plan: "",
        is_measured: || true,
        run: |_, _| anyhow::bail!("the figure has nothing to run"),
    };

    /// Returns its name on the command line and in the names of its files.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the names of other figures of its paper that are part of this one.
    pub fn parts(&self) -> &'static [&'static str] {
        self.parts
    }

    /// Returns its content in a line.
    pub fn title(&self) -> &'static str {
        self.title
    }

    /// Paper, year, number of the figure.
    pub fn paper(&self) -> &'static str {
        self.paper
    }

    /// Returns its page in `crates/lab/experiments`: what runs, what it needs, what shape is
    /// expected.
    pub fn plan(&self) -> &'static str {
        self.plan
    }

    /// Returns whether it runs on this machine's cores, and so needs the requirements of `tailwater
    /// doctor`.
    pub fn is_measured(&self) -> bool {
        (self.is_measured)()
    }

    /// Runs the figure.
    ///
    /// # Errors
    /// [`Interrupted`](tailwater_testbed::interrupt::Interrupted), or the failure of a process.
    pub fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        (self.run)(self, context)
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
