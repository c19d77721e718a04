//! How a dispatcher is set up: its policy, its classes, its bounds.

use crate::records::stack::{MAX_STACK, MIN_STACK};
use core::str::FromStr;
use std::io;
use std::time::Duration;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{self, ClassDemand, ClassInfo, MAX_CLASSES, PolicySpec, Setup};

pub use tailwater_sched::dispatch::Requeue;

/// Target of a class that names none.
const DEFAULT_SLO: Duration = Duration::from_millis(1);
/// Requests that may wait.
const DEFAULT_QUEUE: usize = 4_096;
/// Requests that may be preempted at once: each holds a stack.
const DEFAULT_PREEMPTED: usize = 1_024;
/// Requests that may have left their lanes because they blocked: each holds a stack.
const DEFAULT_BLOCKED: usize = 1_024;
/// Largest queue. Requests are numbered with 32 bits.
const MAX_QUEUE: usize = 1 << 24;
/// Most requests that may be preempted, and most that may have blocked.
const MAX_THREADS: usize = 1 << 20;
/// Time between two looks at the network under a policy that preempts without a quantum.
const LOOK: Duration = Duration::from_micros(5);

/// Which request runs next, and when a running one gives way.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::dispatch::{Policy, Requeue};
///
/// let policy = Policy::multi_queue(Duration::from_micros(5), Requeue::Head);
/// assert_eq!("mq:5us".parse(), Ok(policy));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy(PolicySpec);

impl Policy {
    /// One queue, first come, first served, without preemption (c-FCFS): `c-fcfs`.
    pub fn central_fcfs() -> Self {
        Self(PolicySpec::CFcfs)
    }

    /// A queue for each worker, filled by the hash of the request's flow. Idle workers steal up to
    /// `batch` requests at once. Without preemption, as ZygOS and Shenango: `steal:4`.
    pub fn stealing(batch: usize) -> Self {
        Self(PolicySpec::Stealing { batch })
    }

    /// One queue. A request that has run for `quantum` while others wait goes back to its head or
    /// its tail (Shinjuku section 3.4): `sq:5us,head`.
    pub fn single_queue(quantum: Duration, requeue: Requeue) -> Self {
        Self(PolicySpec::SingleQueue { quantum_ns: nanos(quantum), requeue })
    }

    /// A queue for each class. The next request is the one whose time in the system, divided by the
    /// SLO of its class, is largest (Shinjuku section 3.4): `mq:5us`.
    pub fn multi_queue(quantum: Duration, requeue: Requeue) -> Self {
        Self(PolicySpec::MultiQueue { quantum_ns: nanos(quantum), requeue })
    }

    /// The request with the least work left, which preempts others. The
    /// [service](super::Service::work) must know the work of a request: `srpt`.
    pub fn shortest_remaining() -> Self {
        Self(PolicySpec::ShortestRemaining)
    }

    fn quantum(self) -> Option<Duration> {
        match self.0 {
            PolicySpec::SingleQueue { quantum_ns, .. }
            | PolicySpec::MultiQueue { quantum_ns, .. }
            | PolicySpec::ProcessorSharing { quantum_ns } => Some(Duration::from_nanos(quantum_ns.0)),
            PolicySpec::ShortestRemaining => Some(LOOK),
            PolicySpec::DFcfs
            | PolicySpec::CFcfs
            | PolicySpec::Stealing { .. }
            | PolicySpec::BoundedQueues { .. }
            | PolicySpec::Reserved => None,
        }
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    /// Reads a policy in the notation of the constructors' descriptions; `ps:5us` is the single
    /// queue that requeues at the tail.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        match text.parse().map_err(PolicyError::Notation)? {
            PolicySpec::DFcfs | PolicySpec::BoundedQueues { .. } | PolicySpec::Reserved => {
                Err(PolicyError::Bound { name: text.trim().to_owned() })
            }
            spec => Ok(Self(spec)),
        }
    }
}

/// Why a text is not a policy of a dispatcher.
///
/// # Examples
/// ```
/// use tailwater::dispatch::{Policy, PolicyError};
///
/// let error = "d-fcfs".parse::<Policy>().unwrap_err();
/// assert!(matches!(error, PolicyError::Bound { .. }));
/// assert!(error.to_string().contains("use steal"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// It is no policy at all.
    #[error(transparent)]
    Notation(dispatch::NotationError),
    /// The policy binds requests to workers, which may have no core.
    #[error(
        "the policy `{name}` binds requests to workers, and a worker may have no core: use steal in place of d-fcfs, mq:5us in place of reserved, sq:5us or c-fcfs in place of jbsq"
    )]
    Bound {
        /// Its name.
        name: String,
    },
}

/// A kind of requests.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::dispatch::Class;
///
/// let class = Class::new("GET").slo(Duration::from_micros(50));
/// assert_ne!(class, Class::new("GET"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    pub(super) name: String,
    pub(super) slo: Duration,
    requeue: Option<Requeue>,
}

impl Class {
    /// A class with an SLO of 1 ms.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), slo: DEFAULT_SLO, requeue: None }
    }

    /// Sets the target for the 99th percentile of the latency, above 0. The multi-queue policy
    /// divides the cores by it.
    #[must_use]
    pub fn slo(mut self, slo: Duration) -> Self {
        self.slo = slo;
        self
    }

    /// Sets where a preempted request of this class goes, under a policy with a quantum; the
    /// default is where the policy says. The tail suits classes of requests that differ much in
    /// length, the head those that differ little (Shinjuku section 3.4).
    #[must_use]
    pub fn requeue(mut self, requeue: Requeue) -> Self {
        self.requeue = Some(requeue);
        self
    }
}

/// Settings of a dispatcher.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::dispatch::{Class, Settings};
///
/// let settings = Settings::new("mq:5us".parse().unwrap())
///     .class(Class::new("GET").slo(Duration::from_micros(50)))
///     .class(Class::new("SCAN").slo(Duration::from_millis(5)))
///     .queue(1_000);
/// assert!(format!("{settings:?}").contains("SCAN"));
/// ```
#[derive(Debug, Clone)]
pub struct Settings {
    policy: Policy,
    pub(super) classes: Vec<Class>,
    pub(super) queue: usize,
    pub(super) preempted: usize,
    pub(super) blocked: usize,
    pub(super) stack_size: Option<usize>,
}

impl Settings {
    /// Settings without classes: all requests are of one.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            classes: Vec::new(),
            queue: DEFAULT_QUEUE,
            preempted: DEFAULT_PREEMPTED,
            blocked: DEFAULT_BLOCKED,
            stack_size: None,
        }
    }

    /// Adds a class; classes are numbered from 0. A request of a class beyond the last is one of
    /// the last.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.classes.push(class);
        self
    }

    /// Sets how many requests may wait that have not run yet, 1 to 16,777,216; more are dropped.
    /// The default is 4,096.
    #[must_use]
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = requests;
        self
    }

    /// Sets how many requests may be preempted at once, 0 to 1,048,576, each of which holds a
    /// stack. Each class has an equal share of them, unless there are more classes than places.
    /// While as many of a class are preempted, no further one of it begins: those that have begun
    /// run in its place. Each kthread may add one. With 0 none is preempted. The default is 1,024.
    #[must_use]
    pub fn preempted(mut self, requests: usize) -> Self {
        self.preempted = requests;
        self
    }

    /// Sets how many requests may be unfinished that have left their lanes because they blocked, 0
    /// to 1,048,576, each of which holds a stack. While there are as many, a request that blocks
    /// keeps its lane, and others wait. If requests wait for what later requests do, allow more
    /// than can wait so at once. The default is 1,024.
    #[must_use]
    pub fn blocked(mut self, requests: usize) -> Self {
        self.blocked = requests;
        self
    }

    /// Sets the stack size of the threads that run requests, in bytes, as
    /// [`thread::Builder::stack_size`](crate::thread::Builder::stack_size).
    #[must_use]
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Adds what was left out.
    pub(super) fn complete(mut self) -> Self {
        if self.classes.is_empty() {
            self.classes.push(Class::new("all"));
        }
        self
    }

    pub(super) fn quantum(&self) -> Option<Duration> {
        self.policy.quantum()
    }

    /// Builds the policy for `workers`.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub(super) fn build(&self, workers: usize) -> io::Result<Box<dyn dispatch::Dispatch + Send>> {
        let refuse = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        if self.classes.len() > MAX_CLASSES {
            return Err(refuse(format!("{} classes: use 1 to {MAX_CLASSES}", self.classes.len())));
        }
        if let Some(class) = self.classes.iter().find(|class| class.slo.is_zero()) {
            return Err(refuse(format!("the SLO of class {} is 0: set one above", class.name)));
        }
        if self.queue == 0 {
            return Err(refuse("a queue of 0 requests drops all: allow 1 or more".to_owned()));
        }
        if self.queue > MAX_QUEUE {
            return Err(refuse(format!("a queue of {} requests: allow at most {MAX_QUEUE}", self.queue)));
        }
        for (requests, fate) in [(self.preempted, "preempted"), (self.blocked, "blocked")] {
            if requests > MAX_THREADS {
                let message = format!("{requests} {fate} requests at once: allow at most {MAX_THREADS}");
                return Err(refuse(message));
            }
        }
        if let Some(bytes) = self.stack_size
            && !(MIN_STACK..=MAX_STACK).contains(&bytes)
        {
            return Err(refuse(format!(
                "a stack of {bytes} bytes is out of range: {MIN_STACK} to {MAX_STACK}"
            )));
        }
        // No policy of a dispatcher reads the demand.
        let demand = ClassDemand { mean_ns: 1.0, share: 1.0 };
        let classes = self.classes.iter().map(|class| ClassInfo {
            slo_ns: nanos(class.slo),
            demand,
            requeue: class.requeue,
        });
        let setup = Setup { workers, classes: classes.collect(), seed: 1 };
        self.policy.0.build(&setup).map_err(|error| refuse(error.to_string()))
    }
}

fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused_with_the_reason() {
        let new = || Settings::new(Policy::central_fcfs());
        let many = (0..=MAX_CLASSES).fold(new(), |settings, i| settings.class(Class::new(i.to_string())));
        for (settings, fragment) in [
            (many, "use 1 to 64"),
            (new().class(Class::new("GET").slo(Duration::ZERO)), "class GET"),
            (new().queue(0), "allow 1"),
            (new().queue(MAX_QUEUE + 1), "at most 16777216"),
            (new().preempted(MAX_THREADS + 1), "preempted requests at once: allow at most 1048576"),
            (new().blocked(MAX_THREADS + 1), "blocked requests at once: allow at most 1048576"),
            (new().stack_size(1), "out of range"),
            (Settings::new(Policy::single_queue(Duration::ZERO, Requeue::Tail)), "quantum"),
        ] {
            let message = settings.complete().build(2).err().expect("refused").to_string();
            assert!(message.contains(fragment), "{message}");
        }
    }

    #[test]
    fn policies_that_bind_requests_to_workers_are_refused() {
        for text in ["d-fcfs", "reserved", "jbsq:2,5us"] {
            let message = text.parse::<Policy>().unwrap_err().to_string();
            assert!(message.contains("binds"), "{message}");
        }
        assert!("fifo".parse::<Policy>().unwrap_err().to_string().contains("use d-fcfs"));
    }
}
