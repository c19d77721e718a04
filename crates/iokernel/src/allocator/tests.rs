use proptest::prelude::*;
mod board;
mod looks;
mod partitions;
mod ranks;
mod refused_cores;
mod requests;
mod reserved;
mod stays;
mod steps;
mod wakes;
mod withdrawn;

use std::collections::HashMap;
use tailwater_sched::alloc::Action;
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::priority::Rank;
use tailwater_shm::{Generation, Grant, KthreadState, NextOwner};
use tailwater_stats::HandoffKind;

use super::{PollUrgency, Ranks};
use crate::config::Config;
use crate::fixture::{Deed, PARKER, Sandbox, UNMANAGED, measure_as};
use crate::world::Lender;
use ranks::{contest, ranks, rest};

pub(super) const BATCH: u32 = 0;
pub(super) const SERVICE: u32 = 1;

/// One core; the batch job runs on it, the service is parked.
pub(super) fn busy_batch() -> Sandbox {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.settle();
    assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
    sandbox.deeds();
    sandbox
}

/// The batch job has been asked to cede and does not: it is signalled and bypassed. The service
/// starts beside it.
pub(super) fn cedes_late(sandbox: &mut Sandbox) {
    sandbox.pass(6_000);
    sandbox.pass(21_000);
    sandbox.peer(SERVICE).obey(0);
    sandbox.pass(1_000);
}

/// Late time that the tenant of the best-effort program was charged for, in nanoseconds.
pub(super) fn late_ns(sandbox: &Sandbox) -> u64 {
    sandbox.world.runtimes.get(RuntimeId(BATCH)).unwrap().stats.counters.late_ns.get()
}

/// As [`cedes_late`]; it never cedes, and is moved off.
pub(super) fn never_cedes(sandbox: &mut Sandbox) {
    let before = sandbox.world.stats.cores.evictions.get();
    cedes_late(sandbox);
    sandbox.pass(sandbox.alloc.bounds.beside);
    assert_eq!(sandbox.world.stats.cores.evictions.get(), before + 1);
}

/// Something arrives for the service.
pub(super) fn arrival(sandbox: &mut Sandbox) {
    let now = sandbox.now;
    sandbox.alloc.wakeup(&mut sandbox.world, RuntimeId(SERVICE), now);
    sandbox.check();
}

#[test]
fn a_free_core_is_bound_granted_and_the_kthread_woken() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    let ticket = sandbox.peers[&SERVICE].ticket(0);
    arrival(&mut sandbox);
    assert_eq!(sandbox.peer(SERVICE).grant(0), (Grant::Run { core: 0 }, Generation(1)));
    assert_eq!(sandbox.deeds(), [Deed::Bound { tid: 101, core: CoreId(0) }]);
    assert_ne!(sandbox.peers[&SERVICE].ticket(0), ticket, "it was not woken");
}

#[test]
fn the_request_to_cede_says_whether_the_successor_sleeps() {
    for (asleep, successor) in [(1, NextOwner::Asleep), (0, NextOwner::Awake)] {
        let mut sandbox = busy_batch();
        sandbox.peer(SERVICE).scribble(PARKER, asleep << 32);
        arrival(&mut sandbox);
        assert_eq!(sandbox.peer(BATCH).grant(0).0, Grant::Cede { successor });
    }
}

#[test]
fn a_busy_core_moves_by_two_words_and_no_system_call() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.deeds();
    assert!(matches!(sandbox.peer(SERVICE).grant(0), (Grant::Run { core: 0 }, _)));
    assert_eq!(sandbox.peer(BATCH).grant(0).0, Grant::Cede { successor: NextOwner::Awake });
    assert!(sandbox.peer(BATCH).obey(0), "the batch job cedes");
    sandbox.pass(200);
    assert!(sandbox.peer(SERVICE).obey(0), "the service starts");
    sandbox.pass(2_000);
    let h = sandbox.world.stats.handoff(HandoffKind::Polling);
    assert_eq!((h.ceded.snapshot().len(), h.running.snapshot().len()), (1, 1));
    // Back and forth: bound already, so no thread is touched.
    for _ in 0..3 {
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.tick();
        sandbox.peer(SERVICE).go_idle(0);
        sandbox.pass(100);
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Taken);
        sandbox.obey();
        sandbox.pass(100);
        sandbox.obey();
        sandbox.pass(100);
        assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
        sandbox.peer(BATCH).queue(0, 0);
        arrival(&mut sandbox);
        sandbox.obey();
        sandbox.pass(100);
        sandbox.obey();
        sandbox.pass(100);
    }
    assert_eq!(sandbox.deeds(), []);
    assert_eq!(sandbox.world.stats.handoff(HandoffKind::Idle).running.snapshot().len(), 3);
}

#[test]
fn an_idle_kthread_that_found_work_keeps_its_core() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.obey();
    sandbox.pass(100);
    sandbox.obey();
    sandbox.pass(100);
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.tick();
    // It idles and resumes between two looks at its state word; the observation is idle.
    sandbox.peer(SERVICE).go_idle(0);
    assert!(sandbox.peer(SERVICE).resume(0));
    sandbox.tick();
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
    assert!(matches!(sandbox.peer(SERVICE).grant(0).0, Grant::Run { .. }), "a busy service got a Cede grant");
}

#[test]
fn an_idle_kthread_that_found_work_pays_for_the_decision_and_no_thread_is_bound_for_it() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    arrival(&mut sandbox);
    sandbox.obey();
    sandbox.pass(100);
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
    sandbox.deeds();
    let to = KthreadId::new(RuntimeId(BATCH), 0);
    let (runtime, victim) = (to.runtime, Some(KthreadId::new(RuntimeId(SERVICE), 0)));
    let action = Action::Grant { runtime, kthread: to, core: CoreId(0), victim, only_if_idle: true };
    let now = sandbox.now;
    measure_as(1_000);
    sandbox.alloc.apply(&mut sandbox.world, &action, now);
    measure_as(0);
    sandbox.check();
    assert_eq!(sandbox.deeds(), []);
    assert_eq!(sandbox.world.stats.cores.idle_lost.get(), 1);
    let charged = |id| sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.offence_ns.get();
    assert!(charged(SERVICE) > 0 && charged(BATCH) == 0);
}

#[test]
fn a_kthread_that_has_no_core_or_just_got_one_loses_none() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    let [to, victim] = [SERVICE, BATCH].map(|id| KthreadId::new(RuntimeId(id), 0));
    let (runtime, victim) = (to.runtime, Some(victim));
    let action = Action::Grant { runtime, kthread: to, core: CoreId(0), victim, only_if_idle: false };
    for _ in 0..2 {
        let now = sandbox.now;
        sandbox.alloc.apply(&mut sandbox.world, &action, now);
        sandbox.check();
        assert_eq!(sandbox.world.stats.cores.no_starts.get(), 0);
        assert_eq!(sandbox.peer(SERVICE).grant(0).1, Generation(0));
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.tick();
    }
    assert!(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }));
}

#[test]
fn a_kthread_that_does_not_poll_is_signalled_once_then_evicted() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.deeds();
    sandbox.pass(4_000);
    assert_eq!(sandbox.deeds(), [], "signalled within the grace time");
    sandbox.pass(2_000);
    assert_eq!(sandbox.deeds(), [Deed::Preempted { tid: 1 }]);
    sandbox.pass(21_000);
    assert!(sandbox.peer(SERVICE).obey(0), "the successor starts");
    sandbox.pass(900_000);
    assert_eq!(sandbox.deeds(), []);
    sandbox.pass(100_000);
    assert_eq!(sandbox.deeds(), [Deed::Bound { tid: 1, core: UNMANAGED }], "the service waited for 1 ms");
    sandbox.pass(900_000);
    assert_eq!(sandbox.deeds(), [], "signalled twice");
    assert_eq!(sandbox.peer(BATCH).grant(0).0, Grant::Cede { successor: NextOwner::None });
    assert_eq!(sandbox.world.stats.cores.evictions.get(), 1);
}

#[test]
fn one_that_does_not_cede_and_writes_another_generation_is_evicted_as_well() {
    for state in [KthreadState::Running, KthreadState::Parked] {
        let mut sandbox = busy_batch();
        arrival(&mut sandbox);
        let word = &sandbox.peer(BATCH).region.kthread(0).state.0;
        match state {
            KthreadState::Parked => word.set_parked(Generation(77)),
            _ => word.set_running(Generation(77)),
        }
        never_cedes(&mut sandbox);
        assert!(sandbox.deeds().contains(&Deed::Bound { tid: 1, core: UNMANAGED }), "{state:?}");
    }
}

#[test]
fn a_polling_thread_that_looks_late_signals_before_it_bypasses() {
    for late in [120_000, 4_000_000] {
        let mut sandbox = busy_batch();
        arrival(&mut sandbox);
        let ticket = sandbox.peers[&SERVICE].ticket(0);
        sandbox.deeds();
        // The IOKernel was away, in a slice or because Linux did not run it. Nor perhaps the owner.
        sandbox.pass(late);
        assert_eq!(sandbox.deeds(), [Deed::Preempted { tid: 1 }]);
        sandbox.pass(1_000);
        sandbox.pass(18_000);
        assert_eq!(sandbox.peers[&SERVICE].ticket(0), ticket, "bypassed while the signal was under way");
        let bypassed = |sandbox: &Sandbox| {
            let handoff = sandbox.world.stats.handoff(HandoffKind::Bypass);
            handoff.ceded.snapshot().len()
        };
        assert_eq!(bypassed(&sandbox), 0);
        sandbox.pass(late);
        assert_eq!(bypassed(&sandbox), 1);
        assert_ne!(sandbox.peers[&SERVICE].ticket(0), ticket, "the successor was not woken");
        assert!(sandbox.peer(BATCH).obey(0), "it cedes at last");
        sandbox.pass(late);
        assert!(sandbox.alloc.withdrawn.is_empty() && sandbox.ended.is_empty());
    }
}

#[test]
fn a_core_in_a_hand_off_needs_the_polling_thread_until_its_next_owner_has_had_time_to_start() {
    let mut sandbox = busy_batch();
    let hands_over = |sandbox: &Sandbox| sandbox.alloc.hands_over(sandbox.now);
    assert!(!hands_over(&sandbox));
    arrival(&mut sandbox);
    assert!(hands_over(&sandbox));
    sandbox.pass(4_000);
    assert!(hands_over(&sandbox));
    assert!(sandbox.peer(BATCH).obey(0));
    sandbox.pass(100);
    assert!(hands_over(&sandbox), "the next owner starts");
    sandbox.pass(21_000);
    assert!(!hands_over(&sandbox), "it waits for Linux");
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.pass(100);
    assert!(!hands_over(&sandbox));
}

#[test]
fn a_descheduled_owner_is_bypassed_and_runs_again_once_it_has_ceded() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    let ticket = sandbox.peers[&SERVICE].ticket(0);
    sandbox.pass(6_000);
    sandbox.pass(15_000);
    assert_eq!(sandbox.peers[&SERVICE].ticket(0), ticket, "woken while the signal was under way");
    sandbox.pass(6_000);
    assert_ne!(sandbox.peers[&SERVICE].ticket(0), ticket, "the successor was not woken");
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.pass(1_000);
    assert_eq!(sandbox.world.stats.handoff(HandoffKind::Bypass).running.snapshot().len(), 1);
    // Linux does not run the owner for a long time.
    sandbox.deeds();
    sandbox.pass(500_000_000);
    sandbox.pass(500_000_000);
    assert_eq!(sandbox.deeds(), [Deed::Bound { tid: 1, core: UNMANAGED }]);
    sandbox.peer(SERVICE).park(0);
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.tick();
    sandbox.tick();
    assert_eq!(
        sandbox.peer(BATCH).grant(0).0,
        Grant::Cede { successor: NextOwner::None },
        "granted before it ceded"
    );
    assert!(sandbox.peer(BATCH).obey(0), "it cedes at last");
    sandbox.settle();
    assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
    let batch = sandbox.world.runtimes.get(RuntimeId(BATCH)).unwrap();
    assert!(!sandbox.world.owes_cores(RuntimeId(BATCH), sandbox.now));
    // From the decision to the bypass, and from there until it is moved.
    assert_eq!(batch.stats.counters.late_ns.get(), 28_000 + sandbox.alloc.bounds.beside);
}

#[test]
fn only_best_effort_runtimes_without_a_hand_off_need_a_look_now_and_then() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    assert_eq!(sandbox.attention(), PollUrgency::None);
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.tick();
    assert_eq!(sandbox.attention(), PollUrgency::Constant, "the batch job starts");
    sandbox.obey();
    sandbox.tick();
    assert_eq!(sandbox.attention(), PollUrgency::Occasional);
    arrival(&mut sandbox);
    assert_eq!(sandbox.attention(), PollUrgency::Constant, "the core changes hands");
    sandbox.obey();
    sandbox.pass(100);
    sandbox.obey();
    sandbox.pass(100);
    assert_eq!(sandbox.attention(), PollUrgency::Constant, "the service has the core");
    sandbox.peer(BATCH).queue(0, 0);
    sandbox.tick();
    sandbox.peer(SERVICE).park(0);
    sandbox.tick();
    assert_eq!(sandbox.attention(), PollUrgency::None);
}

#[test]
fn a_hand_off_that_needed_the_signal_is_counted_as_such_and_charged() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.pass(6_000);
    sandbox.obey();
    sandbox.pass(100);
    sandbox.obey();
    sandbox.pass(100);
    assert_eq!(sandbox.world.stats.handoff(HandoffKind::Signal).running.snapshot().len(), 1);
    assert!(sandbox.world.stats.handoff(HandoffKind::Polling).running.snapshot().is_empty());
    assert_eq!(late_ns(&sandbox), 6_200, "what the service has waited");
}

#[test]
fn a_kthread_that_cedes_late_is_left_on_its_core_and_what_the_service_waited_is_charged() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    cedes_late(&mut sandbox);
    sandbox.deeds();
    assert!(sandbox.peer(BATCH).obey(0), "it cedes at last");
    sandbox.pass(1_000);
    assert!(sandbox.alloc.withdrawn.is_empty());
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.peer(SERVICE).park(0);
    sandbox.settle();
    assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
    assert_eq!(sandbox.deeds(), [], "it was bound all the time");
    let batch = sandbox.world.runtimes.get(RuntimeId(BATCH)).unwrap();
    assert_eq!(batch.stats.counters.late_ns.get(), 29_000, "until it was seen parked");
    assert_eq!(batch.stats.counters.evictions.get(), 0);
}

#[test]
fn a_kthread_that_parks_just_before_it_would_be_moved_soon_owes_too_much_and_is_moved_at_once() {
    const LOOK_US: u64 = 100;
    let mut sandbox = busy_batch();
    let evictions = |sandbox: &Sandbox| sandbox.world.stats.cores.evictions.get();
    let looks = sandbox.alloc.bounds.beside / (LOOK_US * 1_000) - 1;
    let mut beside = Vec::new();
    for _ in 0..4 {
        let before = evictions(&sandbox);
        arrival(&mut sandbox);
        cedes_late(&mut sandbox);
        let moved = (0..looks).find(|_| {
            let moved = evictions(&sandbox) > before;
            sandbox.pass(LOOK_US * 1_000);
            moved
        });
        beside.push(moved.unwrap_or(looks));
        assert!(sandbox.peer(BATCH).obey(0));
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.peer(SERVICE).park(0);
        sandbox.settle();
        sandbox.deeds();
    }
    // 1 ms is free.
    assert!((9..=11).contains(&beside[0]) && beside[1..] == [0; 3], "{beside:?} looks");
}

#[test]
fn a_kthread_that_runs_on_is_charged_for_the_time_in_which_a_service_has_its_core() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    cedes_late(&mut sandbox);
    let before = late_ns(&sandbox);
    sandbox.pass(300_000);
    assert_eq!(late_ns(&sandbox), before + 300_000);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(1_000);
    let parked = late_ns(&sandbox);
    sandbox.pass(300_000);
    assert_eq!(late_ns(&sandbox), parked, "no service waits");
    arrival(&mut sandbox);
    sandbox.peer(SERVICE).obey(0);
    sandbox.pass(200_000);
    assert_eq!(late_ns(&sandbox), parked + 200_000);
}

#[test]
fn a_claimant_that_is_slow_to_start_is_not_charged_to_the_kthread_that_has_ceded() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.pass(6_000);
    assert!(sandbox.peer(BATCH).obey(0), "it cedes after its signal");
    sandbox.pass(1_000);
    sandbox.pass(80_000);
    assert!(sandbox.peer(SERVICE).obey(0), "it starts at last");
    sandbox.pass(1_000);
    let batch = sandbox.world.runtimes.get(RuntimeId(BATCH)).unwrap();
    assert_eq!(batch.stats.counters.late_ns.get(), 7_000 + sandbox.alloc.bounds.rewake);
}

#[test]
fn a_kthread_whose_tenant_owes_too_much_is_moved_off_at_once() {
    let mut sandbox = busy_batch();
    for owed in [false, true] {
        arrival(&mut sandbox);
        cedes_late(&mut sandbox);
        let moved = sandbox.deeds().contains(&Deed::Bound { tid: 1, core: UNMANAGED });
        assert_eq!(moved, owed, "what it owes from the first time: {} ns", late_ns(&sandbox));
        sandbox.pass(sandbox.alloc.bounds.beside);
        assert!(
            late_ns(&sandbox) > sandbox.alloc.bounds.beside,
            "the time beside the service is charged, too"
        );
        assert!(sandbox.peer(BATCH).obey(0));
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.peer(SERVICE).park(0);
        sandbox.settle();
        sandbox.deeds();
    }
}

#[test]
fn an_evicted_kthread_that_parks_is_bound_anew_and_runs_again() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    never_cedes(&mut sandbox);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(100);
    sandbox.deeds();
    // The core is free, the batch job has work, and is out in the cold.
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.tick();
    sandbox.tick();
    assert_eq!(sandbox.deeds(), []);
    assert!(sandbox.peer(BATCH).obey(0), "it cedes at last");
    sandbox.tick();
    sandbox.tick();
    assert_eq!(sandbox.deeds(), [Deed::Bound { tid: 1, core: CoreId(0) }]);
    assert!(sandbox.peer(BATCH).obey(0));
}

#[test]
fn the_successor_is_woken_once_the_core_is_ceded_and_again_while_it_does_not_start() {
    let mut sandbox = busy_batch();
    let ticket = sandbox.peers[&SERVICE].ticket(0);
    arrival(&mut sandbox);
    sandbox.pass(100);
    assert_eq!(sandbox.peers[&SERVICE].ticket(0), ticket, "woken beside the owner");
    sandbox.peer(BATCH).obey(0);
    sandbox.pass(100);
    assert_ne!(sandbox.peers[&SERVICE].ticket(0), ticket, "not woken");
    let ticket = sandbox.peers[&SERVICE].ticket(0);
    sandbox.pass(15_000);
    assert_eq!(sandbox.peers[&SERVICE].ticket(0), ticket, "woken before its time");
    sandbox.pass(10_000);
    assert_ne!(sandbox.peers[&SERVICE].ticket(0), ticket);
    assert_eq!(sandbox.world.stats.cores.rewakes.get(), 1);
    (0..975).for_each(|_| sandbox.pass(1_000));
    assert_eq!(sandbox.world.stats.cores.rewakes.get(), 5, "the pauses double");
}

#[test]
fn a_victim_that_parked_unasked_at_that_moment_leaves_its_successor_to_the_iokernel() {
    let mut sandbox = busy_batch();
    let ticket = sandbox.peers[&SERVICE].ticket(0);
    sandbox.peer(BATCH).park(0);
    arrival(&mut sandbox);
    assert_ne!(sandbox.peers[&SERVICE].ticket(0), ticket, "the successor was not woken");
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.pass(100);
    assert_eq!(sandbox.world.stats.handoff(HandoffKind::Wake).running.snapshot().len(), 2);
}

#[test]
fn a_kthread_that_never_starts_loses_the_core_and_is_left_alone_for_a_while() {
    let config = Config { start_deadline_us: 1_000, ..Config::default() };
    let mut sandbox = Sandbox::with_config(1, Vec::new(), &config);
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.tick();
    assert!(matches!(sandbox.peer(SERVICE).grant(0).0, Grant::Run { .. }));
    sandbox.pass(1_100_000);
    assert_eq!(sandbox.world.stats.cores.no_starts.get(), 1);
    sandbox.tick();
    assert!(sandbox.peer(BATCH).obey(0), "the core went to a runtime with work");
    sandbox.pass(100);
    sandbox.tick();
    assert_eq!(
        sandbox.peer(SERVICE).grant(0).0,
        Grant::Cede { successor: NextOwner::None },
        "granted again at once"
    );
    sandbox.pass(11_000_000);
    sandbox.tick();
    sandbox.tick();
    assert!(matches!(sandbox.peer(SERVICE).grant(0).0, Grant::Run { .. }), "never granted again");
}

/// Lets a service handle requests that come 25 us apart, each as soon as it has the core. Returns
/// before how many of them the core was the batch job's, which does not start on it.
fn requests_beside_a_sleeper(sandbox: &mut Sandbox, requests: u32) -> u32 {
    let mut taken = 0;
    for _ in 0..requests {
        sandbox.pass(20_000);
        taken += u32::from(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }));
        if sandbox.peer(SERVICE).state(0) != KthreadState::Idle {
            arrival(sandbox);
            sandbox.peer(SERVICE).obey(0);
        } else {
            assert!(sandbox.peer(SERVICE).resume(0));
        }
        sandbox.tick();
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
        sandbox.peer(SERVICE).go_idle(0);
        sandbox.pass(100);
        sandbox.peer(SERVICE).obey(0);
        sandbox.pass(100);
    }
    taken
}

#[test]
fn a_batch_job_whose_wakes_do_nothing_gets_few_of_the_cores_that_a_service_leaves_for_a_moment() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(BATCH).queue(0, 1);
    requests_beside_a_sleeper(&mut sandbox, 1_000);
    let taken = requests_beside_a_sleeper(&mut sandbox, 10_000);
    // One in a millisecond of 250 to 300.
    assert!((200..=310).contains(&taken), "before {taken} of 10000 requests");
    // A free core is lent to it at once, also after many wasted grants.
    sandbox.peer(SERVICE).park(0);
    sandbox.tick();
    sandbox.pass(15_000_000);
    arrival(&mut sandbox);
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.tick();
    sandbox.peer(SERVICE).park(0);
    sandbox.tick();
    sandbox.settle();
    assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
}

#[test]
fn cores_that_the_programs_of_one_user_do_not_start_on_count_together() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    let (mine, other, service) = ([0, 2], 3, RuntimeId(SERVICE));
    mine.into_iter().for_each(|id| sandbox.add_of(Some(7), id, 1, 0, BestEffort));
    sandbox.add_of(Some(8), other, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    for claim in 0..51 {
        let (now, kthread) = (sandbox.now, KthreadId::new(RuntimeId(mine[claim % 2]), 0));
        sandbox.alloc.charge_wait(&mut sandbox.world, kthread, service, 20_000, now);
    }
    sandbox.tick();
    let demoted = |id| sandbox.alloc.observation.runtime(RuntimeId(id)).unwrap().is_demoted();
    assert_eq!([mine[0], mine[1], other].map(demoted), [true, true, false]);
}

#[test]
fn a_service_that_is_bypassed_pays_and_one_that_answers_the_signal_does_not() {
    const LATE: u32 = 2;
    for (tenant, answers, pays) in [(8, false, true), (8, true, false), (7, false, false)] {
        let mut sandbox = Sandbox::new(1, Vec::new());
        sandbox.add_of(Some(7), LATE, 1, 0, LatencyCritical);
        sandbox.add_of(Some(tenant), SERVICE, 1, 0, LatencyCritical);
        sandbox.peer(LATE).queue(0, 1);
        sandbox.settle();
        // Longer than its quantum.
        sandbox.pass(1_000_000);
        arrival(&mut sandbox);
        sandbox.pass(6_000);
        if answers {
            assert!(sandbox.peer(LATE).obey(0), "it was not asked");
        }
        sandbox.pass(21_000);
        assert!(sandbox.peer(SERVICE).obey(0));
        sandbox.pass(1_000);
        let late_ns = sandbox.world.runtimes.get(RuntimeId(LATE)).unwrap().stats.counters.late_ns.get();
        assert_eq!(late_ns > 0, pays, "{late_ns} ns, tenant {tenant}");
    }
}

#[test]
fn services_pay_once_their_cores_are_taken_from_them_while_a_service_of_another_tenant_waits() {
    for (tenant, waits, demoted, pays) in
        [(8, true, false, true), (8, false, false, false), (8, true, true, false), (7, true, false, false)]
    {
        let mut sandbox = Sandbox::new(1, Vec::new());
        // The next owner of the core is of the same tenant.
        (0..2).for_each(|id| sandbox.add_of(Some(7), id, 1, 0, LatencyCritical));
        sandbox.add_of(Some(tenant), 3, 1, 0, LatencyCritical);
        sandbox.peer(0).queue(0, 1);
        sandbox.peer(3).queue(0, u32::from(waits));
        sandbox.tick();
        sandbox.alloc.observation.set_demoted(RuntimeId(3), demoted);
        (0..51).for_each(|_| {
            sandbox.alloc.charge_late_service(&mut sandbox.world, 0, RuntimeId(0), None, 20_000, sandbox.now);
        });
        assert_eq!(sandbox.world.owes_cores(RuntimeId(0), sandbox.now), pays, "{tenant} {waits} {demoted}");
    }
}

#[test]
fn a_service_does_not_wait_for_a_program_that_has_not_started_on_too_many_cores() {
    for (claims, at_once) in [(50, false), (51, true)] {
        let mut sandbox = Sandbox::new(1, Vec::new());
        sandbox.add(BATCH, 1, 0, BestEffort);
        sandbox.add(SERVICE, 1, 0, LatencyCritical);
        for _ in 0..claims {
            let (now, kthread) = (sandbox.now, KthreadId::new(RuntimeId(BATCH), 0));
            sandbox.alloc.charge_wait(&mut sandbox.world, kthread, RuntimeId(SERVICE), 20_000, now);
        }
        // It is lent the free core, and woken.
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.tick();
        assert!(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }));
        sandbox.pass(1_000);
        arrival(&mut sandbox);
        let has_core = matches!(sandbox.peer(SERVICE).grant(0).0, Grant::Run { .. });
        assert_eq!(has_core, at_once, "after {claims}");
    }
}

#[test]
fn a_stopped_service_with_work_is_left_alone_ever_longer_and_gets_a_core_when_it_goes_on() {
    let config = Config { start_deadline_us: 2_000, ..Config::default() };
    let mut sandbox = Sandbox::with_config(1, Vec::new(), &config);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(SERVICE).queue(0, 1);
    let mut pauses = Vec::new();
    for round in 0..6 {
        sandbox.tick();
        sandbox.tick();
        assert!(matches!(sandbox.peer(SERVICE).grant(0).0, Grant::Run { .. }), "not lent a core");
        sandbox.pass(1_500_000);
        sandbox.tick();
        let watched = if round == 0 { PollUrgency::Constant } else { PollUrgency::Occasional };
        assert_eq!(sandbox.attention(), watched, "start {round}");
        sandbox.pass(600_000);
        sandbox.tick();
        assert!(sandbox.is_quiet() && sandbox.alloc.has_free_core());
        let end = sandbox.alloc.next_readmission(sandbox.now).expect("a pause");
        pauses.push(end - sandbox.now);
        sandbox.pass(end - sandbox.now);
    }
    assert_eq!(sandbox.world.stats.cores.no_starts.get(), 6);
    assert!(pauses[5] > 300_000_000, "the pauses do not grow: {pauses:?}");
    sandbox.tick();
    sandbox.tick();
    assert!(sandbox.peer(SERVICE).obey(0), "it goes on");
    sandbox.tick();
    assert_eq!(
        (sandbox.attention(), sandbox.alloc.next_readmission(sandbox.now)),
        (PollUrgency::Constant, None)
    );
}

#[test]
fn a_service_stopped_on_its_core_does_not_keep_the_polling_thread_awake_after_it_was_bypassed() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, LatencyCritical);
    sandbox.add(SERVICE, 1, 1, LatencyCritical);
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.settle();
    arrival(&mut sandbox);
    // The victim, stopped, does nothing; its successor starts beside it, and parks.
    sandbox.pass(1_000_000);
    sandbox.pass(1_000_000);
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.peer(BATCH).queue(0, 0);
    sandbox.tick();
    sandbox.peer(SERVICE).park(0);
    sandbox.tick();
    assert_eq!(sandbox.attention(), PollUrgency::Constant, "it is about to be moved off");
    sandbox.pass(sandbox.alloc.bounds.beside);
    assert_eq!(sandbox.attention(), PollUrgency::Occasional);
    // At last it parks.
    sandbox.peer(BATCH).park(0);
    sandbox.tick();
    assert_eq!(sandbox.attention(), PollUrgency::None);
}

#[test]
fn a_kthread_that_starts_late_and_does_not_cede_is_signalled_and_moved_off() {
    let config = Config { start_deadline_us: 2_000, ..Config::default() };
    let mut sandbox = Sandbox::with_config(1, Vec::new(), &config);
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.tick();
    let (_, generation) = sandbox.peer(BATCH).grant(0);
    sandbox.pass(2_100_000);
    assert_eq!(sandbox.world.stats.cores.no_starts.get(), 1);
    sandbox.deeds();
    // It had read its grant before that was withdrawn, and never looks again.
    sandbox.peer(BATCH).region.kthread(0).state.0.set_running(generation);
    sandbox.pass(1_000);
    sandbox.pass(6_000);
    assert_eq!(sandbox.deeds(), [Deed::Preempted { tid: 1 }]);
    sandbox.pass(sandbox.alloc.bounds.beside);
    assert_eq!(sandbox.deeds(), [Deed::Bound { tid: 1, core: UNMANAGED }]);
    assert_eq!(sandbox.world.stats.cores.evictions.get(), 1);
    // At last it parks, and is lent a core again.
    sandbox.peer(BATCH).region.kthread(0).state.0.set_parked(generation);
    sandbox.pass(20_000_000);
    sandbox.tick();
    sandbox.tick();
    assert_eq!(sandbox.deeds(), [Deed::Bound { tid: 1, core: CoreId(0) }]);
}

#[test]
fn a_word_of_another_generation_is_ignored() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    let stale = Generation(77);
    sandbox.peer(BATCH).region.kthread(0).state.0.set_parked(stale);
    sandbox.pass(100);
    assert_eq!(sandbox.world.stats.handoff(HandoffKind::Polling).ceded.snapshot().len(), 0);
    sandbox.pass(6_000);
    sandbox.pass(21_000);
    assert_eq!(sandbox.world.stats.handoff(HandoffKind::Bypass).ceded.snapshot().len(), 1);
}

#[test]
fn a_victim_that_has_not_started_is_not_told_to_cede() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.peer(BATCH).obey(0);
    sandbox.pass(100);
    // The service was granted the core and is not seen running; a runtime with a better claim
    // comes.
    sandbox.add(2, 1, 1, LatencyCritical);
    sandbox.peer(2).queue(0, 1);
    sandbox.tick();
    assert!(matches!(sandbox.peer(SERVICE).grant(0).0, Grant::Run { .. }));
    // Overdue, it loses the core without being asked.
    sandbox.pass(5_000);
    sandbox.tick();
    assert_eq!(sandbox.world.stats.cores.no_starts.get(), 1);
    assert!(sandbox.peer(2).obey(0));
}

#[test]
fn a_kthread_whose_core_was_ceded_late_has_its_time_to_start_all_the_same() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.peer(SERVICE).queue(0, 0);
    sandbox.tick();
    // The core of the idle service is lent to the batch job. It takes its time to cede.
    sandbox.peer(SERVICE).go_idle(0);
    sandbox.pass(100);
    assert!(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }));
    sandbox.pass(15_000);
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.pass(100);
    arrival(&mut sandbox);
    assert!(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }), "it lost the core at once");
    let late = |sandbox: &Sandbox| {
        let batch = sandbox.world.runtimes.get(RuntimeId(BATCH)).unwrap();
        batch.stats.counters.late_ns.get()
    };
    assert_eq!(late(&sandbox), 0);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.pass(10_100);
    sandbox.tick();
    sandbox.tick();
    assert!(matches!(sandbox.peer(SERVICE).grant(0).0, Grant::Run { .. }), "overdue");
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.pass(100);
    assert!((10_000..30_000).contains(&late(&sandbox)), "{}", late(&sandbox));
}

#[test]
fn the_successor_gets_the_core_when_the_victim_dies_in_the_middle() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    let ticket = sandbox.peers[&SERVICE].ticket(0);
    sandbox.end(RuntimeId(BATCH));
    assert_ne!(sandbox.peers[&SERVICE].ticket(0), ticket);
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.pass(100);
    assert_eq!(sandbox.alloc.cores[0].id, CoreId(0));
    assert!(!sandbox.is_quiet());
}

#[test]
fn the_victim_keeps_nothing_to_hand_on_when_the_successor_dies_in_the_middle() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.end(RuntimeId(SERVICE));
    assert_eq!(sandbox.peer(BATCH).grant(0).0, Grant::Cede { successor: NextOwner::None });
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.obey();
    sandbox.settle();
    assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running, "it never got its core back");
}

#[test]
fn a_dead_runtime_leaves_its_threads_no_managed_core() {
    let mut sandbox = busy_batch();
    sandbox.end(RuntimeId(BATCH));
    let told = Deed::Bound { tid: 101, core: CoreId(0) };
    assert_eq!(sandbox.deeds(), [Deed::Bound { tid: 1, core: UNMANAGED }, told], "the service is told");
}

#[test]
fn a_decision_for_a_thread_that_is_gone_is_dropped() {
    let mut sandbox = busy_batch();
    sandbox.kill_thread(101);
    arrival(&mut sandbox);
    assert_eq!(sandbox.world.stats.cores.rebind_failures.get(), 1);
    assert!(matches!(sandbox.peer(BATCH).grant(0).0, Grant::Run { .. }));
}

#[test]
fn timers_and_submitted_work_wake_a_runtime_without_a_core() {
    use core::sync::atomic::Ordering::Relaxed;
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(0, 1, 0, LatencyCritical);
    sandbox.add(1, 1, 0, LatencyCritical);
    let due = sandbox.now + 30_000;
    sandbox.peer(0).region.kthread(0).status.next_timer.store(due, Relaxed);
    sandbox.tick();
    assert_eq!(sandbox.alloc.earliest_timer(), due);
    assert_eq!(sandbox.peer(0).grant(0).0, Grant::Park);
    sandbox.pass(30_000);
    sandbox.tick();
    assert!(matches!(sandbox.peer(0).grant(0).0, Grant::Run { .. }));
    sandbox.peer(1).region.kthread(0).status.overflow.store(1, Relaxed);
    sandbox.tick();
    assert!(matches!(sandbox.peer(1).grant(0).0, Grant::Run { .. }));
}

#[test]
fn a_look_that_comes_early_for_a_timer_serves_it_and_is_not_taken_for_congestion() {
    use core::sync::atomic::Ordering::Relaxed;
    let mut sandbox = Sandbox::new(3, Vec::new());
    sandbox.add(0, 2, 0, LatencyCritical);
    sandbox.add(1, 1, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    sandbox.tick();
    sandbox.peer(0).queue(0, 0);
    sandbox.obey();
    sandbox.settle();
    sandbox.peer(0).queue(0, 5);
    sandbox.tick();
    let timer = sandbox.now + 1_000;
    sandbox.peer(1).region.kthread(0).status.next_timer.store(timer, Relaxed);
    sandbox.pass(1_500);
    let now = sandbox.now;
    sandbox.alloc.tick(&mut sandbox.world, now);
    sandbox.check();
    assert!(matches!(sandbox.peer(1).grant(0).0, Grant::Run { .. }), "the timer is not served");
    assert_eq!(sandbox.peer(0).grant(1).0, Grant::Park, "1.5 us in a queue taken for 5");
    sandbox.tick();
    assert!(matches!(sandbox.peer(0).grant(1).0, Grant::Run { .. }), "congestion is not seen");
}

#[test]
fn a_change_that_a_look_finds_before_the_sleep_is_news_after_it() {
    let mut sandbox = busy_batch();
    let has_news = |sandbox: &mut Sandbox| {
        let now = sandbox.now;
        sandbox.alloc.has_news(&mut sandbox.world, RuntimeId(BATCH), now)
    };
    sandbox.alloc.note_words(&mut sandbox.world);
    assert!(!has_news(&mut sandbox));
    sandbox.peer(BATCH).queue(0, 2);
    let now = sandbox.now;
    sandbox.alloc.look_at_all(&mut sandbox.world, now);
    assert!(has_news(&mut sandbox), "a word");
    sandbox.peer(BATCH).queue(0, 0);
    sandbox.tick();
    sandbox.alloc.note_words(&mut sandbox.world);
    assert!(!has_news(&mut sandbox));
    sandbox.peer(BATCH).park(0);
    sandbox.pass(100);
    assert!(has_news(&mut sandbox), "a core given up");
    sandbox.alloc.note_words(&mut sandbox.world);
    assert!(!has_news(&mut sandbox));
}

#[test]
fn words_that_change_in_opposite_directions_are_news() {
    use core::sync::atomic::Ordering::Relaxed;
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(BATCH, 2, 0, BestEffort);
    let later = sandbox.now + 1_000_000_000;
    let becomes = |sandbox: &mut Sandbox, timers: [u64; 2], head: u32, requests: u64| {
        sandbox.alloc.note_words(&mut sandbox.world);
        for (kthread, at) in (0..).zip(timers) {
            sandbox.peer(BATCH).region.kthread(kthread).status.next_timer.store(at, Relaxed);
        }
        let status = &sandbox.peer(BATCH).region.kthread(0).status;
        status.runq_head.store(head, Relaxed);
        status.runq_tail.store(head, Relaxed);
        status.requests.store(requests, Relaxed);
        let now = sandbox.now;
        sandbox.alloc.has_news(&mut sandbox.world, RuntimeId(BATCH), now)
    };
    assert!(becomes(&mut sandbox, [later, u64::MAX], 0, 2));
    assert!(!becomes(&mut sandbox, [later, u64::MAX], 0, 2));
    assert!(becomes(&mut sandbox, [u64::MAX, later], 0, 2), "a timer that moves to another kthread");
    assert!(becomes(&mut sandbox, [u64::MAX, later], 1, 0), "two cores fewer, two positions more");
}

/// What the property test lets happen.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Obey(u32, u16),
    Idle(u32, u16),
    Resume(u32, u16),
    Park(u32, u16),
    Queue(u32, u16, u32),
    Garbage(u32, u16, u64),
    Wakeup(u32),
    Pass(u64),
    Tick,
    End(u32),
    Add(u32, u16, bool),
    Contest(bool),
    Sleep,
    Rest,
}

fn happening() -> impl Strategy<Value = Happening> {
    let who = || (0u32..4, 0u16..3);
    prop_oneof![
        12 => who().prop_map(|(r, k)| Happening::Obey(r, k)),
        3 => who().prop_map(|(r, k)| Happening::Idle(r, k)),
        2 => who().prop_map(|(r, k)| Happening::Resume(r, k)),
        2 => who().prop_map(|(r, k)| Happening::Park(r, k)),
        4 => (who(), 0u32..3).prop_map(|((r, k), n)| Happening::Queue(r, k, n)),
        1 => (who(), any::<u64>()).prop_map(|((r, k), word)| Happening::Garbage(r, k, word)),
        4 => (0u32..4).prop_map(Happening::Wakeup),
        8 => prop_oneof![4 => 0u64..10_000, 1 => Just(1_200_000u64), 1 => Just(120_000_000)].prop_map(Happening::Pass),
        6 => Just(Happening::Tick),
        1 => (0u32..4).prop_map(Happening::End),
        2 => (0u32..4, 1u16..=3, any::<bool>()).prop_map(|(r, k, be)| Happening::Add(r, k, be)),
        1 => any::<bool>().prop_map(Happening::Contest),
        1 => Just(Happening::Sleep),
        6 => Just(Happening::Rest),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Ledger and phases stay consistent (checked inside every step) and no core is lost, whatever
    /// runtimes do and write.
    #[test]
    fn no_behaviour_of_runtimes_confuses_the_books(cores in 1u16..4, happenings in prop::collection::vec(happening(), 1..300)) {
        let mut sandbox = Sandbox::new(cores, Vec::new());
        sandbox.alloc.allow_ranks(Ranks { may_lower: true, for_good: false, real_time: true });
        let mut given = HashMap::new();
        for happening in happenings {
            play(&mut sandbox, happening);
            given.extend(ranks(&mut sandbox));
        }
        // All runtimes behave from now on: in the end each with work that can have a core has one.
        sandbox.settle();
        let ids: Vec<u32> = sandbox.peers.keys().copied().collect();
        for id in ids {
            sandbox.end(RuntimeId(id));
        }
        sandbox.tick();
        prop_assert!(sandbox.is_quiet(), "a core is lost");
        given.extend(ranks(&mut sandbox));
        let left: Vec<_> = given.into_iter().filter(|&(_, rank)| rank != Rank::Ordinary).collect();
        prop_assert_eq!(left, [], "ranks are left behind");
    }
}

fn play(sandbox: &mut Sandbox, happening: Happening) {
    let exists = |sandbox: &Sandbox, r: u32, k: u16| {
        sandbox.peers.get(&r).is_some_and(|p| usize::from(k) < p.kthreads.len())
    };
    match happening {
        Happening::Obey(r, k) if exists(sandbox, r, k) => drop(sandbox.peer(r).obey(k)),
        Happening::Idle(r, k)
            if exists(sandbox, r, k) && sandbox.peer(r).state(k) == KthreadState::Running =>
        {
            sandbox.peer(r).go_idle(k);
        }
        Happening::Resume(r, k) if exists(sandbox, r, k) => drop(sandbox.peer(r).resume(k)),
        Happening::Park(r, k) if exists(sandbox, r, k) => sandbox.peer(r).park(k),
        Happening::Queue(r, k, n) if exists(sandbox, r, k) => sandbox.peer(r).queue(k, n),
        Happening::Garbage(r, k, word) if exists(sandbox, r, k) => {
            let status = &sandbox.peer(r).region.kthread(k).status;
            status.next_timer.store(word, core::sync::atomic::Ordering::Relaxed);
            status.runq_head.store(word as u32, core::sync::atomic::Ordering::Relaxed);
            status.hosted.store(word as u32 % 3, core::sync::atomic::Ordering::Relaxed);
            sandbox.peer(r).region.kthread(k).state.0.set_idle(Generation((word >> 32) as u32 % 4));
        }
        Happening::Wakeup(r) => {
            let now = sandbox.now;
            sandbox.alloc.wakeup(&mut sandbox.world, RuntimeId(r), now);
            sandbox.check();
        }
        Happening::Pass(ns) => sandbox.pass(ns),
        Happening::Tick => sandbox.tick(),
        Happening::End(r) if sandbox.peers.contains_key(&r) => sandbox.end(RuntimeId(r)),
        Happening::Contest(contested) => contest(sandbox, contested),
        Happening::Sleep => sandbox.alloc.lower_best_effort(&mut sandbox.world),
        Happening::Rest => rest(sandbox),
        Happening::Add(r, k, best_effort) if !sandbox.peers.contains_key(&r) => {
            sandbox.add(r, k, 0, if best_effort { BestEffort } else { LatencyCritical });
        }
        _ => {}
    }
}
