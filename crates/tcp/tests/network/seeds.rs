//! Paths and applications drawn from a seed.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tailwater_tcp::sender::{self, Algorithm};
use tailwater_tcp::{Config, Error, Instant};

use crate::dice::Dice;
use crate::link::LinkPlan;
use crate::world::{AppPlan, End, Plan, World};

/// How many seeds, and the first of them, from the environment.
const SEEDS: &str = "TAILWATER_NETWORK_SEEDS";
const FIRST: &str = "TAILWATER_NETWORK_FIRST";
/// Without that: fewer where the code is not optimised.
const DEFAULT_SEEDS: u64 = if cfg!(debug_assertions) { 600 } else { 10_000 };
const MAX_STEPS: u32 = 400_000;

fn config(dice: &mut Dice) -> Config {
    let algorithms = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp];
    let buffer = |dice: &mut Dice| match dice.below(4) {
        0 => 1 << 10,
        1 => dice.between(1 << 10, 8 << 10) as u32,
        2 => 64 << 10,
        _ => 256 << 10,
    };
    Config {
        receive_buffer: buffer(dice),
        send_buffer: buffer(dice),
        sender: sender::Config {
            algorithm: algorithms[dice.below(3) as usize],
            min_rto: Duration::from_millis([5, 5, 200][dice.below(3) as usize]),
            ..sender::Config::default()
        },
        nodelay: dice.one_in(2),
        timestamps: !dice.one_in(3),
        sack: !dice.one_in(4),
        ecn: dice.one_in(2),
        window_scaling: !dice.one_in(4),
        user_timeout: Duration::from_secs(dice.between(120, 600)),
        ..Config::default()
    }
}

fn link(dice: &mut Dice, harsh: bool) -> LinkPlan {
    let mut part = |most: u64| if dice.one_in(2) { dice.below(most + 1) as u32 } else { 0 };
    let (loss, reordering, duplication, corruption) =
        (part(if harsh { 300 } else { 50 }), part(300), part(100), part(if harsh { 100 } else { 20 }));
    let rate = [0, 50_000, 1_250_000, 125_000_000][dice.below(4) as usize];
    let farthest = [20, 1_000, 50_000, 200_000][dice.below(4) as usize];
    let delay = dice.up_to(Duration::from_micros(farthest));
    let queue = dice.between(3_000, 200_000);
    let mark_from = if dice.one_in(2) { dice.between(1, queue) } else { 0 };
    let shrinks = dice
        .one_in(6)
        .then(|| (Instant(1_000_000_000 + dice.below(2_000_000_000)), dice.between(88, 1_200) as u16));
    LinkPlan {
        rate,
        queue,
        mark_from,
        loss_per_million: loss * 1_000,
        reordering,
        duplication,
        corruption,
        shrinks,
        ..LinkPlan::perfect(delay)
    }
}

fn app(dice: &mut Dice) -> AppPlan {
    let bytes = match dice.below(4) {
        0 => 0,
        1 => dice.below(5_000),
        _ => dice.below(120_000),
    };
    let chunk = |dice: &mut Dice| [1, 100, 2_000, 60_000][dice.below(4) as usize].max(bytes / 300) as usize;
    AppPlan {
        bytes,
        write: chunk(dice),
        read: chunk(dice),
        pause: Duration::from_micros(if dice.one_in(2) { 0 } else { dice.below(50_000) }),
        aborts_after: dice.one_in(20).then(|| dice.below(50_000)),
    }
}

fn plan(seed: u64) -> Plan {
    let mut dice = Dice(seed);
    let harsh = dice.one_in(3);
    let mut links = [link(&mut dice, harsh), link(&mut dice, harsh)];
    if dice.one_in(20) {
        let at = Instant(1_000_000_000 + dice.below(3_000_000_000));
        links = links.map(|link| LinkPlan { dies: Some(at), ..link });
    }
    let configs = [config(&mut dice), config(&mut dice)];
    let mut apps = [app(&mut dice), app(&mut dice)];
    for side in 0..2 {
        // A reader takes the other's bytes in at most some hundred calls too.
        apps[side].read = apps[side].read.max((apps[1 - side].bytes / 300) as usize);
    }
    Plan {
        seed,
        configs,
        apps,
        links,
        path_mss: dice.between(500, 1_460) as u16,
        crossing: dice.one_in(8),
        max_steps: MAX_STEPS,
    }
}

/// Returns true if the plan gives a connection reason to fail like that.
fn is_excused(plan: &Plan, error: Error) -> bool {
    let aborts = plan.apps.iter().any(|app| app.aborts_after.is_some());
    let dies = plan.links.iter().any(|link| link.dies.is_some());
    // One segment in a thousand of those that need ten copies does not make it in time.
    let harsh = plan.links.iter().any(|link| link.loss_per_million / 1_000 + link.corruption > 150);
    match error {
        Error::Aborted => aborts,
        Error::Reset | Error::Refused => aborts || dies || harsh,
        _ => dies || harsh,
    }
}

fn run(seed: u64) {
    let plan = plan(seed);
    let mut world = World::new(plan.clone());
    let ends = world.run();
    world.check_streams();
    for end in ends {
        match end {
            End::Clean => {}
            End::Failed(error) => {
                assert!(is_excused(&plan, error), "no reason to fail with {error:?}: {ends:?} {plan:?}");
            }
            End::Waits => assert!(ends.iter().any(|end| matches!(end, End::Failed(_))), "{ends:?} {plan:?}"),
        }
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("a number"))
}

#[test]
fn every_byte_arrives_in_order_or_the_connection_fails_with_reason() {
    let (first, seeds) = (from_environment(FIRST, 0), from_environment(SEEDS, DEFAULT_SEEDS));
    for seed in first..first + seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!(
                "reproduce: {FIRST}={seed} {SEEDS}=1 cargo test -p tailwater-tcp --test network every_byte"
            );
            std::panic::resume_unwind(panic);
        }
    }
}
