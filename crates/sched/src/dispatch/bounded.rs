//! Join the bounded shortest queue, JBSQ(k): a dispatcher keeps a central queue and hands a worker
//! its next requests before it has finished (R2P2, ATC'19; with preemption Concord, SOSP'23).
//!
//! Owns the central queue, the queues of the workers, and the list of overdue workers, as
//! [`SingleQueue`](super::SingleQueue) has it. A worker has at most `depth` requests, the one that
//! it runs and those that wait at it, so it does not wait for the dispatcher between two requests;
//! in return those few may wait behind a long one while another worker has nothing. With a depth of
//! 1 it is c-FCFS, or with a quantum the single queue.
//!
//! | event | where requests go |
//! |---|---|
//! | one arrives | a worker idles, or is overdue: to the central queue, and that worker is called; else to the worker with the shortest queue below the bound, if there is one |
//! | a worker asks | it takes the first of its own queue, else of the central one; what is left there goes to the shortest queues below the bound, unless a called worker has yet to ask |
//! | a worker is preempted | what waits at it goes back to the head of the central queue, and its request to the tail |
//!
//! # Invariants
//! - A worker has at most `depth` requests.
//! - While a request is in the central queue and no worker is called, no worker idles or is
//!   overdue, and every worker that runs has a full queue.

use heap::collections::{BTreeSet, VecDeque};
use heap::vec;
use heap::vec::Vec;

use super::crew::Crew;
use super::protocol::{
    Assignment, Broken, Dispatch, Origin, Properties, QuantumDecision, Reaction, Request, WorkerId,
};
use super::worker_set::WorkerSet;
use crate::ids::Nanos;

/// Maximum number of requests that a worker may have.
pub const DEPTH_MAX: usize = 8;

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct BoundedQueues {
    central: VecDeque<Request>,
    /// Requests that wait at each worker.
    local: Vec<VecDeque<Request>>,
    /// Workers that run a request, are not overdue, and have so many waiting: 0 to `depth - 2`.
    room: Vec<WorkerSet>,
    crew: Crew,
    /// Overdue workers, ordered by the time at which their quantum ran out.
    overdue: BTreeSet<(Nanos, WorkerId)>,
    overdue_since: Vec<Option<Nanos>>,
    queued: usize,
    depth: usize,
    quantum_ns: Option<Nanos>,
}

impl BoundedQueues {
    /// Creates a policy for workers `0..workers`, each of which has at most `depth` requests,
    /// clamped to 1..=[`DEPTH_MAX`]. With a quantum a request gives way to those that wait.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS).
    #[must_use]
    pub fn new(workers: usize, depth: usize, quantum_ns: Option<Nanos>) -> Self {
        let depth = depth.clamp(1, DEPTH_MAX);
        Self {
            central: VecDeque::new(),
            local: vec![VecDeque::new(); workers],
            room: vec![WorkerSet::new(workers); depth - 1],
            crew: Crew::new(workers),
            overdue: BTreeSet::new(),
            overdue_since: vec![None; workers],
            queued: 0,
            depth,
            quantum_ns,
        }
    }

    /// Returns the number of requests that wait at `worker`.
    #[must_use]
    pub fn waiting_at(&self, worker: WorkerId) -> usize {
        self.local[worker.index()].len()
    }

    /// Returns whether the central queue has requests that go to no called worker.
    fn is_left(&self) -> bool {
        self.crew.called() == 0 && !self.central.is_empty()
    }

    fn clear_overdue(&mut self, worker: WorkerId) {
        if let Some(since) = self.overdue_since[worker.index()].take() {
            self.overdue.remove(&(since, worker));
        }
    }

    /// Records that nothing is handed to `worker` for the present.
    fn close(&mut self, worker: WorkerId) {
        let waiting = self.waiting_at(worker);
        if let Some(set) = self.room.get_mut(waiting) {
            set.remove(worker);
        }
    }

    /// Records that `worker` runs a request and may be handed more.
    fn open(&mut self, worker: WorkerId) {
        let waiting = self.waiting_at(worker);
        if let Some(set) = self.room.get_mut(waiting) {
            set.insert(worker);
        }
    }

    /// Puts what waits at `worker` back to the head of the central queue.
    fn take_back(&mut self, worker: WorkerId) {
        self.close(worker);
        while let Some(request) = self.local[worker.index()].pop_back() {
            self.central.push_front(request);
        }
    }

    /// Has a worker called that idles or is overdue; if there is none, hands requests to those with
    /// the shortest queues.
    fn call_or_hand_out(&mut self) -> Reaction {
        match (self.crew.call_idle(), self.overdue.first().copied()) {
            (Reaction::Queue, Some((_, worker))) => {
                self.clear_overdue(worker);
                self.crew.call(worker);
                Reaction::Preempt(worker)
            }
            (Reaction::Queue, None) => {
                self.hand_out();
                Reaction::Queue
            }
            (reaction, _) => reaction,
        }
    }

    fn hand_out(&mut self) {
        while self.is_left() {
            let shortest = self.room.iter().find_map(|set| set.first_from(WorkerId(0)));
            let Some(worker) = shortest else { return };
            self.close(worker);
            let request = self.central.pop_front();
            self.local[worker.index()].extend(request);
            self.open(worker);
        }
    }
}

impl Dispatch for BoundedQueues {
    fn name(&self) -> &'static str {
        "JBSQ"
    }

    fn properties(&self) -> Properties {
        Properties { central: true, work_conserving: false, preemptive: self.quantum_ns.is_some() }
    }

    fn on_arrival(&mut self, _now: Nanos, request: Request) -> Reaction {
        self.central.push_back(request);
        self.queued += 1;
        self.call_or_hand_out()
    }

    fn next_for(&mut self, worker: WorkerId, _now: Nanos) -> Option<Assignment> {
        let own = self.local[worker.index()].pop_front().map(|request| (request, Origin::Local));
        let next = own.or_else(|| self.central.pop_front().map(|request| (request, Origin::Central)));
        self.queued -= usize::from(next.is_some());
        let slice_ns = self.quantum_ns;
        let given = next.map(|(request, origin)| Assignment { request, slice_ns, origin });
        let given = self.crew.asked(worker, given);
        if given.is_some() {
            self.open(worker);
        }
        self.hand_out();
        given
    }

    fn on_quantum(&mut self, worker: WorkerId, now: Nanos, _running: &Request) -> QuantumDecision {
        if self.waiting_at(worker) > 0 || self.central.len() > self.crew.called() {
            return QuantumDecision::Preempt;
        }
        self.close(worker);
        self.clear_overdue(worker);
        self.overdue_since[worker.index()] = Some(now);
        self.overdue.insert((now, worker));
        QuantumDecision::RunOn
    }

    fn on_preempt(&mut self, worker: WorkerId, _now: Nanos, request: Request) -> Reaction {
        self.clear_overdue(worker);
        self.take_back(worker);
        self.central.push_back(request);
        self.queued += 1;
        // One worker is enough: its queue holds what is left.
        self.call_or_hand_out()
    }

    fn on_done(&mut self, worker: WorkerId, _now: Nanos) {
        self.clear_overdue(worker);
        self.close(worker);
    }

    /// Requests that wait at a worker that leaves after a finished request go to the next worker
    /// that asks.
    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.clear_overdue(worker);
        self.take_back(worker);
        self.crew.leave(worker);
        self.hand_out();
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn idle(&self) -> usize {
        self.crew.idle()
    }

    fn check(&self) -> Result<(), Broken> {
        self.room.iter().try_for_each(WorkerSet::check)?;
        let waiting = self.local.iter().map(VecDeque::len);
        if self.central.len() + waiting.clone().sum::<usize>() != self.queued {
            return Err(Broken::Count);
        }
        if waiting.clone().any(|waiting| waiting >= self.depth) {
            return Err(Broken::Depth);
        }
        let in_wrong_set = |(worker, waiting): (usize, usize)| {
            let mut others = self.room.iter().enumerate().filter(|(len, _)| *len != waiting);
            others.any(|(_, set)| set.contains(WorkerId(worker as u32)))
        };
        if waiting.enumerate().any(in_wrong_set) {
            return Err(Broken::LoadedSet);
        }
        if self.overdue.len() != self.overdue_since.iter().flatten().count() {
            return Err(Broken::OverdueIndex);
        }
        if self.is_left() && !self.overdue.is_empty() {
            return Err(Broken::BeyondQuantum);
        }
        if self.is_left() && self.room.iter().any(|set| !set.is_empty()) {
            return Err(Broken::IdleWhileWaiting);
        }
        self.crew.check(self.central.len())
    }
}
