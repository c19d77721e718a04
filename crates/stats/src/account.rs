//! The account of a core: on what each managed core's time went.
//!
//! Owns the counters, one set per core. The IOKernel enters the time of a core's phase when the
//! phase ends, and at each tick, so the times of a core add up to the time since its first entry,
//! whatever programs write. What a busy kthread does inside its tenancy is sampled at ticks from
//! the word `doing` of its status line: such a sample is the program's own statement, and tells the
//! parts of its time from each other only. So does the time at which a kthread gave its core up:
//! its run up to there counts as its own, not as hand-off.
//!
//! Never here: the time that the host or interrupts take, which happens inside every part and which
//! the polling thread cannot see from its own core.

use serde_json::{Value, json};
use tailwater_sched::CoreId;
use tailwater_sched::ledger::RuntimeClass;

use crate::counter::counters;

counters! {
    /// Nanoseconds of one core, by phase.
    PhaseTimes {
        /// Lent to no kthread.
        free,
        /// Hand-off of a free core: from the wake until the new owner was seen running.
        wake,
        /// Hand-off, first part: from the time at which a busy owner gave the core up, by its own
        /// statement, or from the decision to take it from an idle one, until that was seen.
        cede,
        /// Hand-off, second part: until the new owner was seen running.
        start,
        /// A latency-critical kthread runs.
        service,
        /// A latency-critical kthread polls without work.
        service_idle,
        /// A best-effort kthread runs.
        batch,
        /// A best-effort kthread polls without work.
        batch_idle,
    }
}

counters! {
    /// What busy kthreads of one class did on one core at the samples.
    Samples {
        /// Ran a user thread.
        thread,
        /// Handled frames in the network stack.
        stack,
        /// Was in the scheduler.
        scheduler,
    }
}

/// The account of one core.
#[derive(Debug)]
pub struct CoreAccount {
    /// The core.
    pub core: CoreId,
    /// Its time by phase.
    pub ns: PhaseTimes,
    /// Samples of kthreads of services.
    pub service: Samples,
    /// Samples of kthreads of best-effort programs.
    pub batch: Samples,
}

impl CoreAccount {
    /// Returns the account of a core, with nothing entered.
    #[must_use]
    pub fn new(core: CoreId) -> Self {
        Self { core, ns: PhaseTimes::default(), service: Samples::default(), batch: Samples::default() }
    }

    /// Returns the samples of this class.
    #[inline]
    pub fn samples(&self, class: RuntimeClass) -> &Samples {
        match class {
            RuntimeClass::LatencyCritical => &self.service,
            RuntimeClass::BestEffort => &self.batch,
        }
    }

    /// Returns the account as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "core": self.core.0,
            "ns": self.ns,
            "samples": { "service": self.service, "batch": self.batch },
        })
    }
}
