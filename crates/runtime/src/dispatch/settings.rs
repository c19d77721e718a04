//! Settings of a dispatcher: its policy, its classes, its bounds.

use crate::records::stack::{MAX_STACK, MIN_STACK};
use core::str::FromStr;
use std::io;
use std::time::Duration;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{self, ClassDemand, ClassInfo, DEPTH_MAX, MAX_CLASSES, PolicySpec, Setup};

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
/// Requests that a worker has at once, if nothing else is set: the one it runs and the next one
/// (Concord, SOSP'23, section 3.2: two hide what the dispatcher's answer takes).
const DEFAULT_DEPTH: usize = 2;
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

    /// One queue, and bounded ones at the workers, JBSQ(`depth`): as `c-fcfs`, or with a quantum as
    /// `sq`, with a dispatcher of its own that gives each worker up to `depth` requests, 1 to 8:
    /// `jbsq:2`, `jbsq:2,5us`. See [`Settings::dispatchers`].
    pub fn bounded_queues(depth: usize, quantum: Option<Duration>) -> Self {
        Self(PolicySpec::BoundedQueues { depth, quantum_ns: quantum.map(nanos) })
    }

    /// The request with the least work left, which preempts others. The
    /// [service](super::Service::work) must know the work of a request: `srpt`.
    pub fn shortest_remaining() -> Self {
        Self(PolicySpec::ShortestRemaining)
    }

    /// Returns this policy for a service that does not know the work of a request before it runs.
    ///
    /// # Errors
    /// [`PolicyError::KnownWork`] for [`Policy::shortest_remaining`], which has to know it.
    ///
    /// # Examples
    /// ```
    /// use tailwater::dispatch::Policy;
    ///
    /// let read = |text: &str| text.parse().and_then(Policy::for_unknown_work);
    /// assert!(read("mq:5us").is_ok() && read("srpt").is_err());
    /// ```
    pub fn for_unknown_work(self) -> Result<Self, PolicyError> {
        if self == Self::shortest_remaining() { Err(PolicyError::KnownWork) } else { Ok(self) }
    }

    fn quantum(self) -> Option<Duration> {
        match self.0 {
            PolicySpec::SingleQueue { quantum_ns, .. }
            | PolicySpec::MultiQueue { quantum_ns, .. }
            | PolicySpec::ProcessorSharing { quantum_ns } => Some(Duration::from_nanos(quantum_ns.0)),
            PolicySpec::BoundedQueues { quantum_ns, .. } => {
                quantum_ns.map(|quantum_ns| Duration::from_nanos(quantum_ns.0))
            }
            PolicySpec::ShortestRemaining => Some(LOOK),
            PolicySpec::DFcfs | PolicySpec::CFcfs | PolicySpec::Stealing { .. } | PolicySpec::Reserved => {
                None
            }
        }
    }

    /// Returns what orders the requests that no worker has yet.
    fn central(self) -> PolicySpec {
        match self.0 {
            PolicySpec::BoundedQueues { quantum_ns: None, .. } => PolicySpec::CFcfs,
            PolicySpec::BoundedQueues { quantum_ns: Some(quantum_ns), .. } => {
                PolicySpec::SingleQueue { quantum_ns, requeue: Requeue::Tail }
            }
            spec => spec,
        }
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    /// Reads a policy in the notation of the constructors' descriptions; `ps:5us` is the single
    /// queue that requeues at the tail.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let spec = text.parse().map_err(|error| match error {
            dispatch::NotationError::Name { name } => PolicyError::Unknown { name },
            error => PolicyError::Notation(error),
        });
        match spec? {
            PolicySpec::DFcfs | PolicySpec::Reserved => {
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
    /// There is no policy of this name.
    #[error(
        "`{name}` is not a policy of a dispatcher; use c-fcfs, steal[:N], ps:QUANTUM, sq:QUANTUM[,head|tail], \
         mq:QUANTUM[,head|tail], jbsq:K[,QUANTUM] or, where the work of a request is known before it runs, srpt"
    )]
    Unknown {
        /// The name given.
        name: String,
    },
    /// What stands behind the name is wrong.
    #[error(transparent)]
    Notation(dispatch::NotationError),
    /// The policy needs the work of each request, which this service does not know.
    #[error("the work of a request is not known before it runs: use mq:5us in place of srpt")]
    KnownWork,
    /// The policy binds requests to workers, which may have no core.
    #[error(
        "the policy `{name}` binds requests to workers, and a worker may have no core: use steal in place of d-fcfs, mq:5us in place of reserved"
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
/// use tailwater::dispatch::RequestClass;
///
/// let class = RequestClass::new("GET").slo(Duration::from_micros(50));
/// assert_ne!(class, RequestClass::new("GET"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestClass {
    pub(super) name: String,
    pub(super) slo: Duration,
    requeue: Option<Requeue>,
}

impl RequestClass {
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

/// A policy that is not one of this project's.
#[derive(Debug, Clone, Copy)]
struct Own {
    make: fn(usize) -> Box<dyn dispatch::Dispatch + Send>,
    quantum: Option<Duration>,
}

/// Dispatchers with kthreads of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dispatchers {
    /// How many, from 1 on.
    pub count: usize,
    /// Most requests that a worker has.
    pub depth: usize,
}

/// Settings of a dispatcher.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::dispatch::{RequestClass, Settings};
///
/// let settings = Settings::new("mq:5us".parse().unwrap())
///     .class(RequestClass::new("GET").slo(Duration::from_micros(50)))
///     .class(RequestClass::new("SCAN").slo(Duration::from_millis(5)))
///     .queue(1_000);
/// assert!(format!("{settings:?}").contains("SCAN"));
/// ```
#[derive(Debug, Clone)]
pub struct Settings {
    policy: Policy,
    /// In the place of `policy`.
    own: Option<Own>,
    dispatchers: usize,
    depth: Option<usize>,
    pub(super) classes: Vec<RequestClass>,
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
            own: None,
            dispatchers: 0,
            depth: None,
            classes: Vec::new(),
            queue: DEFAULT_QUEUE,
            preempted: DEFAULT_PREEMPTED,
            blocked: DEFAULT_BLOCKED,
            stack_size: None,
        }
    }

    /// Settings with a policy of the program's own, which `make` returns for a number of lanes. A
    /// policy that preempts names its shortest slice as the `quantum`. The simulator runs the same
    /// policy.
    ///
    /// The policy is called under a lock that kthreads spin for, with preemption off: it may not
    /// wait. One that breaks the protocol of [`order`](super::order) panics, or leaves requests
    /// without an answer.
    ///
    /// # Examples
    /// ```
    /// use tailwater::dispatch::Settings;
    /// use tailwater::dispatch::order::CentralFcfs;
    ///
    /// let settings = Settings::with_own_policy(|lanes| Box::new(CentralFcfs::new(lanes)), None);
    /// assert!(format!("{settings:?}").contains("own: Some"));
    /// ```
    #[must_use]
    pub fn with_own_policy(
        make: fn(usize) -> Box<dyn dispatch::Dispatch + Send>,
        quantum: Option<Duration>,
    ) -> Self {
        Self { own: Some(Own { make, quantum }), ..Self::new(Policy::central_fcfs()) }
    }

    /// Adds a class; classes are numbered from 0. A request of a class beyond the last is one of
    /// the last.
    #[must_use]
    pub fn class(mut self, class: RequestClass) -> Self {
        self.classes.push(class);
        self
    }

    /// Sets how many dispatchers have a kthread of their own, and with it a core, while requests
    /// wait: each is an [exclusive](crate::thread::ThreadClass::Exclusive) thread. The other
    /// kthreads run requests, which their dispatcher hands to them ahead of time; flows are divided
    /// among several dispatchers by [`Request::flow`](super::Request::flow), and all bounds hold
    /// for each of them. The default is 0: each worker schedules itself. With
    /// [`bounded queues`](Policy::bounded_queues) it is 1.
    ///
    /// A dispatcher and a worker for each need two kthreads; with fewer, or if no core can be had
    /// for an exclusive thread, the start fails. While a dispatcher has no core for the moment,
    /// workers schedule themselves. Stealing has no dispatcher.
    ///
    /// # Examples
    /// ```
    /// use tailwater::dispatch::Settings;
    ///
    /// let settings = Settings::new("mq:5us".parse().unwrap()).dispatchers(1).depth(2);
    /// assert!(format!("{settings:?}").contains("dispatchers: 1"));
    /// ```
    #[must_use]
    pub fn dispatchers(mut self, dispatchers: usize) -> Self {
        self.dispatchers = dispatchers;
        self
    }

    /// Sets how many requests a worker of a dispatcher has at most, the one that it runs included:
    /// 1 to 8. With more than 1 it need not wait for the dispatcher between two; in return those
    /// few may wait behind a long one while another worker idles, until that takes them. The
    /// default is 2, and with [bounded queues](Policy::bounded_queues) what these say. `srpt` needs
    /// 1, for it knows of no request that waits at a worker.
    #[must_use]
    pub fn depth(mut self, requests: usize) -> Self {
        self.depth = Some(requests);
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
            self.classes.push(RequestClass::new("all"));
        }
        self
    }

    pub(super) fn quantum(&self) -> Option<Duration> {
        self.own.map_or_else(|| self.policy.quantum(), |own| own.quantum)
    }

    /// Returns whether a request gives way after its quantum, not only to a shorter one.
    pub(super) fn has_quantum(&self) -> bool {
        self.quantum().is_some() && self.policy.0 != PolicySpec::ShortestRemaining
    }

    /// Returns the dispatchers with kthreads of their own, if there are any.
    ///
    /// # Errors
    /// If they do not go with the policy, or are out of range.
    pub(super) fn dedicated(&self) -> io::Result<Option<Dispatchers>> {
        let refuse = |message: String| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        let (bound, default) = match self.policy.0 {
            PolicySpec::BoundedQueues { depth, .. } => (Some(depth), 1),
            _ => (None, 0),
        };
        let count = if self.dispatchers > 0 { self.dispatchers } else { default };
        if let (Some(depth), 0) = (self.depth, count) {
            return refuse(format!(
                "{depth} requests at each worker need a dispatcher: set Settings::dispatchers, or leave \
                 Settings::depth out"
            ));
        }
        if count == 0 {
            return Ok(None);
        }
        if let (Some(bound), Some(depth)) = (bound, self.depth)
            && bound != depth
        {
            return refuse(format!(
                "the policy has {bound} requests at each worker and Settings::depth {depth}: leave one out"
            ));
        }
        let is_srpt = self.policy.0 == PolicySpec::ShortestRemaining;
        let depth = bound.or(self.depth).unwrap_or(if is_srpt { 1 } else { DEFAULT_DEPTH });
        if !(1..=DEPTH_MAX).contains(&depth) {
            return refuse(format!("{depth} requests at each worker: use 1 to {DEPTH_MAX}"));
        }
        if is_srpt && depth > 1 {
            return refuse(format!(
                "srpt with {depth} requests at each worker: it knows of none that waits there; use a depth of 1"
            ));
        }
        if let PolicySpec::Stealing { .. } = self.policy.0 {
            return refuse(
                "steal has a queue at each worker and no dispatcher: use c-fcfs with one".to_owned(),
            );
        }
        Ok(Some(Dispatchers { count, depth }))
    }

    /// Builds the policy for `workers`; with dispatchers of their own that is for each request that
    /// a worker may have.
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
        if let Some(own) = self.own {
            return Ok((own.make)(workers));
        }
        // No policy of a dispatcher reads the demand.
        let demand = ClassDemand { mean_ns: 1.0, share: 1.0 };
        let classes = self.classes.iter().map(|class| ClassInfo {
            slo_ns: nanos(class.slo),
            demand,
            requeue: class.requeue,
        });
        let setup = Setup { workers, classes: classes.collect(), seed: 1 };
        self.policy.central().build(&setup).map_err(|error| refuse(error.to_string()))
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
        let many =
            (0..=MAX_CLASSES).fold(new(), |settings, i| settings.class(RequestClass::new(i.to_string())));
        for (settings, fragment) in [
            (many, "use 1 to 64"),
            (new().class(RequestClass::new("GET").slo(Duration::ZERO)), "class GET"),
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
        for text in ["d-fcfs", "reserved"] {
            let message = text.parse::<Policy>().unwrap_err().to_string();
            assert!(message.contains("binds"), "{message}");
        }
        assert!("fifo".parse::<Policy>().unwrap_err().to_string().contains("use c-fcfs, steal"));
    }

    #[test]
    fn dispatchers_of_their_own_are_set_or_implied() {
        let of = |text: &str| Settings::new(text.parse().unwrap());
        let found = |settings: &Settings| settings.dedicated().unwrap().map(|d| (d.count, d.depth));
        assert_eq!(found(&of("mq:5us")), None);
        assert_eq!(found(&of("mq:5us").dispatchers(2)), Some((2, 2)));
        assert_eq!(found(&of("c-fcfs").dispatchers(1).depth(8)), Some((1, 8)));
        assert_eq!(found(&of("jbsq:3,5us")), Some((1, 3)));
        assert_eq!(found(&of("jbsq:3").dispatchers(4).depth(3)), Some((4, 3)));
        assert_eq!(found(&of("srpt").dispatchers(1)), Some((1, 1)));
        let jbsq = Policy::bounded_queues(2, Some(Duration::from_micros(5)));
        assert_eq!("jbsq:2,5us".parse(), Ok(jbsq));
        assert_eq!(jbsq.central(), "sq:5us".parse::<Policy>().unwrap().0);
        assert_eq!(Policy::bounded_queues(2, None).central(), Policy::central_fcfs().0);
    }

    #[test]
    fn dispatchers_that_cannot_be_are_refused_with_advice() {
        let of = |text: &str| Settings::new(text.parse().unwrap());
        for (settings, fragment) in [
            (of("mq:5us").depth(2), "Settings::dispatchers"),
            (of("mq:5us").dispatchers(1).depth(0), "use 1 to 8"),
            (of("mq:5us").dispatchers(1).depth(9), "use 1 to 8"),
            (of("jbsq:2").depth(3), "leave one out"),
            (of("srpt").dispatchers(1).depth(2), "a depth of 1"),
            (of("steal:4").dispatchers(1), "use c-fcfs"),
        ] {
            let message = settings.dedicated().unwrap_err().to_string();
            assert!(message.contains(fragment), "{message}");
        }
    }
}
