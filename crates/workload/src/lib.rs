//! Workload models shared by the load generator, the simulator and the services under test.
//!
//! Owns [service-time distributions](service), [arrival processes](arrival) over
//! [load schedules](schedule), [load patterns](pattern) and [lists of rates](sweep) that become
//! schedules, latency summaries (`summary`) and latencies by interval (`intervals`), the protocols
//! [`spin`] and [`rocks`], [key-value workloads](keyvalue) with
//! [values derived from their keys](content), and the [notation](units) of durations and rates.
//!
//! Never reads a clock, makes a system call or keeps hidden randomness. Times are nanoseconds since
//! a start of the caller's choice; every draw comes from a [`Prng`] that the caller passes in, so a
//! seed fixes every number.
//!
//! The crate is `no_std`. The feature `std`, on by default, adds `summary` and `intervals`, whose
//! histograms are hdrhistogram's, which needs the standard library.
//!
//! Neighbours: `loadgen` drives these models over real transports, `sim` over virtual time, and
//! `apps/spin` speaks the protocol. All three take the distributions from here, so their results
//! are comparable.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod arrival;
pub mod content;
#[cfg(feature = "std")]
pub mod intervals;
pub mod keyvalue;
#[cfg(feature = "std")]
mod latency;
pub mod pattern;
pub mod random;
pub mod rocks;
pub mod schedule;
pub mod service;
pub mod spin;
#[cfg(feature = "std")]
pub mod summary;
pub mod sweep;
pub mod units;

pub use arrival::{ArrivalProcess, Arrivals};
#[cfg(feature = "std")]
pub use intervals::{Interval, Intervals};
pub use pattern::LoadPattern;
pub use random::Prng;
pub use schedule::LoadSchedule;
pub use service::ServiceTime;
#[cfg(feature = "std")]
pub use summary::{Figures, LatencyRecorder, Summary};
pub use sweep::RateList;
pub use units::Rate;
