//! Cores that programs request, under the policy `arbiter`, on a machine of 8 cores.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::ProgramClass;
use tailwater_shm::layout::TAKES_REQUESTS;
use tailwater_shm::{Grant, KthreadState};

use super::{Happening, happening, play};
use crate::allocator::PollUrgency;
use crate::config::{Config, PolicyName};
use crate::fixture::Sandbox;

const BATCH: u32 = 0;
const SERVICE: u32 = 1;
const OTHER: u32 = 2;
const CORES: u16 = 8;

/// Returns a machine with a batch job that has work for all cores, and holds them, and an idle
/// service.
fn machine() -> Sandbox {
    let config = Config { policy: PolicyName::Arbiter, ..Config::default() };
    let mut sandbox = Sandbox::with_config(CORES, Vec::new(), &config);
    sandbox.add(BATCH, CORES, 0, ProgramClass::BestEffort);
    sandbox.add(SERVICE, CORES, 0, ProgramClass::LatencyCritical);
    sandbox.peer(BATCH).queue(0, 100);
    settle(&mut sandbox);
    assert_eq!(held(&sandbox, BATCH), 8);
    sandbox
}

/// More looks than there are cores, and than a division needs.
fn settle(sandbox: &mut Sandbox) {
    for _ in 0..4 {
        sandbox.settle();
    }
}

fn held(sandbox: &Sandbox, id: u32) -> u64 {
    sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.cores.get()
}

fn running(sandbox: &mut Sandbox, id: u32) -> Vec<u16> {
    let peer = sandbox.peer(id);
    let runs =
        |&k: &u16| matches!(peer.grant(k).0, Grant::Run { .. }) && peer.state(k) != KthreadState::Parked;
    (0..CORES).filter(runs).collect()
}

#[test]
fn requested_cores_are_granted_without_work_and_are_not_lent_while_they_idle() {
    let mut sandbox = machine();
    sandbox.peer(SERVICE).request(3);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, BATCH)), (3, 5));
    assert_eq!(sandbox.peer(SERVICE).region.granted().load(Ordering::Relaxed), TAKES_REQUESTS | 3);
    let mine = running(&mut sandbox, SERVICE);
    assert_eq!(mine.len(), 3);
    for &k in &mine {
        sandbox.peer(SERVICE).go_idle(k);
    }
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, BATCH)), (3, 5), "it may idle there");
    sandbox.peer(SERVICE).park(mine[0]);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, BATCH)), (2, 6), "a core serves somebody");
    for _ in 0..100 {
        settle(&mut sandbox);
    }
    assert_eq!(held(&sandbox, SERVICE), 2, "a standing request fetches no core for which there is no work");
}

#[test]
fn a_program_sees_whether_the_policy_grants_requests() {
    for (policy, word) in [(PolicyName::Arbiter, TAKES_REQUESTS), (PolicyName::Congestion, 0)] {
        let config = Config { policy, ..Config::default() };
        let mut sandbox = Sandbox::with_config(1, Vec::new(), &config);
        sandbox.add(SERVICE, 1, 0, ProgramClass::LatencyCritical);
        assert_eq!(sandbox.peer(SERVICE).region.granted().load(Ordering::Relaxed), word);
    }
}

#[test]
fn a_lowered_request_frees_idle_cores_and_a_raised_one_is_clamped_and_counted() {
    let mut sandbox = machine();
    sandbox.peer(SERVICE).request(4);
    settle(&mut sandbox);
    for k in running(&mut sandbox, SERVICE) {
        sandbox.peer(SERVICE).go_idle(k);
    }
    sandbox.peer(SERVICE).request(1);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, BATCH)), (1, 7));
    // Longer than the period in which a core is fetched once.
    sandbox.pass(20_000_000);
    let cut = |sandbox: &Sandbox| {
        sandbox.world.runtimes.get(RuntimeId(SERVICE)).unwrap().stats.counters.cut_requests.get()
    };
    assert_eq!(cut(&sandbox), 0);
    sandbox.peer(SERVICE).request(u64::MAX);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, BATCH)), (8, 0));
    assert_eq!(cut(&sandbox), 1);
}

#[test]
fn the_polling_thread_does_not_sleep_before_a_request_is_divided_and_served() {
    let mut sandbox = machine();
    assert_eq!(sandbox.attention(), PollUrgency::Occasional);
    // The word changes between the last tick and the look before the sleep.
    sandbox.peer(BATCH).request(8 << 8);
    let now = sandbox.now;
    sandbox.alloc.look_at_all(&mut sandbox.world, now);
    assert_eq!(sandbox.attention(), PollUrgency::Constant);
    settle(&mut sandbox);
    assert_eq!(sandbox.attention(), PollUrgency::Occasional, "the batch job has what it requests");
    // The pause between two divisions is no reason to sleep either.
    sandbox.peer(BATCH).request(7 << 8);
    sandbox.tick();
    sandbox.peer(BATCH).request(8);
    sandbox.tick();
    assert_eq!(sandbox.attention(), PollUrgency::Constant);
    settle(&mut sandbox);
    assert_eq!(sandbox.attention(), PollUrgency::Occasional);
    sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).unwrap().may_request = 0;
    sandbox.peer(SERVICE).request(8);
    let now = sandbox.now;
    sandbox.alloc.look_at_all(&mut sandbox.world, now);
    assert_eq!(sandbox.attention(), PollUrgency::Occasional, "it may request nothing");
}

#[test]
fn a_late_raise_ends_a_sleep_when_its_period_ends() {
    let config = Config { policy: PolicyName::Arbiter, ..Config::default() };
    let mut sandbox = Sandbox::with_config(CORES, Vec::new(), &config);
    sandbox.add(SERVICE, CORES, 0, ProgramClass::LatencyCritical);
    sandbox.peer(SERVICE).request(1);
    settle(&mut sandbox);
    let began = sandbox.now;
    let k = running(&mut sandbox, SERVICE)[0];
    sandbox.peer(SERVICE).park(k);
    for word in [0, 1] {
        sandbox.peer(SERVICE).request(word);
        settle(&mut sandbox);
    }
    assert_eq!((held(&sandbox, SERVICE), sandbox.attention()), (0, PollUrgency::None));
    let due = sandbox.alloc.next_pending(sandbox.now).expect("the raise is late");
    assert!(due > sandbox.now && due <= began + 10_000_000, "{due} after {began}");
    let rest = due - sandbox.now;
    sandbox.pass(rest);
    assert_eq!(sandbox.attention(), PollUrgency::Constant);
    sandbox.obey();
    settle(&mut sandbox);
    assert_eq!(held(&sandbox, SERVICE), 1);
    assert_eq!(sandbox.alloc.next_pending(sandbox.now), None);
}

#[test]
fn a_request_that_stands_before_the_program_is_ready_is_a_raise_when_it_is() {
    let mut sandbox = machine();
    let now = sandbox.now;
    sandbox.alloc.observation.set_on_hold(RuntimeId(SERVICE), true);
    sandbox.peer(SERVICE).request(2);
    settle(&mut sandbox);
    // Longer than a raise is pursued.
    for _ in 0..20 {
        settle(&mut sandbox);
    }
    assert!(sandbox.now > now + 2_000_000);
    assert_eq!((held(&sandbox, SERVICE), sandbox.attention()), (0, PollUrgency::Occasional));
    sandbox.alloc.begin(&sandbox.world, RuntimeId(SERVICE));
    assert_eq!(sandbox.attention(), PollUrgency::Constant);
    settle(&mut sandbox);
    assert_eq!(held(&sandbox, SERVICE), 2);
}

#[test]
fn a_core_on_which_a_stopped_kthread_did_not_start_is_fetched_again_when_it_may_be() {
    let config = Config { policy: PolicyName::Arbiter, ..Config::default() };
    let mut sandbox = Sandbox::with_config(1, Vec::new(), &config);
    sandbox.add(SERVICE, 1, 0, ProgramClass::LatencyCritical);
    sandbox.peer(SERVICE).request(1);
    // It obeys nothing: it is stopped.
    let deadline = config.start_deadline_us * 1_000;
    (0..deadline / 5_000 + 20).for_each(|_| sandbox.tick());
    assert_eq!((held(&sandbox, SERVICE), sandbox.is_quiet()), (0, true), "it does not keep anyone awake");
    assert_eq!(sandbox.alloc.next_pending(sandbox.now), None);
    // The pause is over, and it runs again.
    sandbox.pass(20_000_000);
    settle(&mut sandbox);
    assert_eq!(held(&sandbox, SERVICE), 1);
}

#[test]
fn a_program_that_may_request_nothing_owns_nothing() {
    let mut sandbox = machine();
    sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).unwrap().may_request = 0;
    sandbox.peer(SERVICE).request(8);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, BATCH)), (0, 8));
}

#[test]
fn at_each_priority_the_larger_of_a_programs_own_request_and_that_of_a_client_counts() {
    let mut sandbox = machine();
    let outside = |sandbox: &mut Sandbox, word| {
        sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).unwrap().requested_outside = word;
        settle(sandbox);
        sandbox.alloc.policy.granted(RuntimeId(SERVICE))
    };
    assert_eq!(outside(&mut sandbox, 3), 3);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, BATCH)), (3, 5));
    sandbox.peer(SERVICE).request(2 | 1 << 8);
    assert_eq!(outside(&mut sandbox, 3), 4);
    assert_eq!(outside(&mut sandbox, 0), 3);
    sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).unwrap().may_request = 1;
    assert_eq!(outside(&mut sandbox, 8), 1, "no more than the program may request itself");
}

#[test]
fn a_priority_is_divided_evenly_and_a_higher_one_comes_first() {
    let mut sandbox = machine();
    sandbox.add(OTHER, CORES, 0, ProgramClass::LatencyCritical);
    sandbox.peer(SERVICE).request(8 << 8);
    sandbox.peer(OTHER).request(8 << 8);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, OTHER), held(&sandbox, BATCH)), (4, 4, 0));
    let kept = running(&mut sandbox, OTHER);
    sandbox.peer(OTHER).request(6);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, OTHER)), (2, 6));
    assert!(kept.iter().all(|k| running(&mut sandbox, OTHER).contains(k)), "cores stay where they are");
}

#[test]
fn the_cores_of_a_program_that_ends_go_to_those_that_request_them() {
    let mut sandbox = machine();
    sandbox.add(OTHER, CORES, 0, ProgramClass::LatencyCritical);
    sandbox.peer(SERVICE).request(8);
    sandbox.peer(OTHER).request(8 << 8);
    settle(&mut sandbox);
    assert_eq!((held(&sandbox, SERVICE), held(&sandbox, OTHER)), (8, 0));
    sandbox.end(RuntimeId(SERVICE));
    settle(&mut sandbox);
    assert_eq!(held(&sandbox, OTHER), 8);
}

/// Returns how many requested cores all runtimes own.
fn granted(sandbox: &Sandbox) -> u16 {
    sandbox.peers.keys().map(|&id| sandbox.alloc.policy.granted(RuntimeId(id))).sum()
}

/// What else happens, or a runtime writes this word as its request.
pub(super) fn happening_or_request() -> impl Strategy<Value = Result<Happening, (u32, u64)>> {
    // Mostly a few cores at one priority, now and then any word.
    let few = (0..8u32, 0..=u64::from(CORES)).prop_map(|(priority, cores)| cores << (8 * priority));
    let word = prop_oneof![4 => few, 1 => any::<u64>()];
    prop_oneof![
        4 => happening().prop_map(Ok),
        1 => (0..4u32, word).prop_map(Err),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Ledger and phases stay consistent (checked inside every step), no more is granted than there
    /// is, and no core is lost, whatever runtimes request, do and write.
    #[test]
    fn no_request_confuses_the_books(happenings in prop::collection::vec(happening_or_request(), 1..300)) {
        let config = Config { policy: PolicyName::Arbiter, ..Config::default() };
        let mut sandbox = Sandbox::with_config(CORES, Vec::new(), &config);
        for happening in happenings {
            match happening {
                Ok(happening) => play(&mut sandbox, happening),
                Err((id, word)) if sandbox.peers.contains_key(&id) => sandbox.peer(id).request(word),
                Err(_) => {}
            }
            prop_assert!(granted(&sandbox) <= CORES, "{} granted", granted(&sandbox));
        }
        settle(&mut sandbox);
        let ids: Vec<u32> = sandbox.peers.keys().copied().collect();
        for id in ids {
            sandbox.end(RuntimeId(id));
        }
        sandbox.tick();
        prop_assert!(sandbox.is_quiet(), "a core is lost");
    }

    /// Whatever programs requested and did, as long as the words that they wrote are true: when
    /// they all obey, each one with work has the cores that are its own, no core is free that one
    /// with work lacks, and a raised request is met without work.
    #[test]
    fn no_history_of_requests_leaves_work_or_a_request_unserved(
        happenings in prop::collection::vec(happening_or_request(), 1..300),
        raises in prop::collection::vec(0..=u64::from(CORES), 4),
    ) {
        let config = Config { policy: PolicyName::Arbiter, ..Config::default() };
        let mut sandbox = Sandbox::with_config(CORES, Vec::new(), &config);
        for happening in happenings {
            match happening {
                Ok(Happening::Garbage(..)) => {}
                Ok(happening) => play(&mut sandbox, happening),
                Err((id, word)) if sandbox.peers.contains_key(&id) => sandbox.peer(id).request(word),
                Err(_) => {}
            }
        }
        let ids: Vec<u32> = sandbox.peers.keys().copied().collect();
        ids.iter().for_each(|&id| sandbox.peer(id).queue(0, 2));
        outlast_pauses(&mut sandbox);
        for &id in &ids {
            let (held, own) = (held(&sandbox, id), sandbox.alloc.policy.granted(RuntimeId(id)));
            prop_assert!(held >= own.into(), "{id} has {held} of {own} cores and work");
            prop_assert!(held > 0 || !sandbox.alloc.has_free_core(), "{id} has work, and a core is free");
        }
        for (&id, &raise) in ids.iter().zip(&raises) {
            sandbox.peer(id).queue(0, 0);
            sandbox.peer(id).request(raise);
        }
        outlast_pauses(&mut sandbox);
        for &id in &ids {
            let (held, own) = (held(&sandbox, id), sandbox.alloc.policy.granted(RuntimeId(id)));
            prop_assert!(held >= own.into(), "{id} has {held} of {own} cores");
        }
    }
}

/// All programs obey, for longer than any pause of theirs, and than any period of a raise.
fn outlast_pauses(sandbox: &mut Sandbox) {
    for _ in 0..2 {
        sandbox.obey();
        settle(sandbox);
        sandbox.pass(2_000_000_000);
    }
    sandbox.obey();
    settle(sandbox);
}
