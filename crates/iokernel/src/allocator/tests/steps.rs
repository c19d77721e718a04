//! IX's control loop on 8 cores that do not exist.

use tailwater_sched::alloc::PolicyName;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::{Grant, KthreadState};

use super::{BATCH, SERVICE};
use crate::config::Config;
use crate::fixture::Sandbox;

fn sandbox(policy: PolicyName) -> Sandbox {
    let config = Config { policy, ..Config::default() };
    let mut sandbox = Sandbox::with_config(8, Vec::new(), &config);
    sandbox.add(BATCH, 8, 0, BestEffort);
    sandbox.add(SERVICE, 8, 0, LatencyCritical);
    sandbox
}

/// Lets `ms` pass, in which all runtimes do as they are asked.
fn run(sandbox: &mut Sandbox, ms: u64) {
    for _ in 0..ms * 4 {
        sandbox.pass(245_000);
        sandbox.tick();
        sandbox.obey();
    }
    sandbox.settle();
}

fn running(sandbox: &mut Sandbox, id: u32) -> usize {
    (0..8).filter(|&k| sandbox.peer(id).state(k) == KthreadState::Running).count()
}

/// All kthreads of the service that run become idle.
fn idle(sandbox: &mut Sandbox) {
    for k in 0..8 {
        if sandbox.peer(SERVICE).state(k) == KthreadState::Running {
            sandbox.peer(SERVICE).go_idle(k);
        }
    }
}

#[test]
fn a_backlog_gives_a_service_core_after_core_and_no_work_takes_the_step_back() {
    for policy in [PolicyName::Ix, PolicyName::IxEnergy] {
        let mut sandbox = sandbox(policy);
        (0..8).for_each(|k| sandbox.peer(BATCH).queue(k, 9));
        (0..8).for_each(|k| sandbox.peer(SERVICE).queue(k, 9));
        run(&mut sandbox, 20);
        assert_eq!(running(&mut sandbox, SERVICE), 1, "{policy}");
        let batch = if policy == PolicyName::Ix { 7 } else { 0 };
        assert_eq!(running(&mut sandbox, BATCH), batch, "{policy}");
        run(&mut sandbox, 400);
        let most = running(&mut sandbox, SERVICE);
        assert!(most >= 3, "{policy}: {most} cores after four decisions");
        assert_eq!(sandbox.world.stats.cores.in_use.get(), most as u64);
        (0..8).for_each(|k| sandbox.peer(SERVICE).queue(k, 0));
        idle(&mut sandbox);
        run(&mut sandbox, 2_500);
        assert_eq!(sandbox.world.stats.cores.step.get(), 0, "{policy}");
        let batch = if policy == PolicyName::Ix { 8 } else { 1 };
        assert_eq!(running(&mut sandbox, BATCH), batch, "{policy}");
    }
}

#[test]
fn kthreads_that_idle_outside_of_the_step_are_asked_to_cede() {
    let mut sandbox = sandbox(PolicyName::IxEnergy);
    (0..8).for_each(|k| sandbox.peer(SERVICE).queue(k, 9));
    run(&mut sandbox, 250);
    assert!(running(&mut sandbox, SERVICE) >= 2);
    (0..8).for_each(|k| sandbox.peer(SERVICE).queue(k, 0));
    idle(&mut sandbox);
    // They poll on: none parks unless it is asked.
    run(&mut sandbox, 1_000);
    assert_eq!(sandbox.world.stats.cores.in_use.get(), 1);
    let held = (0..8).filter(|&k| sandbox.peer(SERVICE).state(k) != KthreadState::Parked);
    let held: Vec<Grant> =
        held.collect::<Vec<u16>>().into_iter().map(|k| sandbox.peer(SERVICE).grant(k).0).collect();
    assert_eq!(held, [Grant::Run { core: 0 }]);
}
