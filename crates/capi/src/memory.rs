//! The C library's `malloc` family and registration of destructors, as the runtime guards them, for
//! `libtailwater-malloc` (`c/malloc.c`).
//!
//! The calls below of `libc::malloc` and of the others reach the runtime's definitions, which are
//! in the same archive: there they run with preemption off and on the kthread's own thread-local
//! storage.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

/// True since `tw_malloc` was called.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Returns whether the program's `malloc` is the runtime's: directly in a program that is linked
/// with the archive, or through `libtailwater-malloc`.
pub(crate) fn is_guarded() -> bool {
    type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
    // SAFETY: a plain look-up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    if found.is_null() || core::ptr::eq(found, libc::malloc as *const c_void) {
        return true;
    }
    CALLED.store(false, Ordering::Relaxed);
    // SAFETY: the C library's name has this type; the block is freed by the function of the same
    // family.
    unsafe {
        let block = core::mem::transmute::<*mut c_void, Malloc>(found)(1);
        let free = libc::dlsym(libc::RTLD_DEFAULT, c"free".as_ptr());
        core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free)(block);
    }
    CALLED.load(Ordering::Relaxed)
}

/// As `malloc` of the C library, from whose heap the block comes; may be called on user threads.
/// Programs call `malloc`, which is this function in libtailwater-malloc. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_malloc(size: usize) -> *mut c_void {
    if !CALLED.load(Ordering::Relaxed) {
        CALLED.store(true, Ordering::Relaxed);
    }
    // SAFETY: any size is allowed.
    unsafe { libc::malloc(size) }
}

/// As `calloc`: see `tw_malloc`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: any numbers are allowed.
    unsafe { libc::calloc(count, size) }
}

/// As `realloc`: see `tw_malloc`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: by C's contract.
    unsafe { libc::realloc(block, size) }
}

/// As `free`: see `tw_malloc`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_free(block: *mut c_void) {
    // SAFETY: by C's contract.
    unsafe { libc::free(block) }
}

/// As `aligned_alloc`: see `tw_malloc`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: any numbers are allowed.
    unsafe { libc::memalign(align, size) }
}

/// As `posix_memalign`: see `tw_malloc`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: by C's contract.
    unsafe { libc::posix_memalign(out, align, size) }
}

/// Registers `destructor(object)` for the end of the calling thread, as `__cxa_thread_atexit_impl`,
/// which is this function in libtailwater-malloc. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_thread_atexit(
    destructor: unsafe extern "C" fn(object: *mut c_void),
    object: *mut c_void,
    dso: *mut c_void,
) -> c_int {
    unsafe extern "C" {
        // The runtime's, as `malloc`.
        fn __cxa_thread_atexit_impl(
            destructor: unsafe extern "C" fn(object: *mut c_void),
            object: *mut c_void,
            dso: *mut c_void,
        ) -> c_int;
    }
    // SAFETY: by C's contract.
    unsafe { __cxa_thread_atexit_impl(destructor, object, dso) }
}
