//! A policy's decision, as data.
//!
//! Owns one type, which stands below its writer and its readers: [`crate::alloc`] appends actions,
//! [`crate::ledger`] enters them, the IOKernel and the simulator carry them out.

use crate::ids::{CoreId, KthreadId, RuntimeId};

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
        /// The kthread that has to give the core up first; `None` if the core is free.
        victim: Option<KthreadId>,
        /// The victim may lose the core only while it is idle, because a running victim would be
        /// entitled to keep it. If the victim has found work in the meantime, drop this action.
        only_if_idle: bool,
    },
}
