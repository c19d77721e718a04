//! Wakes of kthreads that are lent a core, and what they may cost.
//!
//! Owns [`SlowWakes`]. Linux keeps all sleepers at words of shared memory in one table, and a wake
//! goes through all that are in the same place of it. A program with a thousand threads in
//! futex_waitv(2), of 128 words each, can have tens of thousands there, and then each wake of its
//! kthreads takes up to a millisecond of the polling thread's time instead of 1.2 us (2-vCPU VM).
//! So wakes of best-effort programs are timed. What takes longer than [`SLOW_US`] goes to an
//! account that leaks with [`SHARE`] of the time; over [`DEPTH_US`] the program is lent no core
//! until the excess has leaked.
//!
//! It is no offence: Linux may have run something else meanwhile, and the sleepers may be those of
//! a stranger who has found out the place. Nobody is expelled for it, and no service is kept
//! waiting.

use tailwater_sched::KthreadId;
use tailwater_sched::ledger::Class;
use tailwater_shm::{Clock, Cycles, Slot};

use super::Allocator;
use crate::world::World;

/// A wake that takes longer is entered, in microseconds.
const SLOW_US: u64 = 20;
/// Most that is entered for one, in microseconds: what takes longer is the machine's doing.
const LONGEST_US: u64 = 1_000;
/// Depth of the account in microseconds.
const DEPTH_US: u64 = 2_000;
/// One part in so many of the polling thread's time.
const SHARE: Cycles = 100;

/// The account of one program.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SlowWakes {
    /// When all that was entered has leaked.
    leaked: Cycles,
    /// When the excess has.
    until: Cycles,
}

impl SlowWakes {
    /// Enters a wake of this length; returns whether it was slow.
    fn enter(&mut self, took: Cycles, clock: Clock, now: Cycles) -> bool {
        let us = |us: u64| clock.from_ns(us * 1_000);
        if took <= us(SLOW_US) {
            return false;
        }
        let time = took.min(us(LONGEST_US)).saturating_mul(SHARE);
        self.leaked = self.leaked.max(now).saturating_add(time);
        self.until = self.leaked.saturating_sub(us(DEPTH_US).saturating_mul(SHARE));
        true
    }

    /// Returns whether the program is lent no core.
    #[inline(always)]
    pub(crate) fn is_over(&self, now: Cycles) -> bool {
        now < self.until
    }

    /// Returns when it may be lent one again.
    pub(crate) fn until(&self) -> Cycles {
        self.until
    }
}

impl Allocator {
    /// Wakes a kthread that has got a core, if it sleeps.
    pub(super) fn wake(&self, world: &mut World, id: KthreadId, now: Cycles) {
        self.wake_by(Slot::wake, world, id, now);
    }

    /// Wakes a kthread that has got a core and not started, whatever its slot contains.
    pub(super) fn rouse(&self, world: &mut World, id: KthreadId, now: Cycles) {
        self.wake_by(Slot::rouse, world, id, now);
    }

    #[inline]
    fn wake_by(&self, wake: impl FnOnce(&Slot), world: &mut World, id: KthreadId, now: Cycles) {
        let slot = world.runtimes.slot(id);
        if self.class_of(id.runtime) == Class::LatencyCritical {
            return wake(slot);
        }
        let began = (self.stopwatch)();
        wake(slot);
        let took = (self.stopwatch)().saturating_sub(began);
        if let Some(runtime) = world.runtimes.get_mut(id.runtime)
            && runtime.slow_wakes.enter(took, self.clock, now)
        {
            runtime.stats.counters.slow_wakes.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_wakes_are_free_up_to_a_depth_and_then_take_a_hundredth_of_the_time() {
        let clock = Clock::from_hz(1_000_000_000);
        let mut wakes = SlowWakes::default();
        for now in 0..10_000 {
            assert!(!wakes.enter(20_000, clock, now), "a usual one");
        }
        let (mut count, mut first) = (0, 0);
        for now in (0..10_000_000_000).step_by(1_000_000) {
            if !wakes.is_over(now) {
                assert!(wakes.enter(500_000, clock, now));
                count += 1;
            } else if first == 0 {
                first = count;
            }
        }
        // 2 ms and a hundredth of 10 s.
        assert!((4..=6).contains(&first), "{first} at once");
        assert!((200..=206).contains(&count), "{count} in 10 s");
        wakes.enter(Cycles::MAX, clock, 20_000_000_000);
        assert!(!wakes.is_over(20_000_000_000), "one alone, however long");
    }
}
