//! Preemption by signal, for user threads that reach no poll point.
//!
//! The IOKernel asks with a grant word first; only a thread that ignores it for `cede_grace` gets the signal. The handler runs on
//! the user thread's own stack, so what it interrupts is saved there by the kernel, vector registers and all; it then queues
//! the thread and leaves through the ordinary switch. When the thread is resumed, on whichever kthread, the handler returns and
//! the kernel restores the interrupted state (Shenango section 6.2). FS and GS base are not part of that state.
//!
//! The signal is `SIGURG`: ignored by default, so that a late one harms nobody (Go chose it for the same reason).

use crate::arch;
use crate::debug::snapshot;
use crate::kthread::{self, NoPreempt, count};
use crate::worker;
use std::io;
use tailwater_shm::grant::PREEMPT_SIGNAL;

/// Installs the handler for the process.
///
/// # Errors
/// The kernel's answer.
pub fn install() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is valid; the handler is async-signal-safe: it touches its own kthread's words and
    // switches stacks, as the module documentation describes. No SA_ONSTACK: the frame must stay with the user thread.
    // SA_NODEFER: the mask is the OS thread's, which the handler may leave before it returns.
    let result = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
        libc::sigaction(PREEMPT_SIGNAL, &raw const action, core::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !kthread::inside() {
        return;
    }
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("inside");
    // SAFETY: the context is this handler's; preemption is off.
    unsafe { snapshot::answer(kthread, context) };
    if arch::shares_tls() {
        // The code interrupted may be using a thread-local that the next thread would find half changed.
        guard.drop_quietly();
        return;
    }
    if kthread.preempt_depth() > 1 || kthread.current().is_none() {
        kthread.set_preempt_pending(true);
        return;
    }
    if !kthread.asked_to_cede() {
        return;
    }
    count(&kthread.counters.preemptions, 1);
    drop(guard);
    worker::give_up_core();
}

/// Preemption is on again and a signal came meanwhile.
#[cold]
pub fn deferred() {
    {
        let guard = NoPreempt::new();
        if let Some(kthread) = guard.kthread() {
            kthread.set_preempt_pending(false);
        }
        // The guard must not see the flag again, or it would recurse: it was cleared above.
    }
    if kthread::should_cede() {
        worker::give_up_core();
    }
}
