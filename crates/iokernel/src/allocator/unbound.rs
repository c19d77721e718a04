//! Cores to which Linux does not bind a runtime's threads.
//!
//! Owns what is remembered of them, and the hold. The cpuset of a program may lack managed cores. A
//! core that was refused to one of its threads is lent to the program no more for
//! [`REMEMBERED_US`]: the policy chooses another one at the next look, and the demand waits for no
//! time of its own. A cpuset that was widened meanwhile takes effect after that time. The log names
//! the program once.
//!
//! A runtime for which no core is left to choose, or whose thread is gone, is lent none for a time
//! that doubles from [`UNBOUND_US`] on, [`UNBOUND_DOUBLINGS`] times, until it was lent one. Its
//! words are read as before. Then all its cores are tried again. Each attempt is a system call of
//! 1 us, and is charged. A core that is [reserved](super::reserved) and that the control group of a
//! program will lose is refused without one.
//!
//! | what a program does | what happens |
//! |---|---|
//! | has its threads in a cpuset without some managed cores | it is lent the others; one attempt for each lacking core every ten seconds |
//! | has them in one without any | attempts for each managed core, every 64 ms in the end, charged |
//! | has threads of one program in several cpusets | a core that is refused to one of them is lent to none |
//! | moves itself from cpuset to cpuset | charged attempts, and cores that it could have and is not lent |

use rustix::io::Errno;
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::Cycles;

use super::Allocator;
use crate::tenant::Work;
use crate::world::World;

/// Time for which a refused core is remembered, in microseconds.
const REMEMBERED_US: u64 = 10_000_000;
/// First time for which a runtime is lent no core after all were refused to it, in microseconds.
const UNBOUND_US: u64 = 1_000;
/// Maximum number of its doublings: 64 ms.
const UNBOUND_DOUBLINGS: u32 = 6;
/// Time between two warnings about cpusets, in microseconds: programs come and go at will.
const WARNING_US: u64 = 1_000_000;

/// What is remembered of one runtime.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unbound {
    /// Time at which its refused cores are forgotten; `None` if there are none.
    forget_at: Option<Cycles>,
    /// Time from which it may be lent cores again; `None` if it may.
    held_until: Option<Cycles>,
    /// Holds in a row.
    row: u32,
    has_warned: bool,
}

impl Unbound {
    /// Returns when the hold or the memory ends next.
    fn next(&self) -> Option<Cycles> {
        self.forget_at.into_iter().chain(self.held_until).min()
    }
}

impl Allocator {
    /// Remembers that Linux does not bind a thread of the runtime to a core. A thread that is gone
    /// shows nothing about cores.
    pub(super) fn note_refused(
        &mut self,
        world: &mut World,
        kthread: KthreadId,
        core: CoreId,
        error: Errno,
        now: Cycles,
    ) {
        let (id, at) = (kthread.runtime, self.ledger.topology().position(core));
        tracing::debug!(%kthread, %core, %error, "cannot bind");
        world.stats.cores.rebind_failures.add(1);
        let Some(at) = at.filter(|_| error != Errno::SRCH) else { return };
        self.remember_refused(world, id, at, now);
        let may_warn = now >= self.next_warning;
        let Some(runtime) = world.runtimes.get_mut(id) else { return };
        if may_warn && !core::mem::replace(&mut runtime.unbound.has_warned, true) {
            self.next_warning = now.saturating_add(self.clock.from_ns(WARNING_US * 1_000));
            tracing::warn!(
                name = runtime.stats.name, %core, %error,
                "Linux does not let a program have a managed core: it is lent the others; give its control group all \
                 managed cores (cpuset.cpus, AllowedCPUs)"
            );
        }
    }

    /// Has the policy choose the core at this position no more for the runtime.
    pub(super) fn remember_refused(&mut self, world: &mut World, id: RuntimeId, at: usize, now: Cycles) {
        self.observation.refuse(id, at);
        let end = now.saturating_add(self.clock.from_ns(REMEMBERED_US * 1_000));
        let Some(runtime) = world.runtimes.get_mut(id) else { return };
        let end = *runtime.unbound.forget_at.get_or_insert(end);
        self.earliest_timer = self.earliest_timer.min(end);
    }

    /// Handles a decision for a runtime of which a thread could be bound to no core; the attempts
    /// have taken `cost`. If the thread is gone, or the policy has no other core to choose, the
    /// runtime is lent none for a while; the policy serves others meanwhile.
    pub(super) fn give_up_binding(
        &mut self,
        world: &mut World,
        id: RuntimeId,
        error: Errno,
        cost: Cycles,
        now: Cycles,
    ) {
        if error == Errno::SRCH || !self.has_choice(id) {
            self.hold(world, id, now);
        }
        world.charge(id, Work::Refused, cost, now);
    }

    /// Returns whether there is a core that the runtime could be lent and that was not refused.
    fn has_choice(&self, id: RuntimeId) -> bool {
        self.observation.runtime(id).is_some() && (0..self.cores.len()).any(|at| self.may_be_lent(id, at))
    }

    /// Returns true if the runtime could be lent the core at this position once it is free.
    pub(super) fn may_be_lent(&self, id: RuntimeId, at: usize) -> bool {
        let slot = &self.cores[at];
        !slot.absent
            && self.observation.may_have(&self.ledger, id, at)
            && self.policy.may_serve(id, slot.id, &self.ledger)
    }

    fn hold(&mut self, world: &mut World, id: RuntimeId, now: Cycles) {
        let first = self.clock.from_ns(UNBOUND_US * 1_000);
        let Some(runtime) = world.runtimes.get_mut(id) else { return };
        let until = now.saturating_add(first << runtime.unbound.row.min(UNBOUND_DOUBLINGS));
        runtime.unbound.row = runtime.unbound.row.saturating_add(1);
        runtime.unbound.held_until = Some(until);
        self.observation.set_on_hold(id, true);
        self.earliest_timer = self.earliest_timer.min(until);
    }

    /// Ends the row of holds.
    #[inline]
    pub(super) fn note_bound(world: &mut World, id: RuntimeId) {
        if let Some(runtime) = world.runtimes.get_mut(id) {
            runtime.unbound.row = 0;
        }
    }

    /// Ends a hold, and forgets refused cores, when their time has come.
    #[inline(always)]
    pub(super) fn end_hold(&mut self, world: &mut World, id: RuntimeId, now: Cycles) {
        let Some(next) = world.runtimes.get(id).and_then(|runtime| runtime.unbound.next()) else { return };
        if now < next {
            self.earliest_timer = self.earliest_timer.min(next);
            return;
        }
        self.try_cores_again(world, id);
    }

    #[cold]
    pub(super) fn try_cores_again(&mut self, world: &mut World, id: RuntimeId) {
        let Some(runtime) = world.runtimes.get_mut(id) else { return };
        runtime.unbound.forget_at = None;
        let was_held = runtime.unbound.held_until.take().is_some();
        self.observation.forget_refused(id);
        if was_held && !runtime.doomed {
            self.observation.set_on_hold(id, false);
        }
    }
}
