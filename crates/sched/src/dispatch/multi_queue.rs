//! Shinjuku's multi-queue policy (c-PRE-MQ): one queue per request class, chosen by age relative to
//! the class's SLO.
//!
//! Owns the queues. The next request is the head with the largest ratio of time in system to SLO,
//! after borrowed virtual time (Shinjuku section 3.4, algorithm 1): short-SLO requests win at
//! first, and long ones age into their turn. When its quantum expires, the running request competes
//! by the same ratio, so it is stopped only for a request that would be chosen before it.
//!
//! Time is linear in the number of classes, at most [`MAX_CLASSES`].

use core::cmp::Ordering;
use heap::collections::VecDeque;
use heap::vec::Vec;

use super::{
    Assignment, Broken, ClassId, Crew, Dispatch, MAX_CLASSES, Nanos, Origin, Properties, Reaction, Request,
    Requeue, Verdict, WorkerId,
};

#[derive(Clone, Debug)]
struct ClassQueue {
    queue: VecDeque<Request>,
    slo_ns: Nanos,
}

/// One queue per class with a quantum; classes are served by the ratio of age to SLO.
#[derive(Clone, Debug)]
pub struct MultiQueue {
    classes: Vec<ClassQueue>,
    crew: Crew,
    queued: usize,
    quantum_ns: Nanos,
    requeue: Requeue,
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
        let classes = slo_ns.iter().map(|&slo_ns| ClassQueue { queue: VecDeque::new(), slo_ns }).collect();
        Self { classes, crew: Crew::new(workers), queued: 0, quantum_ns, requeue }
    }

    fn class_of(&self, class: ClassId) -> usize {
        class.index().min(self.classes.len() - 1)
    }

    /// Returns the index of the queue whose head is most urgent; ties go to the lower class.
    fn most_urgent(&self, now: Nanos) -> Option<usize> {
        let mut best: Option<(usize, Nanos, Nanos)> = None;
        for (i, class) in self.classes.iter().enumerate() {
            let Some(head) = class.queue.front() else { continue };
            let age = now.since(head.arrived_ns);
            if best
                .is_none_or(|(_, a, slo)| compare_ratio((age, class.slo_ns), (a, slo)) == Ordering::Greater)
            {
                best = Some((i, age, class.slo_ns));
            }
        }
        best.map(|(i, ..)| i)
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

    fn on_arrival(&mut self, _now: Nanos, request: Request) -> Reaction {
        let class = self.class_of(request.class);
        self.classes[class].queue.push_back(request);
        self.queued += 1;
        self.crew.call_idle()
    }

    fn next_for(&mut self, worker: WorkerId, now: Nanos) -> Option<Assignment> {
        let next = self.most_urgent(now).and_then(|class| self.classes[class].queue.pop_front());
        self.queued -= usize::from(next.is_some());
        let slice_ns = Some(self.quantum_ns);
        self.crew.asked(worker, next.map(|request| Assignment { request, slice_ns, origin: Origin::Central }))
    }

    fn on_quantum(&mut self, _worker: WorkerId, now: Nanos, running: &Request) -> Verdict {
        let again = Verdict::Again(self.quantum_ns);
        let Some(best) = self.most_urgent(now) else { return again };
        let own = self.class_of(running.class);
        if best == own && self.requeue == Requeue::Tail {
            return Verdict::Preempt;
        }
        let head = self.classes[best].queue[0];
        let theirs = (now.since(head.arrived_ns), self.classes[best].slo_ns);
        let ours = (now.since(running.arrived_ns), self.classes[own].slo_ns);
        if compare_ratio(theirs, ours) == Ordering::Greater { Verdict::Preempt } else { again }
    }

    fn on_preempt(&mut self, _worker: WorkerId, _now: Nanos, request: Request) -> Reaction {
        let class = self.class_of(request.class);
        match self.requeue {
            Requeue::Head => self.classes[class].queue.push_front(request),
            Requeue::Tail => self.classes[class].queue.push_back(request),
        }
        self.queued += 1;
        self.crew.call_idle()
    }

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
        if self.classes.iter().map(|c| c.queue.len()).sum::<usize>() != self.queued {
            return Err(Broken::Count);
        }
        self.crew.check(self.queued)
    }
}
