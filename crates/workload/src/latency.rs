//! Bounds of latencies, counts of requests, and the histogram that summaries and intervals share.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::units::SECOND_NS;

/// Largest distinct latency, 60 s; larger ones count as this.
pub const MAX_LATENCY_NS: u64 = 60 * SECOND_NS;

/// Decimal digits of precision of the percentiles over a whole run.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// Latency of a lost request where lost ones count: longer than any.
pub const NEVER_NS: u64 = u64::MAX;

/// The counts of a measurement's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests that were due.
    pub offered: u64,
    /// Requests whose reply arrived.
    pub completed: u64,
    /// Requests given up on: never sent, or no reply in time.
    pub lost: u64,
    /// Requests sent later after their due time than the generator's bound. Their latency still
    /// counts from the due time. A large number means that the generator, not the system, was
    /// measured.
    pub late: u64,
}

impl Counts {
    /// Adds the counts of other requests.
    pub fn add(&mut self, other: &Counts) {
        self.offered += other.offered;
        self.completed += other.completed;
        self.lost += other.lost;
        self.late += other.late;
    }

    /// Returns the difference from an earlier value of the same counts.
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            offered: self.offered - earlier.offered,
            completed: self.completed - earlier.completed,
            lost: self.lost - earlier.lost,
            late: self.late - earlier.late,
        }
    }
}

/// Returns an empty histogram with these bounds.
pub(crate) fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, SIGNIFICANT_DIGITS)
        .expect("bounds of 1 ns to 60 s and 3 digits are valid for a histogram")
}
