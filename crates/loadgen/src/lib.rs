//! Open-loop load generator.
//!
//! Owns a sans-IO [engine](generator) that decides when each request is due and how it ended, the
//! [report], a [probe of the machine's own noise](noise), [protocols](protocol), the [distribution
//! of requests over connections](lanes), transports over kernel sockets for [UDP](kernel_udp) and
//! [TCP](kernel_tcp), over Tailwater's own sockets as an [attached] program, and as a [station] in
//! an IOKernel's network, and the [ideal system](ideal) for comparison, with or without the
//! machine's own [stalls].
//!
//! Around one run over any transport: its [control] from outside, [live] figures, several
//! generators [side by side](coordinate), the [search] for the highest load within a limit,
//! histograms as [logs](log), and the [comparison](compare) of two measurements. These see plans
//! and measurements only.
//!
//! *Open loop* means that requests are due at times drawn beforehand, whatever the system under
//! test does, and that latency counts from the due time. So a slow answer or a delayed generator
//! cannot hide the requests that waited behind it (the "coordinated omission" of closed loops).
//!
//! Never draws from distributions of its own (they are in `tailwater-workload`), waits for an
//! answer before sending the next request, or drops a request from the statistics without counting
//! it.

#![forbid(unsafe_code)]

pub mod attached;
pub mod clock;
pub mod compare;
mod contact;
pub mod control;
pub mod coordinate;
pub mod delivery;
mod descriptors;
pub mod generator;
pub mod ideal;
pub mod kernel_tcp;
pub mod kernel_udp;
pub mod lanes;
pub mod live;
pub mod log;
pub mod noise;
mod outstanding;
pub mod pin;
pub mod plan;
pub mod protocol;
pub mod report;
pub mod search;
pub mod stalls;
pub mod station;
mod target;
pub mod tcp;

// The runtime of `attached` needs it; here for its tests.
#[cfg(test)]
tailwater::allocator!();

pub use control::Control;
pub use generator::{Generator, Outgoing, ReplyOutcome};
pub use plan::{Plan, PlanError};
pub use report::{Measurement, Report};
pub use target::WrongAnswer;
