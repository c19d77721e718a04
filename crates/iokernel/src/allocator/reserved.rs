//! Reserves cores for the programs that requested them.
//!
//! Owns the choice, by the ledger and what the policy has granted; [`tailwater_host::Keeper`] keeps
//! ordinary threads off these cores. A program has as many as it is granted, each of which it has
//! had at some time since its request. A reserved core stays so while the program has no work, and
//! while other programs are lent it meanwhile; without that, threads would be moved back and forth
//! with each burst. When the program has had another core instead for [`AWAY`], that one is
//! reserved in its place. A core with an exclusive thread is reserved before the program's others,
//! and in place of one of those at once: it is the thread that must be alone. The end of a request
//! or of its program ends the reservation. Of the cores that a program has beyond its own, the
//! policy takes those first that are not reserved.
//!
//! Linux keeps the threads of a program that is in one of these control groups off them, too: such
//! a program is [confined](RuntimeLook::is_confined). No core is reserved for it. A reserved core
//! is [closed](tailwater_sched::alloc::Observation::set_closed) to it, and for [`REOPENED`] after
//! the reservation: until then its control group may not have the core back. Other programs lose
//! nothing by it.

use rustix::thread::CpuSet;
use tailwater_host::cpu_set;
use tailwater_sched::alloc::RuntimeLook;
use tailwater_sched::ledger::{CoreState, Ledger};
use tailwater_sched::{KthreadId, Nanos, RuntimeId};
use tailwater_shm::Cycles;

use super::Allocator;
use crate::world::World;

/// Time for which a program has another core in place of a reserved one, before that one is
/// reserved.
const AWAY: Nanos = Nanos::from_millis(100);
/// Time after which the control groups have a core back that is no longer reserved.
const REOPENED: Nanos = Nanos::from_millis(100);
/// Time between two looks. A request that ends is found at the next one.
const LOOK: Nanos = Nanos::from_millis(5);

/// A reservation: for whom, and when that program was last seen to have the core.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    runtime: RuntimeId,
    had: Nanos,
}

/// The reserved cores. See the module header.
#[derive(Debug)]
pub(super) struct Reserved {
    /// By the position of the core in the topology.
    cores: Vec<Option<Reservation>>,
    /// By position, too: when the core was last seen reserved; `None` if confined programs may be
    /// lent it.
    closed: Vec<Option<Nanos>>,
    /// Others than when they were last taken.
    changed: bool,
    next_look: Nanos,
}

/// Returns the runtime that has the core, or that it moves to.
fn holder(state: CoreState) -> Option<RuntimeId> {
    match state {
        CoreState::Owned { kthread, .. } => Some(kthread.runtime),
        CoreState::Moving { to, .. } => Some(to.runtime),
        CoreState::Free | CoreState::Absent => None,
    }
}

impl Reserved {
    /// Of a machine with this many managed cores.
    pub(super) fn new(cores: usize) -> Self {
        Self { cores: vec![None; cores], closed: vec![None; cores], changed: false, next_look: Nanos::ZERO }
    }

    /// Looks at who has which core; `granted` returns how many cores are reserved for a runtime at
    /// most, `hosts` whether a kthread has an exclusive thread.
    fn look(
        &mut self,
        ledger: &Ledger,
        now: Nanos,
        granted: impl Fn(RuntimeId) -> u16,
        hosts: impl Fn(KthreadId) -> bool,
    ) {
        self.next_look = now + LOOK;
        for (slot, &state) in self.cores.iter_mut().zip(ledger.cores()) {
            let Some(reservation) = slot else { continue };
            if holder(state) == Some(reservation.runtime) {
                reservation.had = now;
            }
            if granted(reservation.runtime) == 0 || state == CoreState::Absent {
                (*slot, self.changed) = (None, true);
            }
        }
        for &runtime in ledger.runtimes() {
            let granted = usize::from(granted(runtime));
            if granted > 0 {
                self.adjust(ledger, runtime, granted, now, &hosts);
            }
        }
        for (closed, reservation) in self.closed.iter_mut().zip(&self.cores) {
            if reservation.is_some() {
                *closed = Some(now);
            } else if closed.is_some_and(|then| now.since(then) >= REOPENED) {
                *closed = None;
            }
        }
    }

    /// Reserves as many cores for a runtime as it is granted, as far as it has had them.
    fn adjust(
        &mut self,
        ledger: &Ledger,
        runtime: RuntimeId,
        granted: usize,
        now: Nanos,
        hosts: &impl Fn(KthreadId) -> bool,
    ) {
        let is_hosting = |at: usize| {
            let owner = match ledger.cores()[at] {
                CoreState::Owned { kthread, .. } => Some(kthread),
                _ => None,
            };
            owner.is_some_and(|kthread| kthread.runtime == runtime && hosts(kthread))
        };
        while self.of(runtime).count() > granted {
            let least = self.of(runtime).min_by_key(|&(at, had)| (is_hosting(at), had));
            let Some((at, _)) = least else { break };
            (self.cores[at], self.changed) = (None, true);
        }
        for hosting in [true, false] {
            for at in 0..self.cores.len() {
                let is_candidate = self.cores[at].is_none() && holder(ledger.cores()[at]) == Some(runtime);
                if !is_candidate || is_hosting(at) != hosting {
                    continue;
                }
                if self.of(runtime).count() == granted {
                    let may_go = |&(other, had): &(usize, Nanos)| match hosting {
                        true => !is_hosting(other),
                        false => now.since(had) >= AWAY,
                    };
                    let other = self.of(runtime).filter(may_go).min_by_key(|&(_, had)| had);
                    let Some((other, _)) = other else { break };
                    self.cores[other] = None;
                }
                (self.cores[at], self.changed) = (Some(Reservation { runtime, had: now }), true);
            }
        }
    }

    /// Returns the positions of the cores reserved for the runtime, and when it last had them.
    fn of(&self, runtime: RuntimeId) -> impl Iterator<Item = (usize, Nanos)> + '_ {
        let reserved = self.cores.iter().enumerate().filter_map(|(at, slot)| Some((at, (*slot)?)));
        reserved.filter(move |(_, slot)| slot.runtime == runtime).map(|(at, slot)| (at, slot.had))
    }
}

impl Allocator {
    /// Looks at which cores are reserved, if that is due, or `at_once`. Returns them if they are
    /// others than at the last call that did.
    pub(crate) fn take_reserved(&mut self, world: &mut World, now: Cycles, at_once: bool) -> Option<CpuSet> {
        let now = self.nanos(now);
        let reserved = self.reserved.as_mut().filter(|reserved| at_once || now >= reserved.next_look)?;
        let observation = &self.observation;
        let is_confined = |id| observation.runtime(id).is_some_and(RuntimeLook::is_confined);
        let granted = |id| if is_confined(id) { 0 } else { self.policy.granted(id) };
        let hosts = |id| observation.kthread(id).is_some_and(|kthread| kthread.hosted);
        reserved.look(&self.ledger, now, granted, hosts);
        let changed = core::mem::take(&mut reserved.changed);
        if changed {
            // Linux takes a reserved core from the threads that are bound to it.
            for runtime in world.runtimes.iter_mut().filter(|runtime| is_confined(runtime.id)) {
                runtime.kthreads.iter_mut().for_each(|kthread| kthread.bound = None);
            }
            let owners = reserved.cores.iter().map(|slot| slot.map(|slot| slot.runtime));
            self.observation.set_reserved(owners);
        }
        self.observation.set_closed(reserved.closed.iter().map(Option::is_some));
        let all = self.ledger.topology().cores().iter().zip(&reserved.cores);
        changed.then(|| cpu_set(all.filter(|(_, slot)| slot.is_some()).map(|(core, _)| &core.id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_sched::CoreId;
    use tailwater_sched::ledger::{RuntimeClass, RuntimeSpec};
    use tailwater_sched::topology::Topology;

    #[test]
    fn reservations_follow_a_program_that_has_another_core_for_long() {
        let (id, start) = (RuntimeId(1), Nanos::from_millis(1));
        let mut ledger = Ledger::new(Topology::uniform(2, 1, 1).unwrap());
        let spec = RuntimeSpec { class: RuntimeClass::LatencyCritical, kthreads: 1, guaranteed: 0, max: 1 };
        ledger.register(id, spec, start).unwrap();
        let mut reserved = Reserved::new(2);
        let mut look = |ledger: &Ledger, now| {
            reserved.look(ledger, now, |_| 1, |_| false);
            [0, 1].map(|at| reserved.cores[at].is_some())
        };
        assert_eq!(look(&ledger, start), [false, false], "it has had none");
        let kthread = KthreadId { runtime: id, index: 0 };
        ledger.grant(CoreId(0), kthread, start).unwrap();
        assert_eq!(look(&ledger, start), [true, false]);
        ledger.release(kthread, start).unwrap();
        ledger.grant(CoreId(1), kthread, start).unwrap();
        assert_eq!(look(&ledger, start + LOOK), [true, false]);
        assert_eq!(look(&ledger, start + AWAY), [false, true]);
    }

    #[test]
    fn of_the_cores_of_a_program_that_with_its_exclusive_thread_is_reserved() {
        let (id, start) = (RuntimeId(1), Nanos::from_millis(1));
        let mut ledger = Ledger::new(Topology::uniform(2, 1, 1).unwrap());
        let spec = RuntimeSpec { class: RuntimeClass::LatencyCritical, kthreads: 2, guaranteed: 0, max: 2 };
        ledger.register(id, spec, start).unwrap();
        let kthread = |index| KthreadId { runtime: id, index };
        // It is lent both, and granted one of them.
        (0..2).for_each(|n| ledger.grant(CoreId(n), kthread(n), start).unwrap());
        let mut reserved = Reserved::new(2);
        let mut look = |host: Option<u16>| {
            reserved.look(&ledger, start, |_| 1, |kthread| Some(kthread.index) == host);
            [0, 1].map(|at| reserved.cores[at].is_some())
        };
        assert_eq!(look(None), [true, false]);
        assert_eq!(look(Some(1)), [false, true], "at once, although it has the other one still");
        assert_eq!(look(None), [false, true], "while the thread waits");
        assert_eq!(look(Some(0)), [true, false]);
    }
}
