//! Shenango's core allocation: as few cores as avoid congestion, granted at once and taken from
//! runtimes that burst.
//!
//! Owns, per runtime, the memory of the last look and whether its demand was met. A runtime wants
//! one more core in three cases:
//! - It has no core, and either something waits for it or it was woken.
//! - Something has waited through two looks (algorithm 1) and no help is under way. Help is a
//!   kthread of the same runtime that idles, and will take the work, or that was granted a core and
//!   has yet to start; it suffices if there are at least as many such kthreads as waiting things.
//!   Help that has not taken the work within [`HELP_PATIENCE`] looks no longer counts.
//! - A core was taken from it while it was busy. This lasts until it gets a core back or has no
//!   more work.
//!
//! One event grants at most one core per runtime. Runtimes below their guarantee are served first,
//! then `LatencyCritical`, then `BestEffort`; among equals the runtime with the fewest cores over
//! its guarantee, then the runtime served longest ago. `select` chooses the core. A demand that
//! cannot be met is remembered and gets the next core that idles or falls free, without waiting for
//! another look ([`Policy::idle`]).
//!
//! For most runtimes one pass over the cores shows that there is none to preempt. One that [lacks
//! cores](super::Observation::lacks_cores) needs a pass of its own, and programs bring that about
//! themselves. So an event makes at most [`VAIN_SEARCHES`] such passes without a result. After a
//! pass without a result, looks leave the runtime out until the others have had their turn: of *n*
//! that lack cores, each has its turn once in *n* / [`VAIN_SEARCHES`] looks, rounded up.
//!
//! Consequences, all tested:
//! - *Work conservation*: no demand is unmet while a core is free, unless its runtime lacks cores
//!   and waits for its turn.
//! - *Guarantees*: a busy core is taken only from a runtime that keeps its guarantee without it. A
//!   runtime below its guarantee gets a core at the same event, whichever runtime bursts on it.
//!   While absent cores leave too few, guarantees are what [`Account::guaranteed`] says.
//! - *No starvation* among bursting runtimes of one class: [`Config::service_quantum`] and
//!   [`Config::burst_quantum`] bound how long the richer keeps a core that the poorer wants.
//!   `BestEffort` may starve under `LatencyCritical` load by design; a guaranteed core prevents
//!   that.
//!
//! The policy never trusts an observation: a runtime that claims to be congested competes within
//! its class and limit, no more.
//!
//! # The arbiter
//! [`CongestionDetection::with_requests`] adds the cores that programs request, by priority; the
//! division is in `division`. The two combine as follows:
//! - A requested core that the division gives a runtime is its *own*, like a guaranteed one: it is
//!   granted at once, from a runtime that has more than it owns, and never preempted. No congestion
//!   outweighs it.
//! - It is granted without work, once for each raise of the request (see `prefetch`), and not lent
//!   to others while the kthread that has it idles. When that kthread parks for lack of work, the
//!   core is lent until the runtime has work again: a runtime below its own is served first.
//! - All other cores are lent by congestion, as above.
//! - A division leaves cores where they are. Only a runtime that is granted fewer can lose one.

use super::detect::{Detector, Found};
use super::division::{Division, Entitlement};
use super::observe::{Activity, KthreadLook, RuntimeLook};
use super::per_runtime::PerRuntime;
use super::policy::{Policy, View};
use super::select::{Choice, Claim, Rank, Selector, excess, idles_at, lendable};
use crate::action::Action;
use crate::ids::{CoreId, KthreadId, Nanos, RuntimeId};
use crate::ledger::{Account, CoreState, KthreadState, Ledger, RuntimeClass};
use heap::vec::Vec;

/// Consecutive looks at which work waits although enough of the runtime's own kthreads idle or are
/// starting, before those kthreads no longer count as help. An idle kthread that polls takes work
/// within 1 us and a hand-off takes 4 us, but the wake of a halted core takes 20-28 us (2-vCPU VM):
/// 6 looks of 5 us let one core suffice for a packet that needs one.
pub const HELP_PATIENCE: u8 = 6;

/// Maximum number of claims of runtimes that lack cores for which one event searches the cores
/// without a result.
pub(super) const VAIN_SEARCHES: usize = 4;

/// Settings of [`CongestionDetection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time between looks; 5 us in Shenango.
    pub interval: Nanos,
    /// Time for which a bursting `BestEffort` runtime keeps a core before another one with fewer
    /// cores may preempt it. Long enough that the cost of a hand-off (a few microseconds, and cold
    /// caches) does not matter.
    pub burst_quantum: Nanos,
    /// The same among `LatencyCritical` runtimes, whose requests wait for it. Shenango preempts for
    /// a congested runtime at once; but then two that are congested both pay for a hand-off at each
    /// look. Simulated on one core at 80 % load (exponential services of 10 us, costs of a 2-vCPU
    /// VM), 20 us made p99 over both services 1.6 times as long as 1 ms did, and 100 us no longer.
    pub service_quantum: Nanos,
    /// Seed of the choice among equally good victims.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interval: Nanos::from_micros(5),
            burst_quantum: Nanos::from_millis(1),
            service_quantum: Nanos::from_micros(100),
            seed: 0x7461_696c,
        }
    }
}

impl Config {
    fn quantum(&self, class: RuntimeClass) -> Nanos {
        match class {
            RuntimeClass::LatencyCritical => self.service_quantum,
            RuntimeClass::BestEffort => self.burst_quantum,
        }
    }
}

/// The policy's memory of one runtime.
#[derive(Clone, Debug)]
struct Tracked {
    detector: Detector,
    /// True if it needs a core and has not got one yet.
    unmet: bool,
    /// True if a core was taken from it while it was busy.
    preempted: bool,
    /// True if it was woken and has not had a core since.
    woken: bool,
    /// Work has waited through two looks, and it has got no core since.
    congested: bool,
    /// Consecutive looks at which work waited although enough help was under way.
    looks_without_relief: u8,
    /// Time at which it last got a core, or lost one while busy.
    last_served: Nanos,
    /// Number of the look until which no core is searched for it, if it lacks cores.
    next_search: u64,
    /// True if it has anything queued, as of the event numbered `work_seen`.
    work: bool,
    work_seen: u64,
}

/// Sort key of a claim; the least is served first.
type QueueKey = (Rank, i32, Nanos, RuntimeId);

/// Shenango's policy. See the module header.
#[derive(Clone, Debug)]
pub struct CongestionDetection {
    config: Config,
    selector: Selector,
    runtimes: PerRuntime<Tracked>,
    /// Number of the current event, by which `Tracked::work` is known to be current or stale.
    event: u64,
    /// Number of looks so far.
    looks: u64,
    /// Runtimes that need a core at this event, in the order in which they are served.
    queue: Vec<QueueKey>,
    /// What runtimes own by request; `None` if requests are ignored.
    division: Option<Division>,
}

impl CongestionDetection {
    /// Creates a policy with no runtimes attached.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            selector: Selector::new(
                [RuntimeClass::LatencyCritical, RuntimeClass::BestEffort].map(|class| config.quantum(class)),
                config.seed,
            ),
            runtimes: PerRuntime::default(),
            event: 0,
            looks: 0,
            queue: Vec::new(),
            division: None,
        }
    }

    /// Creates a policy with no runtimes attached that also grants the cores that runtimes request.
    #[must_use]
    pub fn with_requests(config: Config) -> Self {
        Self { division: Some(Division::default()), ..Self::new(config) }
    }

    /// Sets which cores runtimes of a class may be lent, by position; all before the first call.
    /// What they have outside them already is not taken by this.
    pub(super) fn set_reach(&mut self, class: RuntimeClass, cores: &[bool]) {
        self.selector.set_reach(class, cores);
    }

    fn entitlement(&self, runtime: RuntimeId, account: &Account) -> Entitlement {
        entitlement(self.division.as_ref(), runtime, account)
    }

    /// Returns the number of searches for a core to preempt since the last call.
    #[cfg(test)]
    pub(super) fn take_searches(&self) -> usize {
        self.selector.searches.take()
    }

    /// Returns true if `runtime` needs a core that it could not be given yet.
    #[must_use]
    pub fn is_unmet(&self, runtime: RuntimeId) -> bool {
        self.runtimes.get(runtime).is_some_and(|tracked| tracked.unmet)
    }

    /// Looks at one runtime and decides whether it needs a core.
    fn look(&mut self, view: View<'_>, runtime: RuntimeId) {
        let event = self.event;
        let (Some(account), Some(look)) = (view.ledger.account(runtime), view.obs.runtime(runtime)) else {
            return;
        };
        if self.division.is_none() && account.is_barred() {
            return;
        }
        let Some(tracked) = self.runtimes.get_mut(runtime) else { return };
        let Found { work, waiting, unknown } = tracked.detector.look(look);
        (tracked.work, tracked.work_seen) = (work, event);
        if !work && account.leaving() == 0 {
            tracked.preempted = false;
        }
        let helped = waiting > 0 && waiting <= help_under_way(view, runtime, look);
        // What is known to have waited last at kthreads that this look leaves out still waits, as
        // far as is known.
        let goes_on = waiting == 0 && unknown;
        let still_helped = goes_on && tracked.looks_without_relief > 0;
        tracked.looks_without_relief =
            if helped || still_helped { tracked.looks_without_relief.saturating_add(1) } else { 0 };
        if !goes_on {
            tracked.congested = waiting > 0 && (!helped || tracked.looks_without_relief > HELP_PATIENCE);
        }
        let without_core = account.cores() == 0 && (work || tracked.woken);
        let requests = self.division.as_mut().is_some_and(|division| division.pursue(runtime, view));
        tracked.unmet = without_core || tracked.congested || tracked.preempted || requests;
    }

    /// Returns the runtime's claim if its demand is unmet and it could be lent a core now. `excess`
    /// is the number of cores it has over its guarantee.
    fn claim(&self, view: View<'_>, runtime: RuntimeId, excess: i32) -> Option<Claim> {
        let account = view.ledger.account(runtime)?;
        let claims = self.is_unmet(runtime) && account.room() > 0 && !view.obs.runtime(runtime)?.on_hold();
        let (class, demoted) = (view.class(runtime), view.is_demoted(runtime));
        claims.then_some(Claim { runtime, class, demoted, excess })
    }

    fn queue_key(&self, claim: &Claim) -> QueueKey {
        let last_served = self.runtimes.get(claim.runtime).map_or(Nanos::ZERO, |tracked| tracked.last_served);
        (claim.rank(), claim.excess, last_served, claim.runtime)
    }

    fn survey(&mut self, view: View<'_>) {
        let (event, runtimes, division) = (self.event, &mut self.runtimes, self.division.as_ref());
        let has_work = |runtime| {
            let Some(tracked) = runtimes.get_mut(runtime) else { return false };
            if tracked.work_seen != event {
                let work = view.obs.runtime(runtime).is_some_and(RuntimeLook::has_work);
                (tracked.work, tracked.work_seen) = (work, event);
            }
            tracked.work
        };
        self.selector.survey(view, has_work, |runtime, account| entitlement(division, runtime, account));
    }

    /// Serves the runtimes in the queue, of those that lack cores as many as may be served now.
    fn serve_queue(&mut self, view: View<'_>, queue: &[QueueKey], actions: &mut Vec<Action>) {
        // Whether or not they have a demand at present: programs could take turns at that.
        let lacks_cores = |runtime| view.obs.lacks_cores(view.ledger, runtime);
        let lacking = view.ledger.runtimes().iter().filter(|&&runtime| lacks_cores(runtime)).count();
        let turn = lacking.div_ceil(VAIN_SEARCHES) as u64;
        let mut vain = 0;
        for &(.., runtime) in queue {
            let lacks = lacking > 0 && lacks_cores(runtime);
            let waits = |tracked: &Tracked| tracked.next_search > self.looks;
            if lacks && (vain == VAIN_SEARCHES || self.runtimes.get(runtime).is_some_and(waits)) {
                continue;
            }
            let served = self.serve(view, runtime, actions);
            if lacks
                && !served
                && let Some(tracked) = self.runtimes.get_mut(runtime)
            {
                vain += 1;
                tracked.next_search = self.looks + turn;
            }
        }
    }

    /// Grants a surveyed runtime the core its claim deserves; returns whether there is one.
    fn serve(&mut self, view: View<'_>, runtime: RuntimeId, actions: &mut Vec<Action>) -> bool {
        let claim = self.claim(view, runtime, self.selector.excess(runtime));
        let Some(choice) = claim.and_then(|claim| self.selector.choose(view, &claim)) else { return false };
        self.grant(view, runtime, choice, actions);
        true
    }

    fn grant(&mut self, view: View<'_>, runtime: RuntimeId, choice: Choice, actions: &mut Vec<Action>) {
        let core = view.ledger.topology().cores()[choice.at].id;
        let index = view.ledger.account(runtime).and_then(|account| account.kthread_for(core));
        let (Some(index), Some(tracked)) = (index, self.runtimes.get_mut(runtime)) else { return };
        (tracked.unmet, tracked.preempted, tracked.woken) = (false, false, false);
        tracked.congested = false;
        tracked.last_served = view.now;
        let Choice { victim, only_if_idle, .. } = choice;
        if let Some(loser) = victim.filter(|_| choice.preempts).and_then(|v| self.runtimes.get_mut(v.runtime))
        {
            (loser.unmet, loser.preempted, loser.last_served) = (true, true, view.now);
        }
        let kthread = KthreadId::new(runtime, index);
        actions.push(Action::Grant { runtime, kthread, core, victim, only_if_idle });
    }

    /// Returns the best claim to the core at this position, which is free or has this holder.
    fn best_claim(&self, view: View<'_>, at: usize, holder: Option<&Holder>) -> Option<Claim> {
        let others = view.ledger.runtimes().iter().copied();
        others
            .filter(|&runtime| self.is_unmet(runtime) && holder.is_none_or(|h| h.kthread.runtime != runtime))
            .filter_map(|runtime| {
                let account = view.ledger.account(runtime)?;
                self.claim(view, runtime, excess(account, self.entitlement(runtime, account)))
            })
            .filter(|claim| holder.is_none_or(|holder| self.may_take(claim, holder)))
            .filter(|claim| self.selector.reaches(view, claim, at))
            .min_by_key(|claim| self.queue_key(claim))
    }

    /// Returns whether a claim may take a core on which this holder idles.
    fn may_take(&self, claim: &Claim, holder: &Holder) -> bool {
        if holder.keeps { self.may_preempt(claim, holder) } else { claim.may_take_idle(holder.class) }
    }

    fn may_preempt(&self, claim: &Claim, holder: &Holder) -> bool {
        claim.may_preempt(holder.class, holder.excess, holder.tenure, self.config.quantum(claim.class))
    }
}

/// The kthread that holds the core a claim is about.
struct Holder {
    kthread: KthreadId,
    class: RuntimeClass,
    excess: i32,
    tenure: Nanos,
    /// True if the kthread keeps the core although it idles: something is queued at its runtime, so
    /// that it is about to be busy, or its runtime requested the core.
    keeps: bool,
}

impl Holder {
    /// Returns the holder of the core at this position; `None` if it is free.
    fn of_core(view: View<'_>, division: Option<&Division>, at: usize) -> Option<Self> {
        let CoreState::Owned { kthread, since } = view.ledger.cores()[at] else { return None };
        let account = view.ledger.account(kthread.runtime)?;
        let entitlement = entitlement(division, kthread.runtime, account);
        let has_work = view.obs.runtime(kthread.runtime).is_some_and(RuntimeLook::has_work);
        Some(Self {
            kthread,
            class: view.class(kthread.runtime),
            excess: excess(account, entitlement),
            tenure: view.now.since(since),
            keeps: has_work || lendable(account, entitlement) <= 0,
        })
    }

    /// Returns the holder of another core of the same runtime, without reading the runtime's words
    /// once more; `None` if the core at this position has no owner.
    fn at(&self, view: View<'_>, at: usize) -> Option<Self> {
        let CoreState::Owned { kthread, since } = view.ledger.cores()[at] else { return None };
        Some(Self { kthread, tenure: view.now.since(since), ..*self })
    }
}

/// Returns what a runtime owns: its guarantee, if requests are ignored.
fn entitlement(division: Option<&Division>, runtime: RuntimeId, account: &Account) -> Entitlement {
    let guarantee = Entitlement { own: account.guaranteed(), requested: 0 };
    division.map_or(guarantee, |division| division.of(runtime, account))
}

impl Policy for CongestionDetection {
    fn name(&self) -> &'static str {
        if self.division.is_some() { "arbiter" } else { "congestion-detection" }
    }

    fn interval(&self) -> Nanos {
        self.config.interval
    }

    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger) {
        let Some(account) = ledger.account(runtime) else { return };
        let tracked = Tracked {
            detector: Detector::new(account.spec().kthreads),
            unmet: false,
            preempted: false,
            woken: false,
            congested: false,
            looks_without_relief: 0,
            last_served: Nanos::ZERO,
            next_search: 0,
            work: false,
            work_seen: 0,
        };
        self.runtimes.insert(runtime, tracked);
        if let Some(division) = &mut self.division {
            division.attach(runtime);
        }
        let slots = self.runtimes.slots();
        self.selector.reserve(ledger.topology().len(), slots);
        self.queue.clear();
        self.queue.reserve(slots);
    }

    fn detach(&mut self, runtime: RuntimeId) {
        self.runtimes.remove(runtime);
        if let Some(division) = &mut self.division {
            division.detach(runtime);
        }
    }

    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        self.event += 1;
        self.looks += 1;
        if let Some(division) = &mut self.division {
            division.update(view);
        }
        let mut queue = core::mem::take(&mut self.queue);
        queue.clear();
        for &runtime in view.ledger.runtimes() {
            self.look(view, runtime);
            let account = view.ledger.account(runtime);
            let excess = account.map_or(0, |account| excess(account, self.entitlement(runtime, account)));
            queue.extend(self.claim(view, runtime, excess).map(|claim| self.queue_key(&claim)));
        }
        if !queue.is_empty() {
            queue.sort_unstable();
            self.survey(view);
            self.serve_queue(view, &queue, actions);
        }
        self.queue = queue;
    }

    fn wakeup(&mut self, view: View<'_>, runtime: RuntimeId, actions: &mut Vec<Action>) {
        let without_core = view.ledger.account(runtime).is_some_and(|account| account.cores() == 0);
        let Some(tracked) = self.runtimes.get_mut(runtime).filter(|_| without_core) else { return };
        (tracked.unmet, tracked.woken) = (true, true);
        self.event += 1;
        self.survey(view);
        self.serve(view, runtime, actions);
    }

    fn idle(&mut self, view: View<'_>, core: CoreId, actions: &mut Vec<Action>) {
        let Some(at) = view.ledger.topology().position(core) else { return };
        if matches!(view.ledger.cores()[at], CoreState::Moving { .. } | CoreState::Absent) {
            return;
        }
        let holder = Holder::of_core(view, self.division.as_ref(), at);
        let Some(claim) = self.best_claim(view, at, holder.as_ref()) else { return };
        // The claim may take this core, but perhaps not all others of its holder, which keeps those
        // that it has had for less than a quantum if it has work.
        let holder_at = |other| holder.as_ref().and_then(|holder| holder.at(view, other));
        let may_take = |other| holder_at(other).is_some_and(|holder| self.may_take(&claim, &holder));
        let alike = |other| other == at || idles_at(view, other) && may_take(other);
        let at = self.selector.least_sticky(view, &claim, at, alike);
        let holder = holder_at(at);
        let choice = Choice {
            at,
            victim: holder.as_ref().map(|holder| holder.kthread),
            preempts: holder.as_ref().is_some_and(|holder| holder.keeps),
            only_if_idle: holder.as_ref().is_some_and(|holder| !self.may_preempt(&claim, holder)),
        };
        self.grant(view, claim.runtime, choice, actions);
    }

    fn next_pending(&self, view: View<'_>) -> Option<Nanos> {
        self.division.as_ref()?.next_pending(view)
    }

    fn takes_requests(&self) -> bool {
        self.division.is_some()
    }

    fn granted(&self, runtime: RuntimeId) -> u16 {
        self.division.as_ref().map_or(0, |division| division.requested(runtime))
    }
}

/// Returns how many kthreads of the runtime are about to take work: idle ones that keep their core,
/// those that have not started on the core they were granted, and those whose core has yet to be
/// ceded.
fn help_under_way(view: View<'_>, runtime: RuntimeId, look: &RuntimeLook) -> u32 {
    let Some(account) = view.ledger.account(runtime) else { return 0 };
    let about_to_run = |(state, look): &(KthreadState, &KthreadLook)| match *state {
        KthreadState::Incoming { .. } => true,
        KthreadState::Granted { core } => {
            look.activity != Activity::Running
                && matches!(view.ledger.core(core), Some(CoreState::Owned { .. }))
        }
        KthreadState::Parked { .. } | KthreadState::Evicted { .. } => false,
    };
    account.kthreads().zip(&look.kthreads).filter(about_to_run).count() as u32
}

#[cfg(test)]
mod tests {
    use super::super::Observation;
    use super::*;
    use crate::ledger::RuntimeSpec;
    use crate::topology::Topology;

    #[test]
    fn once_runtimes_are_attached_no_event_grows_anything() {
        let mut ledger = Ledger::new(Topology::uniform(64, 2, 1).unwrap());
        let (mut obs, mut policy) = (Observation::new(), CongestionDetection::new(Config::default()));
        for slot in 0..32 {
            let (runtime, class) = (
                RuntimeId(slot),
                [RuntimeClass::LatencyCritical, RuntimeClass::BestEffort][slot as usize % 2],
            );
            let spec = RuntimeSpec { guaranteed: slot as u16 % 2, max: 4, kthreads: 4, class };
            ledger.register(runtime, spec, Nanos::ZERO).unwrap();
            obs.attach(runtime, spec.kthreads);
            policy.attach(runtime, &ledger);
        }
        let capacities = |policy: &CongestionDetection| {
            (policy.selector.capacities(), policy.queue.capacity(), policy.runtimes.capacity())
        };
        let before = capacities(&policy);
        let mut actions = Vec::new();
        let mut granted = 0;
        for look in 1..1000 {
            let now = Nanos(look * 5_000);
            for slot in 0..32 {
                let kthread = obs.kthread_mut(KthreadId::new(RuntimeId(slot), 0)).unwrap();
                kthread.runq_tail = if look % 64 > u64::from(slot) { 8 } else { 0 };
            }
            actions.clear();
            let view = View { now, obs: &obs, ledger: &ledger };
            policy.tick(view, &mut actions);
            granted += actions.len();
            for action in &actions {
                ledger.apply(action, now).unwrap();
                let Action::Grant { core, kthread, victim, .. } = *action;
                if victim.is_some() {
                    ledger.complete_move(core, now).unwrap();
                }
                obs.kthread_mut(kthread).unwrap().activity = Activity::Running;
            }
        }
        assert!(granted > 64, "every core was granted, and some were taken again: {granted}");
        assert_eq!(capacities(&policy), before);
    }
}
