//! A policy's kind and parameters as a value, for configuration files and command lines.
//! [`notation`](super::notation) reads it from texts such as `c-fcfs` or `ps:0.1us`.
//!
//! Owns the choice and its parameters; [`PolicySpec::build`] turns it into a policy for a given
//! number of workers and classes.

use super::bounded::BoundedQueues;
use super::fcfs::{CentralFcfs, DistributedFcfs};
use super::multi_queue::MultiQueue;
use super::protocol::{ClassId, Dispatch, MAX_CLASSES, Requeue};
use super::reserved::{ClassDemand, Reserved, ReservedError};
use super::single_queue::SingleQueue;
use super::srpt::ShortestRemaining;
use super::stealing::WorkStealing;
use super::worker_set::MAX_WORKERS;
use crate::ids::Nanos;
use heap::boxed::Box;
use heap::vec::Vec;

/// A policy and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicySpec {
    /// One queue per worker by flow hash ([`DistributedFcfs`]).
    DFcfs,
    /// One queue for all workers ([`CentralFcfs`]).
    CFcfs,
    /// A queue per worker, idle workers steal up to `batch` requests ([`WorkStealing`]).
    Stealing {
        /// Maximum number of requests one steal takes.
        batch: usize,
    },
    /// Processor sharing with this quantum ([`SingleQueue::processor_sharing`]).
    ProcessorSharing {
        /// Time a request runs before the next one gets its turn.
        quantum_ns: Nanos,
    },
    /// Shinjuku's single queue ([`SingleQueue::shinjuku`]).
    SingleQueue {
        /// Time a request runs before it may be preempted.
        quantum_ns: Nanos,
        /// Where it goes then.
        requeue: Requeue,
    },
    /// Shinjuku's queue per class ([`MultiQueue`]).
    MultiQueue {
        /// Time a request runs before it competes again.
        quantum_ns: Nanos,
        /// Where in its class's queue it goes when it loses.
        requeue: Requeue,
    },
    /// A central queue, and a short one at each worker ([`BoundedQueues`]).
    BoundedQueues {
        /// Most requests that a worker has, the one it runs included.
        depth: usize,
        /// Time a request runs before it may be preempted; `None`: to its end.
        quantum_ns: Option<Nanos>,
    },
    /// Shortest remaining processing time ([`ShortestRemaining`]).
    ShortestRemaining,
    /// Reserved cores for short classes ([`Reserved`]).
    Reserved,
}

/// Known properties of one request class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassInfo {
    /// Target tail latency, above 0; multi-queue only.
    pub slo_ns: Nanos,
    /// Mean service time and share of requests; reserved cores only.
    pub demand: ClassDemand,
    /// Where a preempted request goes, if not where the policy says; processor sharing, single
    /// queue and multi-queue only.
    pub requeue: Option<Requeue>,
}

/// The environment a policy is built for.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Number of workers, 1 to [`MAX_WORKERS`].
    pub workers: usize,
    /// The request classes; policies that ignore classes accept an empty list.
    pub classes: Vec<ClassInfo>,
    /// Seed of any random choice the policy makes.
    pub seed: u64,
}

impl Setup {
    /// Returns the classes whose preempted requests go elsewhere than the policy says, and where.
    fn requeues(&self) -> impl Iterator<Item = (ClassId, Requeue)> {
        let classes = self.classes.iter().take(MAX_CLASSES).enumerate();
        classes.filter_map(|(i, class)| Some((ClassId(i as u16), class.requeue?)))
    }
}

/// Why a policy cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// Worker count out of range.
    #[error("{count} workers: a dispatcher serves 1 to {MAX_WORKERS}")]
    Workers {
        /// Number of workers.
        count: usize,
    },
    /// A quantum of 0.
    #[error("a quantum of 0 never lets a request run: use 100 ns or more")]
    Quantum,
    /// The policy needs classes with an SLO above 0, at most [`MAX_CLASSES`] of them.
    #[error("the multi-queue policy needs 1 to {MAX_CLASSES} request classes, each with an SLO above 0")]
    Slo,
    /// The reservation is impossible.
    #[error(transparent)]
    Reserved(#[from] ReservedError),
}

impl PolicySpec {
    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// [`SpecError`] if the setup or a parameter is out of range.
    pub fn build(self, setup: &Setup) -> Result<Box<dyn Dispatch + Send>, SpecError> {
        let workers = setup.workers;
        if !(1..=MAX_WORKERS).contains(&workers) {
            return Err(SpecError::Workers { count: workers });
        }
        if let Self::ProcessorSharing { quantum_ns }
        | Self::SingleQueue { quantum_ns, .. }
        | Self::MultiQueue { quantum_ns, .. }
        | Self::BoundedQueues { quantum_ns: Some(quantum_ns), .. } = self
            && quantum_ns == Nanos::ZERO
        {
            return Err(SpecError::Quantum);
        }
        Ok(match self {
            Self::DFcfs => Box::new(DistributedFcfs::new(workers)),
            Self::CFcfs => Box::new(CentralFcfs::new(workers)),
            Self::Stealing { batch } => Box::new(WorkStealing::new(workers, batch, setup.seed)),
            Self::ProcessorSharing { quantum_ns } => {
                let policy = SingleQueue::processor_sharing(workers, quantum_ns);
                Box::new(setup.requeues().fold(policy, |policy, (class, to)| policy.requeue_class(class, to)))
            }
            Self::SingleQueue { quantum_ns, requeue } => {
                let policy = SingleQueue::shinjuku(workers, quantum_ns, requeue);
                Box::new(setup.requeues().fold(policy, |policy, (class, to)| policy.requeue_class(class, to)))
            }
            Self::MultiQueue { quantum_ns, requeue } => {
                let slos: Vec<Nanos> = setup.classes.iter().map(|c| c.slo_ns).collect();
                if slos.is_empty() || slos.len() > MAX_CLASSES || slos.contains(&Nanos::ZERO) {
                    return Err(SpecError::Slo);
                }
                let policy = MultiQueue::new(workers, &slos, quantum_ns, requeue);
                Box::new(setup.requeues().fold(policy, |policy, (class, to)| policy.requeue_class(class, to)))
            }
            Self::BoundedQueues { depth, quantum_ns } => {
                Box::new(BoundedQueues::new(workers, depth, quantum_ns))
            }
            Self::ShortestRemaining => Box::new(ShortestRemaining::new(workers)),
            Self::Reserved => {
                let demand: Vec<ClassDemand> = setup.classes.iter().map(|c| c.demand).collect();
                Box::new(Reserved::new(workers, &demand)?)
            }
        })
    }
}
