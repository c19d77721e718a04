//! Flow groups that move to another kthread: their frames stay in order, and none is lost.
//!
//! Owns the step between the last frame of a group in one ring and the first in another. If the
//! first ring has been read that far, as nearly always, there is nothing to do. Otherwise a fence
//! (`tailwater_shm::ring::Fence`) goes before the frame, and the runtime reads the older ring
//! first: the kthread that gets the flow takes over what its predecessor had not read, as in IX
//! section 4.5. Frames stay where they are, so a move drops none, and no frame waits in the switch.
//!
//! Also measures how long the fences hold frames up: until the older ring has been read.
//!
//! # Crash and lie
//!
//! | what a runtime does | what happens |
//! |---|---|
//! | publishes that it has read what it has not | no fence: its own frames may be out of order |
//! | never reads the older ring | its frames behind the fence wait, and then are dropped at the full ring and counted |
//! | passes the fence all the same | its own frames are out of order |
//! | gives cores back and takes them, to have groups moved | a fence for each group with frames, 64 bytes of its own ring; its cores change hands at a bounded rate |
//! | ends | its measurements are dropped |

use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::Cycles;
use tailwater_shm::ring::ReserveError;

use super::flow::Mark;
use crate::runtime::Runtime;
use crate::world::World;

/// Maximum number of fences whose time is measured at once; those beyond are counted only.
const MEASURED: usize = 64;

/// Fences that the readers have not been seen to pass.
#[derive(Debug, Default)]
pub(super) struct Moves {
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    runtime: RuntimeId,
    mark: Mark,
    since: Cycles,
}

impl Moves {
    /// Has frames of this flow hash go to the ring of their present kthread, behind those in the
    /// ring of the one before.
    ///
    /// # Errors
    /// As [`Producer::fence`](tailwater_shm::ring::Producer::fence); then nothing has changed.
    #[cold]
    pub(super) fn follow(
        &mut self,
        runtime: &mut Runtime,
        hash: u32,
        counters: &crate::stats::SwitchCounters,
        now: Cycles,
    ) -> Result<(), ReserveError> {
        let mark = runtime.groups.mark(hash);
        if !runtime.kthreads[usize::from(mark.kthread)].ingress.has_passed(mark.position) {
            let next = &mut runtime.kthreads[usize::from(runtime.groups.kthread(hash))].ingress;
            next.fence(mark.kthread, mark.position)?;
            runtime.groups.note(hash, next.position());
            counters.fenced_groups.add(1);
            if self.held.len() < MEASURED {
                self.held.push(Held { runtime: runtime.id, mark, since: now });
            }
        }
        runtime.groups.follow(hash);
        counters.moved_groups.add(1);
        Ok(())
    }

    /// Records the time of the fences whose older ring has been read.
    #[inline]
    pub(super) fn measure(&mut self, world: &World, now: Cycles) {
        if !self.held.is_empty() {
            self.measure_held(world, now);
        }
    }

    #[cold]
    fn measure_held(&mut self, world: &World, now: Cycles) {
        self.held.retain(|held| {
            let (_, older) = world.runtimes.kthread(KthreadId::new(held.runtime, held.mark.kthread));
            let waits = !older.ingress.has_passed(held.mark.position);
            if !waits {
                world.stats.fence.record(world.clock().to_ns(now.saturating_sub(held.since)));
            }
            waits
        });
    }

    /// Forgets the fences of a runtime that ends.
    pub(super) fn detach(&mut self, id: RuntimeId) {
        self.held.retain(|held| held.runtime != id);
    }
}
