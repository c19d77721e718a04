//! A kthread's cache of free small blocks of memory, by size class.

use super::arch;
use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::NonNull;

/// Sizes are rounded up to multiples of this, which is also the alignment of every block.
const GRAIN: usize = 16;
/// Largest cached size.
const LARGEST: usize = 1024;
const CLASSES: usize = LARGEST / GRAIN;
/// Largest size of which many blocks are kept.
const SMALL: usize = 128;
/// Blocks kept of a class of up to [`SMALL`] bytes: what a thousand threads that start or end
/// together allocate. At most 1024 x (16 + 32 + ... + 128) bytes = 0.6 MiB in all.
const KEEP_SMALL: u32 = 1024;
/// Blocks kept of another class: at most 64 x (144 + 160 + ... + 1024) bytes = 2 MiB in all.
const KEEP: u32 = 64;

/// A size class of blocks that are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClass(usize);

impl SizeClass {
    /// Returns the class of a layout, `None` if blocks like it are not cached.
    #[inline(always)]
    pub fn of(layout: Layout) -> Option<Self> {
        (layout.size() <= LARGEST && layout.align() <= GRAIN && layout.size() > 0)
            .then(|| Self((layout.size() - 1) / GRAIN))
    }

    /// Returns how many blocks of the class are kept.
    #[inline(always)]
    fn keep(self) -> u32 {
        if self.0 < SMALL / GRAIN { KEEP_SMALL } else { KEEP }
    }

    /// Returns the layout that all blocks of the class have.
    #[inline(always)]
    pub fn layout(self) -> Layout {
        // SAFETY: at most LARGEST bytes, and GRAIN is a power of two.
        unsafe { Layout::from_size_align_unchecked((self.0 + 1) * GRAIN, GRAIN) }
    }
}

/// The first word of a free block.
#[derive(Debug)]
struct FreeBlock {
    next: Option<NonNull<FreeBlock>>,
}

/// The free blocks of one class.
#[derive(Debug, Default)]
struct Shelf {
    head: Cell<Option<NonNull<FreeBlock>>>,
    len: Cell<u32>,
}

/// Free blocks of all classes. Not `Sync`: one thread uses it.
#[derive(Debug)]
pub struct BlockCache([Shelf; CLASSES]);

// SAFETY: the cached blocks are free memory that the cache owns.
unsafe impl Send for BlockCache {}

impl Default for BlockCache {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Shelf::default()))
    }
}

impl BlockCache {
    /// Takes a block of `class`.
    #[inline(always)]
    pub fn pop(&self, class: SizeClass) -> Option<*mut u8> {
        let shelf = &self.0[class.0];
        let head = shelf.head.get()?;
        // SAFETY: cached blocks are free, and `push` wrote their links.
        let next = unsafe { head.as_ref() }.next;
        if let Some(next) = next {
            // Its link is read by the next `pop`, and the block then written.
            arch::prefetch_for_writing(next.as_ptr().cast());
        }
        shelf.head.set(next);
        shelf.len.set(shelf.len.get() - 1);
        Some(head.as_ptr().cast())
    }

    /// Keeps a block; false if there are enough of its class.
    ///
    /// # Safety
    /// `block` is free memory of the layout of `class`, which becomes the cache's if this returns
    /// true.
    #[inline(always)]
    pub unsafe fn push(&self, class: SizeClass, block: NonNull<u8>) -> bool {
        let shelf = &self.0[class.0];
        if shelf.len.get() >= class.keep() {
            return false;
        }
        let block = block.cast::<FreeBlock>();
        // SAFETY: by the caller's contract the block is free, and large and aligned enough for a
        // link.
        unsafe { block.write(FreeBlock { next: shelf.head.get() }) };
        shelf.head.set(Some(block));
        shelf.len.set(shelf.len.get() + 1);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn a_class_has_room_for_every_layout_in_it() {
        for size in 1..=LARGEST {
            let class = SizeClass::of(layout(size, 8)).unwrap();
            assert!(class.layout().size() >= size && class.layout().size() < size + GRAIN);
        }
        assert_eq!(SizeClass::of(layout(0, 1)), None);
        assert_eq!(SizeClass::of(layout(LARGEST + 1, 1)), None);
        assert_eq!(SizeClass::of(layout(16, 32)), None);
    }

    /// Blocks come back newest first, and so many of `size` bytes are kept.
    fn check_kept<const SIZE: usize>(keep: u32) {
        let cache = BlockCache::default();
        let class = SizeClass::of(layout(SIZE, 16)).unwrap();
        // Rows of u128 are as aligned as blocks are.
        let mut memory = vec![[0u128; 16]; keep as usize + 1];
        let blocks: Vec<_> = memory.iter_mut().map(|block| NonNull::from(block).cast::<u8>()).collect();
        for (number, &block) in blocks.iter().enumerate() {
            // SAFETY: 256 bytes, aligned to 16, that nothing else uses before the end of the test.
            assert_eq!(unsafe { cache.push(class, block) }, number < keep as usize);
        }
        let kept: Vec<_> = core::iter::from_fn(|| cache.pop(class)).collect();
        let expected = blocks[..keep as usize].iter().rev().map(|block| block.as_ptr());
        assert!(kept.into_iter().eq(expected));
    }

    #[test]
    fn blocks_come_back_newest_first_and_more_small_ones_are_kept() {
        check_kept::<32>(KEEP_SMALL);
        check_kept::<SMALL>(KEEP_SMALL);
        check_kept::<{ SMALL + 1 }>(KEEP);
    }
}
