//! Stacks of other sizes than the pool's, for threads that asked for one.
//!
//! Each is a mapping of its own, otherwise like a slot of a slab, and never unmapped either. Free ones wait in lists by size, behind
//! one lock: who chooses a stack size pays a little more to start a thread.
//!
//! The thread that ends may still be standing on the stack it gives back, so whoever takes one waits until it has been left.

use crate::kthread::NoPreempt;
use crate::stack::{self, Stack, StackError};
use crate::sync::spin::SpinLock;
use crate::tls;
use std::collections::BTreeMap;

/// Sizes are rounded up to multiples of this, so that the lists stay few.
const STEP: usize = 16 * 1024;
/// Largest stack: a thousandth of the address space.
pub const MAX_STACK: usize = 1 << 37;

/// Free stacks by slot size.
#[derive(Debug, Default)]
pub struct CustomStacks {
    free: SpinLock<BTreeMap<usize, Vec<Stack>>>,
}

impl CustomStacks {
    /// A free stack of at least `stack_size` usable bytes, its thread-local block as a new thread expects it.
    ///
    /// # Errors
    /// When the kernel gives no more memory.
    ///
    /// # Panics
    /// If `stack_size` is more than [`MAX_STACK`].
    pub fn take(&self, stack_size: usize, guard: &NoPreempt) -> Result<Stack, StackError> {
        assert!(stack_size <= MAX_STACK, "sizes are checked where they are set");
        let shape = tls::shape().expect("the runtime is running");
        let slot = stack::slot_size(stack_size.next_multiple_of(STEP), shape);
        let used = self.free.lock().get_mut(&slot).and_then(Vec::pop);
        let stack = match used {
            Some(stack) => stack,
            None => guard.on_own_fs(|| {
                let low = stack::map(slot)?;
                // SAFETY: the mapping is fresh and never given back; this runs on the kthread's own FS base.
                Ok(unsafe { stack::make_stack(low, slot, shape, true) })
            })?,
        };
        stack.uthread().wait_until_left();
        Ok(stack)
    }

    /// Keeps `stack` for the next thread of its size.
    pub fn give(&self, stack: Stack) {
        let shape = tls::shape().expect("the runtime is running");
        let record = stack.uthread();
        // The record lies right above the stack proper, where `make_stack` put it for this slot size.
        let end =
            (record.top() as usize + size_of_val(record) + shape.block_size()).next_multiple_of(stack::PAGE);
        let slot = end - (record.limit - stack::PAGE);
        self.free.lock().entry(slot).or_default().push(stack);
    }
}
