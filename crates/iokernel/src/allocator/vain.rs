//! Cores that a runtime asks for and gives up without having done anything, and cores that it does
//! not start on.
//!
//! Owns the verdict, and the back-off that follows from it. What such a core costs the polling
//! thread is charged ([`crate::budget`]); what it costs the program that had the core, a hand-off
//! there and one back, is bounded here: after [`FREE`] cores in vain in a row the runtime is lent
//! none for a pause, which doubles each time from [`PAUSE_US`] up to [`DOUBLINGS`] times. Races
//! make single ones, and any core with which something was done ends the row; one given up beside
//! another core proves nothing.
//!
//! A thread that sleeps starts some 20 to 60 us after its wake, and a service may claim the core
//! before. A program that is stopped, or that keeps wakes from its threads, would get each core
//! that a service leaves for a moment; the service parks meanwhile, and has to be woken for each
//! request. So a best-effort program may have cores that it does not start on, and that are
//! claimed, for a part of the time only ([`PER_UNSTARTED`]) beyond [`UNSTARTED_US`], whether or not
//! it starts on others. One whose threads wait on a core behind an ordinary program's pays the
//! same: it is lent the core again at most 100 times as long after that as a service left it the
//! core, some milliseconds.

use tailwater_sched::KthreadId;
use tailwater_sched::ledger::Class;
use tailwater_shm::Cycles;

use super::Allocator;
use super::words::WHOLE;
use crate::world::World;

/// Number of cores in vain in a row without consequence.
const FREE: u32 = 3;
/// First pause, in microseconds.
const PAUSE_US: u64 = 100;
/// Maximum number of doublings: 25.6 ms.
const DOUBLINGS: u32 = 8;

/// For how long a best-effort runtime may have cores that it has not started on when they are
/// claimed, without consequence, in microseconds: about twenty wakes.
const UNSTARTED_US: u64 = 1_000;
/// Time in which a unit of that is forgotten.
const PER_UNSTARTED: Cycles = 100;

/// The back-off of one runtime.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BackOff {
    /// Cores in vain in a row.
    row: u32,
    until: Cycles,
    /// Time for which it had cores that it did not start on, less what was forgotten until `since`.
    unstarted: Cycles,
    since: Cycles,
}

impl BackOff {
    /// Returns whether the runtime is lent no core.
    #[inline(always)]
    pub(crate) fn is_on(&self, now: Cycles) -> bool {
        now < self.until
    }

    /// Returns when it may be lent one again.
    pub(crate) fn until(&self) -> Cycles {
        self.until
    }

    /// Takes a core in vain into account; `us` is a microsecond.
    fn count(&mut self, now: Cycles, us: Cycles) {
        self.row = self.row.saturating_add(1);
        if let Some(more) = self.row.checked_sub(FREE + 1) {
            self.until = now.saturating_add((us * PAUSE_US) << more.min(DOUBLINGS));
        }
    }

    /// Takes into account that a core was claimed which it had had for this time and had not
    /// started on. `free` of that has no consequence.
    fn count_unstarted(&mut self, had: Cycles, now: Cycles, free: Cycles) {
        let forgotten = now.saturating_sub(self.since) / PER_UNSTARTED;
        self.unstarted = self.unstarted.saturating_sub(forgotten).saturating_add(had);
        self.since = now;
        let excess = self.unstarted.saturating_sub(free);
        self.until = self.until.max(now.saturating_add(excess.saturating_mul(PER_UNSTARTED)));
    }
}

impl Allocator {
    /// Takes into account that a service claims a core that this kthread has had since `decided`
    /// and has not started on.
    pub(super) fn count_unstarted(
        &mut self,
        world: &mut World,
        kthread: KthreadId,
        decided: Cycles,
        now: Cycles,
    ) {
        if self.class_of(kthread.runtime) != Class::BestEffort {
            return;
        }
        let free = self.clock.from_ns(UNSTARTED_US * 1_000);
        if let Some(runtime) = world.runtimes.get_mut(kthread.runtime) {
            runtime.back_off.count_unstarted(now.saturating_sub(decided), now, free);
        }
    }

    /// Takes into account whether a core that its kthread gave up without being asked was in vain.
    pub(super) fn judge_core(&mut self, world: &mut World, kthread: KthreadId, in_vain: bool, now: Cycles) {
        let us = self.clock.from_ns(1_000);
        let (runtime, line) = world.runtimes.kthread(kthread);
        let has_changed = runtime.mark != line.mark;
        let Some(runtime) = world.runtimes.get_mut(kthread.runtime) else { return };
        if in_vain {
            runtime.stats.counters.vain_cores.add(1);
            runtime.back_off.count(now, us);
        } else if has_changed {
            runtime.back_off.row = 0;
        }
    }

    /// Returns whether the runtime gave up its only core although its words ask for one, and it has
    /// changed none of them since the core was lent. The look before may have been one in part; the
    /// verdict is by all words, and there is none while it is too early to read them. The words of
    /// withdrawn kthreads do not count: the others cannot always do that work (frames, without
    /// packet stealing).
    pub(super) fn was_lent_in_vain(&mut self, world: &mut World, kthread: KthreadId, now: Cycles) -> bool {
        let read_whole = world.runtimes.kthread(kthread).0.kthreads.len() <= WHOLE;
        self.seems_lent_in_vain(world, kthread)
            && (read_whole
                || self.look_for_verdict(world, kthread.runtime, now)
                    && self.seems_lent_in_vain(world, kthread))
    }

    /// As [`was_lent_in_vain`](Self::was_lent_in_vain), by the words as last read.
    fn seems_lent_in_vain(&self, world: &World, kthread: KthreadId) -> bool {
        let id = kthread.runtime;
        let (runtime, line) = world.runtimes.kthread(kthread);
        if runtime.mark != line.mark || self.has_core(id) {
            return false;
        }
        let Some(look) = self.observation.runtime(id) else { return false };
        let is_withdrawn = |index| {
            let kthread = KthreadId::new(id, index);
            self.withdrawn.iter().any(|withdrawn| withdrawn.kthread == kthread)
        };
        (0..).zip(&look.kthreads).any(|(index, look)| look.has_work() && !is_withdrawn(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_with_cores_that_are_not_started_on_is_paid_for_with_a_multiple_of_it() {
        let mut back_off = BackOff::default();
        let mut now = 1_000_000;
        for _ in 0..10 {
            now += 15;
            back_off.count_unstarted(10, now, 100);
            assert!(!back_off.is_on(now), "it may have that much");
        }
        let (mut had, began) = (0, now);
        for _ in 0..1_000 {
            now = back_off.until().max(now + 15);
            back_off.count_unstarted(10, now, 100);
            had += 10;
        }
        let (share, passed) = (had * 100, now - began);
        assert!(share <= passed + 1_000 && share > passed * 9 / 10, "{had} of {passed}");
        assert!(back_off.until() - now <= 1_000, "as long as one time takes to be forgotten");
        back_off.count_unstarted(10, now + 20_000, 100);
        assert!(!back_off.is_on(now + 20_000), "all is forgotten");
    }

    #[test]
    fn the_pause_grows_with_each_core_in_vain_and_is_bounded() {
        let mut back_off = BackOff::default();
        let mut pauses = Vec::new();
        for _ in 0..14 {
            back_off.count(1_000, 1);
            pauses.push(back_off.until().saturating_sub(1_000));
        }
        assert_eq!(pauses[..6], [0, 0, 0, 100, 200, 400]);
        assert_eq!(pauses[12..], [25_600, 25_600]);
        assert!(back_off.is_on(26_599) && !back_off.is_on(26_600));
    }
}
