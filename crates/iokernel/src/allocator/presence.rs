//! Managed cores that Linux takes away and gives back, by a cpuset or by taking a processor
//! offline.
//!
//! Owns the way of a core into the ledger's state `Absent` and out of it. A free core is absent at
//! once. The owner of any other is asked to cede as if a successor waited, with the same watchdogs:
//! it parks wherever Linux has moved it, and its program is lent another core by the policy. Linux
//! may have moved many owners onto one processor, where they wait for each other: an owner that has
//! not ceded after the signal is bypassed, which is no offence as long as it does not run. The
//! control thread finds out which cores are there ([`tailwater_host::Presence`]).
//!
//! A change of a cpuset also loses bindings of threads to cores that remain (Linux before 6.2), so
//! after each change all kthreads are bound again: owners of cores at once, others when they are
//! lent one.

use rustix::thread::CpuSet;
use tailwater_host::cpu_set;
use tailwater_sched::CoreId;
use tailwater_sched::ledger::CoreState;
use tailwater_shm::Cycles;

use super::Allocator;
use super::phase::Phase;
use crate::world::World;

impl Allocator {
    /// Takes cores that are not in `present` out of the ledger, and puts those back that are again.
    pub(crate) fn set_present(&mut self, world: &mut World, present: &CpuSet, now: Cycles) {
        for slot in &mut self.cores {
            slot.absent = !present.is_set(slot.id.0.into());
        }
        let absent = self.cores.iter().filter(|slot| slot.absent).count();
        world.stats.cores.absent.set(absent as u64);
        for &id in self.ledger.runtimes() {
            let kthreads = world.runtimes.get_mut(id).map(|runtime| runtime.kthreads.iter_mut());
            kthreads.into_iter().flatten().for_each(|kthread| kthread.bound = None);
        }
        for at in 0..self.cores.len() {
            let core = self.cores[at].id;
            if self.cores[at].absent {
                self.vacate(world, at, now);
            } else if self.ledger.core(core) == Some(CoreState::Absent) {
                self.restore(world, at);
            } else {
                self.bind_owner(world, at);
            }
            self.observation.set_hold(at, self.hold_of(at));
        }
        self.drain(world, now);
    }

    /// Takes the next step to empty a core that is absent, or that its holder is to give up.
    /// Without effect while a kthread starts or cedes
    /// on it, after which this is called again.
    pub(super) fn vacate(&mut self, world: &mut World, at: usize, now: Cycles) {
        let core = self.cores[at].id;
        match self.cores[at].phase {
            Phase::Free => self.withdraw(world, core),
            Phase::Running { kthread: from, .. } => {
                let Some(runtime) = world.runtimes.get_mut(from.runtime) else { return };
                runtime.groups.lose(from.index);
                world.runtimes.ask_to_cede(from);
                self.begin_phase(world, at, Phase::leaving(from, now), now);
            }
            Phase::Starting { .. } | Phase::Ceding { .. } => {}
        }
    }

    /// Enters a free core as absent.
    pub(super) fn withdraw(&mut self, world: &World, core: CoreId) {
        // It may be absent already.
        if self.ledger.core(core) == Some(CoreState::Free)
            && let Err(error) = self.ledger.withdraw(core)
        {
            self.refused(world, &error, ());
        }
    }

    /// Enters a core as free again.
    fn restore(&mut self, world: &World, at: usize) {
        match self.ledger.restore(self.cores[at].id) {
            Ok(()) => self.announce(at),
            Err(error) => self.refused(world, &error, ()),
        }
    }

    /// Binds the owner of a core to it again.
    fn bind_owner(&mut self, world: &mut World, at: usize) {
        let core = self.cores[at].id;
        let Some(owner) = self.cores[at].phase.holder() else { return };
        let (runtime, line) = world.runtimes.kthread(owner);
        // Fails if the thread is gone, or if its own cpuset lacks the core.
        if self.threads.bind(runtime.pid, line.tid, &cpu_set([&core])).is_ok() {
            world.runtimes.kthread_mut(owner).bound = Some(core);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::tests::{BATCH, SERVICE, arrival, busy_batch};
    use crate::fixture::{Deed, Sandbox, UNMANAGED};
    use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
    use tailwater_shm::{Grant, KthreadState, NextOwner};

    fn set_present(sandbox: &mut Sandbox, cores: &[u16]) {
        let cores: Vec<CoreId> = cores.iter().copied().map(CoreId).collect();
        let now = sandbox.now;
        sandbox.alloc.set_present(&mut sandbox.world, &cpu_set(&cores), now);
        sandbox.check();
    }

    #[test]
    fn a_core_that_is_gone_is_ceded_and_lent_again_when_it_is_back() {
        let mut sandbox = busy_batch();
        set_present(&mut sandbox, &[]);
        assert_eq!(sandbox.peer(BATCH).grant(0).0, Grant::Cede { successor: NextOwner::None });
        sandbox.peer(BATCH).queue(0, 1);
        arrival(&mut sandbox);
        sandbox.settle();
        sandbox.peer(SERVICE).queue(0, 1);
        sandbox.settle();
        for id in [BATCH, SERVICE] {
            assert_eq!(sandbox.peer(id).state(0), KthreadState::Parked);
        }
        assert_eq!(sandbox.world.stats.cores.absent.get(), 1);
        sandbox.deeds();
        // The same answer again changes nothing.
        set_present(&mut sandbox, &[]);
        assert_eq!(sandbox.deeds(), []);
        set_present(&mut sandbox, &[0]);
        sandbox.settle();
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
        assert!(sandbox.deeds().contains(&Deed::Bound { tid: 101, core: CoreId(0) }));
        assert_eq!(sandbox.world.stats.cores.absent.get(), 0);
    }

    #[test]
    fn a_program_keeps_running_on_the_cores_that_remain() {
        let mut sandbox = Sandbox::new(2, Vec::new());
        sandbox.add(SERVICE, 1, 0, LatencyCritical);
        arrival(&mut sandbox);
        sandbox.obey();
        sandbox.pass(500);
        let core = |sandbox: &mut Sandbox| match sandbox.peer(SERVICE).grant(0).0 {
            Grant::Run { core } => core,
            Grant::Cede { .. } | Grant::Park => panic!("it has no core"),
        };
        let first = core(&mut sandbox);
        sandbox.peer(SERVICE).queue(0, 1);
        set_present(&mut sandbox, &[1 - first]);
        sandbox.obey();
        sandbox.settle();
        assert_eq!(core(&mut sandbox), 1 - first);
        // A change that does not concern a core binds its owner again.
        sandbox.deeds();
        set_present(&mut sandbox, &[0, 1]);
        let bound = |deed: &Deed| matches!(deed, Deed::Bound { core, .. } if core.0 == 1 - first);
        assert!(sandbox.deeds().iter().any(bound));
    }

    #[test]
    fn a_core_that_is_gone_in_the_middle_of_a_hand_off_is_emptied_after_it() {
        let mut sandbox = busy_batch();
        arrival(&mut sandbox);
        set_present(&mut sandbox, &[]);
        assert!(sandbox.peer(BATCH).obey(0));
        sandbox.pass(200);
        assert!(sandbox.peer(SERVICE).obey(0), "the successor starts");
        sandbox.pass(200);
        assert_eq!(sandbox.peer(SERVICE).grant(0).0, Grant::Cede { successor: NextOwner::None });
        sandbox.settle();
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Parked);
        assert_eq!(sandbox.alloc.ledger.core(CoreId(0)), Some(CoreState::Absent));
    }

    #[test]
    fn who_keeps_a_core_that_is_gone_is_moved_off_it_and_leaves_it_absent() {
        let mut sandbox = busy_batch();
        set_present(&mut sandbox, &[]);
        sandbox.deeds();
        for _ in 0..8 {
            sandbox.pass(1_000_000);
        }
        assert_eq!(sandbox.deeds(), [Deed::Preempted { tid: 1 }, Deed::Bound { tid: 1, core: UNMANAGED }]);
        assert_eq!(sandbox.world.stats.cores.evictions.get(), 1);
        sandbox.end(tailwater_sched::RuntimeId(BATCH));
        sandbox.add(BATCH, 1, 0, BestEffort);
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.settle();
        assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Parked);
    }

    #[test]
    fn who_was_moved_off_a_core_that_is_gone_has_it_when_it_is_back_and_the_kthread_has_ceded() {
        let mut sandbox = busy_batch();
        set_present(&mut sandbox, &[]);
        sandbox.deeds();
        for _ in 0..8 {
            sandbox.pass(1_100_000);
        }
        assert_eq!(sandbox.alloc.ledger.core(CoreId(0)), Some(CoreState::Absent));
        set_present(&mut sandbox, &[0]);
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.tick();
        assert_eq!(
            sandbox.peer(BATCH).grant(0).0,
            Grant::Cede { successor: NextOwner::None },
            "granted before it ceded"
        );
        assert!(sandbox.peer(BATCH).obey(0));
        sandbox.settle();
        assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
    }

    #[test]
    fn a_core_that_goes_before_its_owner_has_started_is_absent_once_the_start_has_taken_too_long() {
        let mut sandbox = Sandbox::new(1, Vec::new());
        sandbox.add(BATCH, 1, 0, BestEffort);
        sandbox.add(SERVICE, 1, 0, LatencyCritical);
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.tick();
        assert!(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }));
        set_present(&mut sandbox, &[]);
        // Its process is stopped.
        sandbox.pass(15_000);
        arrival(&mut sandbox);
        assert_eq!(sandbox.peer(SERVICE).grant(0).0, Grant::Park, "the core is gone");
        sandbox.pass(21_000_000);
        assert_eq!(sandbox.alloc.ledger.core(CoreId(0)), Some(CoreState::Absent));
        assert_eq!(sandbox.peer(SERVICE).grant(0).0, Grant::Park);
        sandbox.peer(SERVICE).queue(0, 1);
        set_present(&mut sandbox, &[0]);
        sandbox.settle();
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
    }

    #[test]
    fn a_program_that_ends_on_a_core_that_is_gone_leaves_it_absent() {
        let mut sandbox = busy_batch();
        set_present(&mut sandbox, &[]);
        sandbox.end(tailwater_sched::RuntimeId(BATCH));
        arrival(&mut sandbox);
        sandbox.settle();
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Parked);
        set_present(&mut sandbox, &[0]);
        sandbox.peer(SERVICE).queue(0, 1);
        sandbox.settle();
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
    }
}
