//! Limits the time that wakes of kthreads may cost the polling thread.
//!
//! Owns [`SlowWakes`]. Linux keeps all sleepers on words of shared memory in one hash table, and a
//! wake walks all sleepers of the same bucket. A program with a thousand threads in futex_waitv(2),
//! of 128 words each, can have tens of thousands in a bucket, and then each wake of its kthreads
//! takes up to a millisecond of the polling thread's time instead of 1.2 us (2-vCPU VM). So wakes
//! of best-effort programs are timed and charged to an account, a longer wake with a greater
//! [weight](weighed): above [`BRIM_US`] the program gets no core, not even a guaranteed one, until
//! the excess has leaked. So all wakes of a program take at most a tenth of the polling thread's
//! time, and wakes of 200 us and more take at most a hundredth. A wake of 1.2 us counts 12 us: a
//! program can be woken 80,000 times a second without a pause. On a machine where each wake takes
//! 30 us, it can be woken 2,200 times a second.
//!
//! A slow wake is no offence: Linux may have run another thread meanwhile, and the sleepers may
//! belong to another program that aims at the bucket. No program is expelled for it, and services
//! are exempt.

use tailwater_sched::KthreadId;
use tailwater_sched::ledger::Class;
use tailwater_shm::{Clock, Cycles, Slot};

use super::Allocator;
use crate::world::World;

/// A wake that takes longer is slow, in microseconds; up to this length it has the least weight.
const SLOW_US: u64 = 20;
/// Maximum charge for one wake, in microseconds: a longer time is not the program's fault.
const LONGEST_US: u64 = 1_000;
/// Depth of the account, in microseconds: 20 ms of short wakes, 2 ms of long ones.
const BRIM_US: u64 = 200_000;
/// Least and greatest weight. Wakes of this weight take at most the inverse of it of the polling
/// thread's time.
const LEAST: Cycles = 10;
const GREATEST: Cycles = 100;

/// Returns the length of a wake times its weight, which grows with the length; `slow` is
/// [`SLOW_US`].
fn weighed(took: Cycles, slow: Cycles) -> Cycles {
    let times = |weight: Cycles| took.saturating_mul(weight);
    (times(took).saturating_mul(LEAST) / slow.max(1)).clamp(times(LEAST), times(GREATEST))
}

/// The account of one program.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SlowWakes {
    /// Time at which all charges have leaked.
    leaked: Cycles,
    /// Time at which the excess has leaked.
    until: Cycles,
}

impl SlowWakes {
    /// Charges a wake of this length; returns true if it was slow.
    pub(crate) fn enter(&mut self, took: Cycles, clock: Clock, now: Cycles) -> bool {
        let us = |us: u64| clock.from_ns(us * 1_000);
        let time = weighed(took.min(us(LONGEST_US)), us(SLOW_US));
        self.leaked = self.leaked.max(now).saturating_add(time);
        self.until = self.leaked.saturating_sub(us(BRIM_US));
        took > us(SLOW_US)
    }

    /// Returns the time until all has leaked.
    pub(crate) fn time_left(&self, now: Cycles) -> Cycles {
        self.leaked.saturating_sub(now)
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

    const US: Cycles = 1_000;
    const MS: Cycles = 1_000 * US;

    /// Wakes a program as often as it may be for 10 s, once in `pace` at most; returns the number
    /// of wakes up to the first that must wait, and that of all.
    fn wakes(took: Cycles, pace: Cycles) -> (u64, u64) {
        let clock = Clock::from_hz(1_000_000_000);
        let (mut wakes, mut count, mut first) = (SlowWakes::default(), 0, 0);
        for now in (0..10_000 * MS).step_by(pace as usize) {
            if !wakes.is_over(now) {
                assert_eq!(wakes.enter(took, clock, now), took > 20 * US);
                count += 1;
            } else if first == 0 {
                first = count;
            }
        }
        (first, count)
    }

    #[test]
    fn slow_wakes_are_free_up_to_a_depth_and_then_take_a_hundredth_of_the_time() {
        let (first, count) = wakes(500 * US, MS);
        // 2 ms at once, and a hundredth of 10 s.
        assert!((4..=6).contains(&first), "{first} at once");
        assert!((200..=206).contains(&count), "{count} in 10 s");
        let mut wakes = SlowWakes::default();
        wakes.enter(Cycles::MAX, Clock::from_hz(1_000_000_000), 20_000 * MS);
        assert!(!wakes.is_over(20_000 * MS), "one alone, however long");
    }

    #[test]
    fn usual_wakes_are_free_and_none_of_any_length_take_more_than_a_tenth_of_the_time() {
        assert_eq!(wakes(1_200, 20 * US), (0, 500_000), "50,000 a second");
        for took in [5, 10, 19, 20, 21, 30, 60, 120, 199, 200, 400, 1_000, 2_000] {
            let (_, count) = wakes(took * US, took * US);
            let share = (count * took * US) as f64 / 10_000e6;
            let most = 1.0 / (took as f64 / 2.0).clamp(10.0, 100.0);
            // What may be in the account, a fiftieth of 10 s, comes at once.
            assert!(took > 1_000 || share > 0.95 * most, "{share} of the time by wakes of {took} us");
            assert!(share <= 1.05 * most * if took > 1_000 { 2.0 } else { 1.0 }, "{share}: {took} us");
        }
        let (_, count) = wakes(30 * US, 30 * US);
        assert!((22_000..23_000).contains(&count), "{count} in 10 s where each takes 30 us");
    }
}
