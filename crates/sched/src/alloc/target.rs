//! Grants that follow from a target number of cores per runtime; shared by the policies that
//! compute targets.
//!
//! Owns the division of cores by rank and the choice of cores; keeps nothing from event to event.
//! Arachne's arbiter, IX's controller and the delay threshold differ in how they find the targets,
//! not in how they reach them.
//!
//! A runtime is never brought below its guarantee by force, whatever its target: busy kthreads are
//! taken only from runtimes that are above both. A core with a [hold](super::Hold) stays with its
//! holder.

use super::observe::{Activity, RuntimeLook};
use super::policy::View;
use crate::action::Action;
use crate::ids::{KthreadId, RuntimeId};
use crate::ledger::{Account, CoreState};
use heap::vec::Vec;

/// Collects the requests of one event, then grants the cores that follow from them.
#[derive(Clone, Debug, Default)]
pub(super) struct Arbiter {
    requests: Vec<Request>,
    targets: Vec<(RuntimeId, u16)>,
    /// Core positions in order of preference.
    order: Vec<usize>,
}

impl Arbiter {
    /// Sets the order of preference of core positions.
    pub(super) fn set_order(&mut self, order: Vec<usize>) {
        self.order = order;
    }

    /// Requests `cores` for `runtime`: its guarantee before all other requests, the rest at `rank`,
    /// which is at least 1.
    pub(super) fn request(&mut self, runtime: RuntimeId, account: &Account, rank: u8, cores: u16) {
        let guaranteed = account.guaranteed().min(cores);
        self.requests.push(Request { runtime, rank: 0, cores: guaranteed });
        self.requests.push(Request { runtime, rank, cores: cores - guaranteed });
    }

    /// Appends the grants that bring every runtime up to its request, as far as the cores suffice.
    pub(super) fn grant(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        divide(view.ledger.present_cores(), &mut self.requests, &mut self.targets);
        self.requests.clear();
        grant_targets(view, &self.targets, &self.order, actions);
    }
}

/// One runtime's request at one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The runtime.
    pub(super) runtime: RuntimeId,
    /// Lower ranks are served first.
    pub(super) rank: u8,
    /// Cores requested at this rank.
    pub(super) cores: u16,
}

/// Divides `total` cores among the requests: lower ranks first, evenly within a rank that does not
/// fit (Arachne section 4). A runtime may have requests at several ranks; its target is their sum.
pub(super) fn divide(total: usize, requests: &mut [Request], targets: &mut Vec<(RuntimeId, u16)>) {
    requests.sort_unstable_by_key(|w| (w.rank, w.runtime));
    targets.clear();
    let mut left = total;
    for level in requests.chunk_by_mut(|a, b| a.rank == b.rank) {
        let mut open: u16 = level.iter().map(|w| w.cores).max().unwrap_or(0);
        let given = targets.len();
        targets.extend(level.iter().map(|w| (w.runtime, 0)));
        // Each round gives one core to each runtime that needs more, so that no such runtime is
        // more than one core behind another.
        while open > 0 && left > 0 {
            for (request, target) in level.iter().zip(&mut targets[given..]) {
                if target.1 < request.cores && left > 0 {
                    target.1 += 1;
                    left -= 1;
                }
            }
            open -= 1;
        }
    }
    targets.sort_unstable_by_key(|(runtime, _)| *runtime);
    targets.dedup_by(|next, first| {
        let same = next.0 == first.0;
        first.1 += if same { next.1 } else { 0 };
        same
    });
}

/// Appends the grants that bring every runtime up to its target. Cores come from the free ones
/// first, then from runtimes above their targets, idle kthreads before busy ones. `order` lists
/// core positions in order of preference.
fn grant_targets(view: View<'_>, targets: &[(RuntimeId, u16)], order: &[usize], actions: &mut Vec<Action>) {
    let first_new = actions.len();
    let mut excess: Vec<(RuntimeId, i32)> = Vec::with_capacity(targets.len());
    for &(runtime, target) in targets {
        let Some(account) = view.ledger.account(runtime) else { continue };
        let keep = target.max(account.guaranteed().min(account.cores()));
        excess.push((runtime, i32::from(account.cores()) - i32::from(keep)));
    }
    for &(runtime, target) in targets {
        let Some(account) = view.ledger.account(runtime) else { continue };
        if view.obs.runtime(runtime).is_none_or(RuntimeLook::on_hold) {
            continue;
        }
        let missing = target.saturating_sub(account.cores()).min(account.room());
        let mut parked = account.parked();
        for _ in 0..missing {
            let Some((at, victim)) = find_core(view, runtime, order, &mut excess, &actions[first_new..])
            else {
                break;
            };
            let Some(index) = parked.next() else { break };
            let core = view.ledger.topology().cores()[at].id;
            let kthread = KthreadId::new(runtime, index);
            // A best-effort runtime takes a latency-critical core only while it idles, unless it is
            // entitled to it.
            let entitled = account.cores() < account.guaranteed();
            let class_of = |k: KthreadId| view.ledger.account(k.runtime).map(|a| a.spec().class);
            let up = victim.and_then(class_of).is_some_and(|class| class < account.spec().class);
            actions.push(Action::Grant { runtime, kthread, core, victim, only_if_idle: up && !entitled });
        }
    }
}

/// Returns a core for `runtime` and its holder: a free core, else an idle core of a runtime above
/// its target, else a busy one of such a runtime.
fn find_core(
    view: View<'_>,
    runtime: RuntimeId,
    order: &[usize],
    excess: &mut [(RuntimeId, i32)],
    taken: &[Action],
) -> Option<(usize, Option<KthreadId>)> {
    let may_take = |at: &usize| {
        let core = view.ledger.topology().cores()[*at].id;
        !taken.iter().any(|Action::Grant { core: other, .. }| *other == core)
            && view.obs.may_have(view.ledger, runtime, *at)
            && view.yields(*at, runtime)
    };
    let free = order.iter().copied().filter(may_take).find(|&at| view.ledger.cores()[at] == CoreState::Free);
    if let Some(at) = free {
        return Some((at, None));
    }
    for must_idle in [true, false] {
        // Starts at the far end of the order: the cores a runtime would be given last are taken
        // from it first.
        for at in order.iter().rev().copied().filter(may_take) {
            let CoreState::Owned { kthread, .. } = view.ledger.cores()[at] else { continue };
            if kthread.runtime == runtime || must_idle != (view.obs.activity(kthread) == Activity::Idle) {
                continue;
            }
            if let Some(entry) = excess.iter_mut().find(|(r, spare)| *r == kthread.runtime && *spare > 0) {
                entry.1 -= 1;
                return Some((at, Some(kthread)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{Hold, Observation};
    use super::*;
    use crate::ids::{CoreId, Nanos};
    use crate::ledger::{Ledger, RuntimeClass, RuntimeSpec};
    use crate::topology::Topology;

    fn shares(total: usize, requests: &[(u32, u8, u16)]) -> Vec<u16> {
        let request = |&(r, rank, cores): &(u32, u8, u16)| Request { runtime: RuntimeId(r), rank, cores };
        let mut requests: Vec<Request> = requests.iter().map(request).collect();
        let mut targets = Vec::new();
        divide(total, &mut requests, &mut targets);
        targets.into_iter().map(|(_, cores)| cores).collect()
    }

    #[test]
    fn higher_priorities_are_served_whole_before_lower_ones() {
        assert_eq!(shares(8, &[(0, 3, 8), (1, 0, 5)]), [3, 5]);
    }

    #[test]
    fn a_level_that_does_not_fit_is_divided_evenly_and_no_runtime_gets_more_than_asked() {
        assert_eq!(shares(8, &[(0, 1, 8), (1, 1, 8), (2, 1, 1)]), [4, 3, 1]);
    }

    #[test]
    fn a_core_is_taken_once_nothing_keeps_it_with_its_holder() {
        let now = Nanos::from_millis(1);
        let mut ledger = Ledger::new(Topology::uniform(1, 1, 1).unwrap());
        let mut obs = Observation::new();
        for runtime in [RuntimeId(0), RuntimeId(1)] {
            let spec = RuntimeSpec { guaranteed: 0, max: 1, kthreads: 1, class: RuntimeClass::BestEffort };
            ledger.register(runtime, spec, now).unwrap();
            obs.attach(runtime, 1);
        }
        ledger.grant(CoreId(0), KthreadId::new(RuntimeId(0), 0), now).unwrap();
        let (later, earlier) = (now + Nanos(1), Nanos(0));
        for (hold, is_taken) in [
            (Hold::None, true),
            (Hold::Leaving, false),
            (Hold::Starting { overdue: later }, false),
            (Hold::Starting { overdue: earlier }, true),
        ] {
            obs.set_hold(0, hold);
            let view = View { now, obs: &obs, ledger: &ledger };
            let mut actions = Vec::new();
            grant_targets(view, &[(RuntimeId(0), 0), (RuntimeId(1), 1)], &[0], &mut actions);
            assert_eq!(actions.len(), usize::from(is_taken), "{hold:?}");
        }
    }

    #[test]
    fn wishes_of_one_runtime_at_several_levels_add_up() {
        assert_eq!(shares(8, &[(0, 0, 1), (1, 1, 6), (0, 7, 8)]), [2, 6]);
    }
}
