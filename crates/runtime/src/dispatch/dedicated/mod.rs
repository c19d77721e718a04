//! Dispatchers with kthreads of their own: they order requests by the policy and hand them to
//! workers through mailboxes (Shinjuku, NSDI'19, section 3.3; Concord, SOSP'23).
//!
//! Owns a *group* for each dispatcher: its lanes and their threads, the inbox of submitted
//! requests, and the dispatcher's thread, which is alone on its kthread
//! ([`ThreadClass::Exclusive`]). Flows are divided among the groups by their hash, as receive-side
//! scaling does.
//!
//! ```text
//!  any thread            dispatcher's kthread                          a worker's kthread
//!  submit ──▶ inbox ──▶ assigner (policy, tokens) ──▶ mailbox of a lane ──▶ its thread: handle
//!                         ▲                                              │
//!                         ├───────────── report: finished ◀──────────────┤ without the lock
//!                         └───────────── preempted, blocked, idle ◀──────┘ under the lock
//! ```
//!
//! # The role of the dispatcher
//! Dispatching is what the holder of the group's lock does: collecting reports and submitted
//! requests, asking the policy, filling mailboxes ([`Assigner`]). The dispatcher's thread holds the
//! lock again and again while it *polls*, so that workers need it only where a request is
//! preempted or blocks, or a lane has nothing to do. On cores that are lent, any kthread may lose
//! its core. So nothing waits for that thread:
//!
//! | who has no core | what goes on |
//! |---|---|
//! | the dispatcher, not polling | `submit` dispatches itself; a lane with an empty mailbox does so for itself, and a request asks the policy when its quantum is over: the inline dispatcher |
//! | the dispatcher, polling (Linux took its core) | lanes with empty mailboxes empty the inbox; so does a `submit` that finds it older than [`HELP_AFTER`] |
//! | a worker that ceded its core | its request goes back to the policy, or keeps the lane if that does not preempt; its mailbox is emptied by itself, under the lock |
//! | a worker that Linux has stopped, or that computes without poll points | its mailbox is emptied by the dispatcher, or by a lane that idles; a dispatcher that polls interrupts its kthread |
//! | all workers | requests wait, as with any dispatcher |
//!
//! The thread stops polling, under the inbox's lock, before it yields, which it does when the core
//! is asked back or other threads wait for its kthread, and when it has found nothing to do for the
//! program's idle timeout. In the latter case it sleeps, and gives its core back as any thread. It
//! is woken when there are more requests than lanes on their way, and when a request is submitted
//! or a lane idles while others wait in mailboxes, whose lanes Linux may have stopped. A program
//! that has one core at the moment runs it in turn with the lanes, and most of the time it does not
//! poll.
//!
//! # Locks and words
//! The assigner's lock first, then the inbox's. Mailboxes: see
//! [`worker_mailbox`](crate::ground::words::worker_mailbox). The rest is relaxed:
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `polled` of the inbox | the dispatcher's thread, under the inbox's lock | under that lock |
//! | `polls` | the dispatcher's thread | lanes: a hint |
//! | `pending` | under the inbox's lock | the dispatcher's thread, before it locks |
//! | [`Admission`] | `submit` adds; the holder of the assigner's lock subtracts, before a worker is given the request | `submit`: bounds both inbox and policy |
//! | `waiting` | under the assigner's lock | requests, in the signal handler |
//! | `kthreads[lane]` | the lane's thread, when it asks or has blocked | the dispatcher: a hint where the lane runs |
//!
//! # What a thread does to the others when it fails
//! | it | then |
//! |---|---|
//! | panics in `handle` | the request is finished and counted, the lane goes on |
//! | never returns from `handle` | its lane is lost, its mailbox is emptied after [`PATIENCE`](assigner::PATIENCE) |
//! | ends the process, or is killed with it | everything here is memory of that process: the IOKernel and other programs see an ordinary exit |
//! | reports what it was not given | only a defect of this module can: the process ends by an assertion |

mod admission;
mod assigner;
mod lanes;
mod polling;
#[cfg(test)]
mod tests;

use super::dispatcher::queue_traced;
use super::pool::{Suspended, Task, Work};
use super::publish::Changes;
use super::settings::{Dispatchers, Settings};
use super::spares::Spares;
use super::stats::ClassStats;
use super::table::{Offer, RequestTable};
use super::threads::{Maker, Threads};
use crate::ground::guard::NoPreempt;
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::records::runtime::Runtime;
use crate::records::uthread::Runnable;
use crate::sync::Notify;
use crate::thread::{self, ThreadClass};
use crate::verbs::ready::ready;
use admission::Admission;
use assigner::{Assigner, LaneMailbox};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::Relaxed};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{FlowHash, WorkerId};
use tailwater_shm::{Cycles, clock};

/// Age of the inbox from which on a submitting thread empties it itself.
const HELP_AFTER: Nanos = Nanos(50_000);

/// The code of the service.
type Handle<P> = Arc<dyn Fn(P) + Send + Sync>;
type Init = Arc<dyn Fn(usize) + Send + Sync>;

/// The mailbox of a lane.
type Mailbox<P> = Arc<LaneMailbox<Work<P>, Suspended>>;

/// A request that was submitted while the dispatcher polls.
struct Submitted<P> {
    offer: Offer,
    work: Work<P>,
}

struct Inbox<P> {
    /// The dispatcher polls, and takes the requests.
    polled: bool,
    requests: VecDeque<Submitted<P>>,
}

/// What the lock of a group protects.
struct Pool<P> {
    assigner: Assigner<Work<P>, Suspended>,
    spares: Spares,
    /// Emptied inboxes go through here: two vectors take turns.
    batch: VecDeque<Submitted<P>>,
}

/// In place of the kthread of a lane that has not run: no kthread has this index.
const NOT_RUN: u16 = u16::MAX;

/// A dispatcher and its lanes. Lives as long as the process.
struct Group<P> {
    pool: SpinLock<Pool<P>>,
    inbox: SpinLock<Inbox<P>>,
    /// The dispatcher polls.
    polls: AtomicBool,
    pending: AtomicUsize,
    admission: Arc<Admission>,
    waiting: AtomicUsize,
    mailboxes: Box<[Mailbox<P>]>,
    /// The kthread on which each lane asked last, or went on after it had blocked; at first
    /// [`NOT_RUN`].
    kthreads: Box<[AtomicU16]>,
    /// Wakes the dispatcher's thread.
    wake: Notify,
    /// The dispatcher's thread ends: the start has failed.
    ends: AtomicBool,
    changes: &'static Changes,
    runtime: &'static Runtime,
    origin: Cycles,
    /// As in [`Server`](super::server::Server).
    slice: Cycles,
    /// True if the policy has quanta, and so a request gives way to one in its mailbox.
    has_quantum: bool,
    maker: Maker,
    first_lane: usize,
    init_per_core: Init,
    handle: Handle<P>,
}

/// The groups of one dispatcher of a program. Lives as long as the process.
pub struct Groups<P: 'static> {
    groups: Box<[&'static Group<P>]>,
    /// Of the counters of classes.
    pub changes: &'static Changes,
}

impl<P: 'static> fmt::Debug for Groups<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.groups.iter().map(|group| group.waiting.load(Relaxed)).sum::<usize>();
        f.debug_struct("Dispatcher")
            .field("dispatchers", &self.groups.len())
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

impl<P> fmt::Debug for Group<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Groups that are made, and the threads that begin with them.
pub struct Made<P: 'static> {
    pub groups: &'static Groups<P>,
    threads: Vec<super::pool::Spare>,
}

impl<P: Send + 'static> Made<P> {
    /// Lets the lanes begin.
    pub fn begin(self) -> &'static Groups<P> {
        self.threads.into_iter().for_each(|thread| ready(thread.runnable));
        self.groups
    }

    /// Ends all threads: nothing has run.
    pub fn end(self) {
        self.threads.into_iter().for_each(|thread| ready(thread.given(Task::End)));
        for group in &self.groups.groups {
            group.ends.store(true, Relaxed);
            group.wake.notify_one();
        }
    }
}

impl<P: Send + 'static> Groups<P> {
    /// Makes `dispatchers.count` groups that share the kthreads which the dispatchers leave.
    ///
    /// # Errors
    /// If a setting is out of range, there are too few kthreads or cores, or there is no memory.
    /// Nothing runs then.
    pub fn make(
        settings: &Settings,
        dispatchers: Dispatchers,
        runtime: &'static Runtime,
        init_per_core: impl Fn(usize) + Send + Sync + 'static,
        handle: impl Fn(P) + Send + Sync + 'static,
    ) -> io::Result<Made<P>> {
        let (kthreads, count) = (runtime.kthreads.len(), dispatchers.count);
        if kthreads < 2 * count {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, TooFew { kthreads, dispatchers: count }));
        }
        let (workers, origin) = (kthreads - count, clock::now());
        let (init_per_core, handle): (Init, Handle<P>) = (Arc::new(init_per_core), Arc::new(handle));
        let changes: &'static Changes = Box::leak(Box::default());
        let mut groups = Vec::with_capacity(count);
        let mut first_lane = 0;
        for index in 0..count {
            let lanes = workers / count + usize::from(index < workers % count);
            let table = RequestTable::for_workers(settings, lanes, dispatchers.depth)?;
            let group = Group::new(settings, dispatchers, table, lanes, first_lane, runtime, changes);
            let (init_per_core, handle) = (Arc::clone(&init_per_core), Arc::clone(&handle));
            groups.push(&*Box::leak(Box::new(Group { origin, init_per_core, handle, ..group })));
            first_lane += lanes;
        }
        let groups: &'static Self = Box::leak(Box::new(Self { groups: groups.into(), changes }));
        let mut made = Made { groups, threads: Vec::with_capacity(workers) };
        match groups.start(&mut made.threads) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.end();
                Err(error)
            }
        }
    }

    /// Makes the threads of all lanes and dispatchers.
    fn start(&self, threads: &mut Vec<super::pool::Spare>) -> io::Result<()> {
        for &group in &self.groups {
            for lane in 0..group.mailboxes.len() as u32 {
                let made = group.new_thread(Task::Begin(WorkerId(lane)));
                threads.push(made.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?);
            }
            let dispatcher =
                thread::Builder::new().name("dispatcher".to_owned()).class(ThreadClass::Exclusive);
            drop(dispatcher.spawn(move || group.serve()).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "a dispatcher cannot have a core of its own: {error}; without \
                         Settings::dispatchers each worker schedules itself"
                    ),
                )
            })?);
        }
        Ok(())
    }

    /// As [`Dispatcher::submit`](super::Dispatcher::submit), with the time and place of arrival in
    /// `offer`.
    ///
    /// # Errors
    /// The payload, if as many wait as are allowed.
    pub fn submit(
        &self,
        flow: FlowHash,
        class: usize,
        offer: impl FnOnce(Nanos) -> Offer,
        payload: P,
    ) -> Result<(), P> {
        let group = self.groups[flow.home(self.groups.len()).index()];
        let submitted = group.submit(class, offer, payload);
        self.changes.note();
        submitted
    }

    /// Returns the time of all groups at cycle count `at`.
    pub fn time(&self, at: Cycles) -> Nanos {
        self.groups[0].time(at)
    }

    /// Counts a request of `class` as dropped that was not submitted.
    pub fn drop_unsubmitted(&self, class: usize) {
        self.groups[0].pool.lock().assigner.table.drop_unsubmitted(class);
        self.changes.note();
    }

    /// Returns what became of the requests of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        let mut all: Vec<ClassStats> = Vec::new();
        for &group in &self.groups {
            let classes = {
                let mut pool = group.pool.lock();
                group.serve_once(&mut pool, group.time(clock::now()));
                let classes = pool.assigner.table.stats().len();
                group.release(pool);
                classes
            };
            for class in 0..classes {
                // One at a time, as in `Dispatcher::stats`.
                let stats = group.pool.lock().assigner.table.stats()[class].clone();
                match all.get_mut(class) {
                    Some(sum) => sum.add(&stats),
                    None => all.push(stats),
                }
            }
        }
        all
    }
}

/// Why there are no dispatchers.
#[derive(Debug, thiserror::Error)]
#[error(
    "jbsq and dispatchers with kthreads of their own use two kthreads for each dispatcher: {needed} here, and the program has \
     {kthreads}; start it with --kthreads {needed} (TAILWATER_KTHREADS, RuntimeBuilder::kthreads), or take another \
     policy, such as mq:5us, without dispatchers of their own",
    needed = 2 * .dispatchers
)]
struct TooFew {
    kthreads: usize,
    dispatchers: usize,
}

impl<P> Group<P> {
    /// Returns the policy's time at cycle count `at`.
    fn time(&self, at: Cycles) -> Nanos {
        Nanos(self.runtime.clock.to_ns(at.saturating_sub(self.origin)))
    }

    /// Dispatches: collects reports of lanes and submitted requests, and fills mailboxes.
    fn serve_once(&self, pool: &mut Pool<P>, now: Nanos) {
        pool.assigner.collect();
        self.empty_inbox(pool, now);
        pool.assigner.pump(now);
    }

    /// Queues what was submitted.
    fn empty_inbox(&self, pool: &mut Pool<P>, now: Nanos) {
        if self.pending.load(Relaxed) > 0 {
            self.drain(pool, now, |_| ());
        }
    }

    /// Queues what was submitted, and changes the inbox in the same moment.
    fn drain(&self, pool: &mut Pool<P>, now: Nanos, change: impl FnOnce(&mut Inbox<P>)) {
        {
            let mut inbox = self.inbox.lock();
            core::mem::swap(&mut pool.batch, &mut inbox.requests);
            self.pending.store(0, Relaxed);
            change(&mut inbox);
        }
        while let Some(submitted) = pool.batch.pop_front() {
            Self::queue(pool, now, submitted);
        }
    }

    /// Queues a request that was admitted.
    fn queue(pool: &mut Pool<P>, now: Nanos, Submitted { offer, work }: Submitted<P>) {
        if pool.assigner.submit(now, offer, work).is_err() {
            unreachable!("at most as many are admitted as may wait");
        }
    }

    /// Publishes what others read without the lock; unlocks, and makes the threads of called lanes
    /// runnable.
    fn release(&self, mut pool: SpinGuard<'_, Pool<P>>) {
        self.waiting.store(pool.assigner.waiting(), Relaxed);
        let called = Self::next_called(&mut pool);
        // Rarely more than one: then the others are queued while the lock is held.
        while let Some(other) = Self::next_called(&mut pool) {
            ready(other);
        }
        // A lane that is called has its thread from here only.
        let _guard = NoPreempt::new();
        drop(pool);
        called.into_iter().for_each(ready);
    }

    /// Returns the thread of the next lane that is called.
    fn next_called(pool: &mut Pool<P>) -> Option<Runnable> {
        let lane = pool.assigner.next_call()?;
        Some(pool.spares.call(WorkerId(lane as u32)))
    }
}

impl<P: Send + 'static> Group<P> {
    fn new(
        settings: &Settings,
        dispatchers: Dispatchers,
        table: RequestTable<Work<P>, Suspended>,
        lanes: usize,
        first_lane: usize,
        runtime: &'static Runtime,
        changes: &'static Changes,
    ) -> Self {
        let mailboxes: Vec<_> = (0..lanes).map(|_| Arc::new(LaneMailbox::new())).collect();
        let quantum = settings.quantum();
        let slice = quantum.map_or(Cycles::MAX, |time| runtime.clock.from_ns(time.as_nanos() as u64));
        let has_quantum = settings.has_quantum();
        let quantum = quantum.filter(|_| has_quantum).map(|time| Nanos(time.as_nanos() as u64));
        let admission = Arc::new(Admission::new(settings.queue));
        let assigner = Assigner::new(table, &mailboxes, dispatchers.depth, quantum, &admission);
        Self {
            pool: SpinLock::new(Pool { assigner, spares: Spares::new(lanes), batch: VecDeque::new() }),
            inbox: SpinLock::new(Inbox { polled: false, requests: VecDeque::new() }),
            polls: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            admission,
            waiting: AtomicUsize::new(0),
            kthreads: (0..lanes).map(|_| AtomicU16::new(NOT_RUN)).collect(),
            mailboxes: mailboxes.into(),
            wake: Notify::new(),
            ends: AtomicBool::new(false),
            changes,
            runtime,
            origin: clock::now(),
            slice,
            has_quantum,
            maker: Maker::new(settings.stack_size, runtime.clock),
            first_lane,
            init_per_core: Arc::new(|_| ()),
            handle: Arc::new(drop),
        }
    }

    fn submit(&self, class: usize, offer: impl FnOnce(Nanos) -> Offer, payload: P) -> Result<(), P> {
        if !self.admission.admit() {
            self.pool.lock().assigner.table.drop_unsubmitted(class);
            return Err(payload);
        }
        // Until the lane that is called has its thread, which only this call can give it.
        let guard = NoPreempt::new();
        let now = self.time(clock::now());
        let offer = offer(now);
        let work = Work { payload, traced: queue_traced(&guard, class) };
        let submitted = Submitted { offer, work };
        let mut inbox = self.inbox.lock();
        if inbox.polled {
            let oldest = inbox.requests.front().map_or(now, |first| first.offer.arrived);
            inbox.requests.push_back(submitted);
            self.pending.store(inbox.requests.len(), Relaxed);
            drop(inbox);
            if now.since(oldest) >= HELP_AFTER
                && let Some(mut pool) = self.pool.try_lock()
            {
                self.serve_once(&mut pool, now);
                self.release(pool);
            }
            return Ok(());
        }
        drop(inbox);
        let mut pool = self.pool.lock();
        Self::queue(&mut pool, now, submitted);
        self.serve_once(&mut pool, now);
        let needs_watching = pool.assigner.needs_watching();
        self.release(pool);
        if needs_watching {
            self.wake.notify_one();
        }
        Ok(())
    }
}
