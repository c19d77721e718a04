//! A frame to be delivered, wherever it comes from.
//!
//! Owns the ways from a ring or a buffer into a receiver's ring. What is shown for judgement is private, and is what is
//! delivered.

use tailwater_shm::Cycles;
use tailwater_shm::ring::{
    Consumer, FIRST_LINE_FRAME, FirstLine, FrameBuffer, Producer, Record, ReserveError, forward,
};
use tailwater_shm::trace::FLAG_TRACED;

use crate::trace::Arrival;

pub(super) trait Source {
    fn len(&self) -> usize;
    /// What may be judged: the first line, or the whole frame.
    fn shown(&self) -> &[u8];
    fn put(&self, to: &mut Producer, hash: u32, now: Cycles) -> Result<(), ReserveError>;
    /// How it came from a port, if it did: such frames may be traced.
    #[inline(always)]
    fn arrival(&self) -> Option<Arrival> {
        None
    }
    /// Puts a frame that is traced, which has an [`arrival`](Self::arrival): its number takes the place of the flow hash.
    fn put_traced(&self, to: &mut Producer, id: u32, now: Cycles) -> Result<(), ReserveError> {
        self.put(to, id, now)
    }
    /// A private copy for a port; `None` when the sender changed what was checked.
    fn copy<'a>(&'a self, buffer: &'a mut FrameBuffer) -> Option<&'a [u8]>;
}

/// A frame in an egress ring, of which the first line has been copied and checked.
pub(super) struct FromRing<'a> {
    pub(super) consumer: &'a Consumer,
    pub(super) record: &'a Record,
    pub(super) first: &'a FirstLine,
}

impl Source for FromRing<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.record.len
    }

    #[inline]
    fn shown(&self) -> &[u8] {
        &self.first.frame()[..self.record.len.min(FIRST_LINE_FRAME)]
    }

    #[inline(always)]
    fn put(&self, to: &mut Producer, hash: u32, now: Cycles) -> Result<(), ReserveError> {
        forward(self.consumer, self.record, self.first, to, hash, now)
    }

    fn copy<'a>(&'a self, buffer: &'a mut FrameBuffer) -> Option<&'a [u8]> {
        let frame = self.consumer.copy_frame(self.record, buffer);
        let checked = frame.len().min(FIRST_LINE_FRAME);
        (frame[..checked] == self.first.frame()[..checked]).then_some(frame)
    }
}

/// A frame in memory that nobody else writes: from a port, or copied whole out of an egress ring.
pub(super) struct Private<'a>(pub(super) &'a [u8]);

impl Source for Private<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn shown(&self) -> &[u8] {
        self.0
    }

    #[inline(always)]
    fn put(&self, to: &mut Producer, hash: u32, now: Cycles) -> Result<(), ReserveError> {
        let mut slot = to.reserve(self.0.len())?;
        slot.write(0, self.0);
        slot.commit(hash, 0, now);
        Ok(())
    }

    fn copy<'a>(&'a self, _buffer: &'a mut FrameBuffer) -> Option<&'a [u8]> {
        Some(self.0)
    }
}

/// A frame in a port's buffer.
pub(super) struct FromPort<'a> {
    pub(super) frame: &'a [u8],
    pub(super) arrival: Arrival,
}

impl Source for FromPort<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.frame.len()
    }

    #[inline]
    fn shown(&self) -> &[u8] {
        self.frame
    }

    #[inline(always)]
    fn put(&self, to: &mut Producer, hash: u32, now: Cycles) -> Result<(), ReserveError> {
        Private(self.frame).put(to, hash, now)
    }

    #[inline(always)]
    fn arrival(&self) -> Option<Arrival> {
        Some(self.arrival)
    }

    #[cold]
    fn put_traced(&self, to: &mut Producer, id: u32, now: Cycles) -> Result<(), ReserveError> {
        let mut slot = to.reserve(self.frame.len())?;
        slot.write(0, self.frame);
        slot.commit(id, FLAG_TRACED, now);
        Ok(())
    }

    fn copy<'a>(&'a self, _buffer: &'a mut FrameBuffer) -> Option<&'a [u8]> {
        Some(self.frame)
    }
}
