//! Request dispatch: which request a worker runs next, and when the worker gives it back.
//!
//! Owns the queues of waiting requests and the set of idle workers. Never reads a clock, runs a
//! request, sends a signal or takes a lock: time is an argument and decisions are return values. So
//! a runtime's scheduler, a dispatcher thread and the simulator drive the same code.
//!
//! # Protocol
//!
//! A *worker* is one lane of execution (a kthread with a core). The driver owns the request that a
//! worker is running; the policy owns every request that waits. Per worker the calls alternate:
//!
//! ```text
//!   next_for -> Some(assignment)      the worker runs it
//!     ... on_quantum -> Preempt ...   (only if the assignment had a slice)
//!     on_done | on_preempt            the worker has nothing again
//!   next_for -> None                  the worker is idle until `Reaction::Run(worker)` names it
//! ```
//!
//! [`Dispatch::on_arrival`] may be called at any time and returns what the driver must do at once:
//! nothing, let an idle worker call `next_for`, or preempt a busy one. A policy does not know a
//! worker that has never called `next_for`; a worker that loses its core calls
//! [`Dispatch::on_leave`].
//!
//! # Invariants ([`Dispatch::check`])
//!
//! - A request is owned by exactly one side: it is queued here, or handed out.
//! - If [`Properties::work_conserving`] is true, no worker is idle while a request is queued,
//!   except between a `Reaction::Run` and the `next_for` that follows it.
//! - Every call costs at most O(log n) in workers and queued requests, for a bounded number of
//!   classes.
//!
//! Neighbours: [`WorkerSet`] is the set that all queues share; `spec` builds a policy from its
//! parameters, `notation` reads it from a text.
//!
//! Sources: Shinjuku (NSDI'19) sections 2 and 3.4; Shenango (NSDI'19) section 5; ZygOS (SOSP'17)
//! for stealing; R2P2 (ATC'19) and Concord (SOSP'23) for bounded queues; Persephone (SOSP'21) for
//! reserved cores; Schrage and Miller 1966 for shortest remaining time.

mod bounded;
mod crew;
mod fcfs;
mod multi_queue;
mod notation;
mod protocol;
mod reserved;
mod single_queue;
mod spec;
mod srpt;
mod stealing;
#[cfg(test)]
mod tests;
mod worker_set;

pub use bounded::{BoundedQueues, DEPTH_MAX};
pub use fcfs::{CentralFcfs, DistributedFcfs};
pub use multi_queue::MultiQueue;
pub use notation::NotationError;
pub use protocol::{
    Assignment, Broken, ClassId, Dispatch, FlowHash, MAX_CLASSES, Origin, Properties, QuantumDecision,
    Reaction, Request, RequestId, Requeue, WorkerId,
};
pub use reserved::{ClassDemand, Reserved, ReservedError};
pub use single_queue::SingleQueue;
pub use spec::{ClassInfo, PolicySpec, Setup, SpecError};
pub use srpt::ShortestRemaining;
pub use stealing::{STEAL_MAX, WorkStealing};
pub use worker_set::{MAX_WORKERS, WorkerSet};
