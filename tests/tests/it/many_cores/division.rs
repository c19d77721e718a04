//! Cores that eight programs request: who gets how many, and which.

use super::{NO_STALLS, SLICES, Sample, assert_no_defect, lend, lent, pairs, progress};
use serde_json::Value;
use std::fs;
use tailwater_iokernel::Config;
use tailwater_iokernel::config::PolicyName;
use tailwater_testkit::until;
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
    let requests = [2, 2, 2, 2, 2, 2, 1, 1];
    let mut jobs: Vec<Role> = Vec::new();
    for (number, &cores) in requests.iter().enumerate() {
        jobs.push(start(number, cores as usize));
        await_division(&bench, &jobs, &requests[..=number]);
    }
    for job in &mut jobs[..6] {
        let held = cores(job);
        assert!(is_whole(&held), "{held:?} of {pairs:?}");
    }
    assert_no_defect(&bench.stats());
}
