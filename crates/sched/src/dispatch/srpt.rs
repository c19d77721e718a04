//! Shortest remaining processing time, preemptive: the reference that knows every request's length
//! in advance.
//!
//! Owns a heap of waiting requests by remaining work, and an ordered index of the running ones by
//! finishing time. The policy is optimal for mean latency on one worker (Schrage and Miller 1966)
//! and unfair to long requests. A real system cannot know the lengths, so this is a bound to
//! compare with, not a policy to run. A request with `remaining_ns` 0 (unknown) sorts first.
//!
//! The index assumes that a request started at `t` with remaining work `r` ends at `t + r`. A
//! driver that charges overheads makes that slightly early, which costs optimality, never
//! correctness.

use core::cmp::Reverse;
use heap::collections::{BTreeSet, BinaryHeap};
use heap::vec;
use heap::vec::Vec;

use super::crew::Crew;
use super::protocol::{Assignment, Broken, Dispatch, Origin, Properties, Reaction, Request, WorkerId};
use crate::ids::Nanos;

/// Heap entry: remaining work, then order of insertion, so that equal requests run first come,
/// first served.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    remaining_ns: Nanos,
    order: u64,
    request: Request,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        (self.remaining_ns, self.order) == (other.remaining_ns, other.order)
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.remaining_ns, self.order).cmp(&(other.remaining_ns, other.order))
    }
}

/// SRPT over any number of workers.
#[derive(Clone, Debug)]
pub struct ShortestRemaining {
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// Running requests by expected end; the last one is preempted first.
    running: BTreeSet<(Nanos, WorkerId)>,
    ends: Vec<Option<Nanos>>,
    crew: Crew,
    order: u64,
}

impl ShortestRemaining {
    /// Creates a policy for workers `0..workers`.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS).
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self {
            waiting: BinaryHeap::new(),
            running: BTreeSet::new(),
            ends: vec![None; workers],
            crew: Crew::new(workers),
            order: 0,
        }
    }

    fn push(&mut self, now: Nanos, request: Request) -> Reaction {
        let end = now + request.remaining_ns;
        self.waiting.push(Reverse(Waiting {
            remaining_ns: request.remaining_ns,
            order: self.order,
            request,
        }));
        self.order += 1;
        match (self.crew.call_idle(), self.running.last().copied()) {
            (Reaction::Queue, Some((longest, worker))) if end < longest => {
                self.forget(worker);
                self.crew.call(worker);
                Reaction::Preempt(worker)
            }
            (reaction, _) => reaction,
        }
    }

    fn forget(&mut self, worker: WorkerId) {
        if let Some(end) = self.ends[worker.index()].take() {
            self.running.remove(&(end, worker));
        }
    }
}

impl Dispatch for ShortestRemaining {
    fn name(&self) -> &'static str {
        "SRPT"
    }

    fn properties(&self) -> Properties {
        Properties { central: true, work_conserving: true, preemptive: true }
    }

    fn on_arrival(&mut self, now: Nanos, request: Request) -> Reaction {
        self.push(now, request)
    }

    fn next_for(&mut self, worker: WorkerId, now: Nanos) -> Option<Assignment> {
        let next = self.waiting.pop().map(|Reverse(Waiting { request, .. })| request);
        if let Some(request) = &next {
            let end = now + request.remaining_ns;
            self.ends[worker.index()] = Some(end);
            self.running.insert((end, worker));
        }
        self.crew.asked(
            worker,
            next.map(|request| Assignment { request, slice_ns: None, origin: Origin::Central }),
        )
    }

    fn on_preempt(&mut self, worker: WorkerId, now: Nanos, request: Request) -> Reaction {
        self.forget(worker);
        self.push(now, request)
    }

    fn on_done(&mut self, worker: WorkerId, _now: Nanos) {
        self.forget(worker);
    }

    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.forget(worker);
        self.crew.leave(worker);
    }

    fn queued(&self) -> usize {
        self.waiting.len()
    }

    fn idle(&self) -> usize {
        self.crew.idle()
    }

    fn check(&self) -> Result<(), Broken> {
        if self.running.len() != self.ends.iter().flatten().count() {
            return Err(Broken::RunningIndex);
        }
        self.crew.check(self.waiting.len())
    }
}
