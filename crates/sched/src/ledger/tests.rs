//! The ledger by example, and against a model under random operations.

use super::*;
use heap::collections::BTreeMap;
use heap::vec::Vec;
use proptest::prelude::*;

const T0: Nanos = Nanos(100);
const T1: Nanos = Nanos(200);
const T2: Nanos = Nanos(300);

fn spec(guaranteed: u16, max: u16, kthreads: u16) -> RuntimeSpec {
    RuntimeSpec { guaranteed, max, kthreads, class: RuntimeClass::BestEffort }
}

fn k(runtime: u32, index: u16) -> KthreadId {
    KthreadId::new(RuntimeId(runtime), index)
}

/// Creates a machine of `cores` cores and runtimes 0, 1, 2 with two kthreads each, up to two cores,
/// nothing guaranteed.
fn machine(cores: u16) -> Ledger {
    let mut ledger = Ledger::new(Topology::uniform(cores, 1, 1).unwrap());
    for slot in 0..3 {
        ledger.register(RuntimeId(slot), spec(0, 2, 2), T0).unwrap();
    }
    ledger
}

/// Creates a ledger with core 0 on its way from kthread 0.0 to kthread 1.0 since `T1`.
fn moving() -> Ledger {
    let mut ledger = machine(2);
    ledger.grant(CoreId(0), k(0, 0), T0).unwrap();
    ledger.begin_move(CoreId(0), k(0, 0), k(1, 0), T1).unwrap();
    ledger.check().unwrap();
    ledger
}

#[test]
fn a_granted_core_is_owned_until_its_kthread_parks() {
    let mut ledger = machine(1);
    ledger.grant(CoreId(0), k(0, 1), T1).unwrap();
    assert_eq!(ledger.core(CoreId(0)), Some(CoreState::Owned { kthread: k(0, 1), since: T1 }));
    assert_eq!(ledger.free_cores(), 0);
    assert_eq!(ledger.handle_parked(k(0, 1), T2), Ok(None));
    assert_eq!(ledger.account(RuntimeId(0)).unwrap().given_up(), 0, "it was asked");
    assert_eq!(ledger.core(CoreId(0)), Some(CoreState::Free));
    assert_eq!(ledger.kthread(k(0, 1)), Some(KthreadState::Parked { since: T2 }));
    assert_eq!(ledger.account(RuntimeId(0)).unwrap().recent_core(), Some(CoreId(0)));
    ledger.check().unwrap();
}

#[test]
fn a_moving_core_counts_for_its_next_owner_but_against_both_limits() {
    let ledger = moving();
    let [from, to] = [0, 1].map(|slot| ledger.account(RuntimeId(slot)).unwrap());
    assert_eq!((from.cores(), from.held(), from.leaving()), (0, 1, 1));
    assert_eq!((to.cores(), to.held(), to.arriving()), (1, 1, 1));
}

#[test]
fn a_completed_move_leaves_one_owner() {
    let mut ledger = moving();
    assert_eq!(ledger.handle_parked(k(0, 0), T2), Ok(Some(k(1, 0))));
    assert_eq!(ledger.core(CoreId(0)), Some(CoreState::Owned { kthread: k(1, 0), since: T2 }));
    assert_eq!(ledger.kthread(k(0, 0)), Some(KthreadState::Parked { since: T2 }));
    ledger.check().unwrap();
}

#[test]
fn a_cancelled_move_restores_the_owner_and_its_tenure() {
    let mut ledger = moving();
    assert_eq!(ledger.cancel_move(CoreId(0), T2), Ok((k(0, 0), k(1, 0))));
    assert_eq!(ledger.core(CoreId(0)), Some(CoreState::Owned { kthread: k(0, 0), since: T0 }));
    assert_eq!(ledger.kthread(k(1, 0)), Some(KthreadState::Parked { since: T2 }));
    assert_eq!(ledger.last_core(k(1, 0)), None, "it never ran there");
    ledger.check().unwrap();
}

#[test]
fn an_evicted_kthread_gets_no_core_until_it_is_readmitted() {
    let mut ledger = moving();
    assert_eq!(ledger.evict(k(0, 0), T2), Ok(Some(k(1, 0))));
    assert_eq!(ledger.account(RuntimeId(0)).unwrap().room(), 1);
    let evicted = KthreadState::Evicted { since: T2 };
    assert_eq!(
        ledger.grant(CoreId(1), k(0, 0), T2),
        Err(TransitionError::KthreadNotParked { kthread: k(0, 0), state: evicted })
    );
    ledger.check().unwrap();
    ledger.readmit(k(0, 0), T2).unwrap();
    ledger.check().unwrap();
    assert_eq!(ledger.last_core(k(0, 0)), None, "its affinity was changed, so it must be bound again");
    ledger.grant(CoreId(1), k(0, 0), T2).unwrap();
    assert_eq!(ledger.evict(k(0, 0), T2), Ok(None));
    ledger.check().unwrap();
}

#[test]
fn a_runtime_with_several_kthreads_evicted_from_a_core_is_not_lent_that_core() {
    for (cores, most) in [(1, 4), (2, 2), (3, 2), (8, 2)] {
        let mut ledger = Ledger::new(Topology::uniform(cores, 1, 1).unwrap());
        ledger.register(RuntimeId(3), spec(0, 256, 256), T0).unwrap();
        let withheld = |ledger: &Ledger| -> Vec<bool> {
            let account = ledger.account(RuntimeId(3)).unwrap();
            let withheld: Vec<bool> = (0..cores.into()).map(|at| account.is_withheld(at)).collect();
            assert_eq!(account.has_withheld(), withheld.contains(&true));
            withheld
        };
        let room = |ledger: &Ledger| ledger.account(RuntimeId(3)).unwrap().room();
        for index in 0..cores * most {
            let core = index / most;
            assert_eq!(withheld(&ledger), (0..cores).map(|at| at < core).collect::<Vec<_>>());
            assert_eq!(room(&ledger), 256 - index);
            ledger.grant(CoreId(core), k(3, index), T0).unwrap();
            ledger.evict(k(3, index), T1).unwrap();
            ledger.check().unwrap();
        }
        assert_eq!(room(&ledger), 0, "{cores} cores");
        ledger.readmit(k(3, 0), T2).unwrap();
        ledger.check().unwrap();
        assert_eq!(withheld(&ledger), (0..cores).map(|at| at > 0).collect::<Vec<_>>());
        assert_eq!(room(&ledger), 257 - cores * most);
    }
}

#[test]
fn unregistering_settles_every_core_the_runtime_was_part_of() {
    let mut ledger = machine(3);
    ledger.grant(CoreId(0), k(0, 0), T0).unwrap();
    ledger.grant(CoreId(1), k(0, 1), T0).unwrap();
    ledger.grant(CoreId(2), k(2, 0), T0).unwrap();
    ledger.begin_move(CoreId(1), k(0, 1), k(1, 0), T1).unwrap();
    let mut other = ledger.clone();

    let dispositions = ledger.unregister(RuntimeId(0), T2).unwrap();
    assert_eq!(
        dispositions,
        [Disposition::Freed(CoreId(0)), Disposition::HandedOn { core: CoreId(1), to: k(1, 0) }]
    );
    ledger.check().unwrap();
    assert_eq!(ledger.runtimes(), [RuntimeId(1), RuntimeId(2)]);

    let dispositions = other.unregister(RuntimeId(1), T2).unwrap();
    assert_eq!(dispositions, [Disposition::Returned { core: CoreId(1), from: k(0, 1) }]);
    other.check().unwrap();
    assert_eq!(other.unregister(RuntimeId(1), T2), Err(TransitionError::UnknownRuntime(RuntimeId(1))));
}

#[test]
fn each_impossible_transition_is_refused_by_name() {
    use TransitionError as E;
    let mut ledger = moving();
    ledger.grant(CoreId(1), k(0, 1), T1).unwrap();
    let before = ledger.clone();
    let state = ledger.core(CoreId(0)).unwrap();
    let (c0, c1, c9) = (CoreId(0), CoreId(1), CoreId(9));
    let parked = KthreadState::Parked { since: T0 };

    assert_eq!(ledger.grant(c9, k(1, 1), T2), Err(E::UnknownCore(c9)));
    assert_eq!(ledger.grant(c0, k(1, 1), T2), Err(E::CoreNotFree { core: c0, state }));
    assert_eq!(ledger.release(k(7, 0), T2), Err(E::UnknownRuntime(RuntimeId(7))));
    assert_eq!(ledger.release(k(0, 9), T2), Err(E::UnknownKthread { kthread: k(0, 9), kthreads: 2 }));
    assert_eq!(ledger.release(k(1, 1), T2), Err(E::KthreadHasNoCore { kthread: k(1, 1), state: parked }));
    assert_eq!(ledger.release(k(0, 0), T2), Err(E::PromisedAway { core: c0, kthread: k(0, 0), to: k(1, 0) }));
    assert_eq!(
        ledger.begin_move(c0, k(0, 0), k(2, 0), T2),
        Err(E::CoreNotOwned { core: c0, owner: k(0, 0), state })
    );
    assert_eq!(
        ledger.begin_move(c1, k(0, 1), k(0, 0), T2),
        Err(E::SameRuntime { core: c1, from: k(0, 1), to: k(0, 0) })
    );
    let incoming = KthreadState::Incoming { core: c0 };
    assert_eq!(
        ledger.begin_move(c1, k(0, 1), k(1, 0), T2),
        Err(E::KthreadNotParked { kthread: k(1, 0), state: incoming })
    );
    let owned = ledger.core(c1).unwrap();
    assert_eq!(ledger.complete_move(c1, T2), Err(E::CoreNotMoving { core: c1, state: owned }));
    assert_eq!(ledger.cancel_move(c1, T2), Err(E::CoreNotMoving { core: c1, state: owned }));
    assert_eq!(ledger.readmit(k(1, 1), T2), Err(E::KthreadNotEvicted { kthread: k(1, 1), state: parked }));
    assert_eq!(ledger, before, "a refusal changes nothing");
}

#[test]
fn a_runtime_at_its_limit_gets_no_more_even_while_it_gives_one_up() {
    let mut ledger = machine(2);
    ledger.register(RuntimeId(3), spec(0, 1, 2), T0).unwrap();
    ledger.grant(CoreId(0), k(3, 0), T0).unwrap();
    ledger.begin_move(CoreId(0), k(3, 0), k(0, 0), T1).unwrap();
    assert_eq!(
        ledger.grant(CoreId(1), k(3, 1), T1),
        Err(TransitionError::AtLimit { runtime: RuntimeId(3), held: 1, max: 1 })
    );
    assert_eq!(ledger.account(RuntimeId(3)).unwrap().room(), 0);
}

#[test]
fn each_wrong_registration_is_refused_by_name() {
    use RegisterError as E;
    let mut ledger = Ledger::new(Topology::uniform(2, 1, 1).unwrap());
    let id = RuntimeId(1);
    let mut refused = |id, spec| ledger.register(id, spec, T0).unwrap_err();
    let out = RuntimeId(MAX_RUNTIMES);
    assert_eq!(refused(out, spec(0, 1, 1)), E::SlotOutOfRange(out));
    assert_eq!(refused(id, spec(0, 0, 1)), E::NoCores(id));
    assert_eq!(refused(id, spec(2, 1, 1)), E::GuaranteeOverLimit { runtime: id, guaranteed: 2, max: 1 });
    assert_eq!(refused(id, spec(0, 2, 1)), E::TooFewKthreads { runtime: id, max: 2, kthreads: 1 });
    ledger.register(id, spec(1, 2, 2), T0).unwrap();
    assert_eq!(ledger.register(id, spec(0, 1, 1), T0), Err(E::SlotTaken(id)));
    let late = RuntimeId(0);
    assert_eq!(
        ledger.register(late, spec(2, 2, 2), T0),
        Err(E::Oversubscribed { runtime: late, guaranteed: 2, already: 1, managed: 2 })
    );
    assert_eq!(ledger.vacant_slot(), Some(late));
    ledger.register(late, spec(1, 1, 1), T0).unwrap();
    assert_eq!(ledger.vacant_slot(), Some(RuntimeId(2)));
    assert_eq!(ledger.guaranteed_cores(), 2);
    ledger.check().unwrap();
}

#[test]
fn the_kthread_that_last_ran_on_a_core_runs_there_again_else_the_one_parked_longest() {
    let mut ledger = Ledger::new(Topology::uniform(2, 1, 1).unwrap());
    ledger.register(RuntimeId(0), spec(0, 2, 3), T0).unwrap();
    ledger.grant(CoreId(0), k(0, 0), T0).unwrap();
    ledger.release(k(0, 0), T1).unwrap();
    let choice = |ledger: &Ledger, core| ledger.account(RuntimeId(0)).unwrap().kthread_for(core);
    assert_eq!(choice(&ledger, CoreId(0)), Some(0));
    assert_eq!(choice(&ledger, CoreId(1)), Some(1), "parked longest, lowest index");
    ledger.grant(CoreId(1), k(0, 1), T1).unwrap();
    assert_eq!(choice(&ledger, CoreId(1)), Some(2));
    ledger.grant(CoreId(0), k(0, 2), T1).unwrap();
    assert_eq!(choice(&ledger, CoreId(1)), Some(0));
    assert_eq!(ledger.account(RuntimeId(0)).unwrap().parked().collect::<Vec<_>>(), [0]);
}

#[test]
fn the_audit_notices_each_kind_of_damage() {
    let damaged = |damage: fn(&mut Ledger)| {
        let mut ledger = moving();
        damage(&mut ledger);
        ledger.check().unwrap_err()
    };
    let two_owners = damaged(|ledger| ledger.cores[1] = ledger.cores[0]);
    assert!(matches!(two_owners, Inconsistency::CoreWithoutKthread { core: CoreId(1), .. }));
    let lost = damaged(|ledger| ledger.cores[0] = CoreState::Free);
    assert!(matches!(lost, Inconsistency::KthreadWithoutCore { .. }));
    let counter = damaged(|ledger| ledger.free += 1);
    assert_eq!(counter, Inconsistency::Counter { counter: "free", kept: 2, counted: 1 });
    let over = damaged(|ledger| ledger.account_mut(RuntimeId(1)).spec.max = 0);
    assert_eq!(over, Inconsistency::OverLimit { runtime: RuntimeId(1), held: 1, max: 0 });
    let unlisted = damaged(|ledger| ledger.live.retain(|runtime| runtime.0 != 2));
    assert_eq!(unlisted, Inconsistency::LiveList(RuntimeId(2)));
}

/// One operation on the ledger, with operands that may or may not exist.
#[derive(Clone, Debug)]
enum Op {
    Register(u32, RuntimeSpec),
    Unregister(u32),
    Grant(u16, KthreadId),
    BeginMove(u16, KthreadId, KthreadId),
    /// As [`Op::BeginMove`] from the kthread that owns the core, so that random lists make
    /// progress.
    MoveFromOwner(u16, KthreadId),
    CompleteMove(u16),
    CancelMove(u16),
    Release(KthreadId),
    Parked(KthreadId),
    Evict(KthreadId),
    Readmit(KthreadId),
}

fn kthreads() -> impl Strategy<Value = KthreadId> {
    (0..5u32, 0..4u16).prop_map(|(runtime, index)| k(runtime, index))
}

fn ops() -> impl Strategy<Value = Op> {
    let core = 0..8u16;
    let spec = (0..3u16, 0..4u16, 0..5u16).prop_map(|(g, max, kthreads)| spec(g, max, kthreads));
    prop_oneof![
        2 => (0..5u32, spec).prop_map(|(slot, spec)| Op::Register(slot, spec)),
        1 => (0..5u32).prop_map(Op::Unregister),
        6 => (core.clone(), kthreads()).prop_map(|(core, kthread)| Op::Grant(core, kthread)),
        2 => (core.clone(), kthreads(), kthreads()).prop_map(|(core, from, to)| Op::BeginMove(core, from, to)),
        6 => (core.clone(), kthreads()).prop_map(|(core, to)| Op::MoveFromOwner(core, to)),
        3 => core.clone().prop_map(Op::CompleteMove),
        2 => core.prop_map(Op::CancelMove),
        2 => kthreads().prop_map(Op::Release),
        2 => kthreads().prop_map(Op::Parked),
        2 => kthreads().prop_map(Op::Evict),
        2 => kthreads().prop_map(Op::Readmit),
    ]
}

/// A model of the same state by kthreads alone: which runs on, and which waits for, each core. It
/// has no counters and no core table.
#[derive(Default)]
struct Model {
    runs: BTreeMap<KthreadId, u16>,
    waits: BTreeMap<KthreadId, u16>,
}

impl Model {
    fn runner(&self, core: u16) -> Option<KthreadId> {
        self.runs.iter().find(|(_, on)| **on == core).map(|(kthread, _)| *kthread)
    }

    fn waiter(&self, core: u16) -> Option<KthreadId> {
        self.waits.iter().find(|(_, on)| **on == core).map(|(kthread, _)| *kthread)
    }

    /// Takes `kthread` off its core; a kthread that waited for the core runs on it.
    fn stop(&mut self, kthread: KthreadId) {
        let Some(core) = self.runs.remove(&kthread) else { return };
        if let Some(next) = self.waiter(core) {
            self.waits.remove(&next);
            self.runs.insert(next, core);
        }
    }

    fn agrees_with(&self, ledger: &Ledger) {
        for core in ledger.topology().cores() {
            let told = match ledger.core(core.id).unwrap() {
                CoreState::Free | CoreState::Absent => (None, None),
                CoreState::Owned { kthread, .. } => (Some(kthread), None),
                CoreState::Moving { from, to, .. } => (Some(from), Some(to)),
            };
            assert_eq!(told, (self.runner(core.id.0), self.waiter(core.id.0)), "{}", core.id);
        }
    }
}

/// Runs one operation on both; returns true if the ledger accepted it.
fn step(ledger: &mut Ledger, model: &mut Model, op: &Op, now: Nanos) -> bool {
    let accepted = match op.clone() {
        Op::Register(slot, spec) => ledger.register(RuntimeId(slot), spec, now).is_ok(),
        Op::Unregister(slot) => ledger.unregister(RuntimeId(slot), now).is_ok(),
        Op::Grant(core, kthread) => ledger.grant(CoreId(core), kthread, now).is_ok(),
        Op::BeginMove(core, from, to) => ledger.begin_move(CoreId(core), from, to, now).is_ok(),
        Op::MoveFromOwner(core, to) => {
            let owner = model.runner(core).unwrap_or(to);
            ledger.begin_move(CoreId(core), owner, to, now).is_ok()
        }
        Op::CompleteMove(core) => ledger.complete_move(CoreId(core), now).is_ok(),
        Op::CancelMove(core) => ledger.cancel_move(CoreId(core), now).is_ok(),
        Op::Release(kthread) => ledger.release(kthread, now).is_ok(),
        Op::Parked(kthread) => ledger.handle_parked(kthread, now).is_ok(),
        Op::Evict(kthread) => ledger.evict(kthread, now).is_ok(),
        Op::Readmit(kthread) => ledger.readmit(kthread, now).is_ok(),
    };
    if !accepted {
        return false;
    }
    match *op {
        Op::Register(..) | Op::Readmit(_) => {}
        Op::Grant(core, kthread) => {
            assert_eq!(model.runner(core), None, "granted a core on which a kthread runs");
            assert_eq!(model.runs.insert(kthread, core), None, "granted two cores to {kthread}");
        }
        Op::BeginMove(core, _, to) | Op::MoveFromOwner(core, to) => {
            assert_eq!(model.waiter(core), None, "promised a core twice");
            assert_eq!(model.waits.insert(to, core), None, "promised two cores to {to}");
        }
        Op::CompleteMove(core) => model.stop(model.runner(core).unwrap()),
        Op::CancelMove(core) => {
            model.waits.remove(&model.waiter(core).unwrap());
        }
        Op::Release(kthread) | Op::Parked(kthread) | Op::Evict(kthread) => model.stop(kthread),
        Op::Unregister(slot) => {
            model.waits.retain(|kthread, _| kthread.runtime.0 != slot);
            (0..4).for_each(|index| model.stop(k(slot, index)));
        }
    }
    true
}

#[test]
fn an_absent_core_is_lent_to_no_kthread_until_it_comes_back() {
    let mut ledger = machine(2);
    ledger.withdraw(CoreId(0)).unwrap();
    ledger.check().unwrap();
    assert_eq!((ledger.free_cores(), ledger.core(CoreId(0))), (1, Some(CoreState::Absent)));
    let refused = ledger.grant(CoreId(0), k(0, 0), T0);
    assert!(matches!(refused, Err(TransitionError::CoreNotFree { .. })), "{refused:?}");
    ledger.withdraw(CoreId(0)).unwrap_err();
    ledger.restore(CoreId(0)).unwrap();
    ledger.restore(CoreId(0)).unwrap_err();
    ledger.check().unwrap();
    ledger.grant(CoreId(0), k(0, 0), T0).unwrap();
    ledger.withdraw(CoreId(0)).unwrap_err();
    moving().withdraw(CoreId(0)).unwrap_err();
    ledger.withdraw(CoreId(7)).unwrap_err();
}

#[test]
fn guarantees_are_what_the_cores_that_are_present_allow() {
    let mut ledger = Ledger::new(Topology::uniform(8, 1, 1).unwrap());
    for (slot, guaranteed) in (0..).zip([1, 2, 5]) {
        ledger.register(RuntimeId(slot), spec(guaranteed, 8, 8), T0).unwrap();
    }
    let guaranteed =
        |ledger: &Ledger| [0, 1, 2].map(|s| ledger.account(RuntimeId(s)).map_or(0, Account::guaranteed));
    let present = [[1, 2, 4], [1, 2, 3], [1, 2, 2], [1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]];
    assert_eq!(guaranteed(&ledger), [1, 2, 5]);
    for (core, expected) in (0..).zip(present) {
        ledger.withdraw(CoreId(core)).unwrap();
        ledger.check().unwrap();
        assert_eq!(guaranteed(&ledger), expected, "{} cores are present", ledger.present_cores());
    }
    (0..3).for_each(|core| ledger.restore(CoreId(core)).unwrap());
    ledger.unregister(RuntimeId(1), T1).unwrap();
    ledger.check().unwrap();
    assert_eq!(guaranteed(&ledger), [1, 0, 2], "three cores for two runtimes");
    (3..8).for_each(|core| ledger.restore(CoreId(core)).unwrap());
    ledger.check().unwrap();
    assert_eq!(guaranteed(&ledger), [1, 0, 5]);
}

#[test]
fn a_guarantee_passes_from_one_runtime_to_another() {
    let mut ledger = Ledger::new(Topology::uniform(2, 1, 1).unwrap());
    let (one, two) = (RuntimeId(0), RuntimeId(1));
    ledger.register(one, spec(2, 2, 2), T0).unwrap();
    ledger.register(two, spec(0, 2, 2), T0).unwrap();
    assert!(!ledger.set_guaranteed(two, 1), "there is no other core");
    assert!(ledger.set_guaranteed(one, 0) && ledger.set_guaranteed(two, 2));
    ledger.check().unwrap();
    assert_eq!([one, two].map(|id| ledger.account(id).unwrap().guaranteed()), [0, 2]);
    assert!(!ledger.set_guaranteed(two, 3) && !ledger.set_guaranteed(RuntimeId(7), 0));
    ledger.unregister(two, T1).unwrap();
    assert!(ledger.set_guaranteed(one, 2));
    ledger.check().unwrap();
    assert_eq!(ledger.guaranteed_cores(), 2);
}

proptest! {
    #[test]
    fn a_core_never_has_two_owners_whatever_is_asked(
        cores in 1..8u16,
        ops in prop::collection::vec(ops(), 1..200),
    ) {
        let mut ledger = Ledger::new(Topology::uniform(cores, 2, 1).unwrap());
        let mut model = Model::default();
        for (time, op) in (1u64..).zip(&ops) {
            let before = ledger.clone();
            let accepted = step(&mut ledger, &mut model, op, Nanos(time));
            prop_assert_eq!(ledger.check(), Ok(()));
            model.agrees_with(&ledger);
            if !accepted {
                prop_assert_eq!(&before, &ledger, "a refusal changed something");
            }
        }
    }

    #[test]
    fn every_runtime_can_leave_at_any_time_and_leaves_nothing_behind(
        cores in 1..8u16,
        ops in prop::collection::vec(ops(), 1..100),
    ) {
        let mut ledger = Ledger::new(Topology::uniform(cores, 1, 1).unwrap());
        let mut model = Model::default();
        for op in &ops {
            step(&mut ledger, &mut model, op, T0);
        }
        for runtime in ledger.runtimes().to_vec() {
            ledger.unregister(runtime, T1).unwrap();
            prop_assert_eq!(ledger.check(), Ok(()));
        }
        prop_assert_eq!(ledger.free_cores(), usize::from(cores));
        prop_assert_eq!(ledger.guaranteed_cores(), 0);
    }
}
