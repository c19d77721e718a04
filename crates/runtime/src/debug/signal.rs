//! The signal that has all user threads dumped.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::DumpSignal;

static DUMP_WANTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_dump_signal(_: i32) {
    DUMP_WANTED.store(true, Ordering::Relaxed);
}

/// Returns whether the signal was received since the last call.
pub fn take() -> bool {
    DUMP_WANTED.swap(false, Ordering::Relaxed)
}

/// Installs the dump signal's handler and returns true, unless the program has a handler of its own
/// for that signal.
///
/// An ignored signal is handled too: a shell ignores `SIGQUIT` in background processes, and that is
/// inherited. A program that must ignore it chooses [`DumpSignal::None`].
pub fn install(signal: DumpSignal) -> bool {
    let Some(number) = signal.number() else { return false };
    // SAFETY: all-zero sigactions are valid; the handler stores one flag.
    unsafe {
        let mut present: libc::sigaction = core::mem::zeroed();
        if libc::sigaction(number, core::ptr::null(), &raw mut present) != 0
            || ![libc::SIG_DFL, libc::SIG_IGN].contains(&present.sa_sigaction)
        {
            return false;
        }
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_dump_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        // The preempt signal must not switch away on the alternate stack.
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(number, &raw const action, core::ptr::null_mut()) == 0
    }
}
