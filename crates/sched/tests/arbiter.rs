//! Requested cores under any history: random requests beside random load, liars and deaths.
//!
//! The world asserts what every policy owes. Here: what the arbiter grants never exceeds the
//! machine; a runtime below its share gets there while another has more than it owns; and a core
//! that a runtime requested is never taken from it, busy or idle.

#[expect(dead_code, reason = "shared with the tests of congestion detection, which ask more of it")]
mod world;

use proptest::prelude::*;
use tailwater_sched::Nanos;
use tailwater_sched::alloc::{Action, Config, CongestionDetection, Policy, Requests};
use tailwater_sched::ledger::{Account, Class, RuntimeSpec};
use tailwater_sched::topology::Topology;
use world::{Temper, World};

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
}

fn spec(cores: u16) -> impl Strategy<Value = RuntimeSpec> {
    let class = prop_oneof![Just(Class::LatencyCritical), Just(Class::BestEffort)];
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

fn granted(world: &World<CongestionDetection>) -> u16 {
    world.ledger.runtimes().iter().map(|&runtime| world.policy.granted(runtime)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn requested_cores_are_owned_by_one_and_never_taken((cores, seed, ops) in case()) {
        let mut world = world(cores, 1 + (seed % 2) as u16, seed);
        for op in ops {
            match op {
                Op::Register(slot, spec, temper) => drop(world.register(slot, spec, temper)),
                Op::Kill(slot) => world.kill(slot),
                Op::Work(slot, items) => world.work(slot, items),
                Op::Request(slot, word) => world.request(slot, Requests::from_word(word)),
                Op::Looks(looks) => for _ in 0..looks {
                    world.step();
                    check_taken(&world);
                    prop_assert!(granted(&world) <= cores);
                },
            }
        }
    }

    #[test]
    fn every_share_is_reached_while_greedy_runtimes_hold_the_cores(
        cores in 1..=12u16,
        requests in prop::collection::vec((0..8u32, 0..=12u64), 1..5),
        seed in any::<u64>(),
    ) {
        let mut world = world(cores, 1, seed);
        for slot in 0..requests.len() as u32 {
            let class = if slot % 2 == 0 { Class::BestEffort } else { Class::LatencyCritical };
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
