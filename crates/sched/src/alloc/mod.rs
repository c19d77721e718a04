//! Core-allocation policies: an [`Observation`] in, [`Action`]s out.
//!
//! Owns the [`Policy`] trait and the policies: [`CongestionDetection`] (Shenango), alone or with
//! cores that programs request (Arachne's arbiter), [`Static`] (fixed partitions),
//! [`DelayThreshold`] (Caladan), [`Arachne`] and [`IxControl`]; and, as a bound for simulations,
//! [`optimal`]. A policy keeps its memory between events. It changes neither the
//! ledger nor shared memory: its caller enters each action into the ledger with
//! [`Ledger::apply`](crate::ledger::Ledger::apply),
//! then carries it out.
//!
//! A *look* is one reading of every runtime's published state, taken once per [`Policy::interval`].
//!
//! Contract with the caller, the same for every policy:
//! - Call [`Policy::attach`] after a runtime is registered and [`Policy::detach`] after it is
//!   unregistered.
//! - Call [`Policy::tick`] every [`Policy::interval`] with a fresh observation. A late tick costs
//!   reaction time only.
//! - Call [`Policy::wakeup`] as soon as work arrives for a runtime without a core.
//! - Call [`Policy::idle`] as soon as a core's owner declares itself idle, **and** as soon as a
//!   core falls free because its owner parked, was evicted or was unregistered. This keeps a core
//!   from waiting for the next look, and keeps a runtime that parks and wakes quickly from
//!   overtaking the runtimes that wait for its core.
//! - Deliver one event, apply its actions, then deliver the next event: a policy must see its
//!   decisions in the ledger.
//! - The actions of one event are independent. Each core and each kthread occurs at most once, and
//!   any action may be dropped without making another wrong. A dropped demand is found again at the
//!   next look.
//!
//! Neighbours: [`crate::ledger`] records which kthread owns which core; the IOKernel and the
//! simulator call.

mod arachne;
mod congestion;
mod delay;
mod detect;
mod division;
mod fixed;
mod ix;
mod named;
mod observe;
pub mod optimal;
mod per_runtime;
mod policy;
mod prefetch;
mod requests;
mod select;
mod target;
#[cfg(test)]
mod tests;

pub use crate::action::Action;
pub use arachne::{Arachne, ArachneConfig};
pub use congestion::{Config, CongestionDetection, HELP_PATIENCE};
pub use delay::{DelayConfig, DelayThreshold};
pub use division::DIVISION_PAUSE;
pub use fixed::Static;
pub use ix::{Clock, Clocks, HYPERTHREAD_GAIN, IxConfig, IxControl, Sequence, Step};
pub use named::{PolicyName, PolicyTimeError, UnknownPolicy};
pub use observe::{Activity, Hold, KthreadLook, Observation, RuntimeLook};
pub use policy::{Policy, Setting, View};
pub use requests::{PRIORITIES, Requests};
