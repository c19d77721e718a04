//! A ring in private memory, for tests.

use super::{Consumer, Line, Producer, RingMemory, TailWord};
use crate::memory::{self, Mapping};
use std::sync::Arc;

/// Lines and tail word of a ring.
#[derive(Debug)]
pub(super) struct PrivateRing {
    pub(super) lines: Box<[Line]>,
    pub(super) tail: Box<TailWord>,
}

impl PrivateRing {
    /// Returns a zeroed ring of `count` lines.
    pub(super) fn new(count: u32) -> Self {
        Self { lines: (0..count).map(|_| Line::new()).collect(), tail: Box::new(TailWord::new(0)) }
    }

    /// Returns both ends.
    ///
    /// # Safety
    /// 1. Called once per ring.
    /// 2. The ring is not dropped before both ends.
    pub(super) unsafe fn ends(&self) -> (Producer, Consumer) {
        // The ring lies in the heap, where loom can follow it: the mapping that the ends keep is a
        // stand-in.
        let file = memory::create("tailwater-test", 4096).unwrap();
        let mapping = Arc::new(Mapping::new(file, "stand-in").unwrap());
        // SAFETY: valid while self lives, which is long enough by point 2.
        let memory = || unsafe {
            let count = self.lines.len() as u32;
            RingMemory::new(self.lines.as_ptr(), count, &raw const *self.tail, Arc::clone(&mapping))
        };
        // SAFETY: one of each, by point 1.
        unsafe { (Producer::new(memory()), Consumer::new(memory())) }
    }
}
