//! The look at the queues of runtimes, as their status words describe them.
//!
//! Owns the 5 us look: which runtimes are looked at, which words are read of each, and what
//! follows; [`status_cache`](crate::status_cache) keeps the words beside the policy's observation.
//! Bounded whatever programs write: runtimes with cores are always looked at, in part; of the
//! others as many as fit into [1 us](super::phase::Bounds::cold_look), in turn.
//!
//! # What is read of a runtime
//! A program can rewrite its words all the time, and then each read is a cache miss (50 to 100 ns
//! for each of a kthread's two lines). So at a look in part
//!
//! - the kthreads that hold cores are read each time: theirs are the words that change;
//! - of the others, if the runtime has more than [`WHOLE`] kthreads, up to
//!   [`SLICE`](crate::status_cache::SLICE) in turn, and with them up to [`WAITING`] at which
//!   something may wait: it did when they were last read, or frames were put into their rings
//!   since. After a slice that took a time `c`, the next one comes after `SPACING` times `c`, which
//!   is the next look if the lines are in the cache.
//!
//! The policy compares a look with the previous one to find work that waits. Slices of a runtime
//! with cores are read only at looks after which the policy runs: one read at another look would be
//! compared with nothing, and would put off the next one.
//!
//! So the words of a kthread without a core are as of a look up to `kthreads / SLICE` slices ago,
//! and the observation says that this look left it out. Both ends of a queue are as of one reading:
//! a later tail beside an earlier head would show work that other kthreads of the program have
//! taken. A timer found once is known from then on. The fingerprint, the earliest timer and the
//! lost wakes are sums over the words of all kthreads, each as last read. A whole look, before the
//! polling thread sleeps and before a verdict, is up to date; one before a verdict is charged to
//! the program.

use core::sync::atomic::Ordering;
use tailwater_sched::alloc::{KthreadLook, Requests, RuntimeLook};
use tailwater_sched::ledger::{Account as LedgerAccount, RuntimeClass};
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::layout::TAKES_REQUESTS;
use tailwater_shm::{Cycles, KthreadState};

use super::decide::Event;
use super::phase::Phase;
use super::{Allocator, holders};
use crate::runtime::Runtime;
use crate::status_cache::{Status, Sum, WHOLE};
use crate::tenant::Work;
use crate::world::{Lender, World};

/// Maximum number of others read with a slice because something may wait there.
pub(super) const WAITING: usize = 4;
/// Factor of the requests for cores in a fingerprint: no position changes by as much when they do.
const REQUESTS: u64 = 0x9e37_79b9_7f4a_7c15;

/// The kthreads and runtimes that a look reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All words of all runtimes.
    Whole,
    /// As much as a look may cost.
    Bounded,
    /// The same without slices, because the policy does not compare such a look with the previous
    /// one.
    Beside,
}

impl Allocator {
    /// Looks at all queues and wakes runtimes without a core that have work; and, if the policy's
    /// interval has passed, runs the policy. A look that comes early, for a timer, does not run it:
    /// congestion is work that waits through a whole interval.
    pub(crate) fn tick(&mut self, world: &mut World, now: Cycles) {
        world.stats.cores.ticks.add(1);
        let is_policy_due = now >= self.next_policy;
        self.look(world, now, if is_policy_due { Extent::Bounded } else { Extent::Beside });
        if is_policy_due {
            self.next_policy = now + self.timing.policy;
            self.sample(world, now);
            self.decide(world, Event::Look, now);
            self.follow_setting(world, now);
        } else if !self.runnable_without_core.is_empty() {
            self.wake_runnable(world, now);
        }
    }

    /// Asks for a core back that the policy no longer uses, and notes how much of the machine it
    /// uses.
    fn follow_setting(&mut self, world: &mut World, now: Cycles) {
        let Some(setting) = self.policy.setting() else { return };
        if let Some(core) = self.policy.surplus(self.view(now))
            && let Some(at) = self.ledger.topology().position(core)
        {
            self.vacate(world, at, now);
        }
        world.stats.cores.step.set(setting.step.into());
        world.stats.cores.in_use.set(setting.cores.into());
        if setting.clock != self.rate.0 {
            self.rate = (setting.clock, true);
        }
    }

    /// Wakes runtimes that have work and no core, in the order in which the policy would serve
    /// them.
    fn wake_runnable(&mut self, world: &mut World, now: Cycles) {
        let runnable_without_core = core::mem::take(&mut self.runnable_without_core);
        for class in [RuntimeClass::LatencyCritical, RuntimeClass::BestEffort] {
            for &id in &runnable_without_core {
                if self.ledger.account(id).is_some_and(|account| account.spec().class == class) {
                    self.wakeup(world, id, now);
                }
            }
        }
        self.runnable_without_core = runnable_without_core;
    }

    /// Returns when a tick must come earlier than its interval: at a timer of a runtime without a
    /// core.
    #[inline(always)]
    pub(crate) fn earliest_timer(&self) -> Cycles {
        self.earliest_timer
    }

    /// Looks at all withdrawn kthreads and all words of all runtimes, before the polling thread
    /// sleeps.
    pub(crate) fn look_at_all(&mut self, world: &mut World, now: Cycles) {
        self.watch_withdrawn(world, self.withdrawn.len(), now);
        self.earliest_timer = Cycles::MAX;
        self.look(world, now, Extent::Whole);
    }

    fn look(&mut self, world: &mut World, now: Cycles, extent: Extent) {
        if self.earliest_timer <= now {
            self.earliest_timer = Cycles::MAX;
        }
        let count = self.ledger.runtimes().len();
        self.cursor = if self.cursor < count { self.cursor } else { 0 };
        self.runnable_without_core.clear();
        // Without a core, work is a reason to lend one whether or not it has waited: nothing is
        // compared, and each look may read slices.
        let without_core = if extent == Extent::Beside { Extent::Bounded } else { extent };
        let mut next = self.cursor;
        let (mut is_over, mut began) = (false, None);
        for step in 0..count {
            let place = (self.cursor + step) % count;
            let id = self.ledger.runtimes()[place];
            if self.cores_held(id) > 0 {
                self.end_refusals(world, id, now);
                self.read(world, id, (extent, None), now);
                // A runtime that is left alone: its frames wait for that, and its doorbell may be
                // muted.
                self.note_time(world.runtimes.get(id).map(|runtime| runtime.waits_until), now);
            } else if extent != Extent::Whole && self.is_barred(id) {
                continue;
            } else if !is_over {
                let began = *began.get_or_insert_with(self.stopwatch);
                self.end_refusals(world, id, now);
                self.read(world, id, (without_core, None), now);
                if self.observation.runtime(id).is_some_and(RuntimeLook::has_work) {
                    self.runnable_without_core.push(id);
                }
                self.note_timer(world, id, now);
                next = (place + 1) % count;
                let took = (self.stopwatch)().saturating_sub(began);
                is_over = extent != Extent::Whole && took > self.bounds.cold_look;
            }
        }
        self.cursor = next;
    }

    /// Forgets refused cores when their time has come.
    #[inline(always)]
    fn end_refusals(&mut self, world: &mut World, id: RuntimeId, now: Cycles) {
        let Some(next) = world.runtimes.get(id).and_then(|runtime| runtime.refused_cores.forget_at) else {
            return;
        };
        if now < next {
            self.earliest_timer = self.earliest_timer.min(next);
            return;
        }
        if let Some(runtime) = world.runtimes.get_mut(id) {
            runtime.refused_cores.forget_at = None;
        }
        self.observation.forget_refused(id);
    }

    /// Returns whether the words of the runtime make no difference for now: it can be lent no core,
    /// and its requests change the share of no other. Sixteen programs whose kthreads are all
    /// withdrawn made a look twelve times as long.
    fn is_barred(&self, id: RuntimeId) -> bool {
        !self.policy.takes_requests() && self.ledger.account(id).is_some_and(LedgerAccount::is_barred)
    }

    /// Records when a timer of a runtime without a core is due. A timer that is due already counts
    /// as work at each look.
    pub(super) fn note_timer(&mut self, world: &World, id: RuntimeId, now: Cycles) {
        self.note_time(world.runtimes.get(id).map(|runtime| runtime.next_timer), now);
    }

    /// Records a time that is still to come and at which there is to be a look.
    fn note_time(&mut self, time: Option<Cycles>, now: Cycles) {
        if let Some(time) = time.filter(|&time| time > now) {
            self.earliest_timer = self.earliest_timer.min(time);
        }
    }

    /// Records the words of all runtimes, as of their last looks, and their numbers of cores.
    pub(crate) fn note_words(&self, world: &mut World) {
        for &id in self.ledger.runtimes() {
            let cores = self.cores_held(id);
            if let Some(runtime) = world.runtimes.get_mut(id) {
                runtime.before_sleep = (runtime.fingerprint, cores);
            }
        }
    }

    /// Returns whether the runtime has changed a word or given a core up since
    /// [`note_words`](Self::note_words).
    pub(crate) fn has_news(&mut self, world: &mut World, id: RuntimeId, now: Cycles) -> bool {
        let held = self.cores_of(id).filter(|(slot, _)| matches!(slot.phase, Phase::Running { .. }));
        let parked = held.filter(|(_, holder)| self.state_of(world, *holder) == Some(KthreadState::Parked));
        if parked.count() > 0 {
            return true;
        }
        self.look_for_verdict(world, id, now);
        let cores = self.cores_held(id);
        world.runtimes.get(id).is_some_and(|runtime| runtime.before_sleep != (runtime.fingerprint, cores))
    }

    /// Returns how many cores the runtime has or is promised, including those being given up.
    pub(super) fn cores_held(&self, id: RuntimeId) -> u64 {
        self.ledger.account(id).map_or(0, LedgerAccount::held).into()
    }

    /// Copies all status words of one runtime into the observation, for a verdict on what the
    /// program did. The program decides how often one is due, so it pays for the look.
    pub(super) fn look_for_verdict(&mut self, world: &mut World, id: RuntimeId, now: Cycles) {
        let began = (self.stopwatch)();
        self.read(world, id, (Extent::Whole, None), now);
        world.charge(id, Work::Look, (self.stopwatch)().saturating_sub(began), now);
    }

    /// Copies the status words of the runtime's kthreads with cores and of this kthread: between
    /// two looks after which the policy runs.
    pub(super) fn look_beside(&mut self, world: &mut World, kthread: KthreadId, now: Cycles) {
        self.read(world, kthread.runtime, (Extent::Beside, Some(kthread.index)), now);
    }

    /// Copies status words of one runtime into the observation, if all are not read those of
    /// kthread `also` among them.
    fn read(&mut self, world: &mut World, id: RuntimeId, (extent, also): (Extent, Option<u16>), now: Cycles) {
        let demoted = world.owes_cores(id, now);
        let Some(runtime) = world.runtimes.get_mut(id) else { return };
        let left_alone = runtime.is_left_alone(now);
        self.observation.set_demoted(id, demoted);
        if let Some(requests) = read_requests(runtime, left_alone) {
            self.observation.set_requests(id, requests);
        }
        let Some(look) = self.observation.runtime_mut(id) else { return };
        if left_alone {
            // It wants nothing; then it is looked at again, and its requests are read anew.
            look.kthreads.iter_mut().for_each(forget_work);
            runtime.next_timer = runtime.waits_until;
            return;
        }
        let granted = self.policy.granted(id);
        if granted != runtime.granted {
            runtime.granted = granted;
            publish_granted(runtime, self.policy.takes_requests());
        }
        runtime.held = runtime.held.filter(|held| now < held.until);
        let extent = if runtime.kthreads.len() <= WHOLE { Extent::Whole } else { extent };
        let held = holders(&self.cores, id).map(|(_, holder)| holder.index);
        let part = held.chain(also).map(usize::from);
        let watch = (self.stopwatch, self.bounds.kthread_look);
        let sum = read_words(runtime, &mut look.kthreads, (extent, part), watch, now);
        runtime.next_timer = runtime.held.map_or(Cycles::MAX, |held| held.until).min(sum.earliest);
        runtime.fingerprint = sum.fingerprint.wrapping_add(runtime.requests.wrapping_mul(REQUESTS));
        runtime.stats.counters.cores.set(self.cores_held(id));
        runtime.stats.counters.lost_wakes.set(sum.lost_wakes);
    }
}

/// Reads the words of a runtime: of all kthreads, or those of a `part` and, as far as `extent` says
/// so, of the slice that is due. `watch` is a clock, and the longest time that reading a kthread
/// takes.
#[inline]
fn read_words(
    runtime: &mut Runtime,
    looks: &mut [KthreadLook],
    (extent, part): (Extent, impl Iterator<Item = usize>),
    watch: (fn() -> Cycles, Cycles),
    now: Cycles,
) -> Sum {
    let read = |runtime: &mut Runtime, looks: &mut [KthreadLook], index: usize| {
        if let Some(look) = looks.get_mut(index) {
            let words = read_kthread(runtime, index, look, now);
            runtime.cache.set(index, words);
        }
    };
    if extent == Extent::Whole {
        (0..runtime.kthreads.len()).for_each(|index| read(runtime, looks, index));
    } else {
        let (stopwatch, most) = watch;
        let waiting = leave_out(runtime, looks);
        if extent == Extent::Bounded && runtime.cache.is_slice_due(now) {
            let slice = runtime.cache.next_slice().chain(waiting.into_iter().flatten());
            let (mut count, began) = (0, stopwatch());
            slice.for_each(|index| {
                read(runtime, looks, index);
                count += 1;
            });
            let cost = stopwatch().saturating_sub(began);
            runtime.cache.end_slice((count, cost), most, now);
        }
        part.for_each(|index| read(runtime, looks, index));
    }
    let sum = runtime.cache.sum();
    // Words that were read now have their due timers.
    if extent != Extent::Whole && sum.earliest <= now {
        runtime.cache.mark_due_timers(looks, now);
    }
    sum
}

/// Copies the words of a kthread into the observation.
#[inline(always)]
fn read_kthread(runtime: &Runtime, index: usize, look: &mut KthreadLook, now: Cycles) -> Status {
    let kthread = &runtime.kthreads[index];
    let is_held = runtime.held.is_some_and(|held| usize::from(held.kthread) == index);
    let status = &runtime.region.kthread(index as u16).status;
    (look.runq_head, look.runq_tail) = status.runq_ends();
    // Relaxed: hints; a stale value is read again at a later look.
    look.overflow =
        status.overflow.load(Ordering::Relaxed).saturating_add(status.injected.load(Ordering::Relaxed));
    look.hosted = status.hosted.load(Ordering::Relaxed) != 0;
    let timer = status.next_timer.load(Ordering::Relaxed);
    look.timer_due = timer <= now;
    let lost_wakes = status.lost_wakes.load(Ordering::Relaxed);
    look.ingress_head = kthread.ingress.unchecked_tail();
    look.ingress_tail = if is_held { look.ingress_head } else { kthread.ingress.head() };
    look.left_out = false;
    // The position of the IOKernel in the ingress ring is among them: frames may come in for a
    // kthread that has just parked, because the polling thread did not run in between.
    let positions = [look.runq_head, look.runq_tail, look.ingress_head, kthread.ingress.head()];
    let positions = positions.map(u64::from).iter().sum::<u64>();
    // The overflow list shrinks when the queue grows.
    let fingerprint = positions.wrapping_add(u64::from(look.overflow) << 32).wrapping_add(timer);
    // Each kthread has its factor: what moves to another one is news.
    let fingerprint = fingerprint.wrapping_mul(2 * index as u64 + 1);
    Status { fingerprint, timer, lost_wakes }
}

/// Marks all kthreads as left out, until they are read. Returns some of those at which something
/// may wait.
fn leave_out(runtime: &Runtime, looks: &mut [KthreadLook]) -> [Option<usize>; WAITING] {
    let held = runtime.held.map(|held| usize::from(held.kthread));
    let (mut waiting, mut free) = ([None; WAITING], 0);
    for (index, (kthread, look)) in runtime.kthreads.iter().zip(looks).enumerate() {
        look.left_out = true;
        let is_held = held == Some(index);
        if is_held {
            look.ingress_tail = look.ingress_head;
        }
        // Whether frames that were put in since are still there, only the program's own position
        // shows.
        let may_wait = look.has_work() || !is_held && kthread.ingress.head() != look.ingress_head;
        // Those with cores are read anyway.
        if free < WAITING && !kthread.may_run && may_wait {
            waiting[free] = Some(index);
            free += 1;
        }
    }
    waiting
}

/// Returns the runtime's requests for cores, with those made for it outside, as far as it may make
/// them, if they have changed. A runtime that gets no core for now counts as one that requests
/// none.
#[inline(always)]
fn read_requests(runtime: &mut Runtime, left_alone: bool) -> Option<Requests> {
    // Relaxed: the word stands for itself; a stale value is read again at the next look.
    let own = runtime.region.kthread(0).status.requests.load(Ordering::Relaxed);
    let word = if left_alone { 0 } else { Requests::larger(own, runtime.requested_outside) };
    if word == runtime.requests {
        return None;
    }
    runtime.requests = word;
    let requests = Requests::from_word(word);
    let limited = requests.limited_to(runtime.may_request);
    runtime.stats.counters.cut_requests.add(u64::from(limited != requests));
    Some(limited)
}

/// Writes how many of the requested cores are the runtime's own, and whether the policy grants any.
pub(super) fn publish_granted(runtime: &Runtime, takes_requests: bool) {
    let flag = if takes_requests { TAKES_REQUESTS } else { 0 };
    // Relaxed: information only.
    runtime.region.granted().store(u64::from(runtime.granted) | flag, Ordering::Relaxed);
    runtime.stats.counters.granted_cores.set(runtime.granted.into());
}

fn forget_work(look: &mut KthreadLook) {
    let activity = look.activity;
    *look = KthreadLook { activity, ..KthreadLook::default() };
}
