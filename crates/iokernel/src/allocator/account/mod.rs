//! Entries into the account of cores (see [`tailwater_stats::account`]): the time of each phase,
//! and samples of what busy kthreads do.

#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering;

use tailwater_sched::KthreadId;
use tailwater_sched::ledger::RuntimeClass;
use tailwater_shm::Cycles;
use tailwater_shm::layout::{IN_STACK, IN_THREAD};
use tailwater_stats::account::CoreAccount;
use tailwater_stats::{Counter, HandoffKind};

use super::Allocator;
use super::phase::Phase;
use crate::world::World;

impl Allocator {
    /// Begins a phase of a core, and enters the time of the phase that ends. An absent core that
    /// becomes free leaves the ledger, before the policy sees it.
    pub(super) fn begin_phase(&mut self, world: &World, at: usize, phase: Phase, now: Cycles) {
        self.enter_time(world, at, now);
        self.cores[at].phase = phase;
        self.observation.set_hold(at, self.hold_of(at));
        if self.cores[at].absent && matches!(phase, Phase::Free) {
            self.withdraw(world, self.cores[at].id);
        }
    }

    /// Enters the time of all cores up to now.
    pub(super) fn enter_times(&mut self, world: &World, now: Cycles) {
        for at in 0..self.cores.len() {
            self.enter_time(world, at, now);
        }
    }

    fn enter_time(&mut self, world: &World, at: usize, now: Cycles) {
        let slot = &self.cores[at];
        let Some(account) = world.stats.account().get(at) else { return };
        let ns = self.clock.to_ns(now.saturating_sub(slot.entered));
        self.part(account, slot.phase).add(ns);
        self.cores[at].entered = now.max(self.cores[at].entered);
    }

    /// Returns the counter for the time of this phase.
    fn part<'a>(&self, account: &'a CoreAccount, phase: Phase) -> &'a Counter {
        let ns = &account.ns;
        match phase {
            Phase::Free => &ns.free,
            Phase::Starting { kind: HandoffKind::Wake, .. } => &ns.wake,
            Phase::Starting { .. } => &ns.start,
            // Until the core was given up, its owner ran: `enter_cede` finds out when that was.
            Phase::Ceding { from, kind: HandoffKind::Polling | HandoffKind::Signal, .. } => {
                self.part(account, Phase::Running { kthread: from, idle: false })
            }
            Phase::Ceding { .. } => &ns.cede,
            Phase::Running { kthread, idle } => match (self.class_of(kthread.runtime), idle) {
                (RuntimeClass::LatencyCritical, false) => &ns.service,
                (RuntimeClass::LatencyCritical, true) => &ns.service_idle,
                (RuntimeClass::BestEffort, false) => &ns.batch,
                (RuntimeClass::BestEffort, true) => &ns.batch_idle,
            },
        }
    }

    /// Enters the time of a core whose owner `from` was seen parked: as its own up to the time at
    /// which it states that it gave the core up, and as that of the hand-off from there. A false
    /// statement counts as one between the last entry and now, so it moves time only between the
    /// program's own part and its hand-off. Also records when a busy owner reached its poll point.
    pub(super) fn enter_cede(
        &mut self,
        world: &World,
        at: usize,
        from: KthreadId,
        kind: HandoffKind,
        decided: Cycles,
        now: Cycles,
    ) {
        let (runtime, _) = world.runtimes.kthread(from);
        // Relaxed: published by the state word, whose `Parked` was just read.
        let ceded = runtime.shared(from.index).status.ceded.load(Ordering::Relaxed);
        let stated = ceded.min(now);
        if kind == HandoffKind::Polling && stated >= decided {
            world.stats.handoff(kind).gave_up.record(self.clock.to_ns(stated - decided));
        }
        let ceded = stated.max(self.cores[at].entered);
        self.enter_time(world, at, ceded);
        let Some(account) = world.stats.account().get(at) else { return };
        account.ns.cede.add(self.clock.to_ns(now.saturating_sub(ceded)));
        self.cores[at].entered = now.max(ceded);
    }

    /// Enters all times up to now, and one sample of each busy kthread. Called at the policy's
    /// ticks, which come at their own pace: one that came with an event would sample the same
    /// moment of every tenancy.
    pub(super) fn sample(&mut self, world: &World, now: Cycles) {
        self.enter_times(world, now);
        for (slot, account) in self.cores.iter().zip(world.stats.account()) {
            let Phase::Running { kthread, idle: false } = slot.phase else { continue };
            let (runtime, _) = world.runtimes.kthread(kthread);
            // Relaxed: a sample. The look has just read the same line.
            let doing = runtime.shared(kthread.index).status.doing.load(Ordering::Relaxed);
            let samples = account.samples(self.class_of(kthread.runtime));
            let counter = match doing {
                IN_THREAD => &samples.thread,
                IN_STACK => &samples.stack,
                _ => &samples.scheduler,
            };
            counter.add(1);
        }
    }
}
