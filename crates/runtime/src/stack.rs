//! Stacks of user threads and the cache that recycles them.
//!
//! A stack is one mapping slot: a guard page, the stack proper, the [`Uthread`] record, and the thread-local block at the upper
//! end. Slots are cut from slabs of [`SLAB`] so that a million threads do not need a million mappings (`vm.max_map_count`
//! is 65,530 by default). Memory is committed by use. A slot is never unmapped: a `Uthread` address stays that of a `Uthread`
//! for the life of the process, which is what lets a late wake-up look at one safely.
//!
//! The upper end lies [`COLOUR`] bytes lower from one slot to the next, by up to a page: slots begin at page boundaries, and if all ended
//! at one too, the lines that each switch touches (the record, the newest frames) would share one of 64 positions in a page and with it a
//! small part of each cache's sets, so that a few hundred threads in turn would miss although the caches are mostly empty.
//!
//! Each kthread keeps up to [`CACHE`] free stacks without locking; the rest go to a shared list.

use crate::custom_stacks::CustomStacks;
use crate::kthread::{Kthread, NoPreempt};
use crate::registry;
use crate::sync::spin::SpinLock;
use crate::tls;
use crate::uthread::Uthread;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Stacks per mapping.
const SLAB: usize = 32;
/// Free stacks a kthread keeps for itself.
const CACHE: usize = 64;
/// Size of a guard page.
pub(crate) const PAGE: usize = 4096;
/// How far apart the upper ends of neighbouring slots lie within their pages: a cache line.
const COLOUR: usize = 64;
/// `MADV_GUARD_INSTALL` (Linux 6.13): a guard page without splitting the mapping.
const MADV_GUARD_INSTALL: i32 = 102;

/// A stack without a thread. Plain pointer semantics: dropping it leaks the slot.
#[derive(Debug)]
pub struct Stack(&'static Uthread);

// SAFETY: a free stack is exclusively owned memory.
unsafe impl Send for Stack {}

impl Stack {
    /// The thread record of this stack.
    pub fn uthread(&self) -> &'static Uthread {
        self.0
    }

    /// Takes back the stack of a thread that has ended.
    ///
    /// # Safety
    /// Nothing runs on the stack, or only the caller, which is about to leave it for good with preemption off.
    pub unsafe fn reclaim(uthread: &'static Uthread) -> Self {
        Self(uthread)
    }
}

/// Why no stack could be made.
///
/// # Examples
/// ```
/// // What `thread::Builder::spawn` returns contains one when there is no memory for the stack.
/// fn is_out_of_stacks(error: &std::io::Error) -> bool {
///     error.get_ref().is_some_and(|inner| inner.is::<tailwater::StackError>())
/// }
/// assert!(!is_out_of_stacks(&std::io::ErrorKind::OutOfMemory.into()));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes of stacks: {source}; lower the stack size or raise the memory limit")]
pub struct StackError {
    /// What was asked of the kernel.
    pub(crate) bytes: usize,
    /// Its answer.
    pub(crate) source: std::io::Error,
}

/// Free stacks of one kthread. Touched with preemption off, by its kthread only.
#[derive(Debug, Default)]
pub struct StackCache(UnsafeCell<Vec<Stack>>);

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

/// Bytes of a slot with `stack_size` usable bytes.
pub(crate) fn slot_size(stack_size: usize, shape: &tls::Shape) -> usize {
    (stack_size + PAGE + size_of::<Uthread>() + shape.block_size()).next_multiple_of(PAGE)
}

/// Makes a stack of the `slot` zeroed bytes at `low`, a multiple of a cache line.
///
/// # Safety
/// 1. The slot is page-aligned, and the caller's for good.
/// 2. Runs on the kthread's own FS base with preemption off (`on_own_fs`).
pub(crate) unsafe fn make_stack(low: *mut u8, slot: usize, shape: &tls::Shape, custom: bool) -> Stack {
    // SAFETY: the record and the block lie in the slot, which is ours by point 1; point 2 is the contract of `make`.
    unsafe {
        guard_page(low);
        let end = low.add(slot);
        let fs = shape.make(end);
        let record = (end as usize - shape.block_size() - size_of::<Uthread>()) & !63;
        let record = record as *mut Uthread;
        let mut uthread = Uthread::new(low.add(PAGE) as usize, fs);
        uthread.custom = custom;
        record.write(uthread);
        registry::add(&*record);
        Stack(&*record)
    }
}

impl StackPool {
    /// A pool of stacks of at least `stack_size` usable bytes.
    pub fn new(stack_size: usize, shape: &tls::Shape) -> Self {
        Self {
            // One page more, for the colours.
            slot: slot_size(stack_size, shape) + PAGE,
            cut: AtomicUsize::new(0),
            free: SpinLock::default(),
            custom: CustomStacks::default(),
        }
    }

    /// A free stack, its thread-local block as a new thread expects it.
    ///
    /// # Errors
    /// When the kernel gives no more memory.
    pub fn take(&self, guard: &NoPreempt) -> Result<Stack, StackError> {
        let cached = guard.kthread().and_then(|k| {
            // SAFETY: the cache is the guard's kthread's; preemption is off; the borrow ends in this statement.
            unsafe { (*k.stacks.0.get()).pop() }
        });
        match cached {
            Some(stack) => Ok(stack),
            None => guard.on_own_fs(|| self.refill(guard)),
        }
    }

    /// Resets the thread-local block of `stack` and keeps it for the next thread of `kthread`. The thread that ends may still be
    /// standing on it: nobody else gets it before the kthread has left it, since the newest stack never goes to the shared list.
    ///
    /// The block is reset here, where it is in the cache, and not when the next thread is started, which may be on another core.
    pub fn give(&self, stack: Stack, kthread: &Kthread, guard: &NoPreempt) {
        // SAFETY: the block was made by `make_stack`, and its thread uses it no more.
        unsafe { tls::shape().expect("the runtime is running").reset(stack.0.fs) };
        if stack.0.custom {
            return guard.on_own_fs(|| self.custom.give(stack));
        }
        // SAFETY: as in `take`.
        let cache = unsafe { &mut *kthread.stacks.0.get() };
        if cache.len() < CACHE && cache.capacity() >= CACHE {
            cache.push(stack);
            return;
        }
        guard.on_own_fs(|| {
            cache.reserve(CACHE);
            let mut free = self.free.lock();
            free.extend(cache.drain(..cache.len().min(CACHE / 2)));
            cache.push(stack);
        });
    }

    fn refill(&self, guard: &NoPreempt) -> Result<Stack, StackError> {
        let mut free = self.free.lock();
        if free.is_empty() {
            self.map_slab(&mut free)?;
        }
        let stack = free.pop().expect("a slab holds stacks");
        if let Some(kthread) = guard.kthread() {
            // SAFETY: as in `take`.
            let cache = unsafe { &mut *kthread.stacks.0.get() };
            cache.reserve(CACHE);
            let from = free.len() - free.len().min(CACHE / 2);
            cache.extend(free.drain(from..));
        }
        Ok(stack)
    }

    fn map_slab(&self, free: &mut Vec<Stack>) -> Result<(), StackError> {
        let base = map(self.slot * SLAB)?;
        let shape = tls::shape().expect("the runtime is running");
        for number in 0..SLAB {
            let used = self.slot - self.cut.fetch_add(1, Relaxed) * COLOUR % PAGE;
            // SAFETY: the slot lies in the mapping just made, zeroed and ours for good; this runs on the kthread's own
            // FS base with preemption off (`on_own_fs`).
            free.push(unsafe { make_stack(base.add(number * self.slot), used, shape, false) });
        }
        Ok(())
    }
}

/// Fresh zeroed memory, committed by use.
pub(crate) fn map(bytes: usize) -> Result<*mut u8, StackError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a fresh anonymous mapping aliases nothing.
    let base =
        unsafe { libc::mmap(core::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(StackError { bytes, source: std::io::Error::last_os_error() });
    }
    Ok(base.cast())
}

/// Makes the page at `low` fault. A kernel that can do neither leaves an unguarded stack, as a plain thread would have none.
///
/// # Safety
/// The page belongs to a mapping of the caller and holds nothing.
unsafe fn guard_page(low: *mut u8) {
    // SAFETY: by the caller's contract.
    unsafe {
        if libc::madvise(low.cast(), PAGE, MADV_GUARD_INSTALL) != 0 {
            libc::mprotect(low.cast(), PAGE, libc::PROT_NONE);
        }
    }
}
