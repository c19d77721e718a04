//! Many lent cores: what holds of them whatever the machine's speed. Needs six CPUs or more, of a
//! real machine or of an emulated one (`tests/machine`), whose processors may share a few real ones
//! and stand still for long: time is counted in looks of the allocator.
//!
//! Owns what these tests share. [`lending`] is about cores by load, [`division`] about requested
//! ones, [`frames`] about what services receive meanwhile, [`dispatchers`] about requests within a
//! program, [`iokernels`] about one that ends or is not alone, [`cpus`] about cores that Linux
//! takes away.

mod cpus;
mod dispatchers;
mod division;
mod frames;
mod iokernels;
mod lending;

use serde_json::Value;
use std::fs;
use tailwater_host::parse_list;
use tailwater_iokernel::Config;
use tailwater_testkit::{cpu_numbers, eventually, until};
use tailwater_tests::{Bench, Role, cores_in};

/// Least number of CPUs: one for the IOKernel, one for ordinary threads, four to lend.
const CPUS: usize = 6;
/// Looks of the allocator within which a free core is lent while a program queues for it. One look
/// notices, one grants; the rest is for programs whose demand ends meanwhile.
const LOOKS: u64 = 100;
/// Number of samples of who holds which cores.
const SAMPLES: usize = 30;
/// An emulated processor stands still for longer than the runtime's reports of stalls allow.
const NO_STALLS: (&str, &str) = ("TAILWATER_STALL_TIMEOUT_MS", "0");
/// Threads that compute let the one that prints run, also where no other program takes the core.
const SLICES: (&str, &str) = ("TAILWATER_QUANTUM_US", "2000");

/// Returns the cores to lend: all but the first two.
fn lent() -> Vec<u16> {
    cpu_numbers()[2..].to_vec()
}

/// Lends these cores, at the pace of an emulated machine: its processors share a few real ones, and
/// a sample of who holds which takes a good part of a second. Programs that cannot be equal pass a
/// core on after each quantum.
fn lend(config: &mut Config, cores: &[u16]) {
    config.managed_cores = Some(cores.to_vec());
    config.start_deadline_us = 10_000_000;
    config.cede_grace_us = 100_000;
    config.burst_quantum_us = 10_000_000;
    config.service_quantum_us = 10_000_000;
}

/// Lends all of them.
fn lend_all(config: &mut Config) {
    lend(config, &lent());
}

/// Returns the number of kthreads of a program that may have all lent cores.
fn kthreads() -> String {
    lent().len().to_string()
}

/// Returns a role of twice as many threads that compute.
fn crunch_role() -> String {
    format!("crunch {}", 2 * lent().len())
}

/// Starts a program of this role with a kthread for each lent core.
fn crunch(bench: &Bench, name: &str, class: &str) -> Role {
    bench.child_with(&crunch_role(), name, class, &[("TAILWATER_KTHREADS", &kthreads()), NO_STALLS, SLICES])
}

/// Rounds of the slowest thread, and the cores of the program, after this call.
fn progress(job: &mut Role) -> (u64, Vec<u16>) {
    let line = job.fresh_line().expect("the job runs");
    let parse = || {
        let (rounds, held) = line.strip_prefix("rounds ")?.split_once(" held ")?;
        let held = held.strip_prefix('[')?.strip_suffix(']')?;
        let held = held.split(", ").filter(|core| !core.is_empty()).map(str::parse).collect::<Result<_, _>>();
        Some((rounds.parse().ok()?, held.ok()?))
    };
    parse().unwrap_or_else(|| panic!("{line}"))
}

/// Waits until each thread of each job computes.
fn check_progress(jobs: &mut [Role]) {
    for job in jobs {
        let (before, _) = progress(job);
        until("each thread computes", || progress(job).0 > before);
    }
}

/// One sample of the allocator.
struct Sample {
    looks: u64,
    grants: u64,
    /// Cores held by each program, in the order asked for.
    held: Vec<u64>,
}

impl Sample {
    fn take(bench: &Bench, programs: &[&Role]) -> Self {
        let stats = bench.settled_stats();
        let count = |name: &str| stats["cores"][name].as_u64().expect("a number");
        let held = programs.iter().map(|role| cores_in(&stats, role)).collect();
        Self { looks: count("ticks"), grants: count("grants"), held }
    }

    /// Takes one at least [`LOOKS`] after this.
    fn next(&self, bench: &Bench, programs: &[&Role]) -> Self {
        eventually("the allocator looks on", || {
            Some(Self::take(bench, programs)).filter(|sample| sample.looks >= self.looks + LOOKS)
        })
    }

    /// Takes the [`next`](Self::next) one, and checks that no core of `all` was free at both and
    /// lent in between to no program, while one wants it.
    fn next_without_free_core(&self, bench: &Bench, programs: &[&Role], all: u64) -> Self {
        let next = self.next(bench, programs);
        let stayed_free = self.sum() < all && next.sum() < all && self.grants == next.grants;
        assert!(
            !stayed_free,
            "of {all} cores {:?} were lent, and {} looks later {:?}: {:#}",
            self.held,
            next.looks - self.looks,
            next.held,
            bench.stats()
        );
        next
    }

    fn sum(&self) -> u64 {
        self.held.iter().sum()
    }
}

/// Returns how many cores these programs hold, about: one that changes hands may be missing, or
/// count twice.
fn held_together(bench: &Bench, programs: &[&Role]) -> u64 {
    let stats = bench.stats();
    programs.iter().map(|role| cores_in(&stats, role)).sum()
}

/// Checks, over many samples, that no core stays free while these programs want all of them, and
/// returns the samples.
fn check_work_conservation(bench: &Bench, programs: &[&Role]) -> Vec<Sample> {
    let all = lent().len() as u64;
    until("all cores are lent", || held_together(bench, programs) == all);
    let mut samples = vec![Sample::take(bench, programs)];
    for _ in 0..SAMPLES {
        let last = samples.last().expect("there is one");
        samples.push(last.next_without_free_core(bench, programs, all));
    }
    samples
}

/// Waits until two programs that want all cores have equal parts of them.
fn await_equal_parts(bench: &Bench, programs: &[&Role; 2]) {
    until("both have their parts", || {
        let [one, other] = programs.map(|program| bench.cores_of(program));
        one.min(other) > 0 && one.abs_diff(other) <= 1
    });
}

/// Checks that two programs had equal parts of the cores, up to a factor of two, over these
/// samples, in which they are at these places.
fn assert_equal_parts(samples: &[Sample], places: [usize; 2]) {
    let [one, other] = places.map(|place| samples.iter().map(|sample| sample.held[place]).sum::<u64>());
    assert!(one <= 2 * other && other <= 2 * one, "{one} and {other}");
}

/// Checks that nothing went wrong, and that Linux let all kthreads go where they should.
fn assert_no_defect(stats: &Value) {
    assert_eq!(stats["cores"]["rebind_failures"], 0, "{stats:#}");
    assert_no_own_defect(stats);
}

/// As [`assert_no_defect`], where Linux takes cores away: it may refuse one before the IOKernel
/// knows.
fn assert_no_own_defect(stats: &Value) {
    assert_eq!(stats["cores"]["ledger_refusals"], 0, "{stats:#}");
    for runtime in stats["runtimes"].as_array().expect("an array") {
        assert_eq!(runtime["counters"]["lost_wakes"], 0, "{stats:#}");
    }
}

/// Returns the logical CPUs of a core's physical core, itself included.
fn siblings(core: u16) -> Vec<u16> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let siblings = parse_list(&fs::read_to_string(path).expect("Linux says so"));
    siblings.into_iter().map(|cpu| cpu.0).collect()
}

/// Returns the logical CPUs of each physical core among the lent ones.
fn pairs() -> Vec<Vec<u16>> {
    let lent = lent();
    let mut pairs: Vec<Vec<u16>> = Vec::new();
    for &core in &lent {
        if pairs.iter().any(|pair| pair.contains(&core)) {
            continue;
        }
        pairs.push(siblings(core).into_iter().filter(|cpu| lent.contains(cpu)).collect());
    }
    pairs
}
