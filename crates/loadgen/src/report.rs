//! The report of a run: latencies, lost requests, and whether the generator kept its schedule.
//!
//! Owns the joining of runs of one configuration ([`Measurement::merge`]), the serialised
//! [`Report`], and the wording of its warnings. A report never judges the system under test, only
//! the measurement.

use serde::{Deserialize, Serialize};
use tailwater_workload::{Figures, Summary};

use crate::delivery::{Delivery, DeliveryFigures};
use crate::noise::{GapFigures, Gaps};

/// Counts of events that should not happen. Zero everywhere in a clean run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oddities {
    /// Further replies to a request that was already answered.
    pub duplicate: u64,
    /// Replies that came after their request was given up on.
    pub stale: u64,
    /// Replies to requests that were never sent.
    pub unknown: u64,
    /// Datagrams that are no replies.
    pub malformed: u64,
    /// Requests that the transport could not send; they are among the lost.
    pub send_failed: u64,
    /// Requests dropped because too many were in flight; they are among the lost.
    pub overflowed: u64,
    /// Requests whose answer was not the right one; they are among the lost.
    #[serde(default)]
    pub wrong: u64,
    /// Requests that the server refused; they are among the lost.
    #[serde(default)]
    pub refused: u64,
    /// Requests completed by the answer that the key has no value.
    #[serde(default)]
    pub missed: u64,
    /// Connections that ended during the run and were opened again; their requests in flight are
    /// among the lost.
    #[serde(default)]
    pub reconnects: u64,
    /// Requests that waited in the generator because no connection had room.
    #[serde(default)]
    pub held_back: u64,
    /// Largest lateness of a request, in nanoseconds.
    pub worst_behind_ns: u64,
}

impl Oddities {
    fn warn_of_answers(&self, warnings: &mut Vec<String>) {
        for (count, what) in [
            (self.wrong, "requests were answered wrongly; they count as lost"),
            (self.refused, "requests were refused by the server; they count as lost"),
            (self.missed, "requests found nothing under their key; they count as completed"),
            (
                self.reconnects,
                "connections ended and were opened again; their requests in flight count as lost",
            ),
            (self.held_back, "requests waited because no connection had room; their latency includes that"),
        ] {
            if count > 0 {
                warnings.push(format!("{count} {what}"));
            }
        }
    }
}

/// One finished run, or several of the same configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measurement {
    /// Latencies and counts of the measured requests.
    pub summary: Summary,
    /// The time that the server spent on the work asked for, of the measured requests.
    #[serde(default)]
    pub delivery: Delivery,
    /// The same of the requests of the protocol's first class, if the plan keeps them apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_class: Option<Summary>,
    /// What should not have happened, warm-up included.
    pub oddities: Oddities,
    /// Disturbances of the generator's own core.
    pub gaps: Gaps,
    /// The plan's bound for late requests.
    pub late_after_ns: u64,
    /// True if the run was ended before its plan.
    pub interrupted: bool,
}

impl Measurement {
    /// Returns latencies in nanoseconds at `quantile` (0 to 1) of the completed requests of the
    /// protocol's first class, and of all others; `None` unless the plan keeps the first class
    /// apart. A part without completed requests has no latency.
    #[must_use]
    pub fn by_class_ns(&self, quantile: f64) -> Option<[Option<u64>; 2]> {
        let first = self.first_class.as_ref()?;
        let mut others = self.summary.histogram().clone();
        // The requests of the first class are among all of them.
        others.subtract(first.histogram()).ok()?;
        let latency_ns = (!others.is_empty()).then(|| others.value_at_quantile(quantile));
        Some([first.latency_ns(quantile), latency_ns])
    }

    /// Adds another run of the same plan, for instance of the next round of an interleaved
    /// comparison.
    pub fn merge(&mut self, other: &Measurement) {
        self.summary.merge(&other.summary);
        if let Some((mine, theirs)) = self.first_class.as_mut().zip(other.first_class.as_ref()) {
            mine.merge(theirs);
        }
        self.merge_rest(other);
    }

    /// Adds a run of a share of the same load that ran side by side with this one; see
    /// [`Summary::merge_parallel`].
    pub fn merge_parallel(&mut self, other: &Measurement) {
        self.summary.merge_parallel(&other.summary);
        if let Some((mine, theirs)) = self.first_class.as_mut().zip(other.first_class.as_ref()) {
            mine.merge_parallel(theirs);
        }
        self.merge_rest(other);
    }

    fn merge_rest(&mut self, other: &Measurement) {
        let (mine, theirs) = (&mut self.oddities, &other.oddities);
        mine.duplicate += theirs.duplicate;
        mine.stale += theirs.stale;
        mine.unknown += theirs.unknown;
        mine.malformed += theirs.malformed;
        mine.send_failed += theirs.send_failed;
        mine.overflowed += theirs.overflowed;
        mine.wrong += theirs.wrong;
        mine.refused += theirs.refused;
        mine.missed += theirs.missed;
        mine.reconnects += theirs.reconnects;
        mine.held_back += theirs.held_back;
        mine.worst_behind_ns = mine.worst_behind_ns.max(theirs.worst_behind_ns);
        self.delivery.merge(&other.delivery);
        self.gaps.merge(&other.gaps);
        self.interrupted |= other.interrupted;
    }

    /// Returns the figures, with a warning for everything that limits their meaning.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            figures: self.summary.figures(),
            delivery: self.delivery.figures(),
            oddities: self.oddities,
            generator_core: self.gaps.figures(),
            interrupted: self.interrupted,
            warnings: self.warnings(),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let counts = self.summary.counts();
        let share = |part: u64| 100.0 * part as f64 / counts.offered.max(1) as f64;
        let mut warnings = Vec::new();
        if counts.late > 0 {
            warnings.push(format!(
                "the generator ran behind: {} of {} requests ({:.3} %) were sent more than {} us after they were due, \
                 the worst {} us; their latency includes that",
                counts.late,
                counts.offered,
                share(counts.late),
                self.late_after_ns as f64 / 1e3,
                self.oddities.worst_behind_ns / 1000,
            ));
        }
        if counts.lost > 0 {
            warnings.push(format!(
                "{} of {} requests ({:.3} %) were lost; the percentiles are of the others",
                counts.lost,
                counts.offered,
                share(counts.lost),
            ));
        }
        if self.oddities.overflowed > 0 {
            warnings.push(format!(
                "{} requests were never sent because too many were in flight: lower the rate or the timeout",
                self.oddities.overflowed
            ));
        }
        self.oddities.warn_of_answers(&mut warnings);
        if counts.offered == 0 {
            warnings.push(
                "no request fell due in the measured time: measure longer or raise the rate".to_owned(),
            );
        }
        if self.interrupted {
            warnings.push("the run was ended before its plan; requests in flight are not counted".to_owned());
        }
        warnings
    }
}

/// The figures that are printed and written to files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Rates, latencies, lost and late requests.
    #[serde(flatten)]
    pub figures: Figures,
    /// Time that the server spent on work over the time asked for, if the protocol states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryFigures>,
    /// What should not have happened.
    pub oddities: Oddities,
    /// Disturbances of the generator's own core.
    pub generator_core: GapFigures,
    /// True if the run was ended before its plan.
    pub interrupted: bool,
    /// Everything that limits the meaning of the figures, in words; empty for a clean run.
    pub warnings: Vec<String>,
}
