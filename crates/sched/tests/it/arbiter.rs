//! Requested cores under any history: random requests beside random load, liars and deaths.
//!
//! The world asserts what every policy owes. Here: what the arbiter grants never exceeds the
//! machine; a runtime below its share gets there while another has more than it owns; a core that a
//! runtime requested is never taken from it, busy or idle; and no runtime has work without a core
//! while it could be lent one.

use crate::world::{Temper, World};
use proptest::prelude::*;
use tailwater_sched::alloc::{Action, Config, CongestionDetection, Policy, Requests};
use tailwater_sched::ledger::{Account, RuntimeClass, RuntimeSpec};
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, Nanos, RuntimeId};

const SLOTS: u32 = 5;
/// Looks after which a raised request is met: a division, evictions, and one grant per look.
const PATIENCE: u32 = 60;

#[derive(Clone, Debug)]
enum Op {
    Register(u32, RuntimeSpec, Temper),
    Kill(u32),
    Work(u32, u32),
    Request(u32, u64),
    Looks(u8),
    /// These kthreads say that they host an exclusive thread: one bit each.
    Host(u32, u16),
    /// A core leaves, if it is free.
    Leave(u16),
    Return(u16),
}

fn spec(cores: u16) -> impl Strategy<Value = RuntimeSpec> {
    let class = prop_oneof![Just(RuntimeClass::LatencyCritical), Just(RuntimeClass::BestEffort)];
    (0..=cores.div_ceil(3), 1..=cores, class).prop_map(|(guaranteed, max, class)| {
        let max = max.max(guaranteed);
        RuntimeSpec { guaranteed, max, kthreads: max, class }
    })
}

fn temper() -> impl Strategy<Value = Temper> {
    prop_oneof![
        3 => (0..4u64).prop_map(Temper::Honest),
        3 => (0..4u64).prop_map(Temper::Greedy),
        1 => Just(Temper::Stubborn),
        1 => (0..9u64).prop_map(Temper::Liar),
    ]
}

fn op(cores: u16) -> impl Strategy<Value = Op> {
    // Mostly a few cores at one priority, now and then any word.
    let few = (0..8u32, 0..=u64::from(cores)).prop_map(|(priority, cores)| cores << (8 * priority));
    let word = prop_oneof![4 => few, 1 => any::<u64>()];
    prop_oneof![
        2 => (0..SLOTS, spec(cores), temper()).prop_map(|(slot, spec, temper)| Op::Register(slot, spec, temper)),
        1 => (0..SLOTS).prop_map(Op::Kill),
        4 => (0..SLOTS, 1..40u32).prop_map(|(slot, items)| Op::Work(slot, items)),
        5 => (0..SLOTS, word).prop_map(|(slot, word)| Op::Request(slot, word)),
        6 => (1..40u8).prop_map(Op::Looks),
        2 => (0..SLOTS, any::<u16>()).prop_map(|(slot, hosts)| Op::Host(slot, hosts)),
        2 => (0..cores).prop_map(Op::Leave),
        2 => (0..cores).prop_map(Op::Return),
    ]
}

fn case() -> impl Strategy<Value = (u16, u64, Vec<Op>)> {
    (1..=12u16, any::<u64>())
        .prop_flat_map(|(cores, seed)| (Just(cores), Just(seed), prop::collection::vec(op(cores), 1..60)))
}

fn world(cores: u16, smt: u16, seed: u64) -> World<CongestionDetection> {
    let policy = CongestionDetection::with_requests(Config {
        seed,
        burst_quantum: Nanos::from_micros(50),
        ..Config::default()
    });
    World::new(Topology::uniform(cores, smt, 1).unwrap(), policy, seed)
}

/// Checks that no core was taken from a runtime that does not have more than it owns.
fn check_taken(world: &World<CongestionDetection>) {
    for action in world.actions() {
        let Action::Grant { victim: Some(victim), .. } = *action else { continue };
        let left = world.ledger.account(victim.runtime).map_or(0, Account::cores);
        let own = world.policy.granted(victim.runtime);
        assert!(left >= own, "{victim} lost a core that it requested: {left} of {own} left");
    }
}

fn cores(world: &World<CongestionDetection>, slot: u32) -> u16 {
    world.ledger.account(RuntimeId(slot)).map_or(0, Account::cores)
}

/// Returns a machine of four cores, two of them absent, on which two greedy runtimes with this
/// guarantee each, of these classes, have work without end.
fn half_absent(guaranteed: u16, classes: [RuntimeClass; 2]) -> World<CongestionDetection> {
    let mut world = world(4, 1, 1);
    for core in [2, 3] {
        world.ledger.withdraw(CoreId(core)).unwrap();
    }
    for (slot, class) in (0..).zip(classes) {
        assert!(world.register(
            slot,
            RuntimeSpec { guaranteed, max: 4, kthreads: 4, class },
            Temper::Greedy(1)
        ));
    }
    world
}

#[test]
fn the_cores_that_are_present_are_divided_and_anew_when_one_leaves_or_returns() {
    let mut world = world(4, 1, 1);
    let spec = |guaranteed, class| RuntimeSpec { guaranteed, max: 4, kthreads: 4, class };
    assert!(world.register(0, spec(0, RuntimeClass::BestEffort), Temper::Greedy(1)));
    assert!(world.register(1, spec(2, RuntimeClass::LatencyCritical), Temper::Honest(1)));
    world.request(0, Requests::new([0, 0, 0, 0, 0, 0, 0, 2]));
    world.step();
    assert_eq!(world.policy.granted(RuntimeId(0)), 2);
    world.kill(0);
    for core in [2, 3] {
        world.ledger.withdraw(CoreId(core)).unwrap();
    }
    assert!(world.register(0, spec(0, RuntimeClass::BestEffort), Temper::Greedy(1)));
    world.request(0, Requests::new([0, 0, 0, 0, 0, 0, 0, 2]));
    world.work(0, 9);
    (0..PATIENCE).for_each(|_| world.step());
    assert_eq!((world.policy.granted(RuntimeId(0)), cores(&world, 0)), (0, 2), "lent by load");
    world.work(1, 2_000);
    (0..PATIENCE).for_each(|_| world.step());
    assert_eq!((cores(&world, 0), cores(&world, 1)), (0, 2), "the guarantee comes first");
    for core in [2, 3] {
        world.ledger.restore(CoreId(core)).unwrap();
        (0..PATIENCE).for_each(|_| world.step());
    }
    assert_eq!(world.policy.granted(RuntimeId(0)), 2);
    assert_eq!((cores(&world, 0), cores(&world, 1)), (2, 2));
}

#[test]
fn a_request_that_goes_up_and_down_fetches_each_core_once_per_period() {
    let mut world = world(4, 1, 1);
    let spec = |class| RuntimeSpec { guaranteed: 0, max: 4, kthreads: 4, class };
    assert!(world.register(0, spec(RuntimeClass::BestEffort), Temper::Greedy(1)));
    assert!(world.register(1, spec(RuntimeClass::LatencyCritical), Temper::Honest(1)));
    world.work(0, 9);
    // 100 ms.
    let mut fetched = 0;
    for look in 0..20_000 {
        if look % 10 == 0 {
            let cores = if look % 20 == 0 { 4 } else { 0 };
            world.request(1, Requests::new([cores, 0, 0, 0, 0, 0, 0, 0]));
        }
        world.step();
        let served = |action: &&Action| matches!(action, Action::Grant { runtime, .. } if runtime.0 == 1);
        fetched += world.actions().iter().filter(served).count();
    }
    let given_up = world.ledger.account(RuntimeId(1)).unwrap().given_up();
    assert!((4..=44).contains(&fetched), "{fetched} in ten periods of four cores each");
    assert!(given_up <= 44, "{given_up}");
}

#[test]
fn guarantees_that_absent_cores_leave_no_room_for_are_divided_and_requests_get_nothing() {
    for classes in
        [[RuntimeClass::LatencyCritical; 2], [RuntimeClass::LatencyCritical, RuntimeClass::BestEffort]]
    {
        let mut world = half_absent(2, classes);
        // Whichever comes first.
        world.work(1, 9);
        world.request(1, Requests::new([4, 0, 0, 0, 0, 0, 0, 0]));
        (0..PATIENCE).for_each(|_| world.step());
        assert_eq!((cores(&world, 0), cores(&world, 1)), (0, 2));
        assert_eq!(world.policy.granted(RuntimeId(1)), 1, "as many as it is guaranteed");
        world.work(0, 9);
        (0..PATIENCE).for_each(|_| world.step());
        assert_eq!((cores(&world, 0), cores(&world, 1)), (1, 1));
        for core in [2, 3] {
            world.ledger.restore(CoreId(core)).unwrap();
        }
        (0..PATIENCE).for_each(|_| world.step());
        assert_eq!((cores(&world, 0), cores(&world, 1)), (2, 2));
    }
}

/// Returns a machine of this many cores with a runtime that requested one of them and has work for
/// all, and holds them; the class is that of the runtime. Slot 1 is a service with a guaranteed
/// core and no work.
fn one_own_of_many(cores: u16, class: RuntimeClass, seed: u64) -> World<CongestionDetection> {
    let mut world = world(cores, 1, seed);
    let spec = RuntimeSpec { guaranteed: 0, max: cores, kthreads: cores, class };
    assert!(world.register(0, spec, Temper::Greedy(1)));
    let spec =
        RuntimeSpec { guaranteed: 1, max: cores, kthreads: cores, class: RuntimeClass::LatencyCritical };
    assert!(world.register(1, spec, Temper::Honest(1)));
    world.request(0, Requests::new([1, 0, 0, 0, 0, 0, 0, 0]));
    world.work(0, 9);
    (0..PATIENCE).for_each(|_| world.step());
    assert_eq!((self::cores(&world, 0), world.policy.granted(RuntimeId(0))), (cores, 1));
    world
}

/// Lets slot 1 work until it has all cores but one. Returns the kthreads of slot 0 that lost
/// theirs, and the positions of these.
fn taken_for_slot_1(world: &mut World<CongestionDetection>, cores: u16) -> Vec<(u16, usize)> {
    let mut taken = Vec::new();
    for _ in 0..u32::from(cores) * PATIENCE {
        let mut enter = |world: &World<CongestionDetection>| {
            for action in world.actions() {
                let Action::Grant { victim: Some(victim), core, .. } = *action else { continue };
                if victim.runtime.0 == 0 {
                    taken.push((victim.index, world.ledger.topology().position(core).unwrap()));
                }
            }
        };
        world.work(1, 200);
        enter(world);
        world.step();
        enter(world);
        if self::cores(world, 1) == cores - 1 {
            break;
        }
    }
    assert_eq!((self::cores(world, 0), self::cores(world, 1)), (1, cores - 1));
    taken
}

#[test]
fn the_core_of_an_exclusive_thread_is_the_last_that_its_program_loses() {
    for (seed, cores) in (0..48).map(|seed| (seed, 2 + (seed % 4) as u16)) {
        for host in 0..cores {
            let mut world = one_own_of_many(cores, RuntimeClass::BestEffort, seed);
            world.host(0, &[host]);
            let taken = taken_for_slot_1(&mut world, cores);
            assert!(taken.iter().all(|&(k, _)| k != host), "seed {seed}: {host} among {taken:?}");
        }
    }
}

#[test]
fn a_reserved_core_is_kept_before_others_and_an_exclusive_threads_before_a_reserved_one() {
    for seed in 0..32 {
        let mut world = one_own_of_many(3, RuntimeClass::BestEffort, seed);
        world.reserve(seed as usize % 3, 0);
        let taken = taken_for_slot_1(&mut world, 3);
        assert!(taken.iter().all(|&(_, at)| at != seed as usize % 3), "seed {seed}: {taken:?}");

        let mut world = one_own_of_many(3, RuntimeClass::BestEffort, seed);
        let host = (seed % 3) as u16;
        world.host(0, &[host]);
        for at in 0..3 {
            world.reserve(at, 0);
            world.step();
        }
        let taken = taken_for_slot_1(&mut world, 3);
        assert!(taken.iter().all(|&(k, _)| k != host), "seed {seed}: {host} among {taken:?}");
    }
}

#[test]
fn a_program_that_says_that_all_its_kthreads_host_keeps_no_more_cores_for_it() {
    for seed in 0..32 {
        let mut world = one_own_of_many(4, RuntimeClass::BestEffort, seed);
        world.host(0, &[0, 1, 2, 3]);
        assert_eq!(taken_for_slot_1(&mut world, 4).len(), 3);
    }
}

fn granted(world: &World<CongestionDetection>) -> u16 {
    world.ledger.runtimes().iter().map(|&runtime| world.policy.granted(runtime)).sum()
}

/// Checks that nothing that has work and needs a core lacks one that it could be lent: a free one,
/// one that another runtime idles on and has not requested, or, below its share, one of a runtime
/// that has more than it owns.
fn check_served(world: &World<CongestionDetection>) {
    for runtime in world.in_need() {
        assert_eq!(world.spare_cores_for(runtime), 0, "{runtime} is in need at {}", world.now());
        let cores = world.ledger.account(runtime).map_or(0, Account::cores);
        if cores < world.own(runtime) {
            assert_eq!(world.bursting_cores_beside(runtime), 0, "{runtime} has {cores} at {}", world.now());
        }
    }
}

/// Plays a history; `after_look` runs after each look.
fn play(
    world: &mut World<CongestionDetection>,
    ops: Vec<Op>,
    after_look: impl Fn(&World<CongestionDetection>),
) {
    for op in ops {
        match op {
            Op::Register(slot, spec, temper) => drop(world.register(slot, spec, temper)),
            Op::Kill(slot) => world.kill(slot),
            Op::Work(slot, items) => world.work(slot, items),
            Op::Host(slot, hosts) => {
                let hosts: Vec<u16> = (0..16).filter(|k| hosts & (1 << k) != 0).collect();
                world.host(slot, &hosts);
            }
            Op::Leave(core) => drop(world.ledger.withdraw(CoreId(core))),
            Op::Return(core) => drop(world.ledger.restore(CoreId(core))),
            Op::Request(slot, word) => world.request(slot, Requests::from_word(word)),
            Op::Looks(looks) => {
                for _ in 0..looks {
                    world.step();
                    after_look(world);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn requested_cores_are_owned_by_one_and_never_taken((cores, seed, ops) in case()) {
        let mut world = world(cores, 1 + (seed % 2) as u16, seed);
        play(&mut world, ops, |world| {
            check_taken(world);
            assert!(granted(world) <= cores);
        });
    }

    #[test]
    fn no_work_waits_for_a_core_that_it_could_be_lent((cores, seed, ops) in case()) {
        play(&mut world(cores, 1 + (seed % 2) as u16, seed), ops, check_served);
    }

    #[test]
    fn every_share_is_reached_while_greedy_runtimes_hold_the_cores(
        cores in 1..=12u16,
        requests in prop::collection::vec((0..8u32, 0..=12u64), 1..5),
        seed in any::<u64>(),
    ) {
        let mut world = world(cores, 1, seed);
        for slot in 0..requests.len() as u32 {
            let class = if slot % 2 == 0 { RuntimeClass::BestEffort } else { RuntimeClass::LatencyCritical };
            let spec = RuntimeSpec { guaranteed: 0, max: cores, kthreads: cores, class };
            prop_assert!(world.register(slot, spec, Temper::Greedy(2)));
            world.work(slot, 10);
        }
        (0..PATIENCE).for_each(|_| world.step());
        for (slot, &(priority, cores)) in (0..).zip(&requests) {
            world.request(slot, Requests::from_word(cores << (8 * priority)));
        }
        (0..PATIENCE).for_each(|_| world.step());
        let asked: u64 = requests.iter().map(|&(_, asked)| asked.min(cores.into())).sum();
        prop_assert_eq!(u64::from(granted(&world)), asked.min(cores.into()), "nothing requested is left unused");
        for &runtime in world.ledger.runtimes() {
            let account = world.ledger.account(runtime).unwrap();
            prop_assert!(account.cores() >= world.policy.granted(runtime), "{} has too few", runtime);
        }
    }
}
