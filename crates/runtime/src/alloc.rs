//! The global allocator of a Tailwater program.
//!
//! A thread-caching allocator must neither be preempted inside a call (the next user thread on the core would meet its locks and
//! half-changed caches) nor see a user thread's FS base (it would build a heap per user thread). [`Alloc`] therefore runs the system
//! allocator with preemption off on the kthread's own FS base. That costs two FS writes, so small blocks come from a
//! per-kthread cache of size classes first, which needs neither.
//!
//! On ordinary threads it is the system allocator plus one load. What does not come through a program's global allocator is guarded
//! by [`malloc`](crate::malloc).
//!
//! # Invariant
//! Every small block, whoever allocates it, has the full size of its class, so that any kthread may cache any freed block.

use crate::kthread::{self, NoPreempt};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::alloc::System;

/// Sizes are rounded up to multiples of this, which is also the alignment of every block.
const GRAIN: usize = 16;
/// Largest cached size.
const LARGEST: usize = 1024;
const CLASSES: usize = LARGEST / GRAIN;
/// Blocks of one class a kthread keeps: at most 64 x (16 + 32 + ... + 1024) = 2 MiB in all.
const KEEP: u32 = 64;

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Whether the program's global allocator is [`Alloc`].
pub fn is_installed() -> bool {
    #[cfg(not(any(fuzzing, sanitizing)))]
    crate::malloc::link();
    drop(core::hint::black_box(Box::new(0u8)));
    INSTALLED.load(Ordering::Relaxed)
}

/// The allocator: `#[global_allocator] static ALLOC: tailwater::Alloc = tailwater::Alloc;`, which
/// [`#[tailwater::main]`](macro@crate::main) writes for you.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     // The attribute installs it. A program that starts its runtime with a `Builder` writes:
///     // #[global_allocator]
///     // static ALLOC: tailwater::Alloc = tailwater::Alloc;
///     assert_eq!(vec![1u8; 100].len(), 100);
/// }
/// ```
#[derive(Debug, Default, Clone, Copy)]
pub struct Alloc;

/// A free block; the first word of the block itself.
struct FreeBlock {
    next: *mut FreeBlock,
}

#[derive(Debug, Clone, Copy)]
struct Class {
    head: *mut FreeBlock,
    len: u32,
}

/// Free small blocks of one kthread. Used with preemption off, by its OS thread only.
#[derive(Debug)]
pub struct BlockCache(UnsafeCell<[Class; CLASSES]>);

impl Default for BlockCache {
    fn default() -> Self {
        Self(UnsafeCell::new([Class { head: core::ptr::null_mut(), len: 0 }; CLASSES]))
    }
}

impl BlockCache {
    /// # Safety
    /// The caller is the kthread that owns the cache, with preemption off.
    #[inline]
    unsafe fn pop(&self, class: usize) -> Option<*mut u8> {
        // SAFETY: by the caller's contract nobody else uses the cache meanwhile.
        let class = unsafe { &mut (*self.0.get())[class] };
        let head = class.head;
        if head.is_null() {
            return None;
        }
        // SAFETY: cached blocks are free and begin with their link.
        class.head = unsafe { (*head).next };
        class.len -= 1;
        Some(head.cast())
    }

    /// # Safety
    /// As [`pop`](Self::pop); `block` is free, at least `GRAIN` bytes long, and of this class.
    #[inline]
    unsafe fn push(&self, class: usize, block: *mut u8) -> bool {
        // SAFETY: as in `pop`.
        let class = unsafe { &mut (*self.0.get())[class] };
        if class.len >= KEEP {
            return false;
        }
        let block = block.cast::<FreeBlock>();
        // SAFETY: the block is free, large and aligned enough for a link.
        unsafe { block.write(FreeBlock { next: class.head }) };
        class.head = block;
        class.len += 1;
        true
    }
}

/// Class of a layout that is cached.
#[inline(always)]
fn class_of(layout: Layout) -> Option<usize> {
    (layout.size() <= LARGEST && layout.align() <= GRAIN && layout.size() > 0)
        .then(|| (layout.size() - 1) / GRAIN)
}

/// The layout really asked of the system: small blocks have the full size of their class.
#[inline(always)]
fn rounded(layout: Layout) -> Layout {
    match class_of(layout) {
        // SAFETY: at most LARGEST bytes and a power-of-two alignment.
        Some(class) => unsafe { Layout::from_size_align_unchecked((class + 1) * GRAIN, GRAIN) },
        None => layout,
    }
}

// SAFETY: blocks come from the system allocator or from a cache of blocks that came from there with the same rounded layout;
// a block is in a cache only while it is free. No call unwinds.
unsafe impl GlobalAlloc for Alloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !kthread::inside() {
            if !INSTALLED.load(Ordering::Relaxed) {
                INSTALLED.store(true, Ordering::Relaxed);
            }
            // SAFETY: the caller's contract, with a layout at least as large.
            return unsafe { System.alloc(rounded(layout)) };
        }
        let guard = NoPreempt::new();
        if let (Some(class), Some(kthread)) = (class_of(layout), guard.kthread()) {
            // SAFETY: the guard's kthread, preemption off.
            if let Some(block) = unsafe { kthread.blocks.pop(class) } {
                return block;
            }
        }
        // SAFETY: as above.
        guard.on_own_fs(|| unsafe { System.alloc(rounded(layout)) })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !kthread::inside() {
            // SAFETY: the caller's contract; the block was allocated with the rounded layout.
            return unsafe { System.dealloc(block, rounded(layout)) };
        }
        let guard = NoPreempt::new();
        if let (Some(class), Some(kthread)) = (class_of(layout), guard.kthread()) {
            // SAFETY: the guard's kthread, preemption off; the block is free by the caller's contract and of its class by
            // the module's invariant.
            if unsafe { kthread.blocks.push(class, block) } {
                return;
            }
        }
        // SAFETY: as above.
        guard.on_own_fs(|| unsafe { System.dealloc(block, rounded(layout)) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if kthread::inside() && class_of(layout).is_some() {
            // SAFETY: the caller's contract; the block has layout.size() bytes.
            unsafe {
                let block = self.alloc(layout);
                if !block.is_null() {
                    block.write_bytes(0, layout.size());
                }
                return block;
            }
        }
        // SAFETY: as in `alloc`.
        NoPreempt::new().on_own_fs(|| unsafe { System.alloc_zeroed(rounded(layout)) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that does not overflow the layout.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (class_of(layout), class_of(new_layout)) {
            (Some(old), Some(new)) if old == new => block,
            // SAFETY: both sides are uncached, so the system allocator knows the block by this layout.
            (None, None) => NoPreempt::new().on_own_fs(|| unsafe { System.realloc(block, layout, new_size) }),
            // SAFETY: the caller's contract; old and new block are distinct and hold the copied bytes.
            _ => unsafe {
                let new = self.alloc(new_layout);
                if !new.is_null() {
                    core::ptr::copy_nonoverlapping(block, new, layout.size().min(new_size));
                    self.dealloc(block, layout);
                }
                new
            },
        }
    }
}
