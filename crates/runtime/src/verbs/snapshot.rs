//! A copy of a thread's registers and stack, to be unwound later.
//!
//! The stack of a *suspended* thread is copied from outside. The thread may be resumed meanwhile.
//! Then the copy is dropped, or, if it has been suspended again at the same place, may be a
//! mixture: a wrong backtrace, never a wrong access, since stacks are never unmapped and the copy
//! is bounded by the stack.
//!
//! A *running* thread is asked: its kthread gets the preempt signal, whose handler copies into
//! [`SAMPLE`].
//!
//! | `SAMPLE.state` | meaning | left by |
//! |---|---|---|
//! | [`FREE`] | no request | the thread that asks, under [`ASKING`]: to `index + ASKED` |
//! | `index + ASKED` | kthread `index` is asked | its handler: to `TAKEN`; the thread that asks, out of patience: to `FREE` |
//! | [`TAKEN`] | the handler writes | the handler: to `DONE` (Release) |
//! | [`DONE`] | the sample may be read | the thread that asked: to `FREE` |

use crate::ground::arch;
use crate::records::kthread::Kthread;
use crate::records::uthread::Uthread;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Words of a stack that are copied: 32 KiB hold the youngest frames of any thread and all frames
/// of most.
const MAX_WORDS: usize = 4096;
/// Bytes of a stack word.
const WORD: usize = size_of::<u64>();
/// How long a kthread may take to answer. One that sleeps uninterruptibly in the kernel never does.
const PATIENCE: Duration = Duration::from_millis(20);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const DONE: u32 = 2;
const ASKED: u32 = 3;

/// Registers and the stack from the stack pointer up.
#[derive(Debug)]
pub struct Snapshot {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    pub stack: Vec<u64>,
}

/// Copies words of the stack of `uthread` from `sp` up. `None` if `sp` is not in it.
fn copy_stack(uthread: &Uthread, sp: usize, mut word: impl FnMut(u64)) -> Option<()> {
    let top = uthread.top() as usize;
    if !sp.is_multiple_of(WORD) || !(uthread.limit..top).contains(&sp) {
        return None;
    }
    for address in (sp..top).step_by(WORD).take(MAX_WORDS) {
        // SAFETY: an aligned word of a stack, which is never unmapped. Volatile, since its thread
        // may write it meanwhile.
        word(unsafe { (address as *const u64).read_volatile() });
    }
    Some(())
}

/// Copies the stack of a suspended thread; `None` if it runs, or was resumed meanwhile.
pub fn of_suspended(uthread: &Uthread) -> Option<Snapshot> {
    let sp = uthread.suspended_at()?;
    let mut stack = Vec::new();
    copy_stack(uthread, sp, |word| stack.push(word))?;
    if uthread.suspended_at() != Some(sp) || stack.len() < arch::SAVED_WORDS {
        return None;
    }
    let (ip, bp) = (stack[arch::SAVED_RIP], stack[arch::SAVED_RBP]);
    stack.drain(..arch::SAVED_WORDS);
    Some(Snapshot { ip, sp: (sp + arch::SAVED_WORDS * WORD) as u64, bp, stack })
}

/// A kthread's answer. Static, because a signal handler cannot allocate.
struct Sample {
    state: AtomicU32,
    body: UnsafeCell<Body>,
}

struct Body {
    /// The record of the thread that was interrupted; null in the scheduler.
    record: *const Uthread,
    ip: u64,
    sp: u64,
    bp: u64,
    len: usize,
    words: [u64; MAX_WORDS],
}

// SAFETY: the table in the module documentation gives the body to one thread at a time.
unsafe impl Sync for Sample {}

static SAMPLE: Sample = Sample {
    state: AtomicU32::new(FREE),
    body: UnsafeCell::new(Body {
        record: core::ptr::null(),
        ip: 0,
        sp: 0,
        bp: 0,
        len: 0,
        words: [0; MAX_WORDS],
    }),
};

/// Held by the ordinary OS thread that asks.
static ASKING: Mutex<()> = Mutex::new(());

/// Interrupts `kthread` and copies the stack of the thread that it runs. `None` if it runs none, or
/// does not answer.
pub fn of_running(kthread: &Kthread) -> Option<(*const Uthread, Snapshot)> {
    let _asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = u32::from(kthread.index) + ASKED;
    // Release: pairs with the Acquire in `answer`: the body is the handler's.
    SAMPLE.state.store(asked, Ordering::Release);
    let sent = kthread.interrupt();
    let start = Instant::now();
    // Acquire: pairs with the Release in `answer`.
    while SAMPLE.state.load(Ordering::Acquire) != DONE {
        let given_up = !sent || start.elapsed() > PATIENCE;
        // A handler that has begun ends soon, so it is waited for.
        if given_up
            && SAMPLE.state.compare_exchange(asked, FREE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            return None;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    // SAFETY: `DONE` makes the body ours.
    let body = unsafe { &*SAMPLE.body.get() };
    let stack = body.words[..body.len].to_vec();
    let snapshot = Snapshot { ip: body.ip, sp: body.sp, bp: body.bp, stack };
    let record = body.record;
    SAMPLE.state.store(FREE, Ordering::Relaxed);
    (!record.is_null()).then_some((record, snapshot))
}

/// Copies the interrupted stack if `kthread`, the caller's, is asked to: the preempt handler's
/// part. Async-signal-safe.
///
/// # Safety
/// `context` is the ucontext of the running handler, and preemption is off.
pub unsafe fn answer(kthread: &Kthread, context: *const libc::c_void) {
    let asked = u32::from(kthread.index) + ASKED;
    if SAMPLE.state.load(Ordering::Relaxed) != asked
        // Acquire: pairs with the Release in `of_running`.
        || SAMPLE.state.compare_exchange(asked, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return;
    }
    // SAFETY: `TAKEN` makes the body ours; the context is valid by the caller's contract.
    let (body, context) = unsafe { (&mut *SAMPLE.body.get(), &*context.cast::<libc::ucontext_t>()) };
    let register = |number: i32| context.uc_mcontext.gregs[number as usize] as u64;
    (body.ip, body.sp, body.bp) = (register(libc::REG_RIP), register(libc::REG_RSP), register(libc::REG_RBP));
    body.len = 0;
    body.record = core::ptr::null();
    if let Some(uthread) = kthread.current() {
        body.record = uthread;
        copy_stack(uthread, body.sp as usize, |word| {
            body.words[body.len] = word;
            body.len += 1;
        });
    }
    // Release: pairs with the Acquire in `of_running`.
    SAMPLE.state.store(DONE, Ordering::Release);
}
