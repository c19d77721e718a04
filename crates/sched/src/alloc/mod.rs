//! Core-allocation policies: an [`Observation`] in, [`Action`]s out.
//!
//! Owns the [`Policy`] trait and the policies: [`CongestionDetection`] (Shenango), [`Static`] (fixed partitions),
//! [`DelayThreshold`] (Caladan), [`Arachne`] and [`IxControl`]; and, as a bound for simulations, [`optimal`].
//! A policy keeps what it remembers between looks; it changes neither the ledger nor shared memory. Whoever calls it
//! enters each action into the ledger with [`Ledger::apply`], then carries it out.
//!
//! Contract with the caller, the same for every policy:
//! - [`Policy::attach`] after a runtime is registered, [`Policy::detach`] after it is unregistered;
//! - [`Policy::tick`] every [`Policy::interval`] with a fresh observation; late ticks cost reaction time only;
//! - [`Policy::wakeup`] as soon as work arrives for a runtime without a core;
//! - [`Policy::idle`] as soon as a core's owner declares itself idle, **and** as soon as a core falls free (parked,
//!   evicted or unregistered owner). This is what keeps a core from waiting for the next look, and what keeps a runtime
//!   that parks and wakes quickly from jumping the queue of those that wait for its core;
//! - one event, then its actions applied, then the next event: a policy must see its decisions in the ledger;
//! - the actions of one event are independent: each core and each kthread occurs at most once, and any of them may be
//!   dropped without making another wrong. A dropped demand is found again at the next look.
//!
//! Neighbours: [`crate::ledger`] for who owns what; the IOKernel and the simulator call.

mod arachne;
mod congestion;
mod delay;
mod detect;
mod fixed;
mod ix;
mod named;
mod observe;
pub mod optimal;
mod per_runtime;
mod select;
mod target;
#[cfg(test)]
mod tests;

pub use arachne::{Arachne, ArachneConfig, PRIORITIES};
pub use congestion::{Config, CongestionDetection, HELP_PATIENCE};
pub use delay::{DelayConfig, DelayThreshold};
pub use fixed::Static;
pub use ix::{IxConfig, IxControl, Sequence};
pub use named::{NAMES, NameError, by_name};
pub use observe::{Activity, KthreadLook, Observation, RuntimeLook};

use crate::ids::{CoreId, KthreadId, Nanos, RuntimeId};
use crate::ledger::Ledger;

/// What a policy decides on: the time, what was observed, and who owns what.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Now, on the clock of the ledger's time stamps.
    pub now: Nanos,
    /// What runtimes allege about themselves, as of the latest look.
    pub obs: &'a Observation,
    /// Who owns what.
    pub ledger: &'a Ledger,
}

/// One decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Lend a core to a kthread.
    Grant {
        /// The runtime that gets the core; always that of `kthread`.
        runtime: RuntimeId,
        /// The kthread to run there, parked until now.
        kthread: KthreadId,
        /// The core.
        core: CoreId,
        /// Who has to give it up first; `None` when it is free.
        victim: Option<KthreadId>,
        /// The victim may lose the core only while it is idle: were it running, it would be entitled to keep it. When
        /// it turns out to have found work in the meantime, drop this action.
        only_if_idle: bool,
    },
}

/// Decides which runtime gets which core. See the module header for what a caller owes.
pub trait Policy {
    /// A short name for tables and configuration files.
    fn name(&self) -> &'static str;

    /// How often [`Policy::tick`] wants to be called.
    fn interval(&self) -> Nanos;

    /// A runtime was registered; its kthreads are parked. May allocate memory.
    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger);

    /// A runtime was unregistered. Its former cores are reported by [`Policy::idle`]. Unknown ones are ignored.
    fn detach(&mut self, runtime: RuntimeId);

    /// A regular look at everything. Appends to `actions`.
    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>);

    /// A packet, a doorbell or a timer is due for `runtime`, which has no core. Appends to `actions`. Does nothing for a
    /// runtime that has cores, or is not attached.
    fn wakeup(&mut self, view: View<'_>, runtime: RuntimeId, actions: &mut Vec<Action>);

    /// `core` is there for the taking: its owner declared itself idle, whatever the observation says, or nobody has
    /// it. Appends to `actions`. Does nothing for a core that is moving, or not managed.
    fn idle(&mut self, view: View<'_>, core: CoreId, actions: &mut Vec<Action>);
}
