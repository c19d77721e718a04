//! Queueing-delay threshold (Caladan, OSDI'20 section 4): one more core for a runtime whose oldest
//! item has waited too long.
//!
//! Owns, per kthread queue, the times at which its entries were first seen. Congestion detection
//! tests whether anything waited through two looks; this policy tests for how long the head has
//! waited, so the threshold can differ from the interval between looks. A longer threshold trades
//! tail latency for fewer hand-offs.
//!
//! A runtime keeps the cores it uses, is given one more while its delay is over the threshold, and
//! loses idle cores to runtimes that need them. Best-effort runtimes with work share what is left.

use heap::collections::VecDeque;
use heap::vec;
use heap::vec::Vec;

use super::observe::{Activity, RuntimeLook};
use super::per_runtime::PerRuntime;
use super::policy::{Policy, View};
use super::target::Arbiter;
use crate::action::Action;
use crate::ids::{CoreId, Nanos, RuntimeId};
use crate::ledger::{CoreState, Ledger, RuntimeClass};

/// Maximum number of distinct tails remembered per queue. Beyond it the newest is merged with its
/// successor, which makes young entries look younger and never affects old ones.
const HISTORY: usize = 64;

/// Settings of [`DelayThreshold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayConfig {
    /// Time between looks; 10 us in Caladan.
    pub interval: Nanos,
    /// Delay from which one more core is granted; 10 us in Caladan.
    pub threshold: Nanos,
}

impl Default for DelayConfig {
    fn default() -> Self {
        Self { interval: Nanos::from_micros(5), threshold: Nanos::from_micros(10) }
    }
}

/// Times at which the entries of one queue were first seen: (tail, time), ascending.
#[derive(Clone, Debug, Default)]
struct Ages {
    seen: VecDeque<(u32, Nanos)>,
}

impl Ages {
    /// Returns how long the head entry has waited since it was first seen.
    fn look(&mut self, head: u32, tail: u32, now: Nanos) -> Nanos {
        while self.seen.front().is_some_and(|(seen, _)| !super::observe::queued(head, *seen)) {
            self.seen.pop_front();
        }
        if !super::observe::queued(head, tail) {
            return Nanos::ZERO;
        }
        let full = self.seen.len() == HISTORY;
        match self.seen.back_mut() {
            Some((last, _)) if *last == tail => {}
            Some(last) if full => *last = (tail, now),
            _ => self.seen.push_back((tail, now)),
        }
        self.seen.front().map_or(Nanos::ZERO, |(_, since)| now.since(*since))
    }
}

#[derive(Clone, Debug)]
struct Tracked {
    runq: Vec<Ages>,
    ingress: Vec<Ages>,
    overflow_since: Option<Nanos>,
    delayed: bool,
}

impl Tracked {
    fn look(&mut self, look: &RuntimeLook, now: Nanos, threshold: Nanos) {
        let mut delay = Nanos::ZERO;
        for (k, (runq, ingress)) in look.kthreads.iter().zip(self.runq.iter_mut().zip(&mut self.ingress)) {
            delay = delay.max(runq.look(k.runq_head, k.runq_tail, now));
            delay = delay.max(ingress.look(k.ingress_head, k.ingress_tail, now));
        }
        let other = look.kthreads.iter().any(|k| k.overflow > 0 || k.timer_due);
        self.overflow_since = if other { self.overflow_since.or(Some(now)) } else { None };
        delay = delay.max(self.overflow_since.map_or(Nanos::ZERO, |since| now.since(since)));
        self.delayed = delay >= threshold;
    }
}

/// Caladan's signal as a policy. See the module header.
#[derive(Clone, Debug)]
pub struct DelayThreshold {
    config: DelayConfig,
    runtimes: PerRuntime<Tracked>,
    arbiter: Arbiter,
}

impl DelayThreshold {
    /// Creates a policy with no runtimes attached.
    #[must_use]
    pub fn new(config: DelayConfig) -> Self {
        Self { config, runtimes: PerRuntime::default(), arbiter: Arbiter::default() }
    }

    fn grant(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        for &runtime in view.ledger.runtimes() {
            let Some(tracked) = self.runtimes.get(runtime) else { continue };
            let Some(account) = view.ledger.account(runtime) else { continue };
            let Some(look) = view.obs.runtime(runtime) else { continue };
            let spec = account.spec();
            let (rank, asks) = match spec.class {
                RuntimeClass::LatencyCritical => {
                    let used = account.cores().saturating_sub(idle_kthreads(view, runtime));
                    let without_core = account.cores() == 0 && look.has_work();
                    (1, (used + u16::from(tracked.delayed || without_core)).min(spec.max))
                }
                RuntimeClass::BestEffort if look.has_work() => (2, spec.max),
                RuntimeClass::BestEffort => (2, account.cores()),
            };
            self.arbiter.request(runtime, account, rank, asks);
        }
        self.arbiter.grant(view, actions);
    }
}

/// Returns the number of kthreads of the runtime that idle on a core they keep.
fn idle_kthreads(view: View<'_>, runtime: RuntimeId) -> u16 {
    let idles = |state: &&CoreState| {
        matches!(state, CoreState::Owned { kthread, .. }
            if kthread.runtime == runtime && view.obs.activity(*kthread) == Activity::Idle)
    };
    view.ledger.cores().iter().filter(idles).count() as u16
}

impl Policy for DelayThreshold {
    fn name(&self) -> &'static str {
        "delay-threshold"
    }

    fn interval(&self) -> Nanos {
        self.config.interval
    }

    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger) {
        let Some(account) = ledger.account(runtime) else { return };
        self.arbiter.set_order((0..ledger.topology().len()).collect());
        let queues = vec![Ages::default(); usize::from(account.spec().kthreads)];
        let tracked = Tracked { runq: queues.clone(), ingress: queues, overflow_since: None, delayed: false };
        self.runtimes.insert(runtime, tracked);
    }

    fn detach(&mut self, runtime: RuntimeId) {
        self.runtimes.remove(runtime);
    }

    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        for &runtime in view.ledger.runtimes() {
            let Some(tracked) = self.runtimes.get_mut(runtime) else { continue };
            if let Some(look) = view.obs.runtime(runtime) {
                tracked.look(look, view.now, self.config.threshold);
            }
        }
        self.grant(view, actions);
        for tracked in self.runtimes.values_mut() {
            tracked.delayed = false;
        }
    }

    fn wakeup(&mut self, view: View<'_>, _runtime: RuntimeId, actions: &mut Vec<Action>) {
        self.grant(view, actions);
    }

    fn idle(&mut self, view: View<'_>, _core: CoreId, actions: &mut Vec<Action>) {
        self.grant(view, actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_the_head_is_counted_from_when_it_was_first_seen() {
        let mut ages = Ages::default();
        assert_eq!(ages.look(0, 0, Nanos(5)), Nanos(0));
        assert_eq!(ages.look(0, 2, Nanos(10)), Nanos(0));
        assert_eq!(ages.look(1, 5, Nanos(20)), Nanos(10), "entry 1 was there at 10");
        assert_eq!(ages.look(2, 5, Nanos(30)), Nanos(10), "entry 2 came by 20");
        assert_eq!(ages.look(5, 5, Nanos(40)), Nanos(0));
    }

    #[test]
    fn ages_survive_the_wrap_and_a_history_that_is_too_short() {
        let mut ages = Ages::default();
        ages.look(u32::MAX, 1, Nanos(10));
        assert_eq!(ages.look(0, 1, Nanos(25)), Nanos(15));
        for i in 2..500 {
            let age = ages.look(0, i, Nanos(u64::from(25 + i)));
            assert_eq!(age, Nanos(u64::from(15 + i)), "the oldest entry keeps its age");
        }
        assert!(ages.seen.len() <= HISTORY);
    }
}
