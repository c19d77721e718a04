//! Cores that are fetched for a raised request, without work.
//!
//! Owns, per runtime, how many cores a raise is still to fetch. A raise is pursued for [`LOOKS`]
//! looks. A core that its kthread gives up meanwhile, because it found no work there, is not
//! fetched again.
//!
//! Each fetch costs the polling thread a hand-off, and a runtime that loses the core for it another
//! one back, so fetches are bounded however a runtime changes its request. A raise begins a
//! *period* of [`PERIOD`], or [`PER_CORE`] for each core if that is longer. Until its end a raise
//! fetches only what exceeds the highest request of the period; the rest is fetched at the first
//! look after its end, if it is still requested then. So a request that is raised step by step is
//! pursued at once, and one that goes up and down fetches each core once per period.

use crate::ids::Nanos;

/// Looks for which a raised request is pursued: 2 ms, twice the time after which a core is taken by
/// force.
const LOOKS: u16 = 400;
/// Shortest period.
pub(super) const PERIOD: Nanos = Nanos::from_millis(10);
/// Shortest period per core: a fetch takes 3 us of the polling thread, 0.3 % of its time.
const PER_CORE: Nanos = Nanos::from_millis(1);

/// See the module header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pursuit {
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

impl Pursuit {
    /// Takes in that `requested` cores are the runtime's own instead of `before`, while it has
    /// `cores`, and has given up as many as `given_up` counts.
    pub(super) fn change(&mut self, before: u16, requested: u16, cores: u16, given_up: u32, now: Nanos) {
        self.count_given_up(given_up);
        self.target = self.target.min(requested);
        if requested <= before {
            return;
        }
        if now >= self.ends {
            return self.begin(requested, now);
        }
        let fresh = requested.saturating_sub(self.highest);
        self.target = self.target.max(cores).saturating_add(fresh).min(requested);
        self.is_late |= self.target < requested;
        if fresh > 0 {
            self.highest = requested;
            self.looks = LOOKS;
            self.ends = self.ends + Nanos(PER_CORE.0 * u64::from(fresh));
        }
    }

    /// Returns true if the runtime is to be granted a core without work, as of this look. It has
    /// `cores`, of the `requested` ones that are its own, and has given up as many as `given_up`
    /// counts.
    pub(super) fn look(&mut self, requested: u16, cores: u16, given_up: u32, now: Nanos) -> bool {
        self.count_given_up(given_up);
        if self.is_late && now >= self.ends {
            self.is_late = false;
            if cores < requested {
                self.begin(requested, now);
            }
        }
        self.looks = if cores >= self.target { 0 } else { self.looks.saturating_sub(1) };
        self.looks > 0
    }

    /// Fetches no core again that was given up since the last call.
    fn count_given_up(&mut self, given_up: u32) {
        let parked = given_up.wrapping_sub(core::mem::replace(&mut self.given_up, given_up));
        self.target = self.target.saturating_sub(u16::try_from(parked).unwrap_or(u16::MAX));
    }

    /// Returns true if a raise is pursued.
    pub(super) fn is_on(&self) -> bool {
        self.looks > 0
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

    #[test]
    fn a_raise_is_pursued_for_a_while_and_until_it_is_met() {
        let mut pursuit = Pursuit::default();
        pursuit.change(0, 3, 0, 0, T0);
        assert!((1..LOOKS).all(|_| pursuit.look(3, 2, 0, T0)));
        assert!(!pursuit.look(3, 2, 0, T0), "it cannot be met");
        let t = T0 + PERIOD;
        pursuit.change(3, 4, 2, 0, t);
        assert!(pursuit.look(4, 3, 0, t));
        assert!(!pursuit.look(4, 4, 0, t), "it has them");
        assert!(!pursuit.look(4, 3, 0, t), "one was taken by force");
    }

    #[test]
    fn cores_given_up_before_a_raise_are_not_subtracted_from_it() {
        let mut pursuit = Pursuit::default();
        pursuit.change(0, 2, 0, 5, T0);
        assert!(pursuit.look(2, 1, 5, T0));
    }

    #[test]
    fn a_core_that_was_given_up_is_not_fetched_again() {
        let mut pursuit = Pursuit::default();
        pursuit.change(0, 2, 0, 0, T0);
        assert!(pursuit.look(2, 0, 0, T0));
        // One came and went between two looks.
        assert!(pursuit.look(2, 0, 1, T0));
        assert!(!pursuit.look(2, 0, 2, T0));
        // Cores come and go with work.
        assert!(!pursuit.look(2, 0, 100_002, T0));
    }

    #[test]
    fn steps_are_pursued_at_once_and_ups_and_downs_once_per_period() {
        let mut pursuit = Pursuit::default();
        pursuit.change(0, 1, 0, 0, T0);
        assert!(pursuit.look(1, 0, 0, T0) && !pursuit.look(1, 1, 0, T0));
        pursuit.change(1, 2, 1, 0, T0);
        assert!(pursuit.look(2, 1, 0, T0), "the second step");
        assert!(!pursuit.look(2, 0, 2, T0), "both are given up");
        pursuit.change(2, 0, 0, 2, T0);
        pursuit.change(0, 2, 0, 2, T0);
        assert!(!pursuit.look(2, 0, 2, T0));
        pursuit.change(2, 3, 0, 2, T0);
        assert!(pursuit.look(3, 0, 2, T0), "a third");
        assert!(!pursuit.look(3, 1, 2, T0), "and no more than that");
        let end = T0 + PERIOD + Nanos(2 * PER_CORE.0);
        assert!(!pursuit.look(3, 1, 2, Nanos(end.0 - 1)));
        assert!(pursuit.look(3, 1, 2, end), "the others are fetched after the period");
        assert!(!pursuit.look(3, 3, 2, end));
    }

    #[test]
    fn a_late_raise_that_was_lowered_meanwhile_fetches_nothing() {
        let mut pursuit = Pursuit::default();
        for (before, requested) in [(0, 2), (2, 0), (0, 2), (2, 0)] {
            pursuit.change(before, requested, 0, 0, T0);
        }
        let end = T0 + PERIOD;
        assert!(!pursuit.look(0, 0, 0, end));
        pursuit.change(0, 1, 0, 0, end);
        assert!(pursuit.look(1, 0, 0, end), "a new period");
    }
}
