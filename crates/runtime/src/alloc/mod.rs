//! The global allocator of a Tailwater program.
//!
//! A thread-caching allocator must not be preempted inside a call: the next user thread on the core
//! would find its locks held and its caches half-changed. Nor may it see a user thread's FS base:
//! it would build a heap per user thread. [`Alloc`] therefore runs the allocator beneath it, the
//! system's or another, with preemption off on the kthread's own FS base. That costs two FS writes,
//! so small blocks come from a [per-kthread cache](crate::ground::blocks) first, which needs
//! neither.
//!
//! On ordinary threads it is the allocator beneath plus one load. Memory that does not come through
//! a program's global allocator is guarded by [`malloc`].
//!
//! # Invariant
//! Every small block, whichever thread allocates it, has the full size of its class, so any kthread
//! may cache any freed block. A program has one global allocator, so all blocks come from the same
//! allocator beneath.

#[cfg(not(any(fuzzing, sanitizing)))]
mod malloc;

use crate::ground::blocks::SizeClass;
use crate::ground::guard::NoPreempt;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::alloc::System;

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Returns whether the program's global allocator is [`Alloc`].
pub fn is_installed() -> bool {
    #[cfg(not(any(fuzzing, sanitizing)))]
    malloc::link();
    drop(core::hint::black_box(Box::new(0u8)));
    INSTALLED.load(Ordering::Relaxed)
}

/// The global allocator of a Tailwater program: a guard around another allocator, the system's
/// unless chosen otherwise. [`#[tailwater::main]`](macro@crate::main) declares it, and
/// [`allocator!`](crate::allocator) in programs without that attribute.
///
/// # Examples
/// Another allocator beneath, where jemalloc or mimalloc would be `Zeroing`:
/// ```standalone_crate
/// use std::alloc::{GlobalAlloc, Layout, System};
///
/// struct Zeroing;
///
/// // SAFETY: the system allocator's blocks, which stay what they are.
/// unsafe impl GlobalAlloc for Zeroing {
///     unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
///         unsafe { System.alloc_zeroed(layout) }
///     }
///     unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
///         unsafe { System.dealloc(block, layout) }
///     }
/// }
///
/// // SAFETY: it calls nothing of Tailwater, and its thread-locals have no destructors.
/// #[global_allocator]
/// static ALLOC: tailwater::Alloc<Zeroing> = unsafe { tailwater::Alloc::over(Zeroing) };
///
/// #[tailwater::main(allocator = ALLOC)]
/// fn main() {
///     assert_eq!(vec![1u8; 100].len(), 100);
/// }
/// ```
#[derive(Debug, Default, Clone, Copy)]
pub struct Alloc<A = System> {
    beneath: A,
}

/// Makes [`Alloc`] around the system's allocator the program's global allocator.
///
/// A program has it once: as `#[tailwater::main]`, as this line, or, for another allocator beneath,
/// as a static of its own (see [`Alloc`]). Without it a runtime does not start.
///
/// # Examples
/// A program that starts its runtime by a [`RuntimeBuilder`](crate::RuntimeBuilder):
/// ```standalone_crate
/// tailwater::allocator!();
///
/// fn main() -> Result<(), tailwater::StartError> {
///     let sum = tailwater::RuntimeBuilder::new().run(|| vec![1u8; 100].len())?;
///     assert_eq!(sum, 100);
///     Ok(())
/// }
/// ```
#[macro_export]
macro_rules! allocator {
    () => {
        #[global_allocator]
        static __TAILWATER_ALLOC: $crate::Alloc = $crate::Alloc::new();
    };
}

impl Alloc {
    /// Returns the guard around the system's allocator.
    pub const fn new() -> Self {
        Self { beneath: System }
    }
}

impl<A: GlobalAlloc> Alloc<A> {
    /// Returns the guard around `allocator`, which runs on a user thread's stack with the
    /// thread-locals of the OS thread beneath, and is not preempted. Blocks of up to 1 KiB are kept
    /// in a cache of each kthread and returned to it late.
    ///
    /// # Safety
    /// `allocator` calls no function of this crate. What it keeps in thread-locals is valid for all
    /// code that runs on that OS thread.
    pub const unsafe fn over(allocator: A) -> Self {
        Self { beneath: allocator }
    }
}

/// Returns the layout requested from the allocator beneath: small blocks have the full size of
/// their class.
#[inline(always)]
fn rounded(layout: Layout) -> Layout {
    SizeClass::of(layout).map_or(layout, SizeClass::layout)
}

/// Runs a function of an allocator without preemption and on the OS thread's own thread-local
/// storage.
#[inline(always)]
fn unpreempted<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: 1. an allocator keeps nothing of a user thread's in thread-locals. 2. It does not
    // switch. The system's does neither; for another, the program vouches with `Alloc::over`.
    unsafe { NoPreempt::new().on_own_fs(f) }
}

/// Returns a free block of `class` from the cache of the calling kthread.
#[inline(always)]
fn take_cached(class: SizeClass) -> Option<*mut u8> {
    NoPreempt::new().kthread()?.private().blocks.pop(class)
}

/// Puts a block into the cache of the calling kthread; returns false if the cache is full or the
/// caller has none.
///
/// # Safety
/// `block` is free, not null, and of `class`.
#[inline(always)]
unsafe fn put_cached(class: SizeClass, block: *mut u8) -> bool {
    let guard = NoPreempt::new();
    // SAFETY: by the caller's contract.
    guard
        .kthread()
        .is_some_and(|kthread| unsafe { kthread.private().blocks.push(class, NonNull::new_unchecked(block)) })
}

impl<A: GlobalAlloc> Alloc<A> {
    /// Allocates from the allocator beneath. Out of line, so that a block from the cache costs no
    /// saved registers.
    ///
    /// # Safety
    /// `layout` is not empty.
    #[inline(never)]
    unsafe fn allocate(&self, layout: Layout) -> *mut u8 {
        if !INSTALLED.load(Ordering::Relaxed) {
            INSTALLED.store(true, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract, with a layout at least as large.
        unpreempted(|| unsafe { self.beneath.alloc(rounded(layout)) })
    }

    /// Returns a block to the allocator beneath. Out of line as [`allocate`](Self::allocate).
    ///
    /// # Safety
    /// `block` was allocated here with `layout` and is free.
    #[inline(never)]
    unsafe fn deallocate(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract; the block was allocated with the rounded layout.
        unpreempted(|| unsafe { self.beneath.dealloc(block, rounded(layout)) });
    }
}

// `alloc` and `alloc_zeroed` are never inlined, which keeps `__rust_alloc` and
// `__rust_alloc_zeroed` alike: two short functions, of which thin LTO inlines both or neither. With
// `__rust_alloc_zeroed` inlined and removed and `__rust_alloc` left as a call, LLVM 22 replaces an
// allocation and the `memset` after it by a call of the function it has removed, and crashes. CI
// builds tests/outside to show that it does not.
//
// SAFETY: blocks come from the allocator beneath, or from a cache of blocks that came from there
// with the same rounded layout; a block is in a cache only while it is free. No call unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Alloc<A> {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(block) = SizeClass::of(layout).and_then(take_cached) {
            return block;
        }
        // SAFETY: the caller's contract.
        unsafe { self.allocate(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is free and not null by the caller's contract, and of its class by the
        // module's invariant.
        if SizeClass::of(layout).is_some_and(|class| unsafe { put_cached(class, block) }) {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe { self.deallocate(block, layout) };
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(block) = SizeClass::of(layout).and_then(take_cached) {
            // SAFETY: a block of the class has layout.size() bytes.
            unsafe { block.write_bytes(0, layout.size()) };
            return block;
        }
        // SAFETY: the caller's contract, with a layout at least as large.
        unpreempted(|| unsafe { self.beneath.alloc_zeroed(rounded(layout)) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that does not overflow the layout.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (SizeClass::of(layout), SizeClass::of(new_layout)) {
            (Some(old), Some(new)) if old == new => block,
            (None, None) => {
                // SAFETY: both sizes are uncached, so the allocator beneath knows the block by this
                // layout.
                unpreempted(|| unsafe { self.beneath.realloc(block, layout, new_size) })
            }
            // SAFETY: the caller's contract; old and new block are distinct and hold the copied
            // bytes.
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
