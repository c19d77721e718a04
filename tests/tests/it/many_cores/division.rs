//! Cores that eight programs request: who gets how many, and which.

use super::{
    CPUS_TO_LEND_16, NO_STALLS, SAMPLES, SLICES, Sample, assert_no_defect, check_progress, crunch_role,
    kthreads, lend, lent, pairs, progress,
};
use serde_json::Value;
use std::fs;
use tailwater_iokernel::Config;
use tailwater_iokernel::config::PolicyName;
use tailwater_testkit::{has_cpus, until};
use tailwater_tests::{Bench, Role};

fn lend_by_request(config: &mut Config) {
    lend(config, &lent());
    config.policy = PolicyName::Arbiter;
}

/// Returns how many of the cores that it requests a program was granted.
fn granted(stats: &Value, role: &Role) -> u64 {
    let runtimes = stats["runtimes"].as_array().expect("an array");
    let own = runtimes.iter().find(|runtime| runtime["pid"] == role.pid()).expect("it is registered");
    own["counters"]["granted_cores"].as_u64().expect("a number")
}

/// Returns the numbers of the cores of a program, in order.
fn cores(job: &mut Role) -> Vec<u16> {
    let mut held = progress(job).1;
    held.sort_unstable();
    held
}

/// Checks that these programs have been granted as many cores as expected, and that each has them.
fn await_division(bench: &Bench, jobs: &[Role], expected: &[u64]) {
    let programs: Vec<&Role> = jobs.iter().collect();
    until(&format!("the cores are divided as {expected:?}"), || {
        let stats = bench.stats();
        let granted: Vec<u64> = jobs.iter().map(|job| granted(&stats, job)).collect();
        granted == expected && Sample::take(bench, &programs).held == expected
    });
}

#[test]
#[ignore = "for machines with eighteen CPUs, emulated ones as a rule: .ci/full machine"]
fn requests_of_eight_programs_are_met_by_priority_and_their_cores_stay_theirs() {
    if !has_cpus(CPUS_TO_LEND_16) {
        return;
    }
    let bench = Bench::start(
        |config| {
            lend_by_request(config);
            config.managed_cores = Some(lent()[..16].to_vec());
        },
        vec![],
    );
    let (role, count) = (crunch_role(), kthreads());
    let variables = [("TAILWATER_KTHREADS", &*count), NO_STALLS, SLICES];
    let start = |(number, (class, cores, priority)): (usize, (&str, u8, u8))| {
        bench.child_with(&format!("{role} {cores} {priority}"), &format!("p{number}"), class, &variables)
    };
    let (service, batch) = ("latency-critical", "best-effort");
    let requests = [
        (service, 4, 0),
        (service, 2, 0),
        (service, 4, 3),
        (service, 4, 3),
        (service, 4, 7),
        (service, 4, 7),
        (batch, 4, 0),
        (batch, 4, 0),
    ];
    let mut jobs: Vec<Role> = requests.into_iter().enumerate().map(start).collect();
    await_division(&bench, &jobs, &[4, 2, 4, 4, 1, 1, 0, 0]);
    // Granted cores are not taken while their programs use them, whoever else wants more.
    let before: Vec<Vec<u16>> = jobs[..6].iter_mut().map(cores).collect();
    let programs: Vec<&Role> = jobs.iter().collect();
    let mut sample = Sample::take(&bench, &programs);
    for _ in 0..SAMPLES {
        sample = sample.next(&bench, &programs);
        assert_eq!(sample.held, [4, 2, 4, 4, 1, 1, 0, 0]);
    }
    assert_eq!(jobs[..6].iter_mut().map(cores).collect::<Vec<_>>(), before);
    check_progress(&mut jobs[..6]);
    // What one leaves goes to the next in turn, and the others keep what they have.
    drop(jobs.remove(0));
    await_division(&bench, &jobs, &[2, 4, 4, 3, 3, 0, 0]);
    let after: Vec<Vec<u16>> = jobs[..5].iter_mut().map(cores).collect();
    for (before, after) in before[1..].iter().zip(&after) {
        assert!(before.iter().all(|core| after.contains(core)), "{before:?} became {after:?}");
    }
    assert_no_defect(&bench.stats());
}

/// Returns the socket of a core.
fn socket_of(core: u16) -> String {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/physical_package_id");
    fs::read_to_string(path).expect("Linux says so").trim().to_owned()
}

#[test]
#[ignore = "for machines with two sockets of hyperthreads: .ci/full machine"]
fn a_program_is_granted_both_hyperthreads_of_cores_on_one_socket() {
    let pairs = pairs();
    let whole: Vec<&Vec<u16>> = pairs.iter().filter(|pair| pair.len() == 2).collect();
    let sockets = |cores: &mut dyn Iterator<Item = u16>| {
        cores.map(socket_of).collect::<std::collections::BTreeSet<_>>().len()
    };
    if whole.len() < 7 || sockets(&mut lent().into_iter()) < 2 {
        eprintln!("skipped: needs two sockets, and seven cores with two hyperthreads to lend each");
        return;
    }
    let bench = Bench::start(lend_by_request, vec![]);
    let start = |number: usize, cores: usize| {
        let count = cores.to_string();
        let variables = [("TAILWATER_KTHREADS", &*count), NO_STALLS, SLICES];
        let (role, name) = (format!("crunch {cores} {cores} 0"), format!("p{number}"));
        bench.child_with(&role, &name, "latency-critical", &variables)
    };
    let mut large = start(0, 6);
    await_division(&bench, std::slice::from_ref(&large), &[6]);
    let held = cores(&mut large);
    assert_eq!(sockets(&mut held.iter().copied()), 1, "{held:?}");
    let is_whole = |held: &[u16]| {
        held.iter().all(|core| {
            pairs.iter().any(|pair| pair.contains(core) && pair.iter().all(|cpu| held.contains(cpu)))
        })
    };
    assert!(is_whole(&held), "{held:?} of {pairs:?}");
    drop(large);
    until("it has left", || bench.registered() == 0);
    // Eight programs on seven cores: six have one each, two a hyperthread of the last.
    let wishes = [2, 2, 2, 2, 2, 2, 1, 1];
    let mut jobs: Vec<Role> = Vec::new();
    for (number, &cores) in wishes.iter().enumerate() {
        jobs.push(start(number, cores as usize));
        await_division(&bench, &jobs, &wishes[..=number]);
    }
    for job in &mut jobs[..6] {
        let held = cores(job);
        assert!(is_whole(&held), "{held:?} of {pairs:?}");
    }
    assert_no_defect(&bench.stats());
}
