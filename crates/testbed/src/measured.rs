//! One measured point, and when it counts as saturated.

use std::ops::Range;
use std::time::{Duration, Instant};

use tailwater_loadgen::plan::DEFAULT_TIMEOUT_NS;
use tailwater_loadgen::{Measurement, Plan};
use tailwater_workload::{Figures, ServiceTime};

use crate::account::Shares;
use crate::batch::{BatchRates, Part};

/// A system that loses more than this part of its requests is saturated: it achieves less than 99 %
/// of the offered rate.
const SATURATED_LOSS: f64 = 0.01;

/// A system whose median latency is longer than this many mean services has a standing queue and is
/// saturated, whether or not its buffers hold the queue until the point ends: loss alone would
/// favour larger buffers. In a queue with random arrivals and services the median is this long from
/// 99 % load on (M/M/1: ln 2 / (1 - load) services).
const STANDING_QUEUE_SERVICES: f64 = 100.0;

/// Least latency of a standing queue in microseconds, for servers whose services are unknown and
/// shorter than 10 us.
const STANDING_QUEUE_US: f64 = 1_000.0;

/// One measured point of either system, before it becomes figures.
#[derive(Debug)]
pub struct Measured {
    /// What the generator measured.
    pub measurement: Measurement,
    /// When the counted part began and ended.
    pub counted: Range<Instant>,
    /// The batch job's rates, where one ran beside the service.
    pub batch: Option<BatchRates>,
    /// Where the time of the managed cores went in the counted part; empty where no account is
    /// kept.
    pub account: Vec<Shares>,
    /// The same of each half of the counted part, where [`on_tailwater::Setting`] requests it.
    ///
    /// [`on_tailwater::Setting`]: crate::on_tailwater::Setting
    pub halves: Option<[Vec<Shares>; 2]>,
}

/// Returns the median latency above which requests for `service` stand in a queue, in microseconds.
pub fn standing_queue_us(service: &ServiceTime) -> f64 {
    (STANDING_QUEUE_SERVICES * service.mean_ns() / 1e3).max(STANDING_QUEUE_US)
}

/// Returns whether a system did not keep up: it lost over a hundredth of the requests, or half of
/// them took longer than `standing_us`, which is [`standing_queue_us`] plus the time that the
/// system waits by design.
pub fn is_saturated(figures: &Figures, standing_us: f64) -> bool {
    let Figures { completed, lost, p50_us, .. } = *figures;
    lost as f64 > SATURATED_LOSS * (completed + lost) as f64 || p50_us.is_some_and(|us| us > standing_us)
}

/// Returns a latency in microseconds; without any answer, the generator's timeout.
pub fn latency_or_timeout(us: Option<f64>) -> f64 {
    us.unwrap_or(DEFAULT_TIMEOUT_NS as f64 / 1e3)
}

/// Returns the counted part of a plan that starts at `start`.
pub(crate) fn counted_part(plan: &Plan, start: Instant) -> Part {
    let at = |ns| start + Duration::from_nanos(ns);
    Part { from: at(plan.warm_up_ns), to: at(plan.schedule.length_ns()), in_halves: false }
}

#[cfg(test)]
mod tests {
    use tailwater_workload::Summary;

    use super::*;

    #[test]
    fn more_than_a_hundredth_lost_or_a_standing_queue_is_saturated() {
        let saturated = |completed, lost, p50_us, service: &str| {
            let figures = Figures { completed, lost, p50_us, ..Summary::default().figures() };
            is_saturated(&figures, standing_queue_us(&service.parse().unwrap()))
        };
        assert!(!saturated(99, 1, Some(900.0), "exp:10us") && saturated(98, 2, Some(10.0), "exp:10us"));
        assert!(!saturated(0, 0, None, "exp:10us") && saturated(0, 1, None, "exp:10us"));
        // Ten milliseconds of requests wait in buffers that hold them all.
        assert!(saturated(100, 0, Some(10_000.0), "exp:10us"));
        assert!(!saturated(100, 0, Some(9_000.0), "exp:100us"), "ninety services are no standing queue");
    }
}
