use super::*;
use proptest::prelude::*;
use tailwater_sched::RuntimeId;
use tailwater_shm::KthreadState;
use tailwater_shm::control::Class::{BestEffort, LatencyCritical};

use crate::fixture::Sandbox;
use crate::runtime::EndReason;
use crate::stats::RuntimeCounters;
use crate::switch::check::tests::udp;
use crate::world::Lender;
use std::net::Ipv4Addr;

/// One cycle is a nanosecond.
fn terms(share: u8) -> Terms {
    Terms::new(Clock::from_hz(1_000_000_000), share)
}

/// Charges `cost` whenever the program is not throttled and `period` has passed, until it is
/// expelled or `end`; returns the end and what was charged in all.
fn offend(share: u8, cost: Cycles, period: Cycles, end: Cycles) -> (Option<Cycles>, Cycles) {
    let (mut budget, terms, mut now, mut charged) = (Budget::default(), terms(share), 1, 0);
    while now < end {
        if !budget.is_throttled(now) {
            charged += cost;
            if budget.charge(cost, now, &terms) == Sentence::Expel {
                return (Some(now), charged);
            }
        }
        now += period;
    }
    (None, charged)
}

#[test]
fn an_offender_at_full_speed_is_throttled_to_its_share_and_gone_within_a_tenth_of_a_second() {
    let (gone, charged) = offend(1, 3_000, 6_000, 1_000_000_000);
    let gone = gone.expect("it goes on for a second");
    assert!((50_000_000..100_000_000).contains(&gone), "{gone}");
    assert!(charged < 2_000_000 + gone / 100 + u64::from(STRIKES) * 3_000, "{charged}");
}

#[test]
fn offences_below_the_share_are_never_punished() {
    // A hundredth of the time is 10 ms a second.
    let (gone, charged) = offend(1, 3_000, 301_000, 10_000_000_000);
    assert_eq!(gone, None);
    assert!(charged > 90_000_000, "{charged}");
    let mut budget = Budget::default();
    for second in 1..1_000 {
        for _ in 0..19 {
            assert_eq!(budget.charge(100_000, second * 1_000_000_000, &terms(1)), Sentence::None);
        }
    }
}

#[test]
fn a_program_that_lets_its_bucket_run_empty_is_throttled_and_not_expelled() {
    let (mut budget, terms) = (Budget::default(), terms(1));
    for burst in 1..200 {
        let now = burst * 1_000_000_000;
        let sentences = (0..21).map(|_| budget.charge(100_000, now, &terms));
        assert_eq!(sentences.last(), Some(Sentence::Throttle));
        // A hundredth of the time leaks, so the excess of 100 us takes 10 ms.
        assert!(budget.is_throttled(now + 9_999_999) && !budget.is_throttled(now + 10_000_000));
    }
}

#[test]
fn a_stall_of_the_machine_is_not_charged_whole() {
    let (mut budget, terms) = (Budget::default(), terms(1));
    for second in 1..10 {
        assert_eq!(budget.charge(500_000_000, second * 1_000_000_000, &terms), Sentence::None);
    }
}

proptest! {
    #[test]
    fn the_cost_is_bounded_whatever_is_charged_when(
        share in 1u8..=100, charges in prop::collection::vec((1u64..50_000, 0u64..500_000), 1..2_000)
    ) {
        let (mut budget, terms, mut now, mut charged) = (Budget::default(), terms(share), 1, 0);
        for (cost, wait) in charges {
            now += wait;
            if budget.is_throttled(now) {
                continue;
            }
            charged += cost;
            if budget.charge(cost, now, &terms) == Sentence::Expel {
                break;
            }
            // The depth, the share of the time, and one charge over the brim for each strike.
            let most = 2_000_000 + now * u64::from(share) / 100 + 50_000;
            prop_assert!(charged <= most, "{} of at most {}", charged, most);
        }
    }
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

/// Lets the offender go on until it is expelled; between two looks of 5 us `honest` runs. Returns
/// how many it took.
fn until_expelled(
    sandbox: &mut Sandbox,
    mut offend: impl FnMut(&mut Sandbox),
    mut honest: impl FnMut(&mut Sandbox, u64),
) -> u64 {
    for tick in 0..2_000_000 {
        if let Some((id, reason)) = sandbox.ended.first() {
            assert_eq!(*id, RuntimeId(OFFENDER));
            assert!(matches!(reason, EndReason::TooCostly { share: 1, times: STRIKES }), "{reason}");
            assert!(reason.to_string().contains("offence-share"), "{reason}");
            return tick;
        }
        offend(sandbox);
        honest(sandbox, tick);
        sandbox.tick();
    }
    panic!("it was not expelled");
}

#[test]
fn refused_frames_without_end_are_left_in_their_ring_for_a_while_then_their_sender_is_expelled() {
    let mut sandbox = two_runtimes();
    let to = sandbox.peer(HONEST).ip;
    let foreign = udp(Ipv4Addr::new(10, 77, 0, 99), to, (1, 7), 60);
    let own = sandbox.peer(HONEST).ip;
    let offend = |sandbox: &mut Sandbox| {
        let egress = &mut sandbox.peer(OFFENDER).kthreads[0].egress;
        // More than an iteration takes.
        for _ in 0..40 {
            let Ok(mut slot) = egress.reserve(foreign.len()) else { break };
            slot.write(0, &foreign);
            slot.commit(0, 0, 0);
        }
    };
    let mut throttled = 0;
    let honest = |sandbox: &mut Sandbox, _| {
        sandbox.peer(HONEST).send_udp(0, own, 9);
        throttled = throttled.max(counter(sandbox, OFFENDER, |c| c.throttled.get()));
        assert_eq!(counter(sandbox, HONEST, |c| c.offence_ns.get()), 0);
    };
    let ticks = until_expelled(&mut sandbox, offend, honest);
    assert!(throttled >= u64::from(STRIKES) - 1, "{throttled}");
    let sent = counter(&sandbox, HONEST, |c| c.tx_frames.get());
    assert!(sent + 1 >= ticks, "the honest one's frames were taken at once: {sent} of {ticks}");
}

#[test]
fn cores_asked_for_and_given_up_without_need_are_charged_and_lent_less_and_less_often() {
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
    // A second.
    for tick in 0..100_000 {
        offend(&mut sandbox);
        honest(&mut sandbox, tick);
        sandbox.tick();
        sandbox.pass(5_000);
    }
    let vain = counter(&sandbox, OFFENDER, |c| c.vain_cores.get());
    assert!((10..60).contains(&vain), "{vain}");
    assert!(counter(&sandbox, OFFENDER, |c| c.offence_ns.get()) > 0);
    assert_eq!(counter(&sandbox, HONEST, |c| c.vain_cores.get()), 0);
    assert_eq!(counter(&sandbox, HONEST, |c| c.offence_ns.get()), 0);
    assert!(counter(&sandbox, HONEST, |c| c.grants.get()) > 1_000);
}

#[test]
fn a_core_given_up_beside_another_does_not_end_a_row_of_cores_in_vain() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(OFFENDER, 2, 0, BestEffort);
    (0..2).for_each(|kthread| sandbox.peer(OFFENDER).queue(kthread, 1));
    // A second.
    for _ in 0..100_000 {
        let peer = sandbox.peer(OFFENDER);
        for kthread in 0..2 {
            while peer.obey(kthread) {}
        }
        if (0..2).all(|kthread| peer.state(kthread) == KthreadState::Running) {
            (0..2).for_each(|kthread| peer.park(kthread));
        }
        sandbox.tick();
        sandbox.pass(5_000);
    }
    let grants = counter(&sandbox, OFFENDER, |c| c.grants.get());
    assert!((10..200).contains(&grants), "{grants}");
    // It is lent one again after the pause.
    sandbox.pass(30_000_000);
    sandbox.settle();
    assert!(counter(&sandbox, OFFENDER, |c| c.grants.get()) > grants);
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
fn a_throttled_runtime_is_lent_no_core_and_its_frames_wait_until_the_pause_is_over() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(OFFENDER, 1, 0, BestEffort);
    let (id, now) = (RuntimeId(OFFENDER), sandbox.now);
    (0..21).for_each(|_| sandbox.world.charge(id, 100_000, now));
    sandbox.peer(OFFENDER).queue(0, 1);
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.grants.get()), 0);
    assert_eq!(sandbox.alloc.earliest_timer(), now + 10_000_000, "a sleep ends with the pause");
    sandbox.now = now + 10_000_000;
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.grants.get()), 1);
    let own = sandbox.peer(OFFENDER).ip;
    sandbox.peer(OFFENDER).send_udp(0, own, 9);
    let now = sandbox.now;
    (0..21).for_each(|_| sandbox.world.charge(id, 100_000, now));
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.tx_frames.get()), 0);
    assert!(!sandbox.switch.has_egress(&sandbox.world, sandbox.now), "the polling thread may sleep");
    sandbox.now += 500_000_000;
    sandbox.settle();
    assert_eq!(counter(&sandbox, OFFENDER, |c| c.tx_frames.get()), 1);
}
