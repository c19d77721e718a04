//! Measurements of the IOKernel alone: hand-offs and the switch.
//!
//! Owns the library side of `tailwater-lab bench handoff` and `tailwater-lab bench switch`:
//! [`handoff()`] and [`switch()`] run an IOKernel in this process with raw runtimes around it and
//! return plain numbers. They print nothing. Compared variants are interleaved in rounds, because
//! these machines drift; every figure is a quantile of a histogram.
//!
//! The child processes are copies of the calling program: its `main` must begin with
//! [`child::run_if_asked`](crate::child::run_if_asked).

mod baseline;
pub(crate) mod baseline_child;
mod common;
mod firewall;
mod handoff;
mod prober;
mod switch;

pub use common::BenchError;
pub use handoff::{HandoffOptions, HandoffReport, handoff};
pub use switch::{ECHO_NAME, SwitchOptions, SwitchReport, raw_round_trips, switch};
