//! The division of the cores that programs request, by priority (Arachne section 4).
//!
//! Owns `Division`: which cores are a program's *own* by the latest division. Higher priorities are
//! served first. What is left for a priority that does not fit is divided evenly. Requests of
//! best-effort programs come after all those of latency-critical ones, whatever their priorities,
//! as everywhere else.
//!
//! Guarantees come before all requests; while absent cores leave too few for them, requests are
//! given none. The first cores that a program requests are those it is guaranteed. A guarantee
//! alone makes a core available; a request makes it the program's own: it is granted without any
//! work, and not lent to others while the kthread that has it idles.
//!
//! A word of requests that changes all the time causes one division per [`DIVISION_PAUSE`], or per
//! pause that grows with the number of requests. What a raised request fetches without work is
//! bounded by `prefetch`. A runtime on hold requests nothing, so that what it requests when the
//! hold ends is a raise.

use super::observe::{Activity, KthreadLook};
use super::per_runtime::PerRuntime;
use super::policy::View;
use super::prefetch::{Have, PrefetchLimiter};
use super::requests::{PRIORITIES, Requests};
use super::target::{Request, divide};
use crate::ids::{Nanos, RuntimeId};
use crate::ledger::{Account, KthreadState, RuntimeClass};
use heap::vec::Vec;

/// Shortest time after a division before the next one.
pub const DIVISION_PAUSE: Nanos = Nanos::from_micros(50);
/// The same for each row that was divided, of which a program has one for its guarantee and one for
/// each priority at which it requests cores. A row takes 14 ns (16 programs with requests at all
/// priorities take 2 us), so divisions take 4 % of the polling thread's time at most.
const PAUSE_PER_ROW: Nanos = Nanos(350);

/// What a program owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entitlement {
    /// Cores that cannot be preempted: requested ones, and guaranteed ones.
    pub(super) own: u16,
    /// Cores it requested and was given: they are not lent to others while they idle.
    pub(super) requested: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// As of the latest division.
    requests: Requests,
    entitlement: Entitlement,
    limiter: PrefetchLimiter,
}

/// The division of the cores among those who request them.
#[derive(Clone, Debug, Default)]
pub(super) struct Division {
    entries: PerRuntime<Entry>,
    /// True if a runtime joined or left since the latest division.
    stale: bool,
    /// Cores that were divided: those not absent.
    present: usize,
    /// Revision of the observation whose requests were compared with the division, and whether they
    /// differed.
    compared: Option<(u64, bool)>,
    not_before: Nanos,
    rows: Vec<Request>,
    targets: Vec<(RuntimeId, u16)>,
}

impl Division {
    pub(super) fn attach(&mut self, runtime: RuntimeId) {
        self.entries.insert(runtime, Entry::default());
        self.stale = true;
        let slots = self.entries.slots();
        self.rows.clear();
        self.rows.reserve(slots * (usize::from(PRIORITIES) + 1));
        self.targets.clear();
        self.targets.reserve(slots * (usize::from(PRIORITIES) + 1));
    }

    pub(super) fn detach(&mut self, runtime: RuntimeId) {
        self.entries.remove(runtime);
        self.stale = true;
    }

    /// Returns what a runtime owns. Until the first division after it joined, that is its
    /// guarantee.
    pub(super) fn of(&self, runtime: RuntimeId, account: &Account) -> Entitlement {
        let entitlement = self.entries.get(runtime).map_or(Entitlement::default(), |entry| entry.entitlement);
        Entitlement { own: entitlement.own.max(account.guaranteed()), ..entitlement }
    }

    /// Returns how many of the cores that it requests are a runtime's own.
    pub(super) fn requested(&self, runtime: RuntimeId) -> u16 {
        self.entries.get(runtime).map_or(0, |entry| entry.entitlement.requested)
    }

    /// Returns whether the runtime is to be granted a core for its request alone, as of this look.
    pub(super) fn pursue(&mut self, runtime: RuntimeId, view: View<'_>) -> bool {
        let Some(Entry { entitlement, limiter, .. }) = self.entries.get_mut(runtime) else { return false };
        limiter.is_under_way() && limiter.look(entitlement.requested, have(view, runtime), view.now)
    }

    /// Divides the cores anew if a request has changed. Called at each look.
    pub(super) fn update(&mut self, view: View<'_>) {
        let revision = view.obs.revision();
        if self.compared.is_none_or(|(compared, _)| compared != revision) {
            self.compared = Some((revision, self.have_changed(view)));
        }
        if view.now >= self.not_before && self.is_outdated(view) {
            self.divide(view);
            self.stale = false;
            self.compared = Some((revision, false));
            let pause = Nanos(PAUSE_PER_ROW.0 * self.rows.len() as u64);
            self.not_before = view.now + pause.max(DIVISION_PAUSE);
        }
    }

    /// Returns the time of the next look that may grant a core although nothing happens until then,
    /// because the division is outdated or a raised request is to be pursued: [`Nanos::ZERO`] for
    /// the very next one.
    pub(super) fn next_pending(&self, view: View<'_>) -> Option<Nanos> {
        if self.is_outdated(view) {
            return Some(Nanos::ZERO);
        }
        let next = |&runtime: &RuntimeId| {
            let limiter = &self.entries.get(runtime)?.limiter;
            // What a runtime has is counted over all of its kthreads: only if it matters.
            if limiter.is_under_way() { limiter.next_fetch(have(view, runtime)) } else { None }
        };
        view.ledger.runtimes().iter().filter_map(next).min()
    }

    /// Returns true if the division does not follow from the observation. What has not been
    /// compared since the latest [`update`](Self::update) counts as changed.
    fn is_outdated(&self, view: View<'_>) -> bool {
        let changed = self.compared != Some((view.obs.revision(), false));
        self.stale || self.present != view.ledger.present_cores() || changed
    }

    fn have_changed(&self, view: View<'_>) -> bool {
        let changed = |&runtime: &RuntimeId| {
            let entry = self.entries.get(runtime);
            entry.is_some_and(|entry| requests_of(view, runtime) != entry.requests)
        };
        view.ledger.runtimes().iter().any(changed)
    }

    fn divide(&mut self, view: View<'_>) {
        self.rows.clear();
        self.present = view.ledger.present_cores();
        let is_crowded = view.ledger.guaranteed_cores() > self.present;
        for &runtime in view.ledger.runtimes() {
            let Some(account) = view.ledger.account(runtime) else { continue };
            let requests = requests_of(view, runtime);
            if let Some(entry) = self.entries.get_mut(runtime) {
                entry.requests = requests;
            }
            let beyond = if is_crowded { Requests::NONE } else { requests };
            self.rows.extend(rows(runtime, account, beyond));
        }
        divide(self.present, &mut self.rows, &mut self.targets);
        for &runtime in view.ledger.runtimes() {
            let Some(entry) = self.entries.get_mut(runtime) else { continue };
            let found = self.targets.binary_search_by_key(&runtime, |target| target.0);
            let own = found.map_or(0, |at| self.targets[at].1);
            let requested = own.min(entry.requests.total());
            entry.limiter.change(entry.entitlement.requested, requested, have(view, runtime), view.now);
            entry.entitlement = Entitlement { own, requested };
        }
    }
}

/// Returns the requests as of the latest look, without what the program cannot use.
fn requests_of(view: View<'_>, runtime: RuntimeId) -> Requests {
    let max = view.ledger.account(runtime).map_or(0, |account| account.spec().max);
    let look = view.obs.runtime(runtime).filter(|look| !look.on_hold());
    look.map_or(Requests::NONE, |look| look.requests().limited_to(max))
}

/// Returns what a runtime has at this look.
fn have(view: View<'_>, runtime: RuntimeId) -> Have {
    let (Some(account), Some(look)) = (view.ledger.account(runtime), view.obs.runtime(runtime)) else {
        return Have::default();
    };
    let starts = |(state, look): (KthreadState, &KthreadLook)| {
        matches!(state, KthreadState::Granted { .. }) && look.activity == Activity::Parked
    };
    let cores = account.cores();
    let waiting = account.kthreads().zip(&look.kthreads).filter(|&both| starts(both)).count() as u16;
    let running = cores.saturating_sub(waiting + account.arriving());
    Have { cores, running, given_up: account.given_up(), has_room: account.room() > 0 && !look.on_hold() }
}

/// Returns the rows of the division for one runtime: its guarantee at rank 0, then what it requests
/// beyond.
fn rows(runtime: RuntimeId, account: &Account, requests: Requests) -> impl Iterator<Item = Request> {
    let spec = account.spec();
    let first = match spec.class {
        RuntimeClass::LatencyCritical => 1,
        RuntimeClass::BestEffort => 1 + PRIORITIES,
    };
    let mut covered = account.guaranteed();
    let guarantee = Request { runtime, rank: 0, cores: covered };
    let beyond = (first..).zip(requests.0).map(move |(rank, cores)| {
        let cores = u16::from(cores);
        let free = cores.min(covered);
        covered -= free;
        Request { runtime, rank, cores: cores - free }
    });
    core::iter::once(guarantee).chain(beyond).filter(|row| row.cores > 0)
}

#[cfg(test)]
mod tests {
    use super::super::Observation;
    use super::*;
    use crate::ledger::{Ledger, RuntimeSpec};
    use crate::topology::Topology;

    const FIRST: Requests = Requests::from_word(3);

    struct Machine {
        ledger: Ledger,
        obs: Observation,
        division: Division,
        now: Nanos,
    }

    impl Machine {
        fn new(cores: u16, specs: &[(u16, u16, RuntimeClass)]) -> Self {
            let mut ledger = Ledger::new(Topology::uniform(cores, 1, 1).unwrap());
            let (mut obs, mut division) = (Observation::new(), Division::default());
            for (id, &(guaranteed, max, class)) in (0..).map(RuntimeId).zip(specs) {
                let spec = RuntimeSpec { guaranteed, max, kthreads: max, class };
                ledger.register(id, spec, Nanos::ZERO).unwrap();
                obs.attach(id, max);
                division.attach(id);
            }
            Self { ledger, obs, division, now: Nanos::ZERO }
        }

        fn request(&mut self, id: u32, requests: Requests) {
            self.obs.set_requests(RuntimeId(id), requests);
        }

        fn look(&mut self, after: Nanos) -> Vec<(u16, u16)> {
            self.now = self.now + after;
            let view = View { now: self.now, obs: &self.obs, ledger: &self.ledger };
            self.division.update(view);
            let entitlement = |&id: &RuntimeId| self.division.of(id, self.ledger.account(id).unwrap());
            self.ledger
                .runtimes()
                .iter()
                .map(entitlement)
                .map(|entitlement| (entitlement.own, entitlement.requested))
                .collect()
        }
    }

    #[test]
    fn requests_are_cut_at_the_limit_lowest_priority_first() {
        let requests = Requests::new([2, 0, 255, 0, 0, 0, 0, 9]);
        assert_eq!(requests.total(), 266);
        assert_eq!(requests.limited_to(4), Requests::new([2, 0, 2, 0, 0, 0, 0, 0]));
        assert_eq!(requests.limited_to(0), Requests::NONE);
        assert_eq!(Requests::from_word(u64::MAX).limited_to(u16::MAX).total(), 2040);
        assert_eq!(Requests::larger(0x0300_0000_0000_0102, 0x0100_0000_0000_0201), 0x0300_0000_0000_0202);
    }

    #[test]
    fn priorities_come_first_and_a_class_before_priorities() {
        let (service, batch) = (RuntimeClass::LatencyCritical, RuntimeClass::BestEffort);
        let mut machine = Machine::new(8, &[(0, 8, service), (0, 8, service), (0, 8, batch)]);
        machine.request(0, Requests::new([0, 3, 0, 0, 0, 0, 0, 5]));
        machine.request(1, Requests::new([0, 0, 4, 0, 0, 0, 0, 0]));
        machine.request(2, Requests::new([8, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(machine.look(Nanos(1)), [(4, 4), (4, 4), (0, 0)]);
    }

    #[test]
    fn guarantees_are_kept_from_all_requests_and_count_as_requested_only_if_they_are() {
        let class = RuntimeClass::LatencyCritical;
        let mut machine = Machine::new(4, &[(2, 4, class), (1, 4, class)]);
        machine.request(1, Requests::new([4, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(machine.look(Nanos(1)), [(2, 0), (2, 2)], "one guaranteed, one that is left");
        machine.request(0, Requests::new([0, 0, 0, 0, 0, 0, 0, 1]));
        assert_eq!(machine.look(DIVISION_PAUSE), [(2, 1), (2, 2)]);
    }

    #[test]
    fn a_word_that_changes_all_the_time_is_followed_once_in_a_pause() {
        let mut machine = Machine::new(4, &[(0, 4, RuntimeClass::LatencyCritical)]);
        machine.request(0, FIRST);
        assert_eq!(machine.look(Nanos(1)), [(3, 3)]);
        machine.request(0, Requests::NONE);
        assert_eq!(machine.look(DIVISION_PAUSE - Nanos(1)), [(3, 3)]);
        assert_eq!(machine.look(Nanos(1)), [(0, 0)]);
    }

    #[test]
    fn the_pause_grows_with_what_is_divided() {
        let everything = Requests::from_word(0x0101_0101_0101_0101);
        let class = RuntimeClass::LatencyCritical;
        let mut machine = Machine::new(8, &[(0, 8, class); 40]);
        (0..40).for_each(|id| machine.request(id, everything));
        machine.look(Nanos(1));
        machine.request(0, Requests::NONE);
        let pause = Nanos(320 * PAUSE_PER_ROW.0);
        assert!(pause > DIVISION_PAUSE);
        assert_ne!(machine.look(pause - Nanos(1))[0], (0, 0));
        assert_eq!(machine.look(Nanos(1))[0], (0, 0));
    }
}
