//! What a look reads of programs with many kthreads, and what programs that change their words all
//! the time cost.

use core::sync::atomic::Ordering::Relaxed;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::{Grant, KthreadState};

use crate::allocator::look::WAITING;
use crate::allocator::phase::IDLE_BURST;
use crate::fixture::{Sandbox, measure_as};
use crate::status_cache::SLICE;
use crate::tenant::Work;
use crate::world::Lender;

const MANY: u16 = 256;

/// Rewrites a word of every kthread; no work comes of it.
fn rewrite(sandbox: &mut Sandbox, id: u32, word: u32) {
    for kthread in 0..MANY {
        let status = &sandbox.peer(id).region.kthread(kthread).status;
        status.runq_head.store(word, Relaxed);
        status.runq_tail.store(word, Relaxed);
    }
}

/// Returns how many kthreads of runtime `id` were read since all had another word.
fn read_of(sandbox: &Sandbox, id: u32, word: u32) -> usize {
    let look = sandbox.alloc.observation.runtime(RuntimeId(id)).expect("it is registered");
    look.kthreads.iter().filter(|look| look.runq_head == word).count()
}

#[test]
fn a_look_reads_few_kthreads_of_a_program_that_has_many_and_all_of_them_in_turn() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, MANY, 0, BestEffort);
    let rounds = usize::from(MANY) / SLICE;
    for round in 1..=rounds {
        rewrite(&mut sandbox, 0, 7);
        sandbox.tick();
        assert_eq!(read_of(&sandbox, 0, 7), SLICE * round);
    }
    // With a core: those of the slice, and the one that has the core, whose words come to be true
    // at each look.
    sandbox.peer(0).queue(100, 1);
    sandbox.settle();
    let holder = (0..MANY).find(|&k| sandbox.peer(0).state(k) == KthreadState::Running).expect("a core");
    for word in 20..30 {
        rewrite(&mut sandbox, 0, word);
        sandbox.tick();
        let read = read_of(&sandbox, 0, word);
        assert!((1..=SLICE + WAITING + 1).contains(&read), "{read} kthreads read");
        let look = sandbox.alloc.observation.runtime(RuntimeId(0)).unwrap().kthreads[usize::from(holder)];
        assert_eq!(look.runq_head, word, "the one with the core");
    }
}

#[test]
fn programs_without_cores_whose_words_are_slow_to_read_are_read_less_often() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    (0..4).for_each(|id| sandbox.add(id, MANY, 0, BestEffort));
    let read_by_ticks = |sandbox: &mut Sandbox, word| {
        for _ in 0..40 {
            (0..4).for_each(|id| rewrite(sandbox, id, word));
            sandbox.tick();
        }
        (0..4).map(|id| read_of(sandbox, id, word)).sum::<usize>()
    };
    assert_eq!(read_by_ticks(&mut sandbox, 1), 4 * usize::from(MANY));
    // A slice takes 1,600 ns. The next one of the program comes after 12.8 us: at the third look.
    measure_as(1_600);
    let read = read_by_ticks(&mut sandbox, 2);
    measure_as(0);
    assert!(read <= 4 * SLICE * 40usize.div_ceil(3), "{read} kthreads read");
    assert!(read >= SLICE * 40 / 3, "only {read} kthreads read");
}

#[test]
fn work_timers_and_sums_of_kthreads_that_a_look_leaves_out_are_found_in_turn() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(0, MANY, 0, LatencyCritical);
    (0..16).for_each(|_| sandbox.tick());
    let due = sandbox.now + 1_000_000;
    sandbox.peer(0).region.kthread(200).status.next_timer.store(due, Relaxed);
    sandbox.peer(0).region.kthread(3).status.lost_wakes.store(5, Relaxed);
    (0..16).for_each(|_| sandbox.tick());
    // Also at looks that read others.
    for _ in 0..16 {
        assert_eq!(sandbox.alloc.earliest_timer(), due);
        let runtime = sandbox.world.runtimes.get(RuntimeId(0)).unwrap();
        assert_eq!(runtime.stats.counters.lost_wakes.get(), 5);
        sandbox.tick();
    }
    sandbox.pass(1_000_000);
    sandbox.tick();
    assert!((0..MANY).any(|k| matches!(sandbox.peer(0).grant(k).0, Grant::Run { .. })), "the timer");
}

#[test]
fn a_look_goes_on_to_further_programs_without_cores_for_a_microsecond() {
    const PROGRAMS: u32 = 64;
    let mut sandbox = Sandbox::new(1, Vec::new());
    (0..PROGRAMS).for_each(|id| sandbox.add(id, 4, 0, BestEffort));
    sandbox.tick();
    assert_eq!(sandbox.alloc.cursor, 0, "all of them");
    measure_as(600);
    for next in [2, 4, 6] {
        sandbox.tick();
        assert_eq!(sandbox.alloc.cursor, next);
    }
    measure_as(0);
}

/// Returns how many kthreads of runtime 0 have been lent a core.
fn lent(sandbox: &mut Sandbox) -> usize {
    (0..MANY).filter(|&k| matches!(sandbox.peer(0).grant(k).0, Grant::Run { .. })).count()
}

#[test]
fn work_that_is_gone_when_a_look_leaves_its_kthreads_out_is_no_congestion() {
    let mut sandbox = Sandbox::new(4, Vec::new());
    sandbox.add(0, MANY, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    let holder = holder(&mut sandbox);
    sandbox.peer(0).queue(0, 0);
    let queue = |sandbox: &mut Sandbox, taken: u32, queued: u32| {
        for other in (0..MANY).filter(|&other| other != holder) {
            let status = &sandbox.peer(0).region.kthread(other).status;
            status.runq_head.store(taken, Relaxed);
            status.runq_tail.store(queued, Relaxed);
        }
    };
    queue(&mut sandbox, 1, 1);
    (0..16).for_each(|_| sandbox.tick());
    let before = lent(&mut sandbox);
    // At one look 16 have work, and at the next it is gone: only some of them are read again.
    queue(&mut sandbox, 1, 2);
    sandbox.tick();
    queue(&mut sandbox, 2, 2);
    (0..16).for_each(|_| sandbox.tick());
    assert_eq!(lent(&mut sandbox), before, "cores for work that was done");
    // Work that stays is congestion, and is found in turn.
    sandbox.peer(0).queue(130, 1);
    (0..17).for_each(|_| sandbox.tick());
    assert!(lent(&mut sandbox) > before, "no core for work that waits");
}

/// Has work wait at a kthread without a core while a core is free, and does `between` shortly
/// before each look that the policy runs after. Returns whether the program is lent the core.
/// Reading a slice takes so long that another one is due just before the next such look.
fn is_lent_a_second_core(between: impl Fn(&mut Sandbox, u16)) -> bool {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(0, MANY, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    let holder = holder(&mut sandbox);
    sandbox.peer(0).queue(0, 0);
    sandbox.tick();
    let before = lent(&mut sandbox);
    sandbox.peer(0).queue(9, 1);
    measure_as(600);
    for _ in 0..3 * usize::from(MANY) / SLICE {
        sandbox.pass(4_900);
        between(&mut sandbox, holder);
        sandbox.pass(100);
        let now = sandbox.now;
        sandbox.alloc.tick(&mut sandbox.world, now);
    }
    measure_as(0);
    lent(&mut sandbox) > before
}

#[test]
fn work_that_waits_is_found_whatever_is_read_between_the_looks_that_the_policy_compares() {
    assert!(is_lent_a_second_core(|_, _| {}), "without other looks");
    assert!(
        is_lent_a_second_core(|sandbox, holder| {
            sandbox.peer(0).go_idle(holder);
            sandbox.pass(0);
            assert!((0..2).any(|at| sandbox.alloc.sees_idle(at)));
            assert!(sandbox.peer(0).resume(holder), "its core was taken");
        }),
        "beside looks at a kthread that goes idle"
    );
    assert!(
        is_lent_a_second_core(|sandbox, _| {
            let now = sandbox.now;
            sandbox.alloc.tick(&mut sandbox.world, now);
        }),
        "beside looks that come early"
    );
}

/// Puts a frame into the ring of each of these kthreads of runtime 0.
fn deliver(sandbox: &mut Sandbox, kthreads: impl Iterator<Item = u16>) {
    let runtime = sandbox.world.runtimes.get_mut(RuntimeId(0)).unwrap();
    for kthread in kthreads {
        let mut frame = runtime.kthreads[usize::from(kthread)].ingress.reserve(64).expect("room");
        frame.write(0, &[0; 64]);
        frame.commit(0, 0, 0);
    }
}

#[test]
fn frames_that_another_kthread_has_read_are_no_reason_to_lend_a_core() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, MANY, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    let holder = holder(&mut sandbox);
    sandbox.peer(0).queue(0, 0);
    (0..16).for_each(|_| sandbox.tick());
    // More than are read at two looks.
    let others = || (0..MANY).step_by(6).filter(|&other| other != holder);
    deliver(&mut sandbox, others());
    for other in others() {
        assert!(sandbox.peer(0).receive(other).is_some());
    }
    sandbox.peer(0).park(holder);
    let grants = sandbox.world.stats.cores.grants.get();
    (0..16).for_each(|_| sandbox.tick());
    assert_eq!(sandbox.world.stats.cores.grants.get(), grants, "a core for frames that were read");
    // One that was not is found.
    deliver(&mut sandbox, [255].into_iter());
    sandbox.tick();
    assert_eq!(sandbox.world.stats.cores.grants.get(), grants + 1);
}

#[test]
fn frames_that_were_read_before_a_pause_are_no_reason_to_lend_a_core_after_it() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, MANY, 0, LatencyCritical);
    let all = || (0..MANY).step_by(6);
    deliver(&mut sandbox, all());
    for kthread in all() {
        assert!(sandbox.peer(0).receive(kthread).is_some());
    }
    let now = sandbox.now;
    while !sandbox.world.runtimes.get(RuntimeId(0)).unwrap().is_left_alone(now) {
        sandbox.world.charge(RuntimeId(0), Work::Refused, 100_000, now);
    }
    sandbox.tick();
    sandbox.pass(10_000_000);
    assert!(!sandbox.world.runtimes.get(RuntimeId(0)).unwrap().is_left_alone(sandbox.now));
    (0..16).for_each(|_| sandbox.tick());
    assert_eq!(lent(&mut sandbox), 0, "a core for frames that were read");
}

#[test]
fn a_frame_for_a_kthread_outside_the_slice_is_work_at_that_look() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, MANY, 0, LatencyCritical);
    (0..16).for_each(|_| sandbox.tick());
    // An acknowledgment, which nothing waits for.
    let now = sandbox.now;
    assert!(Lender::hold(&mut sandbox.alloc, &mut sandbox.world, RuntimeId(0), 7, now));
    let runtime = sandbox.world.runtimes.get_mut(RuntimeId(0)).unwrap();
    let held = runtime.held.expect("just held");
    deliver(&mut sandbox, [held.kthread].into_iter());
    while sandbox.now + 5_000 < held.until {
        sandbox.tick();
        assert_eq!(lent(&mut sandbox), 0, "a core for the acknowledgment alone");
    }
    sandbox.tick();
    assert_eq!(lent(&mut sandbox), 1, "the end of the hold is not seen");
}

#[test]
fn a_core_given_up_after_a_change_of_any_word_was_not_lent_in_vain() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, MANY, 0, BestEffort);
    sandbox.peer(0).queue(0, 1);
    (0..16).for_each(|_| sandbox.tick());
    let vain =
        |sandbox: &Sandbox| sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters.vain_cores.get();
    let park = |sandbox: &mut Sandbox, change: Option<u16>| {
        sandbox.settle();
        let holder = (0..MANY).find(|&k| sandbox.peer(0).state(k) == KthreadState::Running).expect("a core");
        if let Some(other) = change {
            let timer = sandbox.now + 1_000_000_000 + u64::from(other);
            sandbox.peer(0).region.kthread(other).status.next_timer.store(timer, Relaxed);
        }
        sandbox.peer(0).park(holder);
        sandbox.pass(100);
    };
    for other in [70, 130, 255] {
        park(&mut sandbox, Some(other));
        assert_eq!(vain(&sandbox), 0, "kthread {other} has changed a word");
    }
    park(&mut sandbox, None);
    assert_eq!(vain(&sandbox), 1);
}

/// Returns the kthread that runs, once runtime 0 has been lent a core.
fn holder(sandbox: &mut Sandbox) -> u16 {
    for _ in 0..1_000 {
        if let Some(holder) = (0..MANY).find(|&k| sandbox.peer(0).state(k) == KthreadState::Running) {
            return holder;
        }
        sandbox.tick();
        sandbox.obey();
        sandbox.pass(500);
    }
    panic!("no core was lent");
}

#[test]
fn a_program_that_hides_a_change_at_each_park_pays_for_the_looks_at_all_its_words() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, MANY, 0, BestEffort);
    // Never taken out.
    sandbox.peer(0).queue(0, 1);
    measure_as(u64::from(MANY) * sandbox.alloc.bounds.kthread_look);
    let mut word = 0;
    while !sandbox.world.runtimes.get(RuntimeId(0)).unwrap().is_left_alone(sandbox.now) {
        word += 1;
        assert!(word < 1_000, "it does not pay");
        let holder = holder(&mut sandbox);
        for other in (1..MANY).filter(|&other| other != holder) {
            let status = &sandbox.peer(0).region.kthread(other).status;
            status.runq_head.store(word, Relaxed);
            status.runq_tail.store(word, Relaxed);
        }
        sandbox.peer(0).park(holder);
        sandbox.pass(100);
    }
    measure_as(0);
    let counters = &sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters;
    assert_eq!((counters.vain_cores.get(), counters.offence_ns.get()), (0, 0), "it changes words");
}

#[test]
fn a_doorbell_that_buys_a_look_at_all_words_is_paid_for() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, MANY, 0, BestEffort);
    (0..16).for_each(|_| sandbox.tick());
    measure_as(u64::from(MANY) * sandbox.alloc.bounds.kthread_look);
    let mut has_news = |word: u32| {
        sandbox.alloc.note_words(&mut sandbox.world);
        rewrite(&mut sandbox, 0, word);
        let now = sandbox.now;
        let news = sandbox.alloc.has_news(&mut sandbox.world, RuntimeId(0), now);
        (news, read_of(&sandbox, 0, word))
    };
    // The words are the same at first.
    assert_eq!(has_news(0), (false, usize::from(MANY)));
    assert_eq!(has_news(1), (true, usize::from(MANY)));
    measure_as(0);
    let tenant = sandbox.world.runtimes.get(RuntimeId(0)).unwrap().tenant;
    assert!(sandbox.world.runtimes.tenants.get(tenant).polling.is_over(0, sandbox.now));
}

#[test]
fn a_kthread_that_goes_idle_again_and_again_causes_a_bounded_number_of_decisions() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(0, 1, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    sandbox.peer(0).queue(0, 0);
    let mut decisions = 0;
    let flaps = 1_000;
    for _ in 0..flaps {
        sandbox.peer(0).go_idle(0);
        sandbox.pass(100);
        decisions += usize::from(sandbox.alloc.sees_idle(0));
        assert!(sandbox.peer(0).resume(0), "its core was taken");
        sandbox.pass(100);
        assert!(!sandbox.alloc.sees_idle(0));
    }
    // 200 us.
    let most = 40 + IDLE_BURST as usize + 1;
    assert!((40..=most).contains(&decisions), "{decisions} decisions");
    // One that stays idle is seen at the latest 5 us later.
    sandbox.peer(0).go_idle(0);
    sandbox.pass(5_000);
    assert!(sandbox.alloc.sees_idle(0));
}
