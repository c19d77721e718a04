//! A latency histogram that one thread writes and any thread reads.
//!
//! Owns the buckets: log-linear as in HdrHistogram, 64 per octave, so a value is known to 1.6 % or
//! better. Recording is one index computation without multiplication and one plain addition (no
//! locked instruction: there is one writer), about 3 ns.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
/// Values are clamped below 2^36 ns, about 69 s.
const MAX_BITS: u32 = 36;
const BUCKETS: usize = SUB * (MAX_BITS - SUB_BITS + 1) as usize;

/// The bounds of the buckets in the document, in nanoseconds. A value counts to the bucket that the
/// middle of its own is in, so one within 1.6 % of a bound may count to the next.
pub const BOUNDS_NS: [u64; 20] = [
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// Nanosecond counts by bucket. One writer; any reader at any time.
#[derive(Debug)]
pub struct SharedHistogram {
    buckets: Box<[AtomicU64]>,
}

impl SharedHistogram {
    /// Returns an empty histogram.
    pub fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts one value. Called by the one writing thread only: concurrent writers would lose
    /// counts, nothing worse.
    #[inline]
    pub fn record(&self, ns: u64) {
        let bucket = &self.buckets[index(ns)];
        // Relaxed: statistics; a reader may see this count a little later.
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the values recorded so far, in nanoseconds, to two significant digits. The
    /// difference of two snapshots is the distribution between them.
    pub fn snapshot(&self) -> Histogram<u64> {
        of(&self.counts())
    }

    /// Returns the middle of each bucket that has values, and their number.
    fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        counts.enumerate().filter(|(_, count)| *count > 0).map(|(i, count)| (middle(i), count)).collect()
    }

    /// Returns number, sum and percentiles of the values, and how many are at most each of
    /// [`BOUNDS_NS`]; all of one reading.
    fn to_json(&self) -> Value {
        let counts = self.counts();
        if counts.is_empty() {
            return json!({ "count": 0, "sum": 0, "buckets": BOUNDS_NS.map(|_| 0) });
        }
        let h = of(&counts);
        let sum = counts.iter().fold(0u64, |sum, (ns, count)| sum.saturating_add(ns.saturating_mul(*count)));
        let mut rest = counts.iter().peekable();
        let mut below = 0;
        let buckets = BOUNDS_NS.map(|bound| {
            while let Some((_, count)) = rest.next_if(|(ns, _)| *ns <= bound) {
                below += count;
            }
            below
        });
        json!({
            "count": h.len(),
            "sum": sum,
            "p50": h.value_at_quantile(0.5),
            "p90": h.value_at_quantile(0.9),
            "p99": h.value_at_quantile(0.99),
            "p999": h.value_at_quantile(0.999),
            "max": h.max(),
            "buckets": buckets,
        })
    }
}

impl serde::Serialize for SharedHistogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

fn of(counts: &[(u64, u64)]) -> Histogram<u64> {
    let mut histogram =
        Histogram::new_with_bounds(1, 1 << MAX_BITS, 2).expect("constant bounds are in range");
    for (ns, count) in counts {
        histogram.saturating_record_n(*ns, *count);
    }
    histogram
}

impl Default for SharedHistogram {
    fn default() -> Self {
        Self::new()
    }
}

#[inline(always)]
fn index(ns: u64) -> usize {
    let v = ns.min((1 << MAX_BITS) - 1);
    if v < SUB as u64 {
        return v as usize;
    }
    let exponent = v.ilog2();
    let sub = (v >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (exponent - SUB_BITS + 1) as usize * SUB + sub
}

/// Returns the middle of a bucket.
fn middle(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = (index / SUB - 1) as u32;
    let low = ((index % SUB + SUB) as u64) << shift;
    low + ((1u64 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_comes_back_within_its_bucket(v in 0u64..1 << MAX_BITS) {
            let back = middle(index(v));
            prop_assert!(back.abs_diff(v) <= v / 64 + 1, "{v} came back as {back}");
        }

        #[test]
        fn buckets_are_ordered(a in 0u64..1 << MAX_BITS, b in 0u64..1 << MAX_BITS) {
            prop_assert_eq!(index(a) <= index(b), middle(index(a)) <= middle(index(b)));
            prop_assert!(index(a) < BUCKETS);
        }
    }

    #[test]
    fn extreme_values_are_clamped() {
        assert!(index(u64::MAX) < BUCKETS);
        let histogram = SharedHistogram::new();
        histogram.record(u64::MAX);
        histogram.record(0);
        assert_eq!(histogram.snapshot().len(), 2);
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let histogram = SharedHistogram::new();
        (1..=1000u64).for_each(|i| histogram.record(i * 10));
        let p50 = histogram.snapshot().value_at_quantile(0.5);
        assert!((4_850..=5_150).contains(&p50), "{p50}");
    }

    #[test]
    fn buckets_count_what_is_at_most_their_bound_and_the_sum_is_that_of_the_values() {
        let histogram = SharedHistogram::new();
        assert_eq!(histogram.to_json()["buckets"].as_array().unwrap().len(), BOUNDS_NS.len());
        for ns in [100, 700, 1_500, 1_500, 60_000_000_000] {
            histogram.record(ns);
        }
        let document = histogram.to_json();
        let below: Vec<u64> =
            document["buckets"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
        assert_eq!(below[..4], [1, 1, 2, 4]);
        assert_eq!((below[19], &document["count"]), (4, &json!(5)));
        let sum = document["sum"].as_u64().unwrap();
        assert!(sum.abs_diff(60_000_003_800) < 60_000_003_800 / 60, "{sum}");
    }
}
