//! Shinjuku's multi-queue policy (c-PRE-MQ): one queue per request class, chosen by age relative to
//! the class's SLO.
//!
//! Owns the queues and the list of *overdue* workers, whose requests used up their quantum and run
//! on. The next request is the head with the largest ratio of time in system to SLO, after borrowed
//! virtual time (Shinjuku section 3.4, algorithm 1): short-SLO requests win at first, and long ones
//! age into their turn. A request is chosen for a whole quantum, so the ratios compared are those
//! at its end: at the moment of its arrival a short request has age 0 and would lose against every
//! other one.
//!
//! A running request competes by the same ratio when its quantum expires. If it wins, it gets
//! another quantum, in which an arrival that beats it and finds no idle worker preempts it at once,
//! as a polling dispatcher does. So it is stopped only for a request that would be chosen before
//! it.
//!
//! Time is linear in the number of classes, at most [`MAX_CLASSES`], and logarithmic in the number
//! of workers.

use core::cmp::Ordering;
use heap::collections::{BTreeSet, VecDeque};
use heap::vec;
use heap::vec::Vec;

use super::crew::Crew;
use super::protocol::{
    Assignment, Broken, ClassId, Dispatch, MAX_CLASSES, Origin, Properties, QuantumDecision, Reaction,
    Request, Requeue, WorkerId,
};
use crate::ids::Nanos;

#[derive(Clone, Debug)]
struct ClassQueue {
    queue: VecDeque<Request>,
    slo_ns: Nanos,
    /// Where in the queue a preempted request goes.
    requeue: Requeue,
    /// Overdue workers that run a request of the class, by the request's arrival.
    overdue: BTreeSet<(Nanos, WorkerId)>,
}

/// One queue per class with a quantum; classes are served by the ratio of age to SLO.
#[derive(Clone, Debug)]
pub struct MultiQueue {
    classes: Vec<ClassQueue>,
    crew: Crew,
    queued: usize,
    /// For each overdue worker, the class and the arrival of its request.
    overdue: Vec<Option<(usize, Nanos)>>,
    quantum_ns: Nanos,
}

impl MultiQueue {
    /// Creates a policy for workers `0..workers` and one class per entry of `slo_ns` (target tail
    /// latency of the class, above 0). A request of a class beyond the last is treated as the last.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS), if there is no class or more
    /// than [`MAX_CLASSES`], or if an SLO or the quantum is 0.
    #[must_use]
    pub fn new(workers: usize, slo_ns: &[Nanos], quantum_ns: Nanos, requeue: Requeue) -> Self {
        assert!(
            (1..=MAX_CLASSES).contains(&slo_ns.len()),
            "{} classes: use 1 to {MAX_CLASSES}",
            slo_ns.len()
        );
        assert!(slo_ns.iter().all(|slo| slo.0 > 0), "an SLO of 0 ns makes every age infinite");
        assert!(quantum_ns.0 > 0, "a quantum of 0 ns never lets a request run");
        let class =
            |&slo_ns| ClassQueue { queue: VecDeque::new(), slo_ns, requeue, overdue: BTreeSet::new() };
        let (classes, overdue) = (slo_ns.iter().map(class).collect(), vec![None; workers]);
        Self { classes, crew: Crew::new(workers), queued: 0, overdue, quantum_ns }
    }

    /// Sets where in its queue a preempted request of this class goes.
    ///
    /// # Panics
    ///
    /// If there is no such class.
    #[must_use]
    pub fn requeue_class(mut self, class: ClassId, requeue: Requeue) -> Self {
        self.classes[class.index()].requeue = requeue;
        self
    }

    fn class_of(&self, class: ClassId) -> usize {
        class.index().min(self.classes.len() - 1)
    }

    /// Returns the age, at the end of a quantum that begins now, of a request that arrived at
    /// `arrived`, with the SLO of its class.
    fn urgency(&self, now: Nanos, class: usize, arrived: Nanos) -> (Nanos, Nanos) {
        (now.since(arrived) + self.quantum_ns, self.classes[class].slo_ns)
    }

    /// Returns the index of the queue whose head is most urgent; ties go to the lower class.
    fn most_urgent(&self, now: Nanos) -> Option<usize> {
        let mut best: Option<(usize, (Nanos, Nanos))> = None;
        for (i, class) in self.classes.iter().enumerate() {
            let Some(head) = class.queue.front() else { continue };
            let urgency = self.urgency(now, i, head.arrived_ns);
            if best.is_none_or(|(_, most)| compare_ratio(urgency, most) == Ordering::Greater) {
                best = Some((i, urgency));
            }
        }
        best.map(|(i, _)| i)
    }

    /// Returns whether a waiting request is chosen before a running one that has used up its
    /// quantum. Each is given by class and arrival.
    fn beats(&self, now: Nanos, waiting: (usize, Nanos), running: (usize, Nanos)) -> bool {
        if waiting.0 == running.0 && self.classes[running.0].requeue == Requeue::Tail {
            return true;
        }
        let (theirs, ours) =
            (self.urgency(now, waiting.0, waiting.1), self.urgency(now, running.0, running.1));
        compare_ratio(theirs, ours) == Ordering::Greater
    }

    /// Returns the overdue worker with the least urgent request: in each class, that which arrived
    /// last.
    fn least_urgent(&self, now: Nanos) -> Option<(WorkerId, (usize, Nanos))> {
        let mut least: Option<(WorkerId, (usize, Nanos))> = None;
        for (i, class) in self.classes.iter().enumerate() {
            let Some(&(arrived, worker)) = class.overdue.last() else { continue };
            let urgency = self.urgency(now, i, arrived);
            if least
                .is_none_or(|(_, (j, at))| compare_ratio(urgency, self.urgency(now, j, at)) == Ordering::Less)
            {
                least = Some((worker, (i, arrived)));
            }
        }
        least
    }

    fn set_overdue(&mut self, worker: WorkerId, class: usize, arrived: Nanos) {
        self.clear_overdue(worker);
        self.overdue[worker.index()] = Some((class, arrived));
        self.classes[class].overdue.insert((arrived, worker));
    }

    fn clear_overdue(&mut self, worker: WorkerId) {
        if let Some((class, arrived)) = self.overdue[worker.index()].take() {
            self.classes[class].overdue.remove(&(arrived, worker));
        }
    }

    /// Finds a worker for a request that was queued: an idle one, else the overdue one whose
    /// request loses against it.
    fn call_for(&mut self, now: Nanos, class: usize, arrived: Nanos) -> Reaction {
        match (self.crew.call_idle(), self.least_urgent(now)) {
            (Reaction::Queue, Some((worker, running))) if self.beats(now, (class, arrived), running) => {
                self.clear_overdue(worker);
                self.crew.call(worker);
                Reaction::Preempt(worker)
            }
            (reaction, _) => reaction,
        }
    }
}

/// Compares `a.0 / a.1` with `b.0 / b.1` exactly, without dividing.
fn compare_ratio(a: (Nanos, Nanos), b: (Nanos, Nanos)) -> Ordering {
    let product = |x: Nanos, y: Nanos| u128::from(x.0) * u128::from(y.0);
    product(a.0, b.1).cmp(&product(b.0, a.1))
}

impl Dispatch for MultiQueue {
    fn name(&self) -> &'static str {
        "c-PRE-MQ"
    }

    fn properties(&self) -> Properties {
        Properties { central: true, work_conserving: true, preemptive: true }
    }

    fn on_arrival(&mut self, now: Nanos, request: Request) -> Reaction {
        let class = self.class_of(request.class);
        self.classes[class].queue.push_back(request);
        self.queued += 1;
        self.call_for(now, class, request.arrived_ns)
    }

    fn next_for(&mut self, worker: WorkerId, now: Nanos) -> Option<Assignment> {
        let next = self.most_urgent(now).and_then(|class| self.classes[class].queue.pop_front());
        self.queued -= usize::from(next.is_some());
        let slice_ns = Some(self.quantum_ns);
        self.crew.asked(worker, next.map(|request| Assignment { request, slice_ns, origin: Origin::Central }))
    }

    fn on_quantum(&mut self, worker: WorkerId, now: Nanos, running: &Request) -> QuantumDecision {
        let own = (self.class_of(running.class), running.arrived_ns);
        if self.queued > self.crew.called()
            && let Some(best) = self.most_urgent(now)
            && self.beats(now, (best, self.classes[best].queue[0].arrived_ns), own)
        {
            return QuantumDecision::Preempt;
        }
        self.set_overdue(worker, own.0, own.1);
        // Waiting requests that lost may win at its end.
        QuantumDecision::Again(self.quantum_ns)
    }

    fn on_preempt(&mut self, worker: WorkerId, now: Nanos, request: Request) -> Reaction {
        self.clear_overdue(worker);
        let class = self.class_of(request.class);
        let own = &mut self.classes[class];
        match own.requeue {
            Requeue::Head => own.queue.push_front(request),
            Requeue::Tail => own.queue.push_back(request),
        }
        self.queued += 1;
        self.call_for(now, class, request.arrived_ns)
    }

    fn on_done(&mut self, worker: WorkerId, _now: Nanos) {
        self.clear_overdue(worker);
    }

    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.clear_overdue(worker);
        self.crew.leave(worker);
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn idle(&self) -> usize {
        self.crew.idle()
    }

    fn check(&self) -> Result<(), Broken> {
        if self.classes.iter().map(|c| c.queue.len()).sum::<usize>() != self.queued {
            return Err(Broken::Count);
        }
        let listed: usize = self.classes.iter().map(|class| class.overdue.len()).sum();
        if listed != self.overdue.iter().flatten().count() {
            return Err(Broken::OverdueIndex);
        }
        self.crew.check(self.queued)
    }
}
