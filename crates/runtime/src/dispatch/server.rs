//! The threads of a dispatcher: how they take requests, and what becomes of them where a request is
//! preempted or blocks.
//!
//! Owns the lock around the [`Pool`], and the loop that each thread runs.
//!
//! | event | what happens to the lane |
//! |---|---|
//! | a request ends | its thread asks for the next |
//! | the lane's next request is suspended | its thread resumes on the kthread of the one that asked, which is a spare |
//! | there is none | the thread becomes a spare |
//! | a request arrives for an idle lane | a spare thread asks |
//! | a request is preempted or blocks | a spare thread asks, after the threads that are runnable |
//! | the same, without a thread for the lane | the request keeps the lane |
//!
//! A lane asks when it has a core, and runs what it gets at once. So of the lanes that wait for a
//! core, because there are more of them than the program has cores, none has a request that the
//! policy does not know of, except what was preempted on it; and a request that arrives waits for
//! the next lane that asks, not for the turns of those.
//!
//! A spare is made where none is left, before the request gives its lane up and while the lock is
//! free: a stack takes 10 us and more. If there is no memory for one, a request is not preempted,
//! and one that blocks keeps its lane, as it does if [`Settings::blocked`] others have blocked. So
//! no lane is ever without a thread.
//!
//! [`Settings::blocked`]: super::Settings::blocked

use super::dispatcher::queue_traced;
use super::pool::{Pool, Spare, Suspended, Task, ThreadRecord, Work};
use super::publish::Changes;
use super::spares::Spares;
use super::table::{Blocked, Next, Offer, Preempted};
use super::threads::{HasSpares, Maker, Threads};
use crate::ground::guard::NoPreempt;
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::records::request::Request;
use crate::records::runtime::Runtime;
use crate::records::serving::{RequestThread, Requests};
use crate::records::uthread::Runnable;
use crate::verbs::ready::ready;
use crate::verbs::switch::{Choice, others_wait, suspend_or, yield_now};
use crate::verbs::trace;
use core::fmt;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::panic::catch_unwind;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::QuantumDecision;
use tailwater_shm::{Cycles, clock};

/// Times that a thread which is about to ask lets others go first: the scheduler takes frames at
/// the first, and those that the frames made runnable come at the second.
const YIELDS: u32 = 2;

/// A dispatcher. Lives as long as the process.
pub struct Server<P> {
    pub pool: SpinLock<Pool<P>>,
    /// Requests that wait, for a look without the lock.
    waiting: AtomicUsize,
    /// Of the counters of classes.
    pub changes: Changes,
    runtime: &'static Runtime,
    origin: Cycles,
    /// How long a request runs before it competes with others; the maximum under a policy that
    /// does not preempt.
    slice: Cycles,
    maker: Maker,
    init_per_core: Box<dyn Fn(usize) + Send + Sync>,
    handle: Box<dyn Fn(P) + Send + Sync>,
}

impl<P> fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// The next step of a thread that has asked for work.
enum Step<P> {
    Run(Work<P>),
    End,
}

impl<P: Send + 'static> Server<P> {
    /// Returns a dispatcher without threads.
    pub fn leak(
        pool: Pool<P>,
        runtime: &'static Runtime,
        slice: Cycles,
        stack_size: Option<usize>,
        init_per_core: impl Fn(usize) + Send + Sync + 'static,
        handle: impl Fn(P) + Send + Sync + 'static,
    ) -> &'static Self {
        Box::leak(Box::new(Self {
            pool: SpinLock::new(pool),
            waiting: AtomicUsize::new(0),
            changes: Changes::default(),
            runtime,
            origin: clock::now(),
            slice,
            maker: Maker::new(stack_size, runtime.clock),
            init_per_core: Box::new(init_per_core),
            handle: Box::new(handle),
        }))
    }

    /// Returns the policy's time at cycle count `at`.
    pub fn time(&self, at: Cycles) -> Nanos {
        Nanos(self.runtime.clock.to_ns(at.saturating_sub(self.origin)))
    }

    /// Publishes what others read without the lock.
    pub fn publish(&self, pool: &Pool<P>) {
        self.waiting.store(pool.table.waiting(), Relaxed);
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The payload, if as many wait as are allowed.
    pub fn submit(&self, now: Nanos, offer: Offer, payload: P) -> Result<(), P> {
        // Until the lane that is called has its thread, which only this call can give it.
        let guard = NoPreempt::new();
        // Before the request is in the queue, where another kthread may begin it at once.
        let work = Work { payload, traced: queue_traced(&guard, offer.class) };
        let mut pool = self.pool.lock();
        let submitted = pool.table.submit(now, offer, work);
        let submitted = submitted.map(|reaction| pool.apply(reaction));
        self.publish(&pool);
        drop(pool);
        self.changes.note();
        match submitted {
            Ok(called) => {
                called.into_iter().for_each(ready);
                Ok(())
            }
            Err(work) => {
                begin_traced(&guard, work.traced);
                Err(work.payload)
            }
        }
    }

    /// As [`choose`](Self::choose); notes a request that is finished.
    fn settle(&'static self, record: &'static ThreadRecord, task: Task, me: Runnable) -> Choice<Step<P>> {
        let choice = self.choose(record, task, me);
        if matches!(task, Task::Finish { .. }) {
            self.changes.note();
        }
        choice
    }

    /// Chooses what the thread of `record`, which is `me`, does next: it begins a request, or
    /// becomes a spare, in favour of the thread whose request is next if there is one.
    fn choose(&'static self, record: &'static ThreadRecord, task: Task, me: Runnable) -> Choice<Step<P>> {
        let at = clock::now();
        let me = Spare { runnable: me, record };
        let mut pool = self.pool.lock();
        let lane = match task {
            Task::Begin(lane) | Task::Ask(lane) => Some(lane),
            Task::Finish { number, panicked, ended } => {
                let lane = pool.table.finish(number, self.time(ended.unwrap_or(at)), panicked);
                lane.inspect(|lane| pool.running[lane.index()] = None)
            }
            Task::End => None,
        };
        let Some(lane) = lane else { return leave(pool, me, None) };
        let (next, reaction) = pool.table.next(lane, self.time(at));
        let called = pool.apply(reaction);
        self.publish(&pool);
        let choice = match next {
            Next::Start(number, work) => {
                pool.running[lane.index()] = Some(&record.thread);
                record.thread.begin(number, self.slice);
                drop(pool);
                serve_as(Some(&record.thread));
                begin_traced(&NoPreempt::new(), work.traced);
                Choice::Stay(Step::Run(work))
            }
            Next::Resume(number, suspended) => {
                pool.running[lane.index()] = Some(suspended.thread);
                suspended.thread.begin(number, self.slice);
                leave(pool, me, Some(suspended.runnable))
            }
            Next::Idle => {
                pool.spares.idles();
                leave(pool, me, None)
            }
        };
        called.into_iter().for_each(ready);
        choice
    }
}

/// Keeps `me`, which has nothing to do, as a spare, or ends it, in favour of `next`.
fn leave<P>(mut pool: SpinGuard<'_, Pool<P>>, me: Spare, next: Option<Runnable>) -> Choice<Step<P>> {
    match pool.spares.keep(me) {
        Ok(()) => Choice::Leave(next),
        Err(_ends) => {
            drop(pool);
            next.into_iter().for_each(ready);
            Choice::Stay(Step::End)
        }
    }
}

impl<P> HasSpares for Pool<P> {
    fn spares(&mut self) -> &mut Spares {
        &mut self.spares
    }
}

impl<P: Send + 'static> Threads for Server<P> {
    type Pool = Pool<P>;

    fn pool(&self) -> &SpinLock<Pool<P>> {
        &self.pool
    }

    fn maker(&self) -> &Maker {
        &self.maker
    }

    fn run(&'static self, record: &'static ThreadRecord) {
        loop {
            let mut task = *record.task.lock();
            match task {
                Task::Begin(lane) => {
                    // A lane whose initialisation panicked serves all the same: a request that
                    // misses it panics too, and is counted.
                    catch(|| (self.init_per_core)(lane.index()));
                    task = Task::Ask(lane);
                }
                Task::End => return,
                Task::Ask(_) | Task::Finish { .. } => {}
            }
            task = let_others_first(task);
            while let Some(step) = suspend_or(|me| self.settle(record, task, me)) {
                let Step::Run(work) = step else { return };
                // The payload is gone with the panic; the state of the handler is the service's.
                let panicked = catch(|| (self.handle)(work.payload)).is_none();
                trace::received(None);
                serve_as(None);
                // Not the number that it began with: see `Next::Resume`.
                let number = record.thread.number();
                task = let_others_first(Task::Finish { number, panicked, ended: None });
            }
        }
    }
}

impl<P: Send + 'static> Requests for Server<P> {
    fn preempted(&'static self, thread: &'static RequestThread, runnable: Runnable) -> Result<(), Runnable> {
        // Without a quantum the core was asked back, not the lane: the request goes on with it.
        if self.slice == Cycles::MAX {
            return Err(runnable);
        }
        let now = self.time(clock::now());
        let number = thread.number();
        let Ok(mut pool) = self.lock_with_spare(|pool| pool.table.may_preempt(number)) else {
            return Err(runnable);
        };
        let called = match pool.table.preempt(number, now, Suspended { thread, runnable }) {
            Ok(Preempted::Free(lane)) => Some(pool.hand_over(lane)),
            Ok(Preempted::Queued(reaction)) => pool.apply(reaction),
            Err(suspended) => return Err(suspended.runnable),
        };
        self.publish(&pool);
        drop(pool);
        called.into_iter().for_each(ready);
        Ok(())
    }

    fn blocked(&'static self, thread: &'static RequestThread) {
        let (number, now) = (thread.number(), self.time(clock::now()));
        let (mut pool, leaves) = match self.lock_with_spare(|pool| pool.table.may_leave_lane(number)) {
            Ok(pool) => (pool, true),
            Err(pool) => (pool, false),
        };
        match pool.table.block(number, now, leaves) {
            Blocked::Detached => {}
            Blocked::Left(lane) => {
                let successor = pool.hand_over(lane);
                drop(pool);
                ready(successor);
            }
            Blocked::Kept(released) => {
                released.iter().for_each(|suspended| suspended.thread.resume(self.slice));
                drop(pool);
                released.into_iter().for_each(|suspended| ready(suspended.runnable));
            }
        }
    }

    fn unblocked(&'static self, thread: &'static RequestThread) {
        let now = self.time(clock::now());
        self.pool.lock().table.unblock(thread.number(), now);
    }

    fn is_over(&'static self, thread: &'static RequestThread, now: Cycles) -> (bool, Cycles) {
        let no_memory_until = self.maker.no_memory_until();
        if now < no_memory_until {
            return (false, no_memory_until);
        }
        let mut pool = self.pool.lock();
        let number = thread.number();
        if !pool.table.may_preempt(number) {
            return (false, now.saturating_add(self.slice));
        }
        match pool.table.quantum(number, self.time(now)) {
            QuantumDecision::Preempt => (true, 0),
            QuantumDecision::Again(after) => (false, now.saturating_add(self.runtime.clock.from_ns(after.0))),
            QuantumDecision::RunOn => (false, Cycles::MAX),
        }
    }

    fn may_preempt(&self, thread: &RequestThread) -> bool {
        self.pool.lock().table.may_preempt(thread.number())
    }

    fn makes_way(&self) -> bool {
        self.slice != Cycles::MAX && self.waiting.load(Relaxed) > 0
    }
}

/// Runs `f`, code of the service; returns `None` if it panics. A payload of the panic that panics
/// when it is dropped is leaked with its second one.
pub fn catch<T>(f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(payload) => {
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            dropped.unwrap_or_else(core::mem::forget);
            None
        }
    }
}

/// Lets other threads of this kthread run before the caller asks: they may bring requests. Notes in
/// `task` when the last request ended, if they take any time.
pub fn let_others_first(mut task: Task) -> Task {
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
pub fn serve_as(thread: Option<&'static RequestThread>) {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else { return };
    if let Some(me) = kthread.current() {
        me.serving.set(thread);
    }
    if thread.is_some() {
        kthread.begin_turn();
    }
}

/// Has the calling user thread carry a traced request that waited, if it is one.
#[inline]
pub fn begin_traced(guard: &NoPreempt, request: Request) {
    if request.id != 0
        && let Some(kthread) = guard.kthread()
        && let Some(me) = kthread.current()
    {
        trace::begin(kthread, me, request);
    }
}
