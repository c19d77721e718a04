//! A leaky bucket: a number of uses at once, and one more per pace.
//!
//! Owns [`Allowance`], a pure account in one word: the time at which all uses so far are forgotten.

use crate::Cycles;

/// See the module documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Time at which all uses are forgotten.
    until: Cycles,
}

impl Allowance {
    /// Counts `uses` uses, each of which is forgotten `pace` after the previous one; at most `most`
    /// are remembered.
    pub fn count(&mut self, uses: Cycles, most: Cycles, pace: Cycles, now: Cycles) {
        let most = now.saturating_add(pace.saturating_mul(most));
        self.until = self.until.max(now).saturating_add(pace.saturating_mul(uses)).min(most);
    }

    /// Returns whether more than `free` uses are remembered.
    #[must_use]
    pub fn is_over(self, free: Cycles, pace: Cycles, now: Cycles) -> bool {
        self.until > now.saturating_add(pace.saturating_mul(free))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn uses_are_free_up_to_a_number_and_then_one_per_pace() {
        let mut allowance = Allowance::default();
        for _ in 0..3 {
            allowance.count(1, 5, 10, 1_000);
        }
        assert!(!allowance.is_over(3, 10, 1_000));
        allowance.count(1, 5, 10, 1_000);
        assert!(allowance.is_over(3, 10, 1_000));
        assert!(!allowance.is_over(3, 10, 1_010), "one is forgotten");
        allowance.count(100, 5, 10, 1_000);
        assert!(allowance.is_over(3, 10, 1_019) && !allowance.is_over(3, 10, 1_020), "five are remembered");
    }

    #[test]
    fn constant_use_is_held_to_the_pace() {
        const FREE: Cycles = 50;
        let mut allowance = Allowance::default();
        let mut uses = 0;
        for now in (0..1_000_000).step_by(20) {
            if !allowance.is_over(FREE, 1_000, now) {
                allowance.count(1, 2 * FREE, 1_000, now);
                uses += 1;
            }
        }
        assert!((1_049..=1_052).contains(&uses), "{uses} in a million");
        let later = 1_000_000 + 1_000 * (FREE + 1);
        allowance.count(1, 2 * FREE, 1_000, later);
        assert!(!allowance.is_over(FREE, 1_000, later), "those before are forgotten");
    }
}
