//! Signals of the calling OS thread, by system call: the C library hides its own from its
//! functions.
//!
//! Owns sets of signals as the kernel has them, one bit each, and what a signal does.

use super::{Interrupted, RING};
use core::mem::MaybeUninit;
use std::time::Duration;

/// Signals that mean an error of the running code, which the kernel sends to the thread itself.
pub const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS)
    | bit(libc::SIGABRT);

/// Returns the set of one signal.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The C library's signal of `pthread_cancel` (nptl(7)).
const CANCEL: i32 = 32;

/// What a signal does that is not ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Default,
    Handler { restarts: bool },
}

/// Returns what a signal does; `None` if it is ignored.
pub fn disposition(signal: i32) -> Option<Disposition> {
    let mut action = MaybeUninit::<[usize; 4]>::zeroed();
    let none = core::ptr::null::<u8>();
    // SAFETY: the kernel writes a sigaction of its own layout, four words of which the first is the
    // handler and the second has the flags (arch/x86/include/uapi/asm/signal.h). The C library
    // refuses its internal signals.
    let [handler, flags, ..] = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, none, action.as_mut_ptr(), size_of::<u64>());
        action.assume_init()
    };
    let quiet = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH].contains(&signal);
    match handler {
        libc::SIG_IGN => None,
        libc::SIG_DFL if quiet => None,
        libc::SIG_DFL => Some(Disposition::Default),
        // A cancelled wait returns to the C library, which ends the thread there: glibc 2.41 does
        // not while it is in another library's code.
        _ => {
            let restarts = flags & libc::SA_RESTART as usize != 0 && signal != CANCEL;
            Some(Disposition::Handler { restarts })
        }
    }
}

/// Takes a pending signal of `set`, or waits for one; `None` if `timeout` passes first.
pub fn next_signal(set: u64, timeout: Option<Duration>) -> Option<(i32, libc::siginfo_t)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let time = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the kernel reads a set of the size that is passed and writes a siginfo. By system
    // call: the C library's hides its internal signals.
    unsafe {
        let size = size_of::<u64>();
        let signal =
            libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, info.as_mut_ptr(), time, size) as i32;
        (signal > 0).then(|| (signal, info.assume_init()))
    }
}

/// Returns the handlers' effect, if a signal that has one is pending and not in `mask`.
pub fn due(mask: u64) -> Option<Interrupted> {
    let mut signals = pending() & !mask & !FAULTS & !bit(RING);
    let mut found: Option<Interrupted> = None;
    while signals != 0 {
        let signal = signals.trailing_zeros() as i32 + 1;
        signals &= signals - 1;
        if let Some(Disposition::Handler { restarts }) = disposition(signal) {
            found = Some(Interrupted { restarts: restarts && found.is_none_or(|found| found.restarts) });
        }
    }
    found
}

/// Returns the signals that are pending for the calling OS thread.
fn pending() -> u64 {
    let mut set = 0_u64;
    // SAFETY: the kernel writes a set of the size that is passed. By system call, as below.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, size_of::<u64>()) };
    set
}

/// Replaces the calling OS thread's signal mask; returns the previous one.
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let size = size_of::<u64>();
    // SAFETY: the kernel reads and writes sets of the size that is passed. By system call: the C
    // library's leaves its internal signals out.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, size)
    };
    before
}
