//! [`blocking`]: work that blocks in the kernel, on ordinary threads, while the user thread waits
//! without a core.
//!
//! Owns a pool of OS threads that run outside the managed cores. It begins with one thread, started
//! where the runtime is started, and every other thread is started by one of them: a thread started
//! from a kthread would inherit its core and its priority.
//!
//! # Invariants
//! * A thread about to run a job while no other waits for one starts a successor first, up to the
//!   limit: so there is a thread for the next job, and only the pool starts threads.
//! * A job lies on the stack of the user thread that waits for it, so the queue is bounded by the
//!   number of user threads. The job is not touched after its packet is complete.
//! * A thread without a job for [`KEEP`] ends, unless it is the last waiting one.

use crate::ground::guard::NoPreempt;
use crate::ground::spin::SpinLock;
use crate::records::kthread::current_uthread;
use crate::records::runtime::deadline_after;
use crate::verbs::completion::{Completion, Left};
use crate::verbs::ready::ready;
use crate::verbs::wait::{self, WaitList, WaitOutcome};
use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use std::collections::VecDeque;
use std::io;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::time::Duration;

/// How long a thread waits for a job before it ends.
const KEEP: Duration = Duration::from_secs(10);

/// The process's pool.
static POOL: OnceLock<BlockingPool> = OnceLock::new();

/// Starts the process's pool of at most `limit` threads. Called from an ordinary thread off the
/// managed cores.
///
/// # Errors
/// If no thread can be started.
pub fn start(limit: u16) -> io::Result<()> {
    POOL.get_or_init(|| BlockingPool::new(limit)).start()
}

/// A call that a thread waits for.
struct Job {
    run: unsafe fn(*const ()),
    call: *const (),
}

// SAFETY: the call is made of Send parts (`BlockingPool::run`), and used by one thread of the pool.
unsafe impl Send for Job {}

struct Call<F, T> {
    function: Cell<Option<F>>,
    completion: Completion<T>,
}

/// # Safety
/// `call` is a `Call<F, T>` that lives until it is complete, and no other thread runs it.
unsafe fn run_call<F: FnOnce() -> T, T>(call: *const ()) {
    // SAFETY: by the caller's contract.
    let call = unsafe { &*call.cast::<Call<F, T>>() };
    let function = call.function.take().expect("a job runs once");
    let result = catch_unwind(AssertUnwindSafe(function));
    // SAFETY: by the caller's contract this is the one completer; nothing of the call is used
    // afterwards, and it is never abandoned.
    unsafe {
        call.completion.store(result);
        if let Left::Waiter(waiter) = Completion::complete(&raw const call.completion) {
            ready(waiter);
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct BlockingPool {
    limit: usize,
    keep: Duration,
    state: SpinLock<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    waiting: WaitList,
    /// Threads without a job, including those being started.
    idle: usize,
    threads: usize,
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} jobs, {} of {} threads idle", self.jobs.len(), self.idle, self.threads)
    }
}

impl BlockingPool {
    /// Returns a pool of at most `limit` threads; [`start`](Self::start) starts the first.
    pub fn new(limit: u16) -> Self {
        Self { limit: limit.into(), keep: KEEP, state: SpinLock::default() }
    }

    /// Starts the first thread. Call once, from an ordinary thread off the managed cores.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(&'static self) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.threads = 1;
            state.idle = 1;
        }
        self.start_thread()
    }

    fn start_thread(&'static self) -> io::Result<()> {
        std::thread::Builder::new().name("tailwater/blocking".to_owned()).spawn(move || self.work()).map(drop)
    }

    /// Runs a thread of the pool, which its starter has counted as idle.
    fn work(&'static self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.idle -= 1;
                let needs_successor = state.idle == 0 && state.threads < self.limit;
                if needs_successor {
                    state.threads += 1;
                    state.idle += 1;
                }
                drop(state);
                if needs_successor && self.start_thread().is_err() {
                    // If no successor can be started, the next job waits for an existing thread.
                    let mut state = self.state.lock();
                    state.threads -= 1;
                    state.idle -= 1;
                }
                // SAFETY: the thread that queued the job waits for it.
                unsafe { (job.run)(job.call) };
                state = self.state.lock();
                state.idle += 1;
                continue;
            }
            let deadline = Some(deadline_after(self.keep));
            // SAFETY: `waiting` is the state's only list, and stays in it.
            let outcome = unsafe { wait::wait(state, |s| &mut s.waiting, deadline) };
            state = self.state.lock();
            if outcome == WaitOutcome::TimedOut && state.jobs.is_empty() && state.idle > 1 {
                state.idle -= 1;
                state.threads -= 1;
                return;
            }
        }
    }

    /// Runs `function` on a thread of the pool and waits for it.
    fn run<F: FnOnce() -> T + Send, T: Send>(&self, function: F) -> T {
        let call = Call { function: Cell::new(Some(function)), completion: Completion::new() };
        let job = Job { run: run_call::<F, T>, call: (&raw const call).cast() };
        {
            let mut state = self.state.lock();
            state.jobs.push_back(job);
            state.waiting.wake_one();
        }
        // SAFETY: no other thread waits. The wait cannot end early, not even by panic (`blocking`
        // has checked that it may block): the call stays where it is until it is complete.
        unsafe { call.completion.wait() }.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Runs `f` on an ordinary thread and waits for it without holding the core: for files, foreign
/// libraries and other calls that block in the kernel. `f` may borrow. On an ordinary thread this
/// simply calls `f`.
///
/// A pool of up to [`blocking_threads`](crate::RuntimeBuilder::blocking_threads) threads runs such
/// calls, off the managed cores; further calls wait their turn. These threads are not user threads:
/// thread-locals are the pool thread's.
///
/// # Panics
/// If `f` panics, with its payload; on a user thread within
/// [`no_preempt`](crate::no_preempt).
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     let path = String::from("/proc/self/status");
///     let status = tailwater::blocking(|| std::fs::read_to_string(&path)).unwrap();
///     assert!(status.contains("Threads:"));
/// }
/// ```
pub fn blocking<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    if current_uthread().is_none() {
        return f();
    }
    wait::check_may_block(&NoPreempt::new());
    POOL.get().expect("the runtime starts the pool").run(f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::Instant;

    #[test]
    fn the_pool_grows_for_jobs_that_need_each_other_and_shrinks_again() {
        let pool: &'static BlockingPool =
            Box::leak(Box::new(BlockingPool { keep: Duration::from_millis(5), ..BlockingPool::new(4) }));
        pool.start().unwrap();
        let barrier = Barrier::new(4);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| pool.run(|| barrier.wait()));
            }
        });
        assert!(pool.state.lock().threads <= 4);
        let start = Instant::now();
        while pool.state.lock().threads > 1 {
            assert!(start.elapsed() < tailwater_testkit::PATIENCE, "{:?}", pool.state.lock());
            std::thread::yield_now();
        }
        assert_eq!(pool.run(|| 5), 5, "the last thread stays");
    }
}
