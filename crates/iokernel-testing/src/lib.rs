//! Raw runtimes: kthreads that implement the protocol of `tailwater-shm` and run hand-written
//! behaviours, without user threads.
//!
//! Owns what the integration tests and the benchmarks of the IOKernel drive it with, in threads of
//! the same process or in child processes ([`child`]). Useful to the author of another runtime:
//! [`RawKthread`] is the kthread's side of the protocol in its simplest form. Does nothing that a
//! real runtime must not do, except in behaviours that misbehave on purpose.
#![deny(unsafe_code)]

pub mod attack;
pub mod bench;
pub mod child;
mod kthread;
pub mod roles;
mod runtime;
mod shared;
mod sys;
pub mod wire;

pub use kthread::{Behaviour, RawKthread, Step};
pub use runtime::{RawError, RawRuntime, RawSpec, register, stats};
pub use shared::Shared;
pub use sys::ThreadTimer;
