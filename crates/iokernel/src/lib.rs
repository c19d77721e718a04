//! The IOKernel: one polling thread that switches frames between runtimes and ports and lends cores
//! to runtimes.
//!
//! # What this crate owns
//! * [`config`]: settings, their units, defaults and limits;
//! * [`firewall`]: which packets pass between runtimes and the rest, and how many;
//! * [`stats`]: which counters there are at present, readable from any thread;
//! * [`IoKernel`]: registration, switch, core grants and hand-offs, adaptive polling.
//!
//! The policy (which runtime gets a core) is in `tailwater-sched`, the layout of shared memory and
//! its protocols in `tailwater-shm`, where frames enter and leave in [`tailwater_ports`], what is
//! counted in [`tailwater_stats`]. Runs no application code, sleeps only while no frame moves and
//! no service has or wants a core (and, if asked to, for slices that other programs use), and
//! trusts no byte a runtime wrote: an impossible value costs that runtime its registration, and
//! other runtimes nothing.
//!
//! # Threads
//! The polling thread (the caller of [`IoKernel::run`]) switches frames and lends cores. A control
//! thread does the slow work: registration, mapping, unmapping. They exchange messages over two
//! queues and share only counters besides.
#![deny(unsafe_code)]

mod allocator;
mod authority;
mod bounds;
mod capture;
mod check;
pub mod config;
mod control;
pub mod firewall;
#[cfg(any(test, feature = "fuzzing", feature = "scale"))]
mod fixture;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod kernel;
mod machine;
mod macs;
mod policy;
mod real_time;
mod runtime;
#[cfg(any(test, feature = "scale"))]
pub mod scale;
mod socket_mode;
pub mod stats;
mod status_cache;
mod switch;
mod sys;
mod tenant;
mod trace;
mod world;

pub use authority::{Account, Denial, Grant, Limit, Pattern, Reason};
pub use check::{Finding, Start, Verdict, check, check_text};
pub use config::Config;
pub use control::directory::Refusal;
pub use control::predecessor::process_at;
pub use control::reload::{Changes, ReloadError, Reloader};
pub use kernel::{End, IoKernel, StartError};

pub use machine::{CoreError, Cores, neighbours, online_cores, raise_descriptor_limit};
pub use macs::Macs;
pub use real_time::{NoRealTime, real_time};
pub use runtime::EndReason;
pub use socket_mode::admit_granted;
pub use sys::passed::passed_descriptors;
