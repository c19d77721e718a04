//! One preemptive queue: processor sharing with a quantum, and Shinjuku's single-queue policy
//! (c-PRE-SQ).
//!
//! Owns the queue and the list of *overdue* workers, whose requests used up their quantum while no
//! other request waited. Such a worker gets no further timer; the next arrival that finds no idle
//! worker preempts the one overdue longest. A polling dispatcher does the same (Shinjuku section
//! 3.4: preempt any request beyond the quantum if the queue is not empty), and on an unloaded
//! machine it saves one event per quantum.
//!
//! Where a preempted request goes is set for the queue, and may be set for single classes.
//!
//! Invariant (tail re-queue of all classes): a worker is overdue only while every queued request
//! has already called a worker.

use heap::collections::{BTreeSet, VecDeque};
use heap::vec;
use heap::vec::Vec;

use super::crew::Crew;
use super::protocol::{
    Assignment, Broken, ClassId, Dispatch, MAX_CLASSES, Origin, Properties, QuantumDecision, Reaction,
    Request, Requeue, WorkerId,
};
use crate::ids::Nanos;

/// One queue with a quantum.
#[derive(Clone, Debug)]
pub struct SingleQueue {
    queue: VecDeque<Request>,
    crew: Crew,
    /// Overdue workers, ordered by the time at which their quantum ran out.
    overdue: BTreeSet<(Nanos, WorkerId)>,
    overdue_since: Vec<Option<Nanos>>,
    quantum_ns: Nanos,
    /// Where a preempted request of each class goes. A class beyond the last is the last.
    requeue: [Requeue; MAX_CLASSES],
    name: &'static str,
}

impl SingleQueue {
    /// Creates processor sharing: a request runs for a quantum, then goes to the tail.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS), or the quantum is 0.
    #[must_use]
    pub fn processor_sharing(workers: usize, quantum_ns: Nanos) -> Self {
        Self::named(workers, quantum_ns, Requeue::Tail, "PS")
    }

    /// Creates Shinjuku's single queue; the paper uses quanta of 5 to 15 us.
    ///
    /// # Panics
    ///
    /// As [`SingleQueue::processor_sharing`].
    #[must_use]
    pub fn shinjuku(workers: usize, quantum_ns: Nanos, requeue: Requeue) -> Self {
        Self::named(workers, quantum_ns, requeue, "c-PRE-SQ")
    }

    fn named(workers: usize, quantum_ns: Nanos, requeue: Requeue, name: &'static str) -> Self {
        assert!(quantum_ns.0 > 0, "a quantum of 0 ns never lets a request run");
        Self {
            queue: VecDeque::new(),
            crew: Crew::new(workers),
            overdue: BTreeSet::new(),
            overdue_since: vec![None; workers],
            quantum_ns,
            requeue: [requeue; MAX_CLASSES],
            name,
        }
    }

    /// Sets where a preempted request of this class goes.
    ///
    /// # Panics
    ///
    /// If the class is at or above [`MAX_CLASSES`].
    #[must_use]
    pub fn requeue_class(mut self, class: ClassId, requeue: Requeue) -> Self {
        self.requeue[class.index()] = requeue;
        self
    }

    fn clear_overdue(&mut self, worker: WorkerId) {
        if let Some(since) = self.overdue_since[worker.index()].take() {
            self.overdue.remove(&(since, worker));
        }
    }

    fn call_someone(&mut self) -> Reaction {
        match (self.crew.call_idle(), self.overdue.first().copied()) {
            (Reaction::Queue, Some((_, worker))) => {
                self.clear_overdue(worker);
                self.crew.call(worker);
                Reaction::Preempt(worker)
            }
            (reaction, _) => reaction,
        }
    }
}

impl Dispatch for SingleQueue {
    fn name(&self) -> &'static str {
        self.name
    }

    fn properties(&self) -> Properties {
        Properties { central: true, work_conserving: true, preemptive: true }
    }

    fn on_arrival(&mut self, _now: Nanos, request: Request) -> Reaction {
        self.queue.push_back(request);
        self.call_someone()
    }

    fn next_for(&mut self, worker: WorkerId, _now: Nanos) -> Option<Assignment> {
        let (next, slice_ns) = (self.queue.pop_front(), Some(self.quantum_ns));
        self.crew.asked(worker, next.map(|request| Assignment { request, slice_ns, origin: Origin::Central }))
    }

    fn on_quantum(&mut self, worker: WorkerId, now: Nanos, _running: &Request) -> QuantumDecision {
        if self.queue.len() > self.crew.called() {
            return QuantumDecision::Preempt;
        }
        self.clear_overdue(worker);
        self.overdue_since[worker.index()] = Some(now);
        self.overdue.insert((now, worker));
        QuantumDecision::RunOn
    }

    /// Queues the request at the tail or at the head. At the head it goes behind the one request
    /// that its own worker takes instead, because a preemption that hands the same request back
    /// would be useless.
    fn on_preempt(&mut self, worker: WorkerId, _now: Nanos, request: Request) -> Reaction {
        self.clear_overdue(worker);
        let requeue = self.requeue[request.class.index().min(MAX_CLASSES - 1)];
        match requeue {
            Requeue::Tail => self.queue.push_back(request),
            Requeue::Head => {
                let behind_first = self.queue.len().min(1);
                self.queue.insert(behind_first, request);
            }
        }
        // At the tail it is one more waiting request, and the next overdue worker must make room,
        // as under a polling dispatcher. At the head it is next in line anyway.
        match requeue {
            Requeue::Head => self.crew.call_idle(),
            Requeue::Tail => self.call_someone(),
        }
    }

    fn on_done(&mut self, worker: WorkerId, _now: Nanos) {
        self.clear_overdue(worker);
    }

    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.clear_overdue(worker);
        self.crew.leave(worker);
    }

    fn queued(&self) -> usize {
        self.queue.len()
    }

    fn idle(&self) -> usize {
        self.crew.idle()
    }

    fn check(&self) -> Result<(), Broken> {
        if self.overdue.len() != self.overdue_since.iter().flatten().count() {
            return Err(Broken::OverdueIndex);
        }
        let waiting = self.queue.len() > self.crew.called();
        if waiting && !self.requeue.contains(&Requeue::Head) && !self.overdue.is_empty() {
            return Err(Broken::BeyondQuantum);
        }
        self.crew.check(self.queue.len())
    }
}
