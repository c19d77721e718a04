//! Fixed partitions, under the policy `static`, on 8 cores that do not exist.

use proptest::prelude::*;
use tailwater_sched::RuntimeId;
use tailwater_sched::alloc::PolicyName;
use tailwater_sched::ledger::CoreState;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};

use super::{BATCH, SERVICE, arrival, happening, play};
use crate::config::Config;
use crate::fixture::Sandbox;

const CORES: u16 = 8;
/// Registered after these two.
const NEXT: u32 = 2;
const LATE: u32 = 3;
/// Of the service. The batch job, which is guaranteed none and attached later, has the others.
const GUARANTEED: u16 = 3;

fn sandbox() -> Sandbox {
    let config = Config { policy: PolicyName::Static, ..Config::default() };
    Sandbox::with_config(CORES, Vec::new(), &config)
}

/// A service and a batch job, both with a kthread for each core.
fn machine() -> Sandbox {
    let mut sandbox = sandbox();
    sandbox.add(SERVICE, CORES, GUARANTEED, LatencyCritical);
    sandbox.add(BATCH, CORES, 0, BestEffort);
    sandbox
}

/// Gives each kthread of a program so many user threads.
fn queue(sandbox: &mut Sandbox, id: u32, items: u32) {
    (0..CORES).for_each(|k| sandbox.peer(id).queue(k, items));
}

/// Returns the cores that are lent to a program, and its kthreads there.
fn held(sandbox: &Sandbox, id: u32) -> (Vec<u16>, Vec<u16>) {
    let states = (0..).zip(sandbox.alloc.ledger.cores());
    let lent = states.flat_map(|(core, state)| match *state {
        CoreState::Owned { kthread, .. } => vec![(core, kthread)],
        CoreState::Moving { from, to, .. } => vec![(core, from), (core, to)],
        CoreState::Free | CoreState::Absent => Vec::new(),
    });
    lent.filter(|(_, kthread)| kthread.runtime == RuntimeId(id)).map(|(core, k)| (core, k.index)).unzip()
}

fn cores(sandbox: &Sandbox, id: u32) -> Vec<u16> {
    held(sandbox, id).0
}

#[test]
fn each_program_runs_on_all_cores_of_its_partition_and_on_no_other() {
    let mut sandbox = machine();
    queue(&mut sandbox, BATCH, 9);
    sandbox.settle();
    assert_eq!(cores(&sandbox, BATCH), [3, 4, 5, 6, 7], "the service has no work");
    queue(&mut sandbox, SERVICE, 9);
    sandbox.settle();
    assert_eq!(cores(&sandbox, SERVICE), [0, 1, 2], "whatever backlog it has");
    assert_eq!(cores(&sandbox, BATCH), [3, 4, 5, 6, 7]);
    // The batch job ends its work: none of its cores is lent.
    queue(&mut sandbox, BATCH, 0);
    for k in held(&sandbox, BATCH).1 {
        sandbox.peer(BATCH).park(k);
    }
    sandbox.settle();
    assert_eq!((cores(&sandbox, SERVICE), cores(&sandbox, BATCH)), (vec![0, 1, 2], vec![]));
}

#[test]
fn kthreads_that_idle_or_park_keep_their_partition_and_have_it_again_with_their_next_work() {
    let mut sandbox = machine();
    queue(&mut sandbox, BATCH, 9);
    queue(&mut sandbox, SERVICE, 9);
    sandbox.settle();
    for parks in [false, true] {
        queue(&mut sandbox, SERVICE, 0);
        for k in held(&sandbox, SERVICE).1 {
            match parks {
                true => sandbox.peer(SERVICE).park(k),
                false => sandbox.peer(SERVICE).go_idle(k),
            }
        }
        sandbox.settle();
        assert_eq!(cores(&sandbox, BATCH), [3, 4, 5, 6, 7], "parks: {parks}");
        // Longer than any pause of a program that gives up cores on which it has done nothing.
        sandbox.pass(30_000_000);
        sandbox.settle();
        assert_eq!(cores(&sandbox, SERVICE).len(), if parks { 0 } else { 3 });
        if parks {
            // What arrives for a program without a core brings one back at once.
            arrival(&mut sandbox);
            assert_eq!(cores(&sandbox, SERVICE).len(), 1);
            sandbox.obey();
        }
        queue(&mut sandbox, SERVICE, 9);
        for kthread in held(&sandbox, SERVICE).1 {
            sandbox.peer(SERVICE).resume(kthread);
        }
        sandbox.settle();
        assert_eq!(cores(&sandbox, SERVICE), [0, 1, 2], "parks: {parks}");
    }
    assert_eq!(sandbox.world.stats.cores.rebind_failures.get(), 0);
}

#[test]
fn the_partition_of_a_program_that_ends_goes_to_the_next_that_registers() {
    let mut sandbox = machine();
    queue(&mut sandbox, BATCH, 9);
    queue(&mut sandbox, SERVICE, 9);
    sandbox.settle();
    sandbox.end(RuntimeId(SERVICE));
    sandbox.settle();
    assert_eq!(cores(&sandbox, BATCH), [3, 4, 5, 6, 7], "a partition does not grow");
    sandbox.add(NEXT, 2, 0, LatencyCritical);
    sandbox.add(LATE, CORES, 0, LatencyCritical);
    for (id, kthreads) in [(NEXT, 2), (LATE, CORES)] {
        (0..kthreads).for_each(|k| sandbox.peer(id).queue(k, 9));
    }
    sandbox.settle();
    assert_eq!((cores(&sandbox, NEXT), cores(&sandbox, LATE)), (vec![0, 1], vec![2]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Ledger and phases stay consistent (checked inside every step), no core is lost, and none
    /// serves another program than its own, whatever programs do and write.
    #[test]
    fn no_behaviour_of_programs_moves_a_core_out_of_its_partition(
        happenings in prop::collection::vec(happening(), 1..300),
    ) {
        let (mut sandbox, mut owners) = (sandbox(), [None; CORES as usize]);
        for happening in happenings {
            play(&mut sandbox, happening);
            let ids: Vec<u32> = sandbox.peers.keys().copied().collect();
            for owner in &mut owners {
                owner.take_if(|owner| !ids.contains(owner));
            }
            for id in ids {
                for core in cores(&sandbox, id) {
                    let owner = owners[usize::from(core)].get_or_insert(id);
                    prop_assert_eq!(*owner, id, "core {} has changed hands", core);
                }
            }
        }
        sandbox.settle();
        let ids: Vec<u32> = sandbox.peers.keys().copied().collect();
        ids.into_iter().for_each(|id| sandbox.end(RuntimeId(id)));
        sandbox.tick();
        prop_assert!(sandbox.is_quiet(), "a core is lost");
    }
}
