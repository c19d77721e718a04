//! Back-off for grants that were wasted: the kthread ran nothing, started late, or did not cede.
//!
//! Owns the verdict on a grant and the back-off after it. The cost for the polling thread is
//! charged to the program ([`crate::budget`]). The cost for the program that had the core, a
//! hand-off there and one back, is bounded here: after [`FREE`] wasted grants in a row the runtime
//! gets no core for a pause, which begins at [`PAUSE_US`] and doubles each time, up to
//! [`DOUBLINGS`] times. A race can waste a single grant. A core that was used ends the row. A core
//! that was given up while the program kept another one is not judged.
//!
//! A sleeping thread starts some 20 to 60 us after its wake, and a service may claim the core in
//! this time. A program that is stopped, or whose threads do not wake, would otherwise get each
//! core that a service leaves for a moment. The service would park, and would have to be woken for
//! each request. So a limit applies to a best-effort program that has had too many cores claimed
//! before it started on them ([`FREE_CLAIMS`], one for each core in [`CLAIM_PACE_US`]): it gets no
//! core on which a service idles, beyond those that it owns, and a service that claims another of
//! its cores takes it at once if the program has not started there. A core on which the program was
//! bypassed for a service, because it reached no poll point and did not answer the signal, counts
//! as [`CLAIMS_PER_BYPASS`]. The programs of one user count together. The program still gets free
//! cores and cores of other best-effort programs. Neither is an offence: threads that wait behind
//! an ordinary program do not start or cede either.

use tailwater_sched::ledger::{Account, Class};
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::Cycles;

use super::Allocator;
use super::words::WHOLE;
use crate::tenant::{CORE_DEPTH_US, Tenant};
use crate::world::World;

/// Number of wasted grants in a row without a pause.
const FREE: u32 = 3;
/// First pause, in microseconds.
const PAUSE_US: u64 = 100;
/// Maximum number of doublings: 25.6 ms.
const DOUBLINGS: u32 = 8;

/// Time in which one of them is forgotten, for each core that it can hold, in microseconds. Each
/// one costs a service a wake of 20 us, so this is about 2 % of its core.
const CLAIM_PACE_US: u64 = 1_000;
/// Number of claims that a bypass counts as: a sleeping service takes 60 us to run beside the
/// kthread that keeps the core.
const CLAIMS_PER_BYPASS: Cycles = 3;

/// The back-off of one runtime.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BackOff {
    /// Number of wasted grants in a row.
    row: u32,
    until: Cycles,
}

/// Why a service had to wait for a core that it claimed from a best-effort runtime.
#[derive(Debug, Clone, Copy)]
pub(super) enum Slow {
    /// The kthread had not started on it.
    Unstarted,
    /// The kthread did not cede it in time, and was bypassed.
    Bypassed,
}

impl BackOff {
    /// Returns whether the runtime is lent no core.
    #[inline(always)]
    pub(crate) fn is_on(&self, now: Cycles) -> bool {
        now < self.until
    }

    /// Returns when it may be lent one again.
    pub(crate) fn until(&self) -> Cycles {
        self.until
    }

    /// Counts a wasted grant; `us` is a microsecond.
    fn count(&mut self, now: Cycles, us: Cycles) {
        self.row = self.row.saturating_add(1);
        if let Some(more) = self.row.checked_sub(FREE + 1) {
            self.until = now.saturating_add((us * PAUSE_US) << more.min(DOUBLINGS));
        }
    }
}

impl Allocator {
    /// Counts a core that `claimant` gets from this kthread and has to wait for.
    pub(super) fn count_slow_claim(
        &self,
        world: &mut World,
        (kthread, why): (KthreadId, Slow),
        claimant: RuntimeId,
        now: Cycles,
    ) {
        if self.are_service_and_batch(claimant, kthread.runtime)
            && let Some(runtime) = world.runtimes.get(kthread.runtime)
        {
            let counters = &runtime.stats.counters;
            let (counter, claims) = match why {
                Slow::Unstarted => (&counters.unstarted_cores, 1),
                Slow::Bypassed => (&counters.bypassed_cores, CLAIMS_PER_BYPASS),
            };
            counter.add(1);
            let tenant = world.runtimes.tenants.get_mut(runtime.tenant);
            let pace = self.claim_pace(tenant);
            tenant.cores.charge(claims, pace, now);
        }
    }

    /// Returns for how long `claimant` leaves a core to a kthread that has not started on it: no
    /// time at all if it is a service, and this program is too slow.
    pub(super) fn time_to_start(
        &self,
        world: &World,
        kthread: KthreadId,
        claimant: RuntimeId,
        now: Cycles,
    ) -> Cycles {
        let is_late = self.are_service_and_batch(claimant, kthread.runtime)
            && self.is_too_slow(world, kthread.runtime, now);
        if is_late { 0 } else { self.timing.overdue_start }
    }

    /// Returns whether the first is latency-critical and the second best-effort.
    fn are_service_and_batch(&self, service: RuntimeId, batch: RuntimeId) -> bool {
        (self.class_of(service), self.class_of(batch)) == (Class::LatencyCritical, Class::BestEffort)
    }

    /// Returns whether services have to wait too often for cores that they claim from this runtime.
    pub(super) fn is_too_slow(&self, world: &World, id: RuntimeId, now: Cycles) -> bool {
        let Some(runtime) = world.runtimes.get(id) else { return false };
        let depth = self.clock.from_ns(CORE_DEPTH_US * 1_000);
        world.runtimes.tenants.get(runtime.tenant).cores.is_over(depth, now)
    }

    /// Returns whether `victim`, a service's kthread, keeps the core that it idles on, because `to`
    /// is too slow.
    pub(super) fn is_spared(&self, world: &World, victim: KthreadId, to: RuntimeId, now: Cycles) -> bool {
        let owns = |account: &Account| account.guaranteed().max(self.policy.granted(to));
        self.are_service_and_batch(victim.runtime, to)
            && self.is_too_slow(world, to, now)
            && self.ledger.account(to).is_some_and(|account| account.held() >= owns(account))
    }

    fn claim_pace(&self, tenant: &Tenant) -> Cycles {
        self.clock.from_ns(CLAIM_PACE_US * 1_000) / Cycles::from(self.most_cores(tenant.kthreads as usize))
    }

    /// Records whether the grant of a core that its kthread gave up unasked was wasted (`in_vain`).
    pub(super) fn judge_core(&mut self, world: &mut World, kthread: KthreadId, in_vain: bool, now: Cycles) {
        let us = self.clock.from_ns(1_000);
        let (runtime, line) = world.runtimes.kthread(kthread);
        let has_changed = runtime.mark != line.mark;
        let Some(runtime) = world.runtimes.get_mut(kthread.runtime) else { return };
        if in_vain {
            runtime.stats.counters.vain_cores.add(1);
            runtime.back_off.count(now, us);
        } else if has_changed {
            runtime.back_off.row = 0;
        }
    }

    /// Returns true if the runtime gave up its only core although its words ask for one, and has
    /// changed none of its words since the core was lent. The previous look may have read only some
    /// words. The verdict needs all of them, and is false while it is too early to read them. The
    /// words of withdrawn kthreads do not count: the others cannot always do that work (frames,
    /// without packet stealing).
    pub(super) fn was_lent_in_vain(&mut self, world: &mut World, kthread: KthreadId, now: Cycles) -> bool {
        let read_whole = world.runtimes.kthread(kthread).0.kthreads.len() <= WHOLE;
        self.seems_lent_in_vain(world, kthread)
            && (read_whole
                || self.look_for_verdict(world, kthread.runtime, now)
                    && self.seems_lent_in_vain(world, kthread))
    }

    /// As [`was_lent_in_vain`](Self::was_lent_in_vain), by the words as last read.
    fn seems_lent_in_vain(&self, world: &World, kthread: KthreadId) -> bool {
        let id = kthread.runtime;
        let (runtime, line) = world.runtimes.kthread(kthread);
        if runtime.mark != line.mark || self.has_core(id) {
            return false;
        }
        let Some(look) = self.observation.runtime(id) else { return false };
        let is_withdrawn = |index| {
            let kthread = KthreadId::new(id, index);
            self.withdrawn.iter().any(|withdrawn| withdrawn.kthread == kthread)
        };
        (0..).zip(&look.kthreads).any(|(index, look)| look.has_work() && !is_withdrawn(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_each_core_in_vain_and_is_bounded() {
        let mut back_off = BackOff::default();
        let mut pauses = Vec::new();
        for _ in 0..14 {
            back_off.count(1_000, 1);
            pauses.push(back_off.until().saturating_sub(1_000));
        }
        assert_eq!(pauses[..6], [0, 0, 0, 100, 200, 400]);
        assert_eq!(pauses[12..], [25_600, 25_600]);
        assert!(back_off.is_on(26_599) && !back_off.is_on(26_600));
    }
}
