//! The look at the queues of runtimes, as their status words describe them.
//!
//! Owns the copying from shared memory into the policy's observation, and the 5 us look itself.
//! Bounded: runtimes with cores are always looked at, of the others as many as [`COLD_KTHREADS`]
//! allows, in turn.

use core::sync::atomic::Ordering;
use tailwater_sched::RuntimeId;
use tailwater_sched::alloc::{KthreadLook, Requests, RuntimeLook, View};
use tailwater_sched::ledger::Class;
use tailwater_shm::layout::TAKES_REQUESTS;
use tailwater_shm::{Cycles, KthreadState};

use super::Allocator;
use super::phase::Phase;
use crate::runtime::Runtime;
use crate::world::{Lender, World};

/// Maximum number of kthreads of runtimes without cores read per look: about 0.3 us. Frames wake
/// such a runtime directly, so only doorbells and timers wait for their turn.
const COLD_KTHREADS: usize = 64;

impl Allocator {
    /// Looks at all queues and wakes runtimes without a core that have work; and, if the policy's
    /// interval has passed, runs the policy. A look that comes early, for a timer, does not run it:
    /// congestion is work that waits through a whole interval.
    pub(crate) fn tick(&mut self, world: &mut World, now: Cycles) {
        world.stats.cores.ticks.add(1);
        self.look(world, now, COLD_KTHREADS);
        if now >= self.next_policy {
            self.next_policy = now + self.timing.policy;
            self.sample(world, now);
            self.decide(world, now, |policy, view, actions| policy.tick(view, actions));
            self.follow_setting(world, now);
        } else if !self.stranded.is_empty() {
            self.wake_stranded(world, now);
        }
    }

    /// Asks for a core back that the policy no longer uses, and notes how much of the machine it
    /// uses.
    fn follow_setting(&mut self, world: &mut World, now: Cycles) {
        let Some(setting) = self.policy.setting() else { return };
        let view = View { now: self.nanos(now), obs: &self.observation, ledger: &self.ledger };
        if let Some(core) = self.policy.surplus(view)
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
    fn wake_stranded(&mut self, world: &mut World, now: Cycles) {
        let stranded = core::mem::take(&mut self.stranded);
        for class in [Class::LatencyCritical, Class::BestEffort] {
            for &id in &stranded {
                if self.ledger.account(id).is_some_and(|account| account.spec().class == class) {
                    self.wakeup(world, id, now);
                }
            }
        }
        self.stranded = stranded;
    }

    /// Returns when a tick must come earlier than its interval: at a timer of a runtime without a
    /// core.
    #[inline(always)]
    pub(crate) fn earliest_timer(&self) -> Cycles {
        self.earliest_timer
    }

    /// Looks at all runtimes without a bound.
    pub(crate) fn look_at_all(&mut self, world: &mut World, now: Cycles) {
        self.earliest_timer = Cycles::MAX;
        self.look(world, now, usize::MAX);
    }

    fn look(&mut self, world: &mut World, now: Cycles, mut budget: usize) {
        if self.earliest_timer <= now {
            self.earliest_timer = Cycles::MAX;
        }
        let count = self.ledger.runtimes().len();
        self.cursor = if self.cursor < count { self.cursor } else { 0 };
        self.stranded.clear();
        let mut next = self.cursor;
        for step in 0..count {
            let place = (self.cursor + step) % count;
            let id = self.ledger.runtimes()[place];
            if self.has_core(id) {
                self.end_hold(world, id, now);
                self.look_at(world, id, now);
                self.note_pause(world, id, now);
            } else if budget > 0 {
                self.end_hold(world, id, now);
                budget = budget.saturating_sub(self.look_at(world, id, now));
                if self.observation.runtime(id).is_some_and(RuntimeLook::has_work) {
                    self.stranded.push(id);
                }
                self.note_timer(world, id, now);
                next = (place + 1) % count;
            }
        }
        self.cursor = next;
    }

    /// Records when a timer of a runtime without a core is due. A timer that is due already counts
    /// as work at each look.
    pub(super) fn note_timer(&mut self, world: &World, id: RuntimeId, now: Cycles) {
        if let Some(runtime) = world.runtimes.get(id)
            && runtime.next_timer > now
        {
            self.earliest_timer = self.earliest_timer.min(runtime.next_timer);
        }
    }

    /// Records when a runtime with a core is no longer left alone: its frames wait for that, and
    /// its doorbell may be muted.
    fn note_pause(&mut self, world: &World, id: RuntimeId, now: Cycles) {
        if let Some(runtime) = world.runtimes.get(id)
            && runtime.is_left_alone(now)
        {
            self.earliest_timer = self.earliest_timer.min(runtime.left_alone_until());
        }
    }

    /// Records the words of all runtimes, as of their last looks, and their numbers of cores.
    pub(crate) fn note_words(&self, world: &mut World) {
        for &id in self.ledger.runtimes() {
            let cores = self.cores_held(id);
            if let Some(runtime) = world.runtimes.get_mut(id) {
                runtime.noted = (runtime.mark, cores);
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
        self.look_at(world, id, now);
        let cores = self.cores_held(id);
        world.runtimes.get(id).is_some_and(|runtime| runtime.noted != (runtime.mark, cores))
    }

    /// Returns how many cores the runtime has.
    fn cores_held(&self, id: RuntimeId) -> u64 {
        self.ledger.account(id).map_or(0, tailwater_sched::ledger::Account::held).into()
    }

    /// Copies the status words of one runtime into the observation; returns its number of kthreads.
    pub(super) fn look_at(&mut self, world: &mut World, id: RuntimeId, now: Cycles) -> usize {
        let Some(runtime) = world.runtimes.get_mut(id) else { return 0 };
        let left_alone = runtime.is_left_alone(now);
        if let Some(requests) = read_requests(runtime, left_alone) {
            self.observation.set_requests(id, requests);
        }
        let Some(look) = self.observation.runtime_mut(id) else { return 0 };
        if left_alone {
            // It wants nothing; then it is looked at again, and its requests are read anew.
            look.kthreads.iter_mut().for_each(forget_work);
            runtime.next_timer = runtime.left_alone_until();
            return runtime.kthreads.len();
        }
        let granted = self.policy.granted(id);
        if granted != runtime.granted {
            runtime.granted = granted;
            publish_granted(runtime, self.policy.takes_requests());
        }
        runtime.held = runtime.held.filter(|held| now < held.until);
        let held = runtime.held.map(|held| usize::from(held.kthread));
        let (mut earliest, mut lost_wakes) = (runtime.held.map_or(Cycles::MAX, |held| held.until), 0);
        let mut mark = runtime.requests;
        for (index, (kthread, look)) in runtime.kthreads.iter().zip(&mut look.kthreads).enumerate() {
            let status = &runtime.region.kthread(index as u16).status;
            // Relaxed: hints; a stale value is read again at the next look.
            look.runq_head = status.runq_head.load(Ordering::Relaxed);
            look.runq_tail = status.runq_tail.load(Ordering::Relaxed);
            look.overflow = status
                .overflow
                .load(Ordering::Relaxed)
                .saturating_add(status.injected.load(Ordering::Relaxed));
            let timer = status.next_timer.load(Ordering::Relaxed);
            look.timer_due = timer <= now;
            earliest = earliest.min(timer);
            lost_wakes += u64::from(status.lost_wakes.load(Ordering::Relaxed));
            look.ingress_head = kthread.ingress.unchecked_tail();
            look.ingress_tail = if held == Some(index) { look.ingress_head } else { kthread.ingress.head() };
            mark = fingerprint(mark, look, kthread.ingress.head(), timer);
        }
        runtime.next_timer = earliest;
        runtime.mark = mark;
        runtime.stats.counters.cores.set(self.cores_held(id));
        runtime.stats.counters.lost_wakes.set(lost_wakes);
        runtime.kthreads.len()
    }
}

/// Returns the runtime's requests for cores, as far as it may make them, if they have changed. One
/// that is left alone requests nothing.
#[inline(always)]
fn read_requests(runtime: &mut Runtime, left_alone: bool) -> Option<Requests> {
    // Relaxed: the word stands for itself; a stale value is read again at the next look.
    let word = if left_alone { 0 } else { runtime.region.kthread(0).status.requests.load(Ordering::Relaxed) };
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

/// Returns the fingerprint of all words of a runtime so far, with those of one more kthread. The
/// position of the IOKernel in the ingress ring is among them: frames may come in for a kthread
/// that has just parked, because the polling thread did not run in between.
#[inline(always)]
fn fingerprint(mark: u64, look: &KthreadLook, delivered: u32, timer: Cycles) -> u64 {
    let queue = u64::from(look.runq_head) << 32 | u64::from(look.runq_tail);
    let ring = u64::from(look.ingress_head) << 32 | u64::from(delivered);
    let mixed = |mark: u64, word: u64| (mark.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed(mixed(mixed(mixed(mark, queue), ring), look.overflow.into()), timer)
}

fn forget_work(look: &mut KthreadLook) {
    let activity = look.activity;
    *look = KthreadLook { activity, ..KthreadLook::default() };
}
