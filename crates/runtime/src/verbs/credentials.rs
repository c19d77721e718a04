//! System calls by which a process changes its user and groups (`setuid`, `setgid`, `setgroups`).
//!
//! Linux changes the calling thread alone, so glibc has every OS thread repeat the call
//! (nptl(7)): it marks the threads, sends each a signal, and waits until all marks are gone.
//! The signal's handler finds its mark at FS base, where a kthread has the block of a user
//! thread. Owns a handler in its place that calls glibc's on the OS thread's own block. Without
//! it the call never returns.

use crate::ground::guard::NoPreempt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// glibc's signal for the repetition (`SIGSETXID`, sysdeps/unix/sysv/linux/internal-signals.h).
pub const SIGNAL: i32 = 33;

/// `struct sigaction` of the system call (rt_sigaction(2)); glibc's own refuses this signal.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

type Handler = unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// glibc's handler.
static OF_LIBC: AtomicUsize = AtomicUsize::new(0);

/// Puts the handler in place of glibc's, which is there from the first thread on.
///
/// Without effect where glibc has none, or the kernel refuses.
pub fn install() {
    let mut action = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let none = core::ptr::null::<Action>();
    // SAFETY: the call fills an action of the size that it is told.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGNAL, none, &raw mut action, size_of::<u64>()) };
    let own = on_signal as *const () as usize;
    if result != 0 || [libc::SIG_DFL, libc::SIG_IGN, own].contains(&action.handler) {
        return;
    }
    // Relaxed: a signal that finds the new handler comes after the system call.
    OF_LIBC.store(action.handler, Relaxed);
    action.handler = own;
    let nothing = core::ptr::null_mut::<Action>();
    // SAFETY: the action is glibc's but for the handler, which may run wherever glibc's may.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGNAL, &raw const action, nothing, size_of::<u64>()) };
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let guard = NoPreempt::new();
    // SAFETY: stored before this handler was installed: the address of glibc's handler.
    let of_libc = unsafe { core::mem::transmute::<usize, Handler>(OF_LIBC.load(Relaxed)) };
    // SAFETY: 1. the handler changes words of the block's TCB alone. 2. It does not switch. The
    // arguments are the kernel's.
    unsafe { guard.on_own_fs(|| of_libc(signal, info, context)) };
    guard.drop_quietly();
}
