//! The real-time rank of services' kthreads, on a shared machine.
//!
//! A kthread with real-time rank preempts an ordinary program on its core at once, and is not
//! preempted by one: with ordinary rank it would wait for a turn of a timer tick (4 ms at 250 Hz)
//! where sessions or control groups compete. Linux stops real-time threads that use more than 95 %
//! of a core for the rest of the second (sched(7), "Limiting the CPU usage"), so a kthread that
//! keeps its core *rests* before that: for one look it has the highest rank of ordinary threads.
//!
//! Owns the ranks and, for each core, an account of how long services have held it.

use tailwater_sched::ledger::Class;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::Cycles;

use super::Allocator;
use super::phase::{How, Phase, Withdrawn};
use crate::world::World;

/// Time that services may hold a core in real time before a rest, in microseconds.
const LIMIT_US: u64 = 10_000;
/// Time in real time that a core pays for with one unit of rest, or of time without a service:
/// services have real-time rank for at most 10/11 of the time.
const PER_REST: Cycles = 10;

/// A core's account of real time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RealTime {
    /// Real time that is not paid for with rest yet.
    used: Cycles,
    resting: Option<KthreadId>,
}

impl Allocator {
    /// Sets whether services' kthreads have real-time rank; called before the first attachment.
    pub(crate) fn set_real_time(&mut self, real_time: bool) {
        self.real_time = real_time;
    }

    /// Gives the kthreads of a service that joins or leaves real-time or ordinary rank.
    pub(super) fn rank_service(&mut self, world: &World, id: RuntimeId, real_time: bool) {
        let kthreads = world.runtimes.get(id).map_or(0, |runtime| runtime.kthreads.len() as u16);
        for index in 0..kthreads {
            self.rank_kthread(world, KthreadId { runtime: id, index }, real_time);
        }
    }

    /// Keeps the account of each core and lets kthreads rest; called every few hundred
    /// microseconds.
    pub(crate) fn rest_services(&mut self, world: &mut World, now: Cycles) {
        let passed = now.saturating_sub(core::mem::replace(&mut self.last_rest_look, now));
        if !self.real_time {
            return;
        }
        let limit = self.clock.from_ns(LIMIT_US * 1_000);
        for at in 0..self.cores.len() {
            let holder = match self.cores[at].phase {
                Phase::Starting { kthread, .. } | Phase::Running { kthread, .. } => Some(kthread),
                Phase::Ceding { from, .. } => Some(from),
                Phase::Free => None,
            };
            let service = holder.filter(|holder| self.class_of(holder.runtime) == Class::LatencyCritical);
            let RealTime { used, resting } = self.cores[at].real_time;
            if let Some(kthread) = resting {
                self.rank_kthread(world, kthread, true);
            }
            let in_real_time = service.is_some() && service != resting;
            let used = match in_real_time {
                // Before a look that is late, the core may have been free.
                true => used.saturating_add(passed.min(limit)),
                false => used.saturating_sub(passed.saturating_mul(PER_REST)),
            };
            let resting = service.filter(|_| used > limit);
            if let Some(kthread) = resting {
                self.rank_kthread(world, kthread, false);
            }
            self.cores[at].real_time = RealTime { used, resting };
        }
    }

    /// Gives a kthread real-time or ordinary rank, if it is a service's; no real-time rank while it
    /// is off the managed cores.
    pub(super) fn rank_kthread(&mut self, world: &World, id: KthreadId, real_time: bool) {
        let forced_off = |w: &Withdrawn| w.kthread == id && w.how == How::ByForce;
        let service = self.class_of(id.runtime) == Class::LatencyCritical;
        if !self.real_time || !service || (real_time && self.withdrawn.iter().any(forced_off)) {
            return;
        }
        let Some(runtime) = world.runtimes.get(id.runtime) else { return };
        let tid = runtime.kthreads[usize::from(id.index)].tid;
        // Fails if Linux refuses it or the thread is gone: then its rank stays.
        let _ = self.threads.set_real_time(runtime.pid, tid, real_time);
    }

    /// Returns how many kthreads are runnable, at least and at most: the owners of lent cores, and
    /// perhaps those that have ceded one to a service or lost it otherwise.
    pub(crate) fn runnable_kthreads(&self) -> (usize, usize) {
        let (mut least, mut most) = (0, self.withdrawn.len());
        for slot in &self.cores {
            match slot.phase {
                Phase::Free => {}
                Phase::Running { kthread, .. } if self.class_of(kthread.runtime) == Class::BestEffort => {
                    least += 1;
                    most += 1;
                }
                _ => {
                    least += 1;
                    most += 2;
                }
            }
        }
        (least, most)
    }
}
