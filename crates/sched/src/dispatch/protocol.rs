//! What a driver and a request-dispatch policy say to each other.
//!
//! Owns the [`Dispatch`] trait and the types of its calls; they stand below the policies. The
//! [parent module](super) has the order of calls and the invariants.

use crate::ids::Nanos;

/// Maximum number of request classes a policy distinguishes; keeps per-class loops bounded and
/// class sets in one word.
pub const MAX_CLASSES: usize = 64;

/// One lane of execution, numbered from 0 within the dispatcher that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

impl WorkerId {
    /// Returns the worker's number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The driver's name for a request; policies never interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Hash of the flow that a request belongs to (receive-side scaling). Uniform over all 32-bit
/// values for many flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHash(pub u32);

impl FlowHash {
    /// Returns the one of `workers` workers that this flow is steered to. Multiply-shift
    /// distributes as evenly as the hash, for any number of workers.
    #[must_use]
    pub fn home(self, workers: usize) -> WorkerId {
        WorkerId(((u64::from(self.0) * workers as u64) >> 32) as u32)
    }
}

/// The kind of a request (GET, SCAN, ...), below [`MAX_CLASSES`]. Policies that do not use classes
/// ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClassId(pub u16);

impl ClassId {
    /// Returns the class's number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A request as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The driver's own name for it.
    pub id: RequestId,
    /// Time at which it entered the system. Its age is measured from here, over all its
    /// preemptions.
    pub arrived_ns: Nanos,
    /// Work still to be done, where known; zero means unknown. Only
    /// [`ShortestRemaining`](super::ShortestRemaining) reads it.
    pub remaining_ns: Nanos,
    /// Flow it belongs to.
    pub flow: FlowHash,
    /// Its kind.
    pub class: ClassId,
}

/// What the driver must do at once after a request was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing: the request waits.
    Queue,
    /// Work exists for this idle worker: let it call [`Dispatch::next_for`].
    Run(WorkerId),
    /// Stop this worker, return its request through [`Dispatch::on_preempt`], then let it call
    /// `next_for`.
    Preempt(WorkerId),
}

/// The queue that an assigned request was in; the driver may charge a cost for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The worker's own queue.
    Local,
    /// A queue shared by all workers.
    Central,
    /// Another worker's queue.
    Stolen(WorkerId),
}

/// A request handed to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// What to run.
    pub request: Request,
    /// Call [`Dispatch::on_quantum`] when it has run this long; `None` runs to completion.
    pub slice_ns: Option<Nanos>,
    /// Which queue it was in.
    pub origin: Origin,
}

/// Answer to an expired quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantumDecision {
    /// Stop the request: `on_preempt`, then `next_for`.
    Preempt,
    /// Let it run and ask again after this long.
    Again(Nanos),
    /// Let it run; only a [`Reaction::Preempt`] will stop it.
    RunOn,
}

/// What a policy promises and needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// All decisions pass through one place (a dispatcher), which is a serial resource in a real
    /// machine.
    pub central: bool,
    /// No worker idles while a request waits.
    pub work_conserving: bool,
    /// It may stop a running request.
    pub preemptive: bool,
}

/// Where a preempted request goes back to (Shinjuku section 3.4: head for light tails, tail for
/// heavy ones).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requeue {
    /// Next to run: approximates c-FCFS.
    Head,
    /// Behind all others: approximates processor sharing.
    Tail,
}

/// An invariant of a policy's state that does not hold: a defect of the policy, or of a driver that
/// broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The number of waiting requests is not that in the queues.
    #[error("dispatch policy invariant broken: the count differs from the queues")]
    Count,
    /// A worker is idle while a request waits that it could take.
    #[error("dispatch policy invariant broken: a worker is idle while a request waits")]
    IdleWhileWaiting,
    /// A worker has more requests than its bound.
    #[error("dispatch policy invariant broken: a worker has more requests than its bound")]
    Depth,
    /// The set of workers with waiting requests is not that of the queues.
    #[error("dispatch policy invariant broken: the set of loaded workers is wrong")]
    LoadedSet,
    /// A worker set's length is not its number of bits.
    #[error("dispatch policy invariant broken: the length of a worker set is not its number of bits")]
    SetLength,
    /// A worker set's summary disagrees with its words.
    #[error("dispatch policy invariant broken: the summary of a worker set disagrees with its words")]
    SetSummary,
    /// The workers beyond their quantum and their index differ.
    #[error("dispatch policy invariant broken: the overdue list and its index differ")]
    OverdueIndex,
    /// A worker runs beyond its quantum while a request waits.
    #[error("dispatch policy invariant broken: a worker is beyond its quantum while a request waits")]
    BeyondQuantum,
    /// The running requests and their ends differ.
    #[error("dispatch policy invariant broken: the running index and the ends differ")]
    RunningIndex,
}

/// A request-dispatch policy. See the [parent module](super) for the order of calls.
///
/// # Panics
///
/// Every method may panic on a worker number at or above the count given at construction.
pub trait Dispatch {
    /// Returns the policy's short name in the field's terms, for tables and plots.
    fn name(&self) -> &'static str;

    /// Returns what the policy promises.
    fn properties(&self) -> Properties;

    /// Queues a request that entered the system; returns what the driver must do at once.
    fn on_arrival(&mut self, now: Nanos, request: Request) -> Reaction;

    /// Returns the next request for a worker that has none. `None` makes the worker idle.
    fn next_for(&mut self, worker: WorkerId, now: Nanos) -> Option<Assignment>;

    /// Decides what happens when the slice of `worker`'s assignment has run out while it runs
    /// `running`.
    ///
    /// Policies that never set a slice keep this default, which lets the request run.
    fn on_quantum(&mut self, worker: WorkerId, now: Nanos, running: &Request) -> QuantumDecision {
        let _ = (worker, now, running);
        QuantumDecision::RunOn
    }

    /// Takes back an unfinished request from `worker` (quantum, `Reaction::Preempt`, a yield, or a
    /// lost core), with `remaining_ns` brought up to date. The worker has nothing afterwards; if it
    /// keeps its core it calls `next_for`. [`Reaction::Run`] names another worker that can take the
    /// request at once.
    fn on_preempt(&mut self, worker: WorkerId, now: Nanos, request: Request) -> Reaction;

    /// Records that `worker` finished its request.
    fn on_done(&mut self, worker: WorkerId, now: Nanos) {
        let _ = (worker, now);
    }

    /// Removes `worker`, which has nothing to run and loses its core. The policy must not name it
    /// until it calls `next_for` again.
    fn on_leave(&mut self, worker: WorkerId, now: Nanos);

    /// Returns the number of requests waiting.
    fn queued(&self) -> usize;

    /// Returns the number of idle workers.
    fn idle(&self) -> usize;

    /// Verifies the whole state; costs time linear in it, meant for tests and debug builds.
    ///
    /// # Errors
    ///
    /// The first invariant found broken.
    fn check(&self) -> Result<(), Broken>;
}
