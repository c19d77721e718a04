//! How fast cores changed hands during the points of a run, and flow groups their kthreads.
//!
//! Owns the merging of the IOKernels' histograms, one IOKernel per point, and their figures.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use tailwater_iokernel::stats::StatsHandle;
use tailwater_stats::HandoffKind;

/// Collects hand-off latencies over the IOKernels of all points.
#[derive(Debug, Default)]
pub struct HandoffRecord {
    kinds: BTreeMap<&'static str, Histogram<u64>>,
    moved: u64,
    fenced: u64,
    dropped: u64,
    fences: Option<Histogram<u64>>,
}

/// How flow groups moved to other kthreads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MoveFigures {
    /// Groups whose next frame went to another kthread than the one before.
    pub moved: u64,
    /// Of these, the ones whose earlier frames still waited, and were read first.
    pub fenced: u64,
    /// Frames dropped at full rings, of any flow.
    pub dropped: u64,
    /// Time in microseconds until the earlier frames had been read, where it was measured: mean,
    /// 95th percentile, largest; `None` without a measurement.
    pub waits_us: Option<[f64; 3]>,
}

/// Time from the IOKernel's decision to the service's thread running, by how the core was freed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HandoffFigures {
    /// Median for a core freed by a busy, polling kthread.
    pub p50: f64,
    /// 99th percentile for the same.
    pub p99: f64,
    /// Number of such hand-offs.
    pub count: u64,
    /// All ways of freeing a core, this one included.
    pub kinds: BTreeMap<&'static str, HandoffKindFigures>,
}

/// Latencies of one kind of hand-off in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct HandoffKindFigures {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Number of them.
    pub count: u64,
}

impl HandoffRecord {
    /// Adds the hand-offs and moves of an IOKernel.
    pub fn add(&mut self, stats: &StatsHandle) {
        self.moved += stats.switch.moved_groups.get();
        self.fenced += stats.switch.fenced_groups.get();
        self.dropped += stats.switch.dropped_full.get();
        let fences = stats.fence.snapshot();
        match &mut self.fences {
            Some(all) => all.add(&fences).expect("all snapshots have the same bounds"),
            None => self.fences = Some(fences),
        }
        for kind in HandoffKind::ALL {
            let seen = stats.handoff(kind).running.snapshot();
            match self.kinds.entry(kind.name()) {
                std::collections::btree_map::Entry::Vacant(entry) => drop(entry.insert(seen)),
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    entry.get_mut().add(&seen).expect("all snapshots have the same bounds");
                }
            }
        }
    }

    /// Returns how flow groups moved.
    pub fn moves(&self) -> MoveFigures {
        let Self { moved, fenced, dropped, .. } = *self;
        let fences = self.fences.as_ref().filter(|fences| !fences.is_empty());
        let waits_us = fences.map(|fences| {
            [fences.mean(), fences.value_at_quantile(0.95) as f64, fences.max() as f64].map(|ns| ns / 1e3)
        });
        MoveFigures { moved, fenced, dropped, waits_us }
    }

    /// Returns the figures; zeros for a kind that did not occur.
    pub fn figures(&self) -> HandoffFigures {
        let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let kinds: BTreeMap<_, _> = self
            .kinds
            .iter()
            .map(|(&name, h)| {
                (name, HandoffKindFigures { p50: us(h, 0.5), p99: us(h, 0.99), count: h.len() })
            })
            .collect();
        let polling = kinds.get(HandoffKind::Polling.name()).copied().unwrap_or_default();
        HandoffFigures { p50: polling.p50, p99: polling.p99, count: polling.count, kinds }
    }
}
