//! The system calls that have no safe wrapper, and the prefetch instruction: all `unsafe` of this crate.
//!
//! Owns thin functions with checked arguments; no policy, no state.

#![allow(unsafe_code)]

pub(crate) mod bpf;
pub(crate) mod interface;
pub(crate) mod tap;
pub(crate) mod xsk;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use tailwater_shm::grant::PREEMPT_SIGNAL;

/// Sends signal `signal` to thread `tid` of process `tgid` (tgkill(2)). Signal 0 only asks whether the thread exists.
///
/// # Errors
/// [`Errno::SRCH`] when the process has no such thread (any more), [`Errno::PERM`] when it is somebody else's.
pub(crate) fn signal_thread(tgid: i32, tid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: tgkill takes three integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, tgid, tid, signal) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Binds thread `tid` of process `tgid` to `cores`. Asks first whether the thread still exists, for thread ids are used
/// again and `sched_setaffinity(2)` would take any thread of the machine.
///
/// # Errors
/// [`Errno::SRCH`] when the thread is gone, [`Errno::INVAL`] when none of the cores may be used by it.
pub(crate) fn bind_thread(tgid: i32, tid: i32, cores: &CpuSet) -> Result<(), Errno> {
    signal_thread(tgid, tid, 0)?;
    sched_setaffinity(Some(Pid::from_raw(tid).ok_or(Errno::SRCH)?), cores)
}

/// What the allocator does to threads; tests put a recorder in its place.
pub(crate) trait Threads: Send {
    /// See [`bind_thread`].
    fn bind(&mut self, tgid: i32, tid: i32, cores: &CpuSet) -> Result<(), Errno>;
    /// Sends the preempt signal.
    fn preempt(&mut self, tgid: i32, tid: i32) -> Result<(), Errno>;
}

/// Threads of this machine.
pub(crate) struct LinuxThreads;

impl Threads for LinuxThreads {
    fn bind(&mut self, tgid: i32, tid: i32, cores: &CpuSet) -> Result<(), Errno> {
        bind_thread(tgid, tid, cores)
    }
    fn preempt(&mut self, tgid: i32, tid: i32) -> Result<(), Errno> {
        signal_thread(tgid, tid, PREEMPT_SIGNAL)
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

thread_local! {
    /// Set by the handler of the preempt signal on the thread it interrupts. No destructor, no lazy part: a handler may use it.
    static PREEMPTED: AtomicBool = const { AtomicBool::new(false) };
}

extern "C" fn on_preempt_signal(_signal: libc::c_int) {
    PREEMPTED.with(|flag| flag.store(true, Ordering::Relaxed));
}

/// Makes the preempt signal set a flag of the thread it interrupts ([`take_preempt_signal`]). For raw runtimes.
pub(crate) fn note_preempt_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| handle_preempt_signal(on_preempt_signal));
}

fn handle_preempt_signal(handler: extern "C" fn(libc::c_int)) {
    // SAFETY: a zeroed sigaction is a valid one (no flags, empty mask); the handlers of this module are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // Cannot fail for a signal that can be caught and a handler that exists.
        libc::sigaction(PREEMPT_SIGNAL, &raw const action, core::ptr::null_mut());
    }
}

/// Whether the calling thread got the preempt signal since the last call.
pub(crate) fn take_preempt_signal() -> bool {
    PREEMPTED.with(|flag| flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed))
}

/// A descriptor that this process inherited, by number.
///
/// # Panics
/// If it is negative.
pub(crate) fn borrow_inherited(fd: i32) -> BorrowedFd<'static> {
    assert!(fd >= 0, "descriptor {fd} was not inherited");
    // SAFETY: the number is valid for the life of the process: the parent passed it open, and nobody here closes it. Were it
    // not open, using it would be an error of the kernel's, no undefined behaviour of ours.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

static PARKED_FD: AtomicI32 = AtomicI32::new(-1);
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn park_in_handler(_signal: libc::c_int) {
    let mut word = 1u64;
    let buffer = (&raw mut word).cast::<libc::c_void>();
    // SAFETY: write and read are async-signal-safe; the buffer is eight bytes on this stack.
    unsafe {
        libc::write(PARKED_FD.load(Ordering::Relaxed), buffer, 8);
        libc::read(WAKE_FD.load(Ordering::Relaxed), buffer, 8);
    }
}

/// Makes the preempt signal park the thread it interrupts: rings `parked`, then blocks reading `wake` (Shenango section 6.1).
/// For the baseline of the hand-off benchmark.
pub(crate) fn park_at_preempt_signal(parked: i32, wake: i32) {
    PARKED_FD.store(parked, Ordering::Relaxed);
    WAKE_FD.store(wake, Ordering::Relaxed);
    handle_preempt_signal(park_in_handler);
}
