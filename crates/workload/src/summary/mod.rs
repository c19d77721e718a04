//! Latency summaries: the figures of one measurement, and the joining of measurements.
//!
//! Owns a recorder with bounded memory, the figures taken from it, and the **windowed p99.9**. A
//! virtual machine loses its core for milliseconds now and then, so the raw p99.9 of any system
//! measures its host. The median over [`WINDOW_NS`] windows of each window's own p99.9 measures the
//! system instead. Both are reported, with the number of windows that a known stall fell into.
//! Percentiles are of the requests that were answered; the windowed p99.9 is also kept with each
//! window's lost requests counted as [never](NEVER_NS) answered, for searches that hold a system to
//! them.
//!
//! Never averages latencies, drops a request silently (lost and late ones are counted beside the
//! percentiles), or reads a clock: completion times are arguments.
//!
//! Cost: recording is one histogram increment and one comparison. Closing a window selects among at
//! most [`TAIL_LEN`] values (about 2 us), so a generator that spins on due times may record in its
//! loop.
//!
//! Neighbours: `loadgen` and `sim` record here; the command line prints [`Figures`].

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub use crate::latency::{Counts, MAX_LATENCY_NS, NEVER_NS, SIGNIFICANT_DIGITS};

use crate::intervals::{Interval, IntervalRecorder, Intervals};
use crate::latency::empty_histogram;
use crate::units::SECOND_NS;

/// Length of a window.
pub const WINDOW_NS: u64 = 100_000_000;

/// Number of largest values kept per window. Its p99.9 is exact up to a thousand times as many
/// requests, 10 million a second; above that it is the smallest value kept, which is too high
/// rather than too low.
pub const TAIL_LEN: usize = 1024;

/// Number of windows whose p99.9 is kept, a day's worth; later ones count in the total only.
pub const MAX_WINDOWS: usize = 864_000;

/// Windows for which memory is reserved at the start (10 minutes), so that recording does not
/// allocate in ordinary runs.
const INITIAL_WINDOWS: usize = 6_000;

/// Collects one measurement.
#[derive(Debug, Clone)]
pub struct LatencyRecorder {
    start_ns: u64,
    total: Histogram<u64>,
    window: Window,
    windows: WindowTails,
    cut: CutWindows,
    counts: Counts,
    /// Present when latencies are kept by interval.
    intervals: Option<IntervalRecorder>,
}

impl LatencyRecorder {
    /// Creates a recorder for a measurement that starts at `start_ns` of the caller's clock;
    /// windows are counted from there.
    #[must_use]
    pub fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            total: empty_histogram(),
            window: Window::new(),
            windows: WindowTails {
                p999_ns: Vec::with_capacity(INITIAL_WINDOWS),
                settled_p999_ns: Vec::with_capacity(INITIAL_WINDOWS),
            },
            cut: CutWindows::default(),
            counts: Counts::default(),
            intervals: None,
        }
    }

    /// Creates a recorder that also keeps latencies [by interval](crate::intervals) of
    /// `interval_ns`. Intervals of [`interval_length_ns`](crate::intervals::interval_length_ns)
    /// take bounded memory for a measurement of known length.
    #[must_use]
    pub fn with_intervals(start_ns: u64, interval_ns: u64) -> Self {
        Self { intervals: Some(IntervalRecorder::new(interval_ns)), ..Self::new(start_ns) }
    }

    /// Returns the next interval that is over at `now_ns` and was not returned yet; call again
    /// until there is none. Returns none without intervals. The last interval is never returned.
    #[inline]
    pub fn poll_interval(&mut self, now_ns: u64) -> Option<&Interval> {
        let intervals = self.intervals.as_mut()?;
        intervals.roll(now_ns.saturating_sub(self.start_ns), &self.counts);
        intervals.poll_closed()
    }

    /// Records a request that completed at `now_ns` with latency `latency_ns`, counted from its due
    /// time.
    ///
    /// Completions should come in the order of time; one that comes with an earlier time joins the
    /// current window.
    #[inline]
    pub fn record(&mut self, now_ns: u64, latency_ns: u64) {
        self.turn_to_window(now_ns);
        self.window.push(latency_ns);
        self.total.saturating_record(latency_ns.min(MAX_LATENCY_NS));
        self.roll_intervals(now_ns);
        if let Some(intervals) = &mut self.intervals {
            intervals.record(latency_ns.min(MAX_LATENCY_NS));
        }
        self.counts.completed += 1;
    }

    /// Counts a request that was due at `now_ns`.
    #[inline]
    pub fn count_offered(&mut self, now_ns: u64) {
        self.roll_intervals(now_ns);
        self.counts.offered += 1;
    }

    /// Counts a request that was given up on at `now_ns`.
    pub fn count_lost(&mut self, now_ns: u64) {
        self.turn_to_window(now_ns);
        self.window.lost += 1;
        self.roll_intervals(now_ns);
        self.counts.lost += 1;
    }

    /// Counts the last due request as sent late.
    pub fn count_late(&mut self) {
        self.counts.late += 1;
    }

    /// Records that the machine stood still from `from_ns` to `to_ns`, which the recorder's user
    /// saw as a gap in its own spinning. Every window that the gap touches counts as cut, once.
    /// Gaps are reported in the order of time.
    pub fn note_stall(&mut self, from_ns: u64, to_ns: u64) {
        let (from, to) = (self.window_index(from_ns), self.window_index(to_ns.max(from_ns)));
        self.cut.mark(from, to);
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Ends the measurement after `duration_ns`.
    #[must_use]
    pub fn finish(mut self, duration_ns: u64) -> Summary {
        self.close_window();
        Summary {
            duration_ns,
            total: self.total,
            windows: self.windows,
            windows_cut: self.cut.count,
            counts: self.counts,
            intervals: self
                .intervals
                .map_or_else(Intervals::default, |intervals| intervals.finish(&self.counts)),
        }
    }

    fn window_index(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.start_ns) / WINDOW_NS
    }

    #[inline]
    fn roll_intervals(&mut self, now_ns: u64) {
        if let Some(intervals) = &mut self.intervals {
            intervals.roll(now_ns.saturating_sub(self.start_ns), &self.counts);
        }
    }

    /// Closes the current window if it is over at `now_ns`.
    #[inline]
    fn turn_to_window(&mut self, now_ns: u64) {
        let index = self.window_index(now_ns);
        if index > self.window.index {
            self.close_window();
            self.window.index = index;
        }
    }

    /// Keeps the current window's p99.9, unless no request was completed or lost in it, and empties
    /// it.
    #[cold]
    fn close_window(&mut self) {
        let (p999_ns, settled_p999_ns) = self.window.take_p999();
        self.windows.push(p999_ns, settled_p999_ns);
    }
}

/// Each window's p99.9.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WindowTails {
    /// Of the windows in which a request completed: the p99.9 of the completed ones.
    p999_ns: Vec<u64>,
    /// Of the windows in which a request was completed or lost: the p99.9 of all of them, with lost
    /// ones as [`NEVER_NS`].
    settled_p999_ns: Vec<u64>,
}

impl WindowTails {
    fn push(&mut self, p999_ns: Option<u64>, settled_p999_ns: Option<u64>) {
        let add = |list: &mut Vec<u64>, value: Option<u64>| {
            if list.len() < MAX_WINDOWS {
                list.extend(value);
            }
        };
        add(&mut self.p999_ns, p999_ns);
        add(&mut self.settled_p999_ns, settled_p999_ns);
    }

    fn append(&mut self, other: &WindowTails) {
        let add = |list: &mut Vec<u64>, more: &[u64]| {
            let room = MAX_WINDOWS - list.len().min(MAX_WINDOWS);
            list.extend(more.iter().take(room));
        };
        add(&mut self.p999_ns, &other.p999_ns);
        add(&mut self.settled_p999_ns, &other.settled_p999_ns);
    }
}

/// The largest values of the current window.
#[derive(Debug, Clone)]
struct Window {
    index: u64,
    count: u64,
    /// Requests lost in it.
    lost: u64,
    /// At most [`TAIL_LEN`] values, the smallest on top.
    tail: BinaryHeap<Reverse<u64>>,
}

impl Window {
    fn new() -> Self {
        Self { index: 0, count: 0, lost: 0, tail: BinaryHeap::with_capacity(TAIL_LEN) }
    }

    #[inline]
    fn push(&mut self, latency_ns: u64) {
        self.count += 1;
        if self.tail.len() < TAIL_LEN {
            self.tail.push(Reverse(latency_ns));
        } else if let Some(mut smallest) = self.tail.peek_mut()
            && smallest.0 < latency_ns
        {
            smallest.0 = latency_ns;
        }
    }

    /// Returns the smallest value that at least 99.9 % of the window's values do not exceed, first
    /// of the completed requests, then of the completed and lost ones; `None` if there are none.
    fn take_p999(&mut self) -> (Option<u64>, Option<u64>) {
        let (count, lost) = (core::mem::take(&mut self.count), core::mem::take(&mut self.lost));
        let mut tail = core::mem::take(&mut self.tail).into_vec();
        let mut below = |above: u64| {
            let above = above.min(TAIL_LEN as u64 - 1) as usize;
            (above < tail.len()).then(|| tail.select_nth_unstable(above).1.0)
        };
        // At most one thousandth of the values may lie strictly above it.
        let p999_ns = below(count / 1000);
        let settled_p999_ns = match ((count + lost) / 1000).checked_sub(lost) {
            Some(above) => below(above),
            None => Some(NEVER_NS),
        };
        tail.clear();
        self.tail = BinaryHeap::from(tail);
        (p999_ns, settled_p999_ns)
    }
}

/// Windows that a stall fell into. Each counts once, because stalls are reported in the order of
/// time.
#[derive(Debug, Clone, Copy, Default)]
struct CutWindows {
    count: u64,
    /// The first window that is not counted yet.
    next: u64,
}

impl CutWindows {
    fn mark(&mut self, first: u64, last: u64) {
        let first = first.max(self.next);
        if last >= first {
            self.count += last - first + 1;
            self.next = last + 1;
        }
    }
}

/// One finished measurement, or several joined. Serialised as its [`Parts`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Parts", into = "Parts")]
pub struct Summary {
    duration_ns: u64,
    total: Histogram<u64>,
    windows: WindowTails,
    windows_cut: u64,
    counts: Counts,
    intervals: Intervals,
}

/// The content of a [`Summary`] with intervals, to carry it from process to process. A summary
/// without intervals loses its latencies in that form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Length of the measurement.
    pub duration_ns: u64,
    /// Each window's p99.9, for windows in which a request completed.
    pub window_p999_ns: Vec<u64>,
    /// Each window's p99.9 with lost requests as [`NEVER_NS`], for windows in which a request was
    /// completed or lost.
    pub window_settled_p999_ns: Vec<u64>,
    /// Windows that a known stall fell into.
    pub windows_cut: u64,
    /// The counts of requests.
    pub counts: Counts,
    /// Latencies by interval; all of them, so that the histogram of the whole can be rebuilt.
    pub intervals: Intervals,
}

impl Default for Summary {
    /// Creates the neutral element of [`Summary::merge`]: nothing measured in no time.
    fn default() -> Self {
        LatencyRecorder::new(0).finish(0)
    }
}

impl Summary {
    /// Joins a measurement of the same system from another stretch of time, such as another round
    /// of an interleaved comparison: requests, windows and durations add up. The order affects no
    /// figure.
    ///
    /// Measurements that ran side by side must not be joined so, since their windows would have to
    /// be combined; they share one recorder or use [`Summary::merge_parallel`].
    pub fn merge(&mut self, other: &Summary) {
        self.duration_ns += other.duration_ns;
        self.total.add(&other.total).expect("all summaries have histograms of the same bounds");
        self.windows.append(&other.windows);
        self.windows_cut += other.windows_cut;
        self.counts.add(&other.counts);
        self.intervals.append(&other.intervals);
    }

    /// Joins a measurement that ran side by side with this one, by another generator of the same
    /// load: requests add up, time does not. Both must have recorded
    /// [by interval](crate::intervals), and equal intervals are combined; each window's p99.9 is
    /// then that of the requests of both in that window, to 3 digits. Without intervals as short as
    /// windows, which runs of over 6 minutes do not have, no window is left. A window that was cut
    /// for either counts as cut, and twice if for both, up to the number of windows.
    pub fn merge_parallel(&mut self, other: &Summary) {
        self.duration_ns = self.duration_ns.max(other.duration_ns);
        self.total.add(&other.total).expect("all summaries have histograms of the same bounds");
        self.counts.add(&other.counts);
        self.intervals.overlay(&other.intervals);
        let length_ns = self.intervals.length_ns;
        self.windows = WindowTails::default();
        if length_ns > 0 && WINDOW_NS.is_multiple_of(length_ns) {
            for window in &self.intervals.coarsened(WINDOW_NS).list {
                self.windows.push(window.latency_ns(0.999), window.settled_latency_ns(0.999));
            }
        }
        self.windows_cut = (self.windows_cut + other.windows_cut).min(self.windows.p999_ns.len() as u64);
    }

    /// Returns the latencies by interval; empty if the recorder did not keep them.
    #[must_use]
    pub fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    /// Returns all latencies, for callers that need more than quantiles.
    #[must_use]
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.total
    }

    /// Returns the counts of requests.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the length of the measurement in nanoseconds.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.duration_ns
    }

    /// Returns the latency that the fraction `quantile` (0 to 1) of the completed requests did not
    /// exceed, to 3 digits. `None` when nothing completed.
    #[must_use]
    pub fn latency_ns(&self, quantile: f64) -> Option<u64> {
        (!self.total.is_empty()).then(|| self.total.value_at_quantile(quantile))
    }

    /// Returns the median over windows of each window's p99.9; `None` if no request completed. Of
    /// an even number of windows it is the upper of the middle two. A window of fewer than 1000
    /// requests contributes its largest latency.
    #[must_use]
    pub fn windowed_p999_ns(&self) -> Option<u64> {
        upper_median(&self.windows.p999_ns)
    }

    /// Returns the windowed p99.9 as [`Summary::windowed_p999_ns`] does, of all requests that were
    /// completed or lost: in its window a lost one counts as [`NEVER_NS`], and a window in which
    /// all were lost counts too. Returns [`NEVER_NS`] if a lost request is at that place, `None` if
    /// there were no requests.
    #[must_use]
    pub fn windowed_settled_p999_ns(&self) -> Option<u64> {
        upper_median(&self.windows.settled_p999_ns)
    }

    /// Returns the numbers that are printed and written to files.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let seconds = self.duration_ns as f64 / SECOND_NS as f64;
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1_000.0);
        Figures {
            offered_rps: rate(self.counts.offered),
            achieved_rps: rate(self.counts.completed),
            mean_us: (!self.total.is_empty()).then(|| self.total.mean() / 1_000.0),
            p50_us: us(self.latency_ns(0.5)),
            p90_us: us(self.latency_ns(0.9)),
            p99_us: us(self.latency_ns(0.99)),
            p999_us: us(self.latency_ns(0.999)),
            max_us: us(self.latency_ns(1.0)),
            win_p999_us: us(self.windowed_p999_ns()),
            windows: self.windows.p999_ns.len() as u64,
            windows_cut: self.windows_cut,
            completed: self.counts.completed,
            lost: self.counts.lost,
            late: self.counts.late,
            duration_s: seconds,
        }
    }
}

fn upper_median(windows: &[u64]) -> Option<u64> {
    let mut windows = windows.to_vec();
    let middle = windows.len() / 2;
    (!windows.is_empty()).then(|| *windows.select_nth_unstable(middle).1)
}

impl From<Summary> for Parts {
    fn from(summary: Summary) -> Self {
        Self {
            duration_ns: summary.duration_ns,
            window_p999_ns: summary.windows.p999_ns,
            window_settled_p999_ns: summary.windows.settled_p999_ns,
            windows_cut: summary.windows_cut,
            counts: summary.counts,
            intervals: summary.intervals,
        }
    }
}

impl From<Parts> for Summary {
    fn from(parts: Parts) -> Self {
        let mut total = empty_histogram();
        parts.intervals.list.iter().for_each(|interval| interval.add_to(&mut total));
        Self {
            duration_ns: parts.duration_ns,
            total,
            windows: WindowTails {
                p999_ns: parts.window_p999_ns,
                settled_p999_ns: parts.window_settled_p999_ns,
            },
            windows_cut: parts.windows_cut,
            counts: parts.counts,
            intervals: parts.intervals,
        }
    }
}

/// The figures of a measurement. Latencies are microseconds, `None` when nothing completed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests due per second.
    pub offered_rps: f64,
    /// Requests answered per second.
    pub achieved_rps: f64,
    /// Mean latency, stalls of the machine included; absent in older files.
    #[serde(default)]
    pub mean_us: Option<f64>,
    /// Median latency.
    pub p50_us: Option<f64>,
    /// 90th percentile.
    pub p90_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of the whole run, stalls of the machine included.
    pub p999_us: Option<f64>,
    /// Largest latency.
    pub max_us: Option<f64>,
    /// Median over windows of each window's 99.9th percentile.
    pub win_p999_us: Option<f64>,
    /// Windows in which something completed.
    pub windows: u64,
    /// Windows that a known stall of the machine fell into.
    pub windows_cut: u64,
    /// Requests answered.
    pub completed: u64,
    /// Requests given up on.
    pub lost: u64,
    /// Requests sent late.
    pub late: u64,
    /// Seconds measured.
    pub duration_s: f64,
}

#[cfg(test)]
mod tests;
