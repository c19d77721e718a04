//! Work asked for, and the time that servers state to have spent on it.
//!
//! Owns a histogram of the ratio of both over the requests of a run, weighted by the work asked
//! for: the statement of short work consists of clock readings to a large part. The **median** is
//! the speed of the work itself, compared with its calibration; the **mean** includes the time
//! during which the server was interrupted. A floor for latencies is computed from the median.
//!
//! Both times come from a program: sums saturate, and ratios beyond the last bucket count there.

use serde::{Deserialize, Serialize};

/// Buckets per unit of the ratio: steps of 0.1 %.
const STEPS: u64 = 1_000;

/// Largest distinct ratio, in buckets; larger ones count as this.
const LAST: u64 = 4 * STEPS;

/// The work that one request asked for, and the time spent on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Computing time that the request asked for, in nanoseconds.
    pub asked_ns: u64,
    /// Time from the start of the work to its end on the server's clock, in nanoseconds.
    pub taken_ns: u64,
}

/// The work of a run. The default is that of no request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    asked_ns: u64,
    taken_ns: u64,
    /// Nanoseconds asked for, by ratio. Empty before the first request.
    by_ratio: Vec<u64>,
}

/// The ratio of the time taken to the time asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DeliveryFigures {
    /// Over the work asked for: half of it took at most this many times as long.
    pub median: f64,
    /// All time taken over all time asked for, interruptions included.
    pub mean: f64,
}

impl Delivery {
    /// Counts a request that asked for some work.
    #[inline]
    pub fn record(&mut self, served: Served) {
        let Served { asked_ns, taken_ns } = served;
        let Some(ratio) = (u128::from(taken_ns) * u128::from(STEPS)).checked_div(asked_ns.into()) else {
            return;
        };
        if self.by_ratio.is_empty() {
            self.by_ratio.resize(LAST as usize + 1, 0);
        }
        let bucket = &mut self.by_ratio[ratio.min(LAST.into()) as usize];
        *bucket = bucket.saturating_add(asked_ns);
        self.asked_ns = self.asked_ns.saturating_add(asked_ns);
        self.taken_ns = self.taken_ns.saturating_add(taken_ns);
    }

    /// Adds the requests of another run.
    pub fn merge(&mut self, other: &Delivery) {
        if self.by_ratio.len() < other.by_ratio.len() {
            self.by_ratio.resize(other.by_ratio.len(), 0);
        }
        for (mine, theirs) in self.by_ratio.iter_mut().zip(&other.by_ratio) {
            *mine = mine.saturating_add(*theirs);
        }
        self.asked_ns = self.asked_ns.saturating_add(other.asked_ns);
        self.taken_ns = self.taken_ns.saturating_add(other.taken_ns);
    }

    /// Returns the ratios; `None` if no request asked for work, or the protocol carries no time.
    #[must_use]
    pub fn figures(&self) -> Option<DeliveryFigures> {
        let total: u128 = self.by_ratio.iter().map(|&ns| u128::from(ns)).sum();
        let mut below = 0;
        let median = self.by_ratio.iter().position(|&ns| {
            below += u128::from(ns);
            2 * below >= total
        });
        let mean = self.taken_ns as f64 / self.asked_ns as f64;
        let median = median.filter(|_| total > 0)?;
        Some(DeliveryFigures { median: median as f64 / STEPS as f64, mean })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(served: &[(u64, u64)]) -> Delivery {
        let mut delivery = Delivery::default();
        served.iter().for_each(|&(asked_ns, taken_ns)| delivery.record(Served { asked_ns, taken_ns }));
        delivery
    }

    #[test]
    fn the_median_is_over_the_work_and_an_interruption_is_in_the_mean_only() {
        // Short requests, whose time is mostly clock readings, and long ones.
        let long = [(10_000, 10_200), (10_000, 10_200), (10_000, 110_200)];
        let all = delivery(&[[(100, 150); 3], long].concat());
        let figures = all.figures().unwrap();
        assert_eq!(figures.median, 1.02);
        assert!((figures.mean - 131_050.0 / 30_300.0).abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn no_work_has_no_ratio_and_runs_are_joined() {
        assert_eq!(delivery(&[]).figures(), None);
        assert_eq!(delivery(&[(0, 70)]).figures(), None, "no work was asked for");
        let (mut one, two) = (delivery(&[]), delivery(&[(1_000, 1_100), (3_000, 3_000)]));
        one.merge(&two);
        assert_eq!(one.figures(), two.figures());
        one.merge(&delivery(&[(8_000, 4_000)]));
        assert_eq!(one.figures().unwrap().median, 0.5);
    }

    #[test]
    fn wild_times_are_counted_and_overflow_nothing() {
        let wild = delivery(&[(1, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0)]);
        let figures = wild.figures().unwrap();
        assert!(figures.median <= 4.0 && figures.mean.is_finite(), "{figures:?}");
    }
}
