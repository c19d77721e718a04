//! The interface of a dispatcher: starting it, submitting requests, reading its counters.

use super::dedicated::Groups;
use super::pool::{Pool, Task};
use super::publish::Entries;
use super::server::Server;
use super::settings::Settings;
use super::stats::ClassStats;
use super::table::{Offer, RequestTable};
use super::threads::Threads;
use crate::ground::guard::NoPreempt;
use crate::records::request;
use crate::records::runtime::{Runtime, runtime};
use crate::thread;
use crate::verbs::quantum;
use crate::verbs::ready::ready;
use crate::verbs::trace;
use core::fmt;
use std::io;
use std::time::Duration;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{FlowHash, MAX_WORKERS, WorkerId};
use tailwater_shm::{Cycles, clock};

/// A request that is submitted.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::dispatch::Request;
///
/// let request = Request::new(1).work(Duration::from_micros(50)).flow(7);
/// assert_ne!(request, Request::new(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    class: usize,
    work: Duration,
    flow: u32,
    /// Time at which it arrived, if that was before it is submitted.
    arrived: Option<Cycles>,
}

impl Request {
    /// A request of the class with this number; a number beyond the last class is the last.
    pub fn new(class: usize) -> Self {
        Self { class, ..Self::default() }
    }

    /// Sets how long the request takes, where that is known.
    #[must_use]
    pub fn work(mut self, work: Duration) -> Self {
        self.work = work;
        self
    }

    /// Returns the number of the class.
    pub(super) fn class(&self) -> usize {
        self.class
    }

    /// Records that the request arrives now: a wait before it is submitted is part of its delay.
    #[cfg(feature = "tcp")]
    pub(super) fn arrives(mut self) -> Self {
        self.arrived = Some(clock::now());
        self
    }

    /// Sets a hash of the connection or sender, uniform over all values. Stealing policies begin
    /// with the worker that it names.
    #[must_use]
    pub fn flow(mut self, flow: u32) -> Self {
        self.flow = flow;
        self
    }
}

/// A request that was not accepted because the queue is full.
///
/// # Examples
/// ```
/// use tailwater::dispatch::Refused;
///
/// let error = Refused("a payload");
/// assert!(error.to_string().contains("Settings::queue"));
/// assert_eq!(error.0, "a payload");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Refused<P>(pub P);

impl<P> fmt::Debug for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refused").finish_non_exhaustive()
    }
}

impl<P> fmt::Display for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the dispatcher's queue is full: submit less, or allow more with Settings::queue")
    }
}

impl<P> core::error::Error for Refused<P> {}

/// Runs requests in the order of a policy. See the [module](super) documentation.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::dispatch::{Dispatcher, Policy, Request, Settings};
/// use tailwater::sync::mpsc;
///
/// #[tailwater::main]
/// fn main() {
///     let (done, results) = mpsc::channel();
///     let settings = Settings::new(Policy::central_fcfs());
///     let square = move |n: u64| done.send(n * n).unwrap();
///     let squares = Dispatcher::start(settings, |_| (), square).unwrap();
///     for n in 0..10 {
///         squares.submit(Request::new(0), n).unwrap();
///     }
///     assert_eq!(results.iter().take(10).sum::<u64>(), 285);
/// }
/// ```
pub struct Dispatcher<P: Send + 'static>(Kind<P>);

/// Who dispatches.
enum Kind<P: Send + 'static> {
    /// Each worker for itself.
    Inline(&'static Server<P>),
    /// Threads with kthreads of their own.
    Dedicated(&'static Groups<P>),
}

impl<P: Send + 'static> Clone for Kind<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Send + 'static> Copy for Kind<P> {}

impl<P: Send + 'static> Clone for Dispatcher<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Send + 'static> Copy for Dispatcher<P> {}

impl<P: Send + 'static> fmt::Debug for Dispatcher<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Inline(server) => server.fmt(f),
            Kind::Dedicated(groups) => groups.fmt(f),
        }
    }
}

impl<P: Send + 'static> Dispatcher<P> {
    /// Starts a thread for each kthread of the runtime, except those of
    /// [dispatchers](Settings::dispatchers). Each calls `init_per_core` with its number first; if
    /// that panics, the thread serves all the same. `handle` runs the requests; if it panics, the
    /// request is finished and counted.
    ///
    /// # Errors
    /// If a setting is out of range, there are too few kthreads or cores for the dispatchers, or
    /// there is no memory for the threads. Nothing runs then.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn start(
        settings: Settings,
        init_per_core: impl Fn(usize) + Send + Sync + 'static,
        handle: impl Fn(P) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let settings = settings.complete();
        let runtime = runtime();
        let kind = match settings.dedicated()? {
            None => Kind::Inline(start_inline(&settings, runtime, init_per_core, handle)?),
            Some(dispatchers) => {
                let made = Groups::make(&settings, dispatchers, runtime, init_per_core, handle)?;
                if let Err(error) = publish(Kind::Dedicated(made.groups), runtime, settings.classes.len()) {
                    made.end();
                    return Err(error);
                }
                watch_slices(&settings, runtime);
                Kind::Dedicated(made.begin())
            }
        };
        Ok(Self(kind))
    }

    /// Queues a request. Any thread may call this. An ordinary OS thread that Linux takes the core
    /// from amid the call holds up the dispatcher until it runs again; a user thread does not.
    ///
    /// # Errors
    /// The request, if as many wait as are allowed.
    pub fn submit(&self, request: Request, payload: P) -> Result<(), Refused<P>> {
        let work_ns = Nanos(u64::try_from(request.work.as_nanos()).unwrap_or(u64::MAX));
        let (class, flow) = (request.class, FlowHash(request.flow));
        match self.0 {
            Kind::Inline(server) => {
                let now = server.time(clock::now());
                let arrived = request.arrived.map_or(now, |at| server.time(at).min(now));
                server.submit(now, Offer { class, flow, work_ns, arrived }, payload)
            }
            Kind::Dedicated(groups) => {
                let offer = |now: Nanos| {
                    let arrived = request.arrived.map_or(now, |at| groups.time(at).min(now));
                    Offer { class, flow, work_ns, arrived }
                };
                groups.submit(flow, class, offer, payload)
            }
        }
        .map_err(Refused)
    }

    /// Counts a request as dropped that was not submitted, for lack of a place.
    pub(super) fn drop_unsubmitted(&self, request: &Request) {
        match self.0 {
            Kind::Inline(server) => {
                server.pool.lock().table.drop_unsubmitted(request.class);
                server.changes.note();
            }
            Kind::Dedicated(groups) => groups.drop_unsubmitted(request.class),
        }
    }

    /// Returns what became of the requests of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        match self.0 {
            Kind::Inline(server) => {
                let classes = server.pool.lock().table.stats().len();
                // One at a time: a copy takes about a microsecond, and lanes wait for the lock.
                (0..classes).map(|class| server.pool.lock().table.stats()[class].clone()).collect()
            }
            Kind::Dedicated(groups) => groups.stats(),
        }
    }
}

/// Starts a dispatcher whose lanes schedule themselves.
fn start_inline<P: Send + 'static>(
    settings: &Settings,
    runtime: &'static Runtime,
    init_per_core: impl Fn(usize) + Send + Sync + 'static,
    handle: impl Fn(P) + Send + Sync + 'static,
) -> io::Result<&'static Server<P>> {
    let lanes = runtime.kthreads.len().min(MAX_WORKERS);
    let slice =
        settings.quantum().map_or(Cycles::MAX, |quantum| runtime.clock.from_ns(quantum.as_nanos() as u64));
    let pool = Pool::new(RequestTable::new(settings, lanes)?, lanes);
    let server = Server::leak(pool, runtime, slice, settings.stack_size, init_per_core, handle);
    let mut threads = Vec::with_capacity(lanes);
    let made = (0..lanes as u32).try_for_each(|lane| {
        threads.push(server.new_thread(Task::Begin(WorkerId(lane))).map_err(out_of_memory)?);
        Ok(())
    });
    if let Err(error) = made.and_then(|()| publish(Kind::Inline(server), runtime, settings.classes.len())) {
        threads.into_iter().for_each(|thread| ready(thread.given(Task::End)));
        return Err(error);
    }
    watch_slices(settings, runtime);
    threads.into_iter().for_each(|thread| ready(thread.runnable));
    Ok(server)
}

/// Has kthreads look at the clock for a policy that preempts.
fn watch_slices(settings: &Settings, runtime: &'static Runtime) {
    if settings.quantum().is_some() {
        quantum::watch_slices(runtime);
        quantum::signal_slices(runtime);
    }
}

/// Takes the traced request that the calling thread carries, if any: it waits as one of `class`
/// from now on.
#[inline]
pub(super) fn queue_traced(guard: &NoPreempt, class: usize) -> request::Request {
    match guard.kthread().and_then(|kthread| Some((kthread, kthread.current()?))) {
        Some((kthread, me)) if me.carried.is_some() => trace::queue(kthread, me, class as u16),
        _ => request::Request { id: 0, back: 0 },
    }
}

/// Starts the thread that publishes the counters of a dispatcher, if an IOKernel shows them.
fn publish<P: Send + 'static>(kind: Kind<P>, runtime: &'static Runtime, classes: usize) -> io::Result<()> {
    let Some(entries) = Entries::take(runtime.iokernel, classes) else { return Ok(()) };
    let changes = match kind {
        Kind::Inline(server) => &server.changes,
        Kind::Dedicated(groups) => groups.changes,
    };
    let publisher = thread::Builder::new().name("dispatch-stats".to_owned());
    publisher.spawn(move || entries.publish(changes, || Dispatcher(kind).stats())).map(drop)
}

fn out_of_memory(error: crate::StackError) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, error)
}
