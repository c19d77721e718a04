//! A service, a batch job and a load generator on the cores of this machine, on Tailwater or on
//! Linux, and what else `tailwater`, `tailwater-lab` and `tailwater-observe` share.
//!
//! Owns one *point*: a system is started, measured under one plan, and ended. Both systems get the
//! same requests (plan and seed), the same calibration of work and the same cores. During the
//! counted part of a point only the generator's thread runs in this program; all others wait in the
//! kernel for its end.
//!
//! | module | owns |
//! |---|---|
//! | [`cores`], [`clients`] | which core does what; where ordinary clients run |
//! | [`bed`] | what every point needs: cores, interrupt, noise and speed of the machine |
//! | [`app`], [`child`] | service and batch processes, and that none outlives this one |
//! | [`embedded`] | an IOKernel on a thread of this process |
//! | [`port`] | the generator as the IOKernel's port, over datagrams or connections |
//! | [`unannounced`] | a port that does not state when its next frame is due, as no network card does |
//! | [`program`] | programs with protocols of their own, with their arguments and files |
//! | [`on_tailwater`], [`on_linux`], [`point`](mod@point) | one point: start, measure, end |
//! | [`repeat`] | a batch job that was not written for Tailwater, and its progress |
//! | [`account`], [`core_use`] | where the time of the managed cores went; what Linux does there meanwhile |
//! | [`batch`], [`measured`], [`handoffs`] | the figures of a point |
//! | [`wait`] | the choice how the Linux server waits for requests |
//! | [`machine`], [`requirements`] | what the machine is, and whether it has what Tailwater needs |
//! | [`socket`], [`query`] | where the IOKernel is, and questions to it |
//! | [`statistics`] | cores and programs of a reading of the statistics; two readings compared |
//! | [`observe`] | the options of `top` and `metrics`, which `tailwater` has another program carry out |
//! | [`progress`] | the line that shows how much is done |
//! | [`interrupt`], [`exit`], [`table`], [`text`], [`folder`] | signals, exit codes, tables, names of others and temporary folders of commands |

#![forbid(unsafe_code)]

/// Prints a line to standard error. A closed standard error is no error: the line has no reader.
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => {{
        $crate::progress::erase();
        // One call, so that the line of another process is not in its middle.
        let line = ::std::format!("{}\n", ::std::format_args!($($words)*));
        let _ = ::std::io::Write::write_all(&mut ::std::io::stderr(), line.as_bytes());
    }};
}

pub mod account;
pub mod app;
pub mod backups;
pub mod batch;
pub mod bed;
pub mod child;
pub mod clients;
pub mod core_use;
pub mod cores;
pub mod embedded;
pub mod exit;
pub mod folder;
pub mod handoffs;
pub mod interrupt;
pub mod machine;
pub mod measured;
pub mod observe;
pub mod on_linux;
pub mod on_tailwater;
pub mod point;
pub mod port;
pub mod program;
pub mod progress;
pub mod query;
pub mod repeat;
pub mod requirements;
pub mod socket;
pub mod statistics;
pub mod text;
pub mod unannounced;
pub mod wait;

pub use batch::BatchRates;
pub use bed::{START_TIMEOUT, Testbed};
pub use cores::CorePlan;
pub use measured::{Measured, is_saturated, latency_or_timeout, standing_queue_us};
pub use tailwater_plot::table;
