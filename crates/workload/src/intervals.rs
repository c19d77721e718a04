//! Latencies by interval: the course of a measurement over time, in little memory.
//!
//! Owns the layout of buckets, which is that of the histograms of [`crate::summary`] (so that
//! conversion between them loses nothing); a recorder that closes an interval in time proportional
//! to the buckets it touched; and the joining of intervals, into longer ones and across
//! measurements that ran side by side. It never reads a clock.
//!
//! Cost: recording is two array accesses. Closing an interval copies the buckets it touched, a few
//! hundred to a few thousand (about 2 ns each), into a vector of its own.
//!
//! Memory: 8 bytes per touched bucket and at most [`MAX_INTERVALS`] intervals; longer measurements
//! have longer intervals. Intervals are [100 ms](crate::summary::WINDOW_NS) long unless a
//! measurement sets another length, from [`FINEST_NS`] on.

use alloc::vec;
use alloc::vec::Vec;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::latency::{Counts, MAX_LATENCY_NS, NEVER_NS, empty_histogram};

/// Maximum number of intervals of a measurement: 6 minutes of 100 ms each.
pub const MAX_INTERVALS: usize = 3_600;

/// Maximum number of intervals of measurements appended to each other; beyond it they are joined in
/// pairs.
const MAX_APPENDED: usize = 4 * MAX_INTERVALS;

/// Smallest value that is not exact. Above it there are 1024 buckets for each doubling, which 3
/// significant digits require.
const EXACT: u64 = 2_048;

/// Buckets up to [`MAX_LATENCY_NS`].
const BUCKETS: usize = bucket_of(MAX_LATENCY_NS) as usize + 1;

/// Returns the bucket of a latency of at most [`MAX_LATENCY_NS`].
const fn bucket_of(latency_ns: u64) -> u16 {
    if latency_ns < EXACT {
        return latency_ns as u16;
    }
    let shift = latency_ns.ilog2() - (EXACT.ilog2() - 1);
    // 25 doublings of 1024 buckets at most: far inside 16 bits.
    (shift as u64 * (EXACT / 2) + (latency_ns >> shift)) as u16
}

/// Returns the smallest latency in a bucket.
const fn lowest_in(bucket: u16) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let shift = bucket / (EXACT / 2) - 1;
    (bucket - shift * (EXACT / 2)) << shift
}

/// The shortest interval; all lengths are multiples of it.
pub const FINEST_NS: u64 = 10_000_000;

/// Returns the length of the intervals of a measurement of `length_ns` for which `wanted_ns` was
/// requested: the power of two times that which keeps their number within [`MAX_INTERVALS`]. The
/// request is rounded up to a multiple of [`FINEST_NS`].
#[must_use]
pub fn interval_length_ns(length_ns: u64, wanted_ns: u64) -> u64 {
    let wanted_ns = wanted_ns.clamp(1, MAX_LATENCY_NS).next_multiple_of(FINEST_NS);
    // At most 2^29, for the longest of all schedules.
    length_ns.div_ceil(wanted_ns * MAX_INTERVALS as u64).max(1).next_power_of_two() * wanted_ns
}

/// Returns the shortest length that intervals of both lengths can be joined to; neither is zero.
fn common_length_ns(one_ns: u64, other_ns: u64) -> u64 {
    let (mut a, mut b) = (one_ns, other_ns);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (one_ns / a).saturating_mul(other_ns)
}

/// One interval. Serialised as its index, its counts, and one list of latencies: value, count,
/// value, count...
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenInterval", into = "WrittenInterval")]
pub struct Interval {
    /// Its number: it began at `index` times the length of an interval after the measured part
    /// began.
    pub index: u64,
    /// The counts of requests in it. A request counts as offered, completed and lost when that
    /// happened.
    pub counts: Counts,
    /// Buckets and their counts, in any order, each at most once.
    buckets: Vec<(u16, u32)>,
}

impl Interval {
    /// Creates an interval with these latencies.
    #[must_use]
    pub fn of_histogram(index: u64, counts: Counts, histogram: &Histogram<u64>) -> Self {
        let mut interval = Self { index, counts, buckets: Vec::new() };
        for value in histogram.iter_recorded() {
            let bucket = bucket_of(value.value_iterated_to().min(MAX_LATENCY_NS));
            let count = u32::try_from(value.count_at_value()).unwrap_or(u32::MAX);
            interval.buckets.push((bucket, count));
        }
        interval
    }

    /// Returns its latencies as a histogram like those of [`crate::summary`].
    #[must_use]
    pub fn histogram(&self) -> Histogram<u64> {
        let mut histogram = empty_histogram();
        self.add_to(&mut histogram);
        histogram
    }

    /// Adds its latencies to `histogram`, which can hold them all.
    pub fn add_to(&self, histogram: &mut Histogram<u64>) {
        for &(bucket, count) in &self.buckets {
            histogram.saturating_record_n(lowest_in(bucket), u64::from(count));
        }
    }

    /// Returns its latencies in ascending order: the smallest of each bucket in nanoseconds, and
    /// their number.
    #[must_use]
    pub fn latencies(&self) -> Vec<(u64, u64)> {
        let mut sorted = self.buckets.clone();
        sorted.sort_unstable();
        sorted.into_iter().map(|(bucket, count)| (lowest_in(bucket), u64::from(count))).collect()
    }

    /// Returns the latency that the fraction `quantile` of its completed requests did not exceed,
    /// to 3 digits; `None` when nothing completed.
    #[must_use]
    pub fn latency_ns(&self, quantile: f64) -> Option<u64> {
        self.latency_among(quantile, 0)
    }

    /// Returns the latency as [`Interval::latency_ns`] does, of the requests that were completed or
    /// lost in it; lost ones count as [`NEVER_NS`]. `None` if there are none.
    #[must_use]
    pub fn settled_latency_ns(&self, quantile: f64) -> Option<u64> {
        self.latency_among(quantile, self.counts.lost)
    }

    /// Returns the latency at `quantile` of the recorded ones and of `lost` that are longer than
    /// any.
    fn latency_among(&self, quantile: f64, lost: u64) -> Option<u64> {
        let latencies = self.latencies();
        let total = latencies.iter().map(|&(_, count)| count).sum::<u64>() + lost;
        let rank = ((quantile * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut below = 0;
        let answered = latencies.into_iter().find_map(|(latency_ns, count)| {
            below += count;
            (below >= rank).then_some(latency_ns)
        });
        answered.or((total > 0).then_some(NEVER_NS))
    }

    /// Adds the counts and latencies of `other`; the index stays.
    pub fn merge(&mut self, other: &Interval) {
        self.counts.add(&other.counts);
        self.buckets.extend_from_slice(&other.buckets);
        self.buckets.sort_unstable();
        self.buckets.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
    }
}

#[derive(Serialize, Deserialize)]
struct WrittenInterval {
    index: u64,
    #[serde(flatten)]
    counts: Counts,
    latencies_ns: Vec<u64>,
}

/// Why serialised intervals were refused: a recorder does not write them so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IntervalError {
    /// The latencies are not pairs of a latency and a count, ascending, within the bounds.
    #[error("the latencies of interval {index} are not ascending pairs of a latency up to 60 s and a count")]
    Latencies {
        /// The interval.
        index: u64,
    },
    /// The number of latencies differs from that of completed requests.
    #[error("interval {index} has other than {completed} latencies for as many completed requests")]
    Count {
        /// The interval.
        index: u64,
        /// Completed requests.
        completed: u64,
    },
    /// The intervals are not in ascending order.
    #[error("the intervals do not ascend at index {index}")]
    Order {
        /// The interval.
        index: u64,
    },
    /// The length is invalid, or zero although there are intervals.
    #[error("intervals of {length_ns} ns are not a multiple of {FINEST_NS} ns")]
    Length {
        /// The length.
        length_ns: u64,
    },
}

impl From<Interval> for WrittenInterval {
    fn from(interval: Interval) -> Self {
        let latencies_ns =
            interval.latencies().into_iter().flat_map(|(value, count)| [value, count]).collect();
        Self { index: interval.index, counts: interval.counts, latencies_ns }
    }
}

impl TryFrom<WrittenInterval> for Interval {
    type Error = IntervalError;
    fn try_from(written: WrittenInterval) -> Result<Self, IntervalError> {
        let WrittenInterval { index, counts, latencies_ns } = written;
        let bad = IntervalError::Latencies { index };
        let (pairs, rest) = latencies_ns.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(bad);
        }
        let mut buckets: Vec<(u16, u32)> = Vec::with_capacity(pairs.len().min(BUCKETS));
        for &[latency_ns, count] in pairs {
            let count = u32::try_from(count).map_err(|_| bad)?;
            if latency_ns > MAX_LATENCY_NS || count == 0 {
                return Err(bad);
            }
            let bucket = bucket_of(latency_ns);
            if buckets.last().is_some_and(|&(last, _)| last >= bucket) {
                return Err(bad);
            }
            buckets.push((bucket, count));
        }
        if buckets.iter().map(|&(_, count)| u64::from(count)).sum::<u64>() != counts.completed {
            return Err(IntervalError::Count { index, completed: counts.completed });
        }
        Ok(Self { index, counts, buckets })
    }
}

/// Intervals of one length in ascending order; empty ones may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenIntervals")]
pub struct Intervals {
    /// The length of each in nanoseconds; 0 if latencies were not recorded by interval.
    pub length_ns: u64,
    /// The intervals.
    pub list: Vec<Interval>,
}

#[derive(Deserialize)]
struct WrittenIntervals {
    length_ns: u64,
    list: Vec<Interval>,
}

impl TryFrom<WrittenIntervals> for Intervals {
    type Error = IntervalError;
    fn try_from(written: WrittenIntervals) -> Result<Self, IntervalError> {
        let WrittenIntervals { length_ns, list } = written;
        if !length_ns.is_multiple_of(FINEST_NS) || (length_ns == 0 && !list.is_empty()) {
            return Err(IntervalError::Length { length_ns });
        }
        match list.windows(2).find(|pair| pair[0].index >= pair[1].index) {
            Some(pair) => Err(IntervalError::Order { index: pair[1].index }),
            None => Ok(Self { length_ns, list }),
        }
    }
}

impl Intervals {
    /// Adds the intervals of a measurement that ran at the same time. If the lengths differ, both
    /// are joined to the shortest common length.
    pub fn overlay(&mut self, other: &Intervals) {
        let length_ns = self.length_with(other);
        let theirs = other.coarsened(length_ns);
        let mut mine = self.coarsened(length_ns);
        for interval in theirs.list {
            match mine.list.binary_search_by_key(&interval.index, |mine| mine.index) {
                Ok(place) => mine.list[place].merge(&interval),
                Err(place) => mine.list.insert(place, interval),
            }
        }
        *self = mine;
    }

    /// Appends the intervals of a measurement that ran later. If the lengths differ, both are
    /// joined to the shortest common length.
    pub fn append(&mut self, other: &Intervals) {
        let length_ns = self.length_with(other);
        let mut mine = self.coarsened(length_ns);
        let next = mine.list.last().map_or(0, |last| last.index + 1);
        mine.list.extend(
            other
                .coarsened(length_ns)
                .list
                .into_iter()
                .map(|interval| Interval { index: interval.index + next, ..interval }),
        );
        while mine.list.len() > MAX_APPENDED {
            mine = mine.coarsened(2 * mine.length_ns);
        }
        *self = mine;
    }

    fn length_with(&self, other: &Intervals) -> u64 {
        match (self.length_ns, other.length_ns) {
            (0, length_ns) | (length_ns, 0) => length_ns,
            (one_ns, other_ns) => common_length_ns(one_ns, other_ns),
        }
    }

    /// Returns these latencies in intervals of at least `length_ns`, each joined from several of
    /// these.
    #[must_use]
    pub fn coarsened(&self, length_ns: u64) -> Intervals {
        if self.length_ns == 0 {
            return Intervals { length_ns, list: Vec::new() };
        }
        let factor = length_ns.div_ceil(self.length_ns).max(1);
        let mut list: Vec<Interval> = Vec::with_capacity(self.list.len());
        for interval in &self.list {
            let index = interval.index / factor;
            match list.last_mut() {
                Some(last) if last.index == index => last.merge(interval),
                _ => list.push(Interval { index, ..interval.clone() }),
            }
        }
        Intervals { length_ns: self.length_ns * factor, list }
    }
}

/// Collects the latencies of the current interval.
#[derive(Debug, Clone)]
pub(crate) struct IntervalRecorder {
    length_ns: u64,
    index: u64,
    /// End of the current interval, so that checking it costs one comparison.
    end_ns: u64,
    counts: Vec<u32>,
    touched: Vec<u16>,
    /// Counts of the whole measurement when the current interval began.
    before: Counts,
    closed: Vec<Interval>,
    /// Number of `closed` intervals already returned.
    handed_out: usize,
}

impl IntervalRecorder {
    /// Creates a recorder of intervals of `length_ns`, at least 1.
    pub(crate) fn new(length_ns: u64) -> Self {
        Self {
            length_ns: length_ns.max(1),
            index: 0,
            end_ns: length_ns.max(1),
            counts: vec![0; BUCKETS],
            touched: Vec::with_capacity(BUCKETS),
            before: Counts::default(),
            closed: Vec::with_capacity(MAX_INTERVALS),
            handed_out: 0,
        }
    }

    /// Counts a latency of at most [`MAX_LATENCY_NS`].
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64) {
        let bucket = bucket_of(latency_ns);
        let count = &mut self.counts[usize::from(bucket)];
        if *count == 0 {
            self.touched.push(bucket);
        }
        *count = count.saturating_add(1);
    }

    /// Closes the current interval if it is over at `elapsed_ns` of the measurement. `counts` are
    /// those of the whole measurement.
    #[inline]
    pub(crate) fn roll(&mut self, elapsed_ns: u64, counts: &Counts) {
        if elapsed_ns >= self.end_ns && self.closed.len() < MAX_INTERVALS {
            self.close(counts);
            self.index = elapsed_ns / self.length_ns;
            self.end_ns = (self.index + 1).saturating_mul(self.length_ns);
        }
    }

    #[cold]
    fn close(&mut self, counts: &Counts) {
        let delta = counts.since(&self.before);
        if delta == Counts::default() {
            return;
        }
        self.before = *counts;
        let taken = self.touched.iter().map(|&bucket| {
            let count = core::mem::take(&mut self.counts[usize::from(bucket)]);
            (bucket, count)
        });
        let buckets = taken.collect();
        self.touched.clear();
        self.closed.push(Interval { index: self.index, counts: delta, buckets });
    }

    /// Returns the next closed interval that was not returned yet.
    #[inline]
    pub(crate) fn poll_closed(&mut self) -> Option<&Interval> {
        let next = self.closed.get(self.handed_out)?;
        self.handed_out += 1;
        Some(next)
    }

    /// Closes the last interval and returns all of them.
    pub(crate) fn finish(mut self, counts: &Counts) -> Intervals {
        self.close(counts);
        Intervals { length_ns: self.length_ns, list: self.closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::WINDOW_NS;
    use alloc::format;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn interval(index: u64, latencies: &[u64]) -> Interval {
        let mut histogram = empty_histogram();
        latencies.iter().for_each(|&latency| histogram.record(latency).unwrap());
        let completed = latencies.len() as u64;
        Interval::of_histogram(
            index,
            Counts { offered: completed, completed, ..Counts::default() },
            &histogram,
        )
    }

    #[test]
    fn longer_measurements_have_longer_intervals() {
        let length_ns = |measured_ns| interval_length_ns(measured_ns, WINDOW_NS);
        assert_eq!(length_ns(1), WINDOW_NS);
        assert_eq!(length_ns(WINDOW_NS * 3_600), WINDOW_NS);
        assert_eq!(length_ns(WINDOW_NS * 3_600 + 1), 2 * WINDOW_NS);
        assert_eq!(length_ns(WINDOW_NS * 9_000), 4 * WINDOW_NS);
        assert_eq!(length_ns(u64::MAX / 2) % WINDOW_NS, 0);
        assert_eq!(interval_length_ns(FINEST_NS * 3_600, FINEST_NS), FINEST_NS);
        assert_eq!(interval_length_ns(FINEST_NS * 3_601, FINEST_NS), 2 * FINEST_NS);
        assert_eq!(interval_length_ns(1, 0), FINEST_NS, "no shorter ones");
        assert_eq!(interval_length_ns(1, FINEST_NS + 1), 2 * FINEST_NS);
    }

    #[test]
    fn intervals_close_with_time_and_are_handed_out_once() {
        let mut recorder = IntervalRecorder::new(WINDOW_NS);
        let mut counts = Counts { offered: 2, completed: 1, ..Counts::default() };
        recorder.record(7);
        recorder.roll(WINDOW_NS - 1, &counts);
        assert_eq!(recorder.poll_closed(), None);
        recorder.roll(2 * WINDOW_NS, &counts);
        let first = recorder.poll_closed().unwrap();
        assert_eq!((first.index, first.counts, first.latencies()), (0, counts, vec![(7, 1)]));
        assert_eq!(recorder.poll_closed(), None);
        counts.lost += 1;
        let all = recorder.finish(&counts);
        assert_eq!(all.list.len(), 2);
        assert_eq!((all.list[1].index, all.list[1].counts.lost, all.list[1].counts.offered), (2, 1, 0));
    }

    #[test]
    fn a_measurement_that_overruns_keeps_its_bound_and_every_request() {
        let mut recorder = IntervalRecorder::new(WINDOW_NS);
        let mut counts = Counts::default();
        for window in 0..2 * MAX_INTERVALS as u64 {
            recorder.roll(window * WINDOW_NS, &counts);
            recorder.record(5);
            counts.completed += 1;
        }
        let all = recorder.finish(&counts);
        assert_eq!(all.list.len(), MAX_INTERVALS + 1);
        assert_eq!(all.list.iter().map(|i| i.counts.completed).sum::<u64>(), counts.completed);
    }

    #[test]
    fn intervals_side_by_side_are_laid_over_each_other_and_later_ones_put_behind() {
        let side = |list| Intervals { length_ns: WINDOW_NS, list };
        let mut one = side(vec![interval(0, &[1, 2]), interval(3, &[9])]);
        let other = side(vec![interval(1, &[4]), interval(3, &[9, 5_000])]);
        let mut row = one.clone();
        row.append(&other);
        assert_eq!(row.list.iter().map(|i| i.index).collect::<Vec<_>>(), [0, 3, 5, 7]);
        one.overlay(&other);
        assert_eq!(one.list.iter().map(|i| i.index).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(one.list[2].latencies(), [(9, 2), (5_000, 1)]);
        assert_eq!(one.list[2].counts.completed, 3);
        let all = one.coarsened(10 * WINDOW_NS);
        assert_eq!((all.length_ns, all.list.len(), all.list[0].counts.completed), (10 * WINDOW_NS, 1, 6));
    }

    #[test]
    fn intervals_of_lengths_that_do_not_divide_each_other_meet_at_a_common_one() {
        // The common length of 30 and 40 ms is 120 ms.
        let mut one =
            Intervals { length_ns: 3 * FINEST_NS, list: vec![interval(3, &[1]), interval(4, &[2])] };
        let other = Intervals { length_ns: 4 * FINEST_NS, list: vec![interval(2, &[3]), interval(3, &[4])] };
        one.overlay(&other);
        let seen: Vec<_> = one.list.iter().map(|i| (i.index, i.counts.completed)).collect();
        assert_eq!((one.length_ns, seen), (12 * FINEST_NS, vec![(0, 2), (1, 2)]));
        one.overlay(&Intervals::default());
        assert_eq!(one.length_ns, 12 * FINEST_NS);
    }

    #[test]
    fn written_intervals_that_no_recorder_wrote_are_refused() {
        let written = |length_ns: u64, completed: u64, latencies: &str| {
            let interval = format!(
                r#"{{"index":1,"offered":0,"completed":{completed},"lost":0,"late":0,"latencies_ns":{latencies}}}"#
            );
            let text = format!(r#"{{"length_ns":{length_ns},"list":[{interval}]}}"#);
            serde_json::from_str::<Intervals>(&text)
        };
        assert!(written(WINDOW_NS, 3, "[5,1,7,2]").is_ok());
        for (length_ns, completed, latencies, part) in [
            (0, 0, "[]", "not a multiple"),
            (7, 0, "[]", "not a multiple"),
            (WINDOW_NS, 3, "[5,1,7]", "ascending pairs"),
            (WINDOW_NS, 3, "[7,2,5,1]", "ascending pairs"),
            (WINDOW_NS, 0, "[7,0]", "ascending pairs"),
            (WINDOW_NS, 1, "[60000000001,1]", "ascending pairs"),
            (WINDOW_NS, 1, "[5,18446744073709551615]", "ascending pairs"),
            (WINDOW_NS, 4, "[5,1,7,2]", "completed"),
        ] {
            let error = written(length_ns, completed, latencies).unwrap_err().to_string();
            assert!(error.contains(part), "{latencies}: {error}");
        }
    }

    proptest! {
        #[test]
        fn buckets_are_those_of_the_histogram(latency_ns in prop_oneof![1..5_000u64, 1..=MAX_LATENCY_NS]) {
            let histogram = empty_histogram();
            let bucket = bucket_of(latency_ns);
            prop_assert_eq!(lowest_in(bucket), histogram.lowest_equivalent(latency_ns));
            prop_assert_eq!(bucket_of(lowest_in(bucket)), bucket);
            prop_assert!(usize::from(bucket) < BUCKETS);
        }

        #[test]
        fn an_interval_and_its_histogram_say_the_same(
            latencies in prop::collection::vec(1..10_000_000u64, 1..200), quantile in 0.0..=1.0f64
        ) {
            let interval = interval(3, &latencies);
            let histogram = interval.histogram();
            prop_assert_eq!(histogram.len(), latencies.len() as u64);
            let mut back = Interval::of_histogram(3, interval.counts, &histogram);
            back.merge(&Interval::default());
            let mut sorted = interval.clone();
            sorted.merge(&Interval::default());
            prop_assert_eq!(back, sorted);
            let lowest = histogram.lowest_equivalent(histogram.value_at_quantile(quantile));
            prop_assert_eq!(interval.latency_ns(quantile), Some(lowest));
        }

        #[test]
        fn written_intervals_read_back(latencies in prop::collection::vec(0..MAX_LATENCY_NS, 0..50)) {
            let mut written = interval(4, &latencies);
            written.merge(&Interval::default());
            let all = Intervals { length_ns: WINDOW_NS, list: vec![written] };
            let text = serde_json::to_string(&all).unwrap();
            prop_assert_eq!(serde_json::from_str::<Intervals>(&text).unwrap(), all, "{}", text);
        }

        #[test]
        fn merging_intervals_is_recording_all_in_one(
            one in prop::collection::vec(1..100_000_000u64, 0..100),
            other in prop::collection::vec(1..100_000_000u64, 0..100)
        ) {
            let mut merged = interval(0, &one);
            merged.merge(&interval(1, &other));
            let all: Vec<u64> = one.iter().chain(&other).copied().collect();
            prop_assert_eq!(merged.histogram(), interval(0, &all).histogram());
        }
    }
}
