//! Fences: marks in one ring that another ring must be read up to a position first.
//!
//! A flow of frames that continues in another ring would overtake the frames that wait in the ring
//! before. The producer of both rings writes a fence between, and the readers of both, who share a
//! process, read the older ring first. A fence names only records that were committed before it, so
//! the oldest fence that holds readers up names records that none holds up: fences cannot wait for
//! each other in a circle.

use super::{Consumer, Header, KIND_FENCE, KIND_FRAME, Producer, Record, ReserveError, RingLie};
use crate::sync::Ordering;

/// The next record of a ring that carries frames and fences.
#[derive(Debug)]
pub enum Next<'a> {
    /// A frame.
    Frame(Record<'a>),
    /// A fence before the following records.
    Fence(Fence<'a>),
}

/// The next record of a ring: a fence. Dropping it leaves it in the ring.
#[derive(Debug)]
pub struct Fence<'a> {
    ring: &'a mut Consumer,
    kthread: u16,
    position: u64,
}

impl Fence<'_> {
    /// Index of the kthread whose ring must be read first.
    pub fn kthread(&self) -> u16 {
        self.kthread
    }

    /// Position up to which that ring must be read, in lines since it was made.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Passes the fence.
    pub fn advance(self) {
        self.ring.tail += 1;
    }
}

impl Consumer {
    /// Returns the next frame or fence, if one waits. Steps over wrap markers.
    ///
    /// # Errors
    /// [`RingLie`] if the producer wrote an impossible header; the ring is unusable from then on.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an item borrows the consumer")]
    pub fn next(&mut self) -> Result<Option<Next<'_>>, RingLie> {
        match self.find()? {
            None => Ok(None),
            Some((header, index)) if header.kind() == KIND_FRAME => {
                self.check(header, index).map(|record| Some(Next::Frame(record)))
            }
            Some((header, index)) if header.kind() == KIND_FENCE => {
                // Relaxed: ordered after the header by the Acquire in `find`.
                let position = self.memory.line(index).words[1].load(Ordering::Relaxed);
                let kthread = header.hash() as u16;
                Ok(Some(Next::Fence(Fence { ring: self, kthread, position })))
            }
            Some((header, _)) => Err(RingLie::Kind(header.kind())),
        }
    }
}

impl Producer {
    /// Holds the records that follow until the ring of `kthread` has been read up to `position`.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn fence(&mut self, kthread: u16, position: u64) -> Result<(), ReserveError> {
        // The fence and its terminator; a single line needs no wrap marker.
        if self.free() < 2 {
            self.refresh()?;
            if self.free() < 2 {
                return Err(ReserveError::Full);
            }
        }
        let header = Header::new(KIND_FENCE, self.memory.lap(self.head), 0, 0, kthread.into());
        self.commit(1, header, position);
        Ok(())
    }

    /// Returns whether the consumer has published, truly or not, that it has read up to `position`:
    /// enough to leave a fence out, which matters to the consumer alone, and not to write over
    /// records.
    #[inline]
    pub fn has_passed(&self, position: u64) -> bool {
        // Acquire: pairs with the Release in `Consumer::publish`. What the consumer did with the
        // records before is visible to the reader of a record that is written after this.
        self.tail >= position || self.memory.tail().load(Ordering::Acquire) >= position
    }
}
