//! Who wakes the next owner.

use tailwater_shm::board::WakePlace;

use super::*;

/// A kthread of [`SERVICE`] sleeps at the board; something arrives for it.
fn asked_to_pass(sandbox: &mut Sandbox) -> u32 {
    sandbox.peer(SERVICE).scribble(PARKER, 2 << 32);
    let ticket = sandbox.peer(SERVICE).ticket(0);
    arrival(sandbox);
    ticket
}

fn told(sandbox: &mut Sandbox) -> NextOwner {
    let (Grant::Cede { successor }, _) = sandbox.peer(BATCH).grant(0) else { panic!("not asked to cede") };
    successor
}

/// The core goes from the batch job to the service, which starts, and back.
fn there_and_back(sandbox: &mut Sandbox) {
    assert!(sandbox.peer(SERVICE).obey(0), "the service starts");
    sandbox.peer(SERVICE).scribble(PARKER, 0);
    sandbox.pass(100);
    sandbox.peer(SERVICE).park(0);
    sandbox.settle();
    assert_eq!(sandbox.peer(BATCH).state(0), KthreadState::Running);
}

fn sleeper(place: u16, apart: bool) -> NextOwner {
    NextOwner::AtBoard { place: WakePlace::new(place).unwrap(), apart }
}

#[test]
fn a_kthread_that_cedes_is_told_where_its_successor_sleeps_and_the_iokernel_does_not_wake_it() {
    let mut sandbox = busy_batch();
    let ticket = asked_to_pass(&mut sandbox);
    assert_eq!(told(&mut sandbox), sleeper(64, false));
    let announced = sandbox.peer(SERVICE).ticket(0);
    assert_ne!(announced, ticket, "it may be about to sleep on the old one");
    sandbox.peer(BATCH).pass(0);
    sandbox.pass(100);
    assert_eq!(sandbox.peer(SERVICE).ticket(0), announced, "woken twice");
    there_and_back(&mut sandbox);
    let cores = &sandbox.world.stats.cores;
    assert_eq!((cores.board_wakes.get(), cores.late_board_wakes.get(), cores.rewakes.get()), (1, 0, 0));
}

#[test]
fn one_that_cedes_without_the_promise_leaves_the_wake_to_the_iokernel() {
    let mut sandbox = busy_batch();
    asked_to_pass(&mut sandbox);
    let announced = sandbox.peer(SERVICE).ticket(0);
    sandbox.peer(BATCH).park(0);
    sandbox.pass(100);
    assert_ne!(sandbox.peer(SERVICE).ticket(0), announced);
    assert_eq!(sandbox.world.stats.cores.board_wakes.get(), 0);
}

#[test]
fn a_promise_without_a_request_leaves_the_wake_to_the_iokernel() {
    let mut sandbox = busy_batch();
    sandbox.peer(SERVICE).scribble(PARKER, 1 << 32);
    let ticket = sandbox.peer(SERVICE).ticket(0);
    arrival(&mut sandbox);
    assert_eq!(told(&mut sandbox), NextOwner::Asleep);
    sandbox.peer(BATCH).pass(0);
    sandbox.pass(100);
    assert_ne!(sandbox.peer(SERVICE).ticket(0), ticket);
}

#[test]
fn the_iokernel_makes_up_for_a_broken_promise() {
    let mut sandbox = busy_batch();
    for broken in 1..20 {
        asked_to_pass(&mut sandbox);
        assert_eq!(told(&mut sandbox), sleeper(64, false));
        let announced = sandbox.peer(SERVICE).ticket(0);
        sandbox.peer(BATCH).pass(0);
        sandbox.pass(100);
        sandbox.pass(21_000);
        assert_ne!(sandbox.peer(SERVICE).ticket(0), announced, "not woken after all");
        assert_eq!(sandbox.world.stats.cores.late_board_wakes.get(), broken);
        there_and_back(&mut sandbox);
    }
}

#[test]
fn a_promise_for_a_tenancy_that_is_taken_back_is_judged_by_the_time_and_not_by_the_next_one() {
    for (late, counted) in [(12_000, 0), (25_000, 1)] {
        let mut sandbox = busy_batch();
        asked_to_pass(&mut sandbox);
        sandbox.peer(BATCH).pass(0);
        sandbox.pass(100);
        let (service, now) = (KthreadId::new(RuntimeId(SERVICE), 0), sandbox.now);
        sandbox.alloc.take_back(&mut sandbox.world, 0, service, now, now + late);
        assert_eq!(sandbox.world.stats.cores.late_board_wakes.get(), counted);
    }
}

#[test]
fn a_victim_that_parked_unasked_has_promised_nothing() {
    let mut sandbox = busy_batch();
    sandbox.peer(BATCH).pass(0);
    sandbox.peer(SERVICE).scribble(PARKER, 2 << 32);
    arrival(&mut sandbox);
    sandbox.pass(100);
    assert_eq!(sandbox.world.stats.cores.board_wakes.get(), 0);
    assert!(sandbox.peer(SERVICE).obey(0), "it was lent the core");
}

#[test]
fn the_iokernel_wakes_where_the_two_are_of_different_users() {
    let mut sandbox = busy_batch();
    sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).unwrap().board = Some(7);
    asked_to_pass(&mut sandbox);
    assert_eq!(told(&mut sandbox), NextOwner::Asleep);
}

#[test]
fn a_program_of_the_first_minor_version_is_told_nothing_of_the_board() {
    for (asleep, successor) in [(2, NextOwner::Asleep), (0, NextOwner::Awake)] {
        let mut sandbox = busy_batch();
        sandbox.world.runtimes.get_mut(RuntimeId(BATCH)).unwrap().knows_board = false;
        sandbox.peer(SERVICE).scribble(PARKER, asleep << 32);
        arrival(&mut sandbox);
        assert_eq!(told(&mut sandbox), successor);
    }
}

#[test]
fn programs_of_different_groups_do_not_yield_to_each_other() {
    for (asleep, successor) in [(2, sleeper(64, true)), (1, NextOwner::Apart), (0, NextOwner::Apart)] {
        let mut sandbox = busy_batch();
        sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).unwrap().group = 1;
        sandbox.peer(SERVICE).scribble(PARKER, asleep << 32);
        arrival(&mut sandbox);
        assert_eq!(told(&mut sandbox), successor);
    }
}

#[test]
fn a_service_does_not_yield_to_a_program_that_keeps_services_waiting() {
    let mut sandbox = busy_batch();
    arrival(&mut sandbox);
    sandbox.peer(BATCH).obey(0);
    sandbox.pass(100);
    there_and_back(&mut sandbox);
    let batch = KthreadId::new(RuntimeId(BATCH), 0);
    for _ in 0..20 {
        sandbox.alloc.charge_wait(&mut sandbox.world, batch, RuntimeId(SERVICE), 60_000, sandbox.now);
    }
    let service = KthreadId::new(RuntimeId(SERVICE), 0);
    let successor = sandbox.alloc.next_owner(&sandbox.world, service, batch, sandbox.now);
    assert_eq!(successor, NextOwner::Apart);
}
