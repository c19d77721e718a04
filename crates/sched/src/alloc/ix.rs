//! IX's control loop (TOCS'17 sections 4.6 and 5.4): a bound on queueing delay; resources are added
//! and removed in a fixed sequence.
//!
//! Owns, per latency-critical runtime, the smoothed queue depth and idle time. Once per
//! [`IxConfig::period`] (10 Hz):
//! - if the estimated queueing delay is above the bound, take the next step of the sequence;
//! - else, if idle time exceeds the capacity that the last step added, take one step back. A
//!   shallow queue does not show that a core can be removed; idle time does.
//!
//! The delay is the backlog divided by the rate at which it was served while the cores were busy.
//! IX writes it as iterations of bounded batches, which is the same number. Two smoothing factors
//! run in parallel: the fast average raises, the slow average lowers.
//!
//! [`Sequence`] orders the steps. IX's frequency steps (Turbo Boost, clock rates) are outside a
//! core allocator's reach. Best-effort runtimes share what is left.

use super::per_runtime::PerRuntime;
use super::target::Arbiter;
use super::{Action, Activity, KthreadLook, Policy, RuntimeLook, View};
use crate::ids::{CoreId, Nanos, RuntimeId};
use crate::ledger::{Class, Ledger};
use crate::topology::Topology;
use heap::vec;
use heap::vec::Vec;

/// The order in which a runtime is given cores (IX section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Whole physical cores, both hyperthreads at once: leaves whole cores to batch work.
    Consolidation,
    /// One hyperthread of each physical core, then all second hyperthreads in one step: least
    /// energy.
    Energy,
}

/// Settings of [`IxControl`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IxConfig {
    /// Time between samples of the metrics; IX computes them every 10 ms, here they are averaged
    /// from finer samples.
    pub sample: Nanos,
    /// Time between decisions; 100 ms in IX.
    pub period: Nanos,
    /// Acceptable queueing delay.
    pub delay_bound: Nanos,
    /// The order of steps.
    pub sequence: Sequence,
}

impl Default for IxConfig {
    fn default() -> Self {
        let (sample, period) = (Nanos::from_millis(1), Nanos::from_millis(100));
        Self { sample, period, delay_bound: Nanos::from_micros(50), sequence: Sequence::Consolidation }
    }
}

/// Weight of the newest sample in the fast and the slow average.
const FAST: f64 = 0.2;
const SLOW: f64 = 0.02;

#[derive(Clone, Debug)]
struct Loop {
    /// Position in `steps`.
    step: usize,
    depth_fast: f64,
    depth_slow: f64,
    busy_slow: f64,
    served: u32,
    last_head: u32,
    busy_ns: f64,
}

/// IX's controller. See the module header.
#[derive(Clone, Debug)]
pub struct IxControl {
    config: IxConfig,
    runtimes: PerRuntime<Loop>,
    sampled: Nanos,
    decided: Nanos,
    /// Number of cores a runtime has after each step.
    steps: Vec<u16>,
    arbiter: Arbiter,
}

impl IxControl {
    /// Creates a policy with no runtimes attached.
    #[must_use]
    pub fn new(config: IxConfig) -> Self {
        let (runtimes, steps, arbiter) = (PerRuntime::default(), Vec::new(), Arbiter::default());
        Self { config, runtimes, sampled: Nanos::ZERO, decided: Nanos::ZERO, steps, arbiter }
    }

    fn sample(&mut self, view: View<'_>) {
        let elapsed = view.now.since(self.sampled).0 as f64;
        self.sampled = view.now;
        for &runtime in view.ledger.runtimes() {
            let Some(control) = self.runtimes.get_mut(runtime) else { continue };
            if let Some(look) = view.obs.runtime(runtime) {
                control.sample(look, elapsed);
            }
        }
    }

    fn decide(&mut self, view: View<'_>) {
        for &runtime in view.ledger.runtimes() {
            let Some(control) = self.runtimes.get_mut(runtime) else { continue };
            let Some(account) = view.ledger.account(runtime) else { continue };
            let reachable =
                self.steps.iter().position(|s| *s >= account.spec().max).unwrap_or(self.steps.len() - 1);
            control.decide(self.config.delay_bound, account.cores(), &self.steps, reachable);
        }
    }

    fn grant(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        for &runtime in view.ledger.runtimes() {
            let Some(control) = self.runtimes.get(runtime) else { continue };
            let Some(account) = view.ledger.account(runtime) else { continue };
            let spec = account.spec();
            let (rank, asks) = match spec.class {
                Class::LatencyCritical => (1, self.steps[control.step].min(spec.max)),
                Class::BestEffort => (2, spec.max),
            };
            self.arbiter.request(runtime, account, rank, asks);
        }
        self.arbiter.grant(view, actions);
    }
}

impl Loop {
    fn sample(&mut self, look: &RuntimeLook, elapsed: f64) {
        let queued = |k: &KthreadLook| f64::from(depth(k.runq_head, k.runq_tail)) + f64::from(k.overflow);
        let depth: f64 = look.kthreads.iter().map(queued).sum();
        let busy = look.kthreads.iter().filter(|k| k.activity == Activity::Running).count() as f64;
        let head = look.kthreads.iter().fold(0, |sum: u32, k| sum.wrapping_add(k.runq_head));
        self.served = self.served.saturating_add(head.wrapping_sub(self.last_head));
        self.last_head = head;
        self.busy_ns += busy * elapsed;
        self.depth_fast += FAST * (depth - self.depth_fast);
        self.depth_slow += SLOW * (depth - self.depth_slow);
        self.busy_slow += SLOW * (busy - self.busy_slow);
    }

    fn decide(&mut self, bound: Nanos, cores: u16, steps: &[u16], reachable: usize) {
        let per_item = self.busy_ns / f64::from(self.served.max(1));
        let delay = |depth: f64| depth * per_item / f64::from(cores.max(1));
        (self.served, self.busy_ns) = (0, 0.0);
        let idle = f64::from(cores) - self.busy_slow;
        if delay(self.depth_fast) > bound.0 as f64 {
            self.step = (self.step + 1).min(reachable);
        } else if self.step > 0 && delay(self.depth_slow) < bound.0 as f64 {
            // After the step back a tenth of a core must still be idle, so that the step is not
            // taken again at once.
            let removed = f64::from(steps[self.step] - steps[self.step - 1]);
            self.step -= usize::from(idle > removed * 1.1);
        }
    }
}

fn depth(head: u32, tail: u32) -> u32 {
    if super::observe::queued(head, tail) { tail.wrapping_sub(head) } else { 0 }
}

/// Returns the core positions in the order of the sequence, and the number of cores after each
/// step.
fn steps(topology: &Topology, sequence: Sequence) -> (Vec<usize>, Vec<u16>) {
    let mut firsts = Vec::new();
    let mut seconds: Vec<Vec<usize>> = Vec::new();
    let mut seen = vec![false; topology.len()];
    for (at, core) in topology.cores().iter().enumerate() {
        if core::mem::replace(&mut seen[at], true) {
            continue;
        }
        let siblings = topology.siblings(core.id).iter().filter_map(|s| topology.position(*s));
        let others: Vec<usize> = siblings.filter(|s| !core::mem::replace(&mut seen[*s], true)).collect();
        firsts.push(at);
        seconds.push(others);
    }
    let (mut order, mut counts) = (Vec::new(), Vec::new());
    match sequence {
        Sequence::Consolidation => {
            for (first, others) in firsts.into_iter().zip(seconds) {
                order.push(first);
                order.extend(others);
                counts.push(order.len() as u16);
            }
        }
        Sequence::Energy => {
            for first in firsts {
                order.push(first);
                counts.push(order.len() as u16);
            }
            order.extend(seconds.into_iter().flatten());
            if usize::from(counts.last().copied().unwrap_or(0)) < order.len() {
                counts.push(order.len() as u16);
            }
        }
    }
    (order, counts)
}

impl Policy for IxControl {
    fn name(&self) -> &'static str {
        match self.config.sequence {
            Sequence::Consolidation => "ix-consolidation",
            Sequence::Energy => "ix-energy",
        }
    }

    fn interval(&self) -> Nanos {
        self.config.sample
    }

    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger) {
        if ledger.account(runtime).is_none() {
            return;
        }
        let (order, steps) = steps(ledger.topology(), self.config.sequence);
        self.steps = steps;
        self.arbiter.set_order(order);
        let (depth_fast, depth_slow, busy_slow, busy_ns) = (0.0, 0.0, 0.0, 0.0);
        let control = Loop { step: 0, depth_fast, depth_slow, busy_slow, served: 0, last_head: 0, busy_ns };
        self.runtimes.insert(runtime, control);
    }

    fn detach(&mut self, runtime: RuntimeId) {
        self.runtimes.remove(runtime);
    }

    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        self.sample(view);
        if view.now.since(self.decided) >= self.config.period {
            self.decided = view.now;
            self.decide(view);
        }
        self.grant(view, actions);
    }

    fn wakeup(&mut self, view: View<'_>, _runtime: RuntimeId, actions: &mut Vec<Action>) {
        self.grant(view, actions);
    }

    /// Gives a free core out by the standing targets. An idle owner keeps its core until the next
    /// decision.
    fn idle(&mut self, view: View<'_>, _core: CoreId, actions: &mut Vec<Action>) {
        self.grant(view, actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(step: usize, fast: f64, slow: f64, busy: f64) -> Loop {
        // 1000 items took 10 ms of core time: 10 us each.
        let (served, busy_ns) = (1_000, 10e6);
        Loop { step, depth_fast: fast, depth_slow: slow, busy_slow: busy, served, last_head: 0, busy_ns }
    }

    fn after(mut c: Loop, cores: u16) -> usize {
        c.decide(Nanos::from_micros(50), cores, &[1, 2, 3, 4], 3);
        c.step
    }

    #[test]
    fn a_delay_over_the_bound_adds_a_step_and_the_last_step_is_the_last() {
        assert_eq!(after(control(0, 6.0, 1.0, 1.0), 1), 1, "60 us of backlog on one core");
        assert_eq!(after(control(0, 4.0, 1.0, 1.0), 1), 0);
        assert_eq!(after(control(1, 6.0, 1.0, 2.0), 2), 1, "30 us each on two");
        assert_eq!(after(control(3, 900.0, 900.0, 4.0), 4), 3);
    }

    #[test]
    fn a_step_is_taken_back_only_when_idle_time_exceeds_what_it_added() {
        assert_eq!(after(control(2, 0.0, 0.0, 1.8), 3), 1, "1.2 of 3 cores idle");
        assert_eq!(after(control(2, 0.0, 0.0, 2.0), 3), 2, "exactly one is idle: too close");
        assert_eq!(after(control(0, 0.0, 0.0, 0.0), 1), 0);
    }

    #[test]
    fn the_sequences_follow_the_hyperthreads() {
        let topology = Topology::uniform(8, 2, 1).unwrap();
        let (order, counts) = steps(&topology, Sequence::Consolidation);
        assert_eq!(counts, [2, 4, 6, 8]);
        let core = |at: usize| topology.cores()[at].id;
        assert!(topology.siblings(core(order[0])).contains(&core(order[1])));
        let (order, counts) = steps(&topology, Sequence::Energy);
        assert_eq!(counts, [1, 2, 3, 4, 8]);
        assert!(!topology.siblings(core(order[0])).contains(&core(order[1])));
    }
}
