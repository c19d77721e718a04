//! The time before a known event at which the polling thread's sleep ends.
//!
//! Owns [`Margin`]: an estimate of how late this machine wakes the thread, from how late it has
//! woken it. Pure: times are arguments. A margin that is too long is polled away before each event;
//! one that is too short delays the event. So one late wake lengthens the margin at once, and many
//! early ones shorten it.

use tailwater_shm::Cycles;

/// Part of the distance to the last wake by which an early one shortens the margin: after some 30
/// of them a single late one is forgotten.
const DECAY: Cycles = 16;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(super) struct Margin {
    least: Cycles,
    most: Cycles,
    now: Cycles,
}

impl Margin {
    /// Returns a margin between `least` and `most`; the most until a wake has been seen.
    pub(super) fn new([least, most]: [Cycles; 2]) -> Self {
        Self { least: least.min(most), most, now: most }
    }

    /// Returns the margin.
    #[inline]
    pub(super) fn get(&self) -> Cycles {
        self.now
    }

    /// Records a sleep that ended `late` after its due time.
    pub(super) fn record(&mut self, late: Cycles) {
        // A quarter more than what was seen, for what was not.
        let enough = late.saturating_add(late / 4).clamp(self.least, self.most);
        if enough >= self.now {
            self.now = enough;
        } else {
            self.now -= (self.now - enough).div_ceil(DECAY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(late: impl IntoIterator<Item = Cycles>) -> Cycles {
        let mut margin = Margin::new([10, 60]);
        late.into_iter().for_each(|late| margin.record(late));
        margin.get()
    }

    #[test]
    fn it_is_the_longest_until_wakes_show_less() {
        assert_eq!(after([]), 60);
        assert!((30..40).contains(&after([24; 40])), "{}", after([24; 40]));
        assert_eq!(after([0; 200]), 10);
    }

    #[test]
    fn one_late_wake_lengthens_it_at_once_and_a_stall_no_further_than_the_longest() {
        assert_eq!(after([8; 200].into_iter().chain([40])), 50);
        assert_eq!(after([8; 200].into_iter().chain([1_000_000])), 60);
        assert_eq!(after([8; 200].into_iter().chain([Cycles::MAX])), 60);
        assert!(after([8; 200].into_iter().chain([1_000_000]).chain([8; 40])) < 25);
    }
}
