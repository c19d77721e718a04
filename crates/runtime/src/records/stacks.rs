//! The pool of stacks of user threads.
//!
//! Slots are cut from slabs of [`SLAB`], so that a million threads do not need a million mappings
//! (`vm.max_map_count` is 65,530 by default). Each kthread keeps some free stacks without locking
//! ([`StackCache`](super::stack::StackCache)); the others are in a shared list.
//!
//! The upper end lies [`COLOUR`] bytes lower from one slot to the next, by up to a page. Slots
//! begin at page boundaries. If all ended at one too, the lines that each switch touches (the
//! record, the newest frames) would share one of 64 positions in a page, and with it a small part
//! of each cache's sets: a few hundred threads in turn would miss although the caches are mostly
//! empty.

use super::custom_stacks::CustomStacks;
use super::kthread::ThisKthread;
use super::stack::{Stack, slot_size};
use crate::ground::guard::NoPreempt;
use crate::ground::memory::{PAGE, StackError, map};
use crate::ground::spin::SpinLock;
use crate::ground::tls;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Stacks per mapping.
const SLAB: usize = 32;
/// How far apart the upper ends of neighbouring slots lie within their pages: a cache line.
const COLOUR: usize = 64;

/// Stacks of the size fixed at start; those of other sizes are kept in [`custom`](Self::custom).
#[derive(Debug)]
pub struct StackPool {
    slot: usize,
    /// Slots cut so far, which gives each its colour. Relaxed: two of one colour do no harm.
    cut: AtomicUsize,
    free: SpinLock<Vec<Stack>>,
    /// Stacks of threads that asked for another size.
    pub custom: CustomStacks,
}

impl StackPool {
    /// Returns a pool of stacks of at least `stack_size` usable bytes.
    pub fn new(stack_size: usize, shape: &tls::Shape) -> Self {
        Self {
            // One page more, for the colours.
            slot: slot_size(stack_size, shape) + PAGE,
            cut: AtomicUsize::new(0),
            free: SpinLock::default(),
            custom: CustomStacks::default(),
        }
    }

    /// Returns a free stack, its thread-local block as a new thread expects it.
    ///
    /// # Errors
    /// If the kernel gives no more memory.
    pub fn take(&self, guard: &NoPreempt) -> Result<Stack, StackError> {
        match guard.kthread().and_then(|kthread| kthread.private().stacks.pop()) {
            Some(stack) => Ok(stack),
            // SAFETY: 1. `refill` uses thread-locals of the allocator and the dynamic linker only.
            // 2. It does not switch.
            None => unsafe { guard.on_own_fs(|| self.refill(guard)) },
        }
    }

    /// Resets the thread-local block of `stack` and keeps it for the next thread of `kthread`. The
    /// ending thread may still run on it: no other kthread gets it before this one has left it,
    /// since the newest stack never goes to the shared list.
    ///
    /// The block is reset here, where it is in the cache, and not when the next thread is started,
    /// perhaps on another core.
    pub fn give(&self, stack: Stack, kthread: ThisKthread<'_>, guard: &NoPreempt) {
        // SAFETY: the block was made by `Stack::make`, and its thread uses it no more.
        unsafe { tls::shape().expect("the runtime is running").reset(stack.uthread().fs()) };
        if stack.uthread().custom {
            // SAFETY: as in `take`.
            return unsafe { guard.on_own_fs(|| self.custom.give(stack)) };
        }
        let cache = &kthread.private().stacks;
        if let Err(stack) = cache.push(stack) {
            // SAFETY: as in `take`.
            unsafe { guard.on_own_fs(|| cache.spill(stack, &mut self.free.lock())) };
        }
    }

    fn refill(&self, guard: &NoPreempt) -> Result<Stack, StackError> {
        let mut free = self.free.lock();
        if free.is_empty() {
            self.map_slab(&mut free)?;
        }
        let stack = free.pop().expect("a slab holds stacks");
        if let Some(kthread) = guard.kthread() {
            kthread.private().stacks.fill(&mut free);
        }
        Ok(stack)
    }

    fn map_slab(&self, free: &mut Vec<Stack>) -> Result<(), StackError> {
        let base = map(self.slot * SLAB)?;
        let shape = tls::shape().expect("the runtime is running");
        for number in 0..SLAB {
            let used = self.slot - self.cut.fetch_add(1, Relaxed) * COLOUR % PAGE;
            // SAFETY: 1. the slot lies in the mapping just made, which is zeroed. 2. `take` calls
            // `refill` that way.
            free.push(unsafe { Stack::make(base.add(number * self.slot), used, shape, false) });
        }
        Ok(())
    }
}
