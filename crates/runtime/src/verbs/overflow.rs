//! Ends the process with a message if a user thread overflows its stack: which thread, and the
//! remedy.
//!
//! The guard page below each stack turns an overflow into `SIGSEGV`. The handler runs on an
//! alternate stack, which every kthread has. On any other fault it calls the handler before it
//! (that of `std`, for ordinary threads).
//!
//! # Limits
//! * A function without stack probes (C code with frames of more than a page) may jump over the
//!   guard page.
//! * A handler that the program installs later replaces this one, unless it passes on faults that
//!   are not its own.

use crate::ground::guard::{NoPreempt, inside};
use crate::ground::memory::{PAGE, map};
use crate::ground::stderr;
use crate::records::kthread::Kthread;
use crate::records::uthread::Uthread;
use core::fmt::{self, Write};
use core::mem::{self, MaybeUninit};
use std::io;
use std::sync::OnceLock;

/// Bytes for a message and the functions that write it, above the kernel's own frame.
const ALTERNATE_STACK: usize = 32 * 1024;
/// `AT_MINSIGSTKSZ` (include/uapi/linux/auxvec.h): bytes of a signal frame on this processor.
const AT_MINSIGSTKSZ: u64 = 51;
/// `SI_KERNEL` (include/uapi/asm-generic/siginfo.h): no address; among others, a signal frame found
/// no room.
const SI_KERNEL: i32 = 0x80;

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn signal_frame() -> usize {
    // SAFETY: getauxval has no precondition.
    (unsafe { libc::getauxval(AT_MINSIGSTKSZ) } as usize).max(libc::MINSIGSTKSZ)
}

/// Installs the handler for the process. Call once.
///
/// # Errors
/// The kernel's answer.
pub fn install() -> io::Result<()> {
    // SAFETY: all-zero sigactions are valid; the handler keeps to async-signal-safe calls; all
    // signals are blocked in it, so that no preemption finds the kthread on its alternate stack.
    unsafe {
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        if libc::sigaction(libc::SIGSEGV, core::ptr::null(), previous.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        // Known before the first fault can come.
        PREVIOUS.get_or_init(|| previous.assume_init());
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&raw mut action.sa_mask);
        if libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives the calling OS thread an alternate stack, permanently. Without one, a thread dies without
/// a message.
pub fn prepare_os_thread() {
    let size = (ALTERNATE_STACK + signal_frame()).next_multiple_of(PAGE);
    let Ok(low) = map(size) else { return };
    let stack = libc::stack_t { ss_sp: low.cast(), ss_flags: 0, ss_size: size };
    // SAFETY: the mapping is fresh and never given back.
    unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) };
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if inside() {
        let guard = NoPreempt::new();
        // SAFETY: the kernel passes a valid siginfo and, as context, a ucontext.
        let (address, code, rsp) = unsafe {
            let context = &*context.cast::<libc::ucontext_t>();
            let rsp = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
            ((*info).si_addr() as usize, (*info).si_code, rsp)
        };
        let current = guard.kthread().as_deref().and_then(Kthread::current);
        if let Some(uthread) = current
            && is_overflow(address, code, rsp, uthread.limit)
        {
            report(uthread);
            // SAFETY: abort has no precondition.
            unsafe { libc::abort() };
        }
        // A handler is not preempted, so a pending signal stays pending.
        guard.drop_quietly();
    }
    pass_on(signal, info, context);
}

/// Returns whether the fault means that the stack whose lowest usable byte is at `limit` was too
/// small: an access to its guard page, or no room for a signal frame.
fn is_overflow(address: usize, code: i32, rsp: usize, limit: usize) -> bool {
    let guard_page = limit - PAGE..limit;
    let near_the_end = limit - PAGE..limit + 2 * signal_frame();
    guard_page.contains(&address) || (code == SI_KERNEL && address == 0 && near_the_end.contains(&rsp))
}

fn report(uthread: &Uthread) {
    let mut line = Line::default();
    // Never waits: the name may have been locked when the stack overflowed.
    let locked = uthread.identity.name_lock().try_lock();
    let id = uthread.identity.id().map_or(0, u64::from);
    // A line takes what fits and reports no error.
    let _ = match locked.as_ref().and_then(|name| name.as_deref()) {
        Some(name) => write!(line, "tailwater: user thread '{name}' ({id})"),
        None => write!(line, "tailwater: user thread {id}"),
    };
    let size = uthread.top() as usize - uthread.limit;
    let _ =
        write!(line, " has overflowed its stack of {size} bytes\nraise it with thread::Builder::stack_size");
    let _ = line.write_str(if uthread.custom {
        "\n"
    } else {
        ", or for all threads with TAILWATER_STACK_SIZE or tailwater::RuntimeBuilder::stack_size\n"
    });
    mem::forget(locked);
    stderr::print_bytes(&line.bytes[..line.len]);
}

/// Calls the previous handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Plain = extern "C" fn(i32);
    type WithInfo = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    let previous = PREVIOUS.get().expect("set before the handler was installed");
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the default. A fault comes again when this returns; a signal that
            // was sent is sent again.
            unsafe {
                let default: libc::sigaction = mem::zeroed();
                libc::sigaction(signal, &raw const default, core::ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the address is that of a function of this type.
            unsafe { mem::transmute::<usize, WithInfo>(handler)(signal, info, context) };
        }
        handler => {
            // SAFETY: without SA_SIGINFO the address is that of a function of this type.
            unsafe { mem::transmute::<usize, Plain>(handler)(signal) };
        }
    }
}

/// A message put together without allocating. What does not fit is left out.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 512], len: 0 }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = &mut self.bytes[self.len..];
        let len = text.len().min(free.len());
        free[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 0x10_0000;

    #[test]
    fn only_the_guard_page_and_a_frame_without_room_are_overflows() {
        let fault = |address| is_overflow(address, 1, LIMIT, LIMIT);
        assert!(fault(LIMIT - 1) && fault(LIMIT - PAGE));
        assert!(!fault(LIMIT) && !fault(LIMIT - PAGE - 1) && !fault(0));
        assert!(is_overflow(0, SI_KERNEL, LIMIT + 100, LIMIT));
        assert!(!is_overflow(0, SI_KERNEL, LIMIT + (1 << 20), LIMIT), "a wild pointer, not an overflow");
    }

    #[test]
    fn a_long_name_is_cut_and_not_overrun() {
        let mut line = Line::default();
        write!(line, "{}", "x".repeat(2000)).unwrap();
        assert_eq!(line.len, 512);
    }
}
