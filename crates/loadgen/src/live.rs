//! Figures of a run while it runs, second by second, from one generator or several side by side.
//!
//! Owns the joining of intervals into lines. It never prints, and never waits for a silent
//! generator: a line is complete as soon as all generators have passed its second, or one is
//! [`AHEAD_NS`] ahead of it.

use std::collections::BTreeMap;

use tailwater_workload::Interval;

/// Time covered by one line, in nanoseconds.
pub const LINE_NS: u64 = 1_000_000_000;

/// Lead of one generator after which the others are no longer waited for.
pub const AHEAD_NS: u64 = 2 * LINE_NS;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Seconds from the start of the measured part to the end of the line's time.
    pub second: u64,
    /// Requests due, answered, given up on and sent late.
    pub interval: Interval,
    /// Time covered by the line, in nanoseconds; more than a second in very long runs.
    pub length_ns: u64,
}

impl Line {
    /// Returns the requests answered per second.
    #[must_use]
    pub fn achieved_rps(&self) -> f64 {
        self.interval.counts.completed as f64 * 1e9 / self.length_ns as f64
    }

    /// Returns a latency in microseconds, see [`Interval::latency_ns`].
    #[must_use]
    pub fn latency_us(&self, quantile: f64) -> Option<f64> {
        self.interval.latency_ns(quantile).map(|ns| ns as f64 / 1e3)
    }
}

/// Joins intervals. All generators have intervals of one length.
#[derive(Debug, Clone)]
pub struct Live {
    /// Progress of each generator, in nanoseconds.
    passed_ns: Vec<u64>,
    /// Incomplete lines by their number.
    open: BTreeMap<u64, Interval>,
    /// Number of lines returned.
    next: u64,
}

impl Live {
    /// Creates a view of `generators`, at least one.
    #[must_use]
    pub fn new(generators: usize) -> Self {
        Self { passed_ns: vec![0; generators.max(1)], open: BTreeMap::new(), next: 0 }
    }

    /// Adds an interval of `length_ns` of generator `index`; returns the lines that are complete
    /// now. Drops intervals of lines already returned.
    pub fn push(&mut self, index: usize, length_ns: u64, interval: &Interval) -> Vec<Line> {
        let line_ns = length_ns.max(1) * LINE_NS.div_ceil(length_ns.max(1));
        let end_ns = interval.index.saturating_add(1).saturating_mul(length_ns);
        if let Some(passed_ns) = self.passed_ns.get_mut(index) {
            *passed_ns = end_ns.max(*passed_ns);
        }
        let number = end_ns.saturating_sub(1) / line_ns;
        if number >= self.next {
            self.open.entry(number).or_default().merge(interval);
        }
        let slowest_ns = self.passed_ns.iter().copied().min().unwrap_or(0);
        let fastest_ns = self.passed_ns.iter().copied().max().unwrap_or(0);
        let complete = slowest_ns.max(fastest_ns.saturating_sub(AHEAD_NS.max(2 * line_ns))) / line_ns;
        let still_open = self.open.split_off(&complete);
        let lines = std::mem::replace(&mut self.open, still_open);
        self.next = self.next.max(complete);
        let second = |number: u64| (number + 1).saturating_mul(line_ns) / LINE_NS;
        lines
            .into_iter()
            .map(|(number, interval)| Line { second: second(number), interval, length_ns: line_ns })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_workload::summary::{Counts, WINDOW_NS};

    fn interval(index: u64) -> Interval {
        let mut interval = Interval::default();
        interval.index = index;
        interval.counts = Counts { offered: 5, completed: 4, ..Counts::default() };
        interval
    }

    #[test]
    fn a_line_is_made_of_all_generators_once_all_have_passed_it() {
        let mut live = Live::new(2);
        for index in 0..12 {
            assert_eq!(live.push(0, WINDOW_NS, &interval(index)), []);
        }
        let lines: Vec<Line> = (0..10).flat_map(|index| live.push(1, WINDOW_NS, &interval(index))).collect();
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].second, lines[0].interval.counts.offered), (1, 100));
        assert_eq!(lines[0].achieved_rps(), 80.0);
        assert_eq!(lines[0].latency_us(0.5), None);
    }

    #[test]
    fn a_silent_generator_holds_nobody_up_for_long() {
        let mut live = Live::new(2);
        let lines: Vec<Line> = (0..40).flat_map(|index| live.push(0, WINDOW_NS, &interval(index))).collect();
        assert_eq!(lines.iter().map(|line| line.second).collect::<Vec<_>>(), [1, 2]);
        // Too late for the lines that are out.
        assert_eq!(live.push(1, WINDOW_NS, &interval(3)), []);
    }

    #[test]
    fn long_intervals_make_long_lines() {
        let mut live = Live::new(1);
        let lines = live.push(0, 16 * WINDOW_NS, &interval(0));
        assert_eq!((lines[0].second, lines[0].length_ns), (1, 1_600_000_000));
        assert_eq!(lines[0].achieved_rps(), 2.5);
    }
}
