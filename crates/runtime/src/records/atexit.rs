//! Registration of thread-local destructors: the function that the standard libraries of Rust and
//! C++ call (Itanium C++ ABI, 3.3.5).
//!
//! Defined here so that a user thread's destructors go to the user thread: glibc's own function
//! would allocate from the wrong heap on a user thread's FS base.
//!
//! A library in a program that was not written for the runtime keeps the destructors of ordinary
//! threads here, too ([`keep_all`]): glibc's function allocates by the program's `malloc`, and one
//! that has an arena for each thread which calls it (jemalloc) would have further ones for the
//! runtime's threads. An idle redis, which reads the statistics of all arenas ten times a second,
//! had seven arenas in place of one.

use super::kthread;
use crate::ground::arch;
use crate::ground::tls::{Destructor, Destructors};
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use std::sync::OnceLock;

thread_local! {
    /// Destructors of an ordinary thread, after [`keep_all`]. Has none itself.
    static OWN: ManuallyDrop<Destructors> = const { ManuallyDrop::new(Destructors::new()) };
}

/// The key (pthread_key_create(3)) at whose end a thread's `OWN` are run; none before [`keep_all`].
static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// Keeps the destructors of ordinary threads here from now on: see the module documentation. Those
/// of the main thread are not run. Without a free key, all stays as it was.
pub fn keep_all() {
    let mut key = 0;
    // SAFETY: room for a key; the function lives as long as the process.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(run_own)) } == 0 {
        KEY.get_or_init(|| key);
    }
}

unsafe extern "C" fn run_own(_: *mut c_void) {
    // SAFETY: 1. the list is the calling thread's. 2. That ends.
    OWN.with(|own| unsafe { own.run() });
}

/// Registers `destructor` for `object`. On ordinary threads, and where user threads have no block
/// of their own, calls glibc's, unless they [are kept here](keep_all).
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
    if let Some(&key) = KEY.get() {
        // SAFETY: 1. the list is the calling thread's. 2. By the caller's contract. The key exists,
        // and its value only has to be another one than null.
        return unsafe {
            OWN.with(|own| own.push(destructor, object));
            libc::pthread_setspecific(key, core::ptr::dangling())
        };
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
