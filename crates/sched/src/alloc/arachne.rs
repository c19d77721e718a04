//! Arachne's allocation (OSDI'18 sections 4 and 6.2): each application estimates how many cores it
//! needs, and an arbiter divides the cores.
//!
//! Owns each runtime's estimate. Arachne's runtime measures in its dispatch loop; this policy
//! samples the same quantities from the observation: *load factor*, the runnable threads per core,
//! and *utilisation*, the number of busy kthreads. Once per [`ArachneConfig::averaging`]:
//! - if the load factor is at or above the threshold, request one core more and remember the
//!   utilisation at which that happened;
//! - if the utilisation is below the one remembered for the present count by more than the
//!   hysteresis, request one core less.
//!
//! Requests carry one of eight priorities, 0 first; a level that does not fit is divided evenly. By
//! default a latency-critical runtime requests at priority 0, and a best-effort runtime requests
//! all the cores it may have at priority 7; [`Arachne::set_priority`] changes that. Guarantees rank
//! before all priorities. Idle cores stay where they are until the next decision; Shenango's
//! policy, in contrast, takes them at once.

use super::per_runtime::PerRuntime;
use super::requests::PRIORITIES;
use super::target::Arbiter;
use super::{Action, Activity, KthreadLook, Policy, View};
use crate::ids::{CoreId, Nanos, RuntimeId};
use crate::ledger::{Class, Ledger};
use heap::vec;
use heap::vec::Vec;

/// Settings of [`Arachne`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArachneConfig {
    /// Time between samples of load and utilisation.
    pub sample: Nanos,
    /// Time over which samples are averaged, and between decisions; 50 ms in Arachne.
    pub averaging: Nanos,
    /// Runnable threads per core above which one more core is requested; 1.5 in Arachne.
    pub load_factor: f64,
    /// How far utilisation must fall below the level at which the core was added, in cores; 0.09 in
    /// Arachne.
    pub hysteresis: f64,
}

impl Default for ArachneConfig {
    fn default() -> Self {
        let (sample, averaging) = (Nanos::from_micros(50), Nanos::from_millis(50));
        Self { sample, averaging, load_factor: 1.5, hysteresis: 0.09 }
    }
}

/// One runtime's estimate of the cores it needs.
#[derive(Clone, Debug)]
struct Estimate {
    requested: u16,
    priority: Option<u8>,
    samples: u32,
    runnable: u64,
    busy: u64,
    /// Utilisation (in cores) at which the request was raised to the count given by the index.
    raised_at: Vec<Option<f64>>,
}

/// Arachne's policy. See the module header.
#[derive(Clone, Debug)]
pub struct Arachne {
    config: ArachneConfig,
    runtimes: PerRuntime<Estimate>,
    decided: Nanos,
    arbiter: Arbiter,
}

impl Arachne {
    /// Creates a policy with no runtimes attached.
    #[must_use]
    pub fn new(config: ArachneConfig) -> Self {
        let (runtimes, arbiter) = (PerRuntime::default(), Arbiter::default());
        Self { config, runtimes, decided: Nanos::ZERO, arbiter }
    }

    /// Sets the priority of a runtime's requests, 0 first; values above 7 count as 7. Ignores
    /// unknown runtimes.
    pub fn set_priority(&mut self, runtime: RuntimeId, priority: u8) {
        if let Some(estimate) = self.runtimes.get_mut(runtime) {
            estimate.priority = Some(priority.min(PRIORITIES - 1));
        }
    }

    /// Returns the number of cores the runtime requests at present; `None` for an unknown runtime.
    #[must_use]
    pub fn requested(&self, runtime: RuntimeId) -> Option<u16> {
        self.runtimes.get(runtime).map(|e| e.requested)
    }

    fn sample(&mut self, view: View<'_>) {
        for &runtime in view.ledger.runtimes() {
            let Some(estimate) = self.runtimes.get_mut(runtime) else { continue };
            let Some(look) = view.obs.runtime(runtime) else { continue };
            let busy = look.kthreads.iter().filter(|k| k.activity == Activity::Running).count() as u64;
            let waiting: u64 = look.kthreads.iter().map(waiting).sum();
            estimate.samples += 1;
            estimate.busy += busy;
            estimate.runnable += busy + waiting;
        }
    }

    fn decide(&mut self, view: View<'_>) {
        for &runtime in view.ledger.runtimes() {
            let Some(estimate) = self.runtimes.get_mut(runtime) else { continue };
            let Some(account) = view.ledger.account(runtime) else { continue };
            estimate.decide(&self.config, account.cores(), account.spec().max);
        }
    }

    fn grant(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        for &runtime in view.ledger.runtimes() {
            let Some(estimate) = self.runtimes.get(runtime) else { continue };
            let Some(account) = view.ledger.account(runtime) else { continue };
            let spec = account.spec();
            let (default, asks) = match spec.class {
                Class::LatencyCritical => (0, estimate.requested),
                Class::BestEffort => (PRIORITIES - 1, spec.max),
            };
            self.arbiter.request(runtime, account, 1 + estimate.priority.unwrap_or(default), asks);
        }
        self.arbiter.grant(view, actions);
    }
}

impl Estimate {
    fn decide(&mut self, config: &ArachneConfig, cores: u16, max: u16) {
        let samples = f64::from(self.samples.max(1));
        let utilisation = self.busy as f64 / samples;
        let load_factor = self.runnable as f64 / samples / f64::from(cores.max(1));
        (self.samples, self.busy, self.runnable) = (0, 0, 0);
        let returned = self.raised_at[usize::from(self.requested)];
        if load_factor >= config.load_factor && self.requested < max {
            self.requested += 1;
            self.raised_at[usize::from(self.requested)] = Some(utilisation);
        } else if self.requested > 1 && returned.is_some_and(|level| utilisation < level - config.hysteresis)
        {
            self.requested -= 1;
        }
    }
}

/// Returns how many user threads wait at a kthread, plus one if packets wait.
fn waiting(look: &KthreadLook) -> u64 {
    let ends = |head: u32, tail: u32| u64::from(tail.wrapping_sub(head)) & u64::from(i32::MAX as u32);
    let queued = |head, tail| if super::observe::queued(head, tail) { ends(head, tail) } else { 0 };
    queued(look.runq_head, look.runq_tail)
        + u64::from(look.overflow)
        + u64::from(look.ingress_head != look.ingress_tail)
}

impl Policy for Arachne {
    fn name(&self) -> &'static str {
        "arachne"
    }

    fn interval(&self) -> Nanos {
        self.config.sample
    }

    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger) {
        let Some(account) = ledger.account(runtime) else { return };
        self.arbiter.set_order((0..ledger.topology().len()).collect());
        let raised_at = vec![None; usize::from(account.spec().max) + 1];
        let (requested, priority) = (account.spec().guaranteed.max(1), None);
        let estimate = Estimate { requested, priority, samples: 0, runnable: 0, busy: 0, raised_at };
        self.runtimes.insert(runtime, estimate);
    }

    fn detach(&mut self, runtime: RuntimeId) {
        self.runtimes.remove(runtime);
    }

    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        self.sample(view);
        if view.now.since(self.decided) >= self.config.averaging {
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

    fn estimate(max: u16) -> Estimate {
        let raised_at = vec![None; usize::from(max) + 1];
        Estimate { requested: 1, priority: None, samples: 0, runnable: 0, busy: 0, raised_at }
    }

    fn period(e: &mut Estimate, busy: f64, runnable: f64) {
        e.samples = 1_000;
        e.busy = (busy * 1_000.0) as u64;
        e.runnable = (runnable * 1_000.0) as u64;
        let cores = e.requested;
        e.decide(&ArachneConfig::default(), cores, 4);
    }

    #[test]
    fn a_core_is_added_at_load_factor_1_5_and_released_when_utilisation_falls_nine_percent_below() {
        let mut e = estimate(4);
        period(&mut e, 0.8, 1.4);
        assert_eq!(e.requested, 1);
        period(&mut e, 0.9, 1.6);
        assert_eq!(e.requested, 2);
        period(&mut e, 0.85, 1.0);
        assert_eq!(e.requested, 2, "5 % below 0.9 is within the hysteresis");
        period(&mut e, 0.80, 1.0);
        assert_eq!(e.requested, 1);
    }

    #[test]
    fn each_count_remembers_its_own_level_and_the_limit_holds() {
        let mut e = estimate(4);
        for busy in [0.9, 1.8, 2.7, 4.0, 4.0] {
            period(&mut e, busy, 20.0);
        }
        assert_eq!(e.requested, 4);
        period(&mut e, 2.6, 2.6);
        assert_eq!(e.requested, 3, "raised to 4 at 2.7");
        period(&mut e, 1.75, 1.8);
        assert_eq!(e.requested, 3, "raised to 3 at 1.8");
        period(&mut e, 1.7, 1.8);
        assert_eq!(e.requested, 2);
    }
}
