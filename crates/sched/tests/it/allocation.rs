//! The obligations of core-allocation policies under any history: random histories on made-up
//! machines of 1 to 128 cores.
//!
//! The world asserts after every action that the ledger accepts it (so no core has two owners),
//! that a busy guaranteed core is never taken, that best effort never takes a busy latency-critical
//! core, that no runtime is its own victim, and that none on hold is served. A failing case prints
//! the operations that reproduce it.

use crate::world::{LOOK, Temper, World};
use proptest::prelude::*;
use tailwater_sched::CoreId;
use tailwater_sched::alloc::{Config, CongestionDetection, Policy, Static};
use tailwater_sched::ledger::{RuntimeClass, RuntimeSpec};
use tailwater_sched::topology::Topology;
use tailwater_sched::{Nanos, RuntimeId};

const SLOTS: u32 = 6;

#[derive(Clone, Debug)]
enum Op {
    Register(u32, RuntimeSpec, Temper),
    Kill(u32),
    Work(u32, u32),
    Hold(u32, bool),
    FalseWakeup(u32),
    FalseIdle(u16),
    DropNext,
    Looks(u8),
}

#[derive(Clone, Debug)]
struct Case {
    topology: Topology,
    seed: u64,
    ops: Vec<Op>,
}

fn spec(cores: u16) -> impl Strategy<Value = RuntimeSpec> {
    let class = prop_oneof![Just(RuntimeClass::LatencyCritical), Just(RuntimeClass::BestEffort)];
    let guaranteed = prop_oneof![2 => Just(0), 3 => 0..=cores.div_ceil(2)];
    (guaranteed, 1..=cores, 0..3u16, class).prop_map(|(guaranteed, max, extra, class)| {
        let max = max.max(guaranteed);
        RuntimeSpec { guaranteed, max, kthreads: max + extra, class }
    })
}

fn temper(liars: bool) -> impl Strategy<Value = Temper> {
    let honest = prop_oneof![
        4 => (0..4u64).prop_map(Temper::Honest),
        2 => (0..4u64).prop_map(Temper::Greedy),
        1 => Just(Temper::Stubborn),
    ];
    if liars { prop_oneof![honest, (0..9u64).prop_map(Temper::Liar)].boxed() } else { honest.boxed() }
}

fn op(cores: u16, liars: bool) -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    let events = if liars { 1 } else { 0 };
    let work = prop_oneof![3 => 1..4u32, 1 => 0..u32::from(cores) * 20];
    prop_oneof![
        3 => (slot.clone(), spec(cores), temper(liars)).prop_map(|(slot, spec, temper)| Op::Register(slot, spec, temper)),
        1 => slot.clone().prop_map(Op::Kill),
        8 => (slot.clone(), work).prop_map(|(slot, items)| Op::Work(slot, items)),
        1 => (slot.clone(), any::<bool>()).prop_map(|(slot, on)| Op::Hold(slot, on)),
        events => slot.prop_map(Op::FalseWakeup),
        events => (0..cores + 1).prop_map(Op::FalseIdle),
        events => Just(Op::DropNext),
        8 => (1..12u8).prop_map(Op::Looks),
    ]
}

fn case(liars: bool) -> impl Strategy<Value = Case> {
    let cores = prop_oneof![2 => 1..=2u16, 3 => 3..=9u16, 1 => 10..=128u16];
    (cores, 1..=2u16, 1..=2u16, any::<u64>()).prop_flat_map(move |(cores, smt, sockets, seed)| {
        let topology = Topology::uniform(cores, smt, sockets).unwrap();
        let first = (0..SLOTS, spec(cores), temper(liars)).prop_map(|(slot, s, t)| Op::Register(slot, s, t));
        let firsts = prop::collection::vec(first, 4);
        (firsts, prop::collection::vec(op(cores, liars), 1..60)).prop_map(move |(mut ops, rest)| {
            ops.extend(rest);
            Case { topology: topology.clone(), seed, ops }
        })
    })
}

fn congestion(seed: u64) -> CongestionDetection {
    CongestionDetection::new(Config { seed, burst_quantum: Nanos::from_micros(50), ..Config::default() })
}

/// Plays a case; `after_look` runs after each look.
fn play<P: Policy>(policy: P, case: &Case, after_look: impl Fn(&World<P>)) -> World<P> {
    let mut world = World::new(case.topology.clone(), policy, case.seed);
    for op in &case.ops {
        match *op {
            Op::Register(slot, spec, temper) => {
                world.register(slot, spec, temper);
            }
            Op::Kill(slot) => world.kill(slot),
            Op::Work(slot, items) => world.work(slot, items),
            Op::Hold(slot, on_hold) => world.hold(slot, on_hold),
            Op::FalseWakeup(slot) => world.wakeup(slot),
            Op::FalseIdle(core) => world.offer(CoreId(core)),
            Op::DropNext => world.drop_next = true,
            Op::Looks(looks) => {
                for _ in 0..looks {
                    world.step();
                    after_look(&world);
                }
            }
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_core_is_free_or_idled_on_while_a_runtime_is_in_need(case in case(false)) {
        play(congestion(case.seed), &case, |world| {
            for runtime in world.in_need() {
                assert_eq!(world.spare_cores_for(runtime), 0, "{runtime} is in need at {}", world.now());
            }
        });
    }

    #[test]
    fn no_runtime_is_in_need_below_its_guarantee_while_another_bursts(case in case(false)) {
        play(congestion(case.seed), &case, |world| {
            for runtime in world.in_need() {
                let account = world.ledger.account(runtime).unwrap();
                if account.cores() < account.guaranteed() {
                    assert_eq!(world.bursting_cores_beside(runtime), 0, "{runtime} at {}", world.now());
                }
            }
        });
    }

    #[test]
    fn liars_dropped_actions_and_false_events_break_no_rule(case in case(true)) {
        play(congestion(case.seed), &case, |_| {});
        play(Static::new(LOOK), &case, |_| {});
    }

    #[test]
    fn equal_histories_decide_equally(case in case(true)) {
        let [first, second] = [(); 2].map(|()| play(congestion(case.seed), &case, |_| {}));
        prop_assert!(first.ledger == second.ledger);
    }

    #[test]
    fn no_bursting_runtime_starves(
        cores in 1..=4u16,
        specs in prop::collection::vec((1..=4u16, 0..3u64), 2..8),
        class in prop_oneof![Just(RuntimeClass::LatencyCritical), Just(RuntimeClass::BestEffort)],
        quantum in 1..20u64,
        seed in any::<u64>(),
    ) {
        let quantum_ns = Nanos(quantum * LOOK.0);
        let policy = CongestionDetection::new(Config {
            seed,
            burst_quantum: quantum_ns,
            service_quantum: quantum_ns,
            ..Config::default()
        });
        let mut world = World::new(Topology::uniform(cores, 2, 1).unwrap(), policy, seed);
        let runtimes: Vec<RuntimeId> = (0..).zip(&specs).map(|(slot, &(max, cede))| {
            let spec = RuntimeSpec { guaranteed: 0, max, kthreads: max, class };
            assert!(world.register(slot, spec, Temper::Greedy(cede)));
            world.work(slot, 1);
            RuntimeId(slot)
        }).collect();
        // A turn: the quantum, the look that ends it, and the hand-off (looks). In the worst case
        // on one core all others have theirs before.
        let turn = quantum + 1 + 3;
        let longest = turn * (runtimes.len() as u64 + 1);
        let mut waited = vec![0; runtimes.len()];
        for _ in 0..longest * 10 {
            world.step();
            for (waited, runtime) in waited.iter_mut().zip(&runtimes) {
                let account = world.ledger.account(*runtime).unwrap();
                let runs = account.held() > account.arriving();
                *waited = if runs { 0 } else { *waited + 1 };
                prop_assert!(*waited <= longest, "{} waited {} looks", runtime, waited);
            }
        }
    }
}

#[test]
fn more_guaranteed_runtimes_than_cores_that_are_present_have_their_turns() {
    let mut world = World::new(Topology::uniform(3, 1, 1).unwrap(), congestion(1), 1);
    world.ledger.withdraw(CoreId(2)).unwrap();
    for slot in 0..3 {
        let spec = RuntimeSpec { guaranteed: 1, max: 3, kthreads: 3, class: RuntimeClass::LatencyCritical };
        assert!(world.register(slot, spec, Temper::Greedy(1)));
        world.work(slot, 1);
    }
    let mut used = [0u32; 3];
    for _ in 0..6000 {
        world.step();
        for slot in 0..3 {
            used[slot as usize] += u32::from(world.ledger.account(RuntimeId(slot)).unwrap().cores());
        }
    }
    assert!(used.iter().all(|cores| cores.abs_diff(4000) < 400), "{used:?}");
}

#[test]
fn a_core_that_no_level_divides_is_a_latency_critical_runtimes_while_it_has_work() {
    let mut world = World::new(Topology::uniform(2, 1, 1).unwrap(), congestion(1), 1);
    world.ledger.withdraw(CoreId(1)).unwrap();
    for (slot, class) in [(0, RuntimeClass::LatencyCritical), (1, RuntimeClass::BestEffort)] {
        let spec = RuntimeSpec { guaranteed: 1, max: 2, kthreads: 2, class };
        assert!(world.register(slot, spec, Temper::Greedy(1)));
        world.work(slot, 1);
    }
    (0..1000).for_each(|_| world.step());
    let cores = |world: &World<_>, slot| world.ledger.account(RuntimeId(slot)).unwrap().cores();
    assert_eq!((cores(&world, 0), cores(&world, 1)), (1, 0));
    world.ledger.restore(CoreId(1)).unwrap();
    (0..1000).for_each(|_| world.step());
    assert_eq!((cores(&world, 0), cores(&world, 1)), (1, 1), "both guarantees fit again");
}

#[test]
fn equal_runtimes_share_an_uneven_machine_evenly_over_time() {
    let mut world = World::new(Topology::uniform(5, 1, 1).unwrap(), congestion(1), 1);
    let runtimes = [0, 1, 2];
    for slot in runtimes {
        let spec = RuntimeSpec { guaranteed: 0, max: 5, kthreads: 5, class: RuntimeClass::BestEffort };
        assert!(world.register(slot, spec, Temper::Greedy(1)));
        world.work(slot, 1);
    }
    let looks = 6000;
    let mut used = [0u32; 3];
    for _ in 0..looks {
        world.step();
        for slot in runtimes {
            used[slot as usize] += u32::from(world.ledger.account(RuntimeId(slot)).unwrap().cores());
        }
    }
    let fair = looks * 5 / 3;
    assert!(used.iter().all(|cores| cores.abs_diff(fair) < fair / 10), "{used:?}, fair is {fair}");
}
