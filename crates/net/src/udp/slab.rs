//! Storage whose items never move and are never freed, so a stale index still leads to an item.

use crate::platform::{Once, Platform};
use alloc::boxed::Box;
use core::fmt::Debug;

/// Items in the first chunk; each chunk is twice as long as the previous one.
const FIRST: usize = 16;
/// Chunks: room for 131 056 items.
const CHUNKS: usize = 13;

/// An append-only array that grows by chunks.
#[derive(Debug)]
pub struct Slab<P: Platform, T: Debug + 'static> {
    chunks: [P::Once<Box<[T]>>; CHUNKS],
}

/// Chunk and place in it.
#[inline]
fn locate(index: u32) -> (usize, usize) {
    let chunk = (index as usize / FIRST + 1).ilog2() as usize;
    (chunk, index as usize - FIRST * ((1 << chunk) - 1))
}

impl<P: Platform, T: Debug + 'static> Slab<P, T> {
    /// Makes an empty slab.
    pub fn new() -> Self {
        Self { chunks: core::array::from_fn(|_| Once::new()) }
    }

    /// Returns the item at `index` if its chunk exists.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (chunk, place) = locate(index);
        self.chunks.get(chunk)?.get()?.get(place)
    }

    /// Returns the item at `index`. If its chunk does not exist, `make` makes the chunk's items
    /// from their indices.
    ///
    /// # Panics
    /// Beyond the last chunk.
    pub fn get_or_grow(&self, index: u32, make: impl Fn(u32) -> T) -> &T {
        let (chunk, place) = locate(index);
        let first = FIRST * ((1 << chunk) - 1);
        let make = || (0..FIRST << chunk).map(|i| make((first + i) as u32)).collect();
        &self.chunks[chunk].get_or_init(make)[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_place() {
        let slab = Slab::<crate::Single, _>::new();
        for index in (0..5000).rev() {
            assert_eq!(*slab.get_or_grow(index, |i| i), index);
        }
        assert!((0..5000).all(|i| slab.get(i) == Some(&i)));
        assert_eq!(slab.get(100_000), None);
        assert_eq!(slab.get(u32::MAX), None);
        assert_eq!(locate(131_055), (CHUNKS - 1, (FIRST << (CHUNKS - 1)) - 1));
    }
}
