//! Arachne's allocation (OSDI'18 sections 4 and 6.2): each application estimates how many cores it
//! needs, and an arbiter divides the cores.
//!
//! Owns each runtime's samples. Arachne's runtime measures in its dispatch loop; this policy
//! samples the same quantities from the observation, averages them over
//! [`ArachneConfig::averaging`], and leaves the decision to the [`Estimator`] that live programs
//! use, too.
//!
//! Requests carry one of eight priorities, 0 first; a level that does not fit is divided evenly. A
//! latency-critical runtime requests at priority 0, a best-effort runtime all the cores it may have
//! at priority 7. Guarantees rank before all priorities. Idle cores stay where they are
//! until the next decision; Shenango's policy, in contrast, takes them at once.

use super::observe::{Activity, KthreadLook};
use super::per_runtime::PerRuntime;
use super::policy::{Policy, View};
use super::requests::PRIORITIES;
use super::target::Arbiter;
use crate::action::Action;
use crate::estimate::{EstimateSettings, Estimator, LoadAverage};
use crate::ids::{CoreId, Nanos, RuntimeId};
use crate::ledger::{Ledger, RuntimeClass};
use heap::vec::Vec;

/// Settings of [`Arachne`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArachneConfig {
    /// Time between samples of load and utilisation.
    pub sample: Nanos,
    /// Time over which samples are averaged, and between decisions; 50 ms in Arachne.
    pub averaging: Nanos,
    /// Of each runtime's estimate.
    pub estimate: EstimateSettings,
}

impl Default for ArachneConfig {
    fn default() -> Self {
        let (sample, averaging) = (Nanos::from_micros(50), Nanos::from_millis(50));
        Self { sample, averaging, estimate: EstimateSettings::default() }
    }
}

/// One runtime's estimate of the cores it needs, and its samples since the latest decision.
#[derive(Clone, Debug)]
struct Estimate {
    estimator: Estimator,
    samples: u32,
    runnable: u64,
    busy: u64,
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

    /// Returns the number of cores the runtime requests at present; `None` for an unknown runtime.
    #[must_use]
    pub fn requested(&self, runtime: RuntimeId) -> Option<u16> {
        self.runtimes.get(runtime).map(|e| e.estimator.cores())
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
            estimate.decide(account.cores());
        }
    }

    fn grant(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        for &runtime in view.ledger.runtimes() {
            let Some(estimate) = self.runtimes.get(runtime) else { continue };
            let Some(account) = view.ledger.account(runtime) else { continue };
            let spec = account.spec();
            let (priority, asks) = match spec.class {
                RuntimeClass::LatencyCritical => (0, estimate.estimator.cores()),
                RuntimeClass::BestEffort => (PRIORITIES - 1, spec.max),
            };
            self.arbiter.request(runtime, account, 1 + priority, asks);
        }
        self.arbiter.grant(view, actions);
    }
}

impl Estimate {
    fn decide(&mut self, cores: u16) {
        let samples = f64::from(self.samples.max(1));
        let (utilisation, runnable) = (self.busy as f64 / samples, self.runnable as f64 / samples);
        (self.samples, self.busy, self.runnable) = (0, 0, 0);
        self.estimator.decide(LoadAverage { utilisation, runnable }, cores);
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
        let (least, most) = (account.spec().guaranteed.max(1), account.spec().max);
        let estimator = Estimator::new(self.config.estimate, least, most);
        let estimate = Estimate { estimator, samples: 0, runnable: 0, busy: 0 };
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
