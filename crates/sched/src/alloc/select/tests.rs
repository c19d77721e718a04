//! The choice among cores that owners stick to against a walk of all cores, for machines in any
//! state.

use proptest::prelude::*;

use super::*;
use crate::ids::CoreId;
use crate::ledger::RuntimeSpec;
use crate::topology::Topology;

const RUNTIMES: u32 = 4;

/// Returns true if the runtime that has the core at this position has another one, `alike`, that it
/// sticks to less: the definition.
fn has_less_sticky(view: View<'_>, at: usize, alike: impl Fn(usize) -> bool) -> bool {
    let cores = view.ledger.cores();
    let CoreState::Owned { kthread: holder, .. } = cores[at] else { return false };
    let stickiness = view.obs.stickiness(holder, at);
    let is_less_sticky = |(other, state): (usize, &CoreState)| {
        matches!(*state, CoreState::Owned { kthread, .. }
            if kthread.runtime == holder.runtime && view.obs.stickiness(kthread, other) < stickiness)
            && alike(other)
    };
    cores.iter().enumerate().any(is_less_sticky)
}

/// One core: which runtime has it, whether its kthread hosts an exclusive thread and idles, for
/// which runtime it is reserved, and for how many quanta it has been used. A number of [`RUNTIMES`]
/// is none.
type Core = (u32, bool, bool, u32, u64);

fn a_core() -> impl Strategy<Value = Core> {
    (0..=RUNTIMES, any::<bool>(), any::<bool>(), 0..=RUNTIMES, 0..2_u64)
}

const QUANTUM: Nanos = Nanos::from_micros(100);
const NOW: Nanos = Nanos::from_millis(1);

/// A runtime: its class, whether it has work, and the cores to which its threads are not bound.
type Program = (bool, bool, Vec<usize>);

fn a_program() -> impl Strategy<Value = Program> {
    (any::<bool>(), any::<bool>(), prop_oneof![Just(Vec::new()), prop::collection::vec(0usize..12, 1..5)])
}

fn machine(cores: &[Core], programs: &[Program]) -> (Ledger, Observation) {
    let count = cores.len() as u16;
    let (mut ledger, mut obs) = (Ledger::new(Topology::uniform(count, 1, 1).unwrap()), Observation::new());
    for (number, (critical, _, refused)) in (0..).zip(programs) {
        let class = if *critical { RuntimeClass::LatencyCritical } else { RuntimeClass::BestEffort };
        let spec = RuntimeSpec { guaranteed: 0, max: count, kthreads: count, class };
        ledger.register(RuntimeId(number), spec, Nanos::ZERO).unwrap();
        obs.attach(RuntimeId(number), count);
        refused.iter().for_each(|&at| obs.refuse(RuntimeId(number), at));
    }
    for (core, &(owner, hosted, idle, _, quanta)) in (0..).zip(cores) {
        let owner = RuntimeId(owner);
        let Some(account) = ledger.account(owner) else { continue };
        let kthread = KthreadId::new(owner, account.kthread_for(CoreId(core)).unwrap());
        ledger.grant(CoreId(core), kthread, Nanos(NOW.0 - quanta * QUANTUM.0)).unwrap();
        let look = obs.kthread_mut(kthread).unwrap();
        look.hosted = hosted;
        look.activity = if idle { Activity::Idle } else { Activity::Running };
    }
    let reserved = cores.iter().map(|&(.., runtime, _)| (runtime < RUNTIMES).then_some(RuntimeId(runtime)));
    obs.set_reserved(reserved);
    (ledger, obs)
}

proptest! {
    #[test]
    fn no_core_is_chosen_where_a_walk_of_all_cores_finds_one_of_its_owner_with_fewer_ties(
        cores in prop::collection::vec(a_core(), 1..12),
        programs in prop::collection::vec(a_program(), RUNTIMES as usize),
        reach in prop::array::uniform2(prop::collection::vec(any::<bool>(), 0..12)),
        claims in prop::collection::vec((0..RUNTIMES, -1..3), 1..8),
    ) {
        let (ledger, obs) = machine(&cores, &programs);
        let view = View { now: NOW, obs: &obs, ledger: &ledger };
        let quanta = [QUANTUM; 2];
        let mut selector = Selector::new(quanta, 1);
        for (class, reach) in [RuntimeClass::LatencyCritical, RuntimeClass::BestEffort].into_iter().zip(&reach) {
            selector.set_reach(class, reach);
        }
        selector.survey(
            view,
            |runtime| programs[runtime.0 as usize].1,
            |_, _| Entitlement { own: 0, requested: 0 },
        );
        for (number, excess) in claims {
            let runtime = RuntimeId(number);
            let claim = Claim { runtime, class: view.class(runtime), demoted: false, excess };
            // These claims come in any order, so that one that finds nothing ends no later search.
            selector.exhausted = [false; 2];
            let before = selector.clone();
            let is_eligible = |other| {
                [RuntimeClass::LatencyCritical, RuntimeClass::BestEffort]
                    .into_iter()
                    .any(|class| before.is_eligible(view, &claim, class, other))
            };
            let Some(choice) = selector.choose(view, &claim) else {
                prop_assert_eq!((0..cores.len()).find(|&at| is_eligible(at)), None);
                continue;
            };
            prop_assert!(selector.reaches(view, &claim, choice.at));
            let is_reached = |other| selector.reaches(view, &claim, other);
            let is_alike = |other| {
                before.uses[other] == before.uses[choice.at]
                    && is_reached(other)
                    && (!choice.preempts || is_eligible(other))
            };
            prop_assert!(!has_less_sticky(view, choice.at, is_alike), "core {}", choice.at);
            let idle = (0..cores.len()).filter(|&at| idles_at(view, at) && is_reached(at));
            for at in idle {
                let chosen = selector.least_sticky(view, &claim, at, |other| idles_at(view, other));
                prop_assert!(!has_less_sticky(view, chosen, |other| idles_at(view, other) && is_reached(other)));
            }
        }
    }
}
