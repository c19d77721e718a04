//! Cores to which Linux does not bind a runtime's threads.
//!
//! Owns what is remembered of them. The cpuset of a program may lack managed cores. A core that was
//! refused to one of its threads is lent to the program no more for [`REMEMBERED_US`]: the policy
//! chooses another one at the next look, and the demand waits for no time of its own. A cpuset that
//! was widened meanwhile takes effect after that time. The log names the program once. Each attempt
//! is a system call of 1 us, which is charged. A core that is [reserved](super::reserved) and that
//! the control group of a program will lose is refused without one.
//!
//! | what a program does | what happens |
//! |---|---|
//! | has its threads in a cpuset without some managed cores | it is lent the others; one attempt for each lacking core every ten seconds |
//! | has threads of one program in several cpusets | a core that is refused to one of them is lent to none |
//! | moves itself from cpuset to cpuset | charged attempts, and cores that it could have and is not lent |

use rustix::io::Errno;
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::Cycles;

use super::Allocator;
use crate::world::World;

/// Time for which a refused core is remembered, in microseconds.
const REMEMBERED_US: u64 = 10_000_000;
/// Time between two warnings about cpusets, in microseconds: programs come and go at will.
const WARNING_US: u64 = 1_000_000;

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
        if may_warn && !core::mem::replace(&mut runtime.refused_cores.has_warned, true) {
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
        let end = *runtime.refused_cores.forget_at.get_or_insert(end);
        self.earliest_timer = self.earliest_timer.min(end);
    }

    /// Returns true if the runtime could be lent the core at this position once it is free.
    pub(super) fn may_be_lent(&self, id: RuntimeId, at: usize) -> bool {
        let slot = &self.cores[at];
        !slot.absent
            && self.observation.may_have(&self.ledger, id, at)
            && self.policy.may_serve(id, slot.id, &self.ledger)
    }

    /// Forgets refused cores when their time has come.
    #[inline(always)]
    pub(super) fn end_refusals(&mut self, world: &mut World, id: RuntimeId, now: Cycles) {
        let Some(next) = world.runtimes.get(id).and_then(|runtime| runtime.refused_cores.forget_at) else {
            return;
        };
        if now < next {
            self.earliest_timer = self.earliest_timer.min(next);
            return;
        }
        self.try_cores_again(world, id);
    }

    #[cold]
    pub(super) fn try_cores_again(&mut self, world: &mut World, id: RuntimeId) {
        let Some(runtime) = world.runtimes.get_mut(id) else { return };
        runtime.refused_cores.forget_at = None;
        self.observation.forget_refused(id);
    }
}
