//! [`ThreadClass`]: what a thread is to its program.
//!
//! Owns what the first background thread and each exclusive thread need, and the error if an
//! exclusive thread cannot have a core of its own.

use crate::cores;
use crate::ground::guard::NoPreempt;
use crate::records::kthread::current_uthread;
use crate::records::loan::Loan;
use crate::records::runtime::{Runtime, runtime};
use crate::records::uthread::{self, Uthread};
use crate::verbs::{host, quantum};
use std::io;

/// What a thread is to its program; see [`Builder::class`](crate::thread::Builder::class).
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread::{Builder, ThreadClass};
///
/// #[tailwater::main]
/// fn main() {
///     let batch = Builder::new().class(ThreadClass::Background).spawn(|| 6 * 7).unwrap();
///     assert_eq!(batch.join().unwrap(), 42);
/// }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThreadClass {
    /// It runs before all background threads.
    #[default]
    Normal,
    /// It runs only on a kthread that has nothing else to do, and gives way to anything else at a
    /// poll point within about a microsecond. An IOKernel takes its core as if that were idle, for
    /// any program that needs one.
    Background,
    /// It runs alone on a kthread: no other user thread runs or is queued there, as long as the
    /// program has another core for its other threads. From its creation to its end the program
    /// requests one more core, as by [`cores::request`](crate::cores::request) at priority 0; see
    /// there for when a requested core can be taken. If the IOKernel wants the core back, the
    /// thread gives it up at its next poll point, and goes on when the program has one again.
    ///
    /// A program has at most one less than it has kthreads, and than the IOKernel manages cores;
    /// beyond that no more can be made. The IOKernel must have `policy = "arbiter"`. Without an
    /// IOKernel the thread has a kthread of its own, and Linux decides where that runs.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tailwater::thread::{self, Builder, ThreadClass};
    ///
    /// # tailwater::allocator!();
    /// fn main() {
    ///     let rounds = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
    ///         let stop = Arc::new(AtomicBool::new(false));
    ///         let stopped = Arc::clone(&stop);
    ///         let poller = Builder::new().class(ThreadClass::Exclusive).spawn(move || {
    ///             let mut rounds = 0u64;
    ///             while !stopped.load(Ordering::Relaxed) {
    ///                 tailwater::poll();
    ///                 rounds += 1;
    ///             }
    ///             rounds
    ///         });
    ///         // Other threads run beside it.
    ///         thread::spawn(move || stop.store(true, Ordering::Relaxed));
    ///         poller.unwrap().join().unwrap()
    ///     });
    ///     println!("{} rounds", rounds.unwrap());
    /// }
    /// ```
    Exclusive,
}

impl ThreadClass {
    /// Returns the class of the calling thread, if threads that it creates are of that class and it
    /// is not the usual one.
    pub(crate) fn inherited() -> Option<Self> {
        let inherits = runtime().background.is_used() && current_uthread()?.is_background();
        inherits.then_some(Self::Background)
    }

    /// Returns the class as a thread's record has it.
    pub(crate) fn recorded(class: Option<Self>) -> uthread::Class {
        match class {
            None | Some(Self::Normal) => uthread::Class::Normal,
            Some(Self::Background) => uthread::Class::Background,
            Some(Self::Exclusive) => uthread::Class::Exclusive,
        }
    }
}

/// Prepares the runtime for background threads; returns whether this is the first.
pub(crate) fn begin_background() -> bool {
    let is_first = runtime().background.begin();
    if is_first {
        quantum::watch_slices(runtime());
    }
    is_first
}

/// One exclusive thread, and the core that is requested for it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved(());

impl Reserved {
    /// Counts one more exclusive thread, and requests a core for it.
    ///
    /// # Errors
    /// If the program cannot have a core for it.
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = runtime();
        if runtime.loan.is_some() {
            cores::check_requests()
                .map_err(|error| io::Error::new(io::ErrorKind::Unsupported, Refused::Requests(error)))?;
        }
        let limit = limit(runtime);
        if !runtime.exclusive.begin(limit.threads()) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, Refused::Limit(limit)));
        }
        cores::request_exclusive(1);
        Ok(Self(()))
    }

    /// Leaves the count and the request to the thread, which calls [`end_exclusive`].
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        cores::request_exclusive(-1);
        runtime().exclusive.end();
    }
}

/// Makes `me`, the calling exclusive thread, an ordinary one, and its host an ordinary kthread.
#[cold]
pub(crate) fn end_exclusive(me: &'static Uthread) {
    {
        let guard = NoPreempt::new();
        me.set_class(uthread::Class::Normal);
        if let Some(kthread) = guard.kthread() {
            host::release(kthread, runtime());
        }
    }
    drop(Reserved(()));
}

/// What limits the number of exclusive threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    kthreads: usize,
    /// Cores that the IOKernel manages.
    cores: Option<usize>,
}

impl Limit {
    /// Returns how many there may be: one core is left to the other threads.
    fn threads(self) -> usize {
        self.cores.map_or(self.kthreads, |cores| cores.min(self.kthreads)).saturating_sub(1)
    }
}

fn limit(runtime: &Runtime) -> Limit {
    let cores = runtime.loan.map(Loan::managed_cores);
    Limit { kthreads: runtime.kthreads.len(), cores }
}

/// Why an exclusive thread is not made.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("an exclusive thread requests a core: {0}")]
    Requests(cores::CorePolicyError),
    #[error("{}", describe(*.0))]
    Limit(Limit),
}

fn describe(limit: Limit) -> String {
    let Limit { kthreads, cores } = limit;
    match cores {
        Some(cores) if cores <= kthreads => format!(
            "no core for another exclusive thread: the IOKernel manages {cores}, and one is for the other \
             threads; give it more with `managed-cores`, or end an exclusive thread"
        ),
        _ => format!(
            "no kthread for another exclusive thread: the program has {kthreads}, and one is for the other \
             threads; raise TAILWATER_KTHREADS or tailwater::RuntimeBuilder::kthreads, or end an exclusive thread"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kthread_and_one_core_are_left_to_the_other_threads() {
        let limit = |kthreads, cores| Limit { kthreads, cores };
        assert_eq!(limit(4, None).threads(), 3);
        assert_eq!(limit(4, Some(2)).threads(), 1);
        assert_eq!(limit(2, Some(8)).threads(), 1);
        assert_eq!(limit(1, None).threads(), 0);
        assert_eq!(limit(4, Some(1)).threads(), 0);
        assert!(describe(limit(4, Some(1))).contains("managed-cores"));
        assert!(describe(limit(1, Some(2))).contains("TAILWATER_KTHREADS"));
        assert!(describe(limit(1, None)).contains("TAILWATER_KTHREADS"));
    }
}
