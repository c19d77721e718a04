//! The one system call for which no crate has a function.
//!
//! Owns the I/O priority of the calling thread (ioprio_set(2)).

use std::io;

/// Class of threads that use a disk only when no other thread does (ioprio_set(2), "I/O
/// priorities"; `IOPRIO_CLASS_SHIFT` is 13).
const IDLE: i32 = 3 << 13;
/// `IOPRIO_WHO_PROCESS`: the number is that of a thread.
const THREAD: i32 = 1;

/// Gives a thread (0: the calling one) idle I/O priority, which its children inherit.
///
/// # Errors
/// Linux's.
pub(crate) fn set_idle_io(tid: i32) -> io::Result<()> {
    // SAFETY: ioprio_set(2) takes three numbers and touches no memory.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, THREAD, tid, IDLE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
