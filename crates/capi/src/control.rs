//! What a thread says about its core: poll points, no preemption, blocking calls.

use crate::border::{self, Call};
use core::ffi::c_void;
use tailwater::__poll_keeping_registers as poll_keeping_registers;

/// Gives the core up if the IOKernel reclaims it, or if the thread's time slice is over: a poll
/// point. For long loops, every microsecond or so. Costs a nanosecond or two otherwise: where the
/// compiler is gcc or clang, `tw_poll()` is also a macro that calls `tw_poll_keeping_registers`.
#[unsafe(no_mangle)]
pub extern "C" fn tw_poll() {
    tailwater::poll();
}

/// As `tw_poll`, for the macro of that name and for compilers that insert poll points: keeps all
/// general registers and needs no alignment of the stack. Not for calls in C, which would not save
/// the vector registers that it may change.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_poll_keeping_registers() {
    core::arch::naked_asm!("jmp {edge}", edge = sym poll_keeping_registers)
}

/// Calls `function(argument)` without giving the core up in between, neither at poll points nor by
/// a signal. A request that comes meanwhile is answered at the end: a poll point. For short calls
/// of libraries that are not prepared for a switch. If the function blocks, the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn tw_no_preempt(
    function: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    argument: *mut c_void,
) {
    if let Some(function) = function {
        let call = Call::procedure(function, argument);
        tailwater::no_preempt(|| call.make());
    }
}

/// Calls `function(argument)` on an ordinary thread, and waits for it without holding the core: for
/// files, name resolution and other calls that block in the kernel. Returns its result, and the
/// `errno` that it left. Thread-locals in the function are those of the other thread. Switches
/// threads. On an ordinary thread this simply calls the function.
#[unsafe(no_mangle)]
pub extern "C" fn tw_blocking(
    function: Option<unsafe extern "C" fn(argument: *mut c_void) -> *mut c_void>,
    argument: *mut c_void,
) -> *mut c_void {
    let Some(function) = function else {
        border::set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    };
    let (call, before) = (Call::function(function, argument), border::errno());
    let (result, after) = tailwater::blocking(move || {
        border::set_errno(before);
        (call.make(), border::errno())
    });
    border::set_errno(after);
    result.0
}

/// What the runtime has done since its start.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_counters {
    /// Threads that were preempted by a signal, because they reached no poll point.
    pub preemptions: u64,
    /// Threads that a kthread has taken from another one.
    pub stolen_threads: u64,
}

/// Stores the counters. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_count(counters: *mut tw_counters) {
    let found = tailwater::debug::counters();
    // SAFETY: by C's contract.
    unsafe {
        counters.write(tw_counters { preemptions: found.preemptions, stolen_threads: found.stolen_threads });
    }
}
