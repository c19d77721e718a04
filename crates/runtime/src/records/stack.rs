//! One stack: how it is laid out and made, and a kthread's cache of free ones.
//!
//! A stack is one slot of a mapping: a guard page, the stack proper, the [`Uthread`] record, and
//! the thread-local block at the upper end. Memory is committed by use. A slot is never unmapped:
//! the address of a `Uthread` stays one for the life of the process, so a late wake-up can safely
//! look at it.

use super::registry;
use super::uthread::{Uthread, prefetch_record};
use crate::ground::memory::{PAGE, guard_page};
use crate::ground::tls;
use core::cell::UnsafeCell;

/// Smallest stack. Two frames of the preempt signal with AVX-512 state take 7 KiB of it (see
/// [`preempt`](crate::verbs::preempt)), and what their handlers call some more.
pub const MIN_STACK: usize = 16 * 1024;
/// Largest stack: a thousandth of the address space.
pub const MAX_STACK: usize = 1 << 37;
/// Free stacks that a kthread keeps to itself.
const CACHE: usize = 64;

/// A stack without a thread. Dropping it leaks the slot.
#[derive(Debug)]
pub struct Stack(&'static Uthread);

impl Stack {
    /// Makes a stack of the `slot` zeroed bytes at `low`, a multiple of a cache line.
    ///
    /// # Safety
    /// 1. The slot is page-aligned and the caller's permanently.
    /// 2. Runs on the OS thread's own FS base with preemption off.
    pub unsafe fn make(low: *mut u8, slot: usize, shape: &tls::Shape, custom: bool) -> Self {
        // SAFETY: the guard page, the record and the block lie in the slot, which is the caller's
        // by point 1; point 2 is the contract of `Shape::make`.
        unsafe {
            guard_page(low);
            let end = low.add(slot);
            let fs = shape.make(end);
            let record = (end as usize - shape.block_size() - size_of::<Uthread>()) & !63;
            let record = record as *mut Uthread;
            record.write(Uthread::new(low.add(PAGE) as usize, fs, custom));
            registry::add(&*record);
            Self(&*record)
        }
    }

    /// Takes back the stack of a thread that has ended.
    ///
    /// # Safety
    /// Only the caller runs on the stack, and it leaves for good before preemption is on again.
    pub unsafe fn reclaim(uthread: &'static Uthread) -> Self {
        Self(uthread)
    }

    /// Returns the thread record of this stack.
    pub fn uthread(&self) -> &'static Uthread {
        self.0
    }

    /// Returns the bytes of the slot, from the guard page to the end of the thread-local block.
    pub fn slot(&self, shape: &tls::Shape) -> usize {
        // The record lies right above the stack proper, where `make` put it.
        let end = self.0.top() as usize + size_of::<Uthread>() + shape.block_size();
        end.next_multiple_of(PAGE) - (self.0.limit - PAGE)
    }
}

/// Returns the bytes of a slot with `stack_size` usable bytes.
pub fn slot_size(stack_size: usize, shape: &tls::Shape) -> usize {
    (stack_size + PAGE + size_of::<Uthread>() + shape.block_size()).next_multiple_of(PAGE)
}

/// Free stacks of one kthread, newest last. Not `Sync`: its OS thread uses it.
#[derive(Debug, Default)]
pub struct StackCache(UnsafeCell<Vec<Stack>>);

impl StackCache {
    /// Runs `f` on the stacks.
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut Vec<Stack>) -> R) -> R {
        // SAFETY: not `Sync`, and no `f` below calls into this type again: the allocator does not
        // use stacks.
        f(unsafe { &mut *self.0.get() })
    }

    /// Takes the newest stack, and has the processor fetch the next one: a thread that starts many
    /// finds each in the cache.
    #[inline]
    pub fn pop(&self) -> Option<Stack> {
        self.with(|stacks| {
            let stack = stacks.pop();
            if let Some(next) = stacks.last() {
                prefetch_record(next.0);
            }
            stack
        })
    }

    /// Keeps `stack` if there is room without allocating, else returns it.
    #[inline]
    pub fn push(&self, stack: Stack) -> Result<(), Stack> {
        self.with(|stacks| {
            if stacks.len() >= CACHE || stacks.capacity() < CACHE {
                return Err(stack);
            }
            stacks.push(stack);
            Ok(())
        })
    }

    /// Keeps `stack`, and moves older ones to `shared` to make room.
    pub fn spill(&self, stack: Stack, shared: &mut Vec<Stack>) {
        self.with(|stacks| {
            stacks.reserve(CACHE);
            shared.extend(stacks.drain(..stacks.len().min(CACHE / 2)));
            stacks.push(stack);
        });
    }

    /// Moves stacks from `shared` to this cache, which is empty.
    pub fn fill(&self, shared: &mut Vec<Stack>) {
        self.with(|stacks| {
            stacks.reserve(CACHE);
            let from = shared.len() - shared.len().min(CACHE / 2);
            stacks.extend(shared.drain(from..));
        });
    }
}
