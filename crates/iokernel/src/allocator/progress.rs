//! Following hand-offs: state words and watchdogs.
//!
//! Owns the polling of every core that is not free, once per iteration of the loop, and the first
//! steps against an owner that does not cede: preempt signal after `cede_grace_us`, then the bypass
//! ([`super::withdraw`]). One look takes one step: when looks are
//! late, because Linux has not run the polling thread, it may not have run the owner, either. A
//! state word of another generation is stale and ignored.

use core::sync::atomic::Ordering::Relaxed;

use tailwater_sched::KthreadId;
use tailwater_sched::alloc::Activity;
use tailwater_sched::ledger::TransitionError;
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Cycles, Grant, KthreadState};
use tailwater_stats::HandoffKind;

use super::Allocator;
use super::decide::Event;
use super::phase::{IDLE_BURST, Phase};
use super::quantum::{Change, TurnWatch, something_waits};
use super::withdraw::WATCHED;
use crate::world::World;

impl Allocator {
    /// Looks at every core once and takes the next step of every hand-off.
    #[inline]
    pub(crate) fn progress(&mut self, world: &mut World, now: Cycles) {
        for at in 0..self.cores.len() {
            match self.cores[at].phase {
                Phase::Free => {}
                Phase::Running { kthread, idle } => {
                    self.watch_running(world, at, kthread, idle, now);
                    if let Phase::Running { kthread, idle: false } = self.cores[at].phase {
                        self.watch_turn(world, at, kthread, now);
                    }
                }
                Phase::Starting { kthread, kind, decided, woken, promised, late } => {
                    if self.has_started(world, kthread) {
                        self.charge_late(world, at, kthread, (kind, late), now);
                        self.started(world, at, kthread, kind, decided, now);
                    } else if now.saturating_sub(self.cores[at].since) > self.timing.start_deadline {
                        let not_before = self.end_of_pause(world, kthread, now);
                        self.take_back(world, at, kthread, not_before, now);
                        self.announce(at);
                    } else if now.saturating_sub(woken) > self.next_rewake(at, woken) {
                        world.stats.cores.late_board_wakes.add(u64::from(promised));
                        self.wake_again(world, kthread, now);
                        world.stats.cores.rewakes.add(1);
                        let (woken, promised) = (now, false);
                        self.cores[at].phase =
                            Phase::Starting { kthread, kind, decided, woken, promised, late };
                    }
                }
                Phase::Ceding { from, to, kind, decided, signalled, asked } => {
                    if self.state_of(world, from) == Some(KthreadState::Parked) {
                        self.ceded(world, at, from, kind, decided, now);
                    } else if let Some(signalled) = signalled {
                        if now.saturating_sub(signalled) > self.bounds.bypass {
                            self.bypass(world, at, from, decided, now);
                        }
                    } else if now.saturating_sub(decided) > self.timing.grace {
                        self.signal(world, from);
                        let (kind, signalled) = (HandoffKind::Signal, Some(now));
                        let core = self.cores[at].id;
                        world.trace.core(now, core, CoreStep::Signalled, kind, (from, None));
                        self.cores[at].phase = Phase::Ceding { from, to, kind, decided, signalled, asked };
                    }
                }
            }
            self.drain(world, now);
        }
        if !self.withdrawn.is_empty() {
            self.watch_withdrawn(world, WATCHED, now);
        }
    }

    /// Returns the pause after the last wake of the owner of the core at `at`, which has not
    /// started.
    fn next_rewake(&self, at: usize, woken: Cycles) -> Cycles {
        self.bounds.rewake + woken.saturating_sub(self.cores[at].since)
    }

    /// Returns the state of a kthread in its present tenancy; `None` while its word has another
    /// generation.
    #[inline(always)]
    pub(super) fn state_of(&self, world: &World, id: KthreadId) -> Option<KthreadState> {
        let (runtime, kthread) = world.runtimes.kthread(id);
        let (state, generation) = runtime.shared(id.index).state.0.load();
        (generation == kthread.generation).then_some(state)
    }

    /// Returns whether the kthread has started: any word of the new generation counts, because it
    /// may have parked again before this look.
    #[inline(always)]
    pub(super) fn has_started(&self, world: &World, id: KthreadId) -> bool {
        self.state_of(world, id).is_some()
    }

    #[inline(always)]
    fn watch_running(&mut self, world: &mut World, at: usize, kthread: KthreadId, idle: bool, now: Cycles) {
        match self.state_of(world, kthread) {
            Some(KthreadState::Running | KthreadState::Taken) | None if !idle => {}
            Some(KthreadState::Idle) if idle => {}
            Some(KthreadState::Parked) => self.parked(world, at, kthread, now),
            Some(KthreadState::Idle) => {
                let pace = self.bounds.idle_pace;
                if !self.cores[at].idles.take(pace, pace * IDLE_BURST, now) {
                    // It counts as running, and is looked at again in the next iteration.
                    return;
                }
                self.begin_phase(world, at, Phase::Running { kthread, idle: true }, now);
                self.set_activity(kthread, Activity::Idle);
                // Work that reached its queues since the last look decides whether it may lose the
                // core.
                self.look_beside(world, kthread, now);
                self.announce(at);
            }
            Some(KthreadState::Running | KthreadState::Taken) | None => {
                self.begin_phase(world, at, Phase::Running { kthread, idle: false }, now);
                self.set_activity(kthread, Activity::Running);
            }
        }
    }

    /// Looks at the turn in progress on the core at `at`, whose kthread runs.
    #[inline]
    pub(super) fn watch_turn(&mut self, world: &World, at: usize, kthread: KthreadId, now: Cycles) {
        if now >= self.cores[at].watch.next {
            self.look_at_turn(world, at, kthread, now);
        }
    }

    fn look_at_turn(&mut self, world: &World, at: usize, id: KthreadId, now: Cycles) {
        let (runtime, kthread) = world.runtimes.kthread(id);
        let words = runtime.shared(id.index);
        let slot = &mut self.cores[at];
        let turn = words.turn.turns.load(Relaxed);
        let (core, generation) = (slot.id.0, kthread.generation);
        match slot.watch.look(turn, now, || something_waits(runtime, id.index, now)) {
            Change::Nothing => {}
            Change::End(turn) => words.grant.0.end_turn(core, generation, turn),
            Change::Plain => words.grant.0.store(Grant::Run { core }, generation),
        }
    }

    fn started(
        &mut self,
        world: &mut World,
        at: usize,
        kthread: KthreadId,
        kind: HandoffKind,
        decided: Cycles,
        now: Cycles,
    ) {
        world.stats.handoff(kind).running.record(self.clock.to_ns(now.saturating_sub(decided)));
        world.trace.core(now, self.cores[at].id, CoreStep::Running, kind, (kthread, None));
        world.runtimes.kthread_mut(kthread).no_starts = 0;
        self.set_activity(kthread, Activity::Running);
        self.begin_phase(world, at, Phase::Running { kthread, idle: false }, now);
        let words = world.runtimes.kthread(kthread).0.shared(kthread.index);
        self.cores[at].watch = TurnWatch::begin(words, self.clock, now);
        // It may idle or have parked already.
        self.watch_running(world, at, kthread, false, now);
        if self.cores[at].absent {
            self.vacate(world, at, now);
        }
    }

    /// Charges what a kthread that has started on the core at `at` has waited for another one.
    fn charge_late(
        &mut self,
        world: &mut World,
        at: usize,
        kthread: KthreadId,
        (kind, late): (HandoffKind, Option<(KthreadId, Cycles)>),
        now: Cycles,
    ) {
        let Some((late, since)) = late else { return };
        let got_at = self.cores[at].since;
        let end = match kind {
            // From then on the other is charged for its stay on the core; see `super::withdraw`.
            HandoffKind::Bypass => got_at,
            // A claimant that is slow itself waits no longer for the other once that has ceded.
            _ => got_at.saturating_add(self.bounds.rewake),
        };
        self.charge_wait(world, late, kthread.runtime, now.min(end).saturating_sub(since), now);
    }

    /// Handles a kthread that gave its core up without being asked.
    fn parked(&mut self, world: &mut World, at: usize, kthread: KthreadId, now: Cycles) {
        let core = self.cores[at].id;
        world.trace.core(now, core, CoreStep::Ceded, HandoffKind::Wake, (kthread, None));
        let held = now.saturating_sub(self.cores[at].since);
        self.account_core_time(world, at, kthread, now);
        world.stats.cores.parks.add(1);
        self.leave(world, kthread);
        if let Err(error) = self.ledger.release(kthread, self.nanos(now)) {
            return self.refused(world, &error, ());
        }
        self.begin_phase(world, at, Phase::Free, now);
        let began = (self.stopwatch)();
        self.look_beside(world, kthread, now);
        self.note_timer(world, kthread.runtime, now);
        let payer = self.was_lent_in_vain(world, kthread, now).then_some((kthread.runtime, began));
        if payer.is_some() {
            self.charge_vain_core(world, kthread.runtime, held, now);
        }
        self.events.push_back(Event::Available { at, payer });
    }

    /// Handles a kthread that ceded as it was asked.
    pub(super) fn ceded(
        &mut self,
        world: &mut World,
        at: usize,
        from: KthreadId,
        kind: HandoffKind,
        decided: Cycles,
        now: Cycles,
    ) {
        let core = self.cores[at].id;
        world.stats.handoff(kind).ceded.record(self.clock.to_ns(now.saturating_sub(decided)));
        self.enter_cede(world, at, from, kind, decided, now);
        self.account_core_time(world, at, from, now);
        self.cores[at].last = Some(from);
        self.leave(world, from);
        let next = self.ledger.handle_parked(from, self.nanos(now));
        self.follow(world, at, next, kind, decided, now);
        // The next owner has been woken.
        world.trace.core(now, core, CoreStep::Ceded, kind, (from, None));
        self.look_beside(world, from, now);
        self.note_timer(world, from.runtime, now);
        if matches!(next, Ok(None)) {
            self.announce(at);
        }
    }

    /// Follows the ledger with a core that was given up or taken, and sees to it that its `next`
    /// owner, if there is one, is woken.
    pub(super) fn follow(
        &mut self,
        world: &mut World,
        at: usize,
        next: Result<Option<KthreadId>, TransitionError>,
        kind: HandoffKind,
        decided: Cycles,
        now: Cycles,
    ) {
        self.cores[at].since = now;
        let phase = match next {
            Ok(None) => Phase::Free,
            Ok(Some(to)) => {
                let late = match self.cores[at].phase {
                    Phase::Ceding { from, decided, signalled: Some(_), .. } => Some((from, decided)),
                    _ => None,
                };
                let promised = self.wake_next_owner(world, at, to, now);
                Phase::Starting { kthread: to, kind, decided, woken: now, promised, late }
            }
            Err(error) => return self.refused(world, &error, ()),
        };
        self.begin_phase(world, at, phase, now);
    }

    /// Handles the departure of a kthread from its core: it gets no more flows, and its egress ring
    /// is polled until empty.
    pub(super) fn leave(&mut self, world: &mut World, kthread: KthreadId) {
        if let Some(runtime) = world.runtimes.get_mut(kthread.runtime) {
            runtime.groups.lose(kthread.index);
            runtime.kthreads[usize::from(kthread.index)].may_run = false;
        }
        self.set_activity(kthread, Activity::Parked);
    }

    pub(super) fn signal(&mut self, world: &World, from: KthreadId) {
        let (runtime, kthread) = world.runtimes.kthread(from);
        // Fails if the thread is dead: its socket reports that.
        let _ = self.threads.preempt(runtime.pid, kthread.tid);
        world.stats.cores.signals.add(1);
    }

    pub(super) fn account_core_time(&mut self, world: &World, at: usize, kthread: KthreadId, now: Cycles) {
        let ns = self.clock.to_ns(now.saturating_sub(self.cores[at].since));
        if let Some(runtime) = world.runtimes.get(kthread.runtime) {
            runtime.stats.counters.core_ns.add(ns);
        }
        self.cores[at].since = now;
    }
}
