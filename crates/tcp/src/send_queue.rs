//! The bytes that the application has handed over and the peer has not acknowledged.
//!
//! Copied bytes lie in one [ring](Ring). Shared pieces ([`SharedBytes`]) stay where they are, with
//! a record each of their place between the copied bytes. A connection without shared pieces has
//! the ring and nothing else; the first piece puts ring and records together on the heap, where
//! they stay until the queue is [released](SendQueue::release).
//!
//! It never decides how much is allowed: the caller's bound, at most 2^30 bytes, holds for copied
//! and shared bytes together. A piece has [`LEAST_SHARED`] bytes or more when it is added, so that
//! bound also limits the number of records.
//!
//! # Invariants (`check`)
//! - The pieces lie one behind the other, none before the first byte of the queue. The acknowledged
//!   beginning of a piece is cut off; its memory is kept until all of it is acknowledged. So all
//!   pieces but the first have at least [`LEAST_SHARED`] bytes.
//! - The bytes between the pieces, and behind the last, are those in the ring.

use crate::ring::Ring;
use crate::shared::SharedBytes;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;

/// Shortest piece that is queued by reference. A shorter one is copied, which reads and writes up
/// to 32 cache lines. A reference costs two locked instructions, a record of 48 bytes, and a
/// search of the records for each segment of the connection.
pub(crate) const LEAST_SHARED: usize = 2 << 10;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) enum SendQueue {
    Copied(Ring),
    Mixed(Box<Mixed>),
}

/// Copied bytes with shared pieces between them.
#[derive(Debug, Default)]
pub(crate) struct Mixed {
    copied: Ring,
    pieces: VecDeque<Piece>,
    /// Position of the first byte. Positions count the bytes queued since the first shared piece;
    /// they wrap.
    start: u32,
    /// Shared bytes queued, and those of them that were acknowledged. Both wrap.
    shared: u32,
    shared_gone: u32,
}

#[derive(Debug)]
struct Piece {
    /// Position of its first byte.
    at: u32,
    /// Shared bytes queued before its first one.
    shared_before: u32,
    bytes: SharedBytes,
}

impl Default for SendQueue {
    fn default() -> Self {
        Self::Copied(Ring::default())
    }
}

impl SendQueue {
    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Copied(ring) => ring.len(),
            Self::Mixed(mixed) => mixed.len(),
        }
    }

    /// Returns the bytes of memory held, of which shared ones may be held by others too.
    pub fn capacity(&self) -> usize {
        match self {
            Self::Copied(ring) => ring.capacity(),
            Self::Mixed(mixed) => {
                let records = mixed.pieces.capacity() * size_of::<Piece>() + size_of::<Mixed>();
                mixed.copied.capacity() + mixed.shared_len() + records
            }
        }
    }

    /// Adds a copy of `data`.
    #[inline]
    pub fn push(&mut self, data: &[u8]) {
        match self {
            Self::Copied(ring) => ring.push(data),
            Self::Mixed(mixed) => mixed.copied.push(data),
        }
    }

    /// Adds the first `len` bytes of `data`: a reference to them if they are [long
    /// enough](LEAST_SHARED), otherwise a copy.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn push_shared(&mut self, data: &SharedBytes, len: usize) {
        if len < LEAST_SHARED {
            return self.push(&data[..len]);
        }
        let piece = data.slice(..len);
        match self {
            Self::Mixed(mixed) => mixed.push_shared(piece),
            Self::Copied(ring) => {
                let mut mixed = Box::new(Mixed { copied: core::mem::take(ring), ..Mixed::default() });
                mixed.push_shared(piece);
                *self = Self::Mixed(mixed);
            }
        }
    }

    /// Returns `len` bytes from `offset` on, for a segment.
    ///
    /// # Panics
    /// If they are not all there.
    #[inline]
    pub fn payload(&self, offset: usize, len: usize) -> Payload<'_> {
        match self {
            Self::Copied(ring) => Payload::from(ring.slices(offset, len)),
            Self::Mixed(mixed) if mixed.pieces.is_empty() => Payload::from(mixed.copied.slices(offset, len)),
            Self::Mixed(mixed) => {
                assert!(offset + len <= self.len(), "{offset} and {len} of {}", self.len());
                Payload(Parts::Mixed { queue: mixed, offset, len })
            }
        }
    }

    /// Removes the first `bytes`.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        match self {
            Self::Copied(ring) => ring.consume(bytes),
            Self::Mixed(mixed) => mixed.consume(bytes),
        }
    }

    /// As [`Ring::rewind`].
    #[inline]
    pub fn rewind(&mut self) {
        match self {
            Self::Copied(ring) => ring.rewind(),
            Self::Mixed(mixed) => mixed.copied.rewind(),
        }
    }

    /// Frees the memory; the content is lost.
    pub fn release(&mut self) {
        *self = Self::default();
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let Self::Mixed(mixed) = self else { return };
        let (mut end, mut shared) = (0, 0);
        for (number, piece) in mixed.pieces.iter().enumerate() {
            let at = mixed.offset_of(piece);
            assert!(at >= end && !piece.bytes.is_empty(), "{at} behind {end}");
            assert!(number == 0 || piece.bytes.len() >= LEAST_SHARED, "piece {number}: {piece:?}");
            assert_eq!(mixed.shared_before(piece), shared);
            (end, shared) = (at + piece.bytes.len(), shared + piece.bytes.len());
        }
        assert_eq!(mixed.shared_len(), shared);
        assert!(end <= self.len(), "{end} of {}", self.len());
    }
}

impl Mixed {
    fn len(&self) -> usize {
        self.copied.len() + self.shared_len()
    }

    fn shared_len(&self) -> usize {
        self.shared.wrapping_sub(self.shared_gone) as usize
    }

    /// Returns the number of bytes in the queue before `piece`.
    fn offset_of(&self, piece: &Piece) -> usize {
        piece.at.wrapping_sub(self.start) as usize
    }

    /// Returns the number of shared bytes in the queue before `piece`.
    fn shared_before(&self, piece: &Piece) -> usize {
        piece.shared_before.wrapping_sub(self.shared_gone) as usize
    }

    /// Copies bytes from `offset` on until `out` is full.
    fn copy_to(&self, mut offset: usize, mut out: &mut [u8]) {
        let first = self.pieces.partition_point(|it| self.offset_of(it) + it.bytes.len() <= offset);
        for piece in self.pieces.range(first..) {
            let at = self.offset_of(piece);
            if offset < at {
                let (run, rest) = out.split_at_mut(out.len().min(at - offset));
                self.copied.copy_to(offset - self.shared_before(piece), run);
                (offset, out) = (offset + run.len(), rest);
            }
            if out.is_empty() {
                return;
            }
            let bytes = &piece.bytes[offset - at..];
            let (run, rest) = out.split_at_mut(out.len().min(bytes.len()));
            run.copy_from_slice(&bytes[..run.len()]);
            (offset, out) = (offset + run.len(), rest);
            if out.is_empty() {
                return;
            }
        }
        self.copied.copy_to(offset - self.shared_len(), out);
    }

    fn push_shared(&mut self, bytes: SharedBytes) {
        let (at, shared_before) = (self.start.wrapping_add(self.len() as u32), self.shared);
        self.shared = shared_before.wrapping_add(bytes.len() as u32);
        self.pieces.push_back(Piece { at, shared_before, bytes });
    }

    fn consume(&mut self, bytes: usize) {
        self.start = self.start.wrapping_add(bytes as u32);
        let mut shared = 0;
        while let Some(piece) = self.pieces.front_mut() {
            let gone = self.start.wrapping_sub(piece.at) as i32;
            if gone <= 0 {
                break;
            }
            if (gone as usize) < piece.bytes.len() {
                piece.bytes.advance(gone as usize);
                piece.at = self.start;
                piece.shared_before = piece.shared_before.wrapping_add(gone as u32);
                shared += gone as usize;
                break;
            }
            shared += piece.bytes.len();
            self.pieces.pop_front();
        }
        self.shared_gone = self.shared_gone.wrapping_add(shared as u32);
        self.copied.consume(bytes - shared);
    }
}

/// The data of a segment, where the connection holds it.
#[derive(Clone, Copy, Default)]
pub struct Payload<'a>(Parts<'a>);

#[derive(Clone, Copy)]
enum Parts<'a> {
    /// In two pieces if it wraps around the end of a ring.
    Copied(&'a [u8], &'a [u8]),
    Mixed {
        queue: &'a Mixed,
        offset: usize,
        len: usize,
    },
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Self::Copied(&[], &[])
    }
}

impl<'a> From<(&'a [u8], &'a [u8])> for Payload<'a> {
    #[inline]
    fn from((a, b): (&'a [u8], &'a [u8])) -> Self {
        Self(Parts::Copied(a, b))
    }
}

impl Payload<'_> {
    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self.0 {
            Parts::Copied(a, b) => a.len() + b.len(),
            Parts::Mixed { len, .. } => len,
        }
    }

    /// Returns true for a segment without data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all of it to `out`.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) {
        match self.0 {
            Parts::Copied(a, b) => {
                let (first, second) = out.split_at_mut(a.len());
                first.copy_from_slice(a);
                second.copy_from_slice(b);
            }
            Parts::Mixed { queue, offset, len } => {
                assert_eq!(out.len(), len);
                queue.copy_to(offset, out);
            }
        }
    }
}

/// Omits the bytes, which are the application's and many.
impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({})", self.len())
    }
}

#[cfg(test)]
mod tests;
