//! Flow groups that move to another kthread: their frames stay in order, and none is lost.
//!
//! Owns the step between the last frame of a group in one ring and the first in another. If the
//! first ring has been read that far, as nearly always, there is nothing to do. Otherwise a fence
//! (`tailwater_shm::ring::Fence`) goes before the frame, and the runtime reads the older ring
//! first: the kthread that gets the flow takes over what its predecessor had not read, as in IX
//! section 4.5. Frames stay where they are, so a move drops none, and no frame waits in the switch.
//!
//! From the first frame that is meant for the new ring on, the mark of a group names that ring,
//! whether or not the frame finds room there. A position of one ring never stands beside another
//! ring: a fence could then name records that are not committed yet, and fences wait in a circle.
//!
//! Also measures how long the fences hold frames up: until the older ring has been read, for a
//! second at most.
//!
//! # Crash and lie
//!
//! | what a runtime does | what happens |
//! |---|---|
//! | publishes that it has read what it has not | no fence: its own frames may be out of order |
//! | never reads the older ring | its frames behind the fence wait, and then are dropped at the full ring and counted |
//! | passes the fence all the same | its own frames are out of order |
//! | gives cores back and takes them, to have groups moved | a fence for each group with frames, 64 bytes of its own ring; its cores change hands at a bounded rate |
//! | never passes fences | they take [`MEASURED_EACH`] places of the measurements, for a second |
//! | ends | its measurements are dropped |

use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::Cycles;
use tailwater_shm::ring::ReserveError;

use super::flow::{Mark, NONE};
use crate::runtime::Runtime;
use crate::world::World;

/// Maximum number of fences whose time is measured at once; those beyond are counted only.
const MEASURED: usize = 64;
/// Those of one runtime.
const MEASURED_EACH: usize = 8;
/// Time after which a fence that was not passed is measured no further.
const LONGEST_NS: u64 = 1_000_000_000;

/// Fences that the readers have not been seen to pass.
#[derive(Debug, Default)]
pub(super) struct Moves {
    held: Vec<OpenFence>,
}

#[derive(Debug)]
struct OpenFence {
    runtime: RuntimeId,
    mark: Mark,
    since: Cycles,
}

impl Moves {
    /// Has frames of this flow hash go to the ring of their present kthread, behind those in the
    /// ring of the previous one.
    ///
    /// # Errors
    /// As [`Producer::fence`](tailwater_shm::ring::Producer::fence); then nothing has changed.
    #[cold]
    pub(super) fn follow(
        &mut self,
        runtime: &mut Runtime,
        hash: u32,
        counters: &tailwater_stats::SwitchCounters,
        now: Cycles,
    ) -> Result<(), ReserveError> {
        let mark = runtime.groups.mark(hash);
        let mut position = NONE;
        if !runtime.kthreads[usize::from(mark.kthread)].ingress.has_passed(mark.position) {
            let next = &mut runtime.kthreads[usize::from(runtime.groups.kthread(hash))].ingress;
            next.fence(mark.kthread, mark.position)?;
            position = next.position();
            counters.fenced_groups.add(1);
            if self.has_room(runtime.id) {
                self.held.push(OpenFence { runtime: runtime.id, mark, since: now });
            }
        }
        runtime.groups.follow(hash);
        runtime.groups.note(hash, position);
        if mark.position != NONE {
            counters.moved_groups.add(1);
        }
        Ok(())
    }

    /// Returns whether a further fence of the runtime is measured.
    fn has_room(&self, id: RuntimeId) -> bool {
        let own = self.held.iter().filter(|held| held.runtime == id).count();
        self.held.len() < MEASURED && own < MEASURED_EACH
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
        let longest = world.clock().from_ns(LONGEST_NS);
        self.held.retain(|held| {
            let (_, older) = world.runtimes.kthread(KthreadId::new(held.runtime, held.mark.kthread));
            let waits = !older.ingress.has_passed(held.mark.position);
            if !waits {
                world.stats.fence.record(world.clock().to_ns(now.saturating_sub(held.since)));
            }
            waits && now.saturating_sub(held.since) < longest
        });
    }

    /// Returns the number of fences whose time is being measured.
    #[cfg(test)]
    pub(super) fn measured(&self) -> usize {
        self.held.len()
    }

    /// Forgets the fences of a runtime that ends.
    pub(super) fn detach(&mut self, id: RuntimeId) {
        self.held.retain(|held| held.runtime != id);
    }
}
