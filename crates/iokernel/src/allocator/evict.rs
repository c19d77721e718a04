//! Kthreads without a core that are not to be lent one: moved off it by force, or late to start on it.
//!
//! Owns the list of withdrawn kthreads and their way back.
//!
//! | how | left alone until |
//! |---|---|
//! | `ByForce`: it did not cede and was moved to unmanaged cores | it parks |
//! | `BeforeStart`: it was not seen running in the tenancy that was taken back (stopped, or starved by another program) | a pause has passed; no offence |
//! | `Late`: it began that tenancy after all | it cedes as anybody must: signal, then force |

use tailwater_sched::KthreadId;
use tailwater_sched::alloc::Activity;
use tailwater_sched::ledger::Parked;
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Cycles, Grant, KthreadState, clock};

use super::{Allocator, NO_START_DOUBLINGS};
use crate::runtime::EndReason;
use crate::stats::HandoffKind;

/// A kthread that may be lent nothing for now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Withdrawn {
    pub(super) kthread: KthreadId,
    how: How,
    not_before: Cycles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    ByForce,
    BeforeStart,
    Late { since: Cycles, signalled: bool },
}

impl Allocator {
    /// The last resort: moves the thread to unmanaged cores and gives its core to whom it was promised.
    pub(super) fn evict(&mut self, at: usize, from: KthreadId, decided: Cycles, now: Cycles) {
        let core = self.cores[at].id;
        let (runtime, kthread) = self.runtimes.kthread(from);
        runtime.shared(from.index).grant.0.store(Grant::Cede { next: None }, kthread.generation);
        self.trace.core(clock::now(), core, CoreStep::Ceded, HandoffKind::Evict, (from, None));
        self.account_core_time(at, from, now);
        self.set_activity(from, Activity::Parked);
        self.stats.handoff(HandoffKind::Evict).ceded.record(self.clock.to_ns(now.saturating_sub(decided)));
        let became = self.ledger.evict(from, self.nanos(now));
        self.withdrawn.push(Withdrawn { kthread: from, how: How::ByForce, not_before: now });
        self.follow(at, became, HandoffKind::Evict, decided, now);
        if let Some(runtime) = self.runtimes.get_mut(from.runtime) {
            runtime.groups.lose(from.index);
        }
        self.force_off(from);
        if let Ok(Parked::HandedOn { to, .. }) = became {
            self.lot.slot(self.runtimes.kthread(to).1.slot).wake();
        }
        self.look_at(from.runtime, now);
        if matches!(became, Ok(Parked::Freed(_))) {
            self.core_fell_free(core, now);
        }
    }

    /// Moves a thread to unmanaged cores, and ends the registration of a runtime to which that happens again and again.
    fn force_off(&mut self, id: KthreadId) {
        let (runtime, kthread) = self.runtimes.kthread(id);
        // Fails when the thread is dead, which serves as well.
        let _ = self.threads.bind(runtime.pid, kthread.tid, &self.unmanaged);
        self.runtimes.kthread_mut(id).bound = None;
        self.stats.cores.evictions.add(1);
        let limit = self.max_evictions;
        let Some(runtime) = self.runtimes.get_mut(id.runtime) else { return };
        runtime.stats.counters.evictions.add(1);
        runtime.evictions += 1;
        let times = runtime.evictions;
        if times >= limit {
            self.doom(id.runtime, EndReason::NeverYields(times));
        }
    }

    /// A kthread never started on the core it was lent: the core is free, and the kthread is left alone for a while.
    pub(super) fn take_back(&mut self, at: usize, kthread: KthreadId, now: Cycles) {
        let (runtime, line) = self.runtimes.kthread(kthread);
        runtime.shared(kthread.index).grant.0.store(Grant::Cede { next: None }, line.generation);
        let pause = self.timing.no_start_pause << line.no_starts.min(NO_START_DOUBLINGS);
        self.runtimes.kthread_mut(kthread).no_starts += 1;
        self.stats.cores.no_starts.add(1);
        let core = self.cores[at].id;
        self.trace.core(clock::now(), core, CoreStep::Ceded, HandoffKind::Evict, (kthread, None));
        let became = self.ledger.evict(kthread, self.nanos(now));
        let not_before = now.saturating_add(pause);
        self.withdrawn.push(Withdrawn { kthread, how: How::BeforeStart, not_before });
        self.look_at(kthread.runtime, now);
        if let Some(runtime) = self.runtimes.get_mut(kthread.runtime) {
            runtime.groups.lose(kthread.index);
        }
        self.follow(at, became, HandoffKind::Evict, now, now);
    }

    /// Withdrawn kthreads that park are normal again.
    pub(super) fn watch_withdrawn(&mut self, now: Cycles) {
        let mut i = 0;
        while i < self.withdrawn.len() {
            let Withdrawn { kthread, how, not_before } = self.withdrawn[i];
            let (runtime, line) = self.runtimes.kthread(kthread);
            let (state, generation) = runtime.shared(kthread.index).state.0.load();
            let parked = state == KthreadState::Parked;
            let began = generation == line.generation;
            let back = parked && (began || how == How::BeforeStart);
            if back && now >= not_before {
                self.withdrawn.swap_remove(i);
                self.leave(kthread);
                if let Err(error) = self.ledger.readmit(kthread, self.nanos(now)) {
                    self.refused(&error, ());
                }
                continue;
            }
            if began && !parked {
                self.withdrawn[i].how = self.urge(kthread, how, now);
            }
            i += 1;
        }
    }

    /// A withdrawn kthread runs in a tenancy that was taken back: it was told to cede when that happened.
    fn urge(&mut self, kthread: KthreadId, how: How, now: Cycles) -> How {
        match how {
            How::ByForce => how,
            How::BeforeStart => How::Late { since: now, signalled: false },
            How::Late { since, signalled } if now.saturating_sub(since) > self.timing.deadline => {
                if !signalled {
                    self.signal(kthread);
                }
                self.force_off(kthread);
                How::ByForce
            }
            How::Late { since, signalled: false } if now.saturating_sub(since) > self.timing.grace => {
                self.signal(kthread);
                How::Late { since, signalled: true }
            }
            How::Late { .. } => how,
        }
    }
}
