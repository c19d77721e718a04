//! What an IOKernel counts, and what each number means.
//!
//! | module | owns |
//! |---|---|
//! | `counter` | a number that one thread increases ([`Counter`]), and structs of them |
//! | `histogram` | latencies that one thread records ([`SharedHistogram`]) |
//! | `field` | what describes a number: key, kind, unit and meaning ([`schema::Field`]) |
//! | `counters` | the counters of the switch, of cores, of the loop, of a program, of the firewall |
//! | `handoff` | how long cores take to change hands ([`HandoffHistograms`]) |
//! | [`account`] | on what each core's time went ([`CoreAccount`](account::CoreAccount)) |
//! | [`schema`] | the list of all numbers of the document, and how it is read by that list |
//!
//! The IOKernel writes these and makes the document of them; the commands read the document by
//! [`schema::PARTS`] and need no IOKernel for that. Writing takes one relaxed addition and no
//! locked instruction, since each number has one writing thread. Numbers that are read together may
//! be a few nanoseconds apart, and no counter goes backwards.
#![forbid(unsafe_code)]

pub mod account;
mod counter;
mod counters;
mod field;
mod handoff;
mod histogram;
pub mod schema;

pub use counter::Counter;
pub use counters::{CoreCounters, FirewallCounters, LoopCounters, RuntimeCounters, SwitchCounters};
pub use handoff::{HandoffHistograms, HandoffKind, ReclaimHistograms};
pub use histogram::{BOUNDS_NS, SharedHistogram};
