//! Carrying a decision out: binding, the grant word, the request to cede.
//!
//! Owns the order of steps of a hand-off: bind the new thread to the core, if it last ran elsewhere
//! (a thread that Linux does not bind there gets another free core, or waits for the next decision;
//! see [`super::unbound`]); enter the decision into the ledger; take the core from an idle victim;
//! write the new owner's grant; then ask the victim to cede, or wake the new owner of a free core.
//! A new owner that sleeps is woken by the victim, or by the IOKernel when the victim is seen
//! parked ([`super::board`]). Without a rebinding and such a wake the hand-off makes no system
//! call.

use rustix::io::Errno;
use tailwater_sched::alloc::{Action, Activity};
use tailwater_sched::ledger::CoreState;
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Cycles, Grant, KthreadState, clock};

use super::Allocator;
use super::phase::{Phase, Promise};
use crate::machine::cpu_set;
use crate::stats::HandoffKind;
use crate::tenant::Work;
use crate::world::World;

/// Maximum number of other cores that are tried for a thread which Linux does not bind: a system
/// call each.
const OTHERS: usize = 4;

impl Allocator {
    /// Carries one decision out, or drops it if the state has changed since; the policy finds a
    /// dropped demand again.
    pub(super) fn apply(&mut self, world: &mut World, action: &Action, now: Cycles) {
        let started = (self.stopwatch)();
        let &Action::Grant { runtime, kthread: to, core, victim, only_if_idle } = action;
        let Some(at) = self.ledger.topology().position(core) else { return };
        let Some(victim) = self.check_victim(world, at, victim, to.runtime, now) else { return };
        // Charged only if the claimant starts on this very core.
        let late = if victim.is_none() { self.cores[at].late.take() } else { None };
        if victim.is_none() && self.ledger.core(core) != Some(CoreState::Free) {
            // A decision before this one got it for a thread that could not be bound to another; or
            // it was taken back from a victim that had not started, and is absent.
            return;
        }
        let wanted = core;
        let Ok(core) = self.bind_somewhere(world, to, core, victim.is_none(), now) else {
            let cost = (self.stopwatch)().saturating_sub(started);
            return world.charge(to.runtime, Work::Refused, cost, now);
        };
        let Some(at) = self.ledger.topology().position(core) else { return };
        self.rank_for_core(world, to);
        let action = &Action::Grant { runtime, kthread: to, core, victim, only_if_idle };
        if let Err(error) = self.ledger.apply(action, self.nanos(now)) {
            return self.refused(world, &error, ());
        }
        match victim {
            None => {
                self.cores[at].late = late.filter(|_| core == wanted);
                self.lend_free(world, at, to, now);
            }
            Some(from) => self.begin_move(world, at, from, to, only_if_idle, now),
        }
        world.stats.apply.record(self.clock.to_ns((self.stopwatch)().saturating_sub(started)));
    }

    /// Returns the kthread that `claimant` must take the core from now: `Some(None)` if it is free.
    /// A victim that has not started cannot be asked to cede, because it has not seen its grant:
    /// the decision is dropped (`None`) until its start is overdue, and then the victim loses the
    /// core without being asked. Its start is overdue some time after it got the core: the time
    /// that the previous owner took to cede is not its fault.
    fn check_victim(
        &mut self,
        world: &mut World,
        at: usize,
        victim: Option<KthreadId>,
        claimant: RuntimeId,
        now: Cycles,
    ) -> Option<Option<KthreadId>> {
        let Some(from) = victim else { return Some(None) };
        match self.cores[at].phase {
            Phase::Running { kthread, .. } if kthread == from => Some(victim),
            Phase::Starting { kthread, .. }
                if kthread == from
                    && now.saturating_sub(self.cores[at].since)
                        > self.time_to_start(world, from, claimant, now) =>
            {
                let since = self.cores[at].since;
                self.take_back(world, at, from, now, now);
                self.cores[at].late = Some((from, since));
                Some(None)
            }
            _ => {
                world.stats.cores.not_started.add(1);
                None
            }
        }
    }

    /// Binds the thread to the core and returns it, or, if that is refused, to another free one,
    /// provided that the core `is_free` itself: the cpuset of the thread may lack one of them.
    /// Under fixed partitions the other one is of the same partition.
    fn bind_somewhere(
        &mut self,
        world: &mut World,
        to: KthreadId,
        core: CoreId,
        is_free: bool,
        now: Cycles,
    ) -> Result<CoreId, Errno> {
        let Err(error) = self.bind(world, to, core, now) else { return Ok(core) };
        if !is_free {
            return Err(error);
        }
        let others: [Option<CoreId>; OTHERS] = {
            let others = (0..).zip(&self.cores).filter(|&(at, slot)| {
                slot.id != core
                    && self.ledger.core(slot.id) == Some(CoreState::Free)
                    && self.may_be_lent(to.runtime, at)
            });
            let mut ids = others.map(|(_, slot)| slot.id);
            core::array::from_fn(|_| ids.next())
        };
        others.into_iter().flatten().find(|&other| self.bind(world, to, other, now).is_ok()).ok_or(error)
    }

    /// Binds the thread to the core unless it is bound there already: a system call of 1 us. None
    /// of a confined program is bound to a reserved core.
    fn bind(&mut self, world: &mut World, to: KthreadId, core: CoreId, now: Cycles) -> Result<(), Errno> {
        let (runtime, kthread) = world.runtimes.kthread(to);
        if runtime.confined && self.is_closed(core) {
            // Linux takes the core from its control group, now or soon.
            world.runtimes.kthread_mut(to).bound = None;
            if let Some(at) = self.ledger.topology().position(core) {
                self.remember_refused(world, to.runtime, at, now);
            }
            return Err(Errno::INVAL);
        }
        if kthread.bound == Some(core) {
            return Ok(());
        }
        let bound = self.threads.bind(runtime.pid, kthread.tid, &cpu_set([&core]));
        match bound {
            Ok(()) => {
                world.runtimes.kthread_mut(to).bound = Some(core);
                world.stats.cores.rebinds.add(1);
            }
            Err(error) => self.note_refused(world, to, core, error, now),
        }
        bound
    }

    /// Lends a free core: wakes the new owner.
    fn lend_free(&mut self, world: &mut World, at: usize, to: KthreadId, now: Cycles) {
        let core = self.cores[at].id;
        let decided = clock::now();
        self.grant(world, to, core);
        self.wake(world, to, now);
        world.trace.core(decided, core, CoreStep::Decided, HandoffKind::Wake, (to, None));
        self.cores[at].promise = Promise::None;
        self.cores[at].since = now;
        let kind = HandoffKind::Wake;
        let phase = Phase::Starting { kthread: to, kind, decided: now, woken: now, wakes: 0 };
        self.begin_phase(world, at, phase, now);
        world.stats.cores.grants.add(1);
    }

    /// Moves a core from its holder: takes it from an idle one, asks a busy one to cede.
    fn begin_move(
        &mut self,
        world: &mut World,
        at: usize,
        from: KthreadId,
        to: KthreadId,
        only_if_idle: bool,
        now: Cycles,
    ) {
        let core = self.cores[at].id;
        self.cores[at].late = None;
        let (runtime, victim) = world.runtimes.kthread(from);
        let generation = victim.generation;
        let state = &runtime.shared(from.index).state.0;
        // The load comes before the swap: a failing swap would take the cache line from a running
        // kthread.
        let claimed = state.load();
        let taken = claimed == (KthreadState::Idle, generation) && state.try_take(generation);
        let gone = claimed == (KthreadState::Parked, generation);
        if !taken && !gone && only_if_idle {
            world.stats.cores.idle_lost.add(1);
            if let Err(error) = self.ledger.cancel_move(core, self.nanos(now)) {
                self.refused(world, &error, ());
            }
            return;
        }
        self.grant(world, to, core);
        let successor = self.next_owner(world, at, from, to, now);
        let runtime = world.runtimes.get_mut(from.runtime).expect("looked up above");
        runtime.shared(from.index).grant.0.store(Grant::Cede { successor }, generation);
        runtime.groups.lose(from.index);
        let kind = if taken {
            world.stats.cores.idle_takes.add(1);
            HandoffKind::Idle
        } else if gone {
            world.stats.cores.parks.add(1);
            HandoffKind::Wake
        } else {
            runtime.stats.counters.preempted.add(1);
            world.stats.cores.preemptions.add(1);
            HandoffKind::Polling
        };
        world.trace.core(clock::now(), core, CoreStep::Decided, kind, (to, Some(from)));
        let phase = Phase::Ceding { from, to: Some(to), kind, decided: now, signalled: None };
        self.begin_phase(world, at, phase, now);
        if gone {
            // It parked without a request since the last look, and promises nothing.
            self.cores[at].promise = Promise::None;
            self.ceded(world, at, from, kind, now, now);
        }
    }

    /// Begins a tenancy: grant word, flow groups, egress polling.
    fn grant(&mut self, world: &mut World, to: KthreadId, core: CoreId) {
        let runtime = world.runtimes.get_mut(to.runtime).expect("the ledger names registered runtimes only");
        runtime.groups.gain(to.index);
        runtime.woken = false;
        runtime.held = None;
        runtime.stats.counters.grants.add(1);
        let kthread = &mut runtime.kthreads[usize::from(to.index)];
        kthread.generation = kthread.generation.next();
        kthread.may_run = true;
        kthread.mark = runtime.mark;
        world.arriving.extend(kthread.egress.take());
        let generation = kthread.generation;
        runtime.shared(to.index).grant.0.store(Grant::Run { core: core.0 }, generation);
        self.set_activity(to, Activity::Parked);
    }

    pub(super) fn set_activity(&mut self, kthread: KthreadId, activity: Activity) {
        if let Some(look) = self.observation.kthread_mut(kthread) {
            look.activity = activity;
        }
    }
}
