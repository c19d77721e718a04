//! The threads of lanes whose dispatcher has a kthread of its own: how they take requests from the
//! mailbox, and what becomes of them where a request is preempted or blocks.
//!
//! Owns the loop that each thread runs, and the group as the scheduler calls it. As in
//! [`server`](super::super::server) a lane has one thread at a time, a preempted request keeps its
//! thread, and a spare takes the lane. A thread knows its lane ([`RequestThread::lane`]): that is
//! set where the thread gets the lane, under the lock or before its resumption, and cleared by the
//! thread itself.

use super::super::pool::{Spare, Suspended, Task, ThreadRecord, Work};
use super::super::server::{begin_traced, catch, let_others_first, serve_as};
use super::super::spares::Spares;
use super::super::threads::{HasSpares, Maker, Threads};
use super::assigner::{Handed, LaneMailbox};
use super::{Group, Pool};
use crate::ground::guard::NoPreempt;
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::records::kthread::current_uthread;
use crate::records::serving::{RequestThread, Requests};
use crate::records::uthread::Runnable;
use crate::verbs::ready::ready;
use crate::verbs::switch::{Choice, others_wait, suspend_or};
use crate::verbs::trace;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_sched::dispatch::{QuantumDecision, WorkerId};
use tailwater_shm::sync::spin_hint;
use tailwater_shm::{Cycles, clock};

/// Number of looks at an empty mailbox before the lane idles: one to three microseconds, in which
/// the dispatcher reads the report and answers. Idling and being called again takes both sides as
/// long.
const LOOKS: u32 = 64;

/// The next step of a thread that has asked for work.
enum Step<P> {
    Run(Work<P>),
    End,
}

impl<P: Send + 'static> Group<P> {
    /// As [`let_others_first`]; others take meanwhile what waits in the mailbox.
    fn let_others_first(&self, record: &'static ThreadRecord, task: Task) -> Task {
        if let Some(lane) = record.thread.lane()
            && others_wait()
        {
            self.mailboxes[lane].set_resting(true);
        }
        let_others_first(task)
    }

    /// Chooses what the thread of `record`, which is `me`, does next: it begins a request, or
    /// becomes a spare, in favour of the thread whose request is next if there is one.
    fn choose(&'static self, record: &'static ThreadRecord, task: Task, me: Runnable) -> Choice<Step<P>> {
        let at = clock::now();
        let me = Spare { runnable: me, record };
        let (lane, is_there) = match task {
            Task::Begin(lane) | Task::Ask(lane) => (lane.index(), false),
            Task::Finish { number, panicked, ended } => {
                let ended = self.time(ended.unwrap_or(at));
                let Some(lane) = record.thread.lane() else {
                    let mut pool = self.pool.lock();
                    pool.assigner.table.finish(number, ended, panicked);
                    self.serve_once(&mut pool, self.time(at));
                    let choice = self.leave(&mut pool, me, None);
                    self.end_choice(pool);
                    return choice.run();
                };
                self.mailboxes[lane].report(number, ended.0, panicked);
                self.changes.note_unlocked();
                (lane, true)
            }
            Task::End => {
                let mut pool = self.pool.lock();
                let choice = self.leave(&mut pool, me, None);
                self.end_choice(pool);
                return choice.run();
            }
        };
        let mailbox = &self.mailboxes[lane];
        self.note_place(lane);
        mailbox.set_resting(false);
        let mut handed = None;
        if is_there {
            let mut looks = 0;
            while !mailbox.has_request() && looks < LOOKS && self.polls.load(Relaxed) {
                looks += 1;
                spin_hint();
            }
            handed = mailbox.take(self.time(clock::now()).0);
        }
        match handed {
            Some(Handed::Start(number, work)) => self.start(record, lane, number, work),
            Some(Handed::Resume(number, suspended)) => {
                let mut pool = self.pool.lock();
                let choice = self.resume(&mut pool, lane, number, suspended, me);
                self.end_choice(pool);
                choice.run()
            }
            None => self.ask(record, lane, me),
        }
    }

    /// Asks for `lane` under the lock.
    fn ask(&'static self, record: &'static ThreadRecord, lane: usize, me: Spare) -> Choice<Step<P>> {
        let mut pool = self.pool.lock();
        let mut needs_watching = false;
        let now = self.time(clock::now());
        self.empty_inbox(&mut pool, now);
        let handed = if pool.assigner.ask(lane, now) { self.mailboxes[lane].take(now.0) } else { None };
        let choice = match handed {
            Some(Handed::Start(number, work)) => {
                self.release(pool);
                return self.start(record, lane, number, work);
            }
            Some(Handed::Resume(number, suspended)) => self.resume(&mut pool, lane, number, suspended, me),
            None => {
                needs_watching = pool.assigner.needs_watching();
                record.thread.set_lane(None);
                pool.spares.idles();
                self.leave(&mut pool, me, None)
            }
        };
        self.end_choice(pool);
        if needs_watching && !self.polls.load(Relaxed) {
            self.wake.notify_one();
        }
        choice.run()
    }

    /// Begins a new request on the calling thread.
    fn start(
        &'static self,
        record: &'static ThreadRecord,
        lane: usize,
        number: u32,
        work: Work<P>,
    ) -> Choice<Step<P>> {
        record.thread.set_lane(Some(lane));
        record.thread.begin(number, self.slice);
        serve_as(Some(&record.thread));
        begin_traced(&NoPreempt::new(), work.traced);
        Choice::Stay(Step::Run(work))
    }

    /// Gives the lane to the thread of a preempted request.
    fn resume(
        &'static self,
        pool: &mut Pool<P>,
        lane: usize,
        number: u32,
        suspended: Suspended,
        me: Spare,
    ) -> Leaving {
        suspended.thread.set_lane(Some(lane));
        suspended.thread.begin(number, self.slice);
        self.leave(pool, me, Some(suspended.runnable))
    }

    /// Keeps `me`, which has nothing to do, as a spare, or ends it, in favour of `next`.
    fn leave(&self, pool: &mut Pool<P>, me: Spare, next: Option<Runnable>) -> Leaving {
        me.record.thread.set_lane(None);
        let ends = pool.spares.keep(me).is_err();
        Leaving { ends, next }
    }

    fn end_choice(&self, pool: SpinGuard<'_, Pool<P>>) {
        self.release(pool);
        self.changes.note();
    }

    /// Records on which kthread the lane is.
    fn note_place(&self, lane: usize) {
        let guard = NoPreempt::new();
        if let Some(kthread) = guard.kthread()
            && self.kthreads[lane].load(Relaxed) != kthread.index
        {
            self.kthreads[lane].store(kthread.index, Relaxed);
        }
    }

    /// Asks the policy whether a request that has used up its quantum gives way, as the dispatcher
    /// does when it polls.
    fn ask_policy(&self, lane: Option<usize>, number: u32, now: Cycles) -> (bool, Cycles) {
        let mut pool = self.pool.lock();
        let at = self.time(now);
        self.serve_once(&mut pool, at);
        let answer = if pool.assigner.table.may_preempt(number) {
            match pool.assigner.ask_policy(lane, number, at) {
                QuantumDecision::Preempt => (true, 0),
                QuantumDecision::Again(after) => {
                    (false, now.saturating_add(self.runtime.clock.from_ns(after.0)))
                }
                // A later request puts an order into the mailbox.
                QuantumDecision::RunOn => (false, Cycles::MAX),
            }
        } else {
            (false, now.saturating_add(self.slice))
        };
        self.release(pool);
        answer
    }
}

/// Returns whether the request that a lane runs, whose quantum is over, gives way: it is ordered
/// to, or another one waits for the lane, under a policy that `has_quantum`. Takes no lock.
pub(super) fn makes_way<T, S>(mailbox: &LaneMailbox<T, S>, number: u32, has_quantum: bool) -> bool {
    mailbox.is_ordered(number) || has_quantum && mailbox.has_request()
}

/// What a thread without a request does.
struct Leaving {
    ends: bool,
    next: Option<Runnable>,
}

impl Leaving {
    /// Does it, when the lock is free.
    fn run<P>(self) -> Choice<Step<P>> {
        if self.ends {
            self.next.into_iter().for_each(ready);
            Choice::Stay(Step::End)
        } else {
            Choice::Leave(self.next)
        }
    }
}

impl<P> HasSpares for Pool<P> {
    fn spares(&mut self) -> &mut Spares {
        &mut self.spares
    }
}

impl<P: Send + 'static> Threads for Group<P> {
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
                    // As in `Server::run`.
                    catch(|| (self.init_per_core)(self.first_lane + lane.index()));
                    task = Task::Ask(lane);
                }
                Task::End => return,
                Task::Ask(_) | Task::Finish { .. } => {}
            }
            task = self.let_others_first(record, task);
            while let Some(step) = suspend_or(|me| self.choose(record, task, me)) {
                let Step::Run(work) = step else { return };
                let panicked = catch(|| (self.handle)(work.payload)).is_none();
                trace::received(None);
                serve_as(None);
                // Not the number that it began with: it may have been preempted.
                let number = record.thread.number();
                task = self.let_others_first(record, Task::Finish { number, panicked, ended: None });
            }
        }
    }
}

impl<P: Send + 'static> Requests for Group<P> {
    fn preempted(&'static self, thread: &'static RequestThread, runnable: Runnable) -> Result<(), Runnable> {
        let (number, lane) = (thread.number(), thread.lane());
        if self.slice == Cycles::MAX {
            // As in `Server`: the core was asked back. Others run what waits behind the request.
            if let Some(lane) = lane {
                self.mailboxes[lane].set_resting(true);
                let mut pool = self.pool.lock();
                pool.assigner.rest(lane, self.time(clock::now()));
                self.release(pool);
            }
            return Err(runnable);
        }
        let now = self.time(clock::now());
        let mut pool = match self.lock_with_spare(|pool| pool.assigner.table.may_preempt(number)) {
            Ok(pool) => pool,
            Err(mut pool) => {
                self.serve_once(&mut pool, now);
                if let Some(lane) = lane {
                    pool.assigner.run_on(lane, now);
                }
                self.release(pool);
                thread.ask_again_at(clock::now().saturating_add(self.slice));
                return Err(runnable);
            }
        };
        let suspended = Suspended { thread, runnable };
        let preempted = match lane {
            Some(lane) => pool.assigner.preempt(lane, number, now, suspended),
            None => pool.assigner.preempt_detached(number, now, suspended),
        };
        match preempted {
            Ok(()) => {
                thread.set_lane(None);
                let successor = lane.map(|lane| pool.spares.hand_over(WorkerId(lane as u32)));
                self.serve_once(&mut pool, now);
                self.release(pool);
                successor.into_iter().for_each(ready);
                Ok(())
            }
            Err(suspended) => {
                self.serve_once(&mut pool, now);
                self.release(pool);
                thread.ask_again_at(clock::now().saturating_add(self.slice));
                Err(suspended.runnable)
            }
        }
    }

    fn blocked(&'static self, thread: &'static RequestThread) {
        let (number, now) = (thread.number(), self.time(clock::now()));
        let Some(lane) = thread.lane() else {
            self.pool.lock().assigner.table.block(number, now, false);
            return;
        };
        let (mut pool, leaves) = match self.lock_with_spare(|pool| pool.assigner.table.may_leave_lane(number))
        {
            Ok(pool) => (pool, true),
            Err(pool) => (pool, false),
        };
        let released = pool.assigner.block(lane, number, now, leaves);
        let successor = leaves.then(|| {
            thread.set_lane(None);
            pool.spares.hand_over(WorkerId(lane as u32))
        });
        for (suspended, number) in &released {
            suspended.thread.set_lane(None);
            suspended.thread.begin(number.unwrap_or(suspended.thread.number()), self.slice);
        }
        self.serve_once(&mut pool, now);
        self.release(pool);
        successor.into_iter().for_each(ready);
        released.into_iter().for_each(|(suspended, _)| ready(suspended.runnable));
    }

    fn unblocked(&'static self, thread: &'static RequestThread) {
        let (lane, now) = (thread.lane(), self.time(clock::now()));
        // It may have moved while it waited.
        lane.into_iter().for_each(|lane| self.note_place(lane));
        let mut pool = self.pool.lock();
        match lane {
            Some(lane) => pool.assigner.unblock(lane, thread.number(), now),
            None => pool.assigner.table.unblock(thread.number(), now),
        }
        self.release(pool);
    }

    fn is_over(&'static self, thread: &'static RequestThread, now: Cycles) -> (bool, Cycles) {
        let no_memory_until = self.maker.no_memory_until();
        if now < no_memory_until {
            return (false, no_memory_until);
        }
        let number = thread.number();
        let Some(lane) = thread.lane() else { return self.ask_policy(None, number, now) };
        if self.has_quantum && self.mailboxes[lane].has_request() {
            return (true, 0);
        }
        if self.polls.load(Relaxed) {
            // The dispatcher asks the policy, and puts its order into the mailbox.
            return (false, now.saturating_add(self.slice));
        }
        self.ask_policy(Some(lane), number, now)
    }

    fn is_ordered(&self, thread: &RequestThread, lane: usize) -> bool {
        let no_memory_until = self.maker.no_memory_until();
        let may = no_memory_until == 0 || clock::now() >= no_memory_until;
        may && self.mailboxes[lane].is_ordered(thread.number())
    }

    fn may_preempt(&self, thread: &RequestThread) -> bool {
        self.pool.lock().assigner.table.may_preempt(thread.number())
    }

    fn makes_way(&self) -> bool {
        let waits = || self.waiting.load(Relaxed) > 0 || self.pending.load(Relaxed) > 0;
        // The calling thread's: this is called within its signal handler.
        let serving = || current_uthread().and_then(|me| me.serving.get());
        let must_leave = |thread: &RequestThread| {
            let mailbox = thread.lane().map(|lane| &self.mailboxes[lane]);
            mailbox.is_some_and(|mailbox| makes_way(mailbox, thread.number(), self.has_quantum))
        };
        self.slice != Cycles::MAX && (waits() || serving().is_some_and(must_leave))
    }
}
