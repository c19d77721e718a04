//! User threads, with the names and the meaning of `std::thread`.
//!
//! Everything here works on ordinary OS threads too: [`spawn`] and [`scope`] start user threads from there, and what concerns the
//! calling thread ([`current`], [`park`], [`sleep`], [`yield_now`]) is passed on to `std::thread`.
//!
//! # Differences from `std::thread`
//! * A thread starts when a kthread gets to it, not when Linux does; a stack is 256 KiB unless
//!   [configured](crate::Builder::stack_size) or [chosen](Builder::stack_size).
//! * [`scope`] waits for thread-local destructors too.
//! * [`std::thread::current`] in a user thread is a thread of its own, but without a name: use [`current`].
//! * A user thread that overflows its stack ends the process with a message that names it.

mod builder;
mod handle;
pub(crate) mod identity;
mod join_word;
mod packet;
pub(crate) mod panics;
mod park;
mod scope;
mod spawn;

pub use crate::blocking::spawn_blocking;
pub use builder::Builder;
pub(crate) use handle::UserThread;
pub use handle::{Thread, ThreadId, current};
pub(crate) use packet::Completion;
pub use park::{park, park_timeout};
pub use scope::{Scope, ScopedJoinHandle, scope};
pub use spawn::{JoinHandle, spawn};
pub(crate) use spawn::{Options, prepare};
pub use std::thread::{AccessError, LocalKey, Result, panicking};

use crate::kthread;
use crate::runtime;
use crate::sync::wait;
use crate::worker;
use core::num::NonZero;
use std::io;
use std::time::{Duration, Instant};
use tailwater_shm::Cycles;

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
    worker::yield_now();
}

/// Sleeps for at least `duration`. Other user threads run meanwhile; on an ordinary thread this is `std::thread::sleep`.
///
/// # Examples
/// ```standalone_crate
/// use std::time::{Duration, Instant};
///
/// #[tailwater::main]
/// fn main() {
///     let start = Instant::now();
///     tailwater::thread::sleep(Duration::from_micros(100));
///     assert!(start.elapsed() >= Duration::from_micros(100));
/// }
/// ```
pub fn sleep(duration: Duration) {
    match Instant::now().checked_add(duration) {
        Some(deadline) => crate::time::sleep_until(deadline),
        None if is_user_thread() => loop {
            wait::sleep_until(Cycles::MAX);
        },
        None => std::thread::sleep(duration),
    }
}

/// Whether the caller is a user thread (and not an ordinary OS thread).
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
    kthread::current_uthread().is_some()
}

/// The most user threads that run at once: the number of kthreads of the runtime. Without a runtime, what `std` says.
///
/// # Errors
/// As `std::thread::available_parallelism`; never with a runtime.
///
/// # Examples
/// ```standalone_crate
/// fn main() -> Result<(), tailwater::StartError> {
///     let width = || tailwater::thread::available_parallelism().unwrap().get();
///     assert_eq!(tailwater::Builder::new().kthreads(2).run(width)?, 2);
///     Ok(())
/// }
///
/// #[global_allocator]
/// static ALLOC: tailwater::Alloc = tailwater::Alloc;
/// ```
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    match runtime::started() {
        Some(runtime) => Ok(NonZero::new(runtime.kthreads.len()).expect("a runtime has a kthread")),
        None => std::thread::available_parallelism(),
    }
}
