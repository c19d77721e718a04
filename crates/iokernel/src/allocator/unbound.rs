//! Cores to which Linux does not bind a runtime's threads.
//!
//! Owns what is remembered of them. The cpuset of a program may lack managed cores. A core that was
//! refused to one of its threads is lent to the program no more for ten seconds
//! ([`refusal`](super::phase::Bounds::refusal)): the policy chooses another one at the next look. A
//! cpuset that was widened meanwhile takes effect after that time. The log names the program once.
//! Each attempt is a system call of 1 us, which is charged.
//!
//! | what a program does | what happens |
//! |---|---|
//! | has its threads in a cpuset without some managed cores | it is lent the others; one attempt for each lacking core every ten seconds |
//! | has threads of one program in several cpusets | a core that is refused to one of them is lent to none |
//! | moves itself from cpuset to cpuset | charged attempts, and cores that it could have and is not lent |

use rustix::io::Errno;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::Cycles;

use super::Allocator;
use crate::world::World;

impl Allocator {
    /// Remembers that Linux does not bind a thread of the runtime to a core. A thread that is gone
    /// shows nothing about cores.
    pub(super) fn note_refused(
        &mut self,
        world: &mut World,
        kthread: KthreadId,
        at: usize,
        error: Errno,
        now: Cycles,
    ) {
        let (id, core) = (kthread.runtime, self.cores[at].id);
        tracing::debug!(%kthread, %core, %error, "cannot bind");
        world.stats.cores.rebind_failures.add(1);
        let Some(runtime) = world.runtimes.get_mut(id).filter(|_| error != Errno::SRCH) else { return };
        self.observation.refuse(id, at);
        let end = now.saturating_add(self.bounds.refusal);
        let end = *runtime.refused_cores.forget_at.get_or_insert(end);
        self.earliest_timer = self.earliest_timer.min(end);
        let may_warn = now >= self.next_warning;
        if may_warn && !core::mem::replace(&mut runtime.refused_cores.has_warned, true) {
            self.next_warning = now.saturating_add(self.bounds.warning);
            let name = &runtime.stats.name;
            if error == Errno::PERM {
                tracing::warn!(
                    name, %core, %error,
                    "Linux does not let this IOKernel bind a thread of a program, which has got capabilities that the \
                     IOKernel lacks: it is not lent the core; give the IOKernel CAP_SYS_NICE, or take the capabilities \
                     from the program"
                );
            } else {
                tracing::warn!(
                    name, %core, %error,
                    "Linux does not let a program have a managed core: it is lent the others; give its control group \
                     all managed cores (cpuset.cpus, AllowedCPUs)"
                );
            }
        }
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
        if let Some(runtime) = world.runtimes.get_mut(id) {
            runtime.refused_cores.forget_at = None;
        }
        self.observation.forget_refused(id);
    }
}
