//! Latency over time: requests answered and p99.9 of each short window, as the papers draw them beside a changing load.
//!
//! Owns a recorder with bounded memory. A window belongs to the time at which replies came, so its count is the throughput
//! then. Never reads a clock: completion times are arguments. Neighbour: [`crate::summary`], which has the figures of
//! a whole run and the exact selection in a window.

use serde::{Deserialize, Serialize};

use crate::summary::Window;

/// Most windows of a series; what comes later is left out.
pub const MAX_SERIES: usize = 100_000;

/// One window of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesWindow {
    /// Its start, from that of the measurement, in nanoseconds.
    pub at_ns: u64,
    /// Requests answered in it.
    pub completed: u64,
    /// Their p99.9 in nanoseconds, exact up to a million of them; `None` when none was answered.
    pub p999_ns: Option<u64>,
}

/// Collects a series.
#[derive(Debug, Clone)]
pub struct SeriesRecorder {
    start_ns: u64,
    window_ns: u64,
    current: Window,
    done: Vec<SeriesWindow>,
    most: usize,
}

impl SeriesRecorder {
    /// A recorder of windows of `window_ns` (at least 1) over a measurement from `start_ns` of the caller's clock that lasts
    /// `length_ns`. Recording does not allocate.
    #[must_use]
    pub fn new(start_ns: u64, window_ns: u64, length_ns: u64) -> Self {
        let window_ns = window_ns.max(1);
        let most = usize::try_from(length_ns.div_ceil(window_ns)).unwrap_or(MAX_SERIES).min(MAX_SERIES);
        Self { start_ns, window_ns, current: Window::new(), done: Vec::with_capacity(most), most }
    }

    /// Records a reply at `now_ns`. Replies should come in the order of time; one with an earlier time joins the current window.
    #[inline]
    pub fn record(&mut self, now_ns: u64, latency_ns: u64) {
        let index = now_ns.saturating_sub(self.start_ns) / self.window_ns;
        while self.current.index < index && self.done.len() < self.most {
            self.close();
        }
        if self.current.index >= index {
            self.current.push(latency_ns);
        }
    }

    /// The windows, those after the last reply too.
    #[must_use]
    pub fn finish(mut self) -> Vec<SeriesWindow> {
        while self.done.len() < self.most {
            self.close();
        }
        self.done
    }

    #[cold]
    fn close(&mut self) {
        let at_ns = self.current.index * self.window_ns;
        let completed = self.current.count;
        let p999_ns = self.current.take_p999();
        self.done.push(SeriesWindow { at_ns, completed, p999_ns });
        self.current.index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_has_its_own_count_and_tail_and_quiet_ones_have_none() {
        let mut recorder = SeriesRecorder::new(1_000, 100, 500);
        for (now_ns, latency_ns) in [(1_000, 5), (1_099, 7), (1_100, 3), (1_050, 9), (1_320, 4)] {
            recorder.record(now_ns, latency_ns);
        }
        let seen: Vec<_> = recorder.finish().iter().map(|w| (w.at_ns, w.completed, w.p999_ns)).collect();
        // The reply that comes out of order joins the second.
        let expected =
            [(0, 2, Some(7)), (100, 2, Some(9)), (200, 0, None), (300, 1, Some(4)), (400, 0, None)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_comes_after_the_end_is_left_out() {
        let mut recorder = SeriesRecorder::new(0, 100, 200);
        recorder.record(10, 1);
        recorder.record(1_000_000_000_000, 2);
        let seen: Vec<_> = recorder.finish().iter().map(|w| w.completed).collect();
        assert_eq!(seen, [1, 0]);
    }

    #[test]
    fn the_number_of_windows_is_bounded_for_any_lengths() {
        let mut recorder = SeriesRecorder::new(0, 0, u64::MAX);
        recorder.record(u64::MAX, 1);
        assert_eq!(recorder.finish().len(), MAX_SERIES);
    }

    #[test]
    fn a_window_of_a_thousand_leaves_its_largest_out() {
        let mut recorder = SeriesRecorder::new(0, 1_000, 1_000);
        (1..=1_000).for_each(|i| recorder.record(i - 1, i));
        assert_eq!(recorder.finish()[0].p999_ns, Some(999));
    }
}
