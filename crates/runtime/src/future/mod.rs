//! Futures: `async` programs over Tailwater's sockets, timers and channels.
//!
//! A task is a user thread that runs one future: [`spawn`] starts it, and where the future has to
//! wait the thread parks and gives its core away. So tasks are scheduled, stolen, preempted, dumped
//! and traced like all threads, may call what blocks, and one that computes for long does not hold
//! up others; a task costs what a user thread costs, a stack included. [`block_on`] runs a future
//! on the calling thread, which may also be an ordinary one.
//!
//! A future that waits links its waker into the object itself; the change calls it. Waking a task
//! is a swap and a push to a run queue. Dropping a future takes its waker out; a stream polled
//! through a trait of another crate keeps the last one until it is polled again or dropped. Wakers
//! may be called from any thread, also after their task has ended.
//!
//! Everything here works under any executor; only [`spawn`] and timers need a runtime of
//! Tailwater's in the process. Wakers of other executors are called by a thread of their own (the
//! module `relay`), because they may do anything.
//!
//! | module | owns |
//! |---|---|
//! | `waker` | wakers of the threads that run futures |
//! | `relay` | calling the wakers of others |
//! | `operation` | one operation on one object as a future |
//! | `task` | [`block_on`], [`spawn`] |
//! | `remedy` | what a panic for want of Tokio's runtime says |
//! | `join_set` | [`JoinSet`] |
//! | `timer` | [`sleep`], [`timeout`], [`Interval::tick_async`](crate::time::Interval::tick_async) |
//! | `lock` | [`Mutex`], [`RwLock`] |
//! | `sync` | the asynchronous methods of [`Semaphore`](crate::sync::Semaphore), [`Event`](crate::sync::Event), [`Notify`](crate::sync::Notify) and channels |
//! | [`net`] | sockets |
//!
//! # Dropping a future
//! A future that is dropped before it is ready has had no effect, so it may stand in a `select` or
//! a [`timeout`]: a datagram, a message, a connection, a notification, a permit, a tick and the
//! bytes of a `read` are taken by the poll that returns them. What writes several times, or
//! connects, may have done a part: `write_all`, `write_all_more`, and all whose names begin with
//! `connect`.
//!
//! # Traits of other crates
//! | feature | [`net::TcpStream`] implements |
//! |---|---|
//! | `futures-io` | `AsyncRead`, `AsyncBufRead`, `AsyncWrite` of `futures-io` |
//! | `tokio-io` | `AsyncRead`, `AsyncBufRead`, `AsyncWrite` of `tokio`; not its runtime |
//! | `hyper` | `Read`, `Write` of `hyper::rt`; `Executor` and `Timer` are in the module `hyper` |
//!
//! # Examples
//! ```standalone_crate
//! use tailwater::future::{block_on, sleep, spawn, timeout};
//! use tailwater::time::Duration;
//!
//! #[tailwater::main]
//! fn main() {
//!     let sum = block_on(async {
//!         let tasks: Vec<_> = (1..=3).map(|n| spawn(async move { n * n })).collect();
//!         let mut sum = 0;
//!         for task in tasks {
//!             sum += task.await.unwrap();
//!         }
//!         let late = timeout(Duration::from_millis(1), sleep(Duration::from_secs(60))).await;
//!         assert!(late.is_err());
//!         sum
//!     });
//!     assert_eq!(sum, 14);
//! }
//! ```

#[cfg(feature = "hyper")]
pub mod hyper;
mod join_set;
mod lock;
pub mod net;
mod operation;
mod relay;
mod remedy;
mod sync;
mod task;
mod timer;
pub(crate) mod waker;

pub use join_set::JoinSet;
pub use lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task::{Task, block_on, spawn, yield_now};
pub use timer::{Elapsed, Sleep, sleep, sleep_until, timeout, timeout_at};
