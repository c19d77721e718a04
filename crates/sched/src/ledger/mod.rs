//! The only record of which kthread owns which managed core.
//!
//! Owns the state of every managed core and of every kthread of every registered runtime, and the
//! counters derived from them. It decides nothing. Policies propose; the program that carries a
//! proposal out enters it here first, and an impossible one is refused with a [`TransitionError`]
//! that changes nothing. Nothing that a runtime writes into shared memory gets here.
//!
//! Invariants, all verified by [`Ledger::check`]:
//! - A core and the kthreads it names agree: `Owned` and `Moving::from` with `Granted`,
//!   `Moving::to` with `Incoming`. So a core never has two owners, and a kthread never two cores.
//! - A core moves between different runtimes only.
//! - No runtime holds more cores than its limit, including cores it is giving up.
//! - The guarantees of all runtimes together fit the managed cores; what they amount to at present
//!   ([`Account::guaranteed`]) fits those that are not absent.
//! - The counters (per runtime, free and present cores) equal a recount.
//!
//! Every operation is O(1) in cores and runtimes, except registration, [`Ledger::unregister`]
//! (linear in cores), [`Ledger::withdraw`] and [`Ledger::restore`] (linear in runtimes) and the
//! check. Equal histories give equal ledgers. Only registration and `unregister` use the heap.
//!
//! Neighbours: [`crate::alloc`] reads it to decide; the IOKernel and the simulator write it.

mod check;
mod error;
mod guarantee;
mod state;
#[cfg(test)]
mod tests;

pub use error::{Inconsistency, RegisterError, TransitionError};
pub use state::{Account, CoreState, KthreadState, RuntimeClass, RuntimeSpec};

use crate::action::Action;
use crate::ids::{CoreId, KthreadId, Nanos, RuntimeId};
use crate::topology::Topology;
use heap::vec;
use heap::vec::Vec;
use state::Kthread;

/// Number of slots for runtimes; bounds the tables that are indexed by [`RuntimeId`].
pub const MAX_RUNTIMES: u32 = 1024;

/// The state of all managed cores and kthreads. The module header lists its invariants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    topology: Topology,
    /// Parallel to `topology.cores()`.
    cores: Vec<CoreState>,
    slots: Vec<Option<Account>>,
    /// Registered runtimes, ascending.
    live: Vec<RuntimeId>,
    free: usize,
    /// Cores that are not absent.
    present: usize,
    /// Sum of what all runtimes registered.
    guaranteed: usize,
}

/// What became of one core of a runtime that was unregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The runtime owned it; it is free now.
    Freed(CoreId),
    /// The runtime was giving it up, and the move is complete. The new owner must be woken, because
    /// the old one can no longer do it.
    HandedOn {
        /// The core.
        core: CoreId,
        /// Its owner from now on.
        to: KthreadId,
    },
    /// It was promised to the runtime: the move is cancelled and `from` keeps it. The request to
    /// cede must be withdrawn. If `from` has already ceded, it is parked; call [`Ledger::release`]
    /// for it as soon as that is seen.
    Returned {
        /// The core.
        core: CoreId,
        /// Its owner, as before the move.
        from: KthreadId,
    },
}

impl Ledger {
    /// Creates a ledger of these cores, all free, without runtimes.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        let cores = vec![CoreState::Free; topology.len()];
        let count = cores.len();
        let (slots, live) = (Vec::new(), Vec::new());
        Self { free: count, present: count, topology, cores, slots, live, guaranteed: 0 }
    }

    /// Returns the managed cores.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the state of `core`; `None` if it is not managed.
    #[must_use]
    pub fn core(&self, core: CoreId) -> Option<CoreState> {
        self.topology.position(core).map(|at| self.cores[at])
    }

    /// Returns the state of each core, parallel to [`Topology::cores`].
    #[must_use]
    pub fn cores(&self) -> &[CoreState] {
        &self.cores
    }

    /// Returns how many cores are free.
    #[must_use]
    pub fn free_cores(&self) -> usize {
        self.free
    }

    /// Returns how many cores are not absent.
    #[must_use]
    pub fn present_cores(&self) -> usize {
        self.present
    }

    /// Returns the sum of the guarantees with which runtimes registered.
    #[must_use]
    pub fn guaranteed_cores(&self) -> usize {
        self.guaranteed
    }

    /// Returns the registered runtimes, ascending.
    #[must_use]
    pub fn runtimes(&self) -> &[RuntimeId] {
        &self.live
    }

    /// Returns the account of a registered runtime.
    #[must_use]
    pub fn account(&self, runtime: RuntimeId) -> Option<&Account> {
        self.slots.get(runtime.0 as usize)?.as_ref()
    }

    /// Returns the state of a kthread; `None` if it does not exist.
    #[must_use]
    pub fn kthread(&self, kthread: KthreadId) -> Option<KthreadState> {
        self.entry(kthread).ok().map(|entry| entry.state)
    }

    /// Returns the core that a kthread runs on or ran on last, to which its thread is still bound.
    #[must_use]
    pub fn last_core(&self, kthread: KthreadId) -> Option<CoreId> {
        self.entry(kthread).ok()?.last_core
    }

    /// Returns the lowest slot without a runtime; `None` if all [`MAX_RUNTIMES`] are taken.
    #[must_use]
    pub fn vacant_slot(&self) -> Option<RuntimeId> {
        let gap = (0u32..).zip(&self.live).find(|(slot, runtime)| *slot != runtime.0);
        let slot = gap.map_or(self.live.len() as u32, |(slot, _)| slot);
        (slot < MAX_RUNTIMES).then_some(RuntimeId(slot))
    }

    /// Registers a runtime in a vacant slot; all its kthreads count as parked since `now`.
    ///
    /// # Errors
    /// [`RegisterError`] if the slot, the spec, or the sum of guaranteed cores is not acceptable.
    pub fn register(
        &mut self,
        runtime: RuntimeId,
        spec: RuntimeSpec,
        now: Nanos,
    ) -> Result<(), RegisterError> {
        if runtime.0 >= MAX_RUNTIMES {
            return Err(RegisterError::SlotOutOfRange(runtime));
        }
        if self.account(runtime).is_some() {
            return Err(RegisterError::SlotTaken(runtime));
        }
        let RuntimeSpec { guaranteed, max, kthreads, .. } = spec;
        if max == 0 {
            return Err(RegisterError::NoCores(runtime));
        }
        if guaranteed > max {
            return Err(RegisterError::GuaranteeOverLimit { runtime, guaranteed, max });
        }
        if max > kthreads {
            return Err(RegisterError::TooFewKthreads { runtime, max, kthreads });
        }
        let (already, managed) = (self.guaranteed, self.cores.len());
        if already + usize::from(guaranteed) > managed {
            return Err(RegisterError::Oversubscribed { runtime, guaranteed, already, managed });
        }
        let slot = runtime.0 as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Account::new(spec, managed, now));
        let place = self.live.partition_point(|other| *other < runtime);
        self.live.insert(place, runtime);
        self.guaranteed += usize::from(guaranteed);
        self.divide_guarantees();
        Ok(())
    }

    /// Removes a runtime, dead or leaving, and settles every core it was part of. Returns what
    /// became of those cores, ascending by core.
    ///
    /// # Errors
    /// [`TransitionError::UnknownRuntime`].
    pub fn unregister(
        &mut self,
        runtime: RuntimeId,
        now: Nanos,
    ) -> Result<Vec<Disposition>, TransitionError> {
        let account = self.account(runtime).ok_or(TransitionError::UnknownRuntime(runtime))?;
        let guaranteed = usize::from(account.spec.guaranteed);
        let mut dispositions = Vec::with_capacity(usize::from(account.held()));
        for at in 0..self.cores.len() {
            let core = self.topology.cores()[at].id;
            match self.cores[at] {
                CoreState::Owned { kthread, .. } if kthread.runtime == runtime => {
                    self.release(kthread, now)?;
                    dispositions.push(Disposition::Freed(core));
                }
                CoreState::Moving { from, to, .. } if from.runtime == runtime => {
                    self.complete_move(core, now)?;
                    dispositions.push(Disposition::HandedOn { core, to });
                }
                CoreState::Moving { from, to, .. } if to.runtime == runtime => {
                    self.cancel_move(core, now)?;
                    dispositions.push(Disposition::Returned { core, from });
                }
                CoreState::Free | CoreState::Absent | CoreState::Owned { .. } | CoreState::Moving { .. } => {}
            }
        }
        self.slots[runtime.0 as usize] = None;
        self.live.retain(|other| *other != runtime);
        self.guaranteed -= guaranteed;
        self.divide_guarantees();
        Ok(dispositions)
    }

    /// Lends a free core to a parked kthread.
    ///
    /// # Errors
    /// The core is not free, the kthread is not parked, its runtime is at its limit, or one of them
    /// does not exist.
    pub fn grant(&mut self, core: CoreId, kthread: KthreadId, now: Nanos) -> Result<(), TransitionError> {
        let at = self.position(core)?;
        let state = self.cores[at];
        if state != CoreState::Free {
            return Err(TransitionError::CoreNotFree { core, state });
        }
        self.check_can_be_lent(kthread)?;
        self.cores[at] = CoreState::Owned { kthread, since: now };
        self.free -= 1;
        self.start(kthread, core);
        Ok(())
    }

    /// Takes a free core out: it cannot be lent before [`Ledger::restore`]. Registered guarantees
    /// still count it; what they amount to is divided anew ([`Account::guaranteed`]).
    ///
    /// # Errors
    /// The core is not free, or does not exist.
    pub fn withdraw(&mut self, core: CoreId) -> Result<(), TransitionError> {
        let at = self.position(core)?;
        match self.cores[at] {
            CoreState::Free => {
                self.cores[at] = CoreState::Absent;
                self.free -= 1;
                self.present -= 1;
                self.divide_guarantees();
                Ok(())
            }
            state => Err(TransitionError::CoreNotFree { core, state }),
        }
    }

    /// Puts an absent core back: it is free.
    ///
    /// # Errors
    /// The core is not absent, or does not exist.
    pub fn restore(&mut self, core: CoreId) -> Result<(), TransitionError> {
        let at = self.position(core)?;
        match self.cores[at] {
            CoreState::Absent => {
                self.cores[at] = CoreState::Free;
                self.free += 1;
                self.present += 1;
                self.divide_guarantees();
                Ok(())
            }
            state => Err(TransitionError::CoreNotAbsent { core, state }),
        }
    }

    /// Promises `to` the core that `from` runs on. The caller then asks `from` to cede.
    ///
    /// # Errors
    /// `from` does not own the core or is already giving it up, `to` is not parked or its runtime
    /// is at its limit, both belong to one runtime, or one of them does not exist.
    pub fn begin_move(
        &mut self,
        core: CoreId,
        from: KthreadId,
        to: KthreadId,
        now: Nanos,
    ) -> Result<(), TransitionError> {
        let at = self.position(core)?;
        let owned_since = match self.cores[at] {
            CoreState::Owned { kthread, since } if kthread == from => since,
            state => return Err(TransitionError::CoreNotOwned { core, owner: from, state }),
        };
        if from.runtime == to.runtime {
            return Err(TransitionError::SameRuntime { core, from, to });
        }
        self.check_can_be_lent(to)?;
        self.cores[at] = CoreState::Moving { from, to, since: now, owned_since };
        self.account_mut(from.runtime).leaving += 1;
        let receiver = self.account_mut(to.runtime);
        receiver.arriving += 1;
        receiver.kthreads[usize::from(to.index)].state = KthreadState::Incoming { core };
        Ok(())
    }

    /// Completes a move after `from` gave its core up: `to` owns it. Returns `from` and `to`.
    ///
    /// # Errors
    /// The core is not moving, or does not exist.
    pub fn complete_move(
        &mut self,
        core: CoreId,
        now: Nanos,
    ) -> Result<(KthreadId, KthreadId), TransitionError> {
        let (at, from, to, _) = self.moving(core)?;
        self.settle(at, core, from, to, KthreadState::Parked { since: now }, now);
        Ok((from, to))
    }

    /// Cancels a move: `from` keeps its core as if it had never been asked to cede, `to` is parked
    /// since `now`. Returns `from` and `to`.
    ///
    /// # Errors
    /// The core is not moving, or does not exist.
    pub fn cancel_move(
        &mut self,
        core: CoreId,
        now: Nanos,
    ) -> Result<(KthreadId, KthreadId), TransitionError> {
        let (at, from, to, owned_since) = self.moving(core)?;
        self.cores[at] = CoreState::Owned { kthread: from, since: owned_since };
        self.account_mut(from.runtime).leaving -= 1;
        let receiver = self.account_mut(to.runtime);
        receiver.arriving -= 1;
        receiver.kthreads[usize::from(to.index)].state = KthreadState::Parked { since: now };
        Ok((from, to))
    }

    /// Frees the core of a kthread that parked without a request; returns the core.
    ///
    /// # Errors
    /// The kthread has no core, has promised it to another ([`TransitionError::PromisedAway`]), or
    /// does not exist.
    pub fn release(&mut self, kthread: KthreadId, now: Nanos) -> Result<CoreId, TransitionError> {
        let core = self.core_to_give_up(kthread)?;
        let at = self.position(core)?;
        if let CoreState::Moving { to, .. } = self.cores[at] {
            return Err(TransitionError::PromisedAway { core, kthread, to });
        }
        self.park(at, kthread, now);
        let account = self.account_mut(kthread.runtime);
        account.given_up = account.given_up.wrapping_add(1);
        Ok(core)
    }

    /// Enters the core as free and the kthread that owned it as parked.
    fn park(&mut self, at: usize, kthread: KthreadId, now: Nanos) {
        self.cores[at] = CoreState::Free;
        self.free += 1;
        self.stop(kthread, self.topology.cores()[at].id, KthreadState::Parked { since: now });
    }

    /// Records that a kthread parked as it was asked. Completes the move of its core, or frees the
    /// core if that is promised to none. Returns the core's next owner; `None` if it is free.
    ///
    /// # Errors
    /// The kthread has no core, or does not exist.
    pub fn handle_parked(
        &mut self,
        kthread: KthreadId,
        now: Nanos,
    ) -> Result<Option<KthreadId>, TransitionError> {
        let core = self.core_to_give_up(kthread)?;
        if let Some(CoreState::Moving { .. }) = self.core(core) {
            let (_, to) = self.complete_move(core, now)?;
            return Ok(Some(to));
        }
        let at = self.position(core)?;
        self.park(at, kthread, now);
        Ok(None)
    }

    /// Records that a kthread did not give its core up in time, so that the core was taken from it.
    /// It can be lent no core until [`Ledger::readmit`]. Returns the core's next owner; `None` if
    /// it is free.
    ///
    /// # Errors
    /// The kthread has no core, or does not exist.
    pub fn evict(&mut self, kthread: KthreadId, now: Nanos) -> Result<Option<KthreadId>, TransitionError> {
        let core = self.core_to_give_up(kthread)?;
        let at = self.position(core)?;
        let evicted = KthreadState::Evicted { since: now };
        if let CoreState::Moving { from, to, .. } = self.cores[at] {
            self.settle(at, core, from, to, evicted, now);
            return Ok(Some(to));
        }
        self.cores[at] = CoreState::Free;
        self.free += 1;
        self.stop(kthread, core, evicted);
        Ok(None)
    }

    /// Makes an evicted kthread that was seen parked eligible for cores again.
    ///
    /// # Errors
    /// The kthread was not evicted, or does not exist.
    pub fn readmit(&mut self, kthread: KthreadId, now: Nanos) -> Result<(), TransitionError> {
        let state = self.entry(kthread)?.state;
        if !matches!(state, KthreadState::Evicted { .. }) {
            return Err(TransitionError::KthreadNotEvicted { kthread, state });
        }
        let left = self.last_core(kthread).and_then(|core| self.topology.position(core));
        // It may have been moved off its last core.
        let parked = Kthread { state: KthreadState::Parked { since: now }, last_core: None };
        let account = self.account_mut(kthread.runtime);
        account.evicted -= 1;
        if let Some(at) = left {
            account.withheld -= u16::from(account.evicted_from[at] == account.most_evicted);
            account.evicted_from[at] -= 1;
        }
        account.kthreads[usize::from(kthread.index)] = parked;
        Ok(())
    }

    /// Enters a policy's decision, as a whole or not at all.
    ///
    /// # Errors
    /// As [`Ledger::grant`] without a victim, as [`Ledger::begin_move`] with one. A policy that
    /// decided on this ledger's present state causes none.
    pub fn apply(&mut self, action: &Action, now: Nanos) -> Result<(), TransitionError> {
        match *action {
            Action::Grant { core, kthread, victim: None, .. } => self.grant(core, kthread, now),
            Action::Grant { core, kthread, victim: Some(victim), .. } => {
                self.begin_move(core, victim, kthread, now)
            }
        }
    }

    fn position(&self, core: CoreId) -> Result<usize, TransitionError> {
        self.topology.position(core).ok_or(TransitionError::UnknownCore(core))
    }

    fn entry(&self, kthread: KthreadId) -> Result<&Kthread, TransitionError> {
        let account =
            self.account(kthread.runtime).ok_or(TransitionError::UnknownRuntime(kthread.runtime))?;
        account
            .kthreads
            .get(usize::from(kthread.index))
            .ok_or(TransitionError::UnknownKthread { kthread, kthreads: account.spec.kthreads })
    }

    /// Returns the account of a runtime that a core or a checked kthread names.
    ///
    /// # Panics
    /// If it does not exist, in which case the ledger contradicts itself.
    fn account_mut(&mut self, runtime: RuntimeId) -> &mut Account {
        self.slots[runtime.0 as usize].as_mut().expect("a core or kthread names an unregistered runtime")
    }

    fn check_can_be_lent(&self, kthread: KthreadId) -> Result<(), TransitionError> {
        let state = self.entry(kthread)?.state;
        if !matches!(state, KthreadState::Parked { .. }) {
            return Err(TransitionError::KthreadNotParked { kthread, state });
        }
        let runtime = kthread.runtime;
        let account = self.account(runtime).ok_or(TransitionError::UnknownRuntime(runtime))?;
        let (held, max) = (account.held(), account.spec.max);
        if held >= max {
            return Err(TransitionError::AtLimit { runtime, held, max });
        }
        Ok(())
    }

    fn core_to_give_up(&self, kthread: KthreadId) -> Result<CoreId, TransitionError> {
        match self.entry(kthread)?.state {
            KthreadState::Granted { core } => Ok(core),
            state => Err(TransitionError::KthreadHasNoCore { kthread, state }),
        }
    }

    fn moving(&self, core: CoreId) -> Result<(usize, KthreadId, KthreadId, Nanos), TransitionError> {
        let at = self.position(core)?;
        match self.cores[at] {
            CoreState::Moving { from, to, owned_since, .. } => Ok((at, from, to, owned_since)),
            state => Err(TransitionError::CoreNotMoving { core, state }),
        }
    }

    /// Ends a move in favour of `to`, leaving `from` in the given state.
    fn settle(
        &mut self,
        at: usize,
        core: CoreId,
        from: KthreadId,
        to: KthreadId,
        left: KthreadState,
        now: Nanos,
    ) {
        self.cores[at] = CoreState::Owned { kthread: to, since: now };
        self.account_mut(from.runtime).leaving -= 1;
        self.stop(from, core, left);
        self.account_mut(to.runtime).arriving -= 1;
        self.start(to, core);
    }

    fn start(&mut self, kthread: KthreadId, core: CoreId) {
        let account = self.account_mut(kthread.runtime);
        account.granted += 1;
        account.kthreads[usize::from(kthread.index)] =
            Kthread { state: KthreadState::Granted { core }, last_core: Some(core) };
    }

    fn stop(&mut self, kthread: KthreadId, core: CoreId, state: KthreadState) {
        let at = self.topology.position(core);
        let account = self.account_mut(kthread.runtime);
        account.granted -= 1;
        if let (KthreadState::Evicted { .. }, Some(at)) = (state, at) {
            account.evicted += 1;
            account.evicted_from[at] += 1;
            account.withheld += u16::from(account.evicted_from[at] == account.most_evicted);
        }
        account.recent_core = Some(core);
        account.kthreads[usize::from(kthread.index)].state = state;
    }
}
