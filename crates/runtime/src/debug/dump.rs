//! The dump of all user threads.

use super::unwind::{StackFrame, Unwinder};
use crate::blocking::blocking;
use crate::records::kthread::Kthread;
use crate::records::registry;
use crate::records::runtime::{self, Runtime};
use crate::records::uthread::Uthread;
use crate::thread::{Thread, UserThread};
use crate::verbs::snapshot;
use core::fmt;
use std::collections::{HashMap, HashSet};

/// Maximum number of threads that a dump reads; the others are counted.
const MAX_THREADS: usize = 10_000;

/// The state of a thread.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::debug::ThreadState;
///
/// #[tailwater::main]
/// fn main() {
///     let running = |state| matches!(state, ThreadState::Running { .. });
///     let count = tailwater::dump().threads.iter().filter(|t| running(t.state)).count();
///     assert_eq!(count, 0, "the only thread waits for the dump");
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThreadState {
    /// Runs on this kthread.
    Running {
        /// The kthread's number.
        kthread: u16,
    },
    /// Waits for a kthread to run it.
    Runnable,
    /// Waits in [`park`](crate::thread::park).
    Parked,
    /// Waits for something else: the backtrace shows for what.
    Blocked,
}

impl fmt::Display for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { kthread } => write!(f, "running on kthread {kthread}"),
            Self::Runnable => f.write_str("runnable"),
            Self::Parked => f.write_str("parked"),
            Self::Blocked => f.write_str("blocked"),
        }
    }
}

/// A dump's information about one thread. Displays as a line and a backtrace.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     let dump = tailwater::dump();
///     let main = &dump.threads[0];
///     assert!(main.to_string().starts_with("user thread 'main' (1): blocked"));
///     assert!(!main.backtrace.is_empty());
/// }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The thread.
    pub thread: Thread,
    /// Its state.
    pub state: ThreadState,
    /// Its backtrace, youngest frame first; empty if it moved while it was read.
    pub backtrace: Vec<StackFrame>,
    label: String,
}

impl fmt::Display for ThreadInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "user thread {}: {}", self.label, self.state)?;
        if self.backtrace.is_empty() {
            return writeln!(f, "   it moved while it was read");
        }
        write_backtrace(f, &self.backtrace)
    }
}

/// All user threads; see [`dump`]. Displays as a report of many lines.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     let dump = tailwater::dump();
///     assert_eq!((dump.threads.len(), dump.left_out), (1, 0));
///     assert!(dump.to_string().starts_with("tailwater: 1 user threads"));
/// }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Dump {
    /// The threads by id, at most 10,000.
    pub threads: Vec<ThreadInfo>,
    /// Number of further threads.
    pub left_out: usize,
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tailwater: {} user threads", self.threads.len() + self.left_out)?;
        for thread in &self.threads {
            write!(f, "\n{thread}")?;
        }
        if self.left_out > 0 {
            writeln!(f, "\n{} more left out", self.left_out)?;
        }
        Ok(())
    }
}

pub fn write_backtrace(out: &mut impl fmt::Write, frames: &[StackFrame]) -> fmt::Result {
    frames.iter().enumerate().try_for_each(|(number, frame)| writeln!(out, "{number:>4}: {frame}"))
}

/// Returns all user threads with state and backtrace. Threads continue meanwhile.
///
/// Takes milliseconds, and longer the first time, when symbols are read; a user thread that calls
/// this waits as in [`blocking`](fn@crate::blocking), and appears so. Without a runtime there are
/// no threads.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     let waiter = thread::Builder::new().name("waiter".to_owned()).spawn(thread::park).unwrap();
///     let dump = tailwater::dump();
///     assert!(dump.threads.iter().any(|t| t.thread.name() == Some("waiter")));
///     println!("{dump}");
///     waiter.thread().unpark();
///     waiter.join().unwrap();
/// }
/// ```
pub fn dump() -> Dump {
    match runtime::started() {
        // Reads files and takes locks of other libraries, which a user thread must not.
        Some(runtime) => blocking(|| look(runtime)),
        None => Dump { threads: Vec::new(), left_out: 0 },
    }
}

fn look(runtime: &Runtime) -> Dump {
    let mut unwinder = Unwinder::new();
    let running: HashMap<*const Uthread, &'static Kthread> = runtime
        .kthreads
        .iter()
        .filter_map(|&kthread| Some((core::ptr::from_ref(kthread.current()?), kthread)))
        .collect();
    let queued = queued(runtime);
    let mut found: Vec<UserThread> = registry::records().filter_map(UserThread::of_record).collect();
    found.sort_unstable_by_key(|thread| thread.id);
    let left_out = found.len().saturating_sub(MAX_THREADS);
    found.truncate(MAX_THREADS);
    let threads = found
        .into_iter()
        .map(|thread| {
            let record: *const Uthread = thread.record;
            let (state, snapshot) = match running.get(&record) {
                Some(kthread) => {
                    let sample = snapshot::of_running(kthread).filter(|(sampled, _)| *sampled == record);
                    (ThreadState::Running { kthread: kthread.index }, sample.map(|(_, snapshot)| snapshot))
                }
                None => {
                    let state = if queued.contains(&record) {
                        ThreadState::Runnable
                    } else if thread.identity().is_parked() {
                        ThreadState::Parked
                    } else {
                        ThreadState::Blocked
                    };
                    (state, snapshot::of_suspended(thread.record))
                }
            };
            let backtrace = snapshot.map_or_else(Vec::new, |snapshot| unwinder.backtrace(&snapshot));
            ThreadInfo { label: thread.to_string(), thread: thread.into(), state, backtrace }
        })
        .collect();
    Dump { threads, left_out }
}

/// Returns all threads that are in a queue.
fn queued(runtime: &Runtime) -> HashSet<*const Uthread> {
    let mut queued: HashSet<_> = runtime.injected_snapshot().into_iter().collect();
    queued.extend(runtime.background.snapshot());
    for kthread in &runtime.kthreads {
        queued.extend(kthread.runq.snapshot());
        queued.extend(kthread.mailbox.peek().map(|address| address as *const Uthread));
        // Copied before it is hashed: other kthreads may wait for the lock.
        let overflow: Vec<_> =
            kthread.overflow.lock().iter().map(|r| core::ptr::from_ref(r.thread())).collect();
        queued.extend(overflow);
    }
    queued
}
