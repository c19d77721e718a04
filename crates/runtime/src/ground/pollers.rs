//! The set of kthreads whose mailboxes are worth an offer: a hint.
//!
//! A kthread announces itself when it polls, and again at every look around. A thread that finds
//! its mailbox closed or filled withdraws it. While all kthreads are busy, these words are not
//! written.

use core::sync::atomic::{AtomicU64, Ordering};
use tailwater_shm::layout::MAX_KTHREADS;

/// A word of 64 bits on two cache lines of its own: a prefetcher fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Word(AtomicU64);

/// A bit for each kthread. All accesses are Relaxed: a bit carries no data.
#[derive(Debug, Default)]
pub struct Pollers([Word; MAX_KTHREADS as usize / 64]);

impl Pollers {
    fn bit(&self, index: u16) -> (&AtomicU64, u64) {
        (&self.0[usize::from(index) / 64].0, 1 << (index % 64))
    }

    /// Adds kthread `index`.
    pub fn announce(&self, index: u16) {
        let (word, bit) = self.bit(index);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Removes kthread `index`.
    pub fn withdraw(&self, index: u16) {
        let (word, bit) = self.bit(index);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Returns whether no kthread seems to poll.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.0.load(Ordering::Relaxed) == 0)
    }

    /// Returns the kthreads in the set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..).step_by(64).zip(&self.0).flat_map(|(first, word)| {
            let mut left = word.0.load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let next = left.trailing_zeros() as u16;
                left &= left.wrapping_sub(1);
                (next < 64).then_some(first + next)
            })
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_set_holds_what_was_announced_and_not_withdrawn() {
        let pollers = Pollers::default();
        assert!(pollers.is_empty());
        for index in [0, 63, 64, 200, MAX_KTHREADS - 1] {
            pollers.announce(index);
            pollers.announce(index);
        }
        pollers.withdraw(64);
        assert_eq!(pollers.iter().collect::<Vec<_>>(), [0, 63, 200, MAX_KTHREADS - 1]);
        assert!(!pollers.is_empty());
    }
}
