//! The IOKernel: one polling thread that switches frames between runtimes and ports and lends cores to runtimes.
//!
//! # What this crate owns
//! * [`config`]: settings, their units, defaults and limits;
//! * [`firewall`]: which packets pass between runtimes and the rest, and how many;
//! * [`port`]: where frames enter and leave (in-memory pair, TAP, AF_XDP, capture files, a bad network around any of them; the
//!   load generator brings its own);
//! * [`stats`]: counters and hand-off histograms, readable from any thread;
//! * [`IoKernel`]: registration, switch, core grants and hand-offs, adaptive polling.
//!
//! The policy (who gets a core) lives in `tailwater-sched`, the layout of shared memory and its protocols in
//! `tailwater-shm`. Runs no application code, blocks only while the whole machine is idle, and trusts no byte a runtime
//! wrote: what it finds impossible costs that runtime its registration and nobody else anything.
//!
//! # Threads
//! The polling thread (the caller of [`IoKernel::run`]) switches frames and lends cores. A control thread does what is slow:
//! registration, mapping, unmapping. They exchange messages over two queues and share nothing else but counters.
#![deny(unsafe_code)]

mod allocator;
pub mod bench;
mod capture;
pub mod config;
mod control;
pub mod firewall;
#[cfg(test)]
mod fixture;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod kernel;
mod machine;
pub mod port;
mod runtime;
pub mod stats;
mod switch;
mod sys;
pub mod testing;

pub use config::Config;
pub use control::directory::Refusal;
pub use kernel::{IoKernel, StartError};
pub use machine::{CoreError, Cores};
pub use runtime::EndReason;
