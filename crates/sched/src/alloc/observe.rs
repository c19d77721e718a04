//! Observations: the reports of runtimes about themselves, copied out of shared memory for one
//! look.
//!
//! Owns a table that the caller keeps and overwrites in place; only attaching a runtime allocates
//! memory. Nothing in it is trusted. Counters are free-running and wrap. Every bit pattern is a
//! legal observation: a false one can at worst get its own runtime a core it does not need, or no
//! core.

use super::per_runtime::PerRuntime;
use super::requests::Requests;
use crate::ids::{KthreadId, Nanos, RuntimeId};
use crate::ledger::{Account, Ledger};
use heap::vec;
use heap::vec::Vec;

/// What a kthread reports to be doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// It runs a user thread or looks for one.
    Running,
    /// It found nothing to do. It still polls, and its core may be taken at once.
    Idle,
    /// It is asleep, or not yet awake on the core it was granted.
    #[default]
    Parked,
}

/// One kthread at one look. Work queued at a parked kthread is load like any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KthreadLook {
    /// Entries taken out of the run queue so far, modulo 2^32.
    pub runq_head: u32,
    /// Entries put into the run queue so far, modulo 2^32.
    pub runq_tail: u32,
    /// Number of user threads on the overflow list.
    pub overflow: u32,
    /// Position in the ingress ring up to which the runtime has consumed, modulo 2^32.
    pub ingress_head: u32,
    /// Position in the ingress ring up to which frames were put in, modulo 2^32, as of the reading
    /// of `ingress_head`. The IOKernel writes the ring, so this value is true.
    pub ingress_tail: u32,
    /// True if its earliest timer has expired.
    pub timer_due: bool,
    /// What it reports to be doing.
    pub activity: Activity,
    /// True if it hosts an exclusive thread. Its core is taken only where its runtime has no other
    /// core of the same use.
    pub hosted: bool,
    /// True if the latest look at its runtime did not read it: all but `timer_due` and `activity`
    /// is as of an earlier look.
    pub left_out: bool,
}

impl KthreadLook {
    /// Returns true if anything waits: a user thread, a frame or an expired timer. A head ahead of
    /// its tail counts as empty.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let queued = queued(self.runq_head, self.runq_tail) || queued(self.ingress_head, self.ingress_tail);
        queued || self.overflow > 0 || self.timer_due
    }
}

/// Returns true if a queue with these free-running ends holds anything: the tail is ahead of the
/// head, in wrapping arithmetic.
pub(super) fn queued(head: u32, tail: u32) -> bool {
    tail.wrapping_sub(head) as i32 > 0
}

/// What keeps a core with its holder for now. All policies that take cores respect it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: its holder can be asked to cede it.
    #[default]
    None,
    /// Its holder has not started and has not seen its grant, so it cannot be asked to cede. It may
    /// lose the core once its start is overdue; to a service at once if it is
    /// [demoted](RuntimeLook::is_demoted).
    Starting {
        /// When the start is overdue.
        overdue: Nanos,
    },
    /// Its holder gives it up for no other kthread.
    Leaving,
}

/// One runtime at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeLook {
    pub(super) on_hold: bool,
    pub(super) demoted: bool,
    pub(super) confined: bool,
    pub(super) requests: Requests,
    /// By position: cores to which Linux does not bind its threads; empty if none are known.
    pub(super) refused: Vec<bool>,
    /// Its kthreads, by index.
    pub kthreads: Vec<KthreadLook>,
}

impl RuntimeLook {
    /// Returns true if the runtime must be lent no more cores, because it is not ready yet or is
    /// about to be removed.
    #[must_use]
    pub fn on_hold(&self) -> bool {
        self.on_hold
    }

    /// Returns true if the runtime competes for cores as a best-effort one, whatever its class, and
    /// takes no core on which a service idles beyond those that it owns.
    #[must_use]
    pub fn is_demoted(&self) -> bool {
        self.demoted
    }

    /// Returns whether Linux is known not to bind its threads to the core at this position.
    #[must_use]
    pub fn is_refused(&self, at: usize) -> bool {
        self.refused.get(at).is_some_and(|&refused| refused)
    }

    /// Returns true if there is any such core.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Returns true if the runtime must be lent no [closed](Observation::set_closed) core.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.confined
    }

    /// Returns the cores that it requests. Only the policy `arbiter` uses this.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.requests
    }

    /// Returns true if anything waits at any of its kthreads.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.kthreads.iter().any(KthreadLook::has_work)
    }
}

/// The latest look at every runtime. The caller keeps it from look to look.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    runtimes: PerRuntime<RuntimeLook>,
    revision: u64,
    /// By position: for which runtime the core is kept from ordinary threads; empty if none is.
    reserved: Vec<Option<RuntimeId>>,
    /// By position: whether the core is lent to no confined runtime; empty if none is closed.
    closed: Vec<bool>,
    /// By position; the cores beyond its end have no hold.
    holds: Vec<Hold>,
    /// Number of calls of [`stickiness`](Self::stickiness).
    #[cfg(test)]
    pub(super) stickiness_reads: core::cell::Cell<usize>,
}

impl Observation {
    /// Creates an observation of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for a runtime of `kthreads` kthreads, all parked with nothing queued. Replaces
    /// the slot's previous content.
    pub fn attach(&mut self, runtime: RuntimeId, kthreads: u16) {
        let kthreads = vec![KthreadLook::default(); usize::from(kthreads)];
        self.runtimes.insert(runtime, RuntimeLook { kthreads, ..RuntimeLook::default() });
        self.revision += 1;
    }

    /// Sets whether a runtime must be lent no more cores; ignores one that is not attached.
    pub fn set_on_hold(&mut self, runtime: RuntimeId, on_hold: bool) {
        let Some(look) = self.runtimes.get_mut(runtime).filter(|look| look.on_hold != on_hold) else {
            return;
        };
        look.on_hold = on_hold;
        self.revision += 1;
    }

    /// Sets whether a runtime is [demoted](RuntimeLook::is_demoted): it keeps others waiting for
    /// cores for too long. Ignores one that is not attached.
    pub fn set_demoted(&mut self, runtime: RuntimeId, demoted: bool) {
        if let Some(look) = self.runtimes.get_mut(runtime) {
            look.demoted = demoted;
        }
    }

    /// Has the policies that run live lend a runtime the core at this position no more, because
    /// Linux does not bind its threads there; ignores one that is not attached. Allocates at a
    /// runtime's first such core.
    pub fn refuse(&mut self, runtime: RuntimeId, at: usize) {
        let Some(look) = self.runtimes.get_mut(runtime) else { return };
        if look.refused.len() <= at {
            look.refused.resize(at + 1, false);
        }
        look.refused[at] = true;
    }

    /// Returns false if Linux does not bind the runtime's threads to the core at this position, if
    /// the core is closed to the runtime, or if it is
    /// [withheld](crate::ledger::Account::is_withheld) from it.
    #[must_use]
    pub fn may_have(&self, ledger: &Ledger, runtime: RuntimeId, at: usize) -> bool {
        let is_closed = self.closed.get(at).is_some_and(|&closed| closed);
        !self.runtime(runtime).is_some_and(|look| look.is_refused(at) || look.confined && is_closed)
            && !ledger.account(runtime).is_some_and(|account| account.is_withheld(at))
    }

    /// Returns true if there are cores that the runtime [may not have](Self::may_have).
    pub(super) fn lacks_cores(&self, ledger: &Ledger, runtime: RuntimeId) -> bool {
        let is_closed = !self.closed.is_empty();
        self.runtime(runtime).is_some_and(|look| look.has_refused() || look.confined && is_closed)
            || ledger.account(runtime).is_some_and(Account::has_withheld)
    }

    /// Sets whether a runtime is [confined](RuntimeLook::is_confined); ignores one that is not
    /// attached.
    pub fn set_confined(&mut self, runtime: RuntimeId, confined: bool) {
        if let Some(look) = self.runtimes.get_mut(runtime) {
            look.confined = confined;
        }
    }

    /// Sets which cores, by position, are lent to no confined runtime. Allocates at the first call.
    pub fn set_closed(&mut self, cores: impl Iterator<Item = bool>) {
        self.closed.clear();
        self.closed.extend(cores);
        if !self.closed.contains(&true) {
            self.closed.clear();
        }
    }

    /// Sets what keeps the core at this position with its holder. Allocates where no core at this
    /// or a later position has had a hold.
    pub fn set_hold(&mut self, at: usize, hold: Hold) {
        if self.holds.len() <= at {
            self.holds.resize(at + 1, Hold::None);
        }
        self.holds[at] = hold;
    }

    /// Returns what keeps the core at this position with its holder.
    #[must_use]
    pub fn hold(&self, at: usize) -> Hold {
        self.holds.get(at).copied().unwrap_or_default()
    }

    /// Forgets all cores that were refused to a runtime.
    pub fn forget_refused(&mut self, runtime: RuntimeId) {
        if let Some(look) = self.runtimes.get_mut(runtime) {
            look.refused = Vec::new();
        }
    }

    /// Sets for which runtime each core, by position, is kept from ordinary threads. It is taken
    /// from that runtime only where it has no other core of the same use. Allocates at the first
    /// call.
    pub fn set_reserved(&mut self, cores: impl Iterator<Item = Option<RuntimeId>>) {
        self.reserved.clear();
        self.reserved.extend(cores);
    }

    /// Returns how much a kthread should keep the core at this position before other cores of its
    /// runtime: more if it hosts an exclusive thread than if the core is reserved.
    pub(super) fn stickiness(&self, kthread: KthreadId, at: usize) -> u8 {
        #[cfg(test)]
        self.stickiness_reads.set(self.stickiness_reads.get() + 1);
        let hosted = self.kthread(kthread).is_some_and(|look| look.hosted);
        let reserved = self.reserved.get(at).is_some_and(|&owner| owner == Some(kthread.runtime));
        2 * u8::from(hosted) + u8::from(reserved)
    }

    /// Sets the cores that a runtime requests; ignores one that is not attached.
    pub fn set_requests(&mut self, runtime: RuntimeId, requests: Requests) {
        let Some(look) = self.runtimes.get_mut(runtime).filter(|look| look.requests != requests) else {
            return;
        };
        look.requests = requests;
        self.revision += 1;
    }

    /// Returns a number that changes with the requests of runtimes and with which are on hold; not
    /// with the [holds](Hold) of cores.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Forgets a runtime.
    pub fn detach(&mut self, runtime: RuntimeId) {
        self.runtimes.remove(runtime);
    }

    /// Returns the look at one runtime; `None` when it is not attached.
    #[must_use]
    pub fn runtime(&self, runtime: RuntimeId) -> Option<&RuntimeLook> {
        self.runtimes.get(runtime)
    }

    /// Returns the mutable form of the method above.
    pub fn runtime_mut(&mut self, runtime: RuntimeId) -> Option<&mut RuntimeLook> {
        self.runtimes.get_mut(runtime)
    }

    /// Returns the look at one kthread; `None` when it is not attached.
    #[must_use]
    pub fn kthread(&self, kthread: KthreadId) -> Option<&KthreadLook> {
        self.runtime(kthread.runtime)?.kthreads.get(usize::from(kthread.index))
    }

    /// Returns the mutable form of the method above.
    pub fn kthread_mut(&mut self, kthread: KthreadId) -> Option<&mut KthreadLook> {
        self.runtime_mut(kthread.runtime)?.kthreads.get_mut(usize::from(kthread.index))
    }

    /// Returns what a kthread reports to be doing; a kthread that is not attached is parked.
    #[must_use]
    pub fn activity(&self, kthread: KthreadId) -> Activity {
        self.kthread(kthread).map_or(Activity::Parked, |look| look.activity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_judged_across_the_wrap_and_garbage_counts_as_empty() {
        assert!(queued(u32::MAX, 0));
        assert!(!queued(7, 7));
        assert!(!queued(8, 7), "head ahead of tail");
    }

    #[test]
    fn each_source_of_load_alone_is_work() {
        let nothing = KthreadLook::default();
        assert!(!nothing.has_work());
        assert!(KthreadLook { runq_tail: 1, ..nothing }.has_work());
        assert!(KthreadLook { ingress_tail: 64, ..nothing }.has_work());
        assert!(KthreadLook { overflow: 1, ..nothing }.has_work());
        assert!(KthreadLook { timer_due: true, ..nothing }.has_work());
    }

    #[test]
    fn a_kthread_that_is_not_attached_is_parked() {
        let mut obs = Observation::new();
        let k = KthreadId::new(RuntimeId(4), 0);
        assert_eq!(obs.activity(k), Activity::Parked);
        obs.attach(k.runtime, 1);
        obs.kthread_mut(k).unwrap().activity = Activity::Idle;
        assert_eq!(obs.activity(k), Activity::Idle);
        assert_eq!(obs.activity(KthreadId::new(k.runtime, 1)), Activity::Parked);
        obs.detach(k.runtime);
        obs.detach(RuntimeId(99));
        assert!(obs.runtime(k.runtime).is_none());
    }
}
