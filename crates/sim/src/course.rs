//! What a machine did over time, in windows of equal length.
//!
//! Owns the latencies of the present window; the rest of a [`Window`] is the difference of two
//! readings of the meter.

use serde::Serialize;
use tailwater_sched::alloc::Clock;

/// One stretch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Its end, in seconds from the beginning of the measured part.
    pub end_s: f64,
    /// Requests completed per second.
    pub rate: f64,
    /// 99th percentile of their latencies; 0 without any.
    pub p99_ns: u64,
    /// Mean power in watts.
    pub watts: f64,
    /// Speed of the batch job, in cores at the nominal clock rate.
    pub batch_cores: f64,
    /// Step of the policy at the end, from 0, and its number of cores.
    pub step: u16,
    /// Cores of that step.
    pub cores: u16,
    /// Clock rate at the end; `None`: nominal.
    #[serde(skip)]
    pub clock: Option<Clock>,
}

/// Collects windows.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    length_ns: u64,
    from_ns: u64,
    begins_ns: u64,
    latencies_ns: Vec<u64>,
    used: (f64, f64),
    pub(crate) windows: Vec<Window>,
}

impl Course {
    pub(crate) fn new(length_ns: u64, from_ns: u64) -> Self {
        Self {
            length_ns: length_ns.max(1),
            from_ns,
            begins_ns: from_ns,
            latencies_ns: Vec::new(),
            used: (0.0, 0.0),
            windows: Vec::new(),
        }
    }

    pub(crate) fn record(&mut self, now_ns: u64, latency_ns: u64) {
        if now_ns >= self.from_ns {
            self.latencies_ns.push(latency_ns);
        }
    }

    /// Returns whether the present window is over.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.begins_ns.saturating_add(self.length_ns)
    }

    /// Closes the present window at `now_ns`. `used` is the meter's reading.
    pub(crate) fn close(&mut self, now_ns: u64, used: (f64, f64), setting: (u16, u16), clock: Option<Clock>) {
        let elapsed_ns = now_ns.saturating_sub(self.begins_ns) as f64;
        if elapsed_ns <= 0.0 {
            return;
        }
        let completed = self.latencies_ns.len();
        // The nearest rank: the smallest latency that 99 % of all do not exceed.
        let rank = (completed * 99).div_ceil(100).saturating_sub(1);
        let p99_ns = match completed {
            0 => 0,
            _ => *self.latencies_ns.select_nth_unstable(rank).1,
        };
        self.windows.push(Window {
            end_s: (now_ns - self.from_ns) as f64 / 1e9,
            rate: completed as f64 / elapsed_ns * 1e9,
            p99_ns,
            watts: (used.0 - self.used.0) / elapsed_ns * 1e9,
            batch_cores: (used.1 - self.used.1) / elapsed_ns,
            step: setting.0,
            cores: setting.1,
            clock,
        });
        self.latencies_ns.clear();
        (self.begins_ns, self.used) = (now_ns, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_their_own_latencies_and_differences_of_the_meter() {
        let mut course = Course::new(100, 1_000);
        course.record(999, 7);
        (1..=100).for_each(|latency| course.record(1_000, latency));
        assert!(!course.is_over(1_099) && course.is_over(1_100));
        course.close(1_100, (2e-7, 50.0), (3, 4), None);
        course.close(1_150, (3e-7, 50.0), (0, 1), None);
        let seen: Vec<_> = course.windows.iter().map(|w| (w.p99_ns, w.step, w.cores)).collect();
        assert_eq!(seen, [(99, 3, 4), (0, 0, 1)]);
        let [first, second] = &course.windows[..] else { panic!("two windows") };
        assert!((first.watts - 2.0).abs() < 1e-9 && (second.watts - 2.0).abs() < 1e-9);
        assert_eq!((first.batch_cores, second.batch_cores), (0.5, 0.0));
        assert_eq!((first.rate, second.rate), (1e9, 0.0));
    }
}
