//! Discrete-event simulator of the policies that the IOKernel and the runtime run.
//!
//! Owns virtual time, machine-cost profiles, measurement with confidence intervals, and the studies
//! built on them. It has no policy of its own: [`tailwater_sched`] decides, this crate simulates
//! the machine around it. Results never depend on a clock or the environment: the same seed gives
//! the same numbers on any number of threads.
//!
//! From the bottom up: [`timers`], [`source`], [`costs`] and [`measure`] serve the [`engine`]; a
//! [`scenario`] is one point of a study, run many times in parallel; [`machine`] shares cores among
//! several runtimes under a real allocation policy, on the [`hardware`] that a study describes, and
//! reports its [`course`] over time. [`study`] answers users' questions,
//! [`reproduce`] computes the papers' figures, [`validate`] compares the results with [`theory`],
//! and [`cli`] is the command line of all of them.

#![forbid(unsafe_code)]

pub mod cli;
pub mod costs;
pub mod course;
pub mod engine;
mod estimated;
pub mod hardware;
pub mod machine;
pub mod measure;
pub mod mix;
pub mod notation;
pub mod report;
pub mod reproduce;
pub mod scenario;
pub mod source;
pub mod stats;
pub mod study;
pub mod theory;
pub mod timers;
pub mod validate;

pub use costs::Costs;
pub use measure::{Budget, Measured};
pub use mix::Mix;
pub use scenario::Scenario;
