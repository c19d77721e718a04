//! Reserved cores for short requests, without preemption, after Persephone's DARC (SOSP'21).
//!
//! Owns one queue per class and the reservation. Classes are ordered by mean service time. Each
//! class gets workers in proportion to its share of the machine's work, at least one. A worker
//! serves its own class and every *shorter* one, shortest first, never a longer one, so a burst of
//! long requests cannot take the workers that short ones need. The price is that the policy is
//! deliberately not work conserving.
//!
//! Time is linear in the number of classes, at most [`MAX_CLASSES`].

use heap::collections::VecDeque;
use heap::vec;
use heap::vec::Vec;

use super::protocol::{
    Assignment, Broken, ClassId, Dispatch, MAX_CLASSES, Origin, Properties, Reaction, Request, WorkerId,
};
use super::worker_set::WorkerSet;
use crate::ids::Nanos;

/// The load that one class puts on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassDemand {
    /// Mean service time, above 0.
    pub mean_ns: f64,
    /// Share of all requests, at least 0. Shares are normalised.
    pub share: f64,
}

/// Why a reservation cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ReservedError {
    /// No class, or more than [`MAX_CLASSES`].
    #[error("{count} request classes: reserved cores need 1 to {MAX_CLASSES}")]
    Classes {
        /// Number of classes.
        count: usize,
    },
    /// A mean is not a finite number above 0, or a share not one of at least 0.
    #[error("class {class}: mean service time must be above 0 and its share 0 or more")]
    Demand {
        /// Index of the class.
        class: usize,
    },
    /// Every share is 0.
    #[error("all class shares are 0: at least one class must bring work")]
    NoDemand,
}

/// Reserved cores per class; shorter classes may use the cores of longer ones.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Queues in order of mean service time, shortest first.
    queues: Vec<VecDeque<Request>>,
    /// Class -> position in that order.
    rank_of: Vec<usize>,
    /// Worker -> rank of the class it is reserved for.
    reserved_for: Vec<usize>,
    /// Idle workers by the rank they are reserved for.
    idle: Vec<WorkerSet>,
    queued: usize,
}

impl Reserved {
    /// Creates a reservation for workers `0..workers` and one class per entry of `demand`. A
    /// request of a class beyond the last is treated as the last.
    ///
    /// # Errors
    ///
    /// [`ReservedError`] if the number of classes or their demands are out of range.
    ///
    /// # Panics
    ///
    /// If `workers` is 0 or above [`MAX_WORKERS`](super::MAX_WORKERS).
    pub fn new(workers: usize, demand: &[ClassDemand]) -> Result<Self, ReservedError> {
        if demand.is_empty() || demand.len() > MAX_CLASSES {
            return Err(ReservedError::Classes { count: demand.len() });
        }
        let bad = |d: &ClassDemand| {
            !(d.mean_ns.is_finite() && d.mean_ns > 0.0 && d.share.is_finite() && d.share >= 0.0)
        };
        if let Some(class) = demand.iter().position(bad) {
            return Err(ReservedError::Demand { class });
        }
        let total: f64 = demand.iter().map(|d| d.mean_ns * d.share).sum();
        if total <= 0.0 {
            return Err(ReservedError::NoDemand);
        }
        let mut order: Vec<usize> = (0..demand.len()).collect();
        order.sort_by(|&a, &b| demand[a].mean_ns.total_cmp(&demand[b].mean_ns));
        let mut rank_of = vec![0; demand.len()];
        for (rank, &class) in order.iter().enumerate() {
            rank_of[class] = rank;
        }
        let work: Vec<f64> = order.iter().map(|&c| demand[c].mean_ns * demand[c].share / total).collect();
        Ok(Self {
            queues: vec![VecDeque::new(); demand.len()],
            rank_of,
            reserved_for: reservation(workers, &work),
            idle: vec![WorkerSet::new(workers); demand.len()],
            queued: 0,
        })
    }

    /// Returns how many workers are reserved for each class, in the order given at construction.
    #[must_use]
    pub fn cores_per_class(&self) -> Vec<usize> {
        self.rank_of.iter().map(|&rank| self.reserved_for.iter().filter(|&&r| r == rank).count()).collect()
    }

    fn rank(&self, class: ClassId) -> usize {
        self.rank_of[class.index().min(self.rank_of.len() - 1)]
    }

    /// Calls an idle worker for a request of this rank: one of its own reservation, else of the
    /// next longer ones.
    fn call_idle(&mut self, rank: usize) -> Reaction {
        for set in &mut self.idle[rank..] {
            if let Some(worker) = set.first() {
                set.remove(worker);
                return Reaction::Run(worker);
            }
        }
        Reaction::Queue
    }
}

/// Hands `workers` to the ranks in proportion to their share of the work. Rounds the running sum in
/// rank order, so that rounding errors cannot add up. Each class keeps at least one worker; if
/// there are fewer workers than classes, the shortest classes get none and use the others'.
fn reservation(workers: usize, work: &[f64]) -> Vec<usize> {
    let last = work.len() - 1;
    let mut result = Vec::with_capacity(workers);
    let mut through = 0.0;
    for (rank, share) in work.iter().enumerate() {
        through += share;
        let fair = (through * workers as f64 + 0.5) as usize;
        let one_for_each_longer = workers.saturating_sub(last - rank);
        let upto = fair.max(result.len() + 1).min(one_for_each_longer).max(result.len());
        result.resize(if rank == last { workers } else { upto }, rank);
    }
    result
}

impl Dispatch for Reserved {
    fn name(&self) -> &'static str {
        "reserved"
    }

    fn properties(&self) -> Properties {
        Properties { central: true, work_conserving: false, preemptive: false }
    }

    fn on_arrival(&mut self, _now: Nanos, request: Request) -> Reaction {
        let rank = self.rank(request.class);
        self.queues[rank].push_back(request);
        self.queued += 1;
        self.call_idle(rank)
    }

    fn next_for(&mut self, worker: WorkerId, _now: Nanos) -> Option<Assignment> {
        let own = self.reserved_for[worker.index()];
        match self.queues[..=own].iter_mut().find_map(VecDeque::pop_front) {
            Some(request) => {
                self.queued -= 1;
                self.idle[own].remove(worker);
                Some(Assignment { request, slice_ns: None, origin: Origin::Central })
            }
            None => {
                self.idle[own].insert(worker);
                None
            }
        }
    }

    fn on_preempt(&mut self, _worker: WorkerId, _now: Nanos, request: Request) -> Reaction {
        let rank = self.rank(request.class);
        self.queues[rank].push_front(request);
        self.queued += 1;
        self.call_idle(rank)
    }

    fn on_leave(&mut self, worker: WorkerId, _now: Nanos) {
        self.idle[self.reserved_for[worker.index()]].remove(worker);
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn idle(&self) -> usize {
        self.idle.iter().map(WorkerSet::len).sum()
    }

    fn check(&self) -> Result<(), Broken> {
        self.idle.iter().try_for_each(WorkerSet::check)?;
        if self.queues.iter().map(VecDeque::len).sum::<usize>() != self.queued {
            return Err(Broken::Count);
        }
        Ok(())
    }
}
