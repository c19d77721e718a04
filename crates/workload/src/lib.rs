//! Workload models shared by the load generator, the simulator and the services under test.
//!
//! Owns: [service-time distributions](service), [arrival processes](arrival) over [load schedules](schedule),
//! [load patterns](pattern) and [lists of rates](sweep) that become schedules, [latency summaries](summary) and
//! latencies [by interval](intervals), the protocols [`spin`] and [`rocks`], [key-value workloads](keyvalue) with
//! [values that follow from their keys](content), and the [human notation](units) of durations and rates.
//!
//! Never: reads a clock, makes a system call, keeps hidden randomness. Times are nanoseconds since a start that the
//! caller chose; every draw comes from a [`Prng`] that the caller passes in, so a seed fixes every number.
//!
//! Neighbours: `loadgen` drives these models over real transports, `sim` over virtual time, `apps/spin` speaks the
//! protocol. Because all three take the distribution from here, their results may be laid over each other.

#![forbid(unsafe_code)]

pub mod arrival;
pub mod content;
pub mod intervals;
pub mod keyvalue;
pub mod pattern;
pub mod random;
pub mod rocks;
pub mod schedule;
pub mod service;
pub mod spin;
pub mod summary;
pub mod sweep;
pub mod units;

pub use arrival::{ArrivalProcess, Arrivals};
pub use intervals::{Interval, Intervals};
pub use pattern::LoadPattern;
pub use random::Prng;
pub use schedule::LoadSchedule;
pub use service::ServiceTime;
pub use summary::{Figures, LatencyRecorder, Summary};
pub use sweep::RateList;
pub use units::Rate;
