use proptest::prelude::*;
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::control::Class::{BestEffort, LatencyCritical};
use tailwater_shm::{Generation, Grant, KthreadState};

use crate::config::Config;
use crate::fixture::{Deed, UNMANAGED, World};
use crate::runtime::EndReason;
use crate::stats::HandoffKind;

const BATCH: u32 = 0;
const SERVICE: u32 = 1;

/// One core; the batch job runs on it, the service is parked.
fn busy_batch() -> World {
    let mut world = World::new(1, Vec::new());
    world.add(BATCH, 1, 0, BestEffort);
    world.add(SERVICE, 1, 0, LatencyCritical);
    world.peer(BATCH).queue(0, 1);
    world.settle();
    assert_eq!(world.peer(BATCH).state(0), KthreadState::Running);
    world.deeds();
    world
}

/// Something arrives for the service.
fn arrival(world: &mut World) {
    let now = world.now;
    world.alloc.wakeup(RuntimeId(SERVICE), now);
    world.check();
}

#[test]
fn a_free_core_is_bound_granted_and_the_kthread_woken() {
    let mut world = World::new(1, Vec::new());
    world.add(SERVICE, 1, 0, LatencyCritical);
    let slot = world.peer(SERVICE).slots[0];
    let ticket = world.lot.slot(slot).ticket();
    arrival(&mut world);
    assert_eq!(world.peer(SERVICE).grant(0), (Grant::Run { core: 0 }, Generation(1)));
    assert_eq!(world.deeds(), [Deed::Bound { tid: 101, core: CoreId(0) }]);
    assert_ne!(world.lot.slot(slot).ticket(), ticket, "nobody woke it");
}

#[test]
fn a_busy_core_moves_by_two_words_and_no_system_call() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.deeds();
    let slot = world.peer(SERVICE).slots[0];
    assert!(matches!(world.peer(SERVICE).grant(0), (Grant::Run { core: 0 }, _)));
    assert_eq!(world.peer(BATCH).grant(0).0, Grant::Cede { next: Some(slot) });
    assert!(world.peer(BATCH).obey(0), "the batch job cedes");
    world.pass(200);
    assert!(world.peer(SERVICE).obey(0), "the service starts");
    world.pass(2_000);
    let h = world.alloc.stats.handoff(HandoffKind::Polling);
    assert_eq!((h.ceded.snapshot().len(), h.running.snapshot().len()), (1, 1));
    // Back and forth: bound already, so no thread is touched.
    for _ in 0..3 {
        world.peer(BATCH).queue(0, 1);
        world.tick();
        world.peer(SERVICE).go_idle(0);
        world.pass(100);
        assert_eq!(world.peer(SERVICE).state(0), KthreadState::Taken);
        world.obey();
        world.pass(100);
        world.obey();
        world.pass(100);
        assert_eq!(world.peer(BATCH).state(0), KthreadState::Running);
        world.peer(BATCH).queue(0, 0);
        arrival(&mut world);
        world.obey();
        world.pass(100);
        world.obey();
        world.pass(100);
    }
    assert_eq!(world.deeds(), []);
    assert_eq!(world.alloc.stats.handoff(HandoffKind::Idle).running.snapshot().len(), 3);
}

#[test]
fn an_idle_kthread_that_found_work_keeps_its_core() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.obey();
    world.pass(100);
    world.obey();
    world.pass(100);
    world.peer(BATCH).queue(0, 1);
    world.tick();
    // It idles and resumes between two looks at its state word; the observation says idle.
    world.peer(SERVICE).go_idle(0);
    assert!(world.peer(SERVICE).resume(0));
    world.tick();
    assert_eq!(world.peer(SERVICE).state(0), KthreadState::Running);
    assert!(matches!(world.peer(SERVICE).grant(0).0, Grant::Run { .. }), "a busy service was told to cede");
}

#[test]
fn a_kthread_that_does_not_poll_is_signalled_once_then_evicted() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.deeds();
    world.pass(4_000);
    assert_eq!(world.deeds(), [], "signalled within the grace time");
    world.pass(2_000);
    assert_eq!(world.deeds(), [Deed::Preempted { tid: 1 }]);
    world.pass(900_000);
    assert_eq!(world.deeds(), [], "signalled twice");
    let ticket = world.lot.slot(world.peers[&SERVICE].slots[0]).ticket();
    world.pass(100_000);
    assert_eq!(world.deeds(), [Deed::Bound { tid: 1, core: UNMANAGED }]);
    assert_eq!(world.peer(BATCH).grant(0).0, Grant::Cede { next: None });
    assert_ne!(world.lot.slot(world.peers[&SERVICE].slots[0]).ticket(), ticket, "nobody woke the successor");
    assert!(world.peer(SERVICE).obey(0));
    world.pass(1_000);
    assert_eq!(world.alloc.stats.handoff(HandoffKind::Evict).running.snapshot().len(), 1);
}

#[test]
fn a_kthread_that_is_evicted_before_it_was_signalled_is_signalled_then() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.deeds();
    // The IOKernel was away from within the grace time to after the deadline.
    world.pass(2_000_000);
    assert_eq!(world.deeds(), [Deed::Preempted { tid: 1 }, Deed::Bound { tid: 1, core: UNMANAGED }]);
}

#[test]
fn a_hand_off_that_needed_the_signal_is_counted_as_such() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.pass(6_000);
    world.obey();
    world.pass(100);
    world.obey();
    world.pass(100);
    assert_eq!(world.alloc.stats.handoff(HandoffKind::Signal).running.snapshot().len(), 1);
    assert!(world.alloc.stats.handoff(HandoffKind::Polling).running.snapshot().is_empty());
}

#[test]
fn an_evicted_kthread_that_parks_is_bound_anew_and_runs_again() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.pass(1_100_000);
    world.peer(SERVICE).obey(0);
    world.pass(100);
    world.peer(SERVICE).park(0);
    world.pass(100);
    world.deeds();
    // The core is free, the batch job has work, and is out in the cold.
    world.peer(BATCH).queue(0, 1);
    world.tick();
    world.tick();
    assert_eq!(world.deeds(), []);
    assert!(world.peer(BATCH).obey(0), "it cedes at last");
    world.tick();
    world.tick();
    assert_eq!(world.deeds(), [Deed::Bound { tid: 1, core: CoreId(0) }]);
    assert!(world.peer(BATCH).obey(0));
}

#[test]
fn repeated_evictions_cost_the_registration_unless_a_core_is_ceded_in_between() {
    let mut world = busy_batch();
    for round in 0..6 {
        arrival(&mut world);
        if round == 2 {
            world.obey();
            world.pass(100);
        } else {
            world.pass(1_100_000);
        }
        world.obey();
        world.pass(100);
        if !world.ended.is_empty() {
            break;
        }
        world.peer(SERVICE).park(0);
        world.peer(BATCH).queue(0, 1);
        world.settle();
    }
    assert_eq!(world.ended, [(RuntimeId(BATCH), EndReason::NeverYields(3))]);
    assert_eq!(world.alloc.stats.cores.evictions.get(), 5);
}

#[test]
fn a_successor_that_was_not_woken_is_woken_by_the_iokernel() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.peer(BATCH).obey(0);
    world.pass(100);
    let slot = world.peers[&SERVICE].slots[0];
    let ticket = world.lot.slot(slot).ticket();
    world.pass(15_000);
    assert_eq!(world.lot.slot(slot).ticket(), ticket, "woken before its time");
    world.pass(10_000);
    assert_ne!(world.lot.slot(slot).ticket(), ticket);
    assert_eq!(world.alloc.stats.cores.rewakes.get(), 1);
}

#[test]
fn a_victim_that_parked_unasked_at_that_moment_leaves_its_successor_to_the_iokernel() {
    let mut world = busy_batch();
    let slot = world.peers[&SERVICE].slots[0];
    let ticket = world.lot.slot(slot).ticket();
    world.peer(BATCH).park(0);
    arrival(&mut world);
    assert_ne!(world.lot.slot(slot).ticket(), ticket, "nobody wakes the successor");
    assert!(world.peer(SERVICE).obey(0));
    world.pass(100);
    assert_eq!(world.alloc.stats.handoff(HandoffKind::Wake).running.snapshot().len(), 2);
}

#[test]
fn a_kthread_that_never_starts_loses_the_core_and_is_left_alone_for_a_while() {
    let config = Config { start_deadline_us: 1_000, ..Config::default() };
    let mut world = World::with_config(1, Vec::new(), &config);
    world.add(BATCH, 1, 0, BestEffort);
    world.add(SERVICE, 1, 0, LatencyCritical);
    world.peer(BATCH).queue(0, 1);
    world.peer(SERVICE).queue(0, 1);
    world.tick();
    assert!(matches!(world.peer(SERVICE).grant(0).0, Grant::Run { .. }));
    world.pass(1_100_000);
    assert_eq!(world.alloc.stats.cores.no_starts.get(), 1);
    world.tick();
    assert!(world.peer(BATCH).obey(0), "the core went to somebody who wants it");
    world.pass(100);
    world.tick();
    assert_eq!(world.peer(SERVICE).grant(0).0, Grant::Cede { next: None }, "granted again at once");
    world.pass(11_000_000);
    world.tick();
    world.tick();
    assert!(matches!(world.peer(SERVICE).grant(0).0, Grant::Run { .. }), "never granted again");
}

#[test]
fn a_kthread_that_starts_late_and_does_not_cede_is_signalled_and_moved_off() {
    let config = Config { start_deadline_us: 2_000, ..Config::default() };
    let mut world = World::with_config(1, Vec::new(), &config);
    world.add(BATCH, 1, 0, BestEffort);
    world.peer(BATCH).queue(0, 1);
    world.tick();
    let (_, generation) = world.peer(BATCH).grant(0);
    world.pass(2_100_000);
    assert_eq!(world.alloc.stats.cores.no_starts.get(), 1);
    world.deeds();
    // It had read its grant before that was withdrawn, and never looks again.
    world.peer(BATCH).region.kthread(0).state.0.set_running(generation);
    world.pass(1_000);
    world.pass(6_000);
    assert_eq!(world.deeds(), [Deed::Preempted { tid: 1 }]);
    world.pass(1_000_000);
    assert_eq!(world.deeds(), [Deed::Bound { tid: 1, core: UNMANAGED }]);
    assert_eq!(world.alloc.stats.cores.evictions.get(), 1);
    // At last it parks, and is lent a core again.
    world.peer(BATCH).region.kthread(0).state.0.set_parked(generation);
    world.pass(20_000_000);
    world.tick();
    world.tick();
    assert_eq!(world.deeds(), [Deed::Bound { tid: 1, core: CoreId(0) }]);
}

#[test]
fn a_word_of_another_generation_is_ignored() {
    let mut world = busy_batch();
    arrival(&mut world);
    let stale = Generation(77);
    world.peer(BATCH).region.kthread(0).state.0.set_parked(stale);
    world.pass(100);
    assert_eq!(world.alloc.stats.handoff(HandoffKind::Polling).ceded.snapshot().len(), 0);
    world.pass(1_100_000);
    assert_eq!(world.alloc.stats.cores.evictions.get(), 1);
}

#[test]
fn a_victim_that_has_not_started_is_not_told_to_cede() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.peer(BATCH).obey(0);
    world.pass(100);
    // The service was granted the core and has not said so; somebody better comes.
    world.add(2, 1, 1, LatencyCritical);
    world.peer(2).queue(0, 1);
    world.tick();
    assert!(matches!(world.peer(SERVICE).grant(0).0, Grant::Run { .. }));
    assert!(world.alloc.stats.cores.not_started.get() > 0);
    // Overdue, it loses the core without being asked.
    world.pass(1_000_000);
    world.tick();
    assert_eq!(world.alloc.stats.cores.no_starts.get(), 1);
    assert!(world.peer(2).obey(0));
}

#[test]
fn the_successor_gets_the_core_when_the_victim_dies_in_the_middle() {
    let mut world = busy_batch();
    arrival(&mut world);
    let ticket = world.lot.slot(world.peers[&SERVICE].slots[0]).ticket();
    world.end(RuntimeId(BATCH));
    assert_ne!(world.lot.slot(world.peers[&SERVICE].slots[0]).ticket(), ticket);
    assert!(world.peer(SERVICE).obey(0));
    world.pass(100);
    assert_eq!(world.alloc.cores[0].id, CoreId(0));
    assert!(!world.alloc.is_quiet());
}

#[test]
fn the_victim_keeps_nothing_to_hand_on_when_the_successor_dies_in_the_middle() {
    let mut world = busy_batch();
    arrival(&mut world);
    world.end(RuntimeId(SERVICE));
    assert_eq!(world.peer(BATCH).grant(0).0, Grant::Cede { next: None });
    world.peer(BATCH).queue(0, 1);
    world.obey();
    world.settle();
    assert_eq!(world.peer(BATCH).state(0), KthreadState::Running, "it never got its core back");
}

#[test]
fn a_dead_runtime_leaves_its_threads_no_managed_core() {
    let mut world = busy_batch();
    world.end(RuntimeId(BATCH));
    assert_eq!(world.deeds(), [Deed::Bound { tid: 1, core: UNMANAGED }]);
    assert!(world.alloc.is_quiet());
}

#[test]
fn a_decision_for_a_thread_that_is_gone_is_dropped() {
    let mut world = busy_batch();
    world.kill_thread(101);
    arrival(&mut world);
    assert_eq!(world.alloc.stats.cores.rebind_failures.get(), 1);
    assert!(matches!(world.peer(BATCH).grant(0).0, Grant::Run { .. }));
}

#[test]
fn timers_and_submitted_work_wake_a_runtime_without_a_core() {
    use core::sync::atomic::Ordering::Relaxed;
    let mut world = World::new(2, Vec::new());
    world.add(0, 1, 0, LatencyCritical);
    world.add(1, 1, 0, LatencyCritical);
    let due = world.now + 30_000;
    world.peer(0).region.kthread(0).status.next_timer.store(due, Relaxed);
    world.tick();
    assert_eq!(world.alloc.earliest_timer(), due);
    assert_eq!(world.peer(0).grant(0).0, Grant::Park);
    world.pass(30_000);
    world.tick();
    assert!(matches!(world.peer(0).grant(0).0, Grant::Run { .. }));
    world.peer(1).region.kthread(0).status.overflow.store(1, Relaxed);
    world.tick();
    assert!(matches!(world.peer(1).grant(0).0, Grant::Run { .. }));
}

#[test]
fn a_look_that_comes_early_for_a_timer_serves_it_and_is_not_taken_for_congestion() {
    use core::sync::atomic::Ordering::Relaxed;
    let mut world = World::new(3, Vec::new());
    world.add(0, 2, 0, LatencyCritical);
    world.add(1, 1, 0, LatencyCritical);
    world.peer(0).queue(0, 1);
    world.tick();
    world.peer(0).queue(0, 0);
    world.obey();
    world.settle();
    world.peer(0).queue(0, 5);
    world.tick();
    let timer = world.now + 1_000;
    world.peer(1).region.kthread(0).status.next_timer.store(timer, Relaxed);
    world.pass(1_500);
    let now = world.now;
    world.alloc.tick(now);
    world.check();
    assert!(matches!(world.peer(1).grant(0).0, Grant::Run { .. }), "the timer is not served");
    assert_eq!(world.peer(0).grant(1).0, Grant::Park, "1.5 us in a queue taken for 5");
    world.tick();
    assert!(matches!(world.peer(0).grant(1).0, Grant::Run { .. }), "congestion is not seen");
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
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Ledger and phases stay consistent (checked inside every step) and no core is lost, whatever runtimes do and say.
    #[test]
    fn no_behaviour_of_runtimes_confuses_the_books(cores in 1u16..4, happenings in prop::collection::vec(happening(), 1..300)) {
        let mut world = World::new(cores, Vec::new());
        for happening in happenings {
            play(&mut world, happening);
        }
        // Everybody behaves from now on: in the end everybody with work who can have a core has one.
        world.settle();
        let ids: Vec<u32> = world.peers.keys().copied().collect();
        for id in ids {
            world.end(RuntimeId(id));
        }
        world.tick();
        prop_assert!(world.alloc.is_quiet(), "a core is lost");
    }
}

fn play(world: &mut World, happening: Happening) {
    let exists = |world: &World, r: u32, k: u16| {
        world.peers.get(&r).is_some_and(|p| usize::from(k) < p.kthreads.len())
    };
    match happening {
        Happening::Obey(r, k) if exists(world, r, k) => drop(world.peer(r).obey(k)),
        Happening::Idle(r, k) if exists(world, r, k) && world.peer(r).state(k) == KthreadState::Running => {
            world.peer(r).go_idle(k);
        }
        Happening::Resume(r, k) if exists(world, r, k) => drop(world.peer(r).resume(k)),
        Happening::Park(r, k) if exists(world, r, k) => world.peer(r).park(k),
        Happening::Queue(r, k, n) if exists(world, r, k) => world.peer(r).queue(k, n),
        Happening::Garbage(r, k, word) if exists(world, r, k) => {
            let status = &world.peer(r).region.kthread(k).status;
            status.next_timer.store(word, core::sync::atomic::Ordering::Relaxed);
            status.runq_head.store(word as u32, core::sync::atomic::Ordering::Relaxed);
            world.peer(r).region.kthread(k).state.0.set_idle(Generation((word >> 32) as u32 % 4));
        }
        Happening::Wakeup(r) => {
            let now = world.now;
            world.alloc.wakeup(RuntimeId(r), now);
            world.check();
        }
        Happening::Pass(ns) => world.pass(ns),
        Happening::Tick => world.tick(),
        Happening::End(r) if world.peers.contains_key(&r) => world.end(RuntimeId(r)),
        Happening::Add(r, k, best_effort) if !world.peers.contains_key(&r) => {
            world.add(r, k, 0, if best_effort { BestEffort } else { LatencyCritical });
        }
        _ => {}
    }
}
