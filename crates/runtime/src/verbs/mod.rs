//! The verbs: what makes threads run, wait and move, and what moves cores.
//!
//! Modules are listed in groups from the bottom; each uses those of its group and above,
//! [`records`](crate::records) and [`ground`](crate::ground) only. What the scheduler calls in
//! higher layers comes through [`hooks`].

pub mod hooks;
pub mod look;
pub mod quantum;
#[cfg(feature = "debug")]
pub mod snapshot;
pub mod trace;

pub mod handover;
pub mod local;
pub mod ready;
pub mod rejoin;
pub mod switch;
pub mod timers;

pub mod wait;
pub mod watch;

pub mod completion;

pub mod host;
pub mod lease;

pub mod background;
pub mod worker;

pub mod credentials;
pub mod overflow;
pub mod pinned;
pub mod place;
pub mod preempt;
