//! A paper's claim, and its verdict on this machine.
//!
//! A claim that does not hold is reported as such: a figure shows what is true here.

use serde::Serialize;

/// A statement of a paper, compared with the numbers here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// The paper's statement.
    pub paper: String,
    /// The numbers here, measured or simulated.
    pub ours: String,
    /// Whether they agree.
    pub verdict: Verdict,
    /// Whether the numbers are simulated: then they do not depend on this machine.
    pub simulated: bool,
}

/// Whether a paper's claim holds here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The claim holds.
    Reached,
    /// The claim does not hold.
    NotReached,
    /// This machine or this program lacks the subject of the claim.
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
    /// Returns a claim with a verdict.
    pub fn new(paper: &str, ours: String, holds: bool) -> Self {
        Self { paper: paper.to_owned(), ours, verdict: Verdict::of(holds), simulated: false }
    }

    /// Returns a claim that cannot be judged, with the reason.
    pub fn not_comparable(paper: &str, why: String) -> Self {
        Self { paper: paper.to_owned(), ours: why, verdict: Verdict::NotComparable, simulated: false }
    }

    /// Returns a claim that holds or not, or of which the numbers leave that open.
    pub fn judged(paper: &str, ours: String, holds: Option<bool>) -> Self {
        match holds {
            Some(holds) => Self::new(paper, ours, holds),
            None => Self::not_comparable(paper, ours),
        }
    }

    /// Returns the same claim, on simulated numbers.
    #[must_use]
    pub fn simulated(self) -> Self {
        Self { simulated: true, ..self }
    }
}
