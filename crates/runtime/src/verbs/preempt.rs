//! Preemption by signal, for user threads that reach no poll point.
//!
//! The IOKernel first requests the core with a grant word; only a thread that ignores it for
//! `cede_grace_us` gets the signal. A timer of the kthread sends it for the sake of the
//! [`quantum`](super::quantum).
//! The handler runs on the user thread's own stack, where the kernel has saved what it interrupts,
//! vector registers included. It queues the thread and leaves through the ordinary switch. When the
//! thread is resumed, on whichever kthread, the handler returns and the kernel restores the
//! interrupted state (Shenango section 6.2). FS and GS base are not part of that state.
//!
//! The signal is `SIGURG`: ignored by default, so a late one does no harm (Go chose it for the same
//! reason).

use super::quantum;
#[cfg(feature = "debug")]
use super::snapshot;
use super::switch::{give_up_core, poll};
use crate::ground::arch;
use crate::ground::guard::{NoPreempt, inside, set_deferred};
use crate::records::kthread::count;
use std::io;
use tailwater_shm::grant::PREEMPT_SIGNAL;

/// Installs the handler for the process.
///
/// # Errors
/// If the kernel refuses it.
pub fn install() -> io::Result<()> {
    set_deferred(deferred);
    // SAFETY: an all-zero sigaction is valid. The handler is async-signal-safe: it uses words of
    // its own kthread and switches stacks, as the module documentation describes. For a request of
    // a dispatcher it also takes the dispatcher's lock and may allocate and map a stack. Holders of
    // these locks have preemption off, the runtime's allocator among them, and then the handler
    // only notes that it came. No SA_ONSTACK: the frame must stay with the user thread. SA_NODEFER:
    // the mask is the OS thread's, which the handler may leave before it returns.
    let result = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
        libc::sigaction(PREEMPT_SIGNAL, &raw const action, core::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs `f` without giving the core up in between: neither poll points nor signals switch to
/// another thread. A request that comes meanwhile is answered at the end. For short pieces of code,
/// such as calls of a library that is not prepared for a switch (Shinjuku's `call_safe`).
///
/// # Panics
/// If `f` blocks. Resumes the panic of `f`.
///
/// # Examples
/// ```
/// let sum = tailwater::no_preempt(|| (0..100u64).sum::<u64>());
/// assert_eq!(sum, 4_950);
/// ```
pub fn no_preempt<R>(f: impl FnOnce() -> R) -> R {
    let guard = NoPreempt::new();
    let result = f();
    drop(guard);
    poll();
    result
}

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    if !inside() {
        return;
    }
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("inside");
    // SAFETY: the context is this handler's; preemption is off.
    #[cfg(feature = "debug")]
    unsafe {
        snapshot::answer(&kthread, _context);
    }
    quantum::tick(&kthread);
    if arch::shares_tls() {
        // The interrupted code may be using a thread-local, which the next thread would find half
        // changed.
        guard.drop_quietly();
        return;
    }
    if kthread.head().preempt_depth() > 1 || kthread.current().is_none() {
        kthread.head().set_preempt_pending(true);
        return;
    }
    if !kthread.yield_requested() {
        return;
    }
    count(&kthread.counters.preemptions, 1);
    drop(guard);
    give_up_core(false);
}

/// Handles a signal that came while preemption was off.
fn deferred() {
    {
        let guard = NoPreempt::new();
        if let Some(head) = guard.head() {
            // Before the guard's own end, which would come here again.
            head.set_preempt_pending(false);
        }
    }
    poll();
}
