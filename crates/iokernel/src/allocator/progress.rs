//! Following hand-offs: state words and watchdogs.
//!
//! Owns the polling of every core that is not free, once per iteration of the loop, and the escalation: poll point, then
//! preempt signal after `cede_grace`, then eviction after `cede_deadline` (see `evict`). A state word of another generation
//! is stale and ignored.

use tailwater_sched::KthreadId;
use tailwater_sched::alloc::Activity;
use tailwater_sched::ledger::Parked;
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Cycles, KthreadState, clock};

use super::{Allocator, Phase, REWAKE_DOUBLINGS};
use crate::stats::HandoffKind;

impl Allocator {
    /// Looks at every core once and takes the next step of every hand-off.
    #[inline]
    pub(crate) fn progress(&mut self, now: Cycles) {
        for at in 0..self.cores.len() {
            match self.cores[at].phase {
                Phase::Free => {}
                Phase::Running { kthread, idle } => self.watch_running(at, kthread, idle, now),
                Phase::Starting { kthread, kind, decided, woken, wakes } => {
                    if self.alleges_started(kthread) {
                        self.started(at, kthread, kind, decided, now);
                    } else if now.saturating_sub(decided) > self.timing.start_deadline {
                        self.take_back(at, kthread, now);
                        self.core_fell_free(self.cores[at].id, now);
                    } else if now.saturating_sub(woken) > self.timing.rewake << wakes.min(REWAKE_DOUBLINGS) {
                        self.lot.slot(self.runtimes.kthread(kthread).1.slot).rouse();
                        self.stats.cores.rewakes.add(1);
                        let wakes = wakes + 1;
                        self.cores[at].phase = Phase::Starting { kthread, kind, decided, woken: now, wakes };
                    }
                }
                Phase::Ceding { from, to, kind, decided, signalled } => {
                    if self.alleged(from) == Some(KthreadState::Parked) {
                        self.ceded(at, from, kind, decided, now);
                    } else if now.saturating_sub(decided) > self.timing.deadline {
                        // This thread itself may have been away from before the grace time to after the deadline. Without a signal, code
                        // that does not poll would never park, and its kthread never be lent a core again.
                        if !signalled {
                            self.signal(from);
                        }
                        self.evict(at, from, decided, now);
                    } else if !signalled && now.saturating_sub(decided) > self.timing.grace {
                        self.signal(from);
                        let kind = HandoffKind::Signal;
                        let core = self.cores[at].id;
                        self.trace.core(clock::now(), core, CoreStep::Signalled, kind, (from, None));
                        self.cores[at].phase = Phase::Ceding { from, to, kind, decided, signalled: true };
                    }
                }
            }
        }
        if !self.withdrawn.is_empty() {
            self.watch_withdrawn(now);
        }
    }

    /// What a kthread says of the present tenancy; `None` while it speaks of another.
    #[inline(always)]
    fn alleged(&self, id: KthreadId) -> Option<KthreadState> {
        let (runtime, kthread) = self.runtimes.kthread(id);
        let (state, generation) = runtime.shared(id.index).state.0.load();
        (generation == kthread.generation).then_some(state)
    }

    /// Any word of the new generation means that it ran: it may have parked again before this look.
    #[inline(always)]
    fn alleges_started(&self, id: KthreadId) -> bool {
        self.alleged(id).is_some()
    }

    #[inline(always)]
    fn watch_running(&mut self, at: usize, kthread: KthreadId, idle: bool, now: Cycles) {
        match self.alleged(kthread) {
            Some(KthreadState::Running | KthreadState::Taken) | None if !idle => {}
            Some(KthreadState::Idle) if idle => {}
            Some(KthreadState::Parked) => self.parked(at, kthread, now),
            Some(KthreadState::Idle) => {
                self.cores[at].phase = Phase::Running { kthread, idle: true };
                self.set_activity(kthread, Activity::Idle);
                // What reached its queues since the last look decides whether it may lose the core.
                self.look_at(kthread.runtime, now);
                self.core_fell_free(self.cores[at].id, now);
            }
            Some(KthreadState::Running | KthreadState::Taken) | None => {
                self.cores[at].phase = Phase::Running { kthread, idle: false };
                self.set_activity(kthread, Activity::Running);
            }
        }
    }

    fn started(&mut self, at: usize, kthread: KthreadId, kind: HandoffKind, decided: Cycles, now: Cycles) {
        self.stats.handoff(kind).running.record(self.clock.to_ns(now.saturating_sub(decided)));
        self.trace.core(clock::now(), self.cores[at].id, CoreStep::Running, kind, (kthread, None));
        self.runtimes.kthread_mut(kthread).no_starts = 0;
        self.set_activity(kthread, Activity::Running);
        self.cores[at].phase = Phase::Running { kthread, idle: false };
        // It may idle or have parked already.
        self.watch_running(at, kthread, false, now);
    }

    /// A kthread gave its core up of its own accord.
    fn parked(&mut self, at: usize, kthread: KthreadId, now: Cycles) {
        let core = self.cores[at].id;
        self.trace.core(clock::now(), core, CoreStep::Ceded, HandoffKind::Wake, (kthread, None));
        self.account_core_time(at, kthread, now);
        self.stats.cores.parks.add(1);
        self.leave(kthread);
        if let Err(error) = self.ledger.release(kthread, self.nanos(now)) {
            return self.refused(&error, ());
        }
        self.cores[at].phase = Phase::Free;
        self.look_at(kthread.runtime, now);
        self.note_timer(kthread.runtime, now);
        self.core_fell_free(core, now);
    }

    /// A kthread did as it was asked.
    pub(super) fn ceded(
        &mut self,
        at: usize,
        from: KthreadId,
        kind: HandoffKind,
        decided: Cycles,
        now: Cycles,
    ) {
        let core = self.cores[at].id;
        self.trace.core(clock::now(), core, CoreStep::Ceded, kind, (from, None));
        self.stats.handoff(kind).ceded.record(self.clock.to_ns(now.saturating_sub(decided)));
        self.account_core_time(at, from, now);
        self.leave(from);
        if let Some(runtime) = self.runtimes.get_mut(from.runtime) {
            runtime.evictions = 0;
        }
        let became = self.ledger.handle_parked(from, self.nanos(now));
        self.follow(at, became, kind, decided, now);
        self.look_at(from.runtime, now);
        self.note_timer(from.runtime, now);
        if matches!(became, Ok(Parked::Freed(_))) {
            self.core_fell_free(core, now);
        }
    }

    /// What the ledger made of a core that was given up or taken.
    pub(super) fn follow(
        &mut self,
        at: usize,
        became: Result<Parked, tailwater_sched::ledger::TransitionError>,
        kind: HandoffKind,
        decided: Cycles,
        now: Cycles,
    ) {
        self.cores[at].since = now;
        self.cores[at].phase = match became {
            Ok(Parked::Freed(_)) => Phase::Free,
            Ok(Parked::HandedOn { to, .. }) => {
                Phase::Starting { kthread: to, kind, decided, woken: now, wakes: 0 }
            }
            Err(error) => return self.refused(&error, ()),
        };
    }

    /// The kthread is off its core: it gets no more flows, and its egress ring is polled until it is empty.
    pub(super) fn leave(&mut self, kthread: KthreadId) {
        if let Some(runtime) = self.runtimes.get_mut(kthread.runtime) {
            runtime.groups.lose(kthread.index);
            runtime.kthreads[usize::from(kthread.index)].may_run = false;
        }
        self.set_activity(kthread, Activity::Parked);
    }

    pub(super) fn signal(&mut self, from: KthreadId) {
        let (runtime, kthread) = self.runtimes.kthread(from);
        // Fails when the thread is dead: its socket will tell.
        let _ = self.threads.preempt(runtime.pid, kthread.tid);
        self.stats.cores.signals.add(1);
    }

    pub(super) fn account_core_time(&mut self, at: usize, kthread: KthreadId, now: Cycles) {
        let ns = self.clock.to_ns(now.saturating_sub(self.cores[at].since));
        if let Some(runtime) = self.runtimes.get(kthread.runtime) {
            runtime.stats.counters.core_ns.add(ns);
        }
        self.cores[at].since = now;
    }
}
