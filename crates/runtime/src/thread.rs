//! User threads: [`spawn`], [`JoinHandle`], [`yield_now`], [`sleep`], with the meaning they have in `std::thread`.
//!
//! A thread's captures lie at the upper end of its own stack (Shenango section 6.2), so spawning allocates only what the
//! two sides share: the result and the joiner's wait list.

use crate::kthread::{self, NoPreempt};
use crate::runtime::runtime;
use crate::stack::StackError;
use crate::sync::spin::SpinLock;
use crate::sync::wait::{self, WaitList};
use crate::uthread::{Entry, Uthread};
use crate::worker;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;
use tailwater_shm::clock;

/// Captures larger than this are boxed rather than put on the new stack.
const INLINE_CAPTURES: usize = 2048;

/// What a thread and whoever joins it share.
#[derive(Debug)]
pub(crate) struct Packet<T>(SpinLock<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    result: Option<std::thread::Result<T>>,
    finished: bool,
    waiters: WaitList,
}

impl<T> Packet<T> {
    pub(crate) fn new() -> Self {
        Self(SpinLock::new(Shared { result: None, finished: false, waiters: WaitList::new() }))
    }

    /// Waits until the thread has finished and takes its result.
    pub(crate) fn wait(&self) -> std::thread::Result<T> {
        loop {
            let mut shared = self.0.lock();
            if shared.finished {
                return shared.result.take().expect("a thread is joined once");
            }
            wait::wait(shared, |s| &mut s.waiters, None);
        }
    }
}

/// What lies at the upper end of a new thread's stack.
struct Start<F, T> {
    main: Option<F>,
    packet: Arc<Packet<T>>,
}

/// # Safety
/// `data` is a live `Start<F, T>` that only this thread uses.
unsafe fn run<F: FnOnce() -> T, T>(data: *mut u8) {
    // SAFETY: by the caller's contract.
    let start = unsafe { &mut *data.cast::<Start<F, T>>() };
    let main = start.main.take().expect("a thread runs once");
    let result = catch_unwind(AssertUnwindSafe(main));
    start.packet.0.lock().result = Some(result);
}

/// # Safety
/// As [`run`], called after it, once.
unsafe fn finish<F, T>(data: *mut u8) {
    // SAFETY: by the caller's contract; nothing uses the Start after this.
    let start = unsafe { data.cast::<Start<F, T>>().read() };
    let mut shared = start.packet.0.lock();
    shared.finished = true;
    shared.waiters.wake_all();
    drop(shared);
}

/// Makes a thread that will run `main`; the caller queues it.
pub(crate) fn prepare<F, T>(main: F, packet: Arc<Packet<T>>) -> Result<&'static Uthread, StackError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    const { assert!(align_of::<F>() <= 64, "captures of a thread cannot be aligned to more than 64 bytes") };
    let guard = NoPreempt::new();
    let uthread = runtime().stacks.take(&guard)?.uthread();
    let data = (uthread.top() as usize - size_of::<Start<F, T>>()) & !63;
    let data = data as *mut Start<F, T>;
    // SAFETY: the stack is free; `data` lies at its upper end, aligned, with room for the Start (spawn boxes large captures,
    // and stacks have 16 KiB at least); the Start is used by `run` and `finish` of the same types only.
    unsafe {
        data.write(Start { main: Some(main), packet });
        let entry = Entry { run: run::<F, T>, finish: finish::<F, T>, data: data.cast() };
        uthread.prepare(entry, data.cast(), worker::uthread_main);
    }
    Ok(uthread)
}

/// Starts a user thread.
///
/// The thread runs when a kthread gets to it; it is detached if the handle is dropped. May be called from ordinary OS
/// threads once the runtime runs.
///
/// # Panics
/// If there is no runtime, or no memory for a stack.
pub fn spawn<F, T>(main: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let packet = Arc::new(Packet::new());
    let uthread = if size_of::<F>() <= INLINE_CAPTURES {
        prepare(main, Arc::clone(&packet))
    } else {
        prepare(Box::new(main), Arc::clone(&packet))
    };
    worker::ready(uthread.unwrap_or_else(|e| panic!("cannot start a user thread: {e}")));
    JoinHandle(packet)
}

/// Waits for a user thread and takes its result.
#[derive(Debug)]
pub struct JoinHandle<T>(Arc<Packet<T>>);

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended, thread-local destructors included.
    ///
    /// # Errors
    /// The payload of the panic that ended the thread.
    pub fn join(self) -> std::thread::Result<T> {
        self.0.wait()
    }

    /// Whether the thread has ended; `join` then returns at once.
    pub fn is_finished(&self) -> bool {
        self.0.0.lock().finished
    }
}

/// Lets other runnable threads run first. Also a poll point.
pub fn yield_now() {
    worker::yield_now();
}

/// Sleeps for at least `duration`. Other user threads run meanwhile; on an ordinary thread this is `std::thread::sleep`.
pub fn sleep(duration: Duration) {
    if kthread::current_uthread().is_none() {
        return std::thread::sleep(duration);
    }
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    wait::sleep_until(clock::now().saturating_add(crate::clock().from_ns(ns)));
}

/// Whether the caller is a user thread (and not an ordinary OS thread).
pub fn is_user_thread() -> bool {
    kthread::current_uthread().is_some()
}

/// The most user threads that run at once: the number of kthreads of the runtime.
///
/// # Panics
/// If there is no runtime.
pub fn available_parallelism() -> usize {
    runtime().kthreads.len()
}
