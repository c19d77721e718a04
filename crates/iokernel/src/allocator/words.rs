//! Reading the status words of one runtime, all of them or a part.
//!
//! Owns what a look keeps of them beside the policy's observation, and the bound on what a look at
//! one runtime costs. A program can rewrite its words all the time, and then each read is a cache
//! miss (50 to 100 ns for each of a kthread's two lines). So at a look in part
//!
//! - the kthreads that hold cores are read each time: theirs are the words that change;
//! - of the others, if the runtime has more than [`WHOLE`] kthreads, up to [`SLICE`] in turn, and
//!   with them up to [`WAITING`] at which something may wait: it did when they were last read, or
//!   frames were put into their rings since. After a slice that took a time `c`, the next one comes
//!   after [`SPACING`] times `c`, which is the next look if the lines are in the cache.
//!
//! The policy compares a look with the previous one to find work that waits. Slices of a runtime
//! with cores are read only at looks after which the policy runs: one read at another look would be
//! compared with nothing, and would put off the next one.
//!
//! So the words of a kthread without a core are as of a look up to `kthreads / SLICE` slices ago,
//! and the observation says that this look left it out. Both ends of a queue are as of one reading:
//! a later tail beside an earlier head would show work that other kthreads of the program have
//! taken. A timer found once is known from then on. The mark, the earliest timer and the lost wakes
//! are sums over the words of all kthreads, each as last read. A whole look, before the polling
//! thread sleeps and before a verdict, is up to date; one before a verdict is charged to the
//! program.

use core::sync::atomic::Ordering;
use tailwater_sched::alloc::KthreadLook;
use tailwater_shm::Cycles;

use crate::runtime::Runtime;

/// Maximum number of kthreads of a runtime that is read whole at each look.
pub(super) const WHOLE: usize = 4;
/// Maximum number of kthreads without cores of one runtime read at a look in part.
pub(super) const SLICE: usize = 16;
/// Maximum number of others read with a slice because something may wait there.
pub(super) const WAITING: usize = 4;
/// Pause after a slice, as a multiple of the time that it took.
pub(super) const SPACING: Cycles = 8;

/// What is kept of a kthread's words beside the observation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    fingerprint: u64,
    timer: Cycles,
    lost_wakes: u32,
}

/// What looks sum up over the words of all kthreads of a runtime.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    pub(super) mark: u64,
    pub(super) earliest: Cycles,
    pub(super) lost_wakes: u64,
}

impl Sum {
    /// Returns the sum of no words.
    pub(super) const NONE: Self = Self { mark: 0, earliest: Cycles::MAX, lost_wakes: 0 };

    #[inline(always)]
    pub(super) fn add(&mut self, words: Words) {
        self.mark = self.mark.wrapping_add(words.fingerprint);
        self.earliest = self.earliest.min(words.timer);
        self.lost_wakes += u64::from(words.lost_wakes);
    }
}

/// The words of a runtime of more than [`WHOLE`] kthreads, as last read; empty for others.
#[derive(Debug)]
pub(crate) struct Kept {
    words: Box<[Words]>,
    /// First kthread of the next slice.
    cursor: usize,
    /// No slice is read before this time.
    not_before: Cycles,
}

impl Kept {
    pub(crate) fn new(kthreads: u16) -> Self {
        let unread = Words { fingerprint: 0, timer: Cycles::MAX, lost_wakes: 0 };
        let count = if usize::from(kthreads) > WHOLE { kthreads.into() } else { 0 };
        Self { words: vec![unread; count].into(), cursor: 0, not_before: 0 }
    }

    /// Returns whether a slice may be read.
    pub(super) fn is_slice_due(&self, now: Cycles) -> bool {
        now >= self.not_before
    }

    /// Returns the kthreads of the next slice.
    pub(super) fn next_slice(&mut self) -> impl Iterator<Item = usize> + use<> {
        let (count, first) = (self.words.len(), self.cursor);
        let len = SLICE.min(count);
        self.cursor = (first + len) % count.max(1);
        (first..first + len).map(move |at| at % count)
    }

    /// Records that reading a slice of `count` kthreads took `cost`, which delays the next slice.
    /// `most` is the longest time that reading a kthread takes; the rest of a longer time was an
    /// interrupt's.
    pub(super) fn end_slice(&mut self, (count, cost): (usize, Cycles), most: Cycles, now: Cycles) {
        let cost = cost.min(most * count as Cycles);
        self.not_before = self.not_before.max(now.saturating_add(cost * SPACING));
    }

    pub(super) fn set(&mut self, kthread: usize, words: Words) {
        self.words[kthread] = words;
    }

    pub(super) fn sum(&self) -> Sum {
        let mut sum = Sum::NONE;
        self.words.iter().for_each(|&words| sum.add(words));
        sum
    }

    /// Marks the timers that have expired since they were read.
    pub(super) fn mark_due_timers(&self, looks: &mut [KthreadLook], now: Cycles) {
        for (look, words) in looks.iter_mut().zip(&self.words) {
            look.timer_due = words.timer <= now;
        }
    }
}

/// Copies the words of a kthread into the observation.
#[inline(always)]
pub(super) fn read(runtime: &Runtime, index: usize, look: &mut KthreadLook, now: Cycles) -> Words {
    let kthread = &runtime.kthreads[index];
    let is_held = runtime.held.is_some_and(|held| usize::from(held.kthread) == index);
    let status = &runtime.region.kthread(index as u16).status;
    (look.runq_head, look.runq_tail) = status.runq_ends();
    // Relaxed: hints; a stale value is read again at a later look.
    look.overflow =
        status.overflow.load(Ordering::Relaxed).saturating_add(status.injected.load(Ordering::Relaxed));
    look.hosted = status.hosted.load(Ordering::Relaxed) != 0;
    let timer = status.next_timer.load(Ordering::Relaxed);
    look.timer_due = timer <= now;
    let lost_wakes = status.lost_wakes.load(Ordering::Relaxed);
    look.ingress_head = kthread.ingress.unchecked_tail();
    look.ingress_tail = if is_held { look.ingress_head } else { kthread.ingress.head() };
    look.left_out = false;
    let fingerprint = fingerprint(index as u64, look, kthread.ingress.head(), timer);
    Words { fingerprint, timer, lost_wakes }
}

/// Marks all kthreads as left out, until they are read. Returns some of those at which something
/// may wait.
pub(super) fn leave_out(runtime: &Runtime, looks: &mut [KthreadLook]) -> [Option<usize>; WAITING] {
    let held = runtime.held.map(|held| usize::from(held.kthread));
    let (mut waiting, mut free) = ([None; WAITING], 0);
    for (index, (kthread, look)) in runtime.kthreads.iter().zip(looks).enumerate() {
        look.left_out = true;
        let is_held = held == Some(index);
        if is_held {
            look.ingress_tail = look.ingress_head;
        }
        // Whether frames that were put in since are still there, only the program's own position
        // shows.
        let may_wait = look.has_work() || !is_held && kthread.ingress.head() != look.ingress_head;
        // Those with cores are read anyway.
        if free < WAITING && !kthread.may_run && may_wait {
            waiting[free] = Some(index);
            free += 1;
        }
    }
    waiting
}

/// Returns the fingerprint of a kthread's words. The position of the IOKernel in the ingress ring
/// is among them: frames may come in for a kthread that has just parked, because the polling thread
/// did not run in between.
#[inline(always)]
fn fingerprint(index: u64, look: &KthreadLook, delivered: u32, timer: Cycles) -> u64 {
    let queue = u64::from(look.runq_head) << 32 | u64::from(look.runq_tail);
    let ring = u64::from(look.ingress_head) << 32 | u64::from(delivered);
    mix(mix(mix(mix(index, queue), ring), look.overflow.into()), timer)
}

/// Returns a fingerprint of `mark` and one more word.
#[inline(always)]
pub(super) fn mix(mark: u64, word: u64) -> u64 {
    (mark.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_come_round_to_each_kthread_and_later_the_more_the_last_one_cost() {
        let mut kept = Kept::new(40);
        let slice = |kept: &mut Kept, now| {
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
        assert!(slice(&mut Kept::new(4), 0).is_empty(), "a runtime that is read whole");
    }
}
