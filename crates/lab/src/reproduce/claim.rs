//! A paper's claim, and its verdict on this machine.
//!
//! A claim that does not hold is reported as such: a figure shows what is true here.

use serde::Serialize;

/// A statement of a paper, compared with the numbers measured here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// The paper's statement.
    pub paper: String,
    /// The numbers measured here.
    pub ours: String,
    /// Whether they agree.
    pub verdict: Verdict,
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
        Self { paper: paper.to_owned(), ours, verdict: Verdict::of(holds) }
    }

    /// Returns a claim that cannot be judged, with the reason.
    pub fn not_comparable(paper: &str, why: String) -> Self {
        Self { paper: paper.to_owned(), ours: why, verdict: Verdict::NotComparable }
    }
}
