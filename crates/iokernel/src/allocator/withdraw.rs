//! Kthreads without a core that are not to be lent one, and what services wait for because of them.
//!
//! Owns the list of withdrawn kthreads and their way back, and the charge for late ones. A kthread
//! is withdrawn when its core is taken from it: because it did not cede in time, or did not start.
//! It comes back when it has parked and paid, and its pause has passed.
//!
//! One that runs on meanwhile has been signalled, and stays on the core beside the next owner: it
//! is in a long system call, or Linux has descheduled it, and it parks as soon as Linux runs it. On
//! a machine of two cores the only other one is the polling thread's, where it would wait for
//! milliseconds. It is moved to unmanaged cores after [5 ms](super::phase::Bounds::beside), and
//! at once if its tenant owes too much for cores. There it competes like the thread of any program.
//!
//! A best-effort one pays for the time in which a service has its former core and has not started
//! there, and for what its thread runs after that. So its tenant soon owes too much, and the
//! service shares its core for no more of the time than it may wait for cores. What the thread runs
//! is its processor time, which Linux brings up to date when the thread leaves the core and at each
//! tick. While Linux runs the service, the thread takes nothing from it. It stays withdrawn until
//! it has paid: until the service has left the core, where it ran to park, so the thread was off
//! it; or for a tick after the thread's word says that it has parked, since the word may lie. Where
//! Linux does not show the processor time (`/proc` mounted with `hidepid`), all time beside
//! services counts.
//!
//! What a service has waited for a core of a best-effort program, because a kthread did not start
//! on it or did not cede it before it was signalled, is charged to the program's tenant
//! ([`tenant`](crate::tenant)), and so is the time of a core that it asked for and did not use. A
//! service that is late pays once it is bypassed, or has not started for so long that another one
//! takes the core, also if Linux let an ordinary thread run there instead. It pays for services of
//! other tenants only, and not for the time before they asked for a core, where that is known: one
//! without poll points cedes within 20 us of its signal, and owes nothing. The services that wait
//! are the claimant or next owner of the core and all that have work, no core, and may have this
//! one: otherwise many programs of one user, each of which is late, would hand a core on among
//! themselves at no cost.
//!
//! Programs whose tenant owes too much are
//! [demoted](tailwater_sched::alloc::RuntimeLook::is_demoted): they compete as best-effort ones,
//! get no core on which a service idles, beyond those that they own, and a service that claims
//! another of their cores takes it at once if they have not started there. They still get free
//! cores and cores of best-effort programs. Otherwise a program that is stopped would get each core
//! that a service leaves for a moment, and the service would have to be woken for each request.
//!
//! A core from which several of a program were withdrawn is not lent to it
//! ([`Account::is_withheld`](tailwater_sched::ledger::Account::is_withheld)), which bounds their
//! number. An iteration looks at [`WATCHED`] of them.

use core::sync::atomic::{Ordering, fence};
use tailwater_sched::alloc::{Activity, RuntimeLook};
use tailwater_sched::ledger::{CoreState, KthreadState as Owned, RuntimeClass};
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::priority::Rank;
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Cycles, KthreadState};
use tailwater_stats::HandoffKind;

use super::Allocator;
use super::phase::{Escalation, NO_START_DOUBLINGS, Phase, Stay, Withdrawn};
use crate::status_cache::WHOLE;
use crate::tenant::Work;
use crate::world::World;

/// Number of withdrawn kthreads that are looked at in an iteration.
pub(super) const WATCHED: usize = 4;

impl Allocator {
    /// Takes the core from its owner, which did not cede in time and has been signalled. Wakes the
    /// successor beside it, if there is one: Linux may have descheduled the owner, and then it sees
    /// neither request nor signal. The owner stays on the core; [`escalate`](Self::escalate) moves
    /// it later. The successor's rank is at least the owner's.
    pub(super) fn bypass(
        &mut self,
        world: &mut World,
        at: usize,
        from: KthreadId,
        decided: Cycles,
        now: Cycles,
    ) {
        let kind = HandoffKind::Bypass;
        world.runtimes.ask_to_cede(from);
        world.trace.core(now, self.cores[at].id, CoreStep::Ceded, kind, (from, None));
        self.account_core_time(world, at, from, now);
        self.set_activity(from, Activity::Parked);
        world.stats.handoff(kind).ceded.record(self.clock.to_ns(now.saturating_sub(decided)));
        let next = self.ledger.evict(from, self.nanos(now));
        self.withdrawn.push_back(Withdrawn {
            kthread: from,
            not_before: now,
            runs_since: Some(now),
            stay: Some(Stay::at(now)),
            step: Escalation::Signalled,
        });
        if let Some(runtime) = world.runtimes.get_mut(from.runtime) {
            runtime.groups.lose(from.index);
        }
        self.follow(world, at, next, kind, decided, now);
        let since = decided.max(now.saturating_sub(self.timing.grace + self.bounds.bypass));
        self.charge_late_service(world, at, from.runtime, None, since, now);
        self.look_beside(world, from, now);
        if matches!(next, Ok(None)) {
            self.announce(at);
        }
    }

    /// Moves a thread to unmanaged cores.
    fn move_off(&mut self, world: &mut World, id: KthreadId, now: Cycles) {
        let began = (self.stopwatch)();
        let (runtime, kthread) = world.runtimes.kthread(id);
        // Fails if the thread is dead, and then it is off the core as well.
        let _ = self.threads.bind(runtime.pid, kthread.tid, &self.unmanaged);
        runtime.stats.counters.evictions.add(1);
        world.stats.cores.evictions.add(1);
        // Other cores have no account of real time.
        self.rank(world, id, Rank::Ordinary);
        world.runtimes.kthread_mut(id).bound = None;
        world.charge(id.runtime, Work::Thread, (self.stopwatch)().saturating_sub(began), now);
    }

    /// Returns the time until which a kthread that has not started on its core is lent no other. On
    /// a shared machine a best-effort one waits behind ordinary programs, so its pause does not
    /// grow.
    pub(super) fn end_of_pause(&self, world: &mut World, id: KthreadId, now: Cycles) -> Cycles {
        let kthread = world.runtimes.kthread_mut(id);
        let doublings = match self.class_of(id.runtime) {
            RuntimeClass::LatencyCritical => kthread.no_starts.min(NO_START_DOUBLINGS),
            RuntimeClass::BestEffort => 0,
        };
        kthread.no_starts += 1;
        now.saturating_add(self.bounds.no_start_pause << doublings)
    }

    /// Takes the core back from a kthread that has not started on it, and lends the kthread nothing
    /// until `not_before`.
    pub(super) fn take_back(
        &mut self,
        world: &mut World,
        at: usize,
        kthread: KthreadId,
        not_before: Cycles,
        now: Cycles,
    ) {
        world.runtimes.ask_to_cede(kthread);
        // Store-load: the grant before the look at the state in `watch_withdrawn`. Pairs with the
        // fence of a kthread that begins the tenancy (the runtime's `lease::begin`): it sees that
        // the grant is withdrawn, or is seen running.
        fence(Ordering::SeqCst);
        world.stats.cores.no_starts.add(1);
        // Before a kthread would be woken again it is not late.
        if let Phase::Starting { promised: true, .. } = self.cores[at].phase
            && now.saturating_sub(self.cores[at].since) > self.bounds.rewake
        {
            world.stats.cores.late_board_wakes.add(1);
        }
        let core = self.cores[at].id;
        world.trace.core(now, core, CoreStep::Ceded, HandoffKind::Evict, (kthread, None));
        let next = self.ledger.evict(kthread, self.nanos(now));
        // Beyond the last look, or its end would not be announced; see `next_readmission`.
        let not_before = not_before.max(self.watched_at.saturating_add(1));
        let step = Escalation::None;
        self.withdrawn.push_back(Withdrawn { kthread, not_before, runs_since: None, stay: None, step });
        self.look_beside(world, kthread, now);
        if let Some(runtime) = world.runtimes.get_mut(kthread.runtime) {
            runtime.groups.lose(kthread.index);
        }
        self.follow(world, at, next, HandoffKind::Evict, now, now);
    }

    /// Looks at so many withdrawn kthreads, in turn. Readmits those that have parked and whose
    /// pause has passed; signals and moves those that have begun the tenancy that was taken back
    /// and run on.
    pub(super) fn watch_withdrawn(&mut self, world: &mut World, count: usize, now: Cycles) {
        self.watched_at = now;
        for _ in 0..count.min(self.withdrawn.len()) {
            let Some(mut withdrawn) = self.withdrawn.pop_front() else { return };
            self.look_at_stay(world, &mut withdrawn, now);
            if self.readmit(world, &withdrawn, now) {
                continue;
            }
            let runs = match self.state_of(world, withdrawn.kthread) {
                Some(state) => state != KthreadState::Parked,
                // It has not begun, and its word is of an earlier tenancy; or it writes garbage.
                None => withdrawn.runs_since.is_some(),
            };
            if runs {
                self.escalate(world, &mut withdrawn, now);
            }
            self.withdrawn.push_back(withdrawn);
        }
    }

    /// Takes the next step against a withdrawn kthread that runs on.
    fn escalate(&mut self, world: &mut World, withdrawn: &mut Withdrawn, now: Cycles) {
        let kthread = withdrawn.kthread;
        let ran = now.saturating_sub(*withdrawn.runs_since.get_or_insert(now));
        match withdrawn.step {
            Escalation::None if ran > self.timing.grace => {
                self.signal(world, kthread);
                withdrawn.step = Escalation::Signalled;
            }
            Escalation::Signalled if ran > self.bounds.beside || world.owes_cores(kthread.runtime, now) => {
                withdrawn.step = Escalation::Moved;
                self.move_off(world, kthread, now);
                if let Some(mut stay) = withdrawn.stay.take() {
                    self.pay_for_stay(world, kthread, &mut stay, now);
                }
            }
            Escalation::None | Escalation::Signalled | Escalation::Moved => {}
        }
        if withdrawn.step != Escalation::Moved && withdrawn.stay.is_none() {
            withdrawn.stay = Some(Stay::at(now));
        }
    }

    /// Adds the time since the last look at a kthread that has lost its core, if a service has that
    /// core, and lets the kthread pay where that is due.
    fn look_at_stay(&mut self, world: &mut World, withdrawn: &mut Withdrawn, now: Cycles) {
        let Some(mut stay) = withdrawn.stay.take() else { return };
        let kthread = withdrawn.kthread;
        let has_parked = self.state_of(world, kthread) == Some(KthreadState::Parked);
        let Some(owner) = self.service_in_place_of(kthread) else {
            self.pay_for_stay(world, kthread, &mut stay, now);
            withdrawn.stay = (!has_parked).then(|| Stay::at(now));
            return;
        };
        let passed = now.saturating_sub(stay.looked).min(self.bounds.beside);
        stay.looked = now;
        stay.beside += passed;
        match (has_parked, self.has_started(world, owner)) {
            (false, false) => stay.waited += passed,
            (false, true) if !stay.asked => {
                (stay.asked, stay.ran_ns) = (true, self.ran_ns(world, kthread, now));
                // It has run nothing since: asking again to pay would tell nothing.
                stay.next_payment = stay.beside + self.bounds.payment_interval;
            }
            // One that has parked keeps no service from starting; if its word lies, its processor
            // time grows.
            _ => {}
        }
        stay.parked = has_parked.then(|| stay.parked.unwrap_or(now));
        let is_up_to_date = |parked| stay.ran_ns.is_none() || now.saturating_sub(parked) > self.bounds.tick;
        let ends = stay.parked.is_some_and(is_up_to_date);
        if ends || stay.ran_ns.is_none() || stay.beside >= stay.next_payment {
            self.pay_for_stay(world, kthread, &mut stay, now);
        }
        withdrawn.stay = Some(stay).filter(|_| !ends);
    }

    /// Returns the kthread of a service that has the core which this best-effort one has lost.
    fn service_in_place_of(&self, kthread: KthreadId) -> Option<KthreadId> {
        match self.ledger.core(self.ledger.last_core(kthread)?)? {
            CoreState::Owned { kthread: owner, .. } | CoreState::Moving { from: owner, .. } => {
                self.may_not_wait(owner.runtime, kthread.runtime).then_some(owner)
            }
            CoreState::Free | CoreState::Absent => None,
        }
    }

    /// Charges a kthread for the time beside services that it has not paid for: that in which they
    /// had not started, and the processor time of its thread since, where Linux shows that; else
    /// all.
    fn pay_for_stay(&mut self, world: &mut World, kthread: KthreadId, stay: &mut Stay, now: Cycles) {
        stay.next_payment = stay.beside + self.bounds.payment_interval;
        if stay.charged == stay.beside {
            return;
        }
        let ran = stay.ran_ns.and_then(|before| {
            let ns = self.ran_ns(world, kthread, now)?;
            Some(self.clock.from_ns(ns.saturating_sub(before)))
        });
        let owed = ran.map_or(stay.beside, |ran| stay.beside.min(stay.waited + ran));
        let rest = owed.saturating_sub(stay.charged);
        stay.charged += rest;
        if rest > 0 {
            self.charge_core(world, kthread.runtime, rest, now);
        }
    }

    /// Returns the processor time of a kthread's thread in nanoseconds, if Linux shows it; its
    /// tenant pays for the call.
    fn ran_ns(&mut self, world: &mut World, id: KthreadId, now: Cycles) -> Option<u64> {
        let began = (self.stopwatch)();
        let (runtime, kthread) = world.runtimes.kthread(id);
        let ran_ns = self.threads.ran_ns(runtime.pid, kthread.tid);
        world.charge(id.runtime, Work::Thread, (self.stopwatch)().saturating_sub(began), now);
        ran_ns
    }

    /// Forgets the withdrawn kthreads of a runtime, which ends; they pay before.
    pub(super) fn forget_withdrawn(&mut self, world: &mut World, id: RuntimeId, now: Cycles) {
        let (ended, others) = self.withdrawn.drain(..).partition(|withdrawn| withdrawn.kthread.runtime == id);
        self.withdrawn = others;
        for Withdrawn { kthread, stay, .. } in ended {
            if let Some(mut stay) = stay {
                self.pay_for_stay(world, kthread, &mut stay, now);
            }
        }
    }

    /// Readmits a withdrawn kthread if that is due; returns whether it did. One that was moved has
    /// begun its tenancy, and parks in that. One whose core was taken back may never have begun it.
    fn readmit(&mut self, world: &mut World, withdrawn: &Withdrawn, now: Cycles) -> bool {
        let &Withdrawn { kthread, not_before, runs_since, .. } = withdrawn;
        let (runtime, line) = world.runtimes.kthread(kthread);
        let (state, generation) = runtime.shared(kthread.index).state.0.load();
        let has_begun = runs_since.is_some();
        let is_back = state == KthreadState::Parked && (generation == line.generation || !has_begun);
        if !is_back || now < not_before || withdrawn.stay.is_some() {
            return false;
        }
        self.leave(world, kthread);
        if let Err(error) = self.ledger.readmit(kthread, self.nanos(now)) {
            self.refused(world, &error, ());
        }
        true
    }

    /// Charges what `claimant`, if it is a service, has waited until it started on a core that this
    /// kthread, if it is a best-effort one, has not started on or not ceded in time.
    pub(super) fn charge_wait(
        &mut self,
        world: &mut World,
        kthread: KthreadId,
        claimant: RuntimeId,
        waited: Cycles,
        now: Cycles,
    ) {
        if self.may_not_wait(claimant, kthread.runtime) {
            let waited = waited.min(self.bounds.longest_wait);
            self.charge_core(world, kthread.runtime, waited, now);
        }
    }

    /// Charges a service from which the core at `at` was taken because it had not ceded it, or not
    /// started on it, for the longest time for which a service of another tenant has waited for
    /// that core from `since` on: the `claimant`, the next owner, or one that has work and no core.
    /// One that asked for a core by a frame has waited from then on; when the work of others began
    /// is not known, and they count as if they had waited all the time.
    pub(super) fn charge_late_service(
        &mut self,
        world: &mut World,
        at: usize,
        late: RuntimeId,
        claimant: Option<RuntimeId>,
        since: Cycles,
        now: Cycles,
    ) {
        if self.class_of(late) == RuntimeClass::BestEffort {
            return;
        }
        let next = match self.cores[at].phase {
            Phase::Starting { kthread, .. } => Some(kthread.runtime),
            _ => claimant,
        };
        let tenant = |id| world.runtimes.get(id).map(|runtime| runtime.tenant);
        let could_run = |id| {
            self.cores_held(id) == 0
                && self.observation.runtime(id).is_some_and(RuntimeLook::has_work)
                && self.ledger.account(id).is_some_and(|account| account.room() > 0)
                && self.may_be_lent(id, at)
        };
        let waits = |&id: &RuntimeId| {
            self.class_of(id) == RuntimeClass::LatencyCritical
                && tenant(id) != tenant(late)
                && !self.observation.runtime(id).is_some_and(RuntimeLook::is_demoted)
                && (next == Some(id) || could_run(id))
        };
        let waited = |id: RuntimeId| {
            let asked = world.runtimes.get(id).and_then(|runtime| runtime.woken).unwrap_or(since);
            now.saturating_sub(asked.max(since))
        };
        let waiting = self.ledger.runtimes().iter().copied().filter(waits);
        if let Some(waited) = waiting.map(waited).max() {
            self.charge_core(world, late, waited, now);
        }
    }

    /// Charges time of a core to the tenant of a runtime.
    fn charge_core(&mut self, world: &mut World, id: RuntimeId, time: Cycles, now: Cycles) {
        world.charge_cores(id, time, self.cores.len(), now);
        self.observation.set_demoted(id, world.owes_cores(id, now));
    }

    /// Returns whether `other` pays for what `claimant` waits because of it: a service waits for a
    /// best-effort program.
    fn may_not_wait(&self, claimant: RuntimeId, other: RuntimeId) -> bool {
        self.class_of(claimant) == RuntimeClass::LatencyCritical
            && self.class_of(other) == RuntimeClass::BestEffort
    }

    /// Charges a core that its kthread gave up unasked, after `held`, without having used it.
    pub(super) fn charge_vain_core(&mut self, world: &mut World, id: RuntimeId, held: Cycles, now: Cycles) {
        if let Some(runtime) = world.runtimes.get(id) {
            runtime.stats.counters.vain_cores.add(1);
        }
        self.charge_core(world, id, held.min(self.bounds.longest_wait), now);
    }

    /// Returns true if the runtime gave up its only core although its words ask for one, and has
    /// changed none of its words since the core was lent. The verdict needs all words, of which the
    /// previous look may have read only some. The words of withdrawn kthreads do not count: the
    /// others cannot always do that work (frames, without packet stealing).
    pub(super) fn was_lent_in_vain(&mut self, world: &mut World, kthread: KthreadId, now: Cycles) -> bool {
        let read_whole = world.runtimes.kthread(kthread).0.kthreads.len() <= WHOLE;
        if !read_whole && self.seems_lent_in_vain(world, kthread) {
            self.look_for_verdict(world, kthread.runtime, now);
        }
        self.seems_lent_in_vain(world, kthread)
    }

    /// As [`was_lent_in_vain`](Self::was_lent_in_vain), by the words as last read.
    fn seems_lent_in_vain(&self, world: &World, kthread: KthreadId) -> bool {
        let id = kthread.runtime;
        let (runtime, line) = world.runtimes.kthread(kthread);
        if runtime.fingerprint != line.fingerprint || self.cores_held(id) > 0 {
            return false;
        }
        let Some(look) = self.observation.runtime(id) else { return false };
        let is_withdrawn =
            |index| matches!(self.ledger.kthread(KthreadId::new(id, index)), Some(Owned::Evicted { .. }));
        (0..).zip(&look.kthreads).any(|(index, look)| look.has_work() && !is_withdrawn(index))
    }
}
