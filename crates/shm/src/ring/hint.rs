//! Looking at a ring without holding its consumer.

use super::{Consumer, RingMemory};
use crate::sync::{AtomicU64, Ordering};

/// Shows whether a record waits, and how far the ring was read, without the [`Consumer`], which
/// another thread may be using.
///
/// | field | written by | ordering | read by |
/// |---|---|---|---|
/// | position | the thread that holds the consumer, after a batch | Relaxed | any thread |
/// | tail word | that thread, in `publish` | Release | any thread, in `has_passed`, Acquire |
///
/// The first may be stale in both directions: only [`Consumer::peek`] decides. The second is final
/// once it is true.
#[derive(Debug)]
pub struct Hint {
    memory: RingMemory,
    position: AtomicU64,
}

// SAFETY: the position and the ring's words are atomics; the ring stays mapped as long as
// the hint exists.
unsafe impl Sync for Hint {}

impl Hint {
    /// Returns a hint at the position of `consumer`.
    pub fn new(consumer: &Consumer) -> Self {
        Self { memory: consumer.memory.clone(), position: AtomicU64::new(consumer.tail) }
    }

    /// Returns whether a record (or a wrap marker) seems to wait.
    #[inline(always)]
    pub fn has_record(&self) -> bool {
        // Relaxed: a stale position or header makes the hint stale, and carries no data.
        let position = self.position.load(Ordering::Relaxed);
        self.memory.header(self.memory.index(position)).load(Ordering::Relaxed) != 0
    }

    /// Returns whether the ring has been read up to `position`, and published: whatever the
    /// consumer did with the records before is visible to the caller.
    #[inline]
    pub fn has_passed(&self, position: u64) -> bool {
        // Acquire: pairs with the Release in `Consumer::publish`.
        self.memory.tail().load(Ordering::Acquire) >= position
    }

    /// Moves the hint to the position of `consumer`.
    #[inline(always)]
    pub fn follow(&self, consumer: &Consumer) {
        // Relaxed: as in `has_record`.
        self.position.store(consumer.tail, Ordering::Relaxed);
    }
}
