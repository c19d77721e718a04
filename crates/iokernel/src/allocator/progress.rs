//! Following hand-offs: state words, watchdogs, eviction.
//!
//! Owns the polling of every core that is not free, once per iteration of the loop, and the escalation:
//! poll point, then preempt signal after `cede_grace`, then eviction by affinity after `cede_deadline`. A state word of
//! another generation is stale and ignored.

use tailwater_sched::KthreadId;
use tailwater_sched::alloc::Activity;
use tailwater_sched::ledger::Parked;
use tailwater_shm::{Cycles, Grant, KthreadState};

use super::{Allocator, Evicted, NO_START_DOUBLINGS, Phase, REWAKE_DOUBLINGS};
use crate::runtime::EndReason;
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
                        self.lot.slot(self.runtimes.kthread(kthread).1.slot).wake();
                        self.stats.cores.rewakes.add(1);
                        let wakes = wakes + 1;
                        self.cores[at].phase = Phase::Starting { kthread, kind, decided, woken: now, wakes };
                    }
                }
                Phase::Ceding { from, to, kind, decided, signalled } => {
                    if self.alleged(from) == Some(KthreadState::Parked) {
                        self.ceded(at, from, kind, decided, now);
                    } else if now.saturating_sub(decided) > self.timing.deadline {
                        self.evict(at, from, decided, now);
                    } else if !signalled && now.saturating_sub(decided) > self.timing.grace {
                        self.signal(from);
                        let kind = HandoffKind::Signal;
                        self.cores[at].phase = Phase::Ceding { from, to, kind, decided, signalled: true };
                    }
                }
            }
        }
        if !self.evicted.is_empty() {
            self.watch_evicted(now);
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
        self.runtimes.kthread_mut(kthread).no_starts = 0;
        self.set_activity(kthread, Activity::Running);
        self.cores[at].phase = Phase::Running { kthread, idle: false };
        // It may idle or have parked already.
        self.watch_running(at, kthread, false, now);
    }

    /// A kthread gave its core up of its own accord.
    fn parked(&mut self, at: usize, kthread: KthreadId, now: Cycles) {
        let core = self.cores[at].id;
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
    fn follow(
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
    fn leave(&mut self, kthread: KthreadId) {
        if let Some(runtime) = self.runtimes.get_mut(kthread.runtime) {
            runtime.groups.lose(kthread.index);
            runtime.kthreads[usize::from(kthread.index)].may_run = false;
        }
        self.set_activity(kthread, Activity::Parked);
    }

    fn signal(&mut self, from: KthreadId) {
        let (runtime, kthread) = self.runtimes.kthread(from);
        // Fails when the thread is dead: its socket will tell.
        let _ = self.threads.preempt(runtime.pid, kthread.tid);
        self.stats.cores.signals.add(1);
    }

    /// The last resort: moves the thread to unmanaged cores and gives its core to whom it was promised.
    fn evict(&mut self, at: usize, from: KthreadId, decided: Cycles, now: Cycles) {
        let core = self.cores[at].id;
        let (runtime, kthread) = self.runtimes.kthread(from);
        runtime.shared(from.index).grant.0.store(Grant::Cede { next: None }, kthread.generation);
        let _ = self.threads.bind(runtime.pid, kthread.tid, &self.unmanaged);
        self.account_core_time(at, from, now);
        self.set_activity(from, Activity::Parked);
        self.stats.cores.evictions.add(1);
        self.stats.handoff(HandoffKind::Evict).ceded.record(self.clock.to_ns(now.saturating_sub(decided)));
        let became = self.ledger.evict(from, self.nanos(now));
        self.evicted.push(Evicted { kthread: from, never_started: false, not_before: now });
        self.look_at(from.runtime, now);
        self.follow(at, became, HandoffKind::Evict, decided, now);
        if let Ok(Parked::HandedOn { to, .. }) = became {
            self.lot.slot(self.runtimes.kthread(to).1.slot).wake();
        }
        let limit = self.max_evictions;
        if let Some(runtime) = self.runtimes.get_mut(from.runtime) {
            runtime.groups.lose(from.index);
            runtime.kthreads[usize::from(from.index)].bound = None;
            runtime.stats.counters.evictions.add(1);
            runtime.evictions += 1;
            let times = runtime.evictions;
            if times >= limit {
                self.doom(from.runtime, EndReason::NeverYields(times));
            }
        }
        if matches!(became, Ok(Parked::Freed(_))) {
            self.core_fell_free(core, now);
        }
    }

    /// A kthread never started on the core it was lent (stopped by a debugger, starved by another program): the core goes to
    /// somebody else, and the kthread is left alone for a while. No offence.
    pub(super) fn take_back(&mut self, at: usize, kthread: KthreadId, now: Cycles) {
        let (runtime, line) = self.runtimes.kthread(kthread);
        runtime.shared(kthread.index).grant.0.store(Grant::Cede { next: None }, line.generation);
        let pause = self.timing.no_start_pause << line.no_starts.min(NO_START_DOUBLINGS);
        self.runtimes.kthread_mut(kthread).no_starts += 1;
        self.stats.cores.no_starts.add(1);
        let became = self.ledger.evict(kthread, self.nanos(now));
        self.evicted.push(Evicted { kthread, never_started: true, not_before: now.saturating_add(pause) });
        self.look_at(kthread.runtime, now);
        if let Some(runtime) = self.runtimes.get_mut(kthread.runtime) {
            runtime.groups.lose(kthread.index);
        }
        self.follow(at, became, HandoffKind::Evict, now, now);
    }

    /// Evicted kthreads that park are normal again.
    fn watch_evicted(&mut self, now: Cycles) {
        let mut i = 0;
        while i < self.evicted.len() {
            let Evicted { kthread, never_started, not_before } = self.evicted[i];
            let (runtime, line) = self.runtimes.kthread(kthread);
            let (state, generation) = runtime.shared(kthread.index).state.0.load();
            let parked = state == KthreadState::Parked && (never_started || generation == line.generation);
            if !parked || now < not_before {
                i += 1;
                continue;
            }
            self.evicted.swap_remove(i);
            self.leave(kthread);
            if let Err(error) = self.ledger.readmit(kthread, self.nanos(now)) {
                self.refused(&error, ());
            }
        }
    }

    fn account_core_time(&mut self, at: usize, kthread: KthreadId, now: Cycles) {
        let ns = self.clock.to_ns(now.saturating_sub(self.cores[at].since));
        if let Some(runtime) = self.runtimes.get(kthread.runtime) {
            runtime.stats.counters.core_ns.add(ns);
        }
        self.cores[at].since = now;
    }
}
