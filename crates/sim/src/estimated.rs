//! The cores that a simulated service requests, by the estimate that live programs use.
//!
//! Owns one service's averages since its latest decision. A live program's scheduler counts at each
//! of its visits, and an ordinary thread decides; here the machine samples at each look of the
//! allocator. The decision is `tailwater_sched::estimate` in both, over the cores requested so far.

use tailwater_sched::Nanos;
use tailwater_sched::alloc::Requests;
use tailwater_sched::estimate::{EstimateSettings, Estimator, LoadAverage};

/// Time between two decisions, over which load is averaged; 50 ms in Arachne.
const INTERVAL: Nanos = Nanos::from_millis(50);

/// One service's estimate.
#[derive(Clone, Debug)]
pub(crate) struct Estimated {
    estimator: Estimator,
    decided: Nanos,
    samples: u64,
    busy: u64,
    runnable: u64,
}

impl Estimated {
    /// Returns the estimate of a service that requests one core at first and never more than
    /// `most`, with Arachne's settings.
    pub(crate) fn new(most: u16) -> Self {
        let estimator = Estimator::new(EstimateSettings::default(), 1, most.max(1));
        Self { estimator, decided: Nanos::ZERO, samples: 0, busy: 0, runnable: 0 }
    }

    /// Takes in a sample: cores that run requests, and requests that run or wait. Returns what the
    /// service requests from now on.
    pub(crate) fn sample(&mut self, now: Nanos, busy: u64, runnable: u64) -> Requests {
        self.samples += 1;
        self.busy += busy;
        self.runnable += runnable;
        if now.since(self.decided) >= INTERVAL {
            let mean = |sum: u64| sum as f64 / self.samples as f64;
            let load = LoadAverage { utilisation: mean(self.busy), runnable: mean(self.runnable) };
            self.estimator.decide(load, self.estimator.cores());
            (self.decided, self.samples, self.busy, self.runnable) = (now, 0, 0, 0);
        }
        let mut cores = [0; tailwater_sched::alloc::PRIORITIES as usize];
        cores[0] = u8::try_from(self.requested()).unwrap_or(u8::MAX);
        Requests::new(cores)
    }

    /// Returns the number of cores that the service requests.
    pub(crate) fn requested(&self) -> u16 {
        self.estimator.cores()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_more_is_requested_after_an_interval_with_a_queue_and_one_less_after_an_idle_one() {
        let mut service = Estimated::new(3);
        let mut requested = Vec::new();
        for interval in 0..5 {
            for sample in 0..1_000 {
                let now = Nanos(interval * INTERVAL.0 + (sample + 1) * (INTERVAL.0 / 1_000));
                let (busy, runnable) = if interval < 3 { (1, 8) } else { (0, 0) };
                service.sample(now, busy, runnable);
            }
            requested.push(service.requested());
        }
        assert_eq!(requested, [2, 3, 3, 2, 1], "never more than three");
        assert_eq!(service.sample(Nanos(6 * INTERVAL.0), 0, 0), Requests::new([1, 0, 0, 0, 0, 0, 0, 0]));
    }
}
