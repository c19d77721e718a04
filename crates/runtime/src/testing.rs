//! The runtime that the tests of one process share, behind
//! [`#[tailwater::test]`](macro@crate::test).
//!
//! A process has one runtime, and the tests of a binary run in one process. The first test starts
//! the runtime; it lives until the process ends. Threads that a test leaves running continue while
//! other tests run, as with `std`.
//!
//! The runtime has two kthreads and a [quantum](crate::RuntimeBuilder::quantum) of 10 ms, so that
//! tests run in parallel and one that does not reach a poll point does not hold up the others.
//! `TAILWATER_*` variables and the configuration file change that. A test that starts a runtime of
//! its own with [`RuntimeBuilder::run`](crate::RuntimeBuilder::run) belongs in a test binary of its
//! own.

use crate::RuntimeBuilder;
use crate::ground::guard::NoPreempt;
use crate::records::kthread::NO_CORE;
use crate::records::runtime::runtime;
use crate::thread;
use crate::verbs::{local, pinned};
use std::sync::OnceLock;
use std::time::Duration;

/// Number of kthreads of the shared runtime: two expose races, and leave cores to the tests of
/// other binaries.
const KTHREADS: u16 = 2;
const QUANTUM: Duration = Duration::from_millis(10);

static STARTED: OnceLock<Result<(), String>> = OnceLock::new();

/// Runs `body` as a user thread named `name` and returns its result; the first call in a process
/// starts the runtime.
///
/// # Panics
/// If the runtime cannot start, with the reason and the place of the test. Resumes the panic of
/// `body`.
///
/// # Examples
/// ```standalone_crate
/// # tailwater::allocator!();
/// let name = tailwater::testing::run("adder", || {
///     tailwater::thread::current().name().map(str::to_owned)
/// });
/// assert_eq!(name.as_deref(), Some("adder"));
/// ```
#[track_caller]
pub fn run<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let started = STARTED.get_or_init(|| {
        RuntimeBuilder::defaults(KTHREADS, QUANTUM).run(|| ()).map_err(|error| error.to_string())
    });
    if let Err(reason) = started {
        panic!("the runtime of the tests cannot start: {reason}");
    }
    let thread = thread::Builder::new().name(name.to_owned()).spawn(body).expect("a thread for the test");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Has kthreads, by index, pretend to be lent these cores, `None` for none, as if an IOKernel had
/// lent or taken them: for this crate's own tests of what depends on cores, in a program without an
/// IOKernel. Linux goes on to run them anywhere.
///
/// # Panics
/// If there is no runtime, or an IOKernel lends it cores.
#[doc(hidden)]
pub fn pretend_cores(cores: &[Option<u16>]) {
    let runtime = runtime();
    assert!(runtime.iokernel.is_none(), "the IOKernel says which cores the program has");
    let _guard = NoPreempt::new();
    for (kthread, core) in runtime.kthreads.iter().zip(cores) {
        kthread.set_core(core.unwrap_or(NO_CORE));
        if core.is_none() {
            pinned::release(kthread);
            local::work_injected(runtime);
        }
    }
}
