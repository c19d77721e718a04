//! State that the switch and the allocator share: registered runtimes, statistics and the trace.
//!
//! The polling loop owns the [`World`] and lends it to the switch or to the allocator, one at a
//! time; these two do not see each other. The allocator leaves egress rings to be polled in
//! [`World::arriving`], where the switch takes them. Either leaves registrations that must end, and
//! the loop ends them between frames. A frame for a runtime without a core needs a decision at
//! once, for its ring is chosen by that decision: the switch gets it through a [`Lender`], which
//! the loop passes in.

use std::sync::Arc;
use tailwater_sched::RuntimeId;
use tailwater_shm::{Clock, Cycles};

use crate::runtime::{Egress, EndReason, Runtime, Runtimes};
use crate::stats::Stats;
use crate::tenant::{Key, Prices, TenantId, Work};
use crate::trace::Trace;

/// See the module documentation.
pub(crate) struct World {
    pub(crate) runtimes: Runtimes,
    pub(crate) stats: Arc<Stats>,
    pub(crate) trace: Trace,
    /// Egress rings of kthreads that got a core and are not polled yet.
    pub(crate) arriving: Vec<Egress>,
    ended: Vec<(RuntimeId, EndReason)>,
    prices: Prices,
}

/// The owner of the cores, as the switch needs it.
pub(crate) trait Lender {
    /// Lends a core, if there is one to lend, to runtime `id`, for which work arrived while it has
    /// none. On return the runtime's flow groups belong to the kthread that gets the core.
    fn wakeup(&mut self, world: &mut World, id: RuntimeId, now: Cycles);

    /// Lets an acknowledgment of this flow hash, which has no data, wait in the ring of runtime
    /// `id`, which has no core, without waking it. False if a thread of the runtime may wait for
    /// it, as the runtime publishes, or if other frames wait there, for which it is woken anyway.
    fn hold(&mut self, world: &mut World, id: RuntimeId, hash: u32, now: Cycles) -> bool;
}

impl World {
    /// Returns a world without runtimes, whose tenants pay these prices.
    pub(crate) fn new(stats: Arc<Stats>, prices: Prices) -> Self {
        Self {
            runtimes: Runtimes::default(),
            stats,
            trace: Trace::default(),
            arriving: Vec::new(),
            ended: Vec::new(),
            prices,
        }
    }

    /// Returns the clock of this machine.
    pub(crate) fn clock(&self) -> Clock {
        self.prices.clock
    }

    /// Adds a runtime.
    pub(crate) fn insert(&mut self, runtime: Box<Runtime>, now: Cycles) {
        self.runtimes.insert(runtime, &self.prices, now);
    }

    /// Moves programs to the tenants of these keys.
    pub(crate) fn rekey(&mut self, keys: Vec<(RuntimeId, Key)>, now: Cycles) {
        self.runtimes.rekey(keys, &self.prices, now);
    }

    /// Charges the tenant of a runtime what work for the runtime has cost the polling thread. If
    /// that is too much, all programs of the tenant wait.
    #[cold]
    pub(crate) fn charge(&mut self, id: RuntimeId, work: Work, cost: Cycles, now: Cycles) {
        let Some(runtime) = self.runtimes.get(id) else { return };
        let (payer, stats) = (runtime.tenant, Arc::clone(&runtime.stats));
        if work == Work::Refused {
            stats.counters.offence_ns.add(self.prices.clock.to_ns(cost));
        }
        let must_wait = self.charge_tenant(payer, work, cost, now);
        stats.counters.throttled.add(u64::from(must_wait));
    }

    /// As [`charge`](Self::charge), of this tenant; returns whether it has to wait now and had not
    /// to before.
    pub(crate) fn charge_tenant(&mut self, payer: TenantId, work: Work, cost: Cycles, now: Cycles) -> bool {
        let tenant = self.runtimes.tenants.get_mut(payer);
        let must_wait = tenant.charge(work, cost, now, &self.prices);
        let (tenant, prices) = (*tenant, self.prices);
        for runtime in self.runtimes.iter_mut().filter(|runtime| runtime.tenant == payer) {
            let pays_at = tenant.pays_at(runtime.spec.class, &prices);
            if now < pays_at {
                runtime.waits_until = pays_at;
            }
        }
        must_wait
    }

    /// Charges the tenant of a runtime for time of a core that the runtime had and others waited
    /// for, or that it did not use; `cores` is the number of cores of the machine.
    pub(crate) fn charge_cores(&mut self, id: RuntimeId, time: Cycles, cores: usize, now: Cycles) {
        let Some(runtime) = self.runtimes.get(id) else { return };
        runtime.stats.counters.late_ns.add(self.prices.clock.to_ns(time));
        let (payer, class) = (runtime.tenant, runtime.spec.class);
        self.runtimes.tenants.get_mut(payer).charge_cores(class, time, cores, now, &self.prices);
    }

    /// Returns whether the tenant of this runtime owes too much time of cores for its programs of
    /// this class.
    #[inline]
    pub(crate) fn owes_cores(&self, id: RuntimeId, now: Cycles) -> bool {
        self.runtimes.get(id).is_some_and(|runtime| {
            self.runtimes.tenants.get(runtime.tenant).owes_cores(runtime.spec.class, now, &self.prices)
        })
    }

    /// Marks a registration as ended: nothing is delivered or granted to it any more. The loop
    /// takes it from [`Self::take_ended`] and detaches it.
    pub(crate) fn mark_ended(&mut self, id: RuntimeId, reason: EndReason) {
        let Some(runtime) = self.runtimes.get_mut(id) else { return };
        if !core::mem::replace(&mut runtime.is_ended, true) {
            self.ended.push((id, reason));
        }
    }

    /// Returns the registrations that are marked as ended and still attached.
    pub(crate) fn ended(&self) -> &[(RuntimeId, EndReason)] {
        &self.ended
    }

    /// Takes one of them out.
    pub(crate) fn take_ended(&mut self) -> Option<(RuntimeId, EndReason)> {
        self.ended.pop()
    }

    /// Returns whether neither a ring waits to be polled nor a registration to be ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.ended.is_empty() && self.arriving.is_empty()
    }

    /// Records the steps that kthreads have written about requests that are followed, if it is
    /// time.
    #[inline(always)]
    pub(crate) fn collect_trace(&mut self) {
        if self.trace.collects() {
            self.trace.collect(&mut self.runtimes);
        }
    }
}
