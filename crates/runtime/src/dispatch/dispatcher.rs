//! The threads of a dispatcher: how they take requests, and what becomes of them where a request is
//! preempted or blocks.
//!
//! Owns the lock around the [`Board`], the spare threads and the loop that each thread runs. Each
//! lane of the board is at any time in one place: a thread runs it, a thread that was given it is
//! on its way, or the lane idles.
//!
//! | event | what happens to the lane |
//! |---|---|
//! | a request ends | its thread asks for the next |
//! | the lane's next request is suspended | its thread resumes; the one that asked is a spare |
//! | there is none | the thread becomes a spare |
//! | a request arrives for an idle lane | a spare thread asks |
//! | a request is preempted or blocks | a spare thread asks, after the threads that are runnable |
//!
//! A spare is made where there is none. If there is no memory for one, a request is not preempted,
//! and a lane waits for the next thread that becomes a spare (`unmanned`).

use super::board::{Board, Next, Number, Offer, Preempted};
use super::settings::Settings;
use super::stats::ClassStats;
use crate::ground::guard::NoPreempt;
use crate::ground::spin::SpinLock;
use crate::records::runtime::{Runtime, runtime};
use crate::records::serving::{RequestThread, Requests};
use crate::records::uthread::Runnable;
use crate::thread::{Options, prepare};
use crate::verbs::quantum;
use crate::verbs::ready::ready;
use crate::verbs::switch::{Choice, others_wait, suspend_or, yield_now};
use core::fmt;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::io;
use std::panic::catch_unwind;
use std::time::Duration;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{FlowHash, MAX_WORKERS, Reaction, Verdict, WorkerId};
use tailwater_shm::{Cycles, clock};

/// Times that a thread which is about to ask lets others go first: the scheduler takes frames at
/// the first, and those that the frames made runnable come at the second.
const YIELDS: u32 = 2;

/// A request that is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    class: usize,
    work: Duration,
    flow: u32,
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

    /// Sets a hash of the connection or sender, uniform over all values. Stealing policies begin
    /// with the worker that it names.
    #[must_use]
    pub fn flow(mut self, flow: u32) -> Self {
        self.flow = flow;
        self
    }
}

/// A request that was not accepted: as many as are allowed wait.
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
    /// first. `handle` runs the requests; if it panics, the request is finished and counted.
    ///
    /// # Errors
    /// If a setting is out of range, or there is no memory for the threads.
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
        let pool = Pool {
            board: Board::new(&settings, lanes)?,
            spares: Vec::new(),
            unmanned: Vec::new(),
            running: vec![None; lanes].into(),
        };
        let server: &'static Server<P> = Box::leak(Box::new(Server {
            pool: SpinLock::new(pool),
            waiting: AtomicUsize::new(0),
            runtime,
            origin: clock::now(),
            slice,
            stack_size: settings.stack_size,
            init_per_core: Box::new(init_per_core),
            handle: Box::new(handle),
        }));
        if slice != Cycles::MAX {
            quantum::watch_slices(runtime);
        }
        for lane in 0..lanes as u32 {
            let thread = server.new_thread(Task::Begin(WorkerId(lane)));
            ready(thread.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?);
        }
        Ok(Self(server))
    }

    /// Queues a request. Any thread may call this.
    ///
    /// # Errors
    /// The request, if as many wait as are allowed.
    pub fn submit(&self, request: Request, payload: P) -> Result<(), Refused<P>> {
        let server = self.0;
        let work_ns = Nanos(u64::try_from(request.work.as_nanos()).unwrap_or(u64::MAX));
        let offer = Offer { class: request.class, flow: FlowHash(request.flow), work_ns };
        let now = server.time(clock::now());
        let mut pool = server.pool.lock();
        let reaction = pool.board.submit(now, offer, payload).map_err(Refused)?;
        server.publish(&pool);
        drop(pool);
        server.react(reaction);
        Ok(())
    }

    /// Returns what became of the requests of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        self.0.pool.lock().board.stats().to_vec()
    }
}

/// A suspended thread of the dispatcher.
struct Suspended {
    thread: &'static RequestThread,
    runnable: Runnable,
}

/// A thread without a request, and where it finds what it is to do when it resumes.
struct Spare {
    runnable: Runnable,
    mailbox: &'static SpinLock<Task>,
}

/// What a thread of the dispatcher does next.
#[derive(Debug, Clone, Copy)]
enum Task {
    /// Initialises the lane, then asks for it.
    Begin(WorkerId),
    /// Asks for a lane.
    Ask(WorkerId),
    /// Has finished a request, at this time if it let others go first.
    Finish { number: Number, panicked: bool, ended: Option<Cycles> },
}

struct Pool<P> {
    board: Board<P, Suspended>,
    spares: Vec<Spare>,
    /// Lanes for which there was no memory for a thread.
    unmanned: Vec<WorkerId>,
    /// The thread that runs each lane's request.
    running: Box<[Option<&'static RequestThread>]>,
}

struct Server<P> {
    pool: SpinLock<Pool<P>>,
    /// Requests that wait, for a look without the lock.
    waiting: AtomicUsize,
    runtime: &'static Runtime,
    origin: Cycles,
    slice: Cycles,
    stack_size: Option<usize>,
    init_per_core: Box<dyn Fn(usize) + Send + Sync>,
    handle: Box<dyn Fn(P) + Send + Sync>,
}

impl<P> fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<P: Send + 'static> Server<P> {
    /// Returns the policy's time at cycle count `at`.
    fn time(&self, at: Cycles) -> Nanos {
        Nanos(self.runtime.clock.to_ns(at.saturating_sub(self.origin)))
    }

    fn publish(&self, pool: &Pool<P>) {
        self.waiting.store(pool.board.waiting(), Relaxed);
    }

    /// Makes a thread that begins with `task`; the caller queues it.
    fn new_thread(&'static self, task: Task) -> Result<Runnable, crate::StackError> {
        let options =
            Options { name: Some("dispatch".into()), stack_size: self.stack_size, ..Options::default() };
        // SAFETY: everything is 'static.
        let (joiner, runnable) = unsafe { prepare(move || self.run(task), options, None) }?;
        drop(joiner);
        Ok(runnable)
    }

    /// Does what the policy demands of a lane other than the caller's.
    fn react(&'static self, reaction: Reaction) {
        match reaction {
            Reaction::Queue => {}
            Reaction::Run(lane) => {
                let mut pool = self.pool.lock();
                let thread = self.thread_for(&mut pool, lane);
                drop(pool);
                if let Some(runnable) = thread {
                    ready(runnable);
                }
            }
            Reaction::Preempt(lane) => {
                if let Some(thread) = self.pool.lock().running[lane.index()] {
                    thread.stop();
                }
            }
        }
    }

    /// Returns a thread that asks for `lane`. If there is none, the lane is unmanned.
    fn thread_for(&'static self, pool: &mut Pool<P>, lane: WorkerId) -> Option<Runnable> {
        let thread = match pool.spares.pop() {
            Some(spare) => Some(spare.given(Task::Ask(lane))),
            None => self.new_thread(Task::Ask(lane)).ok(),
        };
        if thread.is_none() {
            pool.unmanned.push(lane);
        }
        thread
    }

    /// The life of a thread.
    fn run(&'static self, first: Task) {
        let thread = RequestThread::leak(self);
        let mailbox: &'static SpinLock<Task> = Box::leak(Box::new(SpinLock::new(first)));
        loop {
            let mut task = *mailbox.lock();
            if let Task::Begin(lane) = task {
                (self.init_per_core)(lane.index());
                task = Task::Ask(lane);
            }
            task = let_others_first(task);
            while let Some((number, payload)) = suspend_or(|me| self.choose(thread, mailbox, task, me)) {
                // The payload is gone with the panic; the state of the handler is the service's.
                let result = catch_unwind(AssertUnwindSafe(|| (self.handle)(payload)));
                serve_as(None);
                task = let_others_first(Task::Finish { number, panicked: result.is_err(), ended: None });
            }
        }
    }

    /// Chooses what `thread`, which is `me`, does next: it begins a request, or becomes a spare, in
    /// favour of the thread whose request is next if there is one.
    fn choose(
        &'static self,
        thread: &'static RequestThread,
        mailbox: &'static SpinLock<Task>,
        task: Task,
        me: Runnable,
    ) -> Choice<(Number, P)> {
        let at = clock::now();
        let mut pool = self.pool.lock();
        let lane = match task {
            Task::Begin(lane) | Task::Ask(lane) => Some(lane),
            Task::Finish { number, panicked, ended } => {
                let lane = pool.board.finish(number, self.time(ended.unwrap_or(at)), panicked);
                lane.inspect(|lane| pool.running[lane.index()] = None)
            }
        };
        let Some(lane) = lane.or_else(|| pool.unmanned.pop()) else {
            pool.spares.push(Spare { runnable: me, mailbox });
            return Choice::Leave(None);
        };
        let (next, reaction) = pool.board.next(lane, self.time(at));
        let choice = match next {
            Next::Start(number, payload) => {
                pool.running[lane.index()] = Some(thread);
                thread.begin(number, self.slice);
                drop(me);
                Choice::Stay((number, payload))
            }
            Next::Resume(suspended) => {
                pool.running[lane.index()] = Some(suspended.thread);
                suspended.thread.resume(self.slice);
                pool.spares.push(Spare { runnable: me, mailbox });
                Choice::Leave(Some(suspended.runnable))
            }
            Next::Idle => {
                let me = Spare { runnable: me, mailbox };
                if let Some(lane) = pool.unmanned.pop() {
                    Choice::Leave(Some(me.given(Task::Ask(lane))))
                } else {
                    pool.spares.push(me);
                    Choice::Leave(None)
                }
            }
        };
        self.publish(&pool);
        drop(pool);
        if matches!(choice, Choice::Stay(..)) {
            serve_as(Some(thread));
        }
        self.react(reaction);
        choice
    }
}

impl<P: Send + 'static> Requests for Server<P> {
    fn preempted(&'static self, thread: &'static RequestThread, runnable: Runnable) -> Result<(), Runnable> {
        let now = self.time(clock::now());
        let mut pool = self.pool.lock();
        if !pool.board.has_room_for_preempted() {
            return Err(runnable);
        }
        let suspended = Suspended { thread, runnable };
        match pool.board.preempt(thread.number(), now, suspended) {
            Ok(Preempted::Free(lane)) => {
                pool.running[lane.index()] = None;
                let successor = self.thread_for(&mut pool, lane);
                drop(pool);
                if let Some(successor) = successor {
                    ready(successor);
                }
            }
            Ok(Preempted::Queued(reaction)) => {
                self.publish(&pool);
                drop(pool);
                self.react(reaction);
            }
            Err(suspended) => return Err(suspended.runnable),
        }
        Ok(())
    }

    fn blocked(&'static self, thread: &'static RequestThread) {
        let now = self.time(clock::now());
        let mut pool = self.pool.lock();
        let Some(lane) = pool.board.block(thread.number(), now) else { return };
        pool.running[lane.index()] = None;
        let successor = self.thread_for(&mut pool, lane);
        drop(pool);
        if let Some(successor) = successor {
            ready(successor);
        }
    }

    fn is_over(&'static self, thread: &'static RequestThread, now: Cycles) -> (bool, Cycles) {
        let mut pool = self.pool.lock();
        if !pool.board.has_room_for_preempted() {
            return (false, now.saturating_add(self.slice));
        }
        match pool.board.quantum(thread.number(), self.time(now)) {
            Verdict::Preempt => (true, 0),
            Verdict::Again(after) => (false, now.saturating_add(self.runtime.clock.from_ns(after.0))),
            Verdict::RunOn => (false, Cycles::MAX),
        }
    }

    fn makes_way(&self) -> bool {
        self.slice != Cycles::MAX && self.waiting.load(Relaxed) > 0
    }
}

impl Spare {
    /// Leaves the thread `task`; returns the right to resume it.
    fn given(self, task: Task) -> Runnable {
        *self.mailbox.lock() = task;
        self.runnable
    }
}

/// Lets other threads of this kthread run before the caller asks: they may bring requests. Notes in
/// `task` when the last request ended, if they take any time.
fn let_others_first(mut task: Task) -> Task {
    if others_wait() {
        if let Task::Finish { ended, .. } = &mut task {
            *ended = Some(clock::now());
        }
        for _ in 0..YIELDS {
            yield_now();
        }
    } else {
        // Takes one from the switches until timers are looked at.
        yield_now();
    }
    task
}

/// Sets the request thread that the calling user thread is, and begins a turn with it.
fn serve_as(thread: Option<&'static RequestThread>) {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else { return };
    if let Some(me) = kthread.current() {
        me.serving.set(thread);
    }
    if thread.is_some() {
        kthread.begin_turn();
    }
}
