//! Cores that ordinary threads are kept off, on a machine of 8 cores.

use proptest::prelude::*;
use tailwater_host::cpu_set;
use tailwater_sched::ledger::CoreState;
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::control::ProgramClass;
use tailwater_shm::{Grant, KthreadState};

use super::play;
use super::requests::happening_or_request;
use crate::config::{Config, PolicyName, ReserveSettings};
use crate::fixture::Sandbox;

const BATCH: u32 = 0;
const SERVICE: u32 = 1;
/// In the property test.
const CONFINED: u32 = 2;
const CORES: u16 = 8;

fn machine() -> Sandbox {
    let reserve =
        ReserveSettings { keep_off: vec!["/system.slice".to_owned()], ..ReserveSettings::default() };
    let config = Config { policy: PolicyName::Arbiter, reserve, ..Config::default() };
    Sandbox::with_config(CORES, Vec::new(), &config)
}

/// A service and a batch job that has work for all cores.
fn shared_machine() -> Sandbox {
    let mut sandbox = machine();
    sandbox.add(BATCH, CORES, 0, ProgramClass::BestEffort);
    sandbox.add(SERVICE, CORES, 0, ProgramClass::LatencyCritical);
    sandbox.peer(BATCH).queue(0, 100);
    settle(&mut sandbox);
    sandbox
}

fn settle(sandbox: &mut Sandbox) {
    for _ in 0..4 {
        sandbox.settle();
    }
}

/// Looks now; returns the reserved cores if they have changed.
fn look(sandbox: &mut Sandbox) -> Option<Vec<usize>> {
    let cores = sandbox.alloc.take_reserved(&mut sandbox.world, sandbox.now, true)?;
    Some((0..usize::from(CORES)).filter(|&core| cores.is_set(core)).collect())
}

/// Returns the cores that the runtime has.
fn had(sandbox: &Sandbox, id: u32) -> Vec<usize> {
    let cores = sandbox.alloc.ledger.cores().iter().enumerate();
    let is_had =
        |state: &CoreState| matches!(state, CoreState::Owned { kthread, .. } if kthread.runtime.0 == id);
    cores.filter(|(_, state)| is_had(state)).map(|(core, _)| core).collect()
}

/// The service parks on all of its cores.
fn park(sandbox: &mut Sandbox) {
    for k in 0..CORES {
        let peer = sandbox.peer(SERVICE);
        if matches!(peer.grant(k).0, Grant::Run { .. }) && peer.state(k) != KthreadState::Parked {
            peer.park(k);
        }
    }
    settle(sandbox);
}

#[test]
fn the_cores_that_a_program_requests_and_has_are_reserved_until_the_request_ends() {
    let mut sandbox = shared_machine();
    assert_eq!(look(&mut sandbox), None, "a batch job's load reserves nothing");
    sandbox.peer(SERVICE).request(2);
    settle(&mut sandbox);
    let mine = had(&sandbox, SERVICE);
    assert_eq!((mine.len(), look(&mut sandbox)), (2, Some(mine)));
    park(&mut sandbox);
    assert_eq!((had(&sandbox, SERVICE).len(), look(&mut sandbox)), (0, None), "the request stands");
    sandbox.peer(SERVICE).request(0);
    settle(&mut sandbox);
    // Within 5 ms: the next look that is due.
    sandbox.pass(5_000_000);
    let now = sandbox.now;
    assert!(
        sandbox.alloc.take_reserved(&mut sandbox.world, now, false).is_some_and(|cores| cores.count() == 0)
    );
}

#[test]
fn a_core_that_no_program_has_or_requests_is_linuxs_at_once() {
    let mut sandbox = machine();
    sandbox.add(SERVICE, CORES, 0, ProgramClass::LatencyCritical);
    sandbox.peer(SERVICE).request(3);
    settle(&mut sandbox);
    assert_eq!(look(&mut sandbox).map(|cores| cores.len()), Some(3));
    sandbox.peer(SERVICE).request(0);
    // After 50 us without work its kthreads do so by themselves.
    park(&mut sandbox);
    assert_eq!((look(&mut sandbox), sandbox.alloc.ledger.free_cores()), (Some(Vec::new()), 8));
    assert!(sandbox.is_quiet(), "no kthread polls there");
}

#[test]
fn the_end_of_a_program_ends_its_reservations() {
    let mut sandbox = shared_machine();
    sandbox.peer(SERVICE).request(8);
    settle(&mut sandbox);
    assert_eq!(look(&mut sandbox), Some((0..8).collect()));
    sandbox.end(RuntimeId(SERVICE));
    assert_eq!(look(&mut sandbox), Some(Vec::new()));
}

#[test]
fn a_core_that_linux_takes_away_is_reserved_no_more_and_another_one_is_once_it_is_had() {
    let mut sandbox = shared_machine();
    sandbox.peer(SERVICE).request(1);
    settle(&mut sandbox);
    let first = look(&mut sandbox).unwrap();
    park(&mut sandbox);
    let mut present = cpu_set(&(0..CORES).map(CoreId).collect::<Vec<_>>());
    present.unset(first[0]);
    let now = sandbox.now;
    sandbox.alloc.set_present(&mut sandbox.world, &present, now);
    settle(&mut sandbox);
    assert_eq!(look(&mut sandbox), Some(Vec::new()));
    sandbox.peer(SERVICE).queue(0, 1);
    settle(&mut sandbox);
    let second = look(&mut sandbox).unwrap();
    assert!(second.len() == 1 && second != first, "{second:?} after {first:?}");
}

#[test]
fn nothing_is_reserved_unless_threads_are_to_be_kept_off() {
    let config = Config { policy: PolicyName::Arbiter, ..Config::default() };
    let mut sandbox = Sandbox::with_config(CORES, Vec::new(), &config);
    sandbox.add(SERVICE, CORES, 0, ProgramClass::LatencyCritical);
    sandbox.peer(SERVICE).request(2);
    settle(&mut sandbox);
    assert_eq!((had(&sandbox, SERVICE).len(), look(&mut sandbox)), (2, None));
}

/// Makes the program one of a control group that is kept off reserved cores, if it is registered.
fn confine(sandbox: &mut Sandbox, id: u32) {
    sandbox.alloc.observation.set_confined(RuntimeId(id), true);
}

/// Takes a look in each of `times` steps of 5 ms.
fn pass_looking(sandbox: &mut Sandbox, times: u32) {
    for _ in 0..times {
        sandbox.pass(5_000_000);
        look(sandbox);
        settle(sandbox);
    }
}

#[test]
fn a_program_in_a_named_group_is_lent_no_reserved_core_and_nothing_is_reserved_for_it() {
    let mut sandbox = shared_machine();
    confine(&mut sandbox, BATCH);
    sandbox.peer(SERVICE).request(2);
    settle(&mut sandbox);
    let reserved = look(&mut sandbox).unwrap();
    assert_eq!(reserved.len(), 2);
    park(&mut sandbox);
    pass_looking(&mut sandbox, 40);
    let others: Vec<usize> = (0..8).filter(|core| !reserved.contains(core)).collect();
    assert_eq!(had(&sandbox, BATCH), others, "the reserved ones stay free");
    let failures = |sandbox: &Sandbox| sandbox.world.stats.cores.rebind_failures.get();
    assert_eq!(failures(&sandbox), 0, "Linux is not even asked");
    sandbox.peer(SERVICE).request(0);
    pass_looking(&mut sandbox, 5);
    assert_eq!(had(&sandbox, BATCH), others, "its control group may not have them back yet");
    pass_looking(&mut sandbox, 20);
    assert_eq!(had(&sandbox, BATCH).len(), 8);
    sandbox.peer(BATCH).request(3);
    pass_looking(&mut sandbox, 1);
    assert_eq!((sandbox.alloc.policy.granted(RuntimeId(BATCH)), look(&mut sandbox)), (3, None));
}

#[test]
fn a_program_outside_of_the_named_groups_is_lent_reserved_cores_meanwhile() {
    let mut sandbox = shared_machine();
    sandbox.peer(SERVICE).request(2);
    settle(&mut sandbox);
    assert_eq!(look(&mut sandbox).map(|cores| cores.len()), Some(2));
    park(&mut sandbox);
    pass_looking(&mut sandbox, 1);
    assert_eq!(had(&sandbox, BATCH).len(), 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No more is reserved than is granted, nothing for programs that are gone or confined, which
    /// have no reserved core, and nothing is left when all are gone.
    #[test]
    fn no_history_reserves_more_than_is_granted(deeds in prop::collection::vec(happening_or_request(), 1..300)) {
        let mut sandbox = machine();
        let mut reserved = Vec::new();
        for deed in deeds {
            match deed {
                Ok(happening) => play(&mut sandbox, happening),
                Err((id, word)) if sandbox.peers.contains_key(&id) => sandbox.peer(id).request(word),
                Err(_) => {}
            }
            confine(&mut sandbox, CONFINED);
            reserved = look(&mut sandbox).unwrap_or(reserved);
            let others = sandbox.peers.keys().filter(|&&id| id != CONFINED);
            let granted: u16 = others.map(|&id| sandbox.alloc.policy.granted(RuntimeId(id))).sum();
            let confined = had(&sandbox, CONFINED);
            prop_assert!(confined.iter().all(|core| !reserved.contains(core)), "{confined:?} has one of {reserved:?}");
            prop_assert!(reserved.len() <= usize::from(granted), "{reserved:?} of {granted}");
        }
        let ids: Vec<u32> = sandbox.peers.keys().copied().collect();
        for id in ids {
            sandbox.end(RuntimeId(id));
        }
        reserved = look(&mut sandbox).unwrap_or(reserved);
        prop_assert!(reserved.is_empty(), "{reserved:?}");
    }
}
