//! Programs whose kthreads take long to wake.

use tailwater_sched::RuntimeId;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};

use crate::fixture::{Sandbox, measure_as};

/// Lends the core of a machine with one to this program for a moment, over and over, for 20 ms;
/// returns how often.
fn grants(sandbox: &mut Sandbox, id: u32) -> u64 {
    let grants =
        |sandbox: &Sandbox| sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.grants.get();
    let before = grants(sandbox);
    for word in 0..1_000 {
        sandbox.peer(id).queue(0, 1);
        (0..2).for_each(|_| sandbox.tick());
        sandbox.obey();
        sandbox.pass(1_000);
        // A change, so that the grant is not wasted.
        let timer = sandbox.now + 1_000_000_000 + word;
        let status = &sandbox.peer(id).region.kthread(0).status;
        status.next_timer.store(timer, core::sync::atomic::Ordering::Relaxed);
        sandbox.peer(id).queue(0, 0);
        sandbox.peer(id).park(0);
        sandbox.pass(9_000);
    }
    grants(sandbox) - before
}

#[test]
fn a_best_effort_program_whose_kthreads_take_long_to_wake_is_lent_cores_more_seldom() {
    for (class, took, most) in [
        (BestEffort, 1_200, 1_000),
        // 2 ms at once, and a hundredth of 20 ms.
        (BestEffort, 400_000, 6),
        // A stranger may be the reason, and its requests wait.
        (LatencyCritical, 400_000, 1_000),
    ] {
        let mut sandbox = Sandbox::new(1, Vec::new());
        sandbox.add(0, 1, 0, class);
        measure_as(took);
        let grants = grants(&mut sandbox, 0);
        measure_as(0);
        assert!((most * 9 / 10..=most + 1).contains(&grants), "{grants} of {most}, {class:?}, {took} ns");
        assert!(sandbox.ended.is_empty());
        let counters = &sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters;
        assert_eq!(counters.offence_ns.get(), 0);
    }
}
