//! Cores that are lent by load: none stays free, guarantees hold, hyperthreads, many kthreads,
//! IX's steps.

use super::{
    CPUS, NO_STALLS, SLICES, Sample, assert_equal_parts, assert_no_defect, await_equal_parts, check_progress,
    check_work_conservation, crunch, crunch_role, kthreads, lend_all, lent, pairs, progress,
};
use tailwater_iokernel::config::PolicyName;
use tailwater_testkit::{has_cpus, until};
use tailwater_tests::{Bench, Role};

/// Checks that two programs, each of which wants all cores, have them in equal parts.
fn check_equal_parts(bench: &Bench, jobs: &[Role; 2]) {
    let programs = jobs.each_ref();
    await_equal_parts(bench, &programs);
    assert_equal_parts(&check_work_conservation(bench, &programs), [0, 1]);
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn batch_jobs_have_all_cores_in_equal_parts_and_each_of_their_threads_goes_on() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let mut jobs = ["one", "other"].map(|name| crunch(&bench, name, "best-effort"));
    check_equal_parts(&bench, &jobs);
    check_progress(&mut jobs);
    assert_no_defect(&bench.stats());
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn a_program_keeps_its_guaranteed_cores_among_services_that_want_all() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let count = kthreads();
    let variables = [("TAILWATER_KTHREADS", &*count), ("TAILWATER_GUARANTEED", "2"), NO_STALLS, SLICES];
    let role = crunch_role();
    let others = ["one", "two", "three"].map(|name| crunch(&bench, name, "latency-critical"));
    let guaranteed = bench.child_with(&role, "guaranteed", "latency-critical", &variables);
    let programs: Vec<&Role> = [&guaranteed].into_iter().chain(&others).collect();
    until("it has its cores", || Sample::take(&bench, &programs).held[0] >= 2);
    for sample in check_work_conservation(&bench, &programs) {
        assert!(sample.held[0] >= 2, "{:?}", sample.held);
    }
    assert_no_defect(&bench.stats());
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn services_are_lent_hyperthreads_of_different_cores_while_there_are_some() {
    let pairs: Vec<_> = if has_cpus(CPUS) { pairs() } else { return };
    if pairs.iter().filter(|pair| pair.len() == 2).count() < 2 {
        eprintln!("skipped: needs two cores with two hyperthreads to lend each");
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let mut services = ["one", "other"]
        .map(|name| bench.child_with("crunch 1", name, "latency-critical", &[NO_STALLS, SLICES]));
    let [one, other] = &mut services;
    until("each has a core", || Sample::take(&bench, &[one, other]).held == [1, 1]);
    let mut compared = 0;
    until("both are where they were when the other was looked at", || {
        let (before, theirs, after) = (progress(one).1, progress(other).1, progress(one).1);
        if before == after && before.len() + theirs.len() == 2 {
            compared += 1;
            let cores = [before, theirs].concat();
            let shared = pairs.iter().any(|pair| cores.iter().filter(|core| pair.contains(core)).count() > 1);
            assert!(!shared, "{cores:?} of {pairs:?}");
        }
        compared == 20
    });
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn a_program_of_64_kthreads_runs_on_the_lent_cores_and_each_of_its_threads_goes_on() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let variables = [("TAILWATER_KTHREADS", "64"), NO_STALLS, SLICES];
    let mut jobs = [
        bench.child_with("crunch 128", "many", "best-effort", &variables),
        crunch(&bench, "other", "best-effort"),
    ];
    check_equal_parts(&bench, &jobs);
    check_progress(&mut jobs);
    let mut held = progress(&mut jobs[0]).1;
    held.sort_unstable();
    let count = held.len();
    held.dedup();
    assert!(held.len() == count && held.iter().all(|core| lent().contains(core)), "{held:?}");
    assert_no_defect(&bench.stats());
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn ix_goes_up_to_the_last_step_for_a_service_and_back_to_the_first_when_it_has_left() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(
        |config| {
            lend_all(config);
            config.policy = PolicyName::Ix;
            config.ix.clocks = false;
        },
        vec![],
    );
    let cores = |name: &str| bench.stats()["cores"][name].as_u64().expect("a number");
    let _idle = bench.child("echo", "idle", "latency-critical");
    let service = crunch(&bench, "service", "latency-critical");
    let mut batch = crunch(&bench, "batch", "best-effort");
    until("the service has all cores", || bench.cores_of(&service) == lent().len() as u64);
    assert!(cores("step") > 0 && cores("in_use") == lent().len() as u64, "{:#}", bench.stats());
    drop(service);
    until("the first step is reached", || cores("step") == 0);
    // What no service uses is for batch jobs, whatever the step.
    until("the batch job has all cores", || bench.cores_of(&batch) == lent().len() as u64);
    check_progress(std::slice::from_mut(&mut batch));
    assert_no_defect(&bench.stats());
}
