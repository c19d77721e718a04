//! Batch jobs that were not written for Tailwater, beside the kthreads.
//!
//! Such a job (`tailwater run --batch`) runs in `SCHED_IDLE` on the lent cores and is not
//! registered: Linux says which threads are such ([`tailwater_batch::runnable`]), so the job cannot
//! state it falsely. A look at all threads takes too long for the polling thread. Owns
//! [`BatchJobs`]: a thread that looks whenever other threads than Tailwater's are runnable, and
//! what follows from its looks ([`Company`], a pure decision).
//!
//! * While a job runs, only threads of *other* programs count for a contest, those that two looks
//!   in a row have found: `/proc/loadavg` has the job's among them. Nor do the job's and the
//!   looking thread count when a slice of the polling thread's core is due, which they may not use:
//!   each slice would delay requests for nothing.
//! * Kthreads of services have real-time rank then. `SCHED_IDLE` ranks a job behind them within one
//!   session only, and a job leads its own.
//!
//! The looking thread is in `SCHED_IDLE` itself, on any core but the polling thread's, and uses at
//! most a fiftieth of one. Where it gets no core, because an ordinary program computes, its
//! last look expires, and all threads count as without it.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::{gettid, sched_setaffinity};
use tailwater_batch::runnable::{Runnable, count};
use tailwater_host::cpu_set;
use tailwater_shm::priority::{Rank, set_rank};
use tailwater_shm::{Clock, Cycles};

use crate::bounds::bounds;
use crate::machine::{Cores, processor_time};

/// Time between two looks, as a multiple of a look's processor time.
const PART: Cycles = 50;

bounds! {
    /// Times of the looks.
    pub(super) struct Bounds {
        /// Shortest time between two looks.
        look = 200 ms,
        /// Longest time between two looks while nothing seems to change. A look spends its time in
        /// the kernel, on a core where a kthread's wake may have to wait for that, so looks are to
        /// be rare among requests.
        seldom = 1_000 ms,
        /// After this time a look says nothing any more: the time of two rare looks. On a machine
        /// of so many threads that looks are rarer (some 5,000), jobs are never noticed: a user who
        /// starts many threads must not make an old look last.
        expires = 2_000 ms,
    }
}

/// What the looks say of the threads beside Tailwater's.
#[derive(Debug)]
struct Company {
    bounds: Bounds,
    /// When the next look is due, and when it is while nothing seems to change.
    next: Cycles,
    seldom: Cycles,
    /// The last look, and when it was made.
    last: Option<(Runnable, Cycles)>,
    /// The one before.
    before: Option<Runnable>,
    /// Time to the next look.
    pause: Cycles,
}

impl Company {
    fn new(bounds: Bounds) -> Self {
        Self { bounds, next: 0, seldom: 0, last: None, before: None, pause: bounds.look }
    }

    /// Records a look of this much processor time.
    fn record(&mut self, seen: Runnable, cost: Cycles, now: Cycles) {
        self.before = self.last.filter(|(_, at)| !self.is_expired(*at, now)).map(|(seen, _)| seen);
        self.last = Some((seen, now));
        let shortest = self.bounds.look.max(cost.saturating_mul(PART));
        let longest = self.bounds.seldom.max(shortest);
        self.pause = if seen.batch > 0 { shortest } else { (2 * self.pause).clamp(shortest, longest) };
        self.next = now.saturating_add(self.pause);
        self.seldom = now.saturating_add(longest);
    }

    fn is_expired(&self, at: Cycles, now: Cycles) -> bool {
        now.saturating_sub(at) > self.bounds.expires
    }

    /// Returns whether a look is due, where this many threads are runnable beside Tailwater's. It
    /// is soon if they are more than the job's.
    fn is_due(&self, beside: usize, now: Cycles) -> bool {
        let known = self.last.map_or(0, |(last, _)| last.batch);
        let seldom = known > 0 && beside <= known;
        beside > 0 && now >= if seldom { self.seldom } else { self.next }
    }

    /// Returns the number of runnable threads of batch jobs at that of the last two looks which
    /// found more of them; 0 if the last has expired. Each thread of a job that is not counted
    /// would cost a slice whenever one is due.
    fn jobs(&self, now: Cycles) -> usize {
        let Some((last, _)) = self.last.filter(|(_, at)| !self.is_expired(*at, now)) else { return 0 };
        last.batch.max(self.before.map_or(0, |before| before.batch))
    }

    /// Returns the number of runnable threads of other programs while a batch job runs; `None`
    /// while none is known to.
    fn others(&self, now: Cycles) -> Option<usize> {
        let (last, _) = self.last.filter(|(_, at)| !self.is_expired(*at, now))?;
        let jobs = last.batch + self.before.map_or(0, |before| before.batch);
        (jobs > 0).then(|| self.before.map_or(0, |before| before.others).min(last.others))
    }
}

/// See the module documentation.
pub(super) struct BatchJobs {
    company: Company,
    /// Kthreads, which are not counted.
    orders: SyncSender<Vec<i32>>,
    /// Each look and its processor time.
    looks: Receiver<(Runnable, Duration)>,
    is_looking: bool,
    clock: Clock,
}

impl BatchJobs {
    /// Starts the looking thread for the calling one, which polls; `None` if Linux refuses it. It
    /// ends with this.
    pub(super) fn new(cores: &Cores, bounds: Bounds, clock: Clock) -> Option<Self> {
        let polling = usize::from(cores.iokernel.0);
        let others: Vec<_> = cores.allowed.iter().filter(|&&core| core != cores.iokernel).copied().collect();
        let set = cpu_set(&others);
        let caller = gettid().as_raw_nonzero().get();
        let (orders, ordered) = sync_channel::<Vec<i32>>(1);
        let (answers, looks) = sync_channel(1);
        let look = move || {
            // It inherits the polling thread's core and rank. A refused change costs only speed.
            let _ = sched_setaffinity(None, &set);
            let _ = setpriority_process(None, 0);
            set_rank(0, Rank::Last);
            while let Ok(mut own) = ordered.recv() {
                own.push(caller);
                let began = processor_time();
                let seen = count(polling, &own);
                if answers.send((seen, processor_time().saturating_sub(began))).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("tailwater-jobs".to_owned()).spawn(look).ok()?;
        Some(Self { company: Company::new(bounds), orders, looks, is_looking: false, clock })
    }

    /// Returns the number of runnable threads of other programs while a batch job runs; `None`
    /// while none is known to. `beside` is the number of threads that are runnable beside
    /// Tailwater's, at least. If a look is due, `kthreads` returns those that it does not count.
    pub(super) fn others(
        &mut self,
        beside: usize,
        kthreads: impl FnOnce() -> Vec<i32>,
        now: Cycles,
    ) -> Option<usize> {
        self.take_look(now);
        if !self.is_looking && self.company.is_due(beside, now) {
            self.is_looking = self.orders.try_send(kthreads()).is_ok();
        }
        self.company.others(now)
    }

    /// Returns the number of runnable threads that may not use the polling thread's core: those of
    /// batch jobs, as of the last two looks, and the one that looks.
    pub(super) fn kept_away(&mut self, now: Cycles) -> usize {
        self.take_look(now);
        self.company.jobs(now) + usize::from(self.is_looking)
    }

    /// Takes the answer of the looking thread, if there is one.
    fn take_look(&mut self, now: Cycles) {
        match self.looks.try_recv() {
            Ok((seen, cost)) => {
                self.is_looking = false;
                self.company.record(seen, self.clock.from_ns(cost.as_nanos() as u64), now);
            }
            Err(TryRecvError::Empty) => {}
            // The thread has ended.
            Err(TryRecvError::Disconnected) => self.is_looking = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { look: 100, seldom: 1_000, expires: 2_000 };

    fn seen(batch: usize, others: usize) -> Runnable {
        Runnable { batch, others }
    }

    #[test]
    fn other_programs_count_once_two_looks_have_found_them_beside_a_job() {
        let mut company = Company::new(BOUNDS);
        assert_eq!((company.others(0), company.jobs(0)), (None, 0), "no look");
        company.record(seen(0, 3), 0, 10);
        assert_eq!(company.others(10), None, "no job");
        company.record(seen(2, 1), 0, 110);
        assert_eq!((company.others(110), company.jobs(110)), (Some(1), 2));
        company.record(seen(2, 0), 0, 210);
        assert_eq!(company.others(210), Some(0));
        company.record(seen(2, 2), 0, 310);
        assert_eq!(company.others(310), Some(0), "for a moment");
        company.record(seen(0, 2), 0, 410);
        assert_eq!(company.others(410), Some(2), "a job that waits for its disk is still there");
        assert_eq!(company.jobs(410), 2);
        company.record(seen(0, 2), 0, 510);
        assert_eq!(company.others(510), None);
    }

    #[test]
    fn a_look_expires() {
        let mut company = Company::new(BOUNDS);
        company.record(seen(1, 0), 0, 0);
        assert_eq!((company.others(2_000), company.others(2_001)), (Some(0), None));
        assert_eq!((company.jobs(2_000), company.jobs(2_001)), (1, 0));
        company.record(seen(1, 4), 0, 5_000);
        assert_eq!(company.others(5_000), Some(0), "the one before has expired");
    }

    #[test]
    fn looks_become_rare_without_a_job_and_by_what_they_cost() {
        let mut company = Company::new(BOUNDS);
        let pauses: Vec<Cycles> = (0..6)
            .map(|_| {
                company.record(seen(0, 1), 0, 0);
                company.next
            })
            .collect();
        assert_eq!(pauses, [200, 400, 800, 1_000, 1_000, 1_000]);
        company.record(seen(1, 1), 0, 0);
        assert_eq!(company.next, 100);
        let due = |beside: usize| (0..).step_by(50).find(|&now| company.is_due(beside, now));
        assert_eq!([due(2), due(1)], [Some(100), Some(1_000)], "one more than the job's, or not");
        assert!(!company.is_due(0, 5_000));
        company.record(seen(1, 1), 30, 0);
        assert_eq!(company.next, 1_500);
        assert_eq!(company.others(2_001), None, "it does not last for longer than that");
    }
}
