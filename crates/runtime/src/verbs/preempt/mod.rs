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
//!
//! # Frames on a stack
//! A stack holds two frames of the signal at most, however fast signals come and however long the
//! handler takes; [`MIN_STACK`] leaves room for them. The kernel blocks the signal while the
//! handler runs. The mask is the OS thread's, and other user threads must be preempted while this
//! one waits, so the handler opens it before it leaves and closes it when it is resumed, on the
//! kthread that it is on then. Preemption is off throughout: a signal that comes while the mask is
//! open is only noted, and its handler, in which the mask is closed, returns before another one can
//! come.
//!
//! | part of the handler | mask | preemption | a further signal |
//! |---|---|---|---|
//! | up to the decision to leave, or to return at once | closed | off while it decides | waits in the kernel |
//! | it queues the thread and switches | open | off | second frame: noted, returns |
//! | another thread runs | open | on | on the stack of that thread |
//! | it is resumed | open | off | second frame: noted, returns; looked at below |
//! | it looks at what was noted: leaves again, or returns | closed | off, then on | waits in the kernel |
//!
//! The return of the handler opens the mask, when its frame is gone. No signal is lost: one that
//! waits in the kernel comes then. The two system calls make a preemption by a signal that the
//! thread sends itself take 2.5 us rather than 2.1 us; a signal that finds nothing to do takes 2.0
//! us as before (2-vCPU VM, AMD EPYC).
//!
//! [`MIN_STACK`]: crate::records::stack::MIN_STACK

use super::quantum;
#[cfg(feature = "debug")]
use super::snapshot;
use super::switch::{give_up, poll};
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
    // only notes that it came. No SA_ONSTACK: the frame must stay with the user thread. No
    // SA_NODEFER: frames would be added to the stack without bound.
    let result = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
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

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !inside() {
        return;
    }
    reached(Step::Entered);
    // SAFETY: the context is this handler's.
    if let Some(guard) = unsafe { decide(context) } {
        leave(guard);
        // SAFETY: as above. Returning restores the alternate stack of the frame, which is that of
        // the kthread that was interrupted, and this may be another one: the kernel refuses a stack
        // of no size, and ignores that it has (rt_sigreturn).
        unsafe {
            let stack = &raw mut (*context.cast::<libc::ucontext_t>()).uc_stack;
            ((*stack).ss_flags, (*stack).ss_size) = (0, 0);
        }
    }
    reached(Step::Returning);
}

/// Looks at what the signal may be about. Returns a proof, the only one, if the interrupted thread
/// is to give its core up.
///
/// # Safety
/// `context` is the ucontext of the running handler.
unsafe fn decide(context: *const libc::c_void) -> Option<NoPreempt> {
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("inside");
    // SAFETY: by the caller's contract; preemption is off.
    #[cfg(feature = "debug")]
    unsafe {
        snapshot::answer(&kthread, context);
    }
    quantum::tick(&kthread);
    // With shared TLS the interrupted code may be using a thread-local, which the next thread would
    // find half changed.
    if !arch::shares_tls() {
        let current = kthread.current();
        // SAFETY: by the caller's contract.
        let in_libc = current.is_some_and(|me| me.resident) && unsafe { runs_libc(context) };
        if kthread.head().preempt_depth() > 1 || current.is_none() || in_libc {
            kthread.head().note_preempt_pending();
        } else if kthread.yield_requested() {
            count(&kthread.counters.preemptions, 1);
            return Some(guard);
        }
    }
    // A poll point here would leave the stack with the mask closed.
    guard.drop_quietly();
    None
}

/// Returns whether the interrupted code is the C library's, which may hold the lock of a heap: its
/// functions are not the runtime's own on the context of an ordinary thread.
///
/// # Safety
/// `context` is the ucontext of the running handler.
#[cfg(feature = "readiness")]
unsafe fn runs_libc(context: *const libc::c_void) -> bool {
    // SAFETY: by the caller's contract.
    let rip = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
    crate::resident::is_libc(rip as usize)
}

/// As above: without residents, no thread is one.
#[cfg(not(feature = "readiness"))]
unsafe fn runs_libc(_: *const libc::c_void) -> bool {
    false
}

/// Has the interrupted thread give its core up; returns when it is resumed and no request is left.
fn leave(mut guard: NoPreempt) {
    loop {
        set_mask(libc::SIG_UNBLOCK);
        reached(Step::Leaving);
        guard = give_up(guard, false);
        reached(Step::Resumed);
        set_mask(libc::SIG_BLOCK);
        let kthread = guard.kthread().expect("inside");
        if !kthread.head().preempt_pending() || !kthread.yield_requested() {
            break;
        }
        // The signal that asked for this came while the mask was open.
        count(&kthread.counters.preemptions, 1);
    }
    guard.drop_quietly();
}

/// Lets the preempt signal reach the calling OS thread, which may have inherited a mask that is
/// closed for it.
pub fn open_mask() {
    set_mask(libc::SIG_UNBLOCK);
}

/// Opens or closes the mask of the OS thread for the preempt signal.
fn set_mask(how: libc::c_int) {
    let signals: u64 = 1 << (PREEMPT_SIGNAL - 1);
    let none = core::ptr::null_mut::<u64>();
    // SAFETY: the kernel reads a set of the size that is passed. By system call: the C library's
    // set takes 128 bytes of the stack.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const signals, none, size_of::<u64>()) };
}

/// Handles a signal that came while preemption was off.
fn deferred() {
    loop {
        let guard = NoPreempt::new();
        if let Some(head) = guard.head() {
            head.clear_preempt_pending();
        }
        // Not dropped, which would come here again.
        if !guard.end() {
            break;
        }
    }
    poll();
}

/// Steps of the handler, at which its test sends further signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Entered,
    /// The mask is open, and the thread not yet queued.
    Leaving,
    /// The mask is open, on the kthread that resumed the thread.
    Resumed,
    Returning,
}

#[cfg(not(test))]
#[inline(always)]
fn reached(_: Step) {}

#[cfg(test)]
use tests::reached;

#[cfg(test)]
mod tests;
