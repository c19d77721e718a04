//! The C library's `malloc` and related functions, in user threads: with preemption off, on the
//! kthread's own FS base.
//!
//! Not every block comes through the [global allocator](crate::Alloc). C libraries call `malloc`,
//! and so does `std` where it must not call a program's allocator: `std::thread::current()`
//! allocates the thread's handle from `std::alloc::System`. A user thread that is preempted there
//! holds a heap's lock. Every kthread that allocates would wait for it with preemption off, and no
//! kthread would be left to run the holder. Besides, glibc would make a cache of blocks in each
//! user thread's TLS block and lose it with the thread.
//!
//! So these names are defined here, as glibc lets a program do (its manual, "Replacing malloc"),
//! and call glibc's own functions: blocks come from its heap, and functions that are not replaced
//! (`valloc`, `malloc_usable_size`, ...) know them. On ordinary threads this adds one load.
//!
//! Not compiled with sanitizers, whose own functions must be found under these names.

use super::unpreempted;
use crate::ground::guard::inside;
use core::ffi::{c_int, c_void};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// Runs a function of glibc's heap without preemption and on the kthread's own thread-local
/// storage.
#[inline(always)]
fn guarded<R>(f: impl FnOnce() -> R) -> R {
    if inside() { unpreempted(f) } else { f() }
}

/// Returns `block`. If it is null, sets the caller's `errno`, because glibc may have set the
/// kthread's.
#[inline(always)]
fn checked(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the calling thread's own errno.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    block
}

/// Makes the linker include this module. Otherwise it may find glibc's functions first.
#[inline(never)]
pub fn link() -> usize {
    core::hint::black_box(malloc as *const () as usize)
}

/// # Safety
/// As glibc's, like all below: this one has no precondition.
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
/// `block` is null or a block of this heap. The caller gives it up, unless null is returned for a
/// size other than 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: by the caller's contract.
    let new = guarded(|| unsafe { __libc_realloc(block, size) });
    // A block of size 0 is freed: null is success.
    if size == 0 { new } else { checked(new) }
}

/// # Safety
/// `block` is null or a block of this heap that is not used any more.
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
/// `out` is valid for writing.
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
