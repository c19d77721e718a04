//! Tailwater: user threads, synchronisation, timers and sockets for services that share a machine with batch work.
//!
//! The API mirrors `std`: [`thread`], [`sync`], [`time`], [`net`]; [`blocking`](fn@blocking) is for what has no
//! counterpart here. A program becomes a Tailwater program with one attribute:
//!
//! ```no_run
//! #[tailwater::main]
//! fn main() {
//!     let workers: Vec<_> = (0..100).map(|i| tailwater::thread::spawn(move || i * i)).collect();
//!     let sum: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
//!     println!("{sum}");
//! }
//! ```
//!
//! By itself it runs *standalone*, on its own OS threads with a loopback network. With `TAILWATER_IOKERNEL` naming the
//! control socket of a `tailwater iokernel`, the same binary runs *attached*: on cores the IOKernel lends it from microsecond
//! to microsecond, with an address of its own.
//!
//! # What a user thread may do
//! Everything ordinary Rust does: `thread_local!`, panics, `HashMap`, allocation belong to the user thread even when it is
//! preempted and continues on another OS thread. Two things cost more than they look: a blocking system call holds up the
//! core's other threads, and so does waiting for a `std::sync::Mutex` whose holder is not running. Use [`sync`] and [`net`].
//!
//! # Poll points
//! A thread gives its core up quickly when it reaches a poll point: every blocking call, every socket call, `spawn`, and [`poll`], which
//! long loops should call every microsecond or so (it costs about a nanosecond). A thread that reaches none is interrupted by
//! a signal a few microseconds later, when the IOKernel wants the core, or when a [`quantum`](Builder::quantum) is set and over.

// Under loom only the algorithms are built, by `tests/loom_sync.rs`.
#![cfg(not(loom))]

mod alloc;
mod arch;
mod attach;
mod blocking;
mod config;
mod custom_stacks;
pub mod debug;
mod egress;
mod handover;
mod kthread;
mod lease;
mod local;
mod mailbox;
#[cfg(not(any(fuzzing, sanitizing)))]
mod malloc;
pub mod net;
mod overflow;
mod preempt;
mod quantum;
mod random;
mod registry;
mod runq;
mod runtime;
mod stack;
pub mod sync;
pub mod thread;
pub mod time;
mod timer;
mod tls;
mod trace;
mod uthread;
mod worker;

pub use alloc::Alloc;
pub use blocking::blocking;
pub use config::{Builder, Class, DumpSignal};
pub use debug::dump;
pub use runtime::StartError;
pub use stack::StackError;
/// Runs `main` as the first user thread of a runtime configured by the environment, and installs the allocator guard.
pub use tailwater_macros::main;
pub use tls::TlsError;

pub(crate) use runtime::clock;

/// Gives the core up if the IOKernel wants it back, or the thread's [`quantum`](Builder::quantum) is over; otherwise costs about a
/// nanosecond. For long loops.
///
/// # Examples
/// ```
/// let mut sum = 0u64;
/// for (i, n) in (0..100_000u64).enumerate() {
///     sum += n;
///     if i % 256 == 0 {
///         tailwater::poll();
///     }
/// }
/// assert_eq!(sum, 4_999_950_000);
/// ```
#[inline(always)]
pub fn poll() {
    if kthread::should_cede() {
        worker::give_up_core();
    }
}
