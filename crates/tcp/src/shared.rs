//! Immutable bytes with a reference count, which a connection sends out of their own memory.
//!
//! Owns a reference and a range. The kinds of memory are few on purpose: the last reference may be
//! dropped under a connection's lock with preemption off. Dropping these frees memory: of the
//! program's code, only its allocator runs there.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Bound, Deref, RangeBounds};

/// Immutable bytes that several owners share. A clone, or a [slice](Self::slice), copies no byte
/// and keeps all of the memory.
///
/// A connection to which such bytes were handed over keeps a clone until the peer has acknowledged
/// them, and writes each segment straight from them into the frame that leaves.
///
/// All of the memory stays as long as any part of it is referred to: a send buffer bounds the bytes
/// that are queued, not the memory behind them. The last reference may be dropped under the
/// connection's lock with preemption off, and the allocator runs there: keep a reference of your
/// own to memory that is expensive to free.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tailwater_tcp::SharedBytes;
///
/// let page: Arc<[u8]> = Arc::from(&b"a page of a cache"[..]);
/// let mut bytes = SharedBytes::from(page);
/// assert_eq!(&bytes.slice(2..6)[..], b"page");
/// bytes.advance(12);
/// assert_eq!(&bytes[..], b"cache");
/// // A vector is taken over as it is, static bytes have no reference count.
/// let all = [SharedBytes::from(vec![0; 16 << 10]), SharedBytes::from(&b"static"[..])];
/// assert_eq!(all.map(|bytes| bytes.len()), [16 << 10, 6]);
/// ```
#[derive(Clone)]
pub struct SharedBytes {
    memory: Memory,
    start: usize,
    end: usize,
}

#[derive(Clone)]
enum Memory {
    Static(&'static [u8]),
    Slice(Arc<[u8]>),
    Vec(Arc<Vec<u8>>),
}

impl Memory {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Static(bytes) => bytes,
            Self::Slice(bytes) => bytes,
            Self::Vec(bytes) => bytes,
        }
    }
}

impl SharedBytes {
    fn new(memory: Memory) -> Self {
        let end = memory.bytes().len();
        Self { memory, start: 0, end }
    }

    /// Returns the bytes in `range`, in the same memory.
    ///
    /// # Panics
    /// If `range` does not lie within these bytes.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => behind(at),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => behind(at),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "{start}..{end} of {} bytes", self.len());
        Self { memory: self.memory.clone(), start: self.start + start, end: self.start + end }
    }

    /// Removes the first `bytes`, as after a call that took so many.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "{bytes} of {} bytes", self.len());
        self.start += bytes;
    }
}

/// Returns the index behind `at`.
fn behind(at: usize) -> usize {
    at.checked_add(1).expect("a bound of usize::MAX is beyond all bytes")
}

impl Deref for SharedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[self.start..self.end]
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&'static [u8]> for SharedBytes {
    fn from(bytes: &'static [u8]) -> Self {
        Self::new(Memory::Static(bytes))
    }
}

impl From<Arc<[u8]>> for SharedBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::new(Memory::Slice(bytes))
    }
}

impl From<Arc<Vec<u8>>> for SharedBytes {
    fn from(bytes: Arc<Vec<u8>>) -> Self {
        Self::new(Memory::Vec(bytes))
    }
}

/// Takes the vector over without a copy of its bytes.
impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Arc::new(bytes))
    }
}

/// Omits the bytes, which are many.
impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_of_the_same_memory() {
        let vector = Vec::from(*b"0123456789");
        let at = vector.as_ptr();
        let bytes = SharedBytes::from(vector);
        assert_eq!(bytes.as_ptr(), at, "the vector was taken over");
        let mut middle = bytes.slice(2..=7);
        middle.advance(1);
        assert_eq!((&middle[..], middle.as_ptr()), (&b"34567"[..], at.wrapping_add(3)));
        assert_eq!(&middle.slice(..2)[..], b"34");
        assert!(middle.slice(5..).is_empty());
    }

    #[test]
    #[should_panic(expected = "4..6 of 5 bytes")]
    fn a_slice_does_not_reach_beyond_its_bytes() {
        let bytes = SharedBytes::from(&b"0123456789"[..]).slice(..5);
        let _ = bytes.slice(4..6);
    }

    #[test]
    #[should_panic(expected = "beyond all bytes")]
    fn a_bound_that_has_no_successor_does_not_wrap() {
        let _ = SharedBytes::from(&b"0123456789"[..]).slice(..=usize::MAX);
    }
}
