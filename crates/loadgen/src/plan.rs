//! The plan of a run: data, checked before a generator takes it.

use serde::{Deserialize, Serialize};
use tailwater_workload::arrival::HALF_A_GAP;
use tailwater_workload::intervals::interval_length_ns;
use tailwater_workload::summary::WINDOW_NS;
use tailwater_workload::{ArrivalProcess, LoadSchedule, ServiceTime};

/// Maximum number of requests tracked at a time (16 MiB of table). Further ones count as lost when
/// due.
pub const MAX_OUTSTANDING: usize = 1 << 20;

/// Fewest slots of the table, so that a short burst over a low rate never overflows it.
pub const MIN_OUTSTANDING: usize = 1 << 12;

/// Maximum number of flows (source ports) of one generator.
pub const MAX_FLOWS: u16 = 1024;

/// Default lateness after which a request counts as sent late.
pub const DEFAULT_LATE_AFTER_NS: u64 = 5_000;

/// Default time after its due time for which a reply is awaited.
pub const DEFAULT_TIMEOUT_NS: u64 = 200_000_000;

/// One run of a load generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Offered rate over time, warm-up included.
    pub schedule: LoadSchedule,
    /// How arrivals are spread around that rate.
    #[serde(default)]
    pub arrivals: ArrivalProcess,
    /// Work that each request asks of the service.
    pub service: ServiceTime,
    /// Requests due in this first part of the schedule are sent but not counted. Shorter than the
    /// schedule.
    #[serde(default)]
    pub warm_up_ns: u64,
    /// A request without a reply this long after its due time is lost; at least 1.
    #[serde(default = "default_timeout")]
    pub timeout_ns: u64,
    /// A request sent more than this after its due time counts as late.
    #[serde(default = "default_late_after")]
    pub late_after_ns: u64,
    /// Source ports to spread requests over in turn, 1 to [`MAX_FLOWS`].
    #[serde(default = "default_flows")]
    pub flows: u16,
    /// Part of a gap after which the first of constant arrivals comes, at least 0 and below 1;
    /// other arrivals ignore it.
    #[serde(default = "default_phase")]
    pub phase: f64,
    /// True if latencies are also kept by interval, for live views, logs, comparisons and joining
    /// generators that ran side by side. Costs the generator about 5 ns per reply and 2 us ten
    /// times a second.
    #[serde(default)]
    pub intervals: bool,
    /// Length of these intervals, in steps of 10 ms; 0 for windows of 100 ms. Long schedules have
    /// longer ones, see [`Plan::interval_length_ns`].
    #[serde(default, alias = "series_window_ns")]
    pub interval_ns: u64,
    /// True if the requests of the protocol's first class are also kept apart
    /// ([`Measurement::first_class`](crate::report::Measurement::first_class)). Costs the
    /// generator as much again for each reply.
    #[serde(default)]
    pub first_class: bool,
}

fn default_timeout() -> u64 {
    DEFAULT_TIMEOUT_NS
}

fn default_late_after() -> u64 {
    DEFAULT_LATE_AFTER_NS
}

fn default_phase() -> f64 {
    HALF_A_GAP
}

fn default_flows() -> u16 {
    1
}

/// Why a plan cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing would be measured.
    #[error(
        "the warm-up of {} ms is not shorter than the schedule of {} ms: nothing would be measured; make one shorter or the other longer",
        *warm_up_ns as f64 / 1e6, *length_ns as f64 / 1e6
    )]
    WarmUp {
        /// The warm-up.
        warm_up_ns: u64,
        /// The schedule's length.
        length_ns: u64,
    },
    /// Every request would be lost.
    #[error("the timeout is 0: every request would be lost")]
    Timeout,
    /// No source ports, or too many.
    #[error("a plan has 1 to {MAX_FLOWS} flows, not {flows}")]
    Flows {
        /// What was given.
        flows: u16,
    },
    /// The phase is not a part of a gap.
    #[error("the phase of arrivals is a part of a gap, at least 0 and below 1")]
    Phase,
}

impl Plan {
    /// Creates a plan of Poisson arrivals over one flow, without warm-up, with the default bounds.
    #[must_use]
    pub fn new(schedule: LoadSchedule, service: ServiceTime) -> Self {
        Self {
            schedule,
            arrivals: ArrivalProcess::Poisson,
            service,
            warm_up_ns: 0,
            timeout_ns: DEFAULT_TIMEOUT_NS,
            late_after_ns: DEFAULT_LATE_AFTER_NS,
            flows: 1,
            phase: HALF_A_GAP,
            intervals: false,
            interval_ns: 0,
            first_class: false,
        }
    }

    /// Checks that the plan can be run.
    ///
    /// # Errors
    /// The first [`PlanError`] found.
    pub fn check(&self) -> Result<(), PlanError> {
        let length_ns = self.schedule.length_ns();
        if self.warm_up_ns >= length_ns {
            return Err(PlanError::WarmUp { warm_up_ns: self.warm_up_ns, length_ns });
        }
        if self.timeout_ns == 0 {
            return Err(PlanError::Timeout);
        }
        if self.flows == 0 || self.flows > MAX_FLOWS {
            return Err(PlanError::Flows { flows: self.flows });
        }
        if !(0.0..1.0).contains(&self.phase) {
            return Err(PlanError::Phase);
        }
        Ok(())
    }

    /// Returns the share of generator `index` of `count`, if all run side by side: the same
    /// schedule at an equal part of the rate. Of arrivals with equal gaps the generators take each
    /// in turn, so that together they are those of this plan.
    #[must_use]
    pub fn share(&self, index: u32, count: u32) -> Self {
        let count = f64::from(count.max(1));
        let phase = (f64::from(index) + self.phase) / count;
        Self { schedule: self.schedule.scaled(1.0 / count), phase, ..self.clone() }
    }

    /// Returns the length of the intervals kept; `None` if there are none.
    #[must_use]
    pub fn interval_length_ns(&self) -> Option<u64> {
        let wanted_ns = if self.interval_ns > 0 { self.interval_ns } else { WINDOW_NS };
        let measured_ns = self.schedule.length_ns().saturating_sub(self.warm_up_ns);
        self.intervals.then(|| interval_length_ns(measured_ns, wanted_ns))
    }

    /// Returns the number of slots for requests in flight: as many as fall due within the timeout
    /// at the plan's highest rate, half again for chance, within [`MIN_OUTSTANDING`] and
    /// [`MAX_OUTSTANDING`]. A power of two.
    #[must_use]
    pub fn outstanding_slots(&self) -> usize {
        let peak_per_ns = self.schedule.peak_rate().per_second() * self.arrivals.burst_factor() / 1e9;
        let expected = (peak_per_ns * self.timeout_ns as f64).min(self.schedule.expected_arrivals());
        // The cast saturates.
        let wanted = (1.5 * expected) as usize;
        wanted.clamp(MIN_OUTSTANDING, MAX_OUTSTANDING).next_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(schedule: &str) -> Plan {
        Plan::new(schedule.parse().unwrap(), "exp:10us".parse().unwrap())
    }

    #[test]
    fn a_plan_that_measures_nothing_is_refused() {
        let refused = |change: fn(&mut Plan)| {
            let mut plan = plan("1s@10k");
            change(&mut plan);
            plan.check().unwrap_err()
        };
        assert_eq!(plan("1s@10k").check(), Ok(()));
        assert!(matches!(refused(|p| p.warm_up_ns = 1_000_000_000), PlanError::WarmUp { .. }));
        assert_eq!(refused(|p| p.timeout_ns = 0), PlanError::Timeout);
        assert_eq!(refused(|p| p.flows = 0), PlanError::Flows { flows: 0 });
        assert_eq!(refused(|p| p.phase = 1.0), PlanError::Phase);
        assert_eq!(refused(|p| p.phase = f64::NAN), PlanError::Phase);
    }

    #[test]
    fn shares_of_equal_gaps_take_turns() {
        let mut whole = plan("10ms@4k");
        whole.arrivals = "const".parse().unwrap();
        let due = |plan: Plan| {
            let mut generator = crate::Generator::new(plan, 1, 0).unwrap();
            std::iter::from_fn(move || generator.poll_due(u64::MAX / 2))
                .map(|out| out.due_ns)
                .collect::<Vec<_>>()
        };
        let mut shared: Vec<u64> = (0..4).flat_map(|index| due(whole.share(index, 4))).collect();
        shared.sort_unstable();
        assert_eq!(shared, due(whole));
    }

    #[test]
    fn the_table_follows_rate_and_timeout_within_bounds() {
        assert_eq!(plan("10s@100").outstanding_slots(), MIN_OUTSTANDING);
        assert_eq!(plan("10s@100k").outstanding_slots(), 1 << 15);
        assert_eq!(plan("1us@1").outstanding_slots(), MIN_OUTSTANDING);
        assert_eq!(plan("1000s@100M").outstanding_slots(), MAX_OUTSTANDING);
        let mut bursty = plan("10s@100k");
        bursty.arrivals = "onoff:on=1ms,off=9ms".parse().unwrap();
        assert_eq!(bursty.outstanding_slots(), 1 << 19);
    }

    #[test]
    fn intervals_are_as_long_as_is_wanted_and_memory_allows() {
        let mut plan = plan("7s@10k");
        assert_eq!(plan.interval_length_ns(), None);
        plan.intervals = true;
        assert_eq!(plan.interval_length_ns(), Some(WINDOW_NS));
        plan.interval_ns = 10_000_000;
        assert_eq!(plan.interval_length_ns(), Some(10_000_000));
        plan.schedule = "1h@1k".parse().unwrap();
        assert_eq!(plan.interval_length_ns(), Some(1_280_000_000));
    }

    #[test]
    fn a_plan_reads_with_its_defaults() {
        let text = r#"{"schedule":"1s@10k","service":"exp:10us"}"#;
        assert_eq!(serde_json::from_str::<Plan>(text).unwrap(), plan("1s@10k"));
        assert!(serde_json::from_str::<Plan>(r#"{"schedule":"1s@10k","service":"exp:10us","x":1}"#).is_err());
    }
}
