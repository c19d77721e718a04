//! What has been used, as the time until which it is paid.
//!
//! Owns [`Account`]: the generic cell rate algorithm (ITU-T I.371) with a cost. Who is granted one
//! part in `parts` of some time pays `parts` times what was used, and has paid once that much time
//! has passed. A `depth` may be unpaid at any time. Pure: times are arguments, in one unit that the
//! caller chooses.

/// See the module documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    paid_until: u64,
}

impl Account {
    /// Charges `cost`, of which one part in `parts` is granted.
    #[inline]
    pub fn charge(&mut self, cost: u64, parts: u64, now: u64) {
        self.paid_until = self.paid_until.max(now).saturating_add(cost.saturating_mul(parts));
    }

    /// Charges `cost`, at most `depth`, unless more than `depth` would then be unpaid; returns
    /// whether it did.
    #[inline]
    pub fn take(&mut self, cost: u64, depth: u64, now: u64) -> bool {
        debug_assert!(cost <= depth, "a cost of {cost} is never paid by a depth of {depth}");
        let may = !self.is_over(depth.saturating_sub(cost), now);
        if may {
            self.charge(cost, 1, now);
        }
        may
    }

    /// Forgives what is unpaid beyond `most`.
    #[inline]
    pub fn limit(&mut self, most: u64, now: u64) {
        self.paid_until = self.paid_until.min(now.saturating_add(most));
    }

    /// Returns when no more than `depth` is unpaid.
    #[must_use]
    #[inline(always)]
    pub fn pays_at(self, depth: u64) -> u64 {
        self.paid_until.saturating_sub(depth)
    }

    /// Returns whether more than `depth` is unpaid.
    #[must_use]
    #[inline(always)]
    pub fn is_over(self, depth: u64, now: u64) -> bool {
        now < self.pays_at(depth)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_depth_is_free_and_the_rest_waits_until_it_is_paid() {
        let mut account = Account::default();
        (0..3).for_each(|_| account.charge(1, 10, 1_000));
        assert!(!account.is_over(30, 1_000), "{account:?}");
        account.charge(1, 10, 1_000);
        assert!(account.is_over(30, 1_009) && !account.is_over(30, 1_010));
        assert_eq!(account.pays_at(30), 1_010);
        let mut taken = Account::default();
        assert!(taken.take(10, 25, 1_000) && taken.take(10, 25, 1_000) && !taken.take(10, 25, 1_004));
        assert!(taken.take(10, 25, 1_005), "once enough is paid");
        // What was not used is not saved.
        account.charge(1, 10, 5_000);
        assert!(account.is_over(0, 5_009) && !account.is_over(0, 5_010));
    }

    #[test]
    fn what_is_beyond_the_limit_is_forgiven() {
        let mut account = Account::default();
        account.charge(1_000, 100, 5);
        account.limit(50, 5);
        assert_eq!(account.pays_at(0), 55);
        account.limit(70, 5);
        assert_eq!(account.pays_at(0), 55);
    }

    #[test]
    fn a_cost_beyond_all_time_is_never_paid() {
        let mut account = Account::default();
        account.charge(u64::MAX, 2, 5);
        assert!(account.is_over(1_000, u64::MAX - 1_001));
    }

    proptest! {
        #[test]
        fn who_waits_while_over_takes_its_part_and_the_depth_at_most(
            parts in 1u64..=100, charges in prop::collection::vec((1u64..50_000, 0u64..500_000), 1..2_000)
        ) {
            const DEPTH: u64 = 200_000_000;
            let (mut account, mut now, mut charged) = (Account::default(), 1, 0);
            for (cost, wait) in charges {
                now += wait;
                if account.is_over(DEPTH, now) {
                    continue;
                }
                charged += cost;
                account.charge(cost, parts, now);
                // One charge may go over the brim.
                prop_assert!(charged <= (DEPTH + now) / parts + 50_001, "{} by {}", charged, now);
            }
        }
    }
}
