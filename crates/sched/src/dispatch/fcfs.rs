//! First come, first served, without preemption: one queue per worker (d-FCFS) or one for all
//! (c-FCFS).
//!
//! Owns the queues. d-FCFS is the result of receive-side scaling in a dataplane such as IX: a
//! request waits for the worker its flow hashes to, even while others idle. c-FCFS is the ideal
//! that ZygOS and Shenango approximate by stealing, and is optimal for light-tailed service times
//! (Shinjuku section 2).

use heap::collections::VecDeque;
use heap::vec;
use heap::vec::Vec;

use super::crew::Crew;
use super::protocol::{Assignment, Broken, Dispatch, Origin, Properties, Reaction, Request, WorkerId};
use super::worker_set::WorkerSet;
use crate::ids::Nanos;

/// c-FCFS: one queue, any idle worker.
#[derive(Clone, Debug)]
pub struct CentralFcfs {
    queue: VecDeque<Request>,
    crew: Crew,
}

impl CentralFcfs {
    /// Creates a policy for workers `0..workers`.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS).
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { queue: VecDeque::new(), crew: Crew::new(workers) }
    }
}

impl Dispatch for CentralFcfs {
    fn name(&self) -> &'static str {
        "c-FCFS"
    }

    fn properties(&self) -> Properties {
        Properties { central: true, work_conserving: true, preemptive: false }
    }

    fn on_arrival(&mut self, _now: Nanos, request: Request) -> Reaction {
        self.queue.push_back(request);
        self.crew.call_idle()
    }

    fn next_for(&mut self, worker: WorkerId, _now: Nanos) -> Option<Assignment> {
        let next = self.queue.pop_front();
        self.crew.asked(
            worker,
            next.map(|request| Assignment { request, slice_ns: None, origin: Origin::Central }),
        )
    }

    fn on_preempt(&mut self, _worker: WorkerId, _now: Nanos, request: Request) -> Reaction {
        self.queue.push_front(request);
        self.crew.call_idle()
    }

    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.crew.leave(worker);
    }

    fn queued(&self) -> usize {
        self.queue.len()
    }

    fn idle(&self) -> usize {
        self.crew.idle()
    }

    fn check(&self) -> Result<(), Broken> {
        self.crew.check(self.queue.len())
    }
}

/// d-FCFS: every worker serves only the flows that hash to it.
#[derive(Clone, Debug)]
pub struct DistributedFcfs {
    queues: Vec<VecDeque<Request>>,
    idle: WorkerSet,
    queued: usize,
}

impl DistributedFcfs {
    /// Creates a policy for workers `0..workers`.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS).
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { queues: vec![VecDeque::new(); workers], idle: WorkerSet::new(workers), queued: 0 }
    }
}

impl Dispatch for DistributedFcfs {
    fn name(&self) -> &'static str {
        "d-FCFS"
    }

    fn properties(&self) -> Properties {
        Properties { central: false, work_conserving: false, preemptive: false }
    }

    fn on_arrival(&mut self, _now: Nanos, request: Request) -> Reaction {
        let home = request.flow.home(self.queues.len());
        self.queues[home.index()].push_back(request);
        self.queued += 1;
        if self.idle.remove(home) { Reaction::Run(home) } else { Reaction::Queue }
    }

    fn next_for(&mut self, worker: WorkerId, _now: Nanos) -> Option<Assignment> {
        match self.queues[worker.index()].pop_front() {
            Some(request) => {
                self.queued -= 1;
                self.idle.remove(worker);
                Some(Assignment { request, slice_ns: None, origin: Origin::Local })
            }
            None => {
                self.idle.insert(worker);
                None
            }
        }
    }

    /// Puts the request back into its worker's queue: d-FCFS never moves work.
    fn on_preempt(&mut self, worker: WorkerId, _now: Nanos, request: Request) -> Reaction {
        self.queues[worker.index()].push_front(request);
        self.queued += 1;
        Reaction::Queue
    }

    /// Leaves the worker's queue as it is until the worker returns; steering flows elsewhere is the
    /// driver's task.
    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.idle.remove(worker);
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn idle(&self) -> usize {
        self.idle.len()
    }

    fn check(&self) -> Result<(), Broken> {
        self.idle.check()?;
        if self.queues.iter().map(VecDeque::len).sum::<usize>() != self.queued {
            return Err(Broken::Count);
        }
        let idle_with_work =
            |(i, q): (usize, &VecDeque<Request>)| !q.is_empty() && self.idle.contains(WorkerId(i as u32));
        if self.queues.iter().enumerate().any(idle_with_work) {
            return Err(Broken::IdleWhileWaiting);
        }
        Ok(())
    }
}
