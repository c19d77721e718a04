//! Work stealing: a queue per worker, and idle workers take from the others (ZygOS; Shenango
//! section 5).
//!
//! Owns the queues and a small generator for the order of victims, seeded by the caller so that a
//! run repeats. It approximates c-FCFS: no worker idles while work waits, but service is first
//! come, first served only per queue. A thief takes one request, or up to half of the victim's
//! queue (Shenango's runtime), at most [`STEAL_MAX`] at once so that one steal is a constant amount
//! of work.

use heap::collections::VecDeque;
use heap::vec;
use heap::vec::Vec;

use super::crew::Crew;
use super::protocol::{Assignment, Broken, Dispatch, Origin, Properties, Reaction, Request, WorkerId};
use super::worker_set::WorkerSet;
use crate::ids::Nanos;

/// Maximum number of requests one steal moves.
pub const STEAL_MAX: usize = 16;

/// Work stealing over one FCFS queue per worker.
#[derive(Clone, Debug)]
pub struct WorkStealing {
    queues: Vec<VecDeque<Request>>,
    /// Workers whose queue is not empty.
    loaded: WorkerSet,
    crew: Crew,
    queued: usize,
    batch: usize,
    rng: u64,
}

impl WorkStealing {
    /// Creates a policy for workers `0..workers`. `batch` is the most a thief takes at once,
    /// clamped to 1..=[`STEAL_MAX`] (and never more than half of the victim's queue, rounded up).
    /// `seed` orders the search for victims.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS).
    #[must_use]
    pub fn new(workers: usize, batch: usize, seed: u64) -> Self {
        Self {
            queues: vec![VecDeque::new(); workers],
            loaded: WorkerSet::new(workers),
            crew: Crew::new(workers),
            queued: 0,
            batch: batch.clamp(1, STEAL_MAX),
            rng: seed,
        }
    }

    fn push(&mut self, home: WorkerId, request: Request, front: bool) -> Reaction {
        let queue = &mut self.queues[home.index()];
        if front {
            queue.push_front(request);
        } else {
            queue.push_back(request);
        }
        self.loaded.insert(home);
        self.queued += 1;
        // The home worker if it is idle, else the nearest idle one, which is polling its
        // neighbours' queues.
        self.crew.call_idle_from(home)
    }

    /// Returns a random worker by a SplitMix64 step (Steele, Lea and Flood, OOPSLA'14): random
    /// enough to scatter thieves, cheap enough for a steal.
    fn random_worker(&mut self) -> WorkerId {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        WorkerId((((z >> 32) * self.queues.len() as u64) >> 32) as u32)
    }

    fn take(&mut self, from: WorkerId) -> Option<Request> {
        let queue = &mut self.queues[from.index()];
        let request = queue.pop_front();
        if queue.is_empty() {
            self.loaded.remove(from);
        }
        request
    }

    fn steal_for(&mut self, thief: WorkerId) -> Option<(Request, WorkerId)> {
        let start = self.random_worker();
        let victim = self.loaded.first_from(start)?;
        let share = self.queues[victim.index()].len().div_ceil(2).min(self.batch);
        let first = self.take(victim)?;
        for _ in 1..share {
            if let Some(request) = self.take(victim) {
                self.queues[thief.index()].push_back(request);
                self.loaded.insert(thief);
            }
        }
        Some((first, victim))
    }
}

impl Dispatch for WorkStealing {
    fn name(&self) -> &'static str {
        "stealing"
    }

    fn properties(&self) -> Properties {
        Properties { central: false, work_conserving: true, preemptive: false }
    }

    fn on_arrival(&mut self, _now: Nanos, request: Request) -> Reaction {
        let home = request.flow.home(self.queues.len());
        self.push(home, request, false)
    }

    fn next_for(&mut self, worker: WorkerId, _now: Nanos) -> Option<Assignment> {
        let found = match self.take(worker) {
            Some(request) => Some((request, Origin::Local)),
            None => self.steal_for(worker).map(|(request, victim)| (request, Origin::Stolen(victim))),
        };
        self.queued -= usize::from(found.is_some());
        let given = found.map(|(request, origin)| Assignment { request, slice_ns: None, origin });
        self.crew.asked(worker, given)
    }

    fn on_preempt(&mut self, worker: WorkerId, _now: Nanos, request: Request) -> Reaction {
        self.push(worker, request, true)
    }

    /// Leaves the worker's queue to the thieves, who empty it.
    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.crew.leave(worker);
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn idle(&self) -> usize {
        self.crew.idle()
    }

    fn check(&self) -> Result<(), Broken> {
        self.loaded.check()?;
        if self.queues.iter().map(VecDeque::len).sum::<usize>() != self.queued {
            return Err(Broken::Count);
        }
        let wrong =
            |(i, q): (usize, &VecDeque<Request>)| q.is_empty() == self.loaded.contains(WorkerId(i as u32));
        if self.queues.iter().enumerate().any(wrong) {
            return Err(Broken::LoadedSet);
        }
        self.crew.check(self.queued)
    }
}
