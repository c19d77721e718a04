//! Who gets a core, which core, and which request next: pure decisions.
//!
//! Owns the [`ledger`] of managed cores, the [`topology`] they form, the core-allocation policies in [`alloc`] and the
//! request-dispatch policies in [`dispatch`].
//!
//! Never reads a clock, makes a system call, takes a lock or touches shared memory: the state, what was observed,
//! the time and the random seed are arguments, so that the IOKernel, the simulator and the fuzzers drive the same code.
//!
//! Neighbours: the IOKernel fills an [`alloc::Observation`] from what runtimes allege about themselves, asks a
//! [`alloc::Policy`], and carries its [`alloc::Action`]s out on the [`ledger::Ledger`] and on shared memory.
//! Nothing in this crate trusts an observation: garbage in one costs the runtime it came from, at most.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod dispatch;
pub mod ids;
pub mod ledger;
pub mod topology;

pub use ids::{CoreId, KthreadId, Nanos, RuntimeId};
