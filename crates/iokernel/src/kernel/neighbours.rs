//! The polling thread beside other programs of the machine.
//!
//! Owns what the polling thread does about them, with `neighbour-share` above 0: it looks whether
//! they compete for the cores ([`ContentionDetector`]). While they do, kthreads have other ranks,
//! the polling thread has real-time rank, and ordinary threads get their share of its core
//! ([`CpuShare`]). A machine of which no other program wants a core is used as a dedicated one.
//!
//! Threads of batch jobs that Linux runs ([`BatchJobs`]) do not compete. Beside them services have
//! real-time rank, and nothing else changes.
//!
//! Best-effort kthreads run behind ordinary threads also while the polling thread sleeps beside
//! them. The table of ranks is in `allocator::ranks`.
//!
//! Ranks that change need `CAP_SYS_NICE`. Without it best-effort kthreads of the IOKernel's user
//! run behind ordinary threads at all times, and services are ordinary threads, which take turns
//! with those of other programs; the share is given all the same.
//!
//! While all that services are sent comes from peers that a port has on this machine, the polling
//! thread has no real-time rank, from which it could not yield to these
//! ([`LocalPeerYield`](super::local_peer::LocalPeerYield)). Once services are sent frames by
//! others, too, such peers compete like any other program, for `neighbour-share`: this bounds how
//! long a single absence of the polling thread is. Which part of the time yields take outside a
//! contest, and where Linux refuses that rank, is bounded by `LocalPeerYield` itself.

use tailwater_shm::clock::Clock;
use tailwater_shm::priority::{self, Rank};
use tailwater_shm::{Cycles, clock};

use super::batch_jobs::{self, BatchJobs};
use super::contest::{self, ContentionDetector, Look};
use super::polling::Polling;
use super::quiet;
use super::share::{CpuShare, FIRST_PART_US, SLICE_US, Step, Waiting};
use crate::allocator::{Beside, PollUrgency, Ranks};
use crate::config::Config;
use crate::control::watch::Stage;
use crate::machine::{self, Cores};
use crate::real_time::{self, NoRealTime};
use rustix::thread::{Timespec, nanosleep};

/// The polling thread's knowledge of other programs on its cores.
pub(super) struct Neighbours {
    contest: ContentionDetector,
    /// `None` where there is no thread to look for them.
    batch_jobs: Option<BatchJobs>,
    /// Such a job runs.
    beside_batch: bool,
    /// Beginning of the present contest.
    since: Cycles,
    share: CpuShare,
    waiting: Waiting,
    ranks: Ranks,
}

impl Neighbours {
    /// For the calling thread, which is bound to its core and polls from now on; `None` on a
    /// dedicated machine, and where Linux keeps no account of waiting threads.
    pub(super) fn new(config: &Config, cores: &Cores, clock: Clock) -> Option<Self> {
        let percent = config.neighbour_share;
        if percent == 0 {
            return None;
        }
        let Some(waiting) = Waiting::new() else {
            tracing::warn!("neighbour-share has no effect: cannot read /proc/loadavg");
            return None;
        };
        let elsewhere = machine::cores_elsewhere(1 + cores.managed_numbers().len());
        let may_lower = machine::may_rank();
        let real_time = real_time::real_time(config, false);
        if real_time == Err(NoRealTime::Refused) {
            tracing::warn!(
                "Linux refuses real-time rank: beside other programs requests wait for their turns; allow it with CAP_SYS_NICE"
            );
        }
        let real_time = real_time.is_ok();
        Some(Self {
            contest: ContentionDetector::new(elsewhere, contest::Bounds::new(clock)),
            batch_jobs: BatchJobs::new(cores, batch_jobs::Bounds::new(clock), clock),
            beside_batch: false,
            since: 0,
            share: CpuShare::new(percent, clock.from_ns(SLICE_US * 1_000)),
            waiting,
            ranks: Ranks { may_lower, for_good: !may_lower, real_time },
        })
    }

    /// Returns which ranks may be given.
    pub(super) fn ranks(&self) -> Ranks {
        self.ranks
    }
}

impl Polling {
    /// Looks whether other programs compete for the cores, if a look is due; `polls` says whether
    /// this thread has polled since the last one.
    #[inline]
    pub(super) fn look_at_neighbours(&mut self, polls: bool, now: Cycles) {
        if self.neighbours.as_ref().is_some_and(|neighbours| neighbours.contest.is_due(now)) {
            self.judge_neighbours(polls, now);
        }
    }

    #[cold]
    fn judge_neighbours(&mut self, polls: bool, now: Cycles) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let (least, most) = self.allocator.runnable_kthreads(&self.world, now);
        let waited = self.clock.from_ns(neighbours.waiting.waited());
        let yielded = core::mem::take(&mut self.yielded);
        // Without an answer nothing changes for long.
        let all = neighbours.waiting.runnable().unwrap_or(0);
        let runtimes = self.world.runtimes.iter();
        let kthreads = || runtimes.flat_map(|runtime| &runtime.kthreads).map(|kthread| kthread.tid).collect();
        let beside = all.saturating_sub(1 + most);
        let local_only = self.switch.serves_local_peers_only(now);
        let others = neighbours.batch_jobs.as_mut().and_then(|jobs| jobs.others(beside, kthreads, now));
        let beside_batch = others.is_some();
        let beside_changes = core::mem::replace(&mut neighbours.beside_batch, beside_batch) != beside_batch;
        let look = Look {
            runnable: others.map_or(all, |others| 1 + most + others),
            own: (1 + least, 1 + most),
            polls,
            // A thread that yields waits because it wants to.
            waited: if local_only { 0 } else { waited.saturating_sub(yielded) },
        };
        let contested = neighbours.contest.judge(look, now);
        if beside_changes {
            self.world.stats.polling.batch_jobs.add(u64::from(beside_batch));
        }
        let beside = match (neighbours.contest.is_on(), beside_batch) {
            (true, _) => Beside::Competitors,
            (false, true) => Beside::BatchJobs,
            (false, false) => Beside::Nothing,
        };
        self.allocator.set_beside(&mut self.world, beside);
        let wants_rank = neighbours.contest.is_on() && neighbours.ranks.real_time && !local_only;
        let counters = &self.world.stats.polling;
        match contested {
            None => {}
            Some(true) => {
                counters.contests.add(1);
                neighbours.since = now;
            }
            Some(false) => {
                counters.contested_ns.add(self.clock.to_ns(now.saturating_sub(neighbours.since)));
            }
        }
        if !wants_rank {
            self.leave_real_time();
        } else if !self.real_time {
            self.real_time = priority::rank_polling_thread();
        }
    }

    /// Puts best-effort kthreads behind ordinary threads, before this thread sleeps beside them.
    pub(super) fn lower_best_effort(&mut self) {
        if self.attention == PollUrgency::Occasional && self.neighbours.is_some() {
            self.allocator.lower_best_effort(&mut self.world);
        }
    }

    /// Gives this thread the rank of ordinary ones.
    pub(super) fn leave_real_time(&mut self) {
        if core::mem::take(&mut self.real_time) {
            let _ = priority::set_rank(0, Rank::Ordinary);
        }
    }

    /// Lets ordinary threads have their share of this core at this step, if any compete for it.
    /// `moved`: frames moved in this iteration.
    #[inline]
    pub(super) fn give_share(&mut self, step: quiet::Step, moved: bool, now: Cycles) {
        if step == quiet::Step::GiveShare {
            self.look_at_neighbours(true, now);
        }
        let Some(neighbours) = self.neighbours.as_mut().filter(|neighbours| neighbours.contest.is_on())
        else {
            return;
        };
        let busy = moved || (neighbours.share.is_due(now) && self.allocator.hands_over(now));
        match neighbours.share.step(step, busy, now) {
            Step::Poll => {}
            Step::EndRest => self.end_rest(now),
            Step::Look => self.take_turn(now),
        }
    }

    /// Sleeps for a slice if ordinary threads wait; else rests, if in real time.
    #[cold]
    fn take_turn(&mut self, now: Cycles) {
        if self.others_wait(now) {
            return self.give_slice(now);
        }
        let Some(Neighbours { share, .. }) = &mut self.neighbours else { return };
        if self.real_time && priority::set_rank(0, Rank::Ordinary) {
            share.rest(now);
        } else {
            share.resume(now);
        }
    }

    /// Returns whether more threads are runnable than this one, the kthreads that own cores, and
    /// those that may not use this core.
    fn others_wait(&mut self, now: Cycles) -> bool {
        let (least, _) = self.allocator.runnable_kthreads(&self.world, now);
        let Some(Neighbours { waiting, batch_jobs, .. }) = &mut self.neighbours else { return false };
        let away = batch_jobs.as_mut().map_or(0, |jobs| jobs.kept_away(now));
        waiting.runnable().unwrap_or(0).saturating_sub(away) > 1 + least
    }

    /// Ends a rest, if there is one.
    pub(super) fn end_rest(&mut self, now: Cycles) {
        if let Some(Neighbours { share, .. }) = &mut self.neighbours
            && share.resume(now)
            && self.real_time
        {
            let _ = priority::rank_polling_thread();
        }
    }

    /// Sleeps for a slice, in which ordinary threads run. It ends after its first part if none
    /// waits by then.
    fn give_slice(&mut self, now: Cycles) {
        self.switch.send_held(&mut self.world);
        self.enter(Stage::Slice);
        sleep_us(FIRST_PART_US);
        // Others may have kept the core for longer.
        let spent_us = self.clock.to_ns(clock::now().saturating_sub(now)) / 1_000;
        if spent_us < SLICE_US && self.others_wait(now) {
            sleep_us(SLICE_US - spent_us);
        }
        self.enter(Stage::Handoffs);
        let after = clock::now();
        if let Some(Neighbours { share, .. }) = &mut self.neighbours {
            share.gave(now, after);
        }
        self.world.stats.polling.slices.add(1);
        self.world.stats.polling.sliced_ns.add(self.clock.to_ns(after.saturating_sub(now)));
        // What has taken time here is no quiet time.
        self.quiet.restart(after);
    }
}

/// Sleeps for this time, or until a signal.
fn sleep_us(us: u64) {
    let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: (us * 1_000) as i64 });
}
