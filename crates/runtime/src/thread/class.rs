//! The classes of threads ([`ThreadClass`]).
//!
//! Owns what the first background thread and each exclusive thread need, and the error if an
//! exclusive thread cannot have a core of its own. A thread's record has its class.

use crate::cores;
use crate::ground::guard::NoPreempt;
use crate::records::iokernel::IoKernel;
use crate::records::kthread::current_uthread;
use crate::records::runtime::{Runtime, runtime};
use crate::records::uthread::Uthread;
use crate::verbs::{host, quantum};
use std::io;

pub use crate::records::uthread::ThreadClass;

impl ThreadClass {
    /// Returns the class of the calling thread, if threads that it creates are of that class and it
    /// is not the usual one.
    pub(crate) fn inherited() -> Option<Self> {
        let inherits = runtime().background.is_used() && current_uthread()?.is_background();
        inherits.then_some(Self::Background)
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
        if runtime.iokernel.is_some() {
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
        me.set_class(ThreadClass::Normal);
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
    let cores = runtime.iokernel.map(IoKernel::managed_cores);
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
