//! Discrete-event simulator of the policies that the IOKernel and the runtime run.
//!
//! Owns virtual time, machine-cost profiles, measurement with confidence intervals, and the studies built on them. Never
//! has a policy of its own: [`tailwater_sched`] decides, this crate plays the machine around it. Never reads a clock or the
//! environment for anything a result depends on: the same seed gives the same numbers on any number of threads.
//!
//! From the bottom up: [`timers`], [`source`], [`costs`] and [`measure`] serve the [`engine`]; a [`scenario`] is one point
//! of a study, run many times in parallel; [`machine`] shares cores among several runtimes under a real allocation policy.
//! [`study`] asks users' questions, [`reproduce`] the papers' figures, [`validate`] holds the results to [`theory`]; [`cli`]
//! puts a command line on all of it.

#![forbid(unsafe_code)]

pub mod cli;
pub mod costs;
pub mod engine;
pub mod machine;
pub mod measure;
pub mod mix;
pub mod notation;
pub mod plot;
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
