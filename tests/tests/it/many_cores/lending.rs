//! Cores that are lent by load: none stays free, guarantees hold, hyperthreads.

use super::{
    CPUS, NO_STALLS, SLICES, Sample, assert_equal_parts, assert_no_defect, check_progress,
    check_work_conservation, crunch, crunch_role, kthreads, lend_all, pairs, progress,
};
use tailwater_testkit::{has_cpus, until};
use tailwater_tests::{Bench, Role};

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn batch_jobs_have_all_cores_in_equal_parts_and_each_of_their_threads_goes_on() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let mut jobs = ["one", "other"].map(|name| crunch(&bench, name, "best-effort"));
    let samples = check_work_conservation(&bench, &jobs.each_ref());
    assert_equal_parts(&samples, [0, 1]);
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
    let mut services: Vec<Role> = (0..2)
        .map(|number| {
            bench.child_with(
                "crunch 1",
                &format!("service-{number}"),
                "latency-critical",
                &[NO_STALLS, SLICES],
            )
        })
        .collect();
    for _ in 0..20 {
        let cores: Vec<u16> = services.iter_mut().flat_map(|service| progress(service).1).collect();
        let shared = pairs.iter().any(|pair| cores.iter().filter(|core| pair.contains(core)).count() > 1);
        assert!(!shared, "{cores:?} of {pairs:?}");
    }
}
