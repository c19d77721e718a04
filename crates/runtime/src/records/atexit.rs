//! Registration of thread-local destructors: the function that the standard libraries of Rust and
//! C++ call (Itanium C++ ABI, 3.3.5).
//!
//! Defined here so that a user thread's destructors go to the user thread: glibc's own function
//! would allocate from the wrong heap on a user thread's FS base.

use super::kthread;
use crate::ground::arch;
use crate::ground::tls::Destructor;
use core::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// Registers `destructor` for `object`. On ordinary threads, and where user threads have no block
/// of their own, calls glibc's.
///
/// # Safety
/// As glibc's: `destructor(object)` may be called once when the thread ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cxa_thread_atexit_impl(
    destructor: Destructor,
    object: *mut c_void,
    dso: *mut c_void,
) -> c_int {
    type Register = unsafe extern "C" fn(Destructor, *mut c_void, *mut c_void) -> c_int;
    static LIBC: OnceLock<usize> = OnceLock::new();
    if let Some(uthread) =
        kthread::current_uthread().filter(|uthread| !uthread.resident && !arch::shares_tls())
    {
        // SAFETY: 1. it is the list of the running user thread. 2. By the caller's contract.
        unsafe { uthread.destructors.push(destructor, object) };
        return 0;
    }
    let libc = *LIBC.get_or_init(|| {
        // SAFETY: a plain look-up.
        unsafe { libc::dlsym(libc::RTLD_NEXT, c"__cxa_thread_atexit_impl".as_ptr()) as usize }
    });
    if libc == 0 {
        return -1;
    }
    // SAFETY: glibc's function has this type; the arguments are passed through.
    unsafe { core::mem::transmute::<usize, Register>(libc)(destructor, object, dso) }
}
