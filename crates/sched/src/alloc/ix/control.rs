//! The measurements of IX's control loop, and its decision to add or to remove.
//!
//! Owns, per latency-critical runtime, how long the last entry of its ingress rings and run queues
//! waits, and how much of what it has served since the latest decision was late; and the smoothed
//! number of busy kthreads of all.
//!
//! The bound is on the tail, as in IX: a service is delayed if more than [`TAIL`] of what it served
//! in a period was *late*, delayed for longer than the bound. IX computes the delay of the last
//! packet of a queue from its depth and the length of an iteration. Here the last entry at a sample
//! is followed until it is taken out, and then the one that is the last by then: its delay holds
//! for what was served since the sample before, and until the next one is taken out. Between two
//! samples entries leave evenly. So neither idle time nor the many entries that do not wait hide a
//! burst. Frames and user threads wait one after the other, so the delays of both add up; each is
//! measured in its own unit, lines of the ring and entries of the run queue. A reading of the depth
//! holds from its sample to the next one, however late that is: while nothing happens there are no
//! samples. The latest period raises, an average over several of them lowers. One late entry of a
//! period that served fewer than [`LEAST`] is none if as many were served since the one before it.
//!
//! | a runtime that has work and | its depth counts |
//! |---|---|
//! | runs | yes |
//! | has no core, because others have those of the step or its cpuset lacks them | yes: what has waited for longer than the bound at the decision is late, though it is not served |
//! | was lent a core on which it does not run yet | no: a further core would not come sooner |

use super::super::observe::queued;
use super::super::observe::{Activity, RuntimeLook};
use super::IxConfig;
use crate::ids::Nanos;

/// Share of what is served that may be late: the bound is on the 99th percentile.
const TAIL: f64 = 0.01;
/// Entries of which a single late one is within [`TAIL`].
const LEAST: u64 = 100;
/// Share of late entries, in multiples of [`TAIL`], beyond which one counts no more in the average.
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
    head: u32,
    /// Number of entries up to the one that is followed, itself included; 0 while none is.
    ahead: u32,
    /// Time in nanoseconds for which that has waited.
    waited_ns: f64,
    /// Delay of the one before, which was taken out.
    delay_ns: f64,
}

impl Queue {
    /// Records a sample, `elapsed` after the previous one; returns the number of entries taken out.
    fn read(&mut self, elapsed: Nanos, depth: u32, head: u32) -> u32 {
        // The sum of free-running heads; one that goes back has served nothing.
        let served = (head.wrapping_sub(self.head) as i32).max(0).unsigned_abs();
        self.head = head;
        let elapsed = elapsed.0 as f64;
        if self.ahead == 0 {
            // What came and went between two samples did not wait.
            self.delay_ns = 0.0;
        } else if served < self.ahead {
            self.ahead -= served;
            self.waited_ns += elapsed;
        } else {
            self.delay_ns = self.waited_ns + elapsed * f64::from(self.ahead) / f64::from(served);
            self.ahead = 0;
        }
        if depth == 0 || self.ahead == 0 {
            (self.ahead, self.waited_ns) = (depth, 0.0);
        }
        served
    }

    /// Returns the delay at present, in nanoseconds.
    fn delay(&self) -> f64 {
        self.delay_ns.max(self.waited_ns)
    }
}

/// What is known about one latency-critical runtime.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Service {
    ingress: Queue,
    runq: Queue,
    /// Entries served since the latest decision, and those of them that were late.
    served: u64,
    late: u64,
    /// Entries served before, back to the latest period with late ones, this included.
    since_late: u64,
    slow: Smoothed,
}

impl Service {
    /// Records a look, `elapsed` after the previous one; returns the number of busy kthreads. Work
    /// that is queued while no kthread is busy counts only if the service `waits` for a core.
    pub(super) fn read(&mut self, look: &RuntimeLook, waits: bool, elapsed: Nanos, bound: Nanos) -> u32 {
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
        let frames = self.ingress.read(elapsed, ingress, heads.0);
        let threads = self.runq.read(elapsed, runq, heads.1);
        let served = u64::from(frames.max(threads));
        self.served += served;
        self.late += if self.ingress.delay() + self.runq.delay() > bound.0 as f64 { served } else { 0 };
        busy
    }

    /// Returns the late shares of this period and over several ones, and begins a new period.
    /// However long one is, it keeps the average over the bound for a few periods only.
    pub(super) fn late_shares(&mut self, period: Nanos, config: &IxConfig) -> LateShares {
        let is_late = self.ingress.waited_ns + self.runq.waited_ns > config.delay_bound.0 as f64;
        let waiting = if is_late { u64::from(self.ingress.ahead.max(self.runq.ahead)) } else { 0 };
        // The only one of so many, though they were served in several periods.
        let is_alone = self.late == 1 && self.served < LEAST && self.since_late >= LEAST;
        self.since_late =
            if self.late > 0 { self.served } else { self.since_late.saturating_add(self.served) };
        let late = if is_alone { 0 } else { self.late };
        let now = (late + waiting) as f64 / (self.served + waiting).max(1) as f64;
        (self.served, self.late) = (0, 0);
        self.slow.add(period, now.min(TAIL * MAX_OVER), config.smoothing);
        LateShares { now, slow: self.slow.0 }
    }
}

/// Shares of what was served that was late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LateShares {
    /// In the latest period.
    pub now: f64,
    /// Average over several periods.
    pub slow: f64,
}

impl LateShares {
    /// Returns the larger ones of both.
    pub(super) fn max(self, other: Self) -> Self {
        Self { now: self.now.max(other.now), slow: self.slow.max(other.slow) }
    }

    /// Returns whether more than [`TAIL`] of the latest period was late.
    pub(super) fn is_over(self) -> bool {
        self.now > TAIL
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
pub(super) enum Adjustment {
    Add,
    Remove,
    Stay,
}

/// Decides by the late shares, the fraction of the present step in use and the capacities of the
/// present step and of the previous one. A shallow queue does not show that resources can be
/// removed; idle time does. `hysteresis` is the fraction of the smaller capacity that must be idle
/// after a removal.
pub(super) fn decide(late: LateShares, usage: f64, capacities: (f64, f64), hysteresis: f64) -> Adjustment {
    let (present, before) = capacities;
    if late.is_over() {
        return Adjustment::Add;
    }
    let fits = usage * present <= before * (1.0 - hysteresis);
    if fits && late.slow <= TAIL { Adjustment::Remove } else { Adjustment::Stay }
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

    /// Returns the late shares of a service, of the period and on average, and begins a new period.
    fn take(service: &mut Service, period: Nanos) -> (f64, f64) {
        let LateShares { now, slow } = service.late_shares(period, &IxConfig::default());
        (now, slow)
    }

    fn look(kthread: KthreadLook) -> RuntimeLook {
        RuntimeLook { kthreads: vec![kthread], ..RuntimeLook::default() }
    }

    /// Returns what a run queue shows.
    fn runq(head: u32, waiting: u32, activity: Activity) -> RuntimeLook {
        look(KthreadLook { runq_head: head, runq_tail: head + waiting, activity, ..KthreadLook::default() })
    }

    /// Returns the share of late entries of 1,000 served in a period, with so many waiting in each
    /// queue for the first `burst` milliseconds of it.
    fn late(ingress: u32, runq: u32, burst: u32, bound: Nanos) -> f64 {
        let (mut service, config) =
            (Service::default(), IxConfig { delay_bound: bound, ..IxConfig::default() });
        for ms in 0..=100 {
            let head = ms * 10;
            let (ingress, runq) = if ms < burst { (ingress, runq) } else { (0, 0) };
            let shown = look(KthreadLook {
                ingress_head: head,
                ingress_tail: head + ingress,
                runq_head: head,
                runq_tail: head + runq,
                activity: Activity::Running,
                ..KthreadLook::default()
            });
            service.read(&shown, false, if ms == 0 { Nanos::ZERO } else { MS }, bound);
        }
        service.late_shares(PERIOD, &config).now
    }

    #[test]
    fn delays_of_rings_and_run_queues_add_up() {
        for (ingress, runq, delay_us) in [(3, 0, 300), (0, 2, 200), (3, 2, 500)] {
            let at = |us| late(ingress, runq, 1_000, Nanos::from_micros(us));
            assert_eq!((at(delay_us - 1), at(delay_us + 1)), (1.0, 0.0), "{delay_us}");
        }
        assert_eq!(late(0, 0, 1_000, Nanos(1)), 0.0);
    }

    #[test]
    fn a_delay_of_a_few_in_a_hundred_is_over_the_bound_and_that_of_fewer_is_not() {
        // Mean delays of 4 and 2 us.
        let is_over = |burst| LateShares { now: late(0, 2, burst, BOUND), slow: 0.0 }.is_over();
        assert!(is_over(2) && !is_over(1));
    }

    #[test]
    fn idle_time_between_bursts_does_not_hide_them() {
        let mut service = Service::default();
        let mut head = 0;
        // Bursts of 2 ms every 20 ms, in which 40 wait and 100 are served in each millisecond.
        for ms in 0..100 {
            let in_burst = ms % 20 < 2;
            head += if (1..3).contains(&(ms % 20)) { 100 } else { 0 };
            let activity = if in_burst { Activity::Running } else { Activity::Idle };
            service.read(&runq(head, if in_burst { 40 } else { 0 }, activity), false, MS, BOUND);
        }
        assert_eq!(take(&mut service, PERIOD).0, 1.0);
        service.read(&runq(head, 0, Activity::Idle), false, PERIOD, BOUND);
        let (fast, slow) = take(&mut service, PERIOD);
        assert!(fast == 0.0 && slow > 0.0, "a period without work has no delay: {fast}");
    }

    #[test]
    fn work_without_a_core_is_delayed_and_work_whose_core_is_on_its_way_is_not() {
        for (has_core, expected) in [(false, 1.0), (true, 0.0)] {
            let mut service = Service::default();
            for ms in 0..=100 {
                let elapsed = if ms == 0 { Nanos::ZERO } else { MS };
                service.read(&runq(0, 1, Activity::Parked), !has_core, elapsed, BOUND);
            }
            assert_eq!(take(&mut service, PERIOD).0, expected);
        }
    }

    #[test]
    fn a_late_sample_is_not_taken_for_the_time_before_it() {
        let minute = Nanos::from_millis(60_000);
        let mut service = Service::default();
        service.read(&look(KthreadLook::default()), false, MS, BOUND);
        service.read(&runq(0, 9, Activity::Running), false, minute, BOUND);
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
            service.read(&runq(0, 40, Activity::Running), false, MS, BOUND);
            service.read(&runq(100, 0, Activity::Running), false, PERIOD, BOUND);
            (0..100).take_while(|_| service.late_shares(PERIOD, &config).slow > TAIL).count()
        };
        let periods = [10, 100, 1_000].map(periods_over_the_bound);
        assert_eq!(periods, [2, 3, 4]);
    }

    #[test]
    fn of_few_entries_a_period_one_late_in_a_hundred_is_within_the_bound_and_two_are_not() {
        let periods_over = |late_every: u32| {
            let (mut service, mut over, mut head) = (Service::default(), 0, 0);
            // 20 periods of 20 entries; one that waits for a millisecond is late.
            for entry in 0..400 {
                service.read(
                    &runq(head, u32::from(entry % late_every == 0), Activity::Running),
                    false,
                    MS,
                    BOUND,
                );
                head += 1;
                service.read(&runq(head, 0, Activity::Running), false, MS, BOUND);
                let is_end = entry % 20 == 19;
                over += u32::from(is_end && service.late_shares(PERIOD, &IxConfig::default()).is_over());
            }
            over
        };
        assert_eq!([200, 100, 50, 20].map(periods_over), [1, 1, 8, 20], "the first has none before it");
    }

    #[test]
    fn queues_whose_ends_make_no_sense_are_a_bounded_share() {
        let mut service = Service::default();
        for (head, tail) in [(u32::MAX, 0x7fff_fff0), (7, 3), (0, u32::MAX / 2)] {
            let lie = KthreadLook {
                runq_head: head,
                runq_tail: tail,
                overflow: u32::MAX,
                activity: Activity::Running,
                ..KthreadLook::default()
            };
            service.read(&look(lie), false, MS, BOUND);
        }
        let (fast, slow) = take(&mut service, PERIOD);
        assert!((0.0..=1.0).contains(&fast) && (0.0..=1.0).contains(&slow), "{fast} {slow}");
    }

    #[test]
    fn a_delay_over_the_bound_adds_and_idle_capacity_removes() {
        let after = |now, slow, usage| decide(LateShares { now, slow }, usage, (3.0, 2.0), 0.25);
        assert_eq!(after(0.02, 0.0, 0.2), Adjustment::Add);
        assert_eq!(after(0.0, 0.02, 0.2), Adjustment::Stay, "the average is over the bound");
        assert_eq!(after(0.01, 0.01, 0.5), Adjustment::Remove, "1.5 of 3 in use: three quarters of 2");
        assert_eq!(after(0.0, 0.0, 0.51), Adjustment::Stay);
    }
}
