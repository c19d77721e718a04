//! The pending event of every core, as a tournament tree: the earliest in O(1), a change in O(log
//! cores).
//!
//! A core has at most one pending event (its request ends, or its quantum does), so there is
//! nothing to cancel and no stale entry to skip: setting a core's time overwrites the old one.
//! Compared with a binary heap of (time, sequence number) this halves the cost of an event at 16
//! cores, and its depth is fixed by the number of cores, never by the number of requests.
//!
//! Ties go to the lower core number, which makes the order of events a function of the times alone.

/// Bits of a key that hold the core number.
const CORE_BITS: u32 = 12;
/// Maximum number of cores a tree can hold.
pub const MAX_CORES: usize = 1 << CORE_BITS;
/// Latest time a tree can hold: 52 days of virtual nanoseconds.
pub const MAX_TIME_NS: u64 = (1 << (64 - CORE_BITS)) - 2;

/// Earliest-event structure over a fixed number of cores.
#[derive(Clone, Debug)]
pub struct Timers {
    /// Binary tree in an array: node `i` holds the smaller key of `2i` and `2i + 1`; leaves start
    /// at `leaves`.
    tree: Vec<u64>,
    leaves: usize,
}

impl Timers {
    /// Creates timers for `cores` cores without pending events.
    ///
    /// # Panics
    ///
    /// If `cores` is 0 or above [`MAX_CORES`].
    #[must_use]
    pub fn new(cores: usize) -> Self {
        assert!((1..=MAX_CORES).contains(&cores), "{cores} cores: a simulated machine has 1 to {MAX_CORES}");
        let leaves = cores.next_power_of_two().max(2);
        Self { tree: vec![u64::MAX; 2 * leaves], leaves }
    }

    /// Sets the core's event to `at_ns`, replacing any it had.
    #[inline]
    pub fn set(&mut self, core: usize, at_ns: u64) {
        assert!(at_ns <= MAX_TIME_NS, "virtual time {at_ns} ns is beyond the 52 days a run may last");
        self.put(core, at_ns << CORE_BITS | core as u64);
    }

    /// Removes the core's event.
    #[inline]
    pub fn clear(&mut self, core: usize) {
        self.put(core, u64::MAX);
    }

    /// Returns the earliest event and its core.
    #[inline]
    #[must_use]
    pub fn earliest(&self) -> Option<(u64, usize)> {
        let key = self.tree[1];
        (key != u64::MAX).then_some((key >> CORE_BITS, (key & (MAX_CORES as u64 - 1)) as usize))
    }

    #[inline]
    fn put(&mut self, core: usize, key: u64) {
        let mut node = self.leaves + core;
        self.tree[node] = key;
        let mut smallest = key;
        while node > 1 {
            smallest = smallest.min(self.tree[node ^ 1]);
            node >>= 1;
            self.tree[node] = smallest;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_earliest_is_that_of_an_ordered_map(
            cores in 1usize..70, steps in prop::collection::vec((0usize..70, 0u64..500, any::<bool>()), 0..300)
        ) {
            let mut timers = Timers::new(cores);
            let mut model = std::collections::BTreeMap::new();
            for (core, at, set) in steps {
                let core = core % cores;
                if set {
                    timers.set(core, at);
                    model.insert(core, at);
                } else {
                    timers.clear(core);
                    model.remove(&core);
                }
                let first = model.iter().map(|(&c, &t)| (t, c)).min();
                prop_assert_eq!(timers.earliest(), first);
            }
        }
    }
}
