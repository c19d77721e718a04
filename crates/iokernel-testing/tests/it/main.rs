//! The IOKernel with raw runtimes around it.

mod bench;
mod common;
mod control;
mod handoff;
mod offences;
mod reload;
mod survival;
mod tap;
mod watch;
