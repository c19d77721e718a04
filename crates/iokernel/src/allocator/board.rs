//! Decides whether the IOKernel wakes the next owner of a core, or the kthread that cedes it.
//!
//! Owns what a kthread is told about the next owner ([`Allocator::next_owner`]), and what becomes
//! of its promise to wake that one at the board ([`tailwater_shm::board`]). A wake on the common
//! core takes a microsecond; one by the IOKernel is an interrupt between cores, and takes the
//! polling thread 1 to 6.
//!
//! A promise that is not kept costs the next owner the time until the IOKernel wakes it after all
//! ([`rewake`](super::phase::Bounds::rewake)). Only programs of one user promise each other
//! anything.

use tailwater_sched::KthreadId;
use tailwater_sched::ledger::RuntimeClass;
use tailwater_shm::board::WakePlace;
use tailwater_shm::{Cycles, NextOwner, Parker};

use super::Allocator;
use super::phase::Phase;
use crate::runtime::Runtime;
use crate::tenant::Work;
use crate::world::World;

impl Runtime {
    /// Returns where its kthread sleeps besides its parker.
    fn place(&self, kthread: u16) -> Option<WakePlace> {
        WakePlace::new(self.first_place?.checked_add(kthread)?)
    }
}

impl Allocator {
    /// Returns the information for `from` about `to`, which was granted its core.
    pub(super) fn next_owner(&self, world: &World, from: KthreadId, to: KthreadId, now: Cycles) -> NextOwner {
        let (giver, taker) = (world.runtimes.kthread(from).0, world.runtimes.kthread(to).0);
        // A service does not stay awake for a program that keeps services waiting: the wake of a
        // kthread that sleeps preempts such a program, and Linux's turn for one that is awake comes
        // later.
        let apart = giver.group != taker.group || world.owes_cores(to.runtime, now);
        let parker = world.runtimes.parker(to);
        let shared = giver.board.is_some() && giver.board == taker.board;
        let at_board = parker.is_at_board() && shared;
        let next = match taker.place(to.index) {
            Some(place) if at_board => {
                // Before the request: see `tailwater_shm::park`.
                parker.announce();
                NextOwner::AtBoard { place, apart }
            }
            _ if apart => NextOwner::Apart,
            _ if parker.is_asleep() => NextOwner::Asleep,
            _ => NextOwner::Awake,
        };
        if giver.knows_board { next } else { next.for_minor_0() }
    }

    /// Wakes the next owner of a core that was given up or taken, unless the kthread that has given
    /// it up does; returns whether that has promised it.
    pub(super) fn wake_next_owner(&self, world: &mut World, at: usize, to: KthreadId, now: Cycles) -> bool {
        if let Phase::Ceding { from, to: Some(named), asked: true, .. } = self.cores[at].phase
            && named == to
            && let Some(runtime) = world.runtimes.get(from.runtime)
            && let Some(kthread) = runtime.kthreads.get(usize::from(from.index))
            && runtime.shared(from.index).state.0.is_passed(kthread.generation)
        {
            world.stats.cores.board_wakes.add(1);
            return true;
        }
        self.wake(world, to, now);
        false
    }

    /// Wakes a kthread that has got a core, if it sleeps.
    pub(super) fn wake(&self, world: &mut World, id: KthreadId, now: Cycles) {
        self.wake_by(Parker::wake, world, id, now);
    }

    /// Wakes a kthread that has got a core and not started, whatever its words say.
    pub(super) fn wake_again(&self, world: &mut World, id: KthreadId, now: Cycles) {
        self.wake_by(Parker::wake_always, world, id, now);
    }

    /// Wakes a kthread, and charges the wake of a best-effort one. Linux keeps all sleepers on
    /// words of shared memory in one hash table, and a wake walks all those of a bucket: a program
    /// with a thousand threads in futex_waitv(2) can make a wake of 1.2 us take up to a millisecond
    /// (2-vCPU VM). The sleepers may belong to another program, so services are exempt.
    #[inline]
    fn wake_by(&self, wake: impl FnOnce(&Parker), world: &mut World, id: KthreadId, now: Cycles) {
        let parker = world.runtimes.parker(id);
        if self.class_of(id.runtime) == RuntimeClass::LatencyCritical {
            return wake(parker);
        }
        let began = (self.stopwatch)();
        wake(parker);
        let took = (self.stopwatch)().saturating_sub(began);
        world.charge(id.runtime, Work::Thread, took, now);
    }
}
