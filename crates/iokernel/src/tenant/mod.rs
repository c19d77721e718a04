//! Tenants: who pays for time, and between whom the IOKernel isolates.
//!
//! Owns [`Tenant`] and its accounts. A program of root or of the IOKernel's own user is a tenant by
//! itself. All programs that another user has by one grant are one tenant, and so are those of all
//! users whom a grant covers without naming them: such users may have tens of thousands of ids
//! (subuid(5)). Programs of one tenant share what the tenant has, and nothing is accounted between
//! them: programs of one user can end each other anyway.
//!
//! One law holds for all time that a program takes from others: it is measured where it is spent,
//! and charged to the program's tenant. A tenant that owes more than [its depth](Bounds::depth)
//! waits until it has paid, and that is the only sanction. A registration ends only for what no
//! correct runtime does.
//!
//! | account | charged | parts | while it owes too much |
//! |---|---|---|---|
//! | `polling` | [`Work`] of the polling thread that no honest program causes often | [`Prices::price`] | its rings are not read, its doorbells are not heard, it is lent no core |
//! | `wakes` | the same thread's system calls for threads of best-effort programs: wakes, which sleepers of another program can make long, and looks at the processor time of late ones | by their length | its best-effort programs wait as above, its services do not |
//! | `cores`, one for each class of its programs | time for which services wait for cores of these programs, share them with late threads, or read frames of best-effort ones, and of cores that they did not use | [`CORE_PARTS`] for each core | these programs compete as best-effort ones and get no core of an idle service beyond their own; rings of best-effort ones are not read beside a service |
//!
//! No account owes more than its depth and [a second](Bounds::most): the rest is forgiven, so no
//! tenant waits for longer than a second once it has stopped.
//!
//! An account outlives the programs of its tenant until it is paid. So a program gains nothing if
//! it hangs up and registers again. Accounts of root's programs end with them.
//!
//! A reload of the configuration may give grants other numbers, and programs other grants. All
//! programs concerned then pass to other tenants at once ([`Runtimes::rekey`]); what the tenants
//! that they leave owe stays there.
//!
//! [`Runtimes::rekey`]: crate::runtime::Runtimes::rekey

pub(crate) mod turns;

use tailwater_sched::ledger::RuntimeClass;
use tailwater_shm::account::Account;
use tailwater_shm::{Clock, Cycles};

use crate::bounds::bounds;
use turns::Tag;

/// Least and greatest number of parts of a system call for a thread; other work has the least.
const PARTS: core::ops::RangeInclusive<Cycles> = 10..=100;

/// Parts of the time of cores, divided by the number of cores that the tenant can hold: late starts
/// and cedes cost services 2 % of a core.
const CORE_PARTS: Cycles = 50;
/// Part of a service's core that frames of best-effort programs of a tenant may take while the
/// service is served.
const READING_PARTS: Cycles = 16;

/// The user and the grant by which programs are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// `None`: all users whom the grant does not name.
    pub(crate) user: Option<u32>,
    pub(crate) grant: Option<usize>,
}

/// Number of a [`Tenant`]; the number of one that has ended is used again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TenantId(pub(crate) u32);

/// A piece of work of the polling thread that is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// What was refused or of no use: a frame that no program may send, a doorbell without news, a
    /// core that was asked for and not used, a thread that cannot be bound, a decision about an
    /// idle core whose holder has found work.
    Refused,
    /// A system call for a thread: a best-effort kthread was woken, a late one moved, or its
    /// processor time read.
    Thread,
    /// A program was attached, or its registration ended.
    Registration,
    /// All words of a program were read for a verdict on what it did, or many rings were looked at.
    Look,
}

bounds! {
    /// Bounds on what a tenant may owe.
    pub(crate) struct Bounds {
        /// Time that a tenant may owe: 2 ms of refused work, 20 ms of short wakes.
        depth = 200 ms,
        /// Time that an account may owe beyond its depth.
        most = 1_000 ms,
        /// Largest cost of one piece of work: a longer time is the machine's doing.
        longest = 1 ms,
        /// Length of a system call for a thread for each of its parts: a wake of 1.2 us has the
        /// least, and those of 200 us and more take a hundredth of the time.
        call = 2 us,
        /// Time that a tenant may owe for cores: 50 late starts of 20 us at 2 % of a core.
        core_depth = 50 ms,
    }
}

/// What work costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prices {
    pub(crate) clock: Clock,
    /// Percent of the time for refused work.
    refused: Cycles,
    pub(crate) bounds: Bounds,
}

impl Prices {
    /// Returns prices by which refused work of a tenant takes `share` percent of the time, at least
    /// one.
    pub(crate) fn new(clock: Clock, share: u8) -> Self {
        Self { clock, refused: share.clamp(1, 100).into(), bounds: Bounds::new(clock) }
    }

    /// Returns the time in which work of this length is paid.
    fn price(&self, work: Work, cost: Cycles) -> Cycles {
        match work {
            Work::Refused => cost * 100 / self.refused,
            Work::Thread => cost * (cost / self.bounds.call.max(1)).clamp(*PARTS.start(), *PARTS.end()),
            Work::Registration | Work::Look => cost * PARTS.start(),
        }
    }
}

/// See the module documentation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tenant {
    key: Option<Key>,
    programs: u32,
    /// Of all its programs.
    pub(crate) kthreads: u32,
    pub(crate) tag: Tag,
    /// Time for which ports were read for it and that its turns have not paid yet.
    port_time: Cycles,
    pub(crate) polling: Account,
    pub(crate) wakes: Account,
    /// By the class of the programs that owe it.
    cores: [Account; 2],
    /// Copies of its frames to groups, in time; see [`crate::switch`].
    pub(crate) copies: Account,
}

impl Tenant {
    /// Charges work of the polling thread; returns whether the tenant must wait because of it, and
    /// had not to before.
    pub(crate) fn charge(&mut self, work: Work, cost: Cycles, now: Cycles, prices: &Prices) -> bool {
        let account = match work {
            Work::Thread => &mut self.wakes,
            Work::Refused | Work::Registration | Work::Look => &mut self.polling,
        };
        let waited = account.is_over(prices.bounds.depth, now);
        account.charge(prices.price(work, cost.min(prices.bounds.longest)), 1, now);
        account.limit(prices.bounds.depth + prices.bounds.most, now);
        !waited && account.is_over(prices.bounds.depth, now)
    }

    /// Charges programs of this class for time of a core, on a machine of `cores` cores.
    pub(crate) fn charge_cores(
        &mut self,
        class: RuntimeClass,
        time: Cycles,
        cores: usize,
        now: Cycles,
        prices: &Prices,
    ) {
        let cores = (cores as Cycles).min(self.kthreads.into()).clamp(1, CORE_PARTS);
        let account = &mut self.cores[class as usize];
        account.charge(time * CORE_PARTS / cores, 1, now);
        account.limit(prices.bounds.core_depth + prices.bounds.most, now);
    }

    /// Charges the time in which a port was read for it. More than `most` is not owed.
    #[inline]
    pub(crate) fn charge_port_time(&mut self, time: Cycles, most: Cycles) {
        self.port_time = self.port_time.saturating_add(time).min(most);
    }

    /// Returns what a turn that took `took` costs: up to four times as much, until the time for
    /// which ports were read for the tenant is paid. So senders behind a port cost a tenant three
    /// quarters of its turns at most.
    #[inline]
    pub(crate) fn cost_of_turn(&mut self, took: Cycles) -> Cycles {
        let paid = self.port_time.min(3 * took);
        self.port_time -= paid;
        took + paid
    }

    /// Charges the time in which services read frames of its best-effort programs.
    pub(crate) fn charge_reading(&mut self, time: Cycles, now: Cycles) {
        self.cores[RuntimeClass::BestEffort as usize].charge(time, READING_PARTS, now);
    }

    /// Returns whether its programs of this class owe too much time of cores.
    #[inline(always)]
    pub(crate) fn owes_cores(&self, class: RuntimeClass, now: Cycles, prices: &Prices) -> bool {
        self.cores[class as usize].is_over(prices.bounds.core_depth, now)
    }

    /// Returns when the polling thread does work again for its programs of this class.
    pub(crate) fn pays_at(&self, class: RuntimeClass, prices: &Prices) -> Cycles {
        let for_all = self.polling.pays_at(prices.bounds.depth);
        match class {
            RuntimeClass::LatencyCritical => for_all,
            RuntimeClass::BestEffort => for_all.max(self.wakes.pays_at(prices.bounds.depth)),
        }
    }

    /// Returns whether nothing of it is left.
    fn has_ended(&self, now: Cycles) -> bool {
        let [services, best_effort] = self.cores;
        let accounts = [self.polling, self.wakes, services, best_effort, self.copies];
        let owes = accounts.iter().any(|account| account.is_over(0, now));
        self.programs == 0 && (self.key.is_none() || !owes)
    }
}

/// The tenants of all registered programs, and those that have not paid yet.
#[derive(Debug, Default)]
pub(crate) struct Tenants(Vec<Tenant>);

impl Tenants {
    /// Enters a program with this number of kthreads into the tenant of this key, or into a tenant
    /// of its own if there is no key.
    pub(crate) fn enter(&mut self, key: Option<Key>, kthreads: u16, now: Cycles) -> TenantId {
        let shared = |tenant: &Tenant| key.is_some() && tenant.key == key && !tenant.has_ended(now);
        let found = self.0.iter().position(shared);
        let at = found.or_else(|| self.0.iter().position(|tenant| tenant.has_ended(now)));
        let at = at.unwrap_or_else(|| {
            self.0.push(Tenant::default());
            self.0.len() - 1
        });
        if found.is_none() {
            self.0[at] = Tenant { key, ..Tenant::default() };
        }
        self.0[at].programs += 1;
        self.0[at].kthreads += u32::from(kthreads);
        TenantId(at as u32)
    }

    /// Removes a program that was entered with this number of kthreads.
    pub(crate) fn leave(&mut self, id: TenantId, kthreads: u16) {
        let tenant = &mut self.0[id.0 as usize];
        tenant.programs -= 1;
        tenant.kthreads -= u32::from(kthreads);
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: TenantId) -> &Tenant {
        &self.0[id.0 as usize]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: TenantId) -> &mut Tenant {
        &mut self.0[id.0 as usize]
    }
}

#[cfg(test)]
mod tests;
