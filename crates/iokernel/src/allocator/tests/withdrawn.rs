//! Programs whose kthreads keep their cores, one kthread after the other.

use core::sync::atomic::Ordering::Relaxed;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::{Grant, KthreadState};

use crate::fixture::Sandbox;
use crate::world::Lender;

const SERVICE: u32 = 100;

/// The service claims the core of a sleeping kthread, answers beside it, and parks.
fn claim(sandbox: &mut Sandbox) {
    sandbox.pass(1_000);
    let now = sandbox.now;
    sandbox.alloc.wakeup(&mut sandbox.world, RuntimeId(SERVICE), now);
    // Until it is signalled, until it is bypassed.
    [6_000, 20_000, 1_000].into_iter().for_each(|ns| sandbox.pass(ns));
    if sandbox.peer(SERVICE).obey(0) {
        sandbox.pass(1_000);
        sandbox.peer(SERVICE).park(0);
    }
    sandbox.pass(1_000);
}

/// Returns how many kthreads of this program have kept a core that they were to cede, or keep one
/// still. Each that was lent a core has started, and blocks the signal.
fn keeps(sandbox: &mut Sandbox, id: u32) -> usize {
    let kthreads = sandbox.peer(id).kthreads.len() as u16;
    let mut running = 0;
    for k in 0..kthreads {
        if matches!(sandbox.peer(id).grant(k).0, Grant::Run { .. }) {
            sandbox.peer(id).obey(k);
        }
        running += usize::from(sandbox.peer(id).state(k) == KthreadState::Running);
    }
    running
}

#[test]
fn a_program_that_has_its_kthreads_bypassed_one_after_the_other_is_lent_no_more_cores() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, 256, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    (0..256).for_each(|k| sandbox.peer(0).queue(k, 1));
    for _ in 0..300 {
        (0..3).for_each(|_| sandbox.tick());
        keeps(&mut sandbox, 0);
        claim(&mut sandbox);
    }
    let most = keeps(&mut sandbox, 0);
    assert!((2..=4).contains(&most), "{most} kthreads keep their cores");
    // One cedes at last: there is a core for one again.
    let late = (0..256).find(|&k| sandbox.peer(0).state(k) == KthreadState::Running).unwrap();
    assert!(sandbox.peer(0).obey(late));
    (0..20).for_each(|_| sandbox.tick());
    assert!((0..256).any(|k| matches!(sandbox.peer(0).grant(k).0, Grant::Run { .. })));
}

#[test]
fn a_program_that_keeps_its_cores_stays_registered_and_gets_none_of_an_idle_service() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(0, 64, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    (0..64).for_each(|k| sandbox.peer(0).queue(k, 1));
    let late = |sandbox: &Sandbox| sandbox.world.owes_cores(RuntimeId(0), sandbox.now);
    let mut claims = 0;
    while !late(&sandbox) {
        let now = sandbox.now;
        sandbox.alloc.charge_wait(
            &mut sandbox.world,
            KthreadId::new(RuntimeId(0), 0),
            RuntimeId(SERVICE),
            27_000,
            now,
        );
        claims += 1;
    }
    // Each is paid in 27 us times 50, half of that with two cores.
    assert!((70..=80).contains(&claims), "{claims}");
    let owes = sandbox.now + 25_000_000;
    assert!(sandbox.ended.is_empty() && late(&sandbox));
    sandbox.now = owes;
    assert!(!late(&sandbox), "it has paid");
}

#[test]
fn the_words_of_a_program_that_can_be_lent_no_core_are_not_read_until_its_kthread_is_back() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    (0..3).for_each(|_| sandbox.tick());
    assert!(sandbox.peer(0).obey(0));
    claim(&mut sandbox);
    let seen = |sandbox: &Sandbox| {
        sandbox.world.runtimes.get(RuntimeId(0)).map(|runtime| runtime.stats.counters.lost_wakes.get())
    };
    sandbox.peer(0).region.kthread(0).status.lost_wakes.store(7, Relaxed);
    (0..3).for_each(|_| sandbox.tick());
    assert_eq!(seen(&sandbox), Some(0));
    assert!(sandbox.peer(0).obey(0), "it cedes");
    (0..3).for_each(|_| sandbox.tick());
    assert_eq!(seen(&sandbox), Some(7));
}

/// A service is lent the core in each pause of another one, which then has work again, and does not
/// start for `alone` ns before that. Returns after how many ticks the other one is lent the core,
/// for each time, and whether the one that does not start owes too much then.
fn waits_for_one_that_does_not_start(user: Option<u32>, alone: u64) -> (Vec<u32>, bool) {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add_of(user, 0, 1, 0, LatencyCritical);
    sandbox.add_of(user, SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    let wait = |_| {
        (0..3).for_each(|_| sandbox.tick());
        assert!(matches!(sandbox.peer(0).grant(0).0, Grant::Run { .. }));
        sandbox.pass(alone);
        sandbox.peer(SERVICE).queue(0, 1);
        let now = sandbox.now;
        sandbox.alloc.wakeup(&mut sandbox.world, RuntimeId(SERVICE), now);
        let mut ticks = 0;
        while !sandbox.peer(SERVICE).obey(0) {
            sandbox.tick();
            ticks += 1;
            assert!(ticks < 40, "the service is lent no core");
        }
        sandbox.pass(1_000);
        sandbox.peer(SERVICE).queue(0, 0);
        sandbox.peer(SERVICE).park(0);
        sandbox.pass(1_000);
        ticks
    };
    let waits = (0..20).map(wait).collect();
    (waits, sandbox.world.owes_cores(RuntimeId(0), sandbox.now))
}

#[test]
fn a_service_that_does_not_start_pays_for_what_one_of_another_tenant_waits() {
    // Most of a quantum of the services each time, until a millisecond is owed.
    let (waits, owes) = waits_for_one_that_does_not_start(None, 0);
    assert!(owes);
    assert!(waits[..12].iter().all(|&ticks| ticks >= 17), "{waits:?}");
    assert_eq!(waits[12..19], [0; 7], "{waits:?}");
    let (waits, _) = waits_for_one_that_does_not_start(Some(7), 0);
    assert!(waits.iter().all(|&ticks| ticks >= 17), "nothing is charged within a tenant: {waits:?}");
}

#[test]
fn a_service_that_does_not_start_pays_nothing_for_the_time_in_which_no_other_asked_for_its_core() {
    let (waits, owes) = waits_for_one_that_does_not_start(None, 500_000);
    assert_eq!(waits, [0; 20]);
    assert!(!owes);
}
