//! Measurements of a run: latencies per class and slowdown, per batch and over all, and the use of
//! the cores' time.
//!
//! Owns the histograms. Recording costs two or three increments per request; everything else
//! happens once per batch. Warm-up requests are counted, never recorded. Batches are consecutive
//! completions.
//!
//! Percentiles come from HDR histograms with three significant digits (0.1 %).

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::stats::Estimate;

/// Largest distinct latency; larger ones count as this.
const MAX_NS: u64 = 1 << 40;
/// Slowdowns are kept in thousandths.
const SLOWDOWN_UNIT: f64 = 1000.0;

/// The percentiles reported everywhere, with the mean first.
pub const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// The amount to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Completions before anything is recorded.
    pub warmup: u64,
    /// Completions recorded.
    pub requests: u64,
    /// Batches the recorded completions are split into, at least 1.
    pub batches: u32,
}

/// Mean and percentiles of one quantity.
#[derive(Clone, Debug)]
pub struct Series {
    total: Histogram<u64>,
    batch: Histogram<u64>,
    /// Exact sum over the current batch and over all; histograms round to 0.1 %.
    batch_sum: f64,
    sum: f64,
    /// Per closed batch: mean, then [`QUANTILES`].
    rows: Vec<[f64; 5]>,
}

impl Series {
    fn new() -> Self {
        let empty = Histogram::new_with_bounds(1, MAX_NS, 3).expect("constant bounds are valid");
        Self { total: empty.clone(), batch: empty, batch_sum: 0.0, sum: 0.0, rows: Vec::new() }
    }

    #[inline]
    fn record(&mut self, value: u64) {
        self.batch.saturating_record(value);
        self.batch_sum += value as f64;
    }

    fn close_batch(&mut self) {
        let n = self.batch.len();
        if n == 0 {
            return;
        }
        let [a, b, c, d] = QUANTILES.map(|q| self.batch.value_at_quantile(q) as f64);
        self.rows.push([self.batch_sum / n as f64, a, b, c, d]);
        self.absorb_batch();
    }

    fn absorb_batch(&mut self) {
        self.total.add(&self.batch).expect("both histograms have the same bounds");
        self.sum += self.batch_sum;
        self.batch.reset();
        self.batch_sum = 0.0;
    }

    fn merge(&mut self, other: &Self) {
        self.total.add(&other.total).expect("both histograms have the same bounds");
        self.sum += other.sum;
        self.rows.extend_from_slice(&other.rows);
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total.len()
    }

    /// Returns the mean, with its interval.
    #[must_use]
    pub fn mean(&self) -> Estimate {
        self.estimate(0, self.sum / self.total.len().max(1) as f64)
    }

    /// Returns one of the [`QUANTILES`] by position, with its interval from the batches.
    ///
    /// # Panics
    ///
    /// If `index` is not a position in [`QUANTILES`].
    #[must_use]
    pub fn quantile(&self, index: usize) -> Estimate {
        self.estimate(index + 1, self.total.value_at_quantile(QUANTILES[index]) as f64)
    }

    /// Returns the fraction of values above `value`.
    #[must_use]
    pub fn fraction_above(&self, value: u64) -> f64 {
        let above = self.total.len() - self.total.count_between(0, value);
        above as f64 / self.total.len().max(1) as f64
    }

    fn estimate(&self, column: usize, value: f64) -> Estimate {
        let batches: Vec<f64> = self.rows.iter().map(|r| r[column]).collect();
        Estimate::from_batches(value, &batches)
    }
}

/// Use of the cores' time, in core-nanoseconds, and counts of events, over the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// Virtual time measured, times the number of cores.
    pub core_ns: u64,
    /// Requests' own work.
    pub busy_ns: u64,
    /// Costs of the machine charged to workers.
    pub overhead_ns: u64,
    /// Virtual time measured.
    pub elapsed_ns: u64,
    /// Requests completed.
    pub completed: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Requests taken from another worker's queue.
    pub steals: u64,
    /// Largest number of requests waiting.
    pub max_queued: u64,
    /// Simulated events, warm-up included.
    pub events: u64,
}

impl Spent {
    fn merge(&mut self, other: &Self) {
        self.core_ns += other.core_ns;
        self.busy_ns += other.busy_ns;
        self.overhead_ns += other.overhead_ns;
        self.elapsed_ns += other.elapsed_ns;
        self.completed += other.completed;
        self.preemptions += other.preemptions;
        self.steals += other.steals;
        self.max_queued = self.max_queued.max(other.max_queued);
        self.events += other.events;
    }
}

/// First two moments of the number in system that arrivals find (for Little's law and
/// M/G/infinity).
#[derive(Clone, Copy, Debug, Default)]
pub struct FoundByArrivals {
    count: f64,
    sum: f64,
    squares: f64,
}

impl FoundByArrivals {
    #[inline]
    pub(crate) fn record(&mut self, in_system: usize) {
        let n = in_system as f64;
        self.count += 1.0;
        self.sum += n;
        self.squares += n * n;
    }

    /// Returns the number of arrivals.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Returns the mean number in system.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    /// Returns its variance.
    #[must_use]
    pub fn variance(&self) -> f64 {
        self.squares / self.count.max(1.0) - self.mean().powi(2)
    }
}

/// Everything one or several runs of the same scenario measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Latency in nanoseconds, all classes.
    pub latency: Series,
    /// Latency per class; a single class has only `latency`.
    pub class_latency: Vec<Series>,
    /// Latency over service time, in thousandths.
    slowdown: Series,
    /// Time not spent being served (waiting, overheads), in nanoseconds.
    pub waiting: Series,
    /// Core time and counts.
    pub spent: Spent,
    /// Number in system found by arrivals.
    pub found: FoundByArrivals,
    /// The run was cut short because the backlog passed the limit: the offered load exceeds the
    /// capacity.
    pub saturated: bool,
    budget: Budget,
    seen: u64,
    batch_left: u64,
}

impl Measured {
    /// Creates an empty measurement for this many classes.
    #[must_use]
    pub fn new(classes: usize, budget: Budget) -> Self {
        let per_class = if classes > 1 { classes } else { 0 };
        let budget = Budget { batches: budget.batches.max(1), ..budget };
        Self {
            latency: Series::new(),
            class_latency: vec![Series::new(); per_class],
            slowdown: Series::new(),
            waiting: Series::new(),
            spent: Spent::default(),
            found: FoundByArrivals::default(),
            saturated: false,
            budget,
            seen: 0,
            batch_left: (budget.requests / u64::from(budget.batches)).max(1),
        }
    }

    /// Returns true if warm-up is over.
    #[inline]
    #[must_use]
    pub fn warm(&self) -> bool {
        self.seen >= self.budget.warmup
    }

    /// Returns true if the budget is used up.
    #[inline]
    #[must_use]
    pub fn complete(&self) -> bool {
        self.seen >= self.budget.warmup + self.budget.requests
    }

    /// Records a completed request.
    #[inline]
    pub fn record(&mut self, class: u16, latency_ns: u64, service_ns: u64) {
        self.seen += 1;
        if self.seen <= self.budget.warmup {
            return;
        }
        self.spent.completed += 1;
        self.latency.record(latency_ns);
        if let Some(series) = self.class_latency.get_mut(usize::from(class)) {
            series.record(latency_ns);
        }
        self.slowdown.record((latency_ns as f64 * SLOWDOWN_UNIT / service_ns as f64) as u64);
        // Above the nominal clock rate a request takes less than its service time.
        self.waiting.record(latency_ns.saturating_sub(service_ns));
        self.batch_left -= 1;
        if self.batch_left == 0 {
            self.each_series(Series::close_batch);
            self.batch_left = (self.budget.requests / u64::from(self.budget.batches)).max(1);
        }
    }

    /// Ends the run: an unfinished batch counts in the totals only.
    pub fn finish(&mut self) {
        self.each_series(Series::absorb_batch);
    }

    fn each_series(&mut self, f: fn(&mut Series)) {
        for series in [&mut self.latency, &mut self.slowdown, &mut self.waiting] {
            f(series);
        }
        self.class_latency.iter_mut().for_each(f);
    }

    /// Joins another run of the same scenario with a different seed.
    pub fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.slowdown.merge(&other.slowdown);
        self.waiting.merge(&other.waiting);
        for (mine, theirs) in self.class_latency.iter_mut().zip(&other.class_latency) {
            mine.merge(theirs);
        }
        self.spent.merge(&other.spent);
        self.found.count += other.found.count;
        self.found.sum += other.found.sum;
        self.found.squares += other.found.squares;
        self.saturated |= other.saturated;
    }

    /// Returns one of the [`QUANTILES`] of latency over service time, by position.
    #[must_use]
    pub fn slowdown(&self, index: usize) -> Estimate {
        let e = self.slowdown.quantile(index);
        Estimate { value: e.value / SLOWDOWN_UNIT, error: e.error / SLOWDOWN_UNIT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_is_not_recorded_and_batches_are_consecutive_completions() {
        let mut m = Measured::new(1, Budget { warmup: 3, requests: 6, batches: 2 });
        for latency in [900, 900, 900, 10, 10, 10, 30, 30, 30] {
            assert!(!m.complete());
            m.record(0, latency, 10);
        }
        assert!(m.complete());
        m.finish();
        assert_eq!(m.latency.count(), 6);
        assert_eq!(m.latency.mean().value, 20.0);
        assert_eq!(m.latency.rows.iter().map(|r| r[0]).collect::<Vec<_>>(), [10.0, 30.0]);
        assert!((m.slowdown(2).value - 3.0).abs() < 0.003);
        assert_eq!(m.waiting.mean().value, 10.0);
    }

    #[test]
    fn merging_joins_totals_and_batches() {
        let run = |latency| {
            let mut m = Measured::new(2, Budget { warmup: 0, requests: 2, batches: 1 });
            m.record(0, latency, 5);
            m.record(1, latency, 5);
            m.finish();
            m
        };
        let mut all = run(10);
        all.merge(&run(20));
        assert_eq!((all.latency.count(), all.latency.mean().value), (4, 15.0));
        assert_eq!(all.class_latency[1].count(), 2);
        assert!(all.latency.mean().error.is_finite(), "two runs make two batches");
        assert_eq!(all.latency.fraction_above(15), 0.5);
    }
}
