//! A frame to be delivered, from a ring or from private memory.
//!
//! Owns the ways from a ring or a buffer into a receiver's ring. The bytes that are checked are
//! private, and are what is delivered.
//!
//! # Checksums
//! Between two runtimes a frame is only copied in memory: the IOKernel guarantees that it is
//! undamaged, and a sender that knows this leaves out the checksum of TCP (RFC 9293 section 3.1
//! requires it on the wire). A wrong claim of the sender damages only its own data. A frame from a
//! port carries no such guarantee, and a frame that leaves through a port without its checksum gets
//! it here.

use tailwater_sched::RuntimeId;
use tailwater_shm::Cycles;
use tailwater_shm::ring::{
    FIRST_LINE_FRAME, FLAG_CHECKSUM_OK, FLAG_CHECKSUM_OWED, FirstLine, FrameBuffer, Producer, Record,
    ReserveError, forward,
};
use tailwater_shm::trace::FLAG_TRACED;

use super::offload::fill_checksum;
use crate::tenant::TenantId;
use crate::trace::Arrival;

/// Where a frame comes from: it is not sent back there, and takes that tenant's share of a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Runtime(RuntimeId, TenantId),
    Port(u16),
}

pub(super) trait Source {
    fn len(&self) -> usize;
    /// Returns the bytes that may be checked: the first line, or the whole frame.
    fn shown(&self) -> &[u8];
    fn put(&self, to: &mut Producer, hash: u32, now: Cycles) -> Result<(), ReserveError>;
    /// Returns how the frame came from a port, if it did: such frames may be traced.
    #[inline(always)]
    fn arrival(&self) -> Option<Arrival> {
        None
    }
    /// Puts a traced frame, which has an [`arrival`](Self::arrival): its trace number takes the
    /// place of the flow hash.
    fn put_traced(&self, to: &mut Producer, id: u32, now: Cycles) -> Result<(), ReserveError> {
        self.put(to, id, now)
    }
    /// Returns a private copy for a port; `None` if the sender changed what was checked.
    fn copy<'a>(&'a self, buffer: &'a mut FrameBuffer) -> Option<&'a [u8]>;
}

/// A frame in an egress ring, of which the first line has been copied and checked.
pub(super) struct FromRing<'a, 'ring> {
    pub(super) record: &'a Record<'ring>,
    pub(super) first: &'a FirstLine,
}

impl Source for FromRing<'_, '_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.record.len()
    }

    #[inline]
    fn shown(&self) -> &[u8] {
        &self.first.frame()[..self.record.len().min(FIRST_LINE_FRAME)]
    }

    #[inline(always)]
    fn put(&self, to: &mut Producer, hash: u32, now: Cycles) -> Result<(), ReserveError> {
        forward(self.record, self.first, to, hash, FLAG_CHECKSUM_OK, now)
    }

    fn copy<'a>(&'a self, buffer: &'a mut FrameBuffer) -> Option<&'a [u8]> {
        let frame = self.record.copy_frame(buffer);
        let checked = frame.len().min(FIRST_LINE_FRAME);
        if frame[..checked] != self.first.frame()[..checked] {
            return None;
        }
        if self.record.flags() & FLAG_CHECKSUM_OWED != 0 {
            fill_checksum(frame);
        }
        Some(frame)
    }
}

/// A frame in private memory: from a port, or copied whole out of an egress ring.
pub(super) struct Private<'a> {
    frame: &'a [u8],
    /// Flags of its record in a runtime's ring.
    vouched: u8,
    /// Its checksum must be filled in before it leaves through a port.
    owed: bool,
    arrival: Option<Arrival>,
}

impl<'a> Private<'a> {
    /// Returns a frame from a port: the wire may have damaged it.
    pub(super) fn from_port(frame: &'a [u8], arrival: Arrival) -> Self {
        Self { frame, vouched: 0, owed: false, arrival: Some(arrival) }
    }

    /// Returns a frame that the IOKernel has made.
    pub(super) fn own(frame: &'a [u8]) -> Self {
        Self { frame, vouched: FLAG_CHECKSUM_OK, owed: false, arrival: None }
    }

    /// Returns a copy of a frame that a runtime has received and passes on with these flags.
    pub(super) fn passed_on(frame: &'a [u8], flags: u8) -> Self {
        Self { frame, vouched: flags & FLAG_CHECKSUM_OK, owed: false, arrival: None }
    }

    /// Returns a copy of a frame that a runtime put into its ring with these flags.
    pub(super) fn from_ring(frame: &'a [u8], flags: u8) -> Self {
        Self { frame, vouched: FLAG_CHECKSUM_OK, owed: flags & FLAG_CHECKSUM_OWED != 0, arrival: None }
    }

    #[inline(always)]
    fn put_flagged(&self, to: &mut Producer, word: u32, flags: u8, now: Cycles) -> Result<(), ReserveError> {
        let mut slot = to.reserve(self.frame.len())?;
        slot.write(0, self.frame);
        slot.commit(word, flags, now);
        Ok(())
    }
}

impl Source for Private<'_> {
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
        self.put_flagged(to, hash, self.vouched, now)
    }

    #[inline(always)]
    fn arrival(&self) -> Option<Arrival> {
        self.arrival
    }

    #[cold]
    fn put_traced(&self, to: &mut Producer, id: u32, now: Cycles) -> Result<(), ReserveError> {
        self.put_flagged(to, id, self.vouched | FLAG_TRACED, now)
    }

    fn copy<'a>(&'a self, buffer: &'a mut FrameBuffer) -> Option<&'a [u8]> {
        if !self.owed {
            return Some(self.frame);
        }
        let frame = buffer.hold(self.frame);
        fill_checksum(frame);
        Some(frame)
    }
}
