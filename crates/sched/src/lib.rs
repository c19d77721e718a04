//! Pure decisions: which runtime gets a core, which core, and which request runs next.
//!
//! Owns the [`ledger`] of managed cores, the [`topology`] they form, the core-allocation policies
//! in [`alloc`], the [`estimate`] of the cores that a program needs, and the request-dispatch
//! policies in [`dispatch`].
//!
//! Never reads a clock, makes a system call, takes a lock or touches shared memory. The state, the
//! observation, the time and the random seed are arguments, so the IOKernel, the simulator and the
//! fuzzers drive the same code. The crate is `no_std`: there is no clock or system call to reach.
//!
//! Neighbours: the IOKernel fills an [`alloc::Observation`] from what runtimes report about
//! themselves, asks an [`alloc::Policy`], enters the returned [`alloc::Action`]s into the
//! [`ledger::Ledger`] and carries them out in shared memory. Nothing in this crate trusts an
//! observation: a false one costs at most the runtime it came from.

#![no_std]
#![forbid(unsafe_code)]

// Named `heap` because `alloc` is the module of core-allocation policies.
extern crate alloc as heap;

mod action;
pub mod alloc;
pub mod dispatch;
pub mod estimate;
pub mod ids;
pub mod ledger;
pub mod topology;

pub use ids::{CoreId, KthreadId, Nanos, RuntimeId};
