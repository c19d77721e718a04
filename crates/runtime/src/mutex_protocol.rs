//! `pthread_mutexattr_setprotocol` of the C library, as the program and all its libraries find it:
//! mutexes have no priority protocol.
//!
//! glibc leaves a contended mutex with priority inheritance to the kernel, which looks for the OS
//! thread with the number in the word. For a user thread's number there is none, and
//! `pthread_mutex_lock` then waits without end. One with a priority ceiling changes the scheduling
//! of its caller by the same number, and is not locked. A user thread has no priority that it could
//! inherit or raise, and all locks of C are made for both kinds of threads. So an attribute keeps
//! the protocol that it has from the start, `PTHREAD_PRIO_NONE`, and says so when it is asked: the
//! mutex excludes, and OS threads inherit no priority among themselves either.
//!
//! | process | inheritance | ceiling |
//! |---|---|---|
//! | a program of this runtime | none | none |
//! | the same, once the waits of the C library are adopted | as asked ([`libc_waits`]) | none |
//! | a program that was not written for this runtime ([`resident`]) | as asked: its threads lock at home, or adopt waits | as asked |
//!
//! A mutex in memory that another process has initialised with a protocol has it.
//!
//! [`libc_waits`]: crate::libc_waits
//! [`resident`]: crate::resident

use crate::config::sources;
use core::ffi::c_int;
use libc::{PTHREAD_PRIO_INHERIT, PTHREAD_PRIO_NONE, PTHREAD_PRIO_PROTECT, pthread_mutexattr_t};
use std::sync::OnceLock;

/// Makes the linker include this module. Otherwise it may find glibc's function first.
#[inline(never)]
pub fn link() -> usize {
    core::hint::black_box(pthread_mutexattr_setprotocol as *const () as usize)
}

fn is_kept(protocol: c_int) -> bool {
    let is_priority = [PTHREAD_PRIO_INHERIT, PTHREAD_PRIO_PROTECT].contains(&protocol);
    !is_priority || sources::keeps_environment() || protocol == PTHREAD_PRIO_INHERIT && waits_are_adopted()
}

fn waits_are_adopted() -> bool {
    #[cfg(feature = "libc-waits")]
    return tailwater_libc_waits::is_active();
    #[cfg(not(feature = "libc-waits"))]
    false
}

/// # Safety
/// As glibc's: `attributes` is initialised, and used by no other thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutexattr_setprotocol(
    attributes: *mut pthread_mutexattr_t,
    protocol: c_int,
) -> c_int {
    type Set = unsafe extern "C" fn(*mut pthread_mutexattr_t, c_int) -> c_int;
    static LIBC: OnceLock<usize> = OnceLock::new();
    if !is_kept(protocol) {
        return 0;
    }
    let libc = *LIBC.get_or_init(|| {
        // SAFETY: a plain look-up.
        unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_mutexattr_setprotocol".as_ptr()) as usize }
    });
    if libc == 0 {
        // There is no function that could change the attribute from `PTHREAD_PRIO_NONE`.
        return match protocol {
            PTHREAD_PRIO_NONE => 0,
            PTHREAD_PRIO_INHERIT | PTHREAD_PRIO_PROTECT => libc::ENOTSUP,
            _ => libc::EINVAL,
        };
    }
    // SAFETY: glibc's function has this type; the arguments are passed through.
    unsafe { core::mem::transmute::<usize, Set>(libc)(attributes, protocol) }
}
