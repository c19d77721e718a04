//! What IX's control loop measures, and its decision to add or to remove.
//!
//! Owns, per latency-critical runtime, the smoothed depths of its ingress rings and run queues, and
//! what it took out of them; and the smoothed number of busy kthreads of all of them.
//!
//! A reading holds from its sample to the next one, however late that is: while nothing happens
//! there are no samples. The queueing delay is the depth divided by the rate at which the queue was
//! served while the runtime ran (Little's law), which IX writes as iterations of bounded batches.
//! Frames and user threads wait one after the other, so the delays of both add up; each is measured
//! in its own unit, lines of the ring and entries of the run queue. Two averages run in parallel:
//! the fast one raises, the slow one lowers.

use super::super::observe::queued;
use super::super::{Activity, RuntimeLook};
use crate::ids::Nanos;

/// Time constants of the fast and the slow average. IX smooths samples of 10 ms with several
/// factors.
const FAST: Nanos = Nanos::from_millis(10);
const SLOW: Nanos = Nanos::from_millis(100);
/// Entries of a queue beyond which a kthread's claim counts no more: the ends are its own words.
const MAX_DEPTH: u32 = 1 << 16;

/// An exponentially weighted average over time, with both constants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Smoothed {
    latest: f64,
    pub(super) fast: f64,
    pub(super) slow: f64,
}

impl Smoothed {
    /// Lets the latest reading count for `elapsed`, and replaces it.
    fn read(&mut self, elapsed: Nanos, reading: f64) {
        let weight = |constant: Nanos| elapsed.0 as f64 / (elapsed.0 + constant.0) as f64;
        self.fast += weight(FAST) * (self.latest - self.fast);
        self.slow += weight(SLOW) * (self.latest - self.slow);
        self.latest = reading;
    }
}

/// One kind of queue of a runtime, over all its kthreads.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    depth: Smoothed,
    head: u32,
    served: u64,
}

impl Queue {
    fn read(&mut self, elapsed: Nanos, depth: u32, head: u32) {
        self.depth.read(elapsed, f64::from(depth));
        // The sum of free-running heads; one that goes back has served nothing.
        let served = head.wrapping_sub(self.head) as i32;
        self.served += u64::from(served.max(0).unsigned_abs());
        self.head = head;
    }

    /// Returns how long a depth waits, in nanoseconds.
    fn delay(&self, depth: f64, active_ns: u64) -> f64 {
        depth * active_ns as f64 / self.served.max(1) as f64
    }
}

/// What is known about one latency-critical runtime.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Service {
    ingress: Queue,
    runq: Queue,
    busy: u32,
    /// Time in which any of its kthreads ran, since the latest decision.
    active_ns: u64,
}

impl Service {
    /// Takes in a look, `elapsed` after the one before; returns the number of busy kthreads.
    pub(super) fn read(&mut self, look: &RuntimeLook, elapsed: Nanos) -> u32 {
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
        self.active_ns += if self.busy > 0 { elapsed.0 } else { 0 };
        self.busy = busy;
        self.ingress.read(elapsed, ingress, heads.0);
        self.runq.read(elapsed, runq, heads.1);
        busy
    }

    /// Returns the queueing delay by the fast and by the slow average, and begins a new period.
    pub(super) fn delays(&mut self) -> (f64, f64) {
        let of = |depth: fn(&Smoothed) -> f64| {
            let delay = |queue: &Queue| queue.delay(depth(&queue.depth), self.active_ns);
            delay(&self.ingress) + delay(&self.runq)
        };
        let delays = (of(|depth| depth.fast), of(|depth| depth.slow));
        (self.ingress.served, self.runq.served, self.active_ns) = (0, 0, 0);
        delays
    }
}

/// The measurements of all services together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    busy: Smoothed,
}

impl Usage {
    pub(super) fn read(&mut self, elapsed: Nanos, busy: u32) {
        self.busy.read(elapsed, f64::from(busy));
    }

    /// Returns the fraction of so many cores that services kept busy, by the slow average.
    pub(super) fn of(&self, cores: u16) -> f64 {
        (self.busy.slow / f64::from(cores.max(1))).min(1.0)
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
/// step and of the one before. A shallow queue does not show that resources can be removed; idle
/// time does. `hysteresis` is the fraction of the smaller capacity that must be idle after a
/// removal.
pub(super) fn judge(
    delays: (f64, f64),
    bound: Nanos,
    usage: f64,
    capacities: (f64, f64),
    hysteresis: f64,
) -> Verdict {
    let (present, before) = capacities;
    if delays.0 > bound.0 as f64 {
        return Verdict::Add;
    }
    let fits = usage * present <= before * (1.0 - hysteresis);
    if fits && delays.1 <= bound.0 as f64 { Verdict::Remove } else { Verdict::Stay }
}

#[cfg(test)]
mod tests {
    use super::super::super::KthreadLook;
    use super::*;
    use heap::vec;

    const MS: Nanos = Nanos::from_millis(1);

    fn look(kthread: KthreadLook) -> RuntimeLook {
        RuntimeLook { kthreads: vec![kthread], ..RuntimeLook::default() }
    }

    /// Returns the delays in microseconds after a second of 10,000 served entries with so many
    /// waiting in each queue.
    fn delays(ingress: u32, runq: u32) -> (f64, f64) {
        let mut service = Service::default();
        for ms in 0..=1000 {
            let head = ms * 10;
            service.read(
                &look(KthreadLook {
                    ingress_head: head,
                    ingress_tail: head + ingress,
                    runq_head: head,
                    runq_tail: head + runq,
                    activity: Activity::Running,
                    ..KthreadLook::default()
                }),
                if ms == 0 { Nanos::ZERO } else { MS },
            );
        }
        let (fast, slow) = service.delays();
        (fast / 1e3, slow / 1e3)
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
    fn a_late_sample_is_not_taken_for_the_time_before_it() {
        let mut service = Service::default();
        service.read(&look(KthreadLook::default()), MS);
        let busy = KthreadLook { runq_tail: 9, activity: Activity::Running, ..KthreadLook::default() };
        service.read(&look(busy), Nanos::from_millis(60_000));
        assert_eq!(service.delays(), (0.0, 0.0), "nothing waited for that minute");
        let mut usage = Usage::default();
        usage.read(MS, 0);
        usage.read(Nanos::from_millis(60_000), 4);
        assert_eq!(usage.of(4), 0.0);
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
            service.read(&look(lie), MS);
        }
        let (fast, slow) = service.delays();
        assert!(fast.is_finite() && slow.is_finite());
    }

    #[test]
    fn a_delay_over_the_bound_adds_and_idle_capacity_removes() {
        let bound = Nanos::from_micros(50);
        let after = |fast, slow, usage| judge((fast, slow), bound, usage, (3.0, 2.0), 0.25);
        assert_eq!(after(60e3, 10e3, 0.2), Verdict::Add);
        assert_eq!(after(10e3, 60e3, 0.2), Verdict::Stay, "the slow average is over the bound");
        assert_eq!(after(10e3, 10e3, 0.5), Verdict::Remove, "1.5 of 3 in use: three quarters of 2");
        assert_eq!(after(10e3, 10e3, 0.51), Verdict::Stay);
    }
}
