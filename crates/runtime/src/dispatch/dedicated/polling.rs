//! The dispatcher's thread: when it dispatches, and when it leaves that to others.
//!
//! Owns the loop of the thread, and the word by which others know that it polls. Meanwhile
//! preemption is off, so that the thread is never suspended in between; a poll point would come too
//! late anyway, since a pass takes about a microsecond. It stops at once when the core is asked
//! back, and otherwise after [`LONGEST_POLL`], for only the scheduler notices timers and frames.

use super::Group;
use crate::ground::guard::NoPreempt;
use crate::records::kthread::{Kthread, NO_CORE};
use crate::verbs::quantum;
use crate::verbs::switch::{others_wait, yield_now};
use core::sync::atomic::Ordering::Relaxed;
use tailwater_sched::Nanos;
use tailwater_shm::sync::spin_hint;
use tailwater_shm::{Cycles, clock};

/// Longest time without a visit to the scheduler.
const LONGEST_POLL: Nanos = Nanos(20_000);

/// Time between two passes without a report or a request, which look at quanta only.
const PACE: Nanos = Nanos(500);

/// Why the thread stops polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// There was nothing to do for the idle timeout.
    Idle,
    /// Others may need the kthread.
    Yield,
}

impl<P: Send + 'static> Group<P> {
    /// The life of the dispatcher's thread.
    pub(super) fn serve(&'static self) {
        let mut reported: Box<[u32]> = vec![0; self.mailboxes.len()].into();
        loop {
            self.wake.wait();
            if self.ends.load(Relaxed) {
                return;
            }
            let mut quiet_since = clock::now();
            while self.poll(&mut quiet_since, &mut reported) == End::Yield {
                yield_now();
            }
        }
    }

    /// Dispatches until the core is asked back, [`LONGEST_POLL`] is over, or there was nothing to
    /// do for the idle timeout. Collects the last requests before it returns.
    fn poll(&self, quiet_since: &mut Cycles, reported: &mut [u32]) -> End {
        let _guard = NoPreempt::new();
        self.begin_polling();
        let begun = clock::now();
        let until = begun.saturating_add(self.runtime.clock.from_ns(LONGEST_POLL.0));
        let pace = self.runtime.clock.from_ns(PACE.0);
        let mut next_pass = begun;
        let end = loop {
            let now = clock::now();
            if self.has_news(reported) || now >= next_pass {
                next_pass = now.saturating_add(pace);
                if self.pass(now) {
                    *quiet_since = now;
                } else if now.saturating_sub(*quiet_since) >= self.runtime.idle_timeout {
                    break End::Idle;
                }
            }
            if now >= until || others_wait() {
                break End::Yield;
            }
            spin_hint();
        };
        if self.end_polling() && end == End::Idle {
            *quiet_since = clock::now();
            return End::Yield;
        }
        end
    }

    /// Returns whether a lane has reported or a request was submitted since the last call.
    fn has_news(&self, reported: &mut [u32]) -> bool {
        let mut news = self.pending.load(Relaxed) > 0;
        for (seen, mailbox) in reported.iter_mut().zip(&self.mailboxes) {
            let now = mailbox.reported();
            news |= core::mem::replace(seen, now) != now;
        }
        news
    }

    /// Dispatches once; returns whether there are requests.
    fn pass(&self, now: Cycles) -> bool {
        let now = self.time(now);
        let mut pool = self.pool.lock();
        self.serve_once(&mut pool, now);
        pool.assigner.watch(now, |lane| self.has_no_core(lane));
        pool.assigner.pump(now);
        let has_requests = !pool.assigner.is_empty();
        let overdue = pool.assigner.poll_overdue(now);
        self.release(pool);
        if let Some(lane) = overdue {
            self.interrupt(lane);
        }
        has_requests
    }

    /// Has the request of a lane give way in the signal handler. One that has begun in its place by
    /// now gives way early, and a system call that sleeps ends. Not where the request cannot run.
    #[cold]
    fn interrupt(&self, lane: usize) {
        if self.has_no_core(lane) {
            return;
        }
        if let Some(kthread) = self.kthread_of(lane) {
            quantum::end_turn(kthread);
        }
    }

    /// Returns whether the kthread on which this lane was last has no core.
    fn has_no_core(&self, lane: usize) -> bool {
        self.runtime.is_attached()
            && self.kthread_of(lane).is_some_and(|kthread| kthread.core.load(Relaxed) == NO_CORE)
    }

    /// Returns the kthread on which this lane was last; `None` before it first ran.
    fn kthread_of(&self, lane: usize) -> Option<&'static Kthread> {
        self.runtime.kthreads.get(usize::from(self.kthreads[lane].load(Relaxed))).copied()
    }

    fn begin_polling(&self) {
        self.inbox.lock().polled = true;
        self.polls.store(true, Relaxed);
    }

    /// Leaves dispatching to others: what was submitted until then is in the assigner. Returns
    /// whether the assigner needs watching then.
    fn end_polling(&self) -> bool {
        self.polls.store(false, Relaxed);
        let now = self.time(clock::now());
        let mut pool = self.pool.lock();
        self.drain(&mut pool, now, |inbox| inbox.polled = false);
        self.serve_once(&mut pool, now);
        let needs_watching = pool.assigner.needs_watching();
        self.release(pool);
        needs_watching
    }
}
