//! Core selection: Shenango, algorithm 2, with classes and idle kthreads.
//!
//! Owns the survey of one event: the use of each core, and how many cores each runtime has over
//! those it owns, by guarantee or by request. Both are updated as cores are chosen, so that one
//! event never chooses a core twice.
//! Algorithm 2 knows idle and busy cores and one kind of runtime. Here the cores a claimant may
//! take fall into pools, least harm first, and algorithm 2's preferences (sibling hyperthread, most
//! recent core, any) hold inside each pool:
//!
//! 1. free cores, and cores on which a `BestEffort` kthread idles;
//! 2. cores on which a `LatencyCritical` kthread idles, which may want its core back at any moment;
//! 3. busy cores of bursting `BestEffort` runtimes that the claimant
//!    [may preempt](Claim::may_preempt);
//! 4. busy cores of bursting `LatencyCritical` runtimes that the claimant may preempt.
//!
//! A busy core whose holder has not started, or gives it up for no other kthread, is in no pool
//! ([`Hold`]): the claim waits, or takes another core.
//!
//! A runtime that is [demoted](super::RuntimeLook::is_demoted) competes as a `BestEffort` one, and
//! takes no core of pool 2 unless it has fewer cores than it owns.
//!
//! "Any" prefers the socket on which the claimant runs already, and there a core whose other
//! hyperthreads no other runtime uses.
//!
//! How many cores a runtime keeps is counted; which ones it loses of those that it does not keep is
//! chosen here. A runtime [sticks](Observation::stickiness) to a core where it hosts an exclusive
//! thread, or that ordinary threads are kept off. A core is first chosen as if none were sticky. Of
//! the cores that its owner has in the same use and that the claimant may take as well, the least
//! sticky one is then taken in its place. So a runtime that reports all its cores as sticky, or
//! changing ones, keeps no more of them, and a choice takes one more pass over the cores.
//!
//! In pool 1 a `LatencyCritical` claimant prefers an idling core, which still polls, to a free one,
//! which may be halted: on three kinds of 2-vCPU VM a hand-off takes 1.4 to 3.2 us and the wake of
//! a halted core 5 to 70 us. A `BestEffort` claimant prefers the free one. In pools 3 and 4 "any"
//! is a random core, so that no bursting runtime is singled out.

use super::division::Entitlement;
use super::observe::{Activity, Hold, Observation};
use super::policy::View;
use crate::ids::{KthreadId, Nanos, RuntimeId};
use crate::ledger::{Account, CoreState, KthreadState, Ledger, RuntimeClass};
use heap::vec::Vec;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// How urgently a runtime claims one more core; the lesser is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The runtime has fewer cores than it owns.
    Entitled,
    /// The runtime would burst.
    Burst(RuntimeClass),
}

/// One runtime's claim to one more core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) runtime: RuntimeId,
    pub(super) class: RuntimeClass,
    pub(super) demoted: bool,
    /// Cores it has over those it owns; negative if it is entitled to more.
    pub(super) excess: i32,
}

impl Claim {
    pub(super) fn rank(&self) -> Rank {
        if self.excess < 0 { Rank::Entitled } else { Rank::Burst(self.class) }
    }

    /// Returns true if the claim may take a core on which a kthread of this class idles.
    pub(super) fn may_take_idle(&self, owner: RuntimeClass) -> bool {
        owner == RuntimeClass::BestEffort || !self.demoted || self.rank() == Rank::Entitled
    }

    /// Returns true if the claim justifies preempting a busy kthread that has had its core for
    /// `tenure`. Its runtime is of class `owner` and has `owner_excess` cores over those it owns.
    ///
    /// - A runtime that is not bursting is never preempted (Shenango section 4.1.1).
    /// - A guarantee takes effect at once, and so does `LatencyCritical` against `BestEffort`,
    ///   never the reverse.
    /// - Between bursting runtimes of one class the poorer takes from the richer, no sooner than
    ///   the core has been used for the `quantum` of their class. So equal shares are left alone,
    ///   an odd core goes round, and no runtime waits for ever.
    pub(super) fn may_preempt(
        &self,
        owner: RuntimeClass,
        owner_excess: i32,
        tenure: Nanos,
        quantum: Nanos,
    ) -> bool {
        let allowed = match (self.rank(), owner) {
            (Rank::Entitled, _) | (Rank::Burst(RuntimeClass::LatencyCritical), RuntimeClass::BestEffort) => {
                true
            }
            (Rank::Burst(RuntimeClass::BestEffort), RuntimeClass::LatencyCritical) => false,
            (Rank::Burst(_), _) => tenure >= quantum && owner_excess > self.excess,
        };
        allowed && owner_excess > 0
    }
}

/// Returns the number of cores a runtime has over those it owns.
pub(super) fn excess(account: &Account, entitlement: Entitlement) -> i32 {
    i32::from(account.cores()) - i32::from(entitlement.own)
}

/// Returns the number of cores a runtime has that are lent to others while they idle.
pub(super) fn lendable(account: &Account, entitlement: Entitlement) -> i32 {
    i32::from(account.cores()) - i32::from(entitlement.requested)
}

/// The use of a core, as the survey sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Its owner, of this class, idles and has nothing queued.
    Idle(RuntimeClass),
    /// Its owner, of this class, is busy or about to be.
    Busy(RuntimeClass),
    /// On its way to another kthread, given up for none, or already chosen.
    Taken,
}

/// A chosen core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Its position in the topology.
    pub(super) at: usize,
    pub(super) victim: Option<KthreadId>,
    /// True if the victim was busy and remains in need of a core.
    pub(super) preempts: bool,
    /// True if the claim does not justify preempting the victim.
    pub(super) only_if_idle: bool,
}

/// The survey of one event, and the random state. Only [`Selector::reserve`] allocates.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    /// By class: time for which a bursting runtime keeps a core before an equal may preempt it.
    quanta: [Nanos; 2],
    random: Xoshiro256PlusPlus,
    /// Parallel to the topology's cores.
    uses: Vec<Use>,
    /// Number of `uses` that are `Free` or `Idle`.
    available: usize,
    /// By runtime slot: cores over those it owns, and cores that are lent while they idle; less the
    /// cores chosen from it since the survey.
    excess: Vec<(i32, i32)>,
    /// By class of the claim: true if one found nothing to preempt. Claims are served by rank, then
    /// by growing `excess`, so the cores that one claim may preempt include those that any later
    /// one of its class may, and no further search is needed. A claimant that lost a core in
    /// between is served at the next look, 5 us later.
    exhausted: [bool; 2],
    eligible: Vec<usize>,
    /// By class: whether its runtimes may be lent the core at each position; empty for all cores.
    reach: [Vec<bool>; 2],
    /// Number of searches for a core to preempt.
    #[cfg(test)]
    pub(super) searches: core::cell::Cell<usize>,
}

impl Selector {
    pub(super) fn new(quanta: [Nanos; 2], seed: u64) -> Self {
        Self {
            quanta,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            uses: Vec::new(),
            available: 0,
            excess: Vec::new(),
            exhausted: [false; 2],
            eligible: Vec::new(),
            reach: [Vec::new(), Vec::new()],
            #[cfg(test)]
            searches: core::cell::Cell::default(),
        }
    }

    /// Sets which cores runtimes of a class may be lent, by position.
    pub(super) fn set_reach(&mut self, class: RuntimeClass, cores: &[bool]) {
        let reach = &mut self.reach[class as usize];
        reach.clear();
        reach.extend_from_slice(cores);
    }

    /// Returns whether the claimant may be lent the core at this position: as all runtimes of its
    /// class, as far as Linux binds its threads there, and unless it is withheld.
    pub(super) fn reaches(&self, view: View<'_>, claim: &Claim, at: usize) -> bool {
        self.reach[claim.class as usize].get(at).is_none_or(|&allowed| allowed)
            && view.obs.may_have(view.ledger, claim.runtime, at)
    }

    /// Makes room for a machine of `cores` cores and runtimes in slots below `slots`, so that no
    /// survey allocates.
    pub(super) fn reserve(&mut self, cores: usize, slots: usize) {
        self.uses.clear();
        self.uses.reserve(cores);
        self.eligible.clear();
        self.eligible.reserve(cores);
        self.excess.clear();
        self.excess.reserve(slots);
    }

    /// Classifies every core. If `has_work` returns true for a runtime, something is queued there:
    /// its idle kthreads are about to be busy and count as busy. `entitlement` returns what a
    /// runtime owns.
    pub(super) fn survey(
        &mut self,
        view: View<'_>,
        mut has_work: impl FnMut(RuntimeId) -> bool,
        entitlement: impl Fn(RuntimeId, &Account) -> Entitlement,
    ) {
        let View { obs, ledger, .. } = view;
        let slots = ledger.runtimes().last().map_or(0, |runtime| runtime.0 as usize + 1);
        self.excess.clear();
        self.excess.resize(slots, (0, 0));
        for &runtime in ledger.runtimes() {
            let Some(account) = ledger.account(runtime) else { continue };
            let entitlement = entitlement(runtime, account);
            self.excess[runtime.0 as usize] = (excess(account, entitlement), lendable(account, entitlement));
        }
        self.uses.clear();
        self.uses.extend(ledger.cores().iter().enumerate().map(|(at, state)| match *state {
            CoreState::Free => Use::Free,
            CoreState::Moving { .. } | CoreState::Absent => Use::Taken,
            CoreState::Owned { .. } if obs.hold(at) == Hold::Leaving => Use::Taken,
            CoreState::Owned { kthread, .. } => {
                let class = view.class(kthread.runtime);
                if idles(obs, kthread) && !has_work(kthread.runtime) {
                    Use::Idle(class)
                } else {
                    Use::Busy(class)
                }
            }
        }));
        self.available = self.uses.iter().filter(|used| matches!(used, Use::Free | Use::Idle(_))).count();
        self.exhausted = [false; 2];
    }

    /// Returns the core to take in place of the one at this position: of those that its owner has,
    /// that are `alike` and in the claimant's reach, the least sticky one.
    pub(super) fn least_sticky(
        &self,
        view: View<'_>,
        claim: &Claim,
        at: usize,
        alike: impl Fn(usize) -> bool,
    ) -> usize {
        let owned = owner(view.ledger, at);
        let stickiness = |at: usize| match view.ledger.cores()[at] {
            CoreState::Owned { kthread, .. } => view.obs.stickiness(kthread, at),
            CoreState::Free | CoreState::Absent | CoreState::Moving { .. } => 0,
        };
        if stickiness(at) == 0 {
            return at;
        }
        let others = (0..view.ledger.cores().len()).filter(|&other| {
            owner(view.ledger, other) == owned && alike(other) && self.reaches(view, claim, other)
        });
        others.min_by_key(|&other| (stickiness(other), other != at)).unwrap_or(at)
    }

    /// Returns the cores over those it owns that a runtime has left after the choices made since
    /// the survey.
    pub(super) fn excess(&self, runtime: RuntimeId) -> i32 {
        self.excess[runtime.0 as usize].0
    }

    /// Returns the core for this claim and marks it as taken; `None` if the claim may have none.
    pub(super) fn choose(&mut self, view: View<'_>, claim: &Claim) -> Option<Choice> {
        let at = self.choose_available(view, claim).or_else(|| self.choose_busy(view, claim))?;
        let used = core::mem::replace(&mut self.uses[at], Use::Taken);
        let CoreState::Owned { kthread, since } = view.ledger.cores()[at] else {
            self.available -= 1;
            return Some(Choice { at, victim: None, preempts: false, only_if_idle: false });
        };
        let preempts = matches!(used, Use::Busy(_));
        self.available -= usize::from(!preempts);
        let class = view.class(kthread.runtime);
        let (excess, lendable) = &mut self.excess[kthread.runtime.0 as usize];
        let entitled =
            claim.may_preempt(class, *excess, view.now.since(since), self.quanta[claim.class as usize]);
        (*excess, *lendable) = (*excess - 1, *lendable - 1);
        Some(Choice { at, victim: Some(kthread), preempts, only_if_idle: !entitled })
    }

    /// Returns a core of pool 1 or 2.
    fn choose_available(&self, view: View<'_>, claim: &Claim) -> Option<usize> {
        if self.available == 0 {
            return None;
        }
        let (critical, effort) =
            (Use::Idle(RuntimeClass::LatencyCritical), Use::Idle(RuntimeClass::BestEffort));
        // An idle core that its owner requested is not lent.
        let lent = |owner: RuntimeId| owner != claim.runtime && self.excess[owner.0 as usize].1 > 0;
        let of_others = |at: usize| {
            let lent = owner(view.ledger, at).is_none_or(lent);
            lent && self.reaches(view, claim, at)
        };
        let home = home(view, claim);
        let first = |kind: Use| {
            let usable = |&at: &usize| self.uses[at] == kind && of_others(at);
            // Lesser is better; of equals the first.
            let rank = |&at: &usize| (!is_at(view, home, at), !self.is_apart(view, claim, at));
            (0..self.uses.len()).filter(usable).min_by_key(rank)
        };
        let polite = |at: usize| matches!(self.uses[at], Use::Free | Use::Idle(RuntimeClass::BestEffort));
        let [sooner, later] = match claim.class {
            RuntimeClass::LatencyCritical => [effort, Use::Free],
            RuntimeClass::BestEffort => [Use::Free, effort],
        };
        let found = near(view, claim, |at| polite(at) && of_others(at))
            .or_else(|| first(sooner))
            .or_else(|| first(later));
        let last = || {
            let near = near(view, claim, |at| self.uses[at] == critical && of_others(at));
            near.or_else(|| first(critical)).filter(|_| claim.may_take_idle(RuntimeClass::LatencyCritical))
        };
        let at = found.or_else(last)?;
        Some(self.least_sticky(view, claim, at, |other| self.uses[other] == self.uses[at]))
    }

    /// Returns a core of pool 3 or 4.
    fn choose_busy(&mut self, view: View<'_>, claim: &Claim) -> Option<usize> {
        if self.exhausted[claim.class as usize] {
            return None;
        }
        #[cfg(test)]
        self.searches.set(self.searches.get() + 1);
        for class in [RuntimeClass::BestEffort, RuntimeClass::LatencyCritical] {
            let near = near(view, claim, |at| self.is_eligible(view, claim, class, at));
            if let Some(at) = near.or_else(|| self.any_eligible(view, claim, class)) {
                return Some(
                    self.least_sticky(view, claim, at, |other| self.is_eligible(view, claim, class, other)),
                );
            }
        }
        // One that lacks cores proves nothing about the others.
        self.exhausted[claim.class as usize] = !view.obs.lacks_cores(view.ledger, claim.runtime);
        None
    }

    /// Returns true if this core is busy, belongs to a runtime of this class, and may be preempted
    /// for the claim at present.
    fn is_eligible(&self, view: View<'_>, claim: &Claim, class: RuntimeClass, at: usize) -> bool {
        if self.uses[at] != Use::Busy(class) || !self.reaches(view, claim, at) {
            return false;
        }
        let CoreState::Owned { kthread, since } = view.ledger.cores()[at] else { return false };
        kthread.runtime != claim.runtime
            && claim.may_preempt(
                class,
                self.excess(kthread.runtime),
                view.now.since(since),
                self.quanta[claim.class as usize],
            )
            && view.yields(at, claim.runtime)
    }

    /// Returns true if no other runtime uses a hyperthread of this core's physical core.
    fn is_apart(&self, view: View<'_>, claim: &Claim, at: usize) -> bool {
        let topology = view.ledger.topology();
        let siblings = topology.siblings(topology.cores()[at].id).iter();
        siblings.filter_map(|&core| topology.position(core)).all(|at| {
            let unused = matches!(self.uses[at], Use::Free | Use::Idle(_));
            unused
                || match view.ledger.cores()[at] {
                    CoreState::Owned { kthread, .. } | CoreState::Moving { to: kthread, .. } => {
                        kthread.runtime == claim.runtime
                    }
                    CoreState::Absent => true,
                    // Chosen for another claim at this event.
                    CoreState::Free => false,
                }
        })
    }

    /// Returns a random core among the eligible ones.
    fn any_eligible(&mut self, view: View<'_>, claim: &Claim, class: RuntimeClass) -> Option<usize> {
        let mut eligible = core::mem::take(&mut self.eligible);
        eligible.clear();
        eligible.extend((0..self.uses.len()).filter(|&at| self.is_eligible(view, claim, class, at)));
        let home = home(view, claim);
        if eligible.iter().any(|&at| is_at(view, home, at)) {
            eligible.retain(|&at| is_at(view, home, at));
        }
        let chosen = (!eligible.is_empty()).then(|| eligible[self.below(eligible.len())]);
        self.eligible = eligible;
        chosen
    }

    /// Returns a random number below `bound`, which is not 0. The bias is under 2^-50.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.random.next_u64()) * bound as u128) >> 64) as usize
    }
}

/// Returns true if a kthread reports to be idle.
fn idles(obs: &Observation, kthread: KthreadId) -> bool {
    obs.activity(kthread) == Activity::Idle
}

/// Returns true if the owner of the core at this position reports to be idle, and the core has
/// no [`Hold`].
pub(super) fn idles_at(view: View<'_>, at: usize) -> bool {
    view.obs.hold(at) == Hold::None
        && matches!(view.ledger.cores()[at], CoreState::Owned { kthread, .. } if idles(view.obs, kthread))
}

fn owner(ledger: &Ledger, at: usize) -> Option<RuntimeId> {
    match ledger.cores()[at] {
        CoreState::Owned { kthread, .. } => Some(kthread.runtime),
        CoreState::Free | CoreState::Absent | CoreState::Moving { .. } => None,
    }
}

/// Returns the socket on which the claimant runs; `None` if it has no core.
fn home(view: View<'_>, claim: &Claim) -> Option<u16> {
    let used = |state| match state {
        KthreadState::Granted { core } => Some(core),
        _ => None,
    };
    let core = view.ledger.account(claim.runtime)?.kthreads().find_map(used)?;
    let topology = view.ledger.topology();
    Some(topology.cores()[topology.position(core)?].socket)
}

/// Returns whether the core at this position is on the claimant's socket, or the claimant has none.
fn is_at(view: View<'_>, home: Option<u16>, at: usize) -> bool {
    home.is_none_or(|socket| view.ledger.topology().cores()[at].socket == socket)
}

/// Returns the first suitable core near the claimant: a hyperthread sibling of a core it uses and
/// keeps, else the core it gave up last (algorithm 2, lines 9 to 15).
fn near(view: View<'_>, claim: &Claim, suits: impl Fn(usize) -> bool) -> Option<usize> {
    let topology = view.ledger.topology();
    let account = view.ledger.account(claim.runtime)?;
    let used = account.kthreads().filter_map(|state| match state {
        KthreadState::Granted { core } | KthreadState::Incoming { core } => Some(core),
        KthreadState::Parked { .. } | KthreadState::Evicted { .. } => None,
    });
    let kept = used.filter(|core| !is_leaving(view.ledger, claim.runtime, *core));
    let siblings = kept.flat_map(|core| topology.siblings(core));
    let recent = account.recent_core();
    siblings.copied().chain(recent).filter_map(|core| topology.position(core)).find(|&at| suits(at))
}

fn is_leaving(ledger: &Ledger, runtime: RuntimeId, core: crate::ids::CoreId) -> bool {
    matches!(ledger.core(core), Some(CoreState::Moving { from, .. }) if from.runtime == runtime)
}

#[cfg(test)]
impl Selector {
    /// Returns the capacities of everything on the heap.
    pub(super) fn capacities(&self) -> [usize; 3] {
        [self.uses.capacity(), self.excess.capacity(), self.eligible.capacity()]
    }
}

#[cfg(test)]
mod tests;
