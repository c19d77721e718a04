//! Stacks of other sizes than the pool's, for threads that chose one.
//!
//! Each is a mapping of its own, otherwise like a slot of a slab, and never unmapped either. Free
//! ones wait in lists by size, behind one lock: to start a thread with a stack size of its own
//! costs a little more.
//!
//! The ending thread may still run on the stack it gives back, so `take` waits until that has been
//! left.

use super::stack::{MAX_STACK, Stack, slot_size};
use crate::ground::guard::NoPreempt;
use crate::ground::memory::{self, StackError};
use crate::ground::spin::SpinLock;
use crate::ground::tls;
use std::collections::BTreeMap;

/// Sizes are rounded up to multiples of this, so that there are few lists.
const STEP: usize = 16 * 1024;

/// Free stacks by slot size.
#[derive(Debug, Default)]
pub struct CustomStacks {
    free: SpinLock<BTreeMap<usize, Vec<Stack>>>,
}

impl CustomStacks {
    /// Returns a free stack of at least `stack_size` usable bytes, its thread-local block as a new
    /// thread expects it.
    ///
    /// # Errors
    /// If the kernel gives no more memory.
    ///
    /// # Panics
    /// If `stack_size` is more than [`MAX_STACK`].
    pub fn take(&self, stack_size: usize, guard: &NoPreempt) -> Result<Stack, StackError> {
        assert!(stack_size <= MAX_STACK, "sizes are checked where they are set");
        let shape = tls::shape().expect("the runtime is running");
        let slot = slot_size(stack_size.next_multiple_of(STEP), shape);
        let used = self.free.lock().get_mut(&slot).and_then(Vec::pop);
        let stack = match used {
            Some(stack) => stack,
            None => {
                let make = || {
                    let low = memory::map(slot)?;
                    // SAFETY: 1. the mapping is new and never given back. 2. Called on the OS
                    // thread's own FS base below.
                    Ok(unsafe { Stack::make(low, slot, shape, true) })
                };
                // SAFETY: 1. `make` uses thread-locals of the allocator and the dynamic linker
                // only. 2. It does not switch.
                unsafe { guard.on_own_fs(make) }?
            }
        };
        stack.uthread().wait_until_left();
        Ok(stack)
    }

    /// Keeps `stack` for the next thread of its size.
    pub fn give(&self, stack: Stack) {
        let slot = stack.slot(tls::shape().expect("the runtime is running"));
        self.free.lock().entry(slot).or_default().push(stack);
    }
}
