//! IX's control loop (TOCS'17 sections 4.6 and 5.4): a bound on queueing delay; resources of the
//! machine are added and removed in a fixed sequence of steps.
//!
//! Owns the position in the sequence and the cores that it stands for. Once per
//! [`IxConfig::period`] (10 Hz):
//! - if more than 1 % of what a latency-critical runtime served in the period waited for longer
//!   than the bound, take the next step;
//! - else, if what services use fits into the step before with room to spare, take one step back.
//!
//! The loop decides which cores are lent, not to whom: within its cores [`CongestionDetection`]
//! lends them, every few microseconds. So a runtime has a core only while it has work. IX itself
//! leaves each core with the program, which polls on it.
//!
//! | | `ix-consolidation` | `ix-energy` |
//! |---|---|---|
//! | services may be lent | the cores of the step | the cores of the step |
//! | best-effort runtimes may be lent | all cores; within the step what services leave idle | as services, what these leave idle |
//! | cores that no one may be lent | none | all others: they halt |
//!
//! A kthread that runs on a core outside of the step when that is taken back has to give it up
//! ([`Policy::surplus`]).
//!
//! The step is never so low that it has fewer cores than are guaranteed; if even the last one has
//! fewer, further cores belong to it. So a guarantee is met as under congestion detection. Requests
//! for cores have no effect.
//!
//! A service that has as many cores as it may have is helped by speed only. So the delays of such
//! services take the loop up only if a step ahead has another clock, and do not keep it from a step
//! back that leaves them the clock and enough cores. Steps that add only cores beyond the limits of
//! the services that are delayed are passed over.
//!
//! What runtimes report is not trusted: a false queue takes the loop to its last step at worst, as
//! load does.

mod control;
pub(super) mod steps;
#[cfg(test)]
mod tests;

pub use steps::{Clock, Clocks, HYPERTHREAD_GAIN, Sequence, Step};

use super::congestion::{Config, CongestionDetection};
use super::observe::{Hold, RuntimeLook};
use super::per_runtime::PerRuntime;
use super::policy::{Policy, Setting, View};
use crate::action::Action;
use crate::ids::{CoreId, Nanos, RuntimeId};
use crate::ledger::{CoreState, Ledger, RuntimeClass};
use crate::topology::Topology;
use control::{Adjustment, LateShares, Service, Usage, decide};
use heap::vec;
use heap::vec::Vec;

/// Settings of [`IxControl`].
#[derive(Clone, Debug, PartialEq)]
pub struct IxConfig {
    /// Of the policy that lends the cores of a step.
    pub lending: Config,
    /// Time between samples of the metrics; IX computes them every 10 ms, here they are averaged
    /// from finer samples, well below the bound on the delay.
    pub sample: Nanos,
    /// Time between decisions; 100 ms in IX.
    pub period: Nanos,
    /// Time constant of the averages over several periods, of shares that were late and of cores in
    /// use. IX
    /// smooths with several factors.
    pub smoothing: Nanos,
    /// Acceptable queueing delay, of 99 % of what is served.
    pub delay_bound: Nanos,
    /// Fraction of the capacity of the step before that must be idle after a step back.
    pub hysteresis: f64,
    /// The order of steps, and who may use the cores.
    pub sequence: Sequence,
    /// Steps to take in place of those of the sequence, least first; empty: those.
    pub steps: Vec<Step>,
    /// Clock rates that can be set.
    pub clocks: Clocks,
}

impl Default for IxConfig {
    fn default() -> Self {
        Self {
            lending: Config::default(),
            sample: Nanos::from_micros(20),
            period: Nanos::from_millis(100),
            smoothing: Nanos::from_millis(100),
            delay_bound: Nanos::from_micros(50),
            hysteresis: 0.25,
            sequence: Sequence::Consolidation,
            steps: Vec::new(),
            clocks: Clocks::default(),
        }
    }
}

/// Returns whether a runtime waits for its first core, and could have one: no core helps a program
/// whose threads cannot run, or that is on hold for another reason than the cores it cannot have.
fn waits(view: View<'_>, runtime: RuntimeId, look: &RuntimeLook) -> bool {
    let ledger = view.ledger;
    let Some(account) = ledger.account(runtime) else { return false };
    let lacks = account.cores() == 0 && account.room() > 0;
    let held = look.on_hold() && !look.has_refused();
    let mut cores = (0..).zip(ledger.cores());
    let helps = |at| view.obs.may_have(ledger, runtime, at);
    lacks && !held && cores.any(|(at, &state)| state != CoreState::Absent && helps(at))
}

/// The largest late shares of services, and the cores that would be of use to them.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    /// Of services that may have further cores.
    open: LateShares,
    /// Of those that have all they may have, and the number of their cores.
    limited: LateShares,
    limited_cores: u16,
    /// Cores that delayed services may have, and those that the others have.
    useful: u16,
}

/// IX's controller. See the module header.
#[derive(Clone, Debug)]
pub struct IxControl {
    config: IxConfig,
    lending: CongestionDetection,
    services: PerRuntime<Service>,
    usage: Usage,
    sampled: Nanos,
    decided: Nanos,
    /// Position in `steps`, and the number of cores of that step.
    step: usize,
    cores: u16,
    /// The first step that has a core for each that is guaranteed.
    least: usize,
    steps: Vec<Step>,
    /// False while no clock rate can be set: then `steps` are those that differ in cores.
    has_clocks: bool,
    /// Positions of cores, by physical core.
    physical: Vec<Vec<usize>>,
    /// By position: true if the step uses the core.
    used: Vec<bool>,
    /// Cores that were there when `used` was computed.
    present: usize,
}

impl IxControl {
    /// Creates a policy with no runtimes attached.
    #[must_use]
    pub fn new(config: IxConfig) -> Self {
        Self {
            lending: CongestionDetection::new(config.lending),
            config,
            services: PerRuntime::default(),
            usage: Usage::default(),
            sampled: Nanos::ZERO,
            decided: Nanos::ZERO,
            step: 0,
            cores: 0,
            least: 0,
            steps: Vec::new(),
            has_clocks: true,
            physical: Vec::new(),
            used: Vec::new(),
            present: 0,
        }
    }

    fn sample(&mut self, view: View<'_>) {
        let elapsed = view.now.since(self.sampled);
        self.sampled = view.now;
        let mut busy = 0;
        for &runtime in view.ledger.runtimes() {
            let Some(service) = self.services.get_mut(runtime) else { continue };
            if let Some(look) = view.obs.runtime(runtime) {
                let waits = waits(view, runtime, look);
                busy += service.read(look, waits, elapsed, self.config.delay_bound);
            }
        }
        self.usage.read(elapsed, busy, self.config.smoothing);
    }

    fn decide(&mut self, view: View<'_>, period: Nanos) {
        let worst = self.worst(view.ledger, period);
        let ahead = self.next_step(view.ledger, worst.useful);
        let below = self.step.saturating_sub(1);
        let (step, before) = (self.steps[self.step], self.steps[below]);
        let would_lose =
            before.clock != step.clock || usize::from(worst.limited_cores) > self.count(before, view.ledger);
        let limited = LateShares {
            now: if ahead.is_some() || would_lose { worst.limited.now } else { 0.0 },
            slow: if would_lose { worst.limited.slow } else { 0.0 },
        };
        let capacity = |step: usize| self.steps[step].capacity(&self.config.clocks);
        let (capacities, usage) = ((capacity(self.step), capacity(below)), self.usage.of(self.cores));
        let step = match decide(worst.open.max(limited), usage, capacities, self.config.hysteresis) {
            Adjustment::Add => ahead.unwrap_or(self.step),
            Adjustment::Remove => below,
            Adjustment::Stay => self.step,
        };
        self.enter(step, view.ledger);
    }

    /// Returns the largest late shares of the period that ends now.
    fn worst(&mut self, ledger: &Ledger, period: Nanos) -> Worst {
        let mut worst = Worst::default();
        for &runtime in ledger.runtimes() {
            let (Some(service), Some(account)) = (self.services.get_mut(runtime), ledger.account(runtime))
            else {
                continue;
            };
            let late = service.late_shares(period, &self.config);
            if account.room() > 0 {
                worst.open = worst.open.max(late);
            } else {
                worst.limited = worst.limited.max(late);
                worst.limited_cores = worst.limited_cores.saturating_add(account.cores());
            }
            let useful = if late.is_over() { account.spec().max } else { account.cores() };
            worst.useful = worst.useful.saturating_add(useful);
        }
        worst
    }

    /// Returns the steps to take, as far as they differ.
    fn all_steps(&self, topology: &Topology) -> Vec<Step> {
        let IxConfig { sequence, steps, clocks, .. } = &self.config;
        let steps = if steps.is_empty() { sequence.steps(topology, clocks) } else { steps.clone() };
        if self.has_clocks { steps } else { steps::without_clocks(steps) }
    }

    /// Returns the number of cores of a step.
    fn count(&self, step: Step, ledger: &Ledger) -> usize {
        steps::cores_of(step, &self.physical, ledger).count()
    }

    /// Returns the next step that adds cores within the limit, or speed.
    fn next_step(&self, ledger: &Ledger, limit: u16) -> Option<usize> {
        let cores = |step: Step| self.count(step, ledger).min(usize::from(limit));
        let present = self.steps[self.step];
        let had = cores(present);
        let adds = |&next: &usize| cores(self.steps[next]) > had || self.steps[next].clock != present.clock;
        (self.step + 1..self.steps.len()).find(adds)
    }

    /// Returns the first step that has so many cores, or the last one.
    fn least_step(&self, ledger: &Ledger, guaranteed: usize) -> usize {
        let enough = |&step: &Step| self.count(step, ledger) >= guaranteed;
        self.steps.iter().position(enough).unwrap_or(self.steps.len() - 1)
    }

    /// Makes the cores of a step, or of the least one if that is higher, those that are lent; if
    /// even the last has fewer than are guaranteed, as many more as that takes.
    fn enter(&mut self, step: usize, ledger: &Ledger) {
        let guaranteed = ledger.guaranteed_cores().min(ledger.present_cores());
        self.least = self.least_step(ledger, guaranteed);
        self.step = step.max(self.least);
        self.present = ledger.present_cores();
        self.used.fill(false);
        self.cores = 0;
        for at in steps::cores_of(self.steps[self.step], &self.physical, ledger) {
            self.used[at] = true;
            self.cores += 1;
        }
        let missing = guaranteed.saturating_sub(usize::from(self.cores));
        let more =
            steps::cores_of(Step { cores: u16::MAX, threads: u16::MAX, clock: None }, &self.physical, ledger);
        let more: Vec<usize> = more.filter(|&at| !self.used[at]).take(missing).collect();
        for at in more {
            self.used[at] = true;
            self.cores += 1;
        }
        self.lending.set_reach(RuntimeClass::LatencyCritical, &self.used);
        if self.config.sequence == Sequence::Energy {
            self.lending.set_reach(RuntimeClass::BestEffort, &self.used);
        }
    }

    fn reaches(&self, class: RuntimeClass, at: usize) -> bool {
        let all = class == RuntimeClass::BestEffort && self.config.sequence == Sequence::Consolidation;
        all || self.used.get(at).is_none_or(|&used| used)
    }
}

impl Policy for IxControl {
    fn name(&self) -> &'static str {
        match self.config.sequence {
            Sequence::Consolidation => "ix-consolidation",
            Sequence::Energy => "ix-energy",
        }
    }

    fn interval(&self) -> Nanos {
        self.config.lending.interval
    }

    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger) {
        let Some(account) = ledger.account(runtime) else { return };
        if self.steps.is_empty() {
            let topology = ledger.topology();
            self.steps = self.all_steps(topology);
            self.physical = steps::physical(topology);
            self.used = vec![false; topology.len()];
        }
        if account.spec().class == RuntimeClass::LatencyCritical {
            self.services.insert(runtime, Service::default());
        }
        self.lending.attach(runtime, ledger);
        self.enter(self.step, ledger);
    }

    fn detach(&mut self, runtime: RuntimeId) {
        self.services.remove(runtime);
        self.lending.detach(runtime);
    }

    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        if self.steps.is_empty() {
            return;
        }
        if view.now.since(self.sampled) >= self.config.sample {
            self.sample(view);
        }
        let period = view.now.since(self.decided);
        if period >= self.config.period {
            self.decided = view.now;
            self.decide(view, period);
        } else if self.present != view.ledger.present_cores() {
            self.enter(self.step, view.ledger);
        }
        self.lending.tick(view, actions);
    }

    fn wakeup(&mut self, view: View<'_>, runtime: RuntimeId, actions: &mut Vec<Action>) {
        self.lending.wakeup(view, runtime, actions);
    }

    fn idle(&mut self, view: View<'_>, core: CoreId, actions: &mut Vec<Action>) {
        self.lending.idle(view, core, actions);
    }

    /// Returns the next decision as long as the loop can take steps back.
    fn next_pending(&self, view: View<'_>) -> Option<Nanos> {
        let _ = view;
        (self.step > self.least).then(|| self.decided + self.config.period)
    }

    fn may_serve(&self, runtime: RuntimeId, core: CoreId, ledger: &Ledger) -> bool {
        let class = ledger.account(runtime).map_or(RuntimeClass::BestEffort, |account| account.spec().class);
        ledger.topology().position(core).is_some_and(|at| self.reaches(class, at))
    }

    fn surplus(&self, view: View<'_>) -> Option<CoreId> {
        let is_outside = |(at, state): (usize, &CoreState)| match state {
            CoreState::Owned { kthread, .. } if view.obs.hold(at) == Hold::None => {
                let class = view.ledger.account(kthread.runtime)?.spec().class;
                (!self.reaches(class, at)).then(|| view.ledger.topology().cores()[at].id)
            }
            CoreState::Owned { .. } | CoreState::Free | CoreState::Absent | CoreState::Moving { .. } => None,
        };
        view.ledger.cores().iter().enumerate().find_map(is_outside)
    }

    fn allow_clocks(&mut self, allowed: bool, ledger: &Ledger) {
        if core::mem::replace(&mut self.has_clocks, allowed) == allowed || self.steps.is_empty() {
            return;
        }
        let cores = self.count(self.steps[self.step], ledger);
        self.steps = self.all_steps(ledger.topology());
        let enough = |&step: &Step| self.count(step, ledger) >= cores;
        let step = self.steps.iter().position(enough).unwrap_or(self.steps.len() - 1);
        self.enter(step, ledger);
    }

    fn setting(&self) -> Option<Setting> {
        let step = self.steps.get(self.step)?;
        Some(Setting { step: self.step as u16, cores: self.cores, clock: step.clock })
    }
}
