//! The stack of a thread of this process, as a signal finds it.
//!
//! Owns the signal, its handler and the words that the handler writes. One thread at a time can be
//! asked, which the control thread of an IOKernel does when its polling thread makes no progress.
//!
//! | word | writer | reader | order |
//! |---|---|---|---|
//! | `ASKED` | [`ask`], [`take`] | the handler, `ask` | Relaxed: the signal is sent by a system call after the store |
//! | `FRAMES` | the handler | [`take`] | Relaxed, published by `COUNT` |
//! | `COUNT` | the handler; [`ask`] resets it | `take` | the handler's Release, `take`'s Acquire |
//!
//! A thread that answers only when another one has been asked may write frames between those of the
//! other: a wrong line of the log, no more.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::OnceLock;

use super::signal_thread;

/// Maximum number of frames, those of the handler included.
const MAX_FRAMES: usize = 48;
/// Maximum number of functions that are named.
const MAX_NAMES: usize = 16;

/// Thread that is asked for its stack; 0: none.
static ASKED: AtomicI32 = AtomicI32::new(0);
static FRAMES: [AtomicUsize; MAX_FRAMES] = [const { AtomicUsize::new(0) }; MAX_FRAMES];
/// Number of frames that the thread has written; 0: it has not answered.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns the signal, if its handler is installed: a real-time signal, which Linux itself never
/// sends and which this process has no other use for.
fn signal() -> Option<c_int> {
    static SIGNAL: OnceLock<Option<c_int>> = OnceLock::new();
    *SIGNAL.get_or_init(|| {
        let number = libc::SIGRTMIN() + 1;
        // SAFETY: all-zero sigactions are valid; the handler keeps to atomics and the unwinder.
        unsafe {
            let mut present: libc::sigaction = core::mem::zeroed();
            let known = libc::sigaction(number, core::ptr::null(), &raw mut present) == 0;
            if !known || present.sa_sigaction != libc::SIG_DFL {
                return None;
            }
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            (libc::sigaction(number, &raw const action, core::ptr::null_mut()) == 0).then_some(number)
        }
    })
}

/// Asks a thread of this process for its stack. Returns false if another thread is asked already,
/// or cannot be.
pub(crate) fn ask(thread: i32) -> bool {
    let Some(signal) = signal() else { return false };
    if ASKED.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return false;
    }
    COUNT.store(0, Ordering::Relaxed);
    let sent = signal_thread(std::process::id() as i32, thread, signal).is_ok();
    if !sent {
        ASKED.store(0, Ordering::Relaxed);
    }
    sent
}

/// Returns the addresses on the stack of the thread that was asked, youngest first: none if it has
/// not answered. Another one can be asked afterwards.
pub(crate) fn take() -> Vec<usize> {
    // Acquire: pairs with the Release in `on_signal`: the frames are there.
    let count = COUNT.load(Ordering::Acquire).min(MAX_FRAMES);
    let frames = FRAMES[..count].iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
    ASKED.store(0, Ordering::Relaxed);
    frames
}

/// Writes down the stack below the signal, if this is the thread that was asked.
extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: gettid has no arguments; the kernel passes a ucontext to a handler with SA_SIGINFO.
    let (own, interrupted) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        (libc::gettid(), context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize)
    };
    if ASKED.load(Ordering::Relaxed) != own {
        return;
    }
    let mut count = 0;
    let record = |frame: &backtrace::Frame| {
        let address = frame.ip() as usize;
        // No function: the end.
        if address == 0 {
            return false;
        }
        // What comes before is this handler's.
        if address == interrupted {
            count = 0;
        }
        FRAMES[count].store(address, Ordering::Relaxed);
        count += 1;
        count < MAX_FRAMES
    };
    // SAFETY: its state is that of this call; without its lock nothing is shared with other calls.
    // It allocates nothing: it is the unwinder that panics use, which reads the tables of the
    // objects that are loaded, and looks those up without a lock since glibc 2.35. With an older
    // one it waits for a thread that is just loading an object.
    unsafe { backtrace::trace_unsynchronized(record) };
    // Release: pairs with the Acquire in `take`.
    COUNT.store(count, Ordering::Release);
}

/// Returns the first functions at these addresses, youngest first, with `<` between them: names
/// where the executable has symbols.
pub(crate) fn names(addresses: &[usize]) -> String {
    let mut names: Vec<String> = Vec::new();
    for (index, &address) in addresses.iter().enumerate() {
        // Of a return address, that of the call, which may be the last instruction of its function.
        let at = address - usize::from(index > 0);
        let known = names.len();
        backtrace::resolve(at as *mut c_void, |symbol| {
            if let Some(name) = symbol.name() {
                names.push(format!("{name:#}"));
            }
        });
        if names.len() == known {
            names.push(format!("{address:#x}"));
        }
    }
    names.truncate(MAX_NAMES);
    names.join(" < ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hint::{black_box, spin_loop};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};
    use tailwater_testkit::PATIENCE;

    #[inline(never)]
    fn waits_for_a_flag(flag: &AtomicBool) {
        while !black_box(flag).load(Ordering::Relaxed) {
            spin_loop();
        }
    }

    /// Asks a thread for its stack until that has this function, which it may be on its way to;
    /// returns the last answer, and whether others could be asked meanwhile.
    fn asked_until(thread: i32, function: &str) -> (String, bool) {
        let end = Instant::now() + PATIENCE;
        let (mut last, mut others) = (String::new(), false);
        while !last.contains(function) && Instant::now() < end {
            if !ask(thread) {
                continue;
            }
            others |= ask(thread);
            while COUNT.load(Ordering::Acquire) == 0 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            last = names(&take());
        }
        (last, others)
    }

    #[test]
    fn a_thread_that_runs_or_waits_says_where() {
        let (out, threads) = channel();
        let (release, wait) = channel::<()>();
        let flag = AtomicBool::new(false);
        let say = |out: &std::sync::mpsc::Sender<i32>| {
            out.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        };
        std::thread::scope(|scope| {
            let (flag, first) = (&flag, out.clone());
            scope.spawn(move || {
                say(&first);
                waits_for_a_flag(flag);
            });
            let running = asked_until(threads.recv().unwrap(), "waits_for_a_flag");
            // Before anything that may fail: the thread ends.
            flag.store(true, Ordering::Relaxed);
            scope.spawn(move || {
                say(&out);
                let _ = wait.recv();
            });
            let waiting = asked_until(threads.recv().unwrap(), "recv");
            drop(release);
            for ((stack, others), function) in [(running, "waits_for_a_flag"), (waiting, "recv")] {
                assert!(stack.contains(function) && !stack.contains("on_signal"), "{stack}");
                assert!(!others, "one at a time");
            }
            // A thread that cannot exist: the highest number is one less (proc(5), pid_max).
            assert!(!ask(1 << 22));
        });
    }
}
