//! The measurements of IX's control loop, and its decision to add or to remove.
//!
//! Owns, per latency-critical runtime, what waited in its ingress rings and run queues and what it
//! took out of them since the latest decision; and the smoothed number of busy kthreads of all.
//!
//! The queueing delay is the mean over what was served (Little's law): the sum of the depth over
//! time, divided by the number of entries taken out in the same time. So neither idle time nor a
//! burst that is short beside the period makes it smaller. IX writes it as iterations of bounded
//! batches. A reading of the depth holds from its sample to the next one, however late that is:
//! while nothing happens there are no samples. Frames and user threads wait one after the other, so
//! the delays of both add up; each is measured in its own unit, lines of the ring and entries of
//! the run queue. The mean of the latest period raises, an average over several of them lowers.
//!
//! | a runtime that has work and | its depth counts |
//! |---|---|
//! | runs | yes |
//! | has no core, because others have those of the step or its cpuset lacks them | yes: with nothing served each entry counts with all of the period |
//! | was lent a core on which it does not run yet | no: a further core would not come sooner |

use super::super::observe::queued;
use super::super::observe::{Activity, RuntimeLook};
use super::IxConfig;
use crate::ids::Nanos;

/// Delay, in multiples of the bound, beyond which one counts no more in the average.
const MAX_OVER: f64 = 16.0;
/// Entries of a queue beyond which a kthread's claim counts no more: the ends are its own words.
const MAX_DEPTH: u32 = 1 << 16;

/// An exponentially weighted average over time.
#[derive(Clone, Copy, Debug, Default)]
struct Smoothed(f64);

impl Smoothed {
    /// Lets a value that held for `elapsed` count, in an average with this time constant.
    fn add(&mut self, elapsed: Nanos, value: f64, constant: Nanos) {
        let weight = elapsed.0 as f64 / (elapsed.0 + constant.0) as f64;
        self.0 += weight * (value - self.0);
    }
}

/// One kind of queue of a runtime, over all its kthreads.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    depth: u32,
    head: u32,
    /// Sum of the depth over time since the latest decision, in nanoseconds.
    waited_ns: f64,
    /// Entries taken out in that time.
    served: u64,
}

impl Queue {
    fn read(&mut self, elapsed: Nanos, depth: u32, head: u32) {
        self.waited_ns += f64::from(self.depth) * elapsed.0 as f64;
        self.depth = depth;
        // The sum of free-running heads; one that goes back has served nothing.
        let served = head.wrapping_sub(self.head) as i32;
        self.served += u64::from(served.max(0).unsigned_abs());
        self.head = head;
    }

    /// Returns how long an entry has waited on average, in nanoseconds, and begins a new period.
    fn take_delay(&mut self) -> f64 {
        let delay = self.waited_ns / self.served.max(1) as f64;
        (self.waited_ns, self.served) = (0.0, 0);
        delay
    }
}

/// What is known about one latency-critical runtime.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Service {
    ingress: Queue,
    runq: Queue,
    slow: Smoothed,
}

impl Service {
    /// Records a look, `elapsed` after the previous one; returns the number of busy kthreads. Work
    /// that is queued while no kthread is busy counts only if the service `waits` for a core.
    pub(super) fn read(&mut self, look: &RuntimeLook, waits: bool, elapsed: Nanos) -> u32 {
        let depth = |head: u32, tail: u32| if queued(head, tail) { tail.wrapping_sub(head) } else { 0 };
        let (mut ingress, mut runq, mut heads, mut busy) = (0u32, 0u32, (0u32, 0u32), 0);
        for kthread in &look.kthreads {
            let frames = depth(kthread.ingress_head, kthread.ingress_tail);
            let threads = depth(kthread.runq_head, kthread.runq_tail).saturating_add(kthread.overflow);
            ingress = ingress.saturating_add(frames.min(MAX_DEPTH));
            runq = runq.saturating_add(threads.min(MAX_DEPTH));
            heads.0 = heads.0.wrapping_add(kthread.ingress_head);
            heads.1 = heads.1.wrapping_add(kthread.runq_head);
            busy += u32::from(kthread.activity == Activity::Running);
        }
        if !waits && busy == 0 {
            (ingress, runq) = (0, 0);
        }
        self.ingress.read(elapsed, ingress, heads.0);
        self.runq.read(elapsed, runq, heads.1);
        busy
    }

    /// Returns the queueing delay of this period and that over several ones, and begins a new
    /// period. However long one is, it keeps the average over the bound for a few periods only.
    pub(super) fn delays(&mut self, period: Nanos, config: &IxConfig) -> Delays {
        let now = self.ingress.take_delay() + self.runq.take_delay();
        self.slow.add(period, now.min(config.delay_bound.0 as f64 * MAX_OVER), config.smoothing);
        Delays { now, slow: self.slow.0 }
    }
}

/// Queueing delays in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Delays {
    /// Mean over the latest period.
    pub now: f64,
    /// Average over several periods.
    pub slow: f64,
}

impl Delays {
    /// Returns the longer ones of both.
    pub(super) fn max(self, other: Self) -> Self {
        Self { now: self.now.max(other.now), slow: self.slow.max(other.slow) }
    }
}

/// The measurements of all services together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    latest: u32,
    busy: Smoothed,
}

impl Usage {
    pub(super) fn read(&mut self, elapsed: Nanos, busy: u32, constant: Nanos) {
        self.busy.add(elapsed, f64::from(self.latest), constant);
        self.latest = busy;
    }

    /// Returns the fraction of `cores` cores that services kept busy, on average.
    pub(super) fn of(&self, cores: u16) -> f64 {
        (self.busy.0 / f64::from(cores.max(1))).min(1.0)
    }
}

/// What the loop does at a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Add,
    Remove,
    Stay,
}

/// Judges the delays, the fraction of the present step in use and the capacities of the present
/// step and of the previous one. A shallow queue does not show that resources can be removed; idle
/// time does. `hysteresis` is the fraction of the smaller capacity that must be idle after a
/// removal.
pub(super) fn judge(
    delays: Delays,
    bound: Nanos,
    usage: f64,
    capacities: (f64, f64),
    hysteresis: f64,
) -> Verdict {
    let (present, before) = capacities;
    if delays.now > bound.0 as f64 {
        return Verdict::Add;
    }
    let fits = usage * present <= before * (1.0 - hysteresis);
    if fits && delays.slow <= bound.0 as f64 { Verdict::Remove } else { Verdict::Stay }
}

#[cfg(test)]
mod tests {
    use super::super::super::KthreadLook;
    use super::*;
    use heap::vec;

    const MS: Nanos = Nanos::from_millis(1);
    const PERIOD: Nanos = Nanos::from_millis(100);
    const BOUND: Nanos = Nanos::from_micros(50);
    const SMOOTHING: Nanos = Nanos::from_millis(100);

    /// Returns the delays of a service and begins a new period.
    fn take(service: &mut Service, period: Nanos) -> (f64, f64) {
        let Delays { now, slow } = service.delays(period, &IxConfig::default());
        (now, slow)
    }

    fn look(kthread: KthreadLook) -> RuntimeLook {
        RuntimeLook { kthreads: vec![kthread], ..RuntimeLook::default() }
    }

    /// Returns what a run queue shows.
    fn runq(head: u32, waiting: u32, activity: Activity) -> RuntimeLook {
        look(KthreadLook { runq_head: head, runq_tail: head + waiting, activity, ..KthreadLook::default() })
    }

    /// Returns the delays in microseconds after a second of 10,000 served entries with so many
    /// waiting in each queue.
    fn delays(ingress: u32, runq: u32) -> (f64, f64) {
        let mut service = Service::default();
        let mut delays = (0.0, 0.0);
        for ms in 0..=2_000 {
            let head = ms * 10;
            let shown = look(KthreadLook {
                ingress_head: head,
                ingress_tail: head + ingress,
                runq_head: head,
                runq_tail: head + runq,
                activity: Activity::Running,
                ..KthreadLook::default()
            });
            service.read(&shown, false, if ms == 0 { Nanos::ZERO } else { MS });
            if ms > 0 && ms % 100 == 0 {
                delays = take(&mut service, PERIOD);
            }
        }
        (delays.0 / 1e3, delays.1 / 1e3)
    }

    #[test]
    fn delays_of_rings_and_run_queues_add_up() {
        for (ingress, runq, expected) in [(0, 0, 0.0), (3, 0, 300.0), (0, 2, 200.0), (3, 2, 500.0)] {
            let (fast, slow) = delays(ingress, runq);
            assert!((fast - expected).abs() <= expected * 0.01, "{fast} us of {expected}");
            assert!((slow - expected).abs() <= expected * 0.01, "{slow} us of {expected}");
        }
    }

    #[test]
    fn idle_time_between_bursts_does_not_make_a_delay_shorter() {
        let mut service = Service::default();
        let mut head = 0;
        // Bursts of 2 ms every 20 ms, in which 40 wait and 100 are served in each millisecond.
        for ms in 0..100 {
            let in_burst = ms % 20 < 2;
            head += if (1..3).contains(&(ms % 20)) { 100 } else { 0 };
            let activity = if in_burst { Activity::Running } else { Activity::Idle };
            service.read(&runq(head, if in_burst { 40 } else { 0 }, activity), false, MS);
        }
        let (fast, _) = take(&mut service, PERIOD);
        assert!((fast - 400e3).abs() < 1.0, "{fast} ns");
        service.read(&runq(head, 0, Activity::Idle), false, PERIOD);
        let (fast, slow) = take(&mut service, PERIOD);
        assert!(fast == 0.0 && slow > 0.0, "a period without work has no delay: {fast} ns");
    }

    #[test]
    fn work_without_a_core_is_delayed_and_work_whose_core_is_on_its_way_is_not() {
        for (has_core, expected) in [(false, 100e6), (true, 0.0)] {
            let mut service = Service::default();
            for ms in 0..=100 {
                let elapsed = if ms == 0 { Nanos::ZERO } else { MS };
                service.read(&runq(0, 1, Activity::Parked), !has_core, elapsed);
            }
            let (fast, _) = take(&mut service, PERIOD);
            assert!((fast - expected).abs() < 1.0, "{fast} ns");
        }
    }

    #[test]
    fn a_late_sample_is_not_taken_for_the_time_before_it() {
        let minute = Nanos::from_millis(60_000);
        let mut service = Service::default();
        service.read(&look(KthreadLook::default()), false, MS);
        service.read(&runq(0, 9, Activity::Running), false, minute);
        assert_eq!(take(&mut service, minute), (0.0, 0.0), "nothing waited for that minute");
        let mut usage = Usage::default();
        usage.read(MS, 0, SMOOTHING);
        usage.read(minute, 4, SMOOTHING);
        assert_eq!(usage.of(4), 0.0);
    }

    #[test]
    fn a_longer_time_constant_keeps_a_delay_in_mind_for_longer() {
        let periods_over_the_bound = |smoothing_ms| {
            let config = IxConfig { smoothing: Nanos::from_millis(smoothing_ms), ..IxConfig::default() };
            let mut service = Service::default();
            service.read(&runq(0, 40, Activity::Running), false, MS);
            service.read(&runq(100, 0, Activity::Running), false, PERIOD);
            (0..100).take_while(|_| service.delays(PERIOD, &config).slow > BOUND.0 as f64).count()
        };
        let periods = [10, 100, 1_000].map(periods_over_the_bound);
        assert_eq!(periods, [2, 3, 4]);
    }

    #[test]
    fn queues_whose_ends_make_no_sense_cost_a_bounded_delay() {
        let mut service = Service::default();
        for (head, tail) in [(u32::MAX, 0x7fff_fff0), (7, 3), (0, u32::MAX / 2)] {
            let lie = KthreadLook {
                runq_head: head,
                runq_tail: tail,
                overflow: u32::MAX,
                activity: Activity::Running,
                ..KthreadLook::default()
            };
            service.read(&look(lie), false, MS);
        }
        let (fast, slow) = take(&mut service, PERIOD);
        assert!(fast.is_finite() && slow.is_finite());
    }

    #[test]
    fn a_delay_over_the_bound_adds_and_idle_capacity_removes() {
        let after = |now, slow, usage| judge(Delays { now, slow }, BOUND, usage, (3.0, 2.0), 0.25);
        assert_eq!(after(60e3, 10e3, 0.2), Verdict::Add);
        assert_eq!(after(10e3, 60e3, 0.2), Verdict::Stay, "the average is over the bound");
        assert_eq!(after(10e3, 10e3, 0.5), Verdict::Remove, "1.5 of 3 in use: three quarters of 2");
        assert_eq!(after(10e3, 10e3, 0.51), Verdict::Stay);
    }
}
