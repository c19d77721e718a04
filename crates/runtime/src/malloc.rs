//! The C library's `malloc` and its kin, in user threads: with preemption off, on the kthread's own FS base.
//!
//! Not every block comes through the [global allocator](crate::Alloc): C libraries call `malloc`, and so does `std` where it must
//! not call a program's allocator (`std::thread::current()` allocates the thread's handle from `std::alloc::System`). A user thread that is preempted
//! in there holds a heap's lock, for which every kthread that allocates would wait with preemption off: nobody would be left to run
//! the holder. Besides, glibc would make a cache of blocks in each user thread's TLS block and lose it with the thread.
//!
//! So these names are defined here, as glibc lets a program do (its manual, "Replacing malloc"), and do glibc's own work: blocks come from its
//! heap, and functions that are not replaced (`valloc`, `malloc_usable_size`, ...) know them. On ordinary threads one load is added.
//!
//! Not compiled for sanitizers, whose own functions have to be found under these names.

use crate::kthread::{NoPreempt, inside};
use core::ffi::{c_int, c_void};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// Runs a function of glibc's heap where it can be neither preempted nor see a user thread's thread-locals.
#[inline(always)]
fn guarded<R>(f: impl FnOnce() -> R) -> R {
    if inside() { NoPreempt::new().on_own_fs(f) } else { f() }
}

/// What glibc returned; sets the caller's `errno`, since glibc may have set the kthread's.
#[inline(always)]
fn checked(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    block
}

/// Has the linker take this module in: otherwise it may find glibc's functions first.
#[inline(never)]
pub fn link() -> usize {
    core::hint::black_box(malloc as *const () as usize)
}

/// # Safety
/// None: as glibc's, like all below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    checked(guarded(|| unsafe { __libc_malloc(size) }))
}

/// # Safety
/// As [`malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: any numbers are allowed.
    checked(guarded(|| unsafe { __libc_calloc(count, size) }))
}

/// # Safety
/// `block` is null or a block of this heap, which the caller gives up, unless null is returned for a size other than 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: by the caller's contract.
    let new = guarded(|| unsafe { __libc_realloc(block, size) });
    // A block of size 0 is freed: null says that it worked.
    if size == 0 { new } else { checked(new) }
}

/// # Safety
/// `block` is null or a block of this heap that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: by the caller's contract.
    guarded(|| unsafe { __libc_free(block) });
}

/// # Safety
/// As [`malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: any numbers are allowed.
    checked(guarded(|| unsafe { __libc_memalign(align, size) }))
}

/// # Safety
/// As [`malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: any numbers are allowed.
    unsafe { memalign(align, size) }
}

/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // POSIX: a power of two multiple of the size of a pointer.
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    // SAFETY: any numbers are allowed.
    let block = guarded(|| unsafe { __libc_memalign(align, size) });
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: by the caller's contract.
    unsafe { out.write(block) };
    0
}
