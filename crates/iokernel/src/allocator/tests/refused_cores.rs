//! Programs whose cpusets lack managed cores.

use tailwater_sched::alloc::PolicyName;
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::{Grant, KthreadState};

use super::{BATCH, SERVICE, arrival};
use crate::config::Config;
use crate::fixture::{Sandbox, measure_as};

/// A batch job that runs on all of so many cores, and a service whose first `kthreads` threads have
/// only the cores of `cpuset`.
fn beside_batch(cores: u16, kthreads: u16, cpuset: &[u16]) -> Sandbox {
    let mut sandbox = Sandbox::new(cores, Vec::new());
    sandbox.add(BATCH, cores, 0, BestEffort);
    sandbox.add(SERVICE, kthreads, 0, LatencyCritical);
    (0..cores).for_each(|k| sandbox.peer(BATCH).queue(k, 9));
    (0..cores).for_each(|_| sandbox.settle());
    assert_eq!(running(&mut sandbox, BATCH, cores), usize::from(cores));
    for core in (0..cores).filter(|core| !cpuset.contains(core)) {
        (0..kthreads).for_each(|k| sandbox.bar_thread(101 + i32::from(k), CoreId(core)));
    }
    sandbox
}

fn running(sandbox: &mut Sandbox, id: u32, kthreads: u16) -> usize {
    (0..kthreads).filter(|&k| sandbox.peer(id).state(k) == KthreadState::Running).count()
}

fn failures(sandbox: &Sandbox) -> u64 {
    sandbox.world.stats.cores.rebind_failures.get()
}

/// Lets `ms` pass, in which all runtimes do as they are asked.
fn run(sandbox: &mut Sandbox, ms: u64) {
    for _ in 0..ms {
        sandbox.pass(900_000);
        sandbox.settle();
    }
}

#[test]
fn a_service_finds_the_two_cores_of_sixteen_that_its_cpuset_has_at_once_and_remembers_them() {
    let mut sandbox = beside_batch(16, 2, &[5, 11]);
    sandbox.peer(SERVICE).queue(0, 4);
    sandbox.peer(SERVICE).queue(1, 4);
    let began = sandbox.now;
    while running(&mut sandbox, SERVICE, 2) < 2 {
        sandbox.settle();
        assert!(sandbox.now - began < 1_000_000, "{} attempts", failures(&sandbox));
    }
    let found = failures(&sandbox);
    assert!((1..=14).contains(&found), "{found}");
    for _ in 0..20 {
        for k in 0..2 {
            sandbox.peer(SERVICE).queue(k, 0);
            sandbox.peer(SERVICE).park(k);
        }
        sandbox.settle();
        (0..2).for_each(|k| sandbox.peer(SERVICE).queue(k, 4));
        sandbox.settle();
    }
    assert!(failures(&sandbox) <= 14, "no core is tried twice");
    assert_eq!(sandbox.world.runtimes.get(RuntimeId(SERVICE)).unwrap().stats.counters.throttled.get(), 0);
}

#[test]
fn a_free_core_that_its_cpuset_lacks_does_not_keep_a_service_from_a_busy_one() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.bar_thread(1, CoreId(1));
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.settle();
    assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
    sandbox.bar_thread(101, CoreId(1));
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
}

#[test]
fn a_thread_whose_cpuset_lacks_a_free_core_gets_another_free_one() {
    for lacks in [CoreId(0), CoreId(1)] {
        let mut sandbox = Sandbox::new(2, Vec::new());
        sandbox.add(0, 1, 0, LatencyCritical);
        sandbox.bar_thread(1, lacks);
        sandbox.peer(0).queue(0, 1);
        sandbox.settle();
        assert_eq!(sandbox.peer(0).state(0), KthreadState::Running, "{lacks}");
    }
}

#[test]
fn a_thread_that_cannot_be_bound_to_a_core_of_its_partition_gets_none_of_another() {
    let mut sandbox =
        Sandbox::with_config(2, Vec::new(), &Config { policy: PolicyName::Static, ..Config::default() });
    sandbox.add(0, 1, 0, LatencyCritical);
    sandbox.add(1, 1, 0, LatencyCritical);
    sandbox.bar_thread(1, CoreId(0));
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    assert_eq!(failures(&sandbox), 1);
    assert_eq!(sandbox.peer(0).state(0), KthreadState::Parked);
    // The other runtime finds its core.
    sandbox.peer(1).queue(0, 1);
    sandbox.settle();
    assert_eq!(sandbox.peer(1).state(0), KthreadState::Running);
}

#[test]
fn a_core_that_was_refused_is_lent_to_others_and_tried_again_after_ten_seconds() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(0, 2, 0, LatencyCritical);
    sandbox.add(1, 1, 0, BestEffort);
    sandbox.bar_thread(1, CoreId(1));
    sandbox.bar_thread(2, CoreId(1));
    // More than one core does in time.
    sandbox.peer(0).queue(0, 8);
    measure_as(1_000);
    sandbox.settle();
    measure_as(0);
    assert_eq!(failures(&sandbox), 1);
    let look = sandbox.alloc.observation.runtime(RuntimeId(0)).unwrap();
    assert!(!look.on_hold() && look.has_work(), "another core could be lent to it");
    sandbox.peer(1).queue(0, 1);
    sandbox.settle();
    assert_eq!(sandbox.peer(1).state(0), KthreadState::Running);
    sandbox.pass(9_000_000_000);
    sandbox.settle();
    assert_eq!(failures(&sandbox), 1);
    sandbox.pass(1_000_000_000);
    sandbox.settle();
    assert_eq!(failures(&sandbox), 2, "it is tried again");
    assert_eq!(sandbox.peer(1).state(0), KthreadState::Running);
    let charged = |id| sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.offence_ns.get();
    assert!(charged(0) > 0 && charged(1) == 0);
}

#[test]
fn a_runtime_that_was_refused_a_free_core_is_woken_for_another_at_the_next_look() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.bar_thread(101, CoreId(0));
    arrival(&mut sandbox);
    assert_eq!(failures(&sandbox), 1);
    let runtime = |sandbox: &Sandbox| sandbox.world.runtimes.get(RuntimeId(SERVICE)).unwrap().woken.is_some();
    assert!(!runtime(&sandbox), "its demand counts as seen");
    // It may have no other: it is not tried again.
    arrival(&mut sandbox);
    assert_eq!(failures(&sandbox), 1);
    assert!(runtime(&sandbox));
}

#[test]
fn a_kthread_that_has_not_started_keeps_its_core_from_a_thread_that_cannot_be_bound_there() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.bar_thread(101, CoreId(0));
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.tick();
    sandbox.pass(15_000);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.tick();
    assert_eq!(failures(&sandbox), 1);
    assert!(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }));
    assert_eq!(sandbox.world.stats.cores.no_starts.get(), 0);
}

#[test]
fn a_program_without_any_managed_core_is_tried_every_ten_seconds_and_gets_one_once_it_may() {
    let mut sandbox = beside_batch(2, 1, &[]);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    assert_eq!(failures(&sandbox), 2, "each core once");
    run(&mut sandbox, 1_000);
    assert_eq!(failures(&sandbox), 2);
    sandbox.widen_cpusets();
    sandbox.pass(10_000_000_000);
    sandbox.settle();
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
}

#[test]
fn a_thread_that_is_gone_is_tried_for_a_share_of_the_time() {
    let mut sandbox = beside_batch(2, 1, &[0, 1]);
    sandbox.kill_thread(101);
    sandbox.peer(SERVICE).queue(0, 1);
    measure_as(1_000);
    run(&mut sandbox, 1_000);
    measure_as(0);
    let charged = sandbox.world.runtimes.get(RuntimeId(SERVICE)).unwrap().stats.counters.offence_ns.get();
    // 2 ms at once, and a hundredth of a second.
    assert!(charged < 13_000_000, "{charged} ns in a second");
}

#[test]
fn programs_that_are_refused_a_core_more_than_a_second_apart_are_each_named_in_the_log_at_once() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    for id in 0..3 {
        sandbox.add(id, 1, 0, BestEffort);
        sandbox.bar_thread(1 + 100 * id as i32, CoreId(0));
        sandbox.peer(id).queue(0, 1);
        sandbox.settle();
        let is_named = |id| sandbox.world.runtimes.get(RuntimeId(id)).unwrap().refused_cores.has_warned;
        assert!(is_named(id), "{id}");
        sandbox.pass(1_100_000_000);
    }
    sandbox.add(3, 1, 0, BestEffort);
    sandbox.add(4, 1, 0, BestEffort);
    for id in 3..5 {
        sandbox.bar_thread(1 + 100 * id as i32, CoreId(0));
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    let named =
        (3..5).filter(|&id| sandbox.world.runtimes.get(RuntimeId(id)).unwrap().refused_cores.has_warned);
    assert_eq!(named.count(), 1, "one in a second");
    assert_eq!(failures(&sandbox), 5);
}
