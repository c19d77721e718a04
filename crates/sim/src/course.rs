//! What a machine did over time, in windows of equal length.
//!
//! Owns the latencies of the present window; the rest of a [`Window`] is the difference of two
//! readings of the machine.

use serde::Serialize;
use tailwater_sched::alloc::Clock;

/// One stretch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Its end, in seconds from the beginning of the measured part.
    pub end_s: f64,
    /// Requests completed per second.
    pub rate: f64,
    /// Median of their latencies; 0 without any.
    pub p50_ns: u64,
    /// 99th percentile of their latencies; 0 without any.
    pub p99_ns: u64,
    /// Mean power in watts; 0 on a machine without clock rates.
    pub watts: f64,
    /// Cores that the services held.
    pub held_cores: f64,
    /// Cores that services with an estimate requested, at the end.
    pub requested_cores: u16,
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

/// What a machine has used since its measured part began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) joules: f64,
    /// Core time that the services held, in nanoseconds.
    pub(crate) held_ns: f64,
    /// Work of the batch job, in nanoseconds of a core at the nominal clock rate.
    pub(crate) batch_ns: f64,
    /// Cores that are requested now.
    pub(crate) requested: u16,
}

/// Collects windows.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    length_ns: u64,
    from_ns: u64,
    begins_ns: u64,
    latencies_ns: Vec<u64>,
    used: Reading,
    pub(crate) windows: Vec<Window>,
}

impl Course {
    pub(crate) fn new(length_ns: u64, from_ns: u64) -> Self {
        Self {
            length_ns: length_ns.max(1),
            from_ns,
            begins_ns: from_ns,
            latencies_ns: Vec::new(),
            used: Reading::default(),
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

    /// Closes the present window at `now_ns`.
    pub(crate) fn close(&mut self, now_ns: u64, used: Reading, setting: (u16, u16), clock: Option<Clock>) {
        let elapsed_ns = now_ns.saturating_sub(self.begins_ns) as f64;
        if elapsed_ns <= 0.0 {
            return;
        }
        let [p50_ns, p99_ns] = [50, 99].map(|percent| self.percentile_ns(percent));
        self.windows.push(Window {
            end_s: (now_ns - self.from_ns) as f64 / 1e9,
            rate: self.latencies_ns.len() as f64 / elapsed_ns * 1e9,
            p50_ns,
            p99_ns,
            watts: (used.joules - self.used.joules) / elapsed_ns * 1e9,
            held_cores: (used.held_ns - self.used.held_ns) / elapsed_ns,
            requested_cores: used.requested,
            batch_cores: (used.batch_ns - self.used.batch_ns) / elapsed_ns,
            step: setting.0,
            cores: setting.1,
            clock,
        });
        self.latencies_ns.clear();
        (self.begins_ns, self.used) = (now_ns, used);
    }

    /// Returns the smallest latency that so many percent of all do not exceed; 0 without any.
    fn percentile_ns(&mut self, percent: usize) -> u64 {
        let completed = self.latencies_ns.len();
        let rank = (completed * percent).div_ceil(100).saturating_sub(1);
        match completed {
            0 => 0,
            _ => *self.latencies_ns.select_nth_unstable(rank).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_their_own_latencies_and_differences_of_readings() {
        let mut course = Course::new(100, 1_000);
        course.record(999, 7);
        (1..=100).for_each(|latency| course.record(1_000, latency));
        assert!(!course.is_over(1_099) && course.is_over(1_100));
        let reading = |joules, held_ns| Reading { joules, held_ns, batch_ns: 50.0, requested: 2 };
        course.close(1_100, reading(2e-7, 100.0), (3, 4), None);
        course.close(1_150, reading(3e-7, 200.0), (0, 1), None);
        let seen: Vec<_> = course.windows.iter().map(|w| (w.p50_ns, w.p99_ns, w.step, w.cores)).collect();
        assert_eq!(seen, [(50, 99, 3, 4), (0, 0, 0, 1)]);
        let [first, second] = &course.windows[..] else { panic!("two windows") };
        assert!((first.watts - 2.0).abs() < 1e-9 && (second.watts - 2.0).abs() < 1e-9);
        assert_eq!((first.batch_cores, second.batch_cores), (0.5, 0.0));
        assert_eq!((first.held_cores, second.held_cores), (1.0, 2.0));
        assert_eq!((first.requested_cores, second.requested_cores), (2, 2));
        assert_eq!((first.rate, second.rate), (1e9, 0.0));
    }
}
