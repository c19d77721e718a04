//! The ranks of kthreads beside other programs, and how many kthreads count as runnable.

use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::KthreadState;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::priority::Rank;

use super::{BATCH, SERVICE, arrival};
use crate::allocator::{Beside, Ranks};
use crate::config::Config;
use crate::control::process::Folder;
use crate::fixture::{Deed, Sandbox};
use crate::tenant::Key;

/// Lets the time between two looks pass.
pub(super) fn rest(sandbox: &mut Sandbox) {
    sandbox.pass(250_000);
    let now = sandbox.now;
    sandbox.alloc.throttle_real_time(&mut sandbox.world, now);
}

/// Lets time pass as services' kthreads have it: looks every 250 us, for this many milliseconds;
/// returns how many of them found the service's kthread at rest.
fn rests(sandbox: &mut Sandbox, ms: u64) -> u64 {
    let (mut resting, mut looks_at_rest) = (false, 0);
    sandbox.deeds();
    for _ in 0..ms * 4 {
        rest(sandbox);
        for deed in sandbox.deeds() {
            if let Deed::Ranked { tid: 101, rank } = deed {
                resting = rank == Rank::Ordinary;
            }
        }
        looks_at_rest += u64::from(resting);
    }
    looks_at_rest
}

/// Returns the ranks that were given since the last look, by thread.
pub(super) fn ranks(sandbox: &mut Sandbox) -> Vec<(i32, Rank)> {
    let rank = |deed| match deed {
        Deed::Ranked { tid, rank } => Some((tid, rank)),
        _ => None,
    };
    sandbox.deeds().into_iter().filter_map(rank).collect()
}

/// A sandbox in which Linux allows all ranks, with a batch job (thread 1) and a service (101).
fn shared_machine() -> Sandbox {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.alloc.allow_ranks(Ranks { may_lower: true, for_good: false, real_time: true });
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox
}

/// Returns which of the programs are told that the wakes of their kthreads preempt others.
fn told_that_wakes_preempt(sandbox: &mut Sandbox) -> Vec<u32> {
    [BATCH, SERVICE].into_iter().filter(|&id| sandbox.peer(id).region.wakes_preempt()).collect()
}

pub(super) fn contest(sandbox: &mut Sandbox, contested: bool) {
    let beside = if contested { Beside::Competitors } else { Beside::Nothing };
    sandbox.alloc.set_beside(&mut sandbox.world, beside);
}

#[test]
fn kthreads_have_other_ranks_only_while_other_programs_compete_for_the_cores() {
    let mut sandbox = shared_machine();
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Ordinary)]);
    contest(&mut sandbox, true);
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Behind)], "it has the core");
    assert!([BATCH, SERVICE].iter().all(|&id| sandbox.peer(id).region.ranks_differ()));
    assert_eq!(told_that_wakes_preempt(&mut sandbox), [SERVICE]);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(101, Rank::RealTime)], "it is lent the core");
    contest(&mut sandbox, false);
    assert_eq!(ranks(&mut sandbox), [(101, Rank::Ordinary)]);
    assert!(![BATCH, SERVICE].iter().any(|&id| sandbox.peer(id).region.ranks_differ()));
    assert!(told_that_wakes_preempt(&mut sandbox).is_empty());
    sandbox.peer(SERVICE).queue(0, 0);
    sandbox.tick();
    sandbox.peer(SERVICE).park(0);
    sandbox.peer(BATCH).queue(0, 2);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Ordinary)], "the batch job has the core again");
}

#[test]
fn beside_a_batch_job_that_linux_runs_services_have_real_time_rank_and_nothing_else_changes() {
    let mut sandbox = shared_machine();
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.settle();
    ranks(&mut sandbox);
    sandbox.alloc.set_beside(&mut sandbox.world, Beside::BatchJobs);
    assert_eq!(ranks(&mut sandbox), [], "a best-effort kthread keeps its rank");
    assert_eq!(told_that_wakes_preempt(&mut sandbox), [SERVICE]);
    arrival(&mut sandbox);
    assert_eq!(ranks(&mut sandbox), [(101, Rank::RealTime)]);
    contest(&mut sandbox, true);
    assert!(!ranks(&mut sandbox).contains(&(101, Rank::Ordinary)), "it keeps its rank");
    contest(&mut sandbox, false);
    assert!(ranks(&mut sandbox).contains(&(101, Rank::Ordinary)));
}

#[test]
fn a_best_effort_kthread_beside_which_the_polling_thread_sleeps_is_behind_others_until_its_next_core() {
    let mut sandbox = shared_machine();
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Ordinary)]);
    for _ in 0..2 {
        sandbox.alloc.lower_best_effort(&mut sandbox.world);
    }
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Behind)], "it has the core");
    assert!(![BATCH, SERVICE].iter().any(|&id| sandbox.peer(id).region.ranks_differ()));
    arrival(&mut sandbox);
    assert_eq!(ranks(&mut sandbox), [(101, Rank::Ordinary)]);
    sandbox.settle();
    sandbox.alloc.lower_best_effort(&mut sandbox.world);
    assert_eq!(ranks(&mut sandbox), [], "a service");
    sandbox.peer(SERVICE).park(0);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Ordinary)], "it has a core again");
    sandbox.alloc.lower_best_effort(&mut sandbox.world);
    contest(&mut sandbox, true);
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Behind)]);
    contest(&mut sandbox, false);
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Ordinary)]);
}

#[test]
fn where_no_thread_can_be_raised_again_best_effort_kthreads_stay_behind() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.alloc.allow_ranks(Ranks { for_good: true, ..Ranks::default() });
    sandbox.add(BATCH, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    assert!(sandbox.peer(SERVICE).region.ranks_differ(), "its successor runs behind it at all times");
    sandbox.peer(BATCH).queue(0, 1);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(1, Rank::Last)]);
    contest(&mut sandbox, true);
    assert!(told_that_wakes_preempt(&mut sandbox).is_empty(), "they take turns with other programs");
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    contest(&mut sandbox, false);
    assert!(sandbox.peer(SERVICE).region.ranks_differ());
    sandbox.end(RuntimeId(BATCH));
    assert_eq!(ranks(&mut sandbox), []);
}

#[test]
fn a_program_that_comes_or_goes_in_a_contest_is_told_and_leaves_no_rank_behind() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.alloc.allow_ranks(Ranks { may_lower: true, for_good: false, real_time: true });
    contest(&mut sandbox, true);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    let region = &sandbox.peer(SERVICE).region;
    assert!(region.ranks_differ() && region.wakes_preempt());
    assert_eq!(ranks(&mut sandbox), [], "it has no core");
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(101, Rank::RealTime)]);
    sandbox.end(RuntimeId(SERVICE));
    assert_eq!(ranks(&mut sandbox), [(101, Rank::Ordinary)]);
}

#[test]
fn a_service_with_real_time_rank_rests_when_it_keeps_its_core() {
    let mut sandbox = shared_machine();
    contest(&mut sandbox, true);
    assert_eq!(rests(&mut sandbox, 100), 0, "it has no core");
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
    let looks = rests(&mut sandbox, 1_000);
    assert!((4_000 * 7 / 100..=4_000 * 12 / 100).contains(&looks), "{looks} of 4000 looks");
    contest(&mut sandbox, false);
    assert_eq!(rests(&mut sandbox, 100), 0, "it has ordinary rank again");
}

#[test]
fn without_the_privilege_no_kthread_is_ranked_or_told_of_a_contest() {
    let mut sandbox = Sandbox::new(1, Vec::new());
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    contest(&mut sandbox, true);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), []);
    assert!(!sandbox.peer(SERVICE).region.ranks_differ());
}

/// A kthread on core 0 does not cede, and is moved off by force.
fn move_off(sandbox: &mut Sandbox, id: KthreadId) {
    let now = sandbox.now;
    sandbox.alloc.bypass(&mut sandbox.world, 0, id, now, now);
    sandbox.pass(sandbox.alloc.bounds.beside + 1);
}

#[test]
fn a_service_that_is_moved_off_its_core_by_force_loses_its_rank_until_it_is_back() {
    let mut sandbox = shared_machine();
    contest(&mut sandbox, true);
    let id = KthreadId { runtime: RuntimeId(SERVICE), index: 0 };
    arrival(&mut sandbox);
    assert!(sandbox.peer(SERVICE).obey(0), "it starts");
    sandbox.pass(2_000);
    assert_eq!(ranks(&mut sandbox), [(101, Rank::RealTime)]);
    move_off(&mut sandbox, id);
    assert_eq!(ranks(&mut sandbox), [(101, Rank::Ordinary)]);
    contest(&mut sandbox, true);
    assert_eq!(ranks(&mut sandbox), [], "it is off the managed cores");
    sandbox.obey();
    sandbox.pass(2_000);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.tick();
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(101, Rank::RealTime)], "it has ceded, and has the core again");
}

/// Lets time pass until a service's kthread that has the core rests.
fn until_it_rests(sandbox: &mut Sandbox) {
    contest(sandbox, true);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    sandbox.deeds();
    while !ranks(sandbox).contains(&(101, Rank::Ordinary)) {
        rest(sandbox);
    }
}

#[test]
fn a_service_that_ends_while_it_rests_is_forgotten() {
    let mut sandbox = shared_machine();
    until_it_rests(&mut sandbox);
    sandbox.end(RuntimeId(SERVICE));
    rest(&mut sandbox);
    let of_the_service = |&(tid, _): &(i32, Rank)| tid == 101;
    assert!(!ranks(&mut sandbox).iter().any(of_the_service), "the batch job, which is told, has a core");
}

#[test]
fn a_service_that_is_moved_off_its_core_while_it_rests_keeps_ordinary_rank() {
    let mut sandbox = shared_machine();
    until_it_rests(&mut sandbox);
    let id = KthreadId { runtime: RuntimeId(SERVICE), index: 0 };
    sandbox.peer(BATCH).queue(0, 1);
    move_off(&mut sandbox, id);
    rest(&mut sandbox);
    assert!(!ranks(&mut sandbox).contains(&(101, Rank::RealTime)));
}

#[test]
fn a_service_of_another_user_never_has_real_time_rank() {
    let mut sandbox = shared_machine();
    sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).unwrap().key =
        Some(Key { user: Some(7), grant: Some(0) });
    contest(&mut sandbox, true);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    assert_eq!(ranks(&mut sandbox), [(101, Rank::Ordinary)]);
    assert!(told_that_wakes_preempt(&mut sandbox).is_empty());
}

#[test]
fn a_program_that_returns_with_fewer_kthreads_is_not_taken_for_the_former_owner_of_a_core() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(BATCH, 2, 0, BestEffort);
    sandbox.add(SERVICE, 2, 2, LatencyCritical);
    sandbox.peer(BATCH).queue(0, 9);
    sandbox.peer(BATCH).queue(1, 9);
    sandbox.settle();
    assert_eq!(
        sandbox.alloc.runnable_kthreads(&sandbox.world, sandbox.now),
        (2, 2),
        "the batch job has both cores"
    );
    sandbox.peer(SERVICE).queue(0, 9);
    sandbox.peer(SERVICE).queue(1, 9);
    sandbox.settle();
    assert_eq!(sandbox.alloc.runnable_kthreads(&sandbox.world, sandbox.now), (2, 4), "it has ceded both");
    sandbox.end(RuntimeId(BATCH));
    sandbox.add(BATCH, 1, 0, BestEffort);
    assert_eq!(sandbox.alloc.runnable_kthreads(&sandbox.world, sandbox.now), (2, 2));
}

#[test]
fn a_kthread_that_has_just_given_its_core_up_may_be_runnable() {
    let mut sandbox = shared_machine();
    let runnable = |sandbox: &Sandbox| sandbox.alloc.runnable_kthreads(&sandbox.world, sandbox.now);
    sandbox.peer(SERVICE).queue(0, 1);
    sandbox.settle();
    sandbox.peer(SERVICE).queue(0, 0);
    sandbox.tick();
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(100);
    assert_eq!(runnable(&sandbox), (0, 1));
    sandbox.pass(sandbox.alloc.bounds.parking);
    assert_eq!(runnable(&sandbox), (0, 0));
}

#[test]
fn kthreads_that_were_moved_off_by_force_hide_no_thread_of_another_program() {
    let config = Config::default();
    let mut sandbox = Sandbox::with_config(1, Vec::new(), &config);
    sandbox.add(BATCH, 20, 0, BestEffort);
    for index in 0..20 {
        sandbox.peer(BATCH).queue(index, 1);
        sandbox.settle();
        let holder = (0..20).find(|&k| sandbox.peers[&BATCH].state(k) == KthreadState::Running);
        let index = holder.expect("a kthread with the core");
        let id = KthreadId { runtime: RuntimeId(BATCH), index };
        sandbox.peer(BATCH).queue(index, 0);
        move_off(&mut sandbox, id);
    }
    assert_eq!(sandbox.world.stats.cores.evictions.get(), 20);
    let (_, most) = sandbox.alloc.runnable_kthreads(&sandbox.world, sandbox.now);
    assert!(most <= 2, "{most} of one core");
}

#[test]
fn a_thread_of_a_process_that_has_become_another_users_is_not_ranked() {
    let own = std::process::id() as i32;
    let user = rustix::process::geteuid().as_raw();
    for (connected, ranked) in [(user, true), (user + 1, false)] {
        let mut sandbox = Sandbox::new(1, Vec::new());
        sandbox.alloc.allow_ranks(Ranks { may_lower: true, for_good: false, real_time: true });
        sandbox.add_of(Some(7), BATCH, 1, 0, BestEffort);
        let runtime = sandbox.world.runtimes.get_mut(RuntimeId(BATCH)).unwrap();
        runtime.folder = Some(Folder::open(own, connected).unwrap());
        contest(&mut sandbox, true);
        sandbox.peer(BATCH).queue(0, 1);
        sandbox.settle();
        assert_eq!(!ranks(&mut sandbox).is_empty(), ranked);
    }
}
