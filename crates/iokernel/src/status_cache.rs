//! What is kept of the status words of a runtime from look to look.
//!
//! Owns the words of each kthread, as last read, their sums, and which kthreads are read next. Of a
//! runtime of more than [`WHOLE`] kthreads a look reads a part; `allocator::look` says which, and
//! why. Pure: times are arguments.

use tailwater_sched::alloc::KthreadLook;
use tailwater_shm::Cycles;

/// Maximum number of kthreads of a runtime that is read whole at each look.
pub(crate) const WHOLE: usize = 4;
/// Maximum number of kthreads without cores of one runtime read at a look in part.
pub(crate) const SLICE: usize = 16;
/// Pause after a slice, as a multiple of the time that it took.
const SPACING: Cycles = 8;

/// What is kept of a kthread's words beside the observation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    /// Sum of its words, times an odd number of its own: positions that only grow, for the most
    /// part, and what moves to another kthread changes the sum of all.
    pub(crate) fingerprint: u64,
    pub(crate) timer: Cycles,
    pub(crate) lost_wakes: u32,
}

/// What looks sum up over the words of all kthreads of a runtime.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) fingerprint: u64,
    pub(crate) earliest: Cycles,
    pub(crate) lost_wakes: u64,
}

impl Sum {
    #[inline(always)]
    fn and(self, words: &Status) -> Self {
        Self {
            fingerprint: self.fingerprint.wrapping_add(words.fingerprint),
            earliest: self.earliest.min(words.timer),
            lost_wakes: self.lost_wakes + u64::from(words.lost_wakes),
        }
    }
}

/// The words of a runtime, as last read.
#[derive(Debug)]
pub(crate) struct StatusCache {
    words: Box<[Status]>,
    /// First kthread of the next slice.
    cursor: usize,
    /// No slice is read before this time.
    not_before: Cycles,
}

impl StatusCache {
    pub(crate) fn new(kthreads: u16) -> Self {
        let unread = Status { fingerprint: 0, timer: Cycles::MAX, lost_wakes: 0 };
        Self { words: vec![unread; kthreads.into()].into(), cursor: 0, not_before: 0 }
    }

    /// Returns whether a slice may be read.
    pub(crate) fn is_slice_due(&self, now: Cycles) -> bool {
        now >= self.not_before
    }

    /// Returns the kthreads of the next slice.
    pub(crate) fn next_slice(&mut self) -> impl Iterator<Item = usize> + use<> {
        let (count, first) = (self.words.len(), self.cursor);
        let len = SLICE.min(count);
        self.cursor = (first + len) % count.max(1);
        (first..first + len).map(move |at| at % count)
    }

    /// Records that reading a slice of `count` kthreads took `cost`, which delays the next slice.
    /// `most` is the longest time that reading a kthread takes; the rest of a longer time was an
    /// interrupt's.
    pub(crate) fn end_slice(&mut self, (count, cost): (usize, Cycles), most: Cycles, now: Cycles) {
        let cost = cost.min(most * count as Cycles);
        self.not_before = self.not_before.max(now.saturating_add(cost * SPACING));
    }

    pub(crate) fn set(&mut self, kthread: usize, words: Status) {
        self.words[kthread] = words;
    }

    pub(crate) fn sum(&self) -> Sum {
        self.words.iter().fold(Sum { fingerprint: 0, earliest: Cycles::MAX, lost_wakes: 0 }, Sum::and)
    }

    /// Marks the timers that have expired since they were read.
    pub(crate) fn mark_due_timers(&self, looks: &mut [KthreadLook], now: Cycles) {
        for (look, words) in looks.iter_mut().zip(&self.words) {
            look.timer_due = words.timer <= now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_come_round_to_each_kthread_and_later_the_more_the_last_one_cost() {
        let mut kept = StatusCache::new(40);
        let slice = |kept: &mut StatusCache, now| {
            assert!(kept.is_slice_due(now));
            kept.next_slice().collect::<Vec<_>>()
        };
        assert_eq!(slice(&mut kept, 0), (0..16).collect::<Vec<_>>());
        assert_eq!(slice(&mut kept, 0), (16..32).collect::<Vec<_>>());
        assert_eq!(slice(&mut kept, 0), (32..40).chain(0..8).collect::<Vec<_>>());
        kept.end_slice((16, 100), 1_000, 50);
        assert!(!kept.is_slice_due(849));
        assert_eq!(slice(&mut kept, 850), (8..24).collect::<Vec<_>>());
        kept.end_slice((16, 1 << 40), 10, 900);
        assert!(!kept.is_slice_due(900 + 8 * 160 - 1), "an interrupt");
        assert_eq!(slice(&mut kept, 900 + 8 * 160).len(), 16);
    }
}
