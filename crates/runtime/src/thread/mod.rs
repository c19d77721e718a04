//! User threads, with the names and semantics of `std::thread`.
//!
//! Everything here works on ordinary OS threads too: [`spawn`] and [`scope`] start user threads
//! from there, and functions that concern the calling thread ([`current`], [`park`], [`sleep`],
//! [`yield_now`]) call those of `std::thread`.
//!
//! # Differences from `std::thread`
//! * A thread starts when a kthread runs it, not when Linux does; a stack is 256 KiB unless
//!   [configured](crate::RuntimeBuilder::stack_size) or [chosen](Builder::stack_size).
//! * [`scope`] waits for thread-local destructors too.
//! * [`std::thread::current`] in a user thread is a thread of its own, but without a name: use
//!   [`current`].
//! * A user thread that overflows its stack ends the process with a message that names it.

mod builder;
mod class;
mod handle;
mod packet;
pub(crate) mod panics;
mod park;
mod placement;
mod scope;
mod scope_data;
mod spawn;
mod spawn_blocking;

pub use crate::time::sleep;
pub use builder::Builder;
pub use class::ThreadClass;
pub(crate) use handle::UserThread;
pub use handle::{Thread, ThreadId, current};
pub use park::{park, park_timeout};
pub use placement::Placement;
pub use scope::{Scope, ScopedJoinHandle, scope};
pub use spawn::{JoinHandle, spawn};
pub(crate) use spawn::{Options, prepare, spawn_normal};
pub use spawn_blocking::spawn_blocking;
pub use std::thread::{AccessError, LocalKey, Result, panicking};

use crate::records::kthread::current_uthread;
use crate::records::runtime;
use crate::verbs::switch;
use core::num::NonZero;
use std::io;

/// Lets other runnable threads run first. Also a poll point.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     let other = tailwater::thread::spawn(|| ());
///     while !other.is_finished() {
///         tailwater::thread::yield_now();
///     }
/// }
/// ```
pub fn yield_now() {
    switch::yield_now();
}

/// Returns whether the caller is a user thread (and not an ordinary OS thread).
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     assert!(tailwater::thread::is_user_thread());
///     assert!(!std::thread::spawn(tailwater::thread::is_user_thread).join().unwrap());
/// }
/// ```
pub fn is_user_thread() -> bool {
    current_uthread().is_some()
}

/// Returns the maximum number of user threads that run at once: the number of kthreads of the
/// runtime. Without a runtime, `std`'s answer.
///
/// # Errors
/// Those of `std::thread::available_parallelism`; none with a runtime.
///
/// # Examples
/// ```standalone_crate
/// fn main() -> Result<(), tailwater::StartError> {
///     let width = || tailwater::thread::available_parallelism().unwrap().get();
///     assert_eq!(tailwater::RuntimeBuilder::new().kthreads(2).run(width)?, 2);
///     Ok(())
/// }
///
/// tailwater::allocator!();
/// ```
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    match runtime::started() {
        Some(runtime) => Ok(NonZero::new(runtime.kthreads.len()).expect("a runtime has a kthread")),
        None => std::thread::available_parallelism(),
    }
}
