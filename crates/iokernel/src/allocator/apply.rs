//! Carrying a decision out: binding, the grant word, the request to cede.
//!
//! Owns the order of steps of a hand-off: bind the new thread to the core, if it last ran elsewhere; enter the decision
//! into the ledger; take the core from an idle victim; write the new owner's grant; then tell the victim to cede to it, or
//! wake the new owner when nobody is there. Without a rebinding the hand-off makes no system call.

use tailwater_sched::alloc::{Action, Activity};
use tailwater_sched::{CoreId, KthreadId};
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Cycles, Grant, KthreadState, clock};

use super::{Allocator, Phase};
use crate::machine::cpu_set;
use crate::stats::HandoffKind;

impl Allocator {
    /// Carries one decision out, or drops it when the world has moved on; the policy finds a dropped demand again.
    pub(super) fn apply(&mut self, action: &Action, now: Cycles) {
        let started = clock::now();
        let &Action::Grant { runtime, kthread: to, core, victim, only_if_idle } = action;
        let Some(at) = self.ledger.topology().position(core) else { return };
        let Some(victim) = self.check_victim(at, victim, now) else { return };
        let action = &Action::Grant { runtime, kthread: to, core, victim, only_if_idle };
        if self.runtimes.get(to.runtime).is_none_or(|runtime| runtime.doomed) || !self.bind(to, core) {
            return;
        }
        if let Err(error) = self.ledger.apply(action, self.nanos(now)) {
            return self.refused(&error, ());
        }
        match victim {
            None => self.lend_free(at, to, now),
            Some(from) => self.begin_move(at, from, to, only_if_idle, now),
        }
        self.stats.apply.record(self.clock.to_ns(clock::now().saturating_sub(started)));
    }

    /// Whom the core is to be taken from now: `Some(None)` when nobody has it any more. A victim that has not started cannot
    /// be told to cede, for it has not seen the tenancy: the decision is dropped (`None`) until a kthread that polls would
    /// have been evicted, and then the victim loses the core without being asked.
    fn check_victim(
        &mut self,
        at: usize,
        victim: Option<KthreadId>,
        now: Cycles,
    ) -> Option<Option<KthreadId>> {
        let Some(from) = victim else { return Some(None) };
        match self.cores[at].phase {
            Phase::Running { kthread, .. } if kthread == from => Some(victim),
            Phase::Starting { kthread, decided, .. }
                if kthread == from && now.saturating_sub(decided) > self.timing.deadline =>
            {
                self.take_back(at, from, now);
                Some(None)
            }
            _ => {
                self.stats.cores.not_started.add(1);
                None
            }
        }
    }

    /// Binds the thread to the core unless it is bound there already: the only system call of a hand-off, 1 us.
    fn bind(&mut self, to: KthreadId, core: CoreId) -> bool {
        let (runtime, kthread) = self.runtimes.kthread(to);
        if kthread.bound == Some(core) {
            return true;
        }
        match self.threads.bind(runtime.pid, kthread.tid, &cpu_set([&core])) {
            Ok(()) => {
                self.runtimes.kthread_mut(to).bound = Some(core);
                self.stats.cores.rebinds.add(1);
                true
            }
            Err(error) => {
                // The thread is gone (its process will follow), or the administrator took the core out of its cpuset.
                tracing::debug!(%to, %core, %error, "cannot bind");
                self.stats.cores.rebind_failures.add(1);
                false
            }
        }
    }

    /// Nobody runs on the core: wake the new owner.
    fn lend_free(&mut self, at: usize, to: KthreadId, now: Cycles) {
        let core = self.cores[at].id;
        self.trace.core(clock::now(), core, CoreStep::Decided, HandoffKind::Wake, (to, None));
        self.grant(to, core);
        let (_, kthread) = self.runtimes.kthread(to);
        self.lot.slot(kthread.slot).wake();
        let slot = &mut self.cores[at];
        slot.since = now;
        slot.phase =
            Phase::Starting { kthread: to, kind: HandoffKind::Wake, decided: now, woken: now, wakes: 0 };
        self.stats.cores.grants.add(1);
    }

    /// Somebody runs there: take the core if it idles, ask for it if not.
    fn begin_move(&mut self, at: usize, from: KthreadId, to: KthreadId, only_if_idle: bool, now: Cycles) {
        let core = self.cores[at].id;
        let (runtime, victim) = self.runtimes.kthread(from);
        let generation = victim.generation;
        let state = &runtime.shared(from.index).state.0;
        // Looked at before it is swapped: a failing swap would pull the line away from a running kthread.
        let alleged = state.load();
        let taken = alleged == (KthreadState::Idle, generation) && state.try_take(generation);
        let gone = alleged == (KthreadState::Parked, generation);
        if !taken && !gone && only_if_idle {
            self.stats.cores.idle_lost.add(1);
            if let Err(error) = self.ledger.cancel_move(core, self.nanos(now)) {
                self.refused(&error, ());
            }
            return;
        }
        self.grant(to, core);
        let next = Some(self.runtimes.kthread(to).1.slot);
        let runtime = self.runtimes.get_mut(from.runtime).expect("looked up above");
        runtime.shared(from.index).grant.0.store(Grant::Cede { next }, generation);
        runtime.groups.lose(from.index);
        let kind = if taken {
            self.stats.cores.idle_takes.add(1);
            HandoffKind::Idle
        } else if gone {
            self.stats.cores.parks.add(1);
            HandoffKind::Wake
        } else {
            runtime.stats.counters.preempted.add(1);
            self.stats.cores.preemptions.add(1);
            HandoffKind::Polling
        };
        self.trace.core(clock::now(), core, CoreStep::Decided, kind, (to, Some(from)));
        self.cores[at].phase = Phase::Ceding { from, to: Some(to), kind, decided: now, signalled: false };
        if gone {
            // It parked of its own accord since we last looked, and wakes nobody.
            self.ceded(at, from, kind, now, now);
            self.lot.slot(self.runtimes.kthread(to).1.slot).wake();
        }
    }

    /// Begins a tenancy: grant word, flow groups, egress polling.
    fn grant(&mut self, to: KthreadId, core: CoreId) {
        let runtime = self.runtimes.get_mut(to.runtime).expect("the ledger names registered runtimes only");
        runtime.groups.gain(to.index);
        runtime.woken = false;
        runtime.stats.counters.grants.add(1);
        let kthread = &mut runtime.kthreads[usize::from(to.index)];
        kthread.generation = kthread.generation.next();
        kthread.may_run = true;
        self.arriving.extend(kthread.egress.take());
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
