//! Grants cores for a raised request before there is work for them.
//!
//! Owns, per runtime, the number of cores that are still to be granted for a raise (*fetched*). A
//! raise is pursued for [`LOOKS`] looks at which the runtime could be granted a core. A core that
//! its kthread gives up meanwhile, because it found no work there, is not fetched again. One that
//! is taken back because the kthread did not start there is: a raise is met by kthreads that run.
//!
//! Each fetch costs the polling thread a hand-off, and a runtime that loses the core for it another
//! one back, so fetches are bounded however a runtime changes its request. A raise begins a
//! *period* of [`PERIOD`], or [`PER_CORE`] for each core if that is longer. Until its end a raise
//! fetches only what exceeds the highest request of the period; the rest is fetched at the first
//! look after its end, if it is still requested then. So a request that is raised step by step is
//! pursued at once, and one that goes up and down fetches each core once per period.

use crate::ids::Nanos;

/// Looks for which a raised request is pursued: 2 ms, twice the time after which a core is taken by
/// force. Looks at which no kthread can be lent a core, or at which a core is on its way, do not
/// count.
const LOOKS: u16 = 400;
/// Shortest period.
pub(super) const PERIOD: Nanos = Nanos::from_millis(10);
/// Shortest period per core: a fetch takes 3 us of the polling thread, 0.3 % of its time.
const PER_CORE: Nanos = Nanos::from_millis(1);

/// The cores of a runtime at one look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Have {
    /// Cores that it has or is promised.
    pub(super) cores: u16,
    /// Those of them on which its kthread has started.
    pub(super) running: u16,
    /// Counter of cores that it has given up.
    pub(super) given_up: u32,
    /// True if it could be lent one more: a kthread is parked, and its limit is not reached.
    pub(super) has_room: bool,
}

/// See the module header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PrefetchLimiter {
    /// Looks left.
    looks: u16,
    /// Number of cores below which one more is fetched.
    target: u16,
    /// Counter of cores that the runtime has given up, as of the latest look.
    given_up: u32,
    /// Highest request of the period.
    highest: u16,
    ends: Nanos,
    /// True if a raise is to be pursued after the period.
    is_late: bool,
}

impl PrefetchLimiter {
    /// Records a change of the runtime's request from `before` to `requested` cores.
    pub(super) fn change(&mut self, before: u16, requested: u16, have: Have, now: Nanos) {
        self.count_given_up(have.given_up);
        self.target = self.target.min(requested);
        if requested <= before {
            return;
        }
        if now >= self.ends {
            return self.begin(requested, now);
        }
        let fresh = requested.saturating_sub(self.highest);
        self.target = self.target.max(have.cores).saturating_add(fresh).min(requested);
        self.is_late |= self.target < requested;
        if fresh > 0 {
            self.highest = requested;
            self.looks = LOOKS;
            self.ends = self.ends + Nanos(PER_CORE.0 * u64::from(fresh));
        }
    }

    /// Returns false if nothing is fetched until a request is raised. Until then no look is needed:
    /// cores that are given up meanwhile are counted when the request changes.
    pub(super) fn is_under_way(&self) -> bool {
        self.looks > 0 || self.is_late
    }

    /// Returns true if the runtime, of which `requested` cores are its own, is to be granted a core
    /// without work, as of this look.
    pub(super) fn look(&mut self, requested: u16, have: Have, now: Nanos) -> bool {
        self.count_given_up(have.given_up);
        if self.is_late && now >= self.ends {
            self.is_late = false;
            if have.cores < requested {
                self.begin(requested, now);
            }
        }
        if have.running >= self.target {
            self.looks = 0;
        }
        if !self.fetches(have) {
            return false;
        }
        self.looks -= 1;
        self.looks > 0
    }

    /// Returns true if a raise is pursued and one more core can be fetched for it.
    fn fetches(&self, have: Have) -> bool {
        self.looks > 0 && have.cores < self.target && have.has_room
    }

    /// Returns the time of the next look that may fetch a core although nothing happens until then:
    /// [`Nanos::ZERO`] for the very next one.
    pub(super) fn next_fetch(&self, have: Have) -> Option<Nanos> {
        if self.fetches(have) { Some(Nanos::ZERO) } else { self.is_late.then_some(self.ends) }
    }

    /// Fetches no core again that was given up since the last call.
    fn count_given_up(&mut self, given_up: u32) {
        let parked = given_up.wrapping_sub(core::mem::replace(&mut self.given_up, given_up));
        self.target = self.target.saturating_sub(u16::try_from(parked).unwrap_or(u16::MAX));
    }

    fn begin(&mut self, requested: u16, now: Nanos) {
        let length = PERIOD.max(Nanos(PER_CORE.0 * u64::from(requested)));
        (self.looks, self.target, self.highest) = (LOOKS, requested, requested);
        (self.ends, self.is_late) = (now + length, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Nanos = Nanos(1);

    /// A runtime with kthreads to spare, all of whose cores have started.
    fn has(cores: u16, given_up: u32) -> Have {
        Have { cores, running: cores, given_up, has_room: true }
    }

    #[test]
    fn a_raise_is_pursued_for_a_while_and_until_it_is_met() {
        let mut limiter = PrefetchLimiter::default();
        limiter.change(0, 3, has(0, 0), T0);
        assert!((1..LOOKS).all(|_| limiter.look(3, has(2, 0), T0)));
        assert!(!limiter.look(3, has(2, 0), T0), "it cannot be met");
        let t = T0 + PERIOD;
        limiter.change(3, 4, has(2, 0), t);
        assert!(limiter.look(4, has(3, 0), t));
        assert!(!limiter.look(4, has(4, 0), t), "it has them");
        assert!(!limiter.look(4, has(3, 0), t), "one was taken by force");
    }

    #[test]
    fn a_raise_waits_for_a_kthread_that_can_be_lent_a_core() {
        let mut limiter = PrefetchLimiter::default();
        limiter.change(0, 1, has(0, 0), T0);
        let withdrawn = Have { has_room: false, ..has(0, 0) };
        assert!((0..2 * LOOKS).all(|_| !limiter.look(1, withdrawn, T0)));
        assert_eq!(limiter.next_fetch(withdrawn), None, "until one comes back, no look can help");
        assert_eq!(limiter.next_fetch(has(0, 0)), Some(Nanos::ZERO));
        assert!(limiter.look(1, has(0, 0), T0));
    }

    #[test]
    fn a_core_on_which_the_kthread_did_not_start_is_fetched_again() {
        let mut limiter = PrefetchLimiter::default();
        limiter.change(0, 1, has(0, 0), T0);
        assert!(limiter.look(1, has(0, 0), T0));
        let arriving = Have { running: 0, ..has(1, 0) };
        assert!((0..2 * LOOKS).all(|_| !limiter.look(1, arriving, T0)), "one is on its way");
        assert_eq!(limiter.next_fetch(arriving), None);
        assert!(limiter.look(1, has(0, 0), T0), "it was taken back");
        assert!(!limiter.look(1, has(1, 0), T0) && !limiter.look(1, has(0, 0), T0), "met for good");
    }

    #[test]
    fn a_late_raise_is_due_at_the_end_of_the_period() {
        let mut limiter = PrefetchLimiter::default();
        limiter.change(0, 1, has(0, 0), T0);
        assert!(!limiter.look(1, has(1, 0), T0) && !limiter.look(1, has(0, 1), T0));
        limiter.change(1, 0, has(0, 1), T0);
        limiter.change(0, 1, has(0, 1), T0);
        assert!(!limiter.look(1, has(0, 1), T0));
        let end = T0 + PERIOD;
        assert_eq!(limiter.next_fetch(has(0, 1)), Some(end));
        assert!(limiter.look(1, has(0, 1), end));
        assert!(!limiter.look(1, has(1, 1), end));
        assert_eq!(limiter.next_fetch(has(1, 1)), None);
    }

    #[test]
    fn cores_given_up_before_a_raise_are_not_subtracted_from_it() {
        let mut limiter = PrefetchLimiter::default();
        limiter.change(0, 2, has(0, 5), T0);
        assert!(limiter.look(2, has(1, 5), T0));
    }

    #[test]
    fn a_core_that_was_given_up_is_not_fetched_again() {
        let mut limiter = PrefetchLimiter::default();
        limiter.change(0, 2, has(0, 0), T0);
        assert!(limiter.look(2, has(0, 0), T0));
        // One came and went between two looks.
        assert!(limiter.look(2, has(0, 1), T0));
        assert!(!limiter.look(2, has(0, 2), T0));
        // Cores come and go with work.
        assert!(!limiter.look(2, has(0, 100_002), T0));
    }

    #[test]
    fn steps_are_pursued_at_once_and_ups_and_downs_once_per_period() {
        let mut limiter = PrefetchLimiter::default();
        limiter.change(0, 1, has(0, 0), T0);
        assert!(limiter.look(1, has(0, 0), T0) && !limiter.look(1, has(1, 0), T0));
        limiter.change(1, 2, has(1, 0), T0);
        assert!(limiter.look(2, has(1, 0), T0), "the second step");
        assert!(!limiter.look(2, has(0, 2), T0), "both are given up");
        limiter.change(2, 0, has(0, 2), T0);
        limiter.change(0, 2, has(0, 2), T0);
        assert!(!limiter.look(2, has(0, 2), T0));
        limiter.change(2, 3, has(0, 2), T0);
        assert!(limiter.look(3, has(0, 2), T0), "a third");
        assert!(!limiter.look(3, has(1, 2), T0), "and no more than that");
        let end = T0 + PERIOD + Nanos(2 * PER_CORE.0);
        assert!(!limiter.look(3, has(1, 2), Nanos(end.0 - 1)));
        assert!(limiter.look(3, has(1, 2), end), "the others are fetched after the period");
        assert!(!limiter.look(3, has(3, 2), end));
    }

    #[test]
    fn a_late_raise_that_was_lowered_meanwhile_fetches_nothing() {
        let mut limiter = PrefetchLimiter::default();
        for (before, requested) in [(0, 2), (2, 0), (0, 2), (2, 0)] {
            limiter.change(before, requested, has(0, 0), T0);
        }
        let end = T0 + PERIOD;
        assert!(!limiter.look(0, has(0, 0), end));
        limiter.change(0, 1, has(0, 0), end);
        assert!(limiter.look(1, has(0, 0), end), "a new period");
    }

    #[test]
    fn looks_while_nothing_is_under_way_make_no_difference() {
        let mut seed = 7_u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let (mut all, mut few) = (PrefetchLimiter::default(), PrefetchLimiter::default());
        let (mut requested, mut given_up, mut now, mut skipped, mut fetched) = (0, 0, T0, 0, 0);
        for step in 0..100_000 {
            now = now + Nanos(below(2 * PERIOD.0 / 50));
            given_up += below(12) as u32 / 11;
            let cores = below(6) as u16;
            let have = Have { running: below(u64::from(cores) + 1) as u16, ..has(cores, given_up) };
            if below(60) == 0 {
                let next = below(6) as u16;
                all.change(requested, next, have, now);
                few.change(requested, next, have, now);
                requested = next;
            }
            let (found, next) = (all.look(requested, have, now), all.next_fetch(have));
            if few.is_under_way() {
                assert_eq!((few.look(requested, have, now), few.next_fetch(have)), (found, next), "{step}");
                fetched += u32::from(found);
            } else {
                assert_eq!((found, next), (false, None), "{step}");
                skipped += 1;
            }
        }
        assert!(skipped > 10_000 && fetched > 1_000, "{skipped} {fetched}");
    }
}
