//! The set of sleeping kthreads of a standalone runtime, and the race between a producer and a
//! kthread that goes to sleep.
//!
//! It is a store-load pair: the producer queues, then looks for sleepers; the sleeper enters the
//! set, then looks at the queues. The producer is hot and the sleeper is not, so the sleeper pays
//! for both: `membarrier(2)` makes every running thread of the process pass a full barrier. On a
//! kernel without it, the producer fences.
//!
//! | word | written by |
//! |---|---|
//! | `mask`, bit k | 1 by kthread k; 0 by the producer that claims k, or by k itself |
//! | `waking` | +1 by the producer that claimed a kthread, -1 by that kthread |

use super::membarrier;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Maximum number of kthreads of a standalone runtime: the bits of the mask.
pub const MAX_SLEEPERS: u16 = 64;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Sleepers {
    mask: AtomicU64,
    /// Kthreads that were claimed and do not poll yet.
    waking: AtomicU32,
    /// True while sleepers can fence on behalf of producers.
    has_membarrier: AtomicBool,
}

impl Sleepers {
    /// Returns an empty set. Registers the process for `membarrier`.
    pub fn new() -> Self {
        Self { has_membarrier: AtomicBool::new(membarrier::decide()), ..Self::default() }
    }

    /// Takes a kthread out of the set for the caller to wake; `None` if none sleeps or one is
    /// already on its way. `fenced` is true if the caller has fenced since it queued.
    #[inline]
    pub fn claim(&self, fenced: bool) -> Option<usize> {
        if !fenced && !self.has_membarrier.load(Ordering::Relaxed) {
            // Pairs with the fence in `enter`.
            fence(Ordering::SeqCst);
        }
        let mask = self.mask.load(Ordering::Relaxed);
        if mask == 0 || self.waking.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let bit = mask & mask.wrapping_neg();
        // AcqRel: the thread that clears the bit owns the wake, and counts it for the sleeper to
        // discount.
        if self.mask.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            return None;
        }
        self.waking.fetch_add(1, Ordering::Relaxed);
        Some(bit.trailing_zeros() as usize)
    }

    /// Returns whether no kthread sleeps, except ones that will still see what the caller has
    /// stored.
    #[inline]
    pub fn is_empty(&self) -> bool {
        if !self.has_membarrier.load(Ordering::Relaxed) {
            // Pairs with the fence in `enter`.
            fence(Ordering::SeqCst);
        }
        self.mask.load(Ordering::Relaxed) == 0
    }

    /// Adds kthread `index`, which looks at the queues next and sleeps only if they are empty.
    pub fn enter(&self, index: u16) {
        debug_assert!(index < MAX_SLEEPERS, "the set has no bit for kthread {index}");
        self.mask.fetch_or(1 << index, Ordering::AcqRel);
        // Pairs with `claim`: either the caller sees what was queued before the claim, or the claim
        // sees the bit.
        if self.has_membarrier.load(Ordering::Relaxed) && membarrier::everywhere().is_err() {
            self.has_membarrier.store(false, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Removes kthread `index`, which is awake.
    pub fn leave(&self, index: u16) {
        let bit = 1u64 << index;
        // AcqRel: as in `claim`. A producer that cleared the bit has counted this kthread.
        if self.mask.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            self.waking.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_sleeper_is_claimed_at_a_time() {
        let sleepers = Sleepers::new();
        assert_eq!(sleepers.claim(false), None);
        sleepers.enter(3);
        sleepers.enter(5);
        assert_eq!(sleepers.claim(true), Some(3));
        assert_eq!(sleepers.claim(true), None, "one is on its way");
        sleepers.leave(3);
        assert_eq!(sleepers.claim(true), Some(5));
        sleepers.leave(5);
        assert_eq!(sleepers.claim(true), None);
    }

    #[test]
    fn a_kthread_that_leaves_by_itself_is_not_waited_for() {
        let sleepers = Sleepers::new();
        sleepers.enter(0);
        sleepers.leave(0);
        sleepers.enter(1);
        assert_eq!(sleepers.claim(true), Some(1));
    }
}
