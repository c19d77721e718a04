//! Decides how long a thread polls with nothing to do before it sleeps: the IOKernel's polling
//! thread, and an idle kthread.
//!
//! Owns [`AdaptiveSpin`]: a memory of the last quiet times, and the threshold that would have been
//! best for them. Pure: times are arguments.
//!
//! A quiet time that ends while the thread still polls costs the processor time polled. One that
//! ends after it fell asleep costs that, and a wake: the event that ends it waits for a sleeping
//! core (20 to 52 us on a 2-vCPU VM). A wake is priced at the longest threshold, which the settings
//! `idle-sleep-us` and `TAILWATER_IDLE_TIMEOUT_US` are: the threshold itself would be at most twice
//! as expensive as the best one in hindsight, whatever comes; the memory finds a better one where
//! quiet times have a pattern. With a longest threshold of 1 ms, requests 300 us apart never find
//! the thread asleep; requests 10 ms apart find it asleep after 20 us instead of after 1 ms, and
//! are as late as they would be then.
//!
//! What is recorded of a quiet time in which the thread slept ends with the event, not with the
//! wake: that is priced already. If the wake counted twice, then with wakes of 30 us and events
//! 18 us apart on average a threshold of 5 us would stay there, and one of 50 us would fall to 20.
//!
//! A quiet time whose end was known before costs no wake, since the thread sleeps until shortly
//! before it: [`AdaptiveSpin::record_foreseen`].

use crate::Cycles;

/// Quiet times between two powers of two of the shortest threshold each; the last class is longer
/// than the longest threshold.
const CLASSES: usize = 24;
/// Quiet times after which all counts are halved: the memory is of the last hundred or so.
const MEMORY: u32 = 64;
/// Quiet times before which the longest threshold stands.
const ENOUGH: u32 = 8;

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct AdaptiveSpin {
    shortest: Cycles,
    longest: Cycles,
    /// Quiet times longer than `shortest << i`, and at most twice that or the longest threshold.
    ended: [u32; CLASSES],
    /// Quiet times longer than the longest threshold.
    outlasted: u32,
    threshold: Cycles,
}

impl AdaptiveSpin {
    /// Thresholds from `shortest` to `longest`; the longest until there is a pattern.
    pub fn new(shortest: Cycles, longest: Cycles) -> Self {
        let shortest = shortest.clamp(1, longest.max(1));
        Self { shortest, longest, ended: [0; CLASSES], outlasted: 0, threshold: longest }
    }

    /// Returns how long to poll with nothing to do.
    #[inline(always)]
    pub fn threshold(&self) -> Cycles {
        self.threshold
    }

    /// Returns the time below which a quiet time teaches nothing.
    #[inline(always)]
    pub fn shortest(&self) -> Cycles {
        self.shortest
    }

    /// Records a quiet time whose end was known in advance.
    #[inline]
    pub fn record_foreseen(&mut self, quiet: Cycles) {
        if quiet > self.shortest {
            // Polling for it was useless, however short it was.
            self.learn(Cycles::MAX);
        }
    }

    /// Records a quiet time that has ended.
    #[inline]
    pub fn record(&mut self, quiet: Cycles) {
        if quiet > self.shortest {
            self.learn(quiet);
        }
    }

    #[inline(never)]
    fn learn(&mut self, quiet: Cycles) {
        if quiet > self.longest {
            self.outlasted += 1;
        } else {
            self.ended[self.class(quiet)] += 1;
        }
        let count = self.ended.iter().sum::<u32>() + self.outlasted;
        if count >= MEMORY {
            self.ended.iter_mut().for_each(|n| *n /= 2);
            self.outlasted /= 2;
        }
        if count >= ENOUGH {
            self.threshold = self.best();
        }
    }

    fn class(&self, quiet: Cycles) -> usize {
        let times = (quiet - 1) / self.shortest;
        (times.max(1).ilog2() as usize).min(CLASSES - 1)
    }

    /// Returns the end of a class: the threshold that waits for all its quiet times.
    fn end(&self, class: usize) -> Cycles {
        self.shortest.saturating_mul(2 << class).min(self.longest)
    }

    /// Returns the threshold that would have been cheapest for the quiet times in memory.
    fn best(&self) -> Cycles {
        let longer: u32 = self.ended.iter().sum::<u32>() + self.outlasted;
        let cost = |waited: u64, threshold: Cycles, longer: u32| {
            waited.saturating_add(u64::from(longer).saturating_mul(threshold + self.longest))
        };
        let mut best = (cost(0, self.shortest, longer), self.shortest);
        let (mut waited, mut longer) = (0u64, longer);
        for (class, &n) in self.ended.iter().enumerate() {
            let end = self.end(class);
            waited = waited.saturating_add(u64::from(n).saturating_mul(end));
            longer -= n;
            best = best.min((cost(waited, end, longer), end));
            if end == self.longest {
                break;
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHORTEST: Cycles = 20;
    const LONGEST: Cycles = 1_000;

    fn after(quiet: impl IntoIterator<Item = Cycles>) -> Cycles {
        let mut spin = AdaptiveSpin::new(SHORTEST, LONGEST);
        quiet.into_iter().for_each(|quiet| spin.record(quiet));
        spin.threshold()
    }

    #[test]
    fn it_waits_as_long_as_allowed_until_it_has_seen_enough() {
        assert_eq!(after([]), LONGEST);
        assert_eq!(after([10_000; 7]), LONGEST);
    }

    #[test]
    fn events_further_apart_than_the_limit_are_not_waited_for() {
        assert_eq!(after([10_000; 8]), SHORTEST);
    }

    #[test]
    fn events_that_come_in_time_are_waited_for_and_no_longer() {
        assert_eq!(after([300; 20]), 320);
        assert_eq!(after([900; 20]), LONGEST);
        // Now and then a pause of the load.
        assert_eq!(after((0..40).map(|i| if i % 10 == 0 { 50_000 } else { 100 })), 160);
    }

    #[test]
    fn events_that_were_known_before_are_not_waited_for() {
        let mut spin = AdaptiveSpin::new(SHORTEST, LONGEST);
        (0..20).for_each(|_| spin.record_foreseen(300));
        assert_eq!(spin.threshold(), SHORTEST);
        (0..200).for_each(|_| spin.record(300));
        assert_eq!(spin.threshold(), 320, "those that were not, are");
        let mut often = AdaptiveSpin::new(SHORTEST, LONGEST);
        (0..20).for_each(|_| often.record_foreseen(SHORTEST));
        assert_eq!(often.threshold(), LONGEST, "too short to be a pattern");
    }

    #[test]
    fn a_new_pattern_replaces_the_old_one() {
        assert_eq!(after([300; 100].into_iter().chain([10_000; 200])), SHORTEST);
        assert_eq!(after([10_000; 100].into_iter().chain([300; 200])), 320);
    }

    #[test]
    fn quiet_times_below_the_shortest_threshold_are_no_pattern() {
        assert_eq!(after([5; 1_000]), LONGEST);
    }

    /// Returns the threshold after events at random times (a Poisson process, these us apart on
    /// average) of a thread whose threshold was the shortest. A wake takes `wake_us`, of which
    /// `counted` says whether it is part of the quiet time that is recorded.
    fn after_wakes(mean_us: f64, wake_us: u64, counted: bool) -> Cycles {
        let mut spin = AdaptiveSpin::new(5_000, 50_000);
        (0..20).for_each(|_| spin.record(1_000_000));
        assert_eq!(spin.threshold(), 5_000);
        let mut random = 1_u64;
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
            let quiet = (-(1.0 - uniform).ln() * mean_us * 1_000.0) as Cycles;
            let slept = quiet > spin.threshold();
            spin.record(quiet + if slept && counted { wake_us * 1_000 } else { 0 });
        }
        spin.threshold()
    }

    #[test]
    fn a_threshold_that_was_short_grows_again_unless_wakes_count_as_quiet_times() {
        for mean_us in [15.0, 18.0] {
            assert!(after_wakes(mean_us, 30, false) >= 40_000, "{mean_us} us");
            assert_eq!(after_wakes(mean_us, 30, true), 5_000, "{mean_us} us");
        }
    }

    #[test]
    fn a_limit_below_the_shortest_threshold_is_the_threshold() {
        let mut spin = AdaptiveSpin::new(20, 7);
        (0..100).for_each(|i| spin.record(i));
        assert_eq!(spin.threshold(), 7);
    }

    proptest! {
        #[test]
        fn the_threshold_stays_within_its_limits_and_costs_at_most_twice_the_longest_one(
            shortest in 1u64..1_000, longest in 1u64..1_000_000, quiet in prop::collection::vec(0u64..2_000_000, 0..63)
        ) {
            let mut spin = AdaptiveSpin::new(shortest, longest);
            quiet.iter().for_each(|&quiet| spin.record(quiet));
            let threshold = spin.threshold();
            prop_assert!(threshold <= longest);
            prop_assert!(threshold >= shortest.min(longest));
            let cost = |threshold: u64| -> u64 {
                let learned = quiet.iter().filter(|&&quiet| quiet > shortest.min(longest));
                learned.map(|&quiet| if quiet <= threshold { quiet } else { threshold + longest }).sum()
            };
            prop_assert!(cost(threshold) <= 2 * cost(longest));
        }
    }
}
