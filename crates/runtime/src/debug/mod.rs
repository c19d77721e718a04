//! Inspecting a running program: counters, the [`dump`] of all user threads, the stall detector.
//!
//! All read words that the scheduler writes anyway: a program pays for them only while they run.
//! The dump, and backtraces in the stall detector's reports, need the feature `debug`, which is on
//! by default.
//!
//! # The dump
//! [`dump`] takes one when called; the signal chosen by
//! [`dump_signal`](crate::RuntimeBuilder::dump_signal) (by default `SIGQUIT`: Ctrl-\, or `kill
//! -QUIT`) prints one to standard error, after which the program continues.
//!
//! A dump is not a snapshot of one moment: the threads are read one after another. A suspended
//! thread's stack is copied and unwound; a running one is interrupted by the preempt signal and
//! copies its own.
//!
//! # The stall detector
//! See [`stall_timeout`](crate::RuntimeBuilder::stall_timeout). A thread that reaches no poll point
//! for that long keeps every other thread off its core; one line and a backtrace on standard error
//! identify it.

mod counters;
#[cfg(feature = "debug")]
mod dump;
mod opened;
mod report;
#[cfg(feature = "debug")]
mod signal;
mod stall;
#[cfg(feature = "debug")]
mod unwind;
mod watch;

#[cfg(feature = "debug")]
pub use crate::config::DumpSignal;
pub use counters::{RuntimeCounters, counters};
#[cfg(feature = "debug")]
pub use dump::{Dump, ThreadInfo, ThreadState, dump};
#[cfg(feature = "debug")]
pub use unwind::StackFrame;
pub(crate) use watch::start;
