//! The word in which a kthread announces that it reads, and how a writer waits for the end of the
//! section.
//!
//! Its kthread alone writes the word, with preemption off: a depth, which lets sections nest, and a
//! count of sections that have ended. A writer that has replaced a pointer looks at each word: a
//! kthread outside every section will find the new pointer, and one inside may have the old pointer
//! until its section has ended.
//!
//! It is a store-load pair: the reader announces itself, then loads the pointer; the writer stores
//! the pointer, then looks at the word. Both need a full barrier in between, which the caller
//! provides: the writer can pay for both.

use crate::ground::atomic::{AtomicU64, Ordering};

const DEPTH: u64 = 0xffff;
const SECTION: u64 = DEPTH + 1;

/// One kthread's word. It has its cache line to itself, and the next one, which a prefetcher brings
/// along.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Section(AtomicU64);

impl Section {
    /// Returns the word of a kthread outside every section.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins a section, with a full `barrier` before the reads in it.
    ///
    /// # Safety
    /// The caller is the word's kthread, and preemption stays off until the section ends.
    #[inline]
    pub unsafe fn enter(&self, barrier: impl FnOnce()) {
        let word = self.0.load(Ordering::Relaxed);
        // Each level takes a stack frame, and no stack has room for so many.
        debug_assert!(word & DEPTH < DEPTH, "sections nest too deeply");
        // Release: as in `leave`, for a writer that sees this section instead of the end of the one
        // before. The barrier orders what is read from here on.
        self.0.store(word + 1, Ordering::Release);
        barrier();
    }

    /// Ends a section.
    ///
    /// # Safety
    /// The caller has [entered](Self::enter) it.
    #[inline]
    pub unsafe fn leave(&self) {
        let word = self.0.load(Ordering::Relaxed) - 1;
        let ended = if word & DEPTH == 0 { SECTION } else { 0 };
        // Release: pairs with the Acquire in `look`: the writer comes after all that was read.
        self.0.store(word.wrapping_add(ended), Ordering::Release);
    }

    /// Returns the state that a writer sees, after a full barrier.
    pub fn look(&self) -> Look {
        // Acquire: pairs with the Release in `leave`.
        Look(self.0.load(Ordering::Acquire))
    }
}

/// The state of a word when a writer looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look(u64);

impl Look {
    /// Returns whether a section was in progress.
    pub fn is_reading(self) -> bool {
        self.0 & DEPTH != 0
    }

    /// Returns whether, by a `later` look, the section that was in progress has ended.
    pub fn is_over(self, later: Self) -> bool {
        !self.is_reading() || self.0 & !DEPTH != later.0 & !DEPTH
    }
}
