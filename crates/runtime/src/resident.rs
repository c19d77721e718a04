//! Ordinary threads whose contexts run on kthreads.
//!
//! A thread that [enters](enter) leaves its OS thread, its *home*: its context (stack pointer and
//! FS base) becomes a user thread, on its own stack and with its own thread-local storage, and
//! waits without a core. It [goes home](go_home) for what belongs to the OS thread: signal
//! handlers, `fork`, the end of the thread. After `adopt_waits`, waits of the C library for words
//! of this process are waits of user threads. For programs that were not written for this runtime;
//! `crates/posix` is the one user.
//!
//! Owns the two switches, and what a home does while its context is away. Knows nothing of sockets.
//!
//! # A home whose context is away
//! It runs `keep_home` on a small stack and a thread-local block of its own. It sleeps until the
//! context rings (`RING`), or a signal comes that the context has not blocked. A signal without a
//! handler is handled there. For one with a handler the context's `wait` is interrupted; it goes
//! home, where the kernel runs the handler on the context's own stack, as it would have. A context
//! that goes home to wait in the kernel learns whether handlers ran ([`Interrupted`]): the program
//! has made its call before them, and the wait would not end. A context that does not wait within
//! `PATIENCE` gets the handler run at home, beside it; that ends the call which it is in, if that
//! waits later, and no other. A wait with a mask that a signal is pending for leaves it to the
//! context, which opens it if it finds nothing, as on Linux. The C library's own, for changes of
//! the user, needs the context's thread-local block: it waits for the context.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `home_rsp` | the home, as it leaves for its context | the context, as it enters |
//! | `mask` | the context at home, before it leaves | the home; the context |
//! | `returning` | the context, with preemption off, before it leaves its kthread | the home |
//! | `handlers` | `DUE`, `RAN` and whether they end calls by the home; 0 by the context when it is back; without `RAN` by the context when it begins its next call, or waits for a word | the context, around a wait |
//! | `waits` | the context, around a wait for a poller | the home |
//! | `word` | the context, around a wait for a word of the C library: its address, else 0 | the home |
//! | `is_masked` | the context, at home, around a wait with a mask; false as it enters | the context, around a wait |
//!
//! # Why the preempt signal spares the C library
//! A kthread allocates from the C library's heap. A context that was interrupted inside of that
//! heap may hold its lock, and would wait for its turn on the kthread that waits for the lock. So
//! the signal is only noted there, see `is_libc`, and the next poll point gives the core up.
//!
//! # fork
//! The child has the thread that called `fork`, at home, and no runtime: `enter` fails there.

mod code;
mod signals;

pub(crate) use code::is_libc;

use crate::config::{RuntimeBuilder, settings, sources};
use crate::error::StartError;
use crate::ground::guard::{NoPreempt, inside, set_inside};
use crate::ground::memory::{PAGE, guard_page, map};
use crate::ground::spin::SpinLock;
use crate::ground::{arch, tls};
use crate::readiness::{Events, Poller};
use crate::records::runtime::started;
use crate::records::uthread::{Runnable, Uthread};
use crate::records::{atexit, identity};
use crate::verbs::credentials;
use crate::verbs::ready::inject;
use crate::verbs::switch::{Why, next_context};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use signals::{Disposition, FAULTS, bit, disposition, due, next_signal, set_mask};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use tailwater_shm::grant::PREEMPT_SIGNAL;

/// Bytes of a home's stack, on which handlers run that the context does not come for.
const HOME_STACK: usize = 256 * 1024;
/// How long a signal with a handler waits for its context.
const PATIENCE: Duration = Duration::from_millis(50);
/// The signal that a context sends its home when it returns. Ignored by default, and the handler of
/// the runtime ignores it on ordinary threads.
pub const RING: i32 = PREEMPT_SIGNAL;

/// Bits of `Resident::handlers`: one is to run, and the context is to come for it.
const DUE: u8 = 1;
/// One that is due has no `SA_RESTART`.
const DUE_ENDS: u8 = 2;
/// As `DUE` and `DUE_ENDS`, shifted, of those that have run at home, beside the context.
const RAN: u8 = DUE << RAN_SHIFT;
const RAN_ENDS: u8 = DUE_ENDS << RAN_SHIFT;
const RAN_SHIFT: u32 = 2;

/// False before the runtime is started, and in a forked child.
static RUNS: AtomicBool = AtomicBool::new(false);
/// Records and home stacks of threads that have ended.
static FREE: SpinLock<Vec<&'static Resident>> = SpinLock::new(Vec::new());

thread_local! {
    static RESIDENT: Cell<Option<&'static Resident>> = const { Cell::new(None) };
}

/// One ordinary thread that has entered.
struct Resident {
    record: Uthread,
    home_rsp: AtomicUsize,
    /// Upper end of the home's stack.
    home_top: *mut u8,
    home_fs: usize,
    home_tid: AtomicI32,
    /// What the switch to the context clears; nothing reads it.
    unused: AtomicU8,
    mask: AtomicU64,
    returning: SpinLock<Option<Runnable>>,
    handlers: AtomicU8,
    waits: SpinLock<Option<Arc<Poller>>>,
    word: AtomicUsize,
    /// The context waits with a mask of its own, see [`with_mask`].
    is_masked: AtomicBool,
}

// SAFETY: the stack that `home_top` ends is used by the home alone.
unsafe impl Send for Resident {}
// SAFETY: as above; the other fields have their own rules, in the module documentation.
unsafe impl Sync for Resident {}

/// Prepares for a runtime that may be started later. To be called when the library is loaded. Keeps
/// the environment's variables of the runtime and the program's name as they are now, since a
/// program may write over both, and the runtime's threads from allocating by the program's
/// `malloc`.
pub fn prepare() {
    sources::keep_environment();
    let _ = settings::program();
    atexit::keep_all();
}

/// Returns a variable of the runtime's, as it was kept.
pub fn variable(name: &str) -> Option<OsString> {
    sources::kept(name)
}

/// Makes waits of the C library (futex(2)) waits of user threads, for contexts that are away. The
/// process has one thread. Before the runtime is started, and for threads at home, they stay the
/// kernel's.
///
/// # Errors
/// [`StartError::LibcWaits`] if they cannot be redirected; all is as it was then.
#[cfg(feature = "libc-waits")]
pub fn adopt_waits() -> Result<(), StartError> {
    crate::libc_waits::adopt()
}

/// Returns whether this process has [adopted](adopt_waits) the waits of the C library. A forked
/// child has not.
#[cfg(feature = "libc-waits")]
pub fn has_adopted_waits() -> bool {
    tailwater_libc_waits::is_active()
}

/// Calls `start`, which starts threads: they take no signals of the program but faults.
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // Changes of the user are made on all threads, by a signal of the C library.
    let mask = set_mask(!FAULTS & !bit(credentials::SIGNAL));
    let result = start();
    set_mask(mask);
    result
}

/// Starts the runtime for threads that will enter; the caller stays an ordinary thread. The
/// runtime's threads take no signals of the program but faults.
///
/// # Errors
/// As [`RuntimeBuilder::run`].
pub fn start(mut builder: RuntimeBuilder) -> Result<(), StartError> {
    let is_unset = |name: &str| variable(name).is_none();
    // The program's own signals, and its own long computations, are no matter of the runtime.
    #[cfg(feature = "debug")]
    if is_unset("TAILWATER_DUMP_SIGNAL") {
        builder = builder.dump_signal(crate::DumpSignal::None);
    }
    if is_unset("TAILWATER_STALL_TIMEOUT_MS") {
        builder = builder.stall_timeout(Duration::ZERO);
    }
    // The allocator guard counts as installed once it was used.
    drop(Box::new(0_u64));
    code::note_libc();
    let allowed = rustix::thread::sched_getaffinity(None);
    let result = without_signals(|| builder.launch());
    if let Ok(allowed) = allowed {
        // The launch moves its caller off the lent cores. The program's threads stay where they
        // were: homes that share the IOKernel's core with its polling thread wait for it at each
        // return (`python3 -m http.server` on two cores: 380-440 requests a second so, 580-640 with
        // both).
        let _ = rustix::thread::sched_setaffinity(None, &allowed);
    }
    result?;
    // SAFETY: the function is async-signal-safe.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    RUNS.store(true, Ordering::SeqCst);
    Ok(())
}

/// Makes a forked child one without a runtime, which is its parent's. Runs at `fork`; for children
/// that are made without the C library's handlers, too.
pub extern "C" fn forget() {
    RUNS.store(false, Ordering::SeqCst);
    // SAFETY: the one thread of the child is an ordinary one, and leaves no kthread.
    unsafe { set_inside(false) };
}

/// Returns whether the caller's context runs on a kthread and may leave it: false in the runtime's
/// own threads, and where preemption is off, which is in the runtime itself.
#[inline]
pub fn is_away() -> bool {
    let guard = NoPreempt::new();
    guard.lone_uthread().is_some_and(|me| me.resident)
}

/// Moves the caller's context to a kthread, if it is not on one. Returns false, and does nothing,
/// if there is no runtime, or no memory for the home.
#[inline]
pub fn enter() -> bool {
    inside() || enter_from_home()
}

#[cold]
fn enter_from_home() -> bool {
    let Some(me) = resident() else { return false };
    // A handler may have left a wait with a mask by a long jump.
    me.is_masked.store(false, Ordering::Relaxed);
    leave_home(me, set_mask(!FAULTS));
    true
}

/// Returns what the calling thread has of this module; `None` if there is no runtime, or no memory
/// for the home.
fn resident() -> Option<&'static Resident> {
    if !RUNS.load(Ordering::Relaxed) {
        return None;
    }
    RESIDENT.get().or_else(settle)
}

/// Moves the caller's context, which is at home and has blocked all signals, to a kthread. The home
/// takes those that `mask` does not block.
fn leave_home(me: &'static Resident, mask: u64) {
    me.mask.store(mask, Ordering::Relaxed);
    me.record.begin_leaving();
    let (save, released) = me.record.leave_slots();
    // SAFETY: 1. the home waits in `keep_home`, or was laid out by `settle`; only its OS thread,
    // which runs here, resumes it. 2. The record is never freed. 3. By `settle`. 4. An ordinary
    // thread is not preempted by the runtime. The flag is the context's, which is next resumed on a
    // kthread, with the count that is adopted.
    unsafe {
        set_inside(true);
        arch::switch(save, me.home_rsp.load(Ordering::Relaxed), released, me.home_fs);
        drop(NoPreempt::adopt());
    }
}

/// Handlers of signals have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    /// True if all of them have `SA_RESTART`: a call that Linux restarts goes on (signal(7)).
    pub restarts: bool,
}

/// Moves the caller's context back to its OS thread, where handlers of signals run that came
/// meanwhile; returns whether any did. Does nothing unless the caller [is away](is_away).
pub fn go_home() -> Option<Interrupted> {
    go_home_unseen()?.open()
}

/// As [`go_home`], in the middle of a call: one that ran beside the context during it counts, too.
pub fn go_home_within() -> Option<Interrupted> {
    return_home()?.open()
}

/// Forgets handlers that ran beside the caller's context: they end no wait from here on. Called
/// first in each function that the program calls.
#[inline]
pub fn begin_call() {
    if let Some(me) = RESIDENT.get()
        && me.handlers.load(Ordering::Relaxed) & RAN != 0
    {
        me.handlers.fetch_and(!(RAN | RAN_ENDS), Ordering::SeqCst);
    }
}

/// A context at home, with signals blocked.
pub(crate) struct Home {
    /// The mask that opens them, for the context to set.
    pub mask: &'static AtomicU64,
    /// What the handlers were that have run beside the context, and that the mask lets run.
    pub interrupted: Option<Interrupted>,
}

impl Home {
    /// Opens the signals, whose handlers run then.
    fn open(self) -> Option<Interrupted> {
        set_mask(self.mask.load(Ordering::Relaxed));
        self.interrupted
    }
}

/// As [`go_home`], but signals stay blocked; `None` unless the caller was away.
pub(crate) fn go_home_unseen() -> Option<Home> {
    begin_call();
    return_home()
}

/// As [`go_home_unseen`], in the middle of a call.
fn return_home() -> Option<Home> {
    if !RUNS.load(Ordering::Relaxed) || !inside() {
        return None;
    }
    let me = RESIDENT.get()?;
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("a context that is away runs on a kthread");
    if kthread.head().preempt_depth() != 1 {
        return None;
    }
    // SAFETY: 1. it leaves the kthread below, before preemption is on. 2. A running context has no
    // other.
    *me.returning.lock() = Some(unsafe { Runnable::new(&me.record) });
    ring(me);
    let (rsp, fs) =
        next_context(kthread, &me.record, Why::Blocks, None).expect("a context that leaves is not queued");
    let (save, released) = me.record.leave_slots();
    // SAFETY: as in `leave_core`. The home resumes the context, as an ordinary thread: the count
    // stays with the kthread, for what it runs next.
    unsafe {
        arch::switch(save, rsp, released, fs);
        core::mem::forget(guard);
        set_inside(false);
    }
    Some(Home { mask: &me.mask, interrupted: me.interruption() })
}

impl Resident {
    /// Returns what the handlers were that have run at home since the context left, and those that
    /// its mask lets run now; forgets the former. Called by the context, at home.
    fn interruption(&self) -> Option<Interrupted> {
        let state = self.handlers.swap(0, Ordering::SeqCst);
        let pending = due(self.mask.load(Ordering::Relaxed));
        let restarts = state & (DUE_ENDS | RAN_ENDS) == 0 && pending.is_none_or(|pending| pending.restarts);
        (state != 0 || pending.is_some()).then_some(Interrupted { restarts })
    }
}

/// Runs `f` at home. The caller stays there until it enters again.
pub fn at_home<R>(f: impl FnOnce() -> R) -> R {
    go_home();
    f()
}

/// Gives back what the calling thread has, which ends.
pub fn retire() {
    go_home();
    let Some(me) = RESIDENT.take() else { return };
    me.record.identity.end();
    FREE.lock().push(me);
}

/// How a [`wait`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// As [`Poller::wait`], with this number of events.
    Events(usize),
    /// Handlers of signals have run, at home, where the caller is now.
    Interrupted(Interrupted),
}

/// Waits as [`Poller::wait`], until a handler is to run besides.
pub fn wait(poller: &Arc<Poller>, events: &mut Events, timeout: Option<Duration>) -> Waited {
    let Some(me) = RESIDENT.get().filter(|_| inside()) else {
        return Waited::Events(poller.wait(events, timeout));
    };
    *me.waits.lock() = Some(Arc::clone(poller));
    // Either the home finds the poller, or the wait finds the handlers.
    let found = poller.wait_unless(events, timeout, &me.handlers);
    let poller = me.waits.lock().take();
    drop(poller);
    let handlers = me.handlers.load(Ordering::SeqCst);
    // Linux opens no mask of a wait that finds something, or is not to wait.
    let is_masked = me.is_masked.load(Ordering::Relaxed);
    if found == 0 && handlers != 0 && !(is_masked && timeout == Some(Duration::ZERO)) {
        let interrupted = return_home().and_then(Home::open);
        return interrupted.map_or(Waited::Events(0), Waited::Interrupted);
    }
    if handlers & DUE != 0 && !is_masked {
        go_home_within();
    }
    Waited::Events(found)
}

/// Returns the signal mask of the caller's context, if that is away.
pub fn mask() -> Option<u64> {
    if !is_away() {
        return None;
    }
    Some(RESIDENT.get()?.mask.load(Ordering::Relaxed))
}

/// Calls `wait` with the signal mask `mask`, as ppoll(2) waits with one: signals that it opens come
/// while `wait` waits, or stay blocked. It gets whether a handler is due already: it does not wait
/// then, and returns `None` if it finds nothing, on which the handler runs. The caller is at home,
/// before and after.
pub fn with_mask<R>(mask: u64, wait: impl FnOnce(bool) -> Option<R>) -> Option<R> {
    debug_assert!(!is_away(), "a wait with a mask begins at home");
    let before = set_mask(!FAULTS);
    let is_due = due(mask).is_some();
    let me = resident();
    // What comes from here on is pending when the home looks.
    match me {
        Some(me) => {
            me.is_masked.store(true, Ordering::Relaxed);
            // What is due is left to the context.
            leave_home(me, if is_due { !FAULTS } else { mask });
        }
        // There is no memory for a home, and nothing waits for served descriptors.
        None => {
            set_mask(mask);
        }
    }
    let result = wait(is_due);
    return_home();
    if let Some(me) = me {
        me.is_masked.store(false, Ordering::Relaxed);
    }
    if result.is_none() {
        set_mask(mask);
    }
    set_mask(before);
    result
}

/// Signals that came while their context waited for a word. The context is at home, with signals
/// blocked, and is to open `mask`.
#[cfg(feature = "libc-waits")]
pub(crate) struct Arrived {
    pub mask: &'static AtomicU64,
    /// As in [`Interrupted`].
    pub restarts: bool,
}

/// Calls `wait`, a wait of the current thread for the word at `address`, with what ends it
/// (`-EINTR`) unless it is 0: a handler is to run.
#[cfg(feature = "libc-waits")]
pub(crate) fn wait_for_word(
    address: usize,
    wait: impl FnOnce(&AtomicU8) -> isize,
) -> (isize, Option<Arrived>) {
    static NEVER: AtomicU8 = AtomicU8::new(0);
    let Some(me) = RESIDENT.get() else { return (wait(&NEVER), None) };
    begin_call();
    // SeqCst, as the store of `handlers` in `arrived`: either the home finds the word, or the wait
    // finds the handlers.
    me.word.store(address, Ordering::SeqCst);
    let result = wait(&me.handlers);
    me.word.store(0, Ordering::Relaxed);
    if me.handlers.load(Ordering::SeqCst) == 0 {
        return (result, None);
    }
    let arrived = return_home().map(|home| {
        let restarts = home.interrupted.is_none_or(|interrupted| interrupted.restarts);
        Arrived { mask: home.mask, restarts }
    });
    (result, arrived)
}

/// Makes a home for the calling thread, an ordinary one; `None` if there is no memory.
#[cold]
fn settle() -> Option<&'static Resident> {
    let free = FREE.lock().pop();
    let me = free.or_else(make)?;
    me.record.set_fs(arch::fs_base());
    me.record.identity.begin(identity::new_id(), None);
    // SAFETY: no preconditions.
    me.home_tid.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    // SAFETY: 1. the home's stack, which no thread uses: its last one has ended. 2. Once.
    let rsp =
        unsafe { arch::initial_stack(me.home_top, keep_home, core::ptr::from_ref(me).cast_mut().cast()) };
    me.home_rsp.store(rsp, Ordering::Relaxed);
    RESIDENT.set(Some(me));
    Some(me)
}

/// Maps a home: a guard page, the stack, and the thread-local block at the upper end.
fn make() -> Option<&'static Resident> {
    let shape = tls::shape().ok()?;
    let bytes = (PAGE + HOME_STACK + shape.block_size()).next_multiple_of(PAGE);
    let low = map(bytes).ok()?;
    // SAFETY: the mapping is fresh, zeroed and never given back; the caller is an ordinary thread.
    let home_fs = unsafe {
        guard_page(low);
        shape.make(low.add(bytes))
    };
    Some(Box::leak(Box::new(Resident {
        record: Uthread::of_resident(),
        home_rsp: AtomicUsize::new(0),
        home_top: low.wrapping_add(PAGE + HOME_STACK),
        home_fs,
        home_tid: AtomicI32::new(0),
        unused: AtomicU8::new(0),
        mask: AtomicU64::new(0),
        returning: SpinLock::new(None),
        handlers: AtomicU8::new(0),
        waits: SpinLock::new(None),
        word: AtomicUsize::new(0),
        is_masked: AtomicBool::new(false),
    })))
}

/// The main loop of a home: begins when its context has left for a kthread for the first time.
///
/// # Safety
/// `me` is a [`Resident`], and the caller a switch from its context on its OS thread.
unsafe extern "sysv64" fn keep_home(me: *mut u8) -> ! {
    // SAFETY: by the caller's contract; residents live as long as the process. The flag is that of
    // the home's own block, which is an ordinary thread's.
    let me = unsafe {
        set_inside(false);
        &*me.cast_const().cast::<Resident>()
    };
    loop {
        let runtime = started().expect("a context enters a runtime that was started");
        // SAFETY: 1. the context was saved by the switch that came here. 2. By the protocol above.
        inject(runtime, unsafe { Runnable::new(&me.record) });
        let (runnable, rung) = await_context(me);
        let (record, rsp) = runnable.claim();
        if !rung {
            // The ring came before the context was saved. Left pending, its handler would be
            // below that of a signal which cancels the thread, and could not be unwound.
            next_signal(bit(RING), None);
        }
        // SAFETY: 1. `claim` gave this thread the right to resume it. 2. Both are never freed. 3.
        // The record's own. 4. An ordinary thread.
        unsafe { arch::switch(me.home_rsp.as_ptr(), rsp, me.unused.as_ptr(), record.fs()) };
    }
}

/// Waits until the context returns, and handles signals meanwhile. Returns whether the ring was
/// taken.
fn await_context(me: &Resident) -> (Runnable, bool) {
    let (mut awaited, mut rung) = (false, false);
    loop {
        if let Some(runnable) = me.returning.lock().take() {
            return (runnable, rung);
        }
        let of_program = if awaited { 0 } else { !me.mask.load(Ordering::Relaxed) & !FAULTS };
        match next_signal(bit(RING) | of_program, awaited.then_some(PATIENCE)) {
            Some((RING, _)) => rung = true,
            Some((signal, info)) => awaited = arrived(me, signal, &info),
            None if awaited => {
                set_mask(me.mask.load(Ordering::Relaxed) | bit(credentials::SIGNAL));
                set_mask(!FAULTS);
                awaited = false;
                // A signal that came meanwhile is pending, and is taken next.
                let ran =
                    |handlers| Some(handlers & (RAN | RAN_ENDS) | (handlers & (DUE | DUE_ENDS)) << RAN_SHIFT);
                let _ = me.handlers.fetch_update(Ordering::SeqCst, Ordering::Relaxed, ran);
            }
            None => {}
        }
    }
}

/// Handles a signal that was taken off the queue; returns whether the context is to come for it.
fn arrived(me: &Resident, signal: i32, info: &libc::siginfo_t) -> bool {
    let Some(disposition) = disposition(signal) else { return false };
    // SAFETY: the kernel copies the signal's own information, to the calling thread.
    unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            libc::getpid(),
            libc::gettid(),
            signal,
            core::ptr::from_ref(info),
        )
    };
    if disposition == Disposition::Default {
        // Ends or stops the process, where the signal does that.
        set_mask(!FAULTS & !bit(signal));
        set_mask(!FAULTS);
        return false;
    }
    let ends = if disposition == (Disposition::Handler { restarts: false }) { DUE_ENDS } else { 0 };
    me.handlers.fetch_or(DUE | ends, Ordering::SeqCst);
    if let Some(poller) = &*me.waits.lock() {
        poller.interrupt();
    }
    #[cfg(feature = "libc-waits")]
    if let address @ 1.. = me.word.load(Ordering::SeqCst) {
        crate::libc_waits::interrupt(&me.record, address);
    }
    true
}

/// Wakes the home.
fn ring(me: &Resident) {
    let tid = me.home_tid.load(Ordering::Relaxed);
    // SAFETY: a signal to a thread of this process, which waits for it: it cannot fail.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, RING) };
}
