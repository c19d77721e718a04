//! Programs whose kthreads keep their cores without running, one kthread after the other.

use tailwater_sched::RuntimeId;
use tailwater_shm::control::Class::{BestEffort, LatencyCritical};
use tailwater_shm::{Grant, KthreadState};

use crate::config::Config;
use crate::fixture::{Deed, Sandbox, UNMANAGED, measure_as};
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

/// Returns a machine of one core on which four kthreads of each of so many programs, of this user
/// or of root, sleep in tenancies that were taken back.
fn sleepers(programs: u32, user: Option<u32>) -> Sandbox {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    for id in 0..programs {
        sandbox.add_of(user, id, 8, 0, BestEffort);
        (0..8).for_each(|k| sandbox.peer(id).queue(k, 1));
    }
    for _ in 0..6 * programs {
        (0..3).for_each(|_| sandbox.tick());
        (0..programs).for_each(|id| {
            keeps(&mut sandbox, id);
        });
        claim(&mut sandbox);
    }
    let kept: usize = (0..programs).map(|id| keeps(&mut sandbox, id)).sum();
    assert_eq!(kept, 4 * programs as usize, "four of each");
    sandbox
}

#[test]
fn kthreads_that_have_been_bypassed_are_watched_for_an_eighth_of_the_time_at_most() {
    const ASK_NS: u64 = 5_000;
    let mut sandbox = sleepers(16, None);
    measure_as(ASK_NS);
    let read = |sandbox: &mut Sandbox| {
        let before = sandbox.processor_times_read();
        (0..10_000).for_each(|_| {
            // They run too much to sleep, and too little for their deadline.
            sandbox.run_threads(100);
            sandbox.pass(1_000);
        });
        sandbox.processor_times_read() - before
    };
    let read = read(&mut sandbox);
    measure_as(0);
    let most = 10_000_000 / (8 * ASK_NS);
    assert!(read <= most && read > most / 2, "{read} in 10 ms");
    assert_eq!(sandbox.world.stats.cores.evictions.get(), 0);
    // Those that sleep are asked ever more seldom: four of all in a deadline.
    (0..1_000).for_each(|_| sandbox.pass(100_000));
    let before = sandbox.processor_times_read();
    (0..1_000).for_each(|_| sandbox.pass(100_000));
    let read = sandbox.processor_times_read() - before;
    assert!((300..=420).contains(&read), "{read} in 100 ms");
}

#[test]
fn one_that_spins_is_found_at_once_among_many_that_sleep() {
    const SPINNER: u32 = 50;
    let mut sandbox = sleepers(40, None);
    (0..2_000).for_each(|_| sandbox.pass(100_000));
    measure_as(5_000);
    sandbox.add(SPINNER, 1, 0, BestEffort);
    sandbox.peer(SPINNER).queue(0, 1);
    (0..3).for_each(|_| sandbox.tick());
    assert_eq!(keeps(&mut sandbox, SPINNER), 1);
    (0..2).for_each(|_| sandbox.tick());
    claim(&mut sandbox);
    let mut took = 0;
    while sandbox.world.stats.cores.evictions.get() == 0 {
        sandbox.run_thread(SPINNER as i32 * 100 + 1, 1_000);
        sandbox.pass(1_000);
        took += 1_000;
        assert!(took < 3_000_000, "not found in 3 ms");
    }
    measure_as(0);
}

/// Returns how many threads were moved to unmanaged cores since the last call.
fn moved_off(sandbox: &Sandbox) -> usize {
    let is_moved = |deed: &Deed| matches!(deed, Deed::Bound { core: UNMANAGED, .. });
    sandbox.deeds().into_iter().filter(is_moved).count()
}

#[test]
fn kthreads_that_begin_a_tenancy_that_was_taken_back_are_left_on_the_core_no_more_than_others() {
    let mut sandbox = sleepers(2, Some(7));
    assert_eq!(moved_off(&sandbox), 0);
    sandbox.add_of(Some(7), 50, 1, 0, BestEffort);
    sandbox.peer(50).queue(0, 1);
    sandbox.tick();
    assert!(matches!(sandbox.peer(50).grant(0).0, Grant::Run { .. }));
    // It is stopped until its core is taken back; then it begins, and does not cede.
    let begun = sandbox.peer(50).grant(0).1;
    sandbox.pass(Config::default().start_deadline_us * 1_000 + 100_000);
    sandbox.peer(50).region.kthread(0).state.0.set_running(begun);
    [1_000, 6_000].into_iter().for_each(|ns| sandbox.pass(ns));
    assert_eq!(moved_off(&sandbox), 1);
    assert_eq!(sandbox.world.stats.cores.evictions.get(), 0);
}
