//! The ranks of kthreads on a machine that other programs use, too.
//!
//! While no other program is on the cores, all kthreads have the rank that they start with. When
//! that changes ([`Allocator::set_beside`]), a kthread with a core is ranked at once, and any other
//! when it is lent one:
//!
//! | | the polling thread | service | best-effort |
//! |---|---|---|---|
//! | alone | ordinary | ordinary | ordinary |
//! | beside batch jobs that Linux runs | ordinary | real time | ordinary |
//! | beside others that compete | real time | real time | behind all ordinary threads |
//! | while the polling thread sleeps | | as before | behind all ordinary threads, until it is lent a core again |
//!
//! The last row is for a thread that may only run on a lent core, or a kernel thread of that core:
//! Linux does not show that it waits for that core, so it would wait behind a best-effort kthread
//! at nice -20 unnoticed. While the polling thread sleeps, no hand-off needs to be fast.
//!
//! Where Linux does not let the IOKernel raise a thread again, best-effort kthreads of its user are
//! behind ordinary threads from their first core on, and nothing else has another rank.
//!
//! Only services of trusted users ([`Runtime::is_trusted`]) have real-time rank: a thread may leave
//! the core that it is bound to, and a real-time one that computes on the polling thread's core
//! stops everything while that thread rests.
//!
//! A kthread with real-time rank preempts an ordinary program on its core at once, and is not
//! preempted by one: with ordinary rank it would wait for a turn of a timer tick (4 ms at 250 Hz)
//! where sessions or control groups compete. Linux limits real-time threads to 95 % of a core
//! ([`Rank::RealTime`]); one that reaches the limit pauses for about 50 ms. So a kthread that keeps
//! its core *rests* before that: for one look it ranks as an ordinary thread.
//!
//! Owns the ranks and, for each core, an account of how long services have held it.

use tailwater_sched::ledger::RuntimeClass;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::layout::KthreadShared;
use tailwater_shm::priority::Rank;
use tailwater_shm::{Cycles, KthreadState};

use super::Allocator;
use super::phase::{Beside, CoreSlot, Escalation, Phase, Ranks, Withdrawn};
use crate::runtime::Runtime;
use crate::world::World;

/// Real time that a core pays for with one unit of rest, or of time without a service: services
/// have real-time rank for at most 10/11 of the time.
const PER_REST: Cycles = 10;

impl Allocator {
    /// Sets which ranks may be given; called before the first attachment.
    pub(crate) fn allow_ranks(&mut self, ranks: Ranks) {
        self.ranks = ranks;
    }

    /// Records which other programs are on the cores, publishes it to all programs, and ranks the
    /// kthreads that have cores. `SCHED_IDLE` ranks a batch job behind services within one session
    /// only, so these have real-time rank beside one.
    pub(crate) fn set_beside(&mut self, world: &mut World, beside: Beside) {
        if core::mem::replace(&mut self.beside, beside) == beside {
            return;
        }
        for slot in &mut self.cores {
            slot.resting = None;
        }
        self.rank_owners(world);
    }

    /// Puts best-effort kthreads with cores behind ordinary threads: the polling thread is about to
    /// sleep beside them.
    pub(crate) fn lower_best_effort(&mut self, world: &mut World) {
        for at in 0..self.cores.len() {
            if let Phase::Starting { kthread, .. } | Phase::Running { kthread, .. } = self.cores[at].phase
                && self.class_of(kthread.runtime) == RuntimeClass::BestEffort
                && !self.ranks.for_good
            {
                self.rank(world, kthread, Rank::Behind);
            }
        }
    }

    /// Returns whether best-effort kthreads have another rank than services.
    pub(super) fn ranks_differ(&self) -> bool {
        self.ranks.for_good || (self.ranks.may_lower && self.beside != Beside::Nothing)
    }

    /// Returns whether trusted services have real-time rank.
    pub(super) fn gives_real_time(&self) -> bool {
        self.beside != Beside::Nothing && self.ranks.real_time
    }

    /// Tells all programs which ranks there are, and ranks the kthreads that have cores.
    fn rank_owners(&mut self, world: &mut World) {
        let (differ, real_time) = (self.ranks_differ(), self.gives_real_time());
        for runtime in world.runtimes.iter_mut() {
            runtime.set_ranks(differ, real_time);
        }
        for at in 0..self.cores.len() {
            let (owner, former) = match self.cores[at].phase {
                Phase::Starting { kthread, .. } | Phase::Running { kthread, .. } => (Some(kthread), None),
                Phase::Ceding { from, to, .. } => (to, Some(from)),
                Phase::Free => (None, None),
            };
            for kthread in owner.into_iter().chain(former) {
                self.rank_for_core(world, kthread);
            }
        }
    }

    /// Gives a kthread the rank that it has on a lent core.
    pub(super) fn rank_for_core(&mut self, world: &mut World, id: KthreadId) {
        let trusted = world.runtimes.get(id.runtime).is_some_and(Runtime::is_trusted);
        let rank = match self.class_of(id.runtime) {
            RuntimeClass::BestEffort if self.ranks.for_good => Rank::Last,
            RuntimeClass::BestEffort if self.beside == Beside::Competitors => Rank::Behind,
            RuntimeClass::LatencyCritical if self.gives_real_time() && trusted => Rank::RealTime,
            RuntimeClass::LatencyCritical | RuntimeClass::BestEffort => Rank::Ordinary,
        };
        self.rank(world, id, rank);
    }

    /// Gives all kthreads of a runtime that leaves ordinary rank.
    pub(super) fn end_ranks(&mut self, world: &mut World, id: RuntimeId) {
        let kthreads = world.runtimes.get(id).map_or(0, |runtime| runtime.kthreads.len() as u16);
        for index in 0..kthreads {
            let id = KthreadId { runtime: id, index };
            if world.runtimes.kthread(id).1.rank.is_some() {
                self.rank(world, id, Rank::Ordinary);
            }
        }
    }

    /// Keeps the account of each core and lets kthreads rest; called every few hundred
    /// microseconds.
    pub(crate) fn throttle_real_time(&mut self, world: &mut World, now: Cycles) {
        let passed = now.saturating_sub(core::mem::replace(&mut self.last_rest_look, now));
        if !self.gives_real_time() {
            return;
        }
        let most = self.bounds.rest;
        for at in 0..self.cores.len() {
            let holder = self.cores[at].phase.holder();
            let service =
                holder.filter(|holder| self.class_of(holder.runtime) == RuntimeClass::LatencyCritical);
            let CoreSlot { mut rest, resting, .. } = self.cores[at];
            // One that has left the core gets its rank when it is lent another, or has ended.
            let resting = resting.filter(|&kthread| holder == Some(kthread));
            if let Some(kthread) = resting {
                self.rank_for_core(world, kthread);
            }
            if service.is_some() && service != resting {
                // Before a look that is late, the core may have been free.
                let passed = passed.min(most * PER_REST);
                rest.charge(passed + passed / PER_REST, 1, now.saturating_sub(passed));
            }
            let resting = service.filter(|_| rest.is_over(most, now));
            if let Some(kthread) = resting {
                self.rank(world, kthread, Rank::Ordinary);
            }
            (self.cores[at].rest, self.cores[at].resting) = (rest, resting);
        }
    }

    /// Gives a kthread a rank, if it has another one.
    pub(super) fn rank(&mut self, world: &mut World, id: KthreadId, rank: Rank) {
        if !self.ranks.may_lower && rank != Rank::Last {
            return;
        }
        let (runtime, kthread) = world.runtimes.kthread(id);
        if kthread.rank == Some(rank) || runtime.is_of_other_user() {
            return;
        }
        // Linux may refuse it, or the thread is gone: then its rank stays. What Linux refuses for
        // good, for a thread of another user, is not tried again.
        let set = self.threads.set_rank(runtime.pid, kthread.tid, rank);
        if set.is_ok() || rank == Rank::Last {
            world.runtimes.kthread_mut(id).rank = Some(rank);
        }
    }

    /// Returns how many kthreads are runnable on managed cores, at least and at most: the owners of
    /// lent cores, and perhaps those that have ceded one to another kthread, lost it otherwise, or
    /// have just given it up and are about to sleep.
    ///
    /// What a program writes hides no more than two other threads for each core, however many
    /// kthreads it has.
    pub(crate) fn runnable_kthreads(&self, world: &World, now: Cycles) -> (usize, usize) {
        let lost = self.withdrawn.iter().filter(|withdrawn| may_run(world, withdrawn)).count();
        let (mut least, mut most) = (0, lost.min(self.cores.len()));
        for slot in &self.cores {
            least += usize::from(!matches!(slot.phase, Phase::Free));
            most += match slot.phase {
                Phase::Free => usize::from(now.saturating_sub(slot.since) < self.bounds.parking),
                Phase::Running { .. } => 1 + usize::from(slot.last.is_some_and(|id| is_awake(world, id))),
                _ => 2,
            };
        }
        (least, most)
    }
}

/// Returns whether a kthread that has ceded its core still yields to its successor, as its parker
/// says.
fn is_awake(world: &World, id: KthreadId) -> bool {
    let Some(shared) = words(world, id) else { return false };
    shared.state.0.load().0 == KthreadState::Parked && !shared.parker.is_asleep()
}

/// Returns whether a withdrawn kthread may be runnable on the managed core that it lost. One that
/// was moved off competes for the other cores, like the thread of any program.
fn may_run(world: &World, withdrawn: &Withdrawn) -> bool {
    withdrawn.step != Escalation::Moved
        && words(world, withdrawn.kthread).is_some_and(|shared| {
            shared.state.0.load().0 != KthreadState::Parked || !shared.parker.is_asleep()
        })
}

/// Returns the words of a kthread, if there is one of this number.
fn words(world: &World, id: KthreadId) -> Option<&KthreadShared> {
    let runtime = world.runtimes.get(id.runtime)?;
    (usize::from(id.index) < runtime.kthreads.len()).then(|| runtime.shared(id.index))
}
