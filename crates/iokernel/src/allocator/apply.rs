//! Carrying a decision out: binding, the grant word, the request to cede.
//!
//! Owns the order of steps of a hand-off: bind the new thread to the core, if it last ran
//! elsewhere; take the core from an idle victim; enter the decision into the ledger; write the new
//! owner's grant; then ask the victim to cede, or wake the new owner of a free core. A new owner
//! that sleeps is woken by the victim, or by the IOKernel when the victim is seen parked
//! ([`super::board`]). Without a rebinding and such a wake the hand-off makes no system call. Owns
//! as well what follows when Linux refuses a core to a thread, below.
//!
//! The policy has seen in the observation what could prevent its decision. Two things cannot be
//! there: Linux may not bind the thread to the core, and a victim that may lose its core only while
//! it idles may find work first. Either is found out before the victim, the ledger or a grant has
//! changed; the new thread may have been bound and ranked for the core by then. A victim that does
//! not hold the core, or that keeps it for now ([`Hold`](tailwater_sched::alloc::Hold)), loses
//! nothing.
//!
//! # Cores to which Linux does not bind a runtime's threads
//! The cpuset of a program may lack managed cores. A core that was refused to one of its threads is
//! lent to the program no more for ten seconds ([`refusal`](super::phase::Bounds::refusal)): the
//! policy chooses another one at the next look. A cpuset that was widened meanwhile takes effect
//! after that time, when [`super::look`] forgets the refusals. The log names a program once, at its
//! first refusal that comes a second or more after another program was named. Each attempt is a
//! system call of 1 us, which is charged.
//!
//! | what a program does | what happens |
//! |---|---|
//! | has its threads in a cpuset without some managed cores | it is lent the others; one attempt for each lacking core every ten seconds |
//! | has threads of one program in several cpusets | a core that is refused to one of them is lent to none |
//! | moves itself from cpuset to cpuset | charged attempts, and cores that it could have and is not lent |

use rustix::io::Errno;
use tailwater_host::cpu_set;
use tailwater_sched::alloc::{Action, Activity};
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Cycles, Grant, KthreadState, NextOwner};
use tailwater_stats::HandoffKind;

use super::Allocator;
use super::phase::Phase;
use crate::tenant::Work;
use crate::world::World;

impl Allocator {
    /// Carries one decision out. If that is not possible, the policy finds the demand again.
    pub(super) fn apply(&mut self, world: &mut World, action: &Action, now: Cycles) {
        let started = (self.stopwatch)();
        let &Action::Grant { runtime, kthread: to, core, victim, only_if_idle } = action;
        let Some(at) = self.ledger.topology().position(core) else { return };
        if victim.is_some_and(|from| !self.may_lose(at, from, runtime, now)) {
            return;
        }
        let has_started = matches!(self.cores[at].phase, Phase::Running { .. });
        // The look comes before the system calls, which would be for nothing.
        if let Some(from) = victim
            && only_if_idle
            && has_started
            && is_busy(world, from)
        {
            return self.lose_idle(world, from, started, now);
        }
        if let Err(error) = self.bind(world, to, core) {
            return self.drop_unbound(world, action, at, error, started, now);
        }
        self.rank_for_core(world, to);
        let (mut late, mut taken) = (None, None);
        if let Some(from) = victim {
            if !has_started {
                // Its start is overdue. It has not seen its grant, and cannot be asked to cede.
                let since = self.cores[at].since;
                late = Some((from, since));
                self.take_back(world, at, from, now, now);
                let since = since.max(now.saturating_sub(self.bounds.longest_wait));
                self.charge_late_service(world, at, from.runtime, Some(runtime), since, now);
            } else {
                let Some(kind) = take_from(world, from, only_if_idle) else {
                    return self.lose_idle(world, from, started, now);
                };
                taken = Some((from, kind));
            }
        }
        let victim = taken.map(|(from, _)| from);
        let action = &Action::Grant { runtime, kthread: to, core, victim, only_if_idle };
        if let Err(error) = self.ledger.apply(action, self.nanos(now)) {
            if let Some((from, HandoffKind::Idle)) = taken {
                // It waits for the request to cede that follows.
                world.runtimes.ask_to_cede(from);
                self.begin_phase(world, at, Phase::leaving(from, now), now);
            } else if late.is_some() {
                self.announce(at);
            }
            return self.refused(world, &error, ());
        }
        match taken {
            None => self.lend_free(world, at, to, late, now),
            Some((from, kind)) => self.begin_move(world, at, from, to, kind, now),
        }
        world.stats.apply.record(self.clock.to_ns((self.stopwatch)().saturating_sub(started)));
    }

    /// Returns whether `from` holds the core at this position and can lose it to `claimant` now.
    fn may_lose(&self, at: usize, from: KthreadId, claimant: RuntimeId, now: Cycles) -> bool {
        match self.cores[at].phase {
            Phase::Running { kthread, .. } => kthread == from,
            Phase::Starting { kthread, .. } => kthread == from && self.view(now).yields(at, claimant),
            Phase::Free | Phase::Ceding { .. } => false,
        }
    }

    /// Drops a decision because the idle holder of the core has found work, and pays for it.
    fn lose_idle(&self, world: &mut World, from: KthreadId, started: Cycles, now: Cycles) {
        world.stats.cores.idle_lost.add(1);
        world.charge(from.runtime, Work::Refused, (self.stopwatch)().saturating_sub(started), now);
    }

    /// Drops a decision because Linux does not bind the new owner to the core. A free one is
    /// offered to others, and the runtime's demand counts as not yet seen, so that the next look
    /// finds another core for it. Neither where the thread is gone, which would be tried again at
    /// once.
    fn drop_unbound(
        &mut self,
        world: &mut World,
        action: &Action,
        at: usize,
        error: Errno,
        started: Cycles,
        now: Cycles,
    ) {
        let &Action::Grant { runtime, kthread: to, victim, .. } = action;
        self.note_refused(world, to, at, error, now);
        if victim.is_none()
            && error != Errno::SRCH
            && let Some(runtime) = world.runtimes.get_mut(runtime)
        {
            runtime.woken = None;
            self.announce(at);
        }
        world.charge(runtime, Work::Refused, (self.stopwatch)().saturating_sub(started), now);
    }

    /// Remembers that Linux does not bind a thread of the runtime to a core. A thread that is gone
    /// shows nothing about cores.
    pub(super) fn note_refused(
        &mut self,
        world: &mut World,
        kthread: KthreadId,
        at: usize,
        error: Errno,
        now: Cycles,
    ) {
        let (id, core) = (kthread.runtime, self.cores[at].id);
        tracing::debug!(%kthread, %core, %error, "cannot bind");
        world.stats.cores.rebind_failures.add(1);
        let Some(runtime) = world.runtimes.get_mut(id).filter(|_| error != Errno::SRCH) else { return };
        self.observation.refuse(id, at);
        let end = now.saturating_add(self.bounds.refusal);
        let end = *runtime.refused_cores.forget_at.get_or_insert(end);
        self.earliest_timer = self.earliest_timer.min(end);
        let may_warn = now >= self.next_warning;
        if may_warn && !core::mem::replace(&mut runtime.refused_cores.has_warned, true) {
            self.next_warning = now.saturating_add(self.bounds.warning);
            let name = &runtime.stats.name;
            if error == Errno::PERM {
                tracing::warn!(
                    name, %core, %error,
                    "Linux does not let this IOKernel bind a thread of a program, which has got capabilities that the \
                     IOKernel lacks: it is not lent the core; give the IOKernel CAP_SYS_NICE, or take the capabilities \
                     from the program"
                );
            } else {
                tracing::warn!(
                    name, %core, %error,
                    "Linux does not let a program have a managed core: it is lent the others; give its control group \
                     all managed cores (cpuset.cpus, AllowedCPUs)"
                );
            }
        }
    }

    /// Binds the thread to the core unless it is bound there already: a system call of 1 us.
    fn bind(&mut self, world: &mut World, to: KthreadId, core: CoreId) -> Result<(), Errno> {
        let (runtime, kthread) = world.runtimes.kthread(to);
        if kthread.bound == Some(core) {
            return Ok(());
        }
        self.threads.bind(runtime.pid, kthread.tid, &cpu_set([&core]))?;
        world.runtimes.kthread_mut(to).bound = Some(core);
        world.stats.cores.rebinds.add(1);
        Ok(())
    }

    /// Lends a free core: wakes the new owner, which has waited for the kthread that is `late`.
    fn lend_free(
        &mut self,
        world: &mut World,
        at: usize,
        to: KthreadId,
        late: Option<(KthreadId, Cycles)>,
        now: Cycles,
    ) {
        let core = self.cores[at].id;
        self.grant(world, to, core);
        self.wake(world, to, now);
        // As of `now`, as what follows in this iteration: the times of a core never go back.
        world.trace.core(now, core, CoreStep::Decided, HandoffKind::Wake, (to, None));
        self.cores[at].since = now;
        let kind = HandoffKind::Wake;
        let phase = Phase::Starting { kthread: to, kind, decided: now, woken: now, promised: false, late };
        self.begin_phase(world, at, phase, now);
        world.stats.cores.grants.add(1);
    }

    /// Moves a core from its holder, which is asked to cede; `kind` says what that did when the
    /// core was taken from it.
    fn begin_move(
        &mut self,
        world: &mut World,
        at: usize,
        from: KthreadId,
        to: KthreadId,
        kind: HandoffKind,
        now: Cycles,
    ) {
        let core = self.cores[at].id;
        self.grant(world, to, core);
        let successor = self.next_owner(world, from, to, now);
        let runtime = world.runtimes.runtime_of(from);
        let generation = runtime.kthreads[usize::from(from.index)].generation;
        runtime.shared(from.index).grant.0.store(Grant::Cede { successor }, generation);
        runtime.groups.lose(from.index);
        let counters = &world.stats.cores;
        match kind {
            HandoffKind::Idle => counters.idle_takes.add(1),
            HandoffKind::Wake => counters.parks.add(1),
            _ => {
                runtime.stats.counters.preempted.add(1);
                counters.preemptions.add(1);
            }
        }
        world.trace.core(now, core, CoreStep::Decided, kind, (to, Some(from)));
        // One that has parked without a request since the last look promises nothing.
        let asked = matches!(successor, NextOwner::AtBoard { .. }) && kind != HandoffKind::Wake;
        let phase = Phase::Ceding { from, to: Some(to), kind, decided: now, signalled: None, asked };
        self.begin_phase(world, at, phase, now);
        if kind == HandoffKind::Wake {
            self.ceded(world, at, from, kind, now, now);
        }
    }

    /// Begins a tenancy: grant word, flow groups, egress polling.
    fn grant(&mut self, world: &mut World, to: KthreadId, core: CoreId) {
        let runtime = world.runtimes.runtime_of(to);
        runtime.groups.gain(to.index);
        runtime.woken = None;
        runtime.held = None;
        runtime.stats.counters.grants.add(1);
        let kthread = &mut runtime.kthreads[usize::from(to.index)];
        kthread.generation = kthread.generation.next();
        kthread.may_run = true;
        kthread.fingerprint = runtime.fingerprint;
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

/// Returns whether the holder of a core neither idles nor has parked.
fn is_busy(world: &World, from: KthreadId) -> bool {
    let (runtime, victim) = world.runtimes.kthread(from);
    let (state, generation) = runtime.shared(from.index).state.0.load();
    let is_free = matches!(state, KthreadState::Idle | KthreadState::Parked);
    !is_free || generation != victim.generation
}

/// Takes the core from its holder if that idles; returns how the hand-off begins: from an idle
/// holder, from one that has parked unasked, or from a busy one. `None` if the holder is busy and
/// may lose the core `only_if_idle`.
fn take_from(world: &World, from: KthreadId, only_if_idle: bool) -> Option<HandoffKind> {
    let (runtime, victim) = world.runtimes.kthread(from);
    let (state, generation) = (&runtime.shared(from.index).state.0, victim.generation);
    // The load comes before the swap: a failing swap would take the cache line from a running
    // kthread.
    let seen = state.load();
    if seen == (KthreadState::Idle, generation) && state.try_take(generation) {
        return Some(HandoffKind::Idle);
    }
    if seen == (KthreadState::Parked, generation) {
        return Some(HandoffKind::Wake);
    }
    (!only_if_idle).then_some(HandoffKind::Polling)
}
