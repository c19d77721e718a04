//! The policies that think in targets (Arachne, IX, delay threshold) owe what every policy owes.
//!
//! Random histories in the world of `world`, which asserts after every action that the ledger
//! accepts it, that no busy guaranteed core is taken, and that no runtime on hold is served. A
//! failing case prints its seed.

use crate::world::{LOOK, Temper, World};
use tailwater_sched::alloc::{
    Arachne, ArachneConfig, Config, DelayConfig, DelayThreshold, IxConfig, IxControl, Policy,
};
use tailwater_sched::ledger::{RuntimeClass, RuntimeSpec};
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, Nanos};

const SLOTS: u32 = 5;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn temper(random: &mut Random) -> Temper {
    match random.below(5) {
        0 => Temper::Stubborn,
        1 => Temper::Liar(random.below(9)),
        2 => Temper::Greedy(random.below(4)),
        _ => Temper::Honest(random.below(4)),
    }
}

fn play<P: Policy>(policy: P, seed: u64) -> World<P> {
    let mut random = Random(seed * 2 + 1);
    let cores = 1 + random.below(12) as u16;
    let mut world =
        World::new(Topology::uniform(cores, 1 + random.below(2) as u16, 1).unwrap(), policy, seed);
    for _ in 0..150 {
        let slot = random.below(u64::from(SLOTS)) as u32;
        match random.below(12) {
            0 | 1 => {
                let max = 1 + random.below(u64::from(cores)) as u16;
                let guaranteed = random.below(u64::from(max.div_ceil(2)) + 1) as u16;
                let class = if random.below(2) == 0 {
                    RuntimeClass::LatencyCritical
                } else {
                    RuntimeClass::BestEffort
                };
                let kthreads = max + random.below(3) as u16;
                let temper = temper(&mut random);
                world.register(slot, RuntimeSpec { guaranteed, max, kthreads, class }, temper);
            }
            2 if random.below(4) == 0 => world.kill(slot),
            3 => world.hold(slot, random.below(2) == 0),
            4 => world.wakeup(slot),
            5 => world.offer(CoreId(random.below(u64::from(cores) + 1) as u16)),
            6 => world.drop_next = true,
            7 | 8 => world.work(slot, random.below(u64::from(cores) * 8) as u32),
            _ => (0..random.below(12)).for_each(|_| world.step()),
        }
    }
    world
}

fn arachne() -> Arachne {
    Arachne::new(ArachneConfig { sample: LOOK, averaging: Nanos(10 * LOOK.0), ..ArachneConfig::default() })
}

fn ix() -> IxControl {
    let bound = Nanos::from_micros(10);
    IxControl::new(IxConfig {
        lending: Config { interval: LOOK, ..Config::default() },
        sample: LOOK,
        period: Nanos(10 * LOOK.0),
        delay_bound: bound,
        ..IxConfig::default()
    })
}

fn delay() -> DelayThreshold {
    DelayThreshold::new(DelayConfig { interval: LOOK, threshold: LOOK })
}

#[test]
fn liars_dropped_actions_and_false_events_break_no_rule() {
    for seed in 0..120 {
        play(arachne(), seed);
        play(ix(), seed);
        play(delay(), seed);
    }
}

#[test]
fn equal_histories_decide_equally() {
    for seed in 0..20 {
        assert!(play(arachne(), seed).ledger == play(arachne(), seed).ledger);
        assert!(play(ix(), seed).ledger == play(ix(), seed).ledger);
        assert!(play(delay(), seed).ledger == play(delay(), seed).ledger);
    }
}

/// Looks until a service whose backlog outgrows its cores has `want` of them; the batch job holds
/// the rest.
fn looks_to_grow<P: Policy>(policy: P, want: u16) -> usize {
    let mut world = World::new(Topology::uniform(4, 1, 1).unwrap(), policy, 1);
    let spec = |max, class| RuntimeSpec { guaranteed: 0, max, kthreads: max, class };
    world.register(0, spec(4, RuntimeClass::LatencyCritical), Temper::Greedy(0));
    world.register(1, spec(4, RuntimeClass::BestEffort), Temper::Greedy(0));
    world.work(0, 50);
    world.work(1, 50);
    let cores = |world: &World<P>| world.ledger.account(tailwater_sched::RuntimeId(0)).unwrap().cores();
    let found = (0..5_000).find(|_| {
        world.step();
        cores(&world) >= want
    });
    found.unwrap_or_else(|| panic!("{} gave the service {} cores", world.policy.name(), cores(&world)))
}

#[test]
fn an_overloaded_service_gets_every_core_each_policy_at_its_own_pace() {
    let (fast, slow) = (looks_to_grow(delay(), 4), looks_to_grow(arachne(), 4));
    assert!(fast < 20, "the delay threshold took {fast} looks");
    assert!((20..200).contains(&slow), "Arachne adds one core per averaging interval, it took {slow} looks");
    assert!(looks_to_grow(ix(), 4) < 400);
}
