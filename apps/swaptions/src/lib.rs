//! A realistic batch job: Monte Carlo prices of European swaptions.
//!
//! Owns the [model] (multi-factor Gaussian Heath-Jarrow-Morton), the [contract](spec), the
//! [pricer](price), an independent [closed form](analytic) for one factor, the [portfolio], the
//! [job] that any kind of thread can work on, its runs on [user threads](user_threads) and on
//! [ordinary threads](linux), and the [command line](cli). The problem is the one of PARSEC's
//! *swaptions* (Bienia et al., PACT'08), which the Shenango and Arachne papers use as their batch
//! load; the code is our own.
//!
//! Rules: pricing allocates nothing after set-up, calls a `poll` closure about every half
//! microsecond, and gives the same numbers for a seed whatever the number of threads and the
//! division of work among them.

pub mod analytic;
pub mod cli;
pub mod job;
pub mod linux;
pub mod model;
pub mod portfolio;
pub mod price;
pub mod spec;
pub mod user_threads;

pub use job::{Job, Tally};
pub use portfolio::Portfolio;
pub use price::{Estimate, price_swaption};
pub use spec::{Side, SpecError, SwaptionSpec};
