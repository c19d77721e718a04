//! What a program does with a dispatcher: starts it, submits requests, reads its counters.

use super::board::{Board, Offer};
use super::pool::{Pool, Task, Work};
use super::publish::Entries;
use super::server::{Server, begin_traced};
use super::settings::Settings;
use super::stats::ClassStats;
use crate::ground::guard::NoPreempt;
use crate::records::request;
use crate::records::runtime::runtime;
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
    /// When it arrived, if that was before it is submitted.
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

/// A request that was not accepted: as many as are allowed wait.
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
pub struct Dispatcher<P: Send + 'static>(&'static Server<P>);

impl<P: Send + 'static> Clone for Dispatcher<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Send + 'static> Copy for Dispatcher<P> {}

impl<P: Send + 'static> fmt::Debug for Dispatcher<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<P: Send + 'static> Dispatcher<P> {
    /// Starts a thread for each kthread of the runtime. Each calls `init_per_core` with its number
    /// first; if that panics, the thread serves all the same. `handle` runs the requests; if it
    /// panics, the request is finished and counted.
    ///
    /// # Errors
    /// If a setting is out of range, or there is no memory for the threads. Nothing runs then.
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
        let lanes = runtime.kthreads.len().min(MAX_WORKERS);
        let slice = settings
            .quantum()
            .map_or(Cycles::MAX, |quantum| runtime.clock.from_ns(quantum.as_nanos() as u64));
        let pool = Pool::new(Board::new(&settings, lanes)?, lanes);
        let server = Server::leak(pool, runtime, slice, settings.stack_size, init_per_core, handle);
        let mut threads = Vec::with_capacity(lanes);
        let made = (0..lanes as u32).try_for_each(|lane| {
            threads.push(server.new_thread(Task::Begin(WorkerId(lane))).map_err(out_of_memory)?);
            Ok(())
        });
        let entries = || Entries::take(runtime.loan, settings.classes.len());
        if let Err(error) = made.and_then(|()| entries().map_or(Ok(()), |entries| publish(server, entries))) {
            threads.into_iter().for_each(|thread| ready(thread.given(Task::End)));
            return Err(error);
        }
        if slice != Cycles::MAX {
            quantum::watch_slices(runtime);
            quantum::signal_slices(runtime);
        }
        threads.into_iter().for_each(|thread| ready(thread.runnable));
        Ok(Self(server))
    }

    /// Queues a request. Any thread may call this. An ordinary OS thread that Linux takes the core
    /// from amid the call holds up the dispatcher until it runs again; a user thread does not.
    ///
    /// # Errors
    /// The request, if as many wait as are allowed.
    pub fn submit(&self, request: Request, payload: P) -> Result<(), Refused<P>> {
        let server = self.0;
        let work_ns = Nanos(u64::try_from(request.work.as_nanos()).unwrap_or(u64::MAX));
        let now = server.time(clock::now());
        let arrived = request.arrived.map_or(now, |at| server.time(at).min(now));
        let offer = Offer { class: request.class, flow: FlowHash(request.flow), work_ns, arrived };
        // Until the lane that is called has its thread, which only this call can give it.
        let guard = NoPreempt::new();
        // Before the request is in the queue, where another kthread may begin it at once.
        let work = Work { payload, traced: queue_traced(&guard, request.class) };
        let mut pool = server.pool.lock();
        let submitted = pool.board.submit(now, offer, work);
        let submitted = submitted.map(|reaction| pool.apply(reaction));
        server.publish(&pool);
        drop(pool);
        server.changes.note();
        match submitted {
            Ok(called) => called.into_iter().for_each(ready),
            Err(work) => {
                begin_traced(&guard, work.traced);
                return Err(Refused(work.payload));
            }
        }
        Ok(())
    }

    /// Counts a request as dropped that was not submitted, for lack of a place.
    pub(super) fn drop_unsubmitted(&self, request: &Request) {
        self.0.pool.lock().board.drop_unsubmitted(request.class);
        self.0.changes.note();
    }

    /// Returns what became of the requests of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        let classes = self.0.pool.lock().board.stats().len();
        // One at a time: a copy takes about a microsecond, and lanes wait for the lock.
        (0..classes).map(|class| self.0.pool.lock().board.stats()[class].clone()).collect()
    }
}

/// Takes the traced request that the calling thread carries, if any: it waits as one of `class`
/// from now on.
#[inline]
fn queue_traced(guard: &NoPreempt, class: usize) -> request::Request {
    match guard.kthread().and_then(|kthread| Some((kthread, kthread.current()?))) {
        Some((kthread, me)) if me.carried.is_some() => trace::queue(kthread, me, class as u16),
        _ => request::Request { id: 0, back: 0 },
    }
}

/// Starts the thread that publishes the counters of a dispatcher.
fn publish<P: Send + 'static>(server: &'static Server<P>, entries: Entries) -> io::Result<()> {
    let publisher = thread::Builder::new().name("dispatch-stats");
    publisher.spawn(move || entries.publish(&server.changes, || Dispatcher(server).stats())).map(drop)
}

fn out_of_memory(error: crate::StackError) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, error)
}
