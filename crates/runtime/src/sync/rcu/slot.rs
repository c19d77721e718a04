//! What one kthread says about its reading, and how a writer waits for it.
//!
//! Knows nothing of kthreads and pointers, so that a loom model can run it as it ships (`tests/loom_sync.rs`).
//!
//! The word is written by its kthread alone, with preemption off: a depth, which makes sections nest, and a count of the sections
//! that have ended. A writer that has replaced a pointer looks at each slot: a kthread outside every section will find the
//! new pointer, and one inside may have the old one until its section has ended.
//!
//! It is a store-load pair: the reader announces itself, then loads the pointer; the writer stores the pointer, then looks at
//! the slot. Both need a full barrier in between, which the caller provides: the writer can pay for both.

use tailwater_shm::sync::{AtomicU64, Ordering};

const DEPTH: u64 = 0xffff;
const SECTION: u64 = DEPTH + 1;

/// One kthread's word; has its cache lines for itself, and the next ones that a prefetcher brings along.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Slot(AtomicU64);

impl Slot {
    /// Outside every section.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins a section, with a full `barrier` before whatever is read in it. For the slot's own kthread.
    #[inline]
    pub(crate) fn enter(&self, barrier: impl FnOnce()) {
        let word = self.0.load(Ordering::Relaxed);
        // Each level takes a frame of a stack that has no room for so many.
        debug_assert!(word & DEPTH < DEPTH, "sections nest too deeply");
        // Release: as in `leave`, for a writer that sees this section instead of the end of the one before. What is read from
        // here on is ordered by the barrier.
        self.0.store(word + 1, Ordering::Release);
        barrier();
    }

    /// Ends a section. For the slot's own kthread.
    #[inline]
    pub(crate) fn leave(&self) {
        let word = self.0.load(Ordering::Relaxed) - 1;
        let ended = if word & DEPTH == 0 { SECTION } else { 0 };
        // Release: pairs with the Acquire in `look`: the writer comes after all that was read.
        self.0.store(word.wrapping_add(ended), Ordering::Release);
    }

    /// What a writer sees, after a full barrier.
    pub(crate) fn look(&self) -> Look {
        // Acquire: pairs with the Release in `leave`.
        Look(self.0.load(Ordering::Acquire))
    }
}

/// What a writer has seen of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look(u64);

impl Look {
    /// Whether a section was going on.
    pub(crate) fn is_reading(self) -> bool {
        self.0 & DEPTH != 0
    }

    /// Whether the section that was going on has ended, by a `later` look.
    pub(crate) fn is_over(self, later: Self) -> bool {
        !self.is_reading() || self.0 & !DEPTH != later.0 & !DEPTH
    }
}
