use super::*;
use tailwater_sched::RuntimeId;
use tailwater_shm::KthreadState;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};

use crate::fixture::Sandbox;
use crate::world::Lender;
use std::net::Ipv4Addr;
use tailwater_stats::RuntimeCounters;
use tailwater_testkit::frames::udp;

const US: Cycles = 1_000;
const MS: Cycles = 1_000 * US;

/// One cycle is a nanosecond.
fn prices() -> Prices {
    Prices::new(Clock::from_hz(1_000_000_000), 1)
}

/// Does work that takes `took` as often as it may be done for 10 s, once in `pace` at most; returns
/// how often at once, and in all.
fn work(work: Work, took: Cycles, pace: Cycles) -> (u64, u64) {
    let (mut tenant, prices, mut first, mut count) = (Tenant::default(), prices(), None, 0);
    for now in (0..10_000 * MS).step_by(pace as usize) {
        if now < tenant.pays_at(RuntimeClass::BestEffort, &prices) {
            first.get_or_insert(count);
        } else {
            tenant.charge(work, took, now, &prices);
            count += 1;
        }
    }
    (first.unwrap_or(count), count)
}

#[test]
fn refused_work_takes_its_share_of_the_time_and_2_ms_at_once() {
    let (first, count) = work(Work::Refused, 3 * US, 3 * US);
    assert!((600..800).contains(&first), "{first}");
    let took = count * 3 * US;
    assert!(took.abs_diff(102 * MS) < 2 * MS, "{took} ns in 10 s");
    // Below its share it never waits.
    assert_eq!(work(Work::Refused, 3 * US, 301 * US).0, 10_000 * MS / (301 * US) + 1);
}

#[test]
fn shares_that_do_not_divide_a_hundred_are_kept() {
    let prices = Prices::new(Clock::from_hz(1_000_000_000), 60);
    let mut tenant = Tenant::default();
    (0..1_000).for_each(|_| _ = tenant.charge(Work::Refused, 600 * US, 0, &prices));
    assert_eq!(tenant.pays_at(RuntimeClass::BestEffort, &prices), 800 * MS, "1 s for 0.6 s of work");
}

#[test]
fn usual_wakes_are_free_and_none_of_any_length_take_more_than_a_tenth_of_the_time() {
    assert_eq!(work(Work::Thread, 1_200, 20 * US), (500_000, 500_000), "50,000 a second");
    for took in [5, 10, 20, 30, 60, 120, 199, 200, 400, 1_000, 2_000] {
        let (_, count) = work(Work::Thread, took * US, took * US);
        let share = (count * took * US) as f64 / 10_000e6;
        let most = 1.0 / (took as f64 / 2.0).clamp(10.0, 100.0);
        // What may be unpaid, a fiftieth of 10 s, comes at once. A longer time than a millisecond
        // is not charged.
        assert!(took > 1_000 || share > 0.95 * most, "{share} of the time by wakes of {took} us");
        assert!(share <= 1.05 * most * if took > 1_000 { 2.0 } else { 1.0 }, "{share}: {took} us");
    }
}

#[test]
fn slow_wakes_of_a_batch_job_do_not_stop_the_services_of_its_tenant() {
    let (mut tenant, prices) = (Tenant::default(), prices());
    (0..1_000).for_each(|_| _ = tenant.charge(Work::Thread, MS, 0, &prices));
    assert_eq!(tenant.pays_at(RuntimeClass::LatencyCritical, &prices), 0);
    assert!(tenant.pays_at(RuntimeClass::BestEffort, &prices) > 0);
}

#[test]
fn a_tenant_that_has_stopped_waits_for_a_second_at_most() {
    let (mut tenant, prices, hour) = (Tenant::default(), prices(), 3_600_000 * MS);
    for now in (0..hour).step_by((100 * MS) as usize) {
        (0..100).for_each(|_| _ = tenant.charge(Work::Refused, MS, now, &prices));
    }
    let waits = tenant.pays_at(RuntimeClass::LatencyCritical, &prices) - hour;
    assert!((800 * MS..=1_000 * MS).contains(&waits), "{waits}");
}

#[test]
fn one_stall_of_the_machine_is_no_reason_to_wait() {
    let (mut tenant, prices) = (Tenant::default(), prices());
    for second in 1..10 {
        assert!(!tenant.charge(Work::Refused, 500 * MS, second * 1_000 * MS, &prices));
    }
}

#[test]
fn programs_of_one_user_by_one_grant_are_a_tenant_and_others_are_not() {
    let mut tenants = Tenants::default();
    let key = |user, grant| Some(Key { user, grant: Some(grant) });
    let keys = [key(Some(7), 0), key(Some(7), 0), key(Some(7), 1), key(None, 0), key(None, 0), None, None];
    let ids = keys.map(|key| tenants.enter(key, 2, 0));
    assert_eq!(ids.map(|TenantId(id)| id), [0, 0, 1, 2, 2, 3, 4]);
    assert_eq!(tenants.get(ids[0]).kthreads, 4);
    tenants.leave(ids[0], 2);
    assert_eq!(tenants.get(ids[1]).kthreads, 2);
}

#[test]
fn a_tenant_outlives_its_programs_until_it_has_paid() {
    let (mut tenants, prices) = (Tenants::default(), prices());
    let key = |user| Some(Key { user: Some(user), grant: Some(0) });
    let id = tenants.enter(key(7), 1, 0);
    tenants.get_mut(id).charge(Work::Refused, MS, 0, &prices);
    tenants.leave(id, 1);
    // It takes a hundred times as long to pay.
    assert_eq!(tenants.enter(key(8), 1, 99 * MS), TenantId(1));
    assert_eq!(tenants.enter(key(7), 1, 99 * MS), id);
    assert!(tenants.get(id).polling.is_over(0, 99 * MS));
    tenants.leave(id, 1);
    assert_eq!(tenants.enter(key(9), 1, 100 * MS), id, "its number is free");
    assert!(!tenants.get(id).polling.is_over(0, 0), "and what it owed forgotten");
}

#[test]
fn after_a_reload_programs_are_of_the_tenants_of_their_present_grants() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    for (id, user) in [(0, 7), (1, 7), (2, 8), (3, 9)] {
        sandbox.add_of(Some(user), id, 2, 0, BestEffort);
    }
    let now = sandbox.now;
    for id in [0, 3] {
        sandbox.world.charge(RuntimeId(id), Work::Refused, MS, now);
    }
    // Two grants change places, a third one is gone, and a program has ended meanwhile.
    let key = |user, grant| Key { user: Some(user), grant: Some(grant) };
    let keys = [(0, key(7, 1)), (1, key(7, 1)), (2, key(7, 1)), (3, key(9, 0)), (9, key(7, 0))];
    sandbox.world.rekey(keys.map(|(id, key)| (RuntimeId(id), key)).to_vec(), now);
    let of = |id| sandbox.world.runtimes.get(RuntimeId(id)).unwrap().tenant;
    assert_eq!([0, 1, 2].map(of), [of(0); 3]);
    let owes = |id| sandbox.world.runtimes.tenants.get(of(id)).polling.is_over(0, now);
    assert_eq!([0, 3].map(owes), [false, true], "that of an unchanged key is kept");
    assert_eq!(sandbox.world.runtimes.tenants.get(of(0)).kthreads, 6);
}

const OFFENDER: u32 = 1;
const HONEST: u32 = 2;

fn counter(sandbox: &Sandbox, id: u32, which: impl Fn(&RuntimeCounters) -> u64) -> u64 {
    sandbox.world.runtimes.get(RuntimeId(id)).map_or(0, |runtime| which(&runtime.stats.counters))
}

/// Returns two runtimes that have a core each.
fn two_runtimes() -> Sandbox {
    let mut sandbox = Sandbox::new(2, Vec::new());
    for id in [OFFENDER, HONEST] {
        sandbox.add(id, 1, 1, LatencyCritical);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    sandbox
}

#[test]
fn refused_frames_without_end_are_left_in_their_ring_and_others_are_served() {
    let mut sandbox = two_runtimes();
    let to = sandbox.peer(HONEST).ip;
    let foreign = udp(Ipv4Addr::new(10, 77, 0, 99), to, (1, 7), 60);
    // A refused frame takes at least this long.
    crate::fixture::measure_as(US);
    let ticks = 200_000;
    for _ in 0..ticks {
        let egress = &mut sandbox.peer(OFFENDER).kthreads[0].egress;
        // More than a turn takes.
        for _ in 0..80 {
            let Ok(mut slot) = egress.reserve(foreign.len()) else { break };
            slot.write(0, &foreign);
            slot.commit(0, 0, 0);
        }
        sandbox.peer(HONEST).send_udp(0, to, 9);
        sandbox.tick();
        while sandbox.peer(HONEST).receive(0).is_some() {}
    }
    crate::fixture::measure_as(0);
    assert!(sandbox.ended.is_empty(), "it is no lie");
    assert_eq!(counter(&sandbox, HONEST, |c| c.offence_ns.get()), 0);
    assert_eq!(counter(&sandbox, HONEST, |c| c.tx_frames.get()), ticks);
    assert!(counter(&sandbox, OFFENDER, |c| c.throttled.get()) > 0);
    // 2 ms at once, and a hundredth of a second.
    let took = counter(&sandbox, OFFENDER, |c| c.offence_ns.get());
    assert!((11 * MS..13 * MS).contains(&took), "{took} ns in a second");
}

#[test]
fn cores_asked_for_and_given_up_without_need_take_a_share_of_the_time() {
    let mut sandbox = two_runtimes();
    let offend = |sandbox: &mut Sandbox| {
        // Its run queue says that one thread waits, always the same.
        let peer = sandbox.peer(OFFENDER);
        while peer.obey(0) {}
        if peer.state(0) == KthreadState::Running {
            peer.park(0);
        }
    };
    let honest = |sandbox: &mut Sandbox, tick: u64| {
        // It is lent a core for each thread, runs it and parks.
        let peer = sandbox.peer(HONEST);
        while peer.obey(0) {}
        if peer.state(0) == KthreadState::Running {
            let status = &peer.region.kthread(0).status;
            let tail = status.runq_tail.load(core::sync::atomic::Ordering::Relaxed);
            status.runq_head.store(tail, core::sync::atomic::Ordering::Relaxed);
            peer.park(0);
        } else if tick.is_multiple_of(4) {
            peer.queue(0, 1);
        }
    };
    crate::fixture::measure_as(5 * US);
    // A second.
    for tick in 0..100_000 {
        offend(&mut sandbox);
        honest(&mut sandbox, tick);
        sandbox.tick();
        sandbox.pass(5_000);
    }
    crate::fixture::measure_as(0);
    let vain = counter(&sandbox, OFFENDER, |c| c.vain_cores.get());
    // 2 ms at once, and a hundredth of a second.
    let took = counter(&sandbox, OFFENDER, |c| c.offence_ns.get());
    assert!((11 * MS..13 * MS).contains(&took) && vain > 100, "{took} ns in a second, {vain} cores");
    assert_eq!(counter(&sandbox, HONEST, |c| c.vain_cores.get()), 0);
    assert_eq!(counter(&sandbox, HONEST, |c| c.offence_ns.get()), 0);
    assert!(counter(&sandbox, HONEST, |c| c.grants.get()) > 1_000);
}

#[test]
fn a_core_lent_for_work_that_waits_for_a_withdrawn_kthread_is_not_charged() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(HONEST, 2, 0, BestEffort);
    sandbox.add(OFFENDER, 1, 0, LatencyCritical);
    sandbox.peer(HONEST).queue(0, 1);
    sandbox.settle();
    assert_eq!(sandbox.peer(HONEST).state(0), KthreadState::Running);
    // Linux does not run it, and a service takes its core.
    let now = sandbox.now;
    sandbox.alloc.wakeup(&mut sandbox.world, RuntimeId(OFFENDER), now);
    sandbox.pass(6_000);
    sandbox.pass(15_000);
    sandbox.pass(6_000);
    assert!(sandbox.peer(OFFENDER).obey(0));
    sandbox.pass(1_000);
    sandbox.peer(OFFENDER).park(0);
    sandbox.tick();
    sandbox.tick();
    assert!(sandbox.peer(HONEST).obey(1), "the other kthread was not lent the core");
    sandbox.pass(1_000);
    sandbox.peer(HONEST).park(1);
    sandbox.pass(1_000);
    assert_eq!(counter(&sandbox, HONEST, |c| c.vain_cores.get()), 0);
    // Once it has ceded, its work can be done.
    assert!(sandbox.peer(HONEST).obey(0));
    sandbox.settle();
    let running = (0..2).find(|&k| sandbox.peer(HONEST).state(k) == KthreadState::Running);
    sandbox.peer(HONEST).park(running.expect("a core"));
    sandbox.pass(1_000);
    assert_eq!(counter(&sandbox, HONEST, |c| c.vain_cores.get()), 1);
}

#[test]
fn a_program_that_owes_too_much_is_lent_no_core_and_its_frames_wait_until_it_has_paid() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(OFFENDER, 1, 0, BestEffort);
    let (id, now) = (RuntimeId(OFFENDER), sandbox.now);
    (0..21).for_each(|_| sandbox.world.charge(id, Work::Refused, 100_000, now));
    sandbox.peer(OFFENDER).queue(0, 1);
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.grants.get()), 0);
    assert_eq!(sandbox.alloc.earliest_timer(), now + 10_000_000, "a sleep ends when it has paid");
    sandbox.now = now + 10_000_000;
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.grants.get()), 1);
    let own = sandbox.peer(OFFENDER).ip;
    sandbox.peer(OFFENDER).send_udp(0, own, 9);
    let now = sandbox.now;
    (0..21).for_each(|_| sandbox.world.charge(id, Work::Refused, 100_000, now));
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.tx_frames.get()), 0);
    assert!(!sandbox.switch.has_egress(&sandbox.world, sandbox.now), "the polling thread may sleep");
    sandbox.now += 500_000_000;
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.tx_frames.get()), 1);
}
