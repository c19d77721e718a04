//! Starts, ends and joins threads.
//!
//! A thread's captures lie at the upper end of its own stack (Shenango section 6.2), so spawning
//! allocates only what the two sides share: see [`packet`](crate::thread::packet).
//!
//! # The end of a thread
//! 1. the closure returns or panics, its captures are dropped, its result is stored;
//! 2. thread-local destructors run;
//! 3. the result is announced;
//! 4. if the joiner is gone, the result is dropped, and then the destructors that this registered
//!    run;
//! 5. the scope counts the thread out;
//! 6. handles go stale;
//! 7. the stack is freed;
//! 8. the joiner is made runnable, or run at once if no other thread waits here.

use crate::ground::guard::NoPreempt;
use crate::ground::memory::StackError;
use crate::records::identity;
use crate::records::kthread::current_uthread;
use crate::records::runtime::runtime;
use crate::records::uthread::{Entry, Runnable, Uthread};
use crate::thread::class::{self, Reserved, ThreadClass};
use crate::thread::handle::{Thread, UserThread};
use crate::thread::packet::{Completer, Joiner, packet};
use crate::thread::placement::Placement;
use crate::thread::scope_data::ScopeData;
use crate::time::sleep;
use crate::verbs::place::ready_at;
use crate::verbs::ready::ready;
use crate::verbs::switch::{poll, uthread_main};
use crate::verbs::trace;
use crate::verbs::{background, hooks};
use core::panic::AssertUnwindSafe;
use std::io;
use std::panic::catch_unwind;
use std::sync::Arc;

/// Captures larger than this are boxed rather than put on the new stack.
const INLINE_CAPTURES: usize = 2048;

/// The contents of the upper end of a new thread's stack.
struct Start<F, T> {
    main: Option<F>,
    completer: Completer<T>,
}

/// # Safety
/// `data` is a live `Start<F, T>` that only this thread uses.
unsafe fn run<F: FnOnce() -> T, T>(data: *mut u8) {
    // SAFETY: by the caller's contract.
    let start = unsafe { &mut *data.cast::<Start<F, T>>() };
    let main = start.main.take().expect("a thread runs once");
    let result = catch_unwind(AssertUnwindSafe(main));
    start.completer.store(result);
}

/// # Safety
/// As [`run`], called after it, once, when the thread-local destructors have run.
unsafe fn finish<F, T>(data: *mut u8) -> Option<Runnable> {
    // SAFETY: by the caller's contract; nothing uses the Start after this.
    let Start { completer, .. } = unsafe { data.cast::<Start<F, T>>().read() };
    let me = current_uthread().expect("runs on the thread that ends");
    if me.is_exclusive() {
        // Before the thread that joins it makes another one.
        class::end_exclusive(me);
    }
    // SAFETY: `run` stored a result.
    let joiner = unsafe {
        completer.finish(
            #[cold]
            // SAFETY: 1. on the thread that owns them. 2. Its closure has returned; the result's
            // destructor may have registered some.
            || me.destructors.run(),
        )
    };
    // A background thread may be preempted from here on, and then has to wait for idle time.
    let joiner = if me.is_background() { joiner.and_then(ready_now) } else { joiner };
    me.identity.end();
    joiner
}

fn ready_now(joiner: Runnable) -> Option<Runnable> {
    ready(joiner);
    None
}

/// Settings of a thread.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub name: Option<Arc<str>>,
    /// Checked to be in range.
    pub stack_size: Option<usize>,
    pub placement: Placement,
    /// That of the creator if `None`.
    pub class: Option<ThreadClass>,
    /// True if the thread does nothing for the request that its creator carries, if that is traced.
    pub unrelated: bool,
}

/// Makes a thread that will run `main`; the caller queues it.
///
/// # Errors
/// If there is no memory for a stack.
///
/// # Safety
/// `F` and `T` outlive the thread, or `scope` waits for it.
pub(crate) unsafe fn prepare<F, T>(
    main: F,
    options: Options,
    scope: Option<Arc<ScopeData>>,
) -> Result<(Joiner<T>, Runnable), StackError>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    const { assert!(align_of::<F>() <= 64, "captures of a thread cannot be aligned to more than 64 bytes") };
    let guard = NoPreempt::new();
    let stacks = &runtime().stacks;
    let stack = match options.stack_size {
        None => stacks.take(&guard)?,
        Some(bytes) => stacks.custom.take(bytes, &guard)?,
    };
    let record: &'static Uthread = stack.uthread();
    record.set_class(options.class.unwrap_or_default());
    record.pin_to(None);
    let id = match guard.kthread() {
        Some(kthread) => kthread.private().thread_ids.next(),
        None => identity::new_id(),
    };
    record.identity.begin(id, options.name.as_ref());
    if let Some(kthread) = guard.kthread()
        && let Some(me) = kthread.current()
        && me.carried.is_some()
        && !options.unrelated
    {
        trace::pass_on(kthread, me, record);
    }
    let (completer, joiner) = packet(UserThread { record, id, name: options.name }.into(), scope);
    let data = (record.top() as usize - size_of::<Start<F, T>>()) & !63;
    let data = data as *mut Start<F, T>;
    // SAFETY: the stack is free; `data` lies at its upper end, aligned, with room for the Start
    // (`start` boxes large captures, and stacks have 16 KiB at least); the Start is used by `run`
    // and `finish` of the same types only, while both live by the caller's contract.
    let runnable = unsafe {
        data.write(Start { main: Some(main), completer });
        let entry = Entry { run: run::<F, T>, finish: finish::<F, T>, data: data.cast() };
        record.prepare(entry, data.cast(), uthread_main)
    };
    Ok((joiner, runnable))
}

/// Starts a thread of the library's own, in the usual class: the first thread that needs it may be
/// a background thread, and all others depend on it.
///
/// # Panics
/// Without memory for a stack.
pub(crate) fn spawn_normal(main: impl FnOnce() + Send + 'static) {
    start_normal(main).expect("memory for the stack of a thread");
}

/// As [`spawn_normal`].
///
/// # Errors
/// `OutOfMemory`.
fn start_normal(main: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let options = Options { class: Some(ThreadClass::Normal), unrelated: true, ..Options::default() };
    // SAFETY: everything is 'static.
    unsafe { start(main, options, None) }.map(drop)
}

/// Runs the keeper ([`background`]): never returns.
fn run_keeper() {
    loop {
        background::wait_for_one(runtime());
        sleep(background::KEEPER_INTERVAL);
    }
}

/// Makes a thread and queues it.
///
/// # Errors
/// `OutOfMemory`; for an exclusive thread also if it cannot have a core.
///
/// # Safety
/// As [`prepare`].
#[inline]
pub(crate) unsafe fn start<F, T>(
    main: F,
    options: Options,
    scope: Option<Arc<ScopeData>>,
) -> io::Result<Joiner<T>>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    poll();
    let target = options.placement.target();
    let options = Options { class: options.class.or_else(ThreadClass::inherited), ..options };
    if options.class == Some(ThreadClass::Background)
        && class::begin_background()
        && runtime().iokernel.is_some()
    {
        hooks::install_keeper(background::rouse_keeper);
        start_normal(run_keeper).inspect_err(|_| runtime().background.unbegin())?;
    }
    let reserved = match options.class {
        Some(ThreadClass::Exclusive) => Some(Reserved::new()?),
        _ => None,
    };
    // SAFETY: the caller's contract is the callee's.
    let made = unsafe {
        if size_of::<F>() <= INLINE_CAPTURES {
            prepare(main, options, scope)
        } else {
            prepare(Box::new(main), options, scope)
        }
    };
    let (joiner, runnable) = made.map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
    // The thread may run, and end, at once.
    if let Some(reserved) = reserved {
        reserved.keep();
    }
    match target {
        None => ready(runnable),
        Some(target) => ready_at(target, runnable),
    }
    Ok(joiner)
}

/// Starts a user thread.
///
/// The thread runs when a kthread is free for it; it is detached if the handle is dropped. May be
/// called from ordinary OS threads once the runtime runs. [`Builder`](crate::thread::Builder) sets
/// a name and a stack size.
///
/// # Panics
/// If there is no runtime, or no memory for a stack.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     let squares: Vec<_> = (0..10).map(|i| tailwater::thread::spawn(move || i * i)).collect();
///     assert_eq!(squares.into_iter().map(|s| s.join().unwrap()).sum::<i32>(), 285);
/// }
/// ```
pub fn spawn<F, T>(main: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // SAFETY: everything is 'static.
    match unsafe { start(main, Options::default(), None) } {
        Ok(joiner) => JoinHandle(joiner),
        Err(e) => panic!("cannot start a user thread: {e}"),
    }
}

/// Handle of a user thread: waits for the thread and returns its result.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     assert_eq!(thread::spawn(|| 42).join().unwrap(), 42);
///     let panicked = thread::spawn(|| -> () { panic!("this thread ends, the process does not") });
///     assert!(panicked.join().is_err());
/// }
/// ```
#[derive(Debug)]
pub struct JoinHandle<T>(pub(super) Joiner<T>);

// SAFETY: `spawn` makes handles for results that are `Send` only; see `Joiner`.
unsafe impl<T> Send for JoinHandle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended, including its thread-local destructors, and returns its
    /// result.
    ///
    /// # Errors
    /// The payload of the panic that ended the thread.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     assert_eq!(thread::spawn(|| 42).join().unwrap(), 42);
    ///     let panic = thread::spawn(|| -> () { panic!("oh") }).join().unwrap_err();
    ///     assert_eq!(panic.downcast_ref(), Some(&"oh"));
    /// }
    /// ```
    pub fn join(self) -> std::thread::Result<T> {
        self.0.join()
    }

    /// Returns whether the thread has ended; `join` then returns at once.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let thread = thread::spawn(|| ());
    ///     while !thread.is_finished() {
    ///         thread::yield_now();
    ///     }
    ///     thread.join().unwrap();
    /// }
    /// ```
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Returns a handle to the thread.
    pub fn thread(&self) -> &Thread {
        self.0.thread()
    }
}
