//! Cores that Linux takes away from the IOKernel, and from one program.

use super::{CPUS, assert_no_own_defect, check_progress, crunch, held_together, lend_all, lent, progress};
use crate::exclusive::Group;
use std::fs;
use std::path::PathBuf;
use tailwater_testkit::{cpu_numbers, has_cpus, until};
use tailwater_tests::{Bench, Role};

/// A CPU that is off-line until its owner is dropped.
struct OffLine(PathBuf);

impl OffLine {
    /// Takes a CPU off-line, or prints why the test is skipped.
    fn take(core: u16) -> Option<Self> {
        // Only a machine that ends with the test is changed.
        if std::env::var_os("MACHINE_OUT").is_none() {
            eprintln!("skipped: takes CPUs off-line in an emulated machine only (tests/machine)");
            return None;
        }
        let path = PathBuf::from(format!("/sys/devices/system/cpu/cpu{core}/online"));
        fs::write(&path, "0").expect("root may");
        Some(Self(path))
    }
}

impl Drop for OffLine {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "1");
    }
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn a_core_that_goes_off_line_is_lent_no_more_until_it_returns() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let mut jobs = ["one", "other"].map(|name| crunch(&bench, name, "best-effort"));
    let all = lent();
    let gone = all[all.len() / 2];
    let sum = |bench: &Bench, jobs: &[Role; 2]| held_together(bench, &jobs.each_ref());
    until("all cores are lent", || sum(&bench, &jobs) == all.len() as u64);
    let Some(off_line) = OffLine::take(gone) else { return };
    until("it is noticed", || bench.stats()["cores"]["absent"] == 1);
    until("the others are lent", || sum(&bench, &jobs) == all.len() as u64 - 1);
    check_progress(&mut jobs);
    drop(off_line);
    until("it is back", || bench.stats()["cores"]["absent"] == 0);
    until("all cores are lent", || sum(&bench, &jobs) == all.len() as u64);
    assert_no_own_defect(&bench.stats());
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn a_program_whose_cpuset_is_narrowed_runs_on_what_is_left_and_others_have_the_rest() {
    if !has_cpus(CPUS) {
        return;
    }
    let Some(group) = Group::make("") else { return };
    let bench = Bench::start(lend_all, vec![]);
    let mut jobs = ["narrowed", "other"].map(|name| crunch(&bench, name, "best-effort"));
    group.add(jobs[0].pid());
    let all = lent();
    let (kept, gone) = all.split_at(all.len() / 2);
    let is_lent =
        |bench: &Bench, jobs: &[Role; 2]| held_together(bench, &jobs.each_ref()) == all.len() as u64;
    until("all cores are lent", || is_lent(&bench, &jobs));
    let everywhere = group.cpus().1;
    let list = |cores: &[u16]| cores.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    group.confine(&list(&[&cpu_numbers()[..2], kept].concat()));
    until("it is on the cores that it is left", || {
        let held = progress(&mut jobs[0]).1;
        !held.is_empty() && held.iter().all(|core| kept.contains(core))
    });
    until("the other has the rest", || {
        let held = progress(&mut jobs[1]).1;
        gone.iter().all(|core| held.contains(core))
    });
    check_progress(&mut jobs);
    group.confine(&everywhere);
    until("it has others again", || progress(&mut jobs[0]).1.iter().any(|core| gone.contains(core)));
    until("all cores are lent", || is_lent(&bench, &jobs));
    check_progress(&mut jobs);
    let stats = bench.stats();
    assert!(stats["cores"]["rebind_failures"].as_u64() > Some(0), "nothing was refused: {stats:#}");
    assert_no_own_defect(&stats);
}
