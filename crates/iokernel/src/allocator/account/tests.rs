use proptest::prelude::*;
use tailwater_shm::KthreadState;
use tailwater_shm::layout::{IN_SCHEDULER, IN_STACK, IN_THREAD};

use crate::allocator::tests::{BATCH, SERVICE, arrival, busy_batch};
use crate::fixture::Sandbox;

/// The account of the sandbox's first core in nanoseconds by part.
fn account(sandbox: &Sandbox) -> serde_json::Map<String, serde_json::Value> {
    let document = sandbox.world.stats.to_json();
    document["account"][0]["ns"].as_object().expect("an account").clone()
}

/// What the account has gained since `before`, by part.
fn gained(sandbox: &Sandbox, before: &serde_json::Map<String, serde_json::Value>) -> Vec<(String, u64)> {
    let ns = |value: &serde_json::Value| value.as_u64().expect("a number");
    let difference = |(part, now): (&String, &serde_json::Value)| (part.clone(), ns(now) - ns(&before[part]));
    account(sandbox).iter().map(difference).filter(|(_, ns)| *ns > 0).collect()
}

#[test]
fn each_phase_of_a_core_is_entered_into_its_account() {
    let mut sandbox = busy_batch();
    sandbox.tick();
    let before = account(&sandbox);
    sandbox.pass(3_000);
    // 600 ns until the batch job cedes, 100 until that is seen, 900 until the service runs, 4000 of
    // work.
    arrival(&mut sandbox);
    sandbox.pass(700);
    cede_at(&mut sandbox, |now| now - 100);
    sandbox.pass(0);
    sandbox.peer(SERVICE).obey(0);
    sandbox.pass(900);
    sandbox.pass(4_000);
    // 80 ns until the idle service cedes, 70 until the batch job runs, 500 of work, then none.
    sandbox.peer(SERVICE).go_idle(0);
    sandbox.pass(0);
    sandbox.pass(80);
    sandbox.peer(SERVICE).obey(0);
    sandbox.pass(0);
    sandbox.peer(BATCH).obey(0);
    sandbox.pass(70);
    sandbox.pass(500);
    sandbox.peer(BATCH).queue(0, 0);
    sandbox.peer(BATCH).park(0);
    sandbox.pass(0);
    // 50 ns without an owner, 30 until the service runs, 600 idle.
    sandbox.pass(50);
    arrival(&mut sandbox);
    sandbox.peer(SERVICE).obey(0);
    sandbox.pass(30);
    sandbox.peer(SERVICE).go_idle(0);
    sandbox.pass(0);
    sandbox.pass(600);
    assert!(sandbox.peer(SERVICE).resume(0));
    sandbox.pass(0);
    let expected = [
        ("batch", 4_100),
        ("cede", 180),
        ("free", 50),
        ("service", 4_000),
        ("service_idle", 600),
        ("start", 970),
        ("wake", 30),
    ];
    let mut found = gained(&sandbox, &before);
    found.sort();
    assert_eq!(found, expected.map(|(part, ns)| (part.to_owned(), ns)));
}

/// The batch job cedes its core and states that it did so at a time derived from now.
fn cede_at(sandbox: &mut Sandbox, when: impl Fn(u64) -> u64) {
    let stated = when(sandbox.now);
    let peer = sandbox.peer(BATCH);
    peer.region.kthread(0).status.ceded.store(stated, std::sync::atomic::Ordering::Relaxed);
    assert!(peer.obey(0));
}

#[test]
fn a_false_time_of_ceding_moves_only_the_programs_own_time() {
    type Statement = fn(u64) -> u64;
    let statements: [(Statement, u64, u64); 4] = [
        (|now| now - 300, 400, 300),
        (|now| now.saturating_sub(30_000), 0, 700),
        (|_| 0, 0, 700),
        (|_| u64::MAX, 700, 0),
    ];
    for (stated, batch, cede) in statements {
        let mut sandbox = busy_batch();
        sandbox.tick();
        arrival(&mut sandbox);
        let before = account(&sandbox);
        sandbox.pass(700);
        cede_at(&mut sandbox, stated);
        sandbox.pass(0);
        let found = gained(&sandbox, &before);
        let of = |part: &str| found.iter().find(|(name, _)| name == part).map_or(0, |(_, ns)| *ns);
        assert_eq!((of("batch"), of("cede")), (batch, cede), "{found:?}");
        assert_eq!(found.iter().map(|(_, ns)| ns).sum::<u64>(), 700, "{found:?}");
    }
}

#[test]
fn samples_tell_threads_from_stack_and_scheduler_of_the_owner_only() {
    let mut sandbox = busy_batch();
    let doing = |sandbox: &mut Sandbox, id, word| {
        sandbox.peer(id).region.kthread(0).status.doing.store(word, std::sync::atomic::Ordering::Relaxed);
    };
    let read = |sandbox: &Sandbox| sandbox.world.stats.to_json()["account"][0]["samples"].clone();
    doing(&mut sandbox, SERVICE, IN_THREAD);
    let before = read(&sandbox);
    for (word, ticks) in [(IN_THREAD, 6), (IN_STACK, 3), (IN_SCHEDULER, 2), (u32::MAX, 1)] {
        doing(&mut sandbox, BATCH, word);
        (0..ticks).for_each(|_| sandbox.tick());
    }
    let after = read(&sandbox);
    let gained = |class: &str, what: &str| {
        after[class][what].as_u64().unwrap() - before[class][what].as_u64().unwrap()
    };
    assert_eq!(["thread", "stack", "scheduler"].map(|what| gained("batch", what)), [6, 3, 3]);
    assert_eq!(["thread", "stack", "scheduler"].map(|what| gained("service", what)), [0; 3]);
}

proptest! {
    #[test]
    fn an_account_adds_up_to_the_time_that_passed(steps in proptest::collection::vec((0..7u8, 1..3_000u64), 1..200)) {
        let mut sandbox = busy_batch();
        sandbox.tick();
        let (from, before) = (sandbox.now, account(&sandbox));
        for (step, ns) in steps {
            match step {
                0 => arrival(&mut sandbox),
                1 => sandbox.obey(),
                2 if sandbox.peer(SERVICE).state(0) == KthreadState::Running => sandbox.peer(SERVICE).go_idle(0),
                3 if sandbox.peer(SERVICE).state(0) == KthreadState::Idle => sandbox.peer(SERVICE).park(0),
                4 => sandbox.tick(),
                // A lie: it says that it parked and did not.
                5 if sandbox.peer(BATCH).state(0) == KthreadState::Running => sandbox.peer(BATCH).park(0),
                _ => {}
            }
            sandbox.pass(ns);
        }
        sandbox.tick();
        sandbox.tick();
        let total: u64 = gained(&sandbox, &before).iter().map(|(_, ns)| ns).sum();
        // The last tick may have come before the policy's interval had passed.
        let passed = sandbox.now - from;
        prop_assert!(total <= passed && total + 10_000 > passed, "{total} of {passed} ns");
    }
}
