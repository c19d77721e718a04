//! Many lent cores: what holds of them whatever the machine's speed. Needs six CPUs, of a real
//! machine or of an emulated one (`tests/machine`), whose processors may share a few real ones and
//! stand still for long: time is counted in looks of the allocator.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use tailwater_iokernel::Config;
use tailwater_testkit::{Program, cpu_numbers, eventually, has_cpus, socket_name, until};
use tailwater_tests::{Bench, Role, cores_in, start_iokernel, turn};

/// Least number of CPUs: one for the IOKernel, one for ordinary threads, four to lend.
const CPUS: usize = 6;
/// Looks of the allocator within which a free core is lent while a program queues for it. One look
/// notices, one grants; the rest is for programs whose demand ends meanwhile.
const LOOKS: u64 = 100;
/// Number of samples of who holds which cores.
const SAMPLES: usize = 30;
/// An emulated processor stands still for longer than the runtime's reports of stalls allow.
const NO_STALLS: (&str, &str) = ("TAILWATER_STALL_TIMEOUT_MS", "0");

/// Returns the cores to lend: all but the first two.
fn lent() -> Vec<u16> {
    cpu_numbers()[2..].to_vec()
}

/// Lends all, at the pace of an emulated machine: its processors share a few real ones.
fn lend_all(config: &mut Config) {
    config.managed_cores = Some(lent());
    config.start_deadline_us = 1_000_000;
    config.cede_grace_us = 100_000;
    config.burst_quantum_us = 100_000;
    config.service_quantum_us = 100_000;
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
    bench.child_with(&crunch_role(), name, class, &[("TAILWATER_KTHREADS", &kthreads()), NO_STALLS])
}

/// Rounds of the slowest thread, and the cores of the program, by its next line.
fn progress(job: &mut Role) -> (u64, Vec<u16>) {
    let line = job.line().expect("the job runs");
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
        let stats = bench.stats();
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

    fn sum(&self) -> u64 {
        self.held.iter().sum()
    }
}

/// Checks, over many samples, that no core stays free while these programs want all of them, and
/// returns the samples.
fn check_work_conservation(bench: &Bench, programs: &[&Role]) -> Vec<Sample> {
    let all = lent().len() as u64;
    until("all cores are lent", || Sample::take(bench, programs).sum() == all);
    let mut samples = vec![Sample::take(bench, programs)];
    for _ in 0..SAMPLES {
        let last = samples.last().expect("there is one");
        let next = last.next(bench, programs);
        let stayed_free = last.sum() < all && next.sum() < all && last.grants == next.grants;
        assert!(
            !stayed_free,
            "of {all} cores {:?} were lent, and {} looks later {:?}: {:#}",
            last.held,
            next.looks - last.looks,
            next.held,
            bench.stats()
        );
        samples.push(next);
    }
    samples
}

fn assert_no_defect(stats: &Value) {
    for counter in ["ledger_refusals", "rebind_failures"] {
        assert_eq!(stats["cores"][counter], 0, "{stats:#}");
    }
    for runtime in stats["runtimes"].as_array().expect("an array") {
        assert_eq!(runtime["counters"]["lost_wakes"], 0, "{stats:#}");
    }
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn batch_jobs_have_all_cores_in_equal_parts_and_each_of_their_threads_goes_on() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let mut jobs = ["one", "other"].map(|name| crunch(&bench, name, "best-effort"));
    let samples = check_work_conservation(&bench, &jobs.each_ref());
    let parts: Vec<u64> = (0..2).map(|job| samples.iter().map(|sample| sample.held[job]).sum()).collect();
    assert!(parts[0] <= 2 * parts[1] && parts[1] <= 2 * parts[0], "{parts:?}");
    check_progress(&mut jobs);
    assert_no_defect(&bench.stats());
}

/// Sends numbered datagrams over several flows and checks that each comes back, in the order of its
/// flow.
fn check_echoes(bench: &Bench, services: &[Role], count: u32) {
    const FLOWS: u32 = 16;
    /// Datagrams on their way, few enough for every ring.
    const WINDOW: u32 = 32;
    let flows = FLOWS as usize * services.len();
    let mut next = vec![0u32; flows];
    let mut returned = 0;
    for number in 0..count {
        let flow = number as usize % flows;
        let payload = [flow as u32, number / flows as u32].map(u32::to_be_bytes).concat();
        let port = 4000 + (flow as u16 / services.len() as u16);
        bench.send_from(port, &services[flow % services.len()], 7, &payload);
        let late = number + 1 == count;
        while number + 1 - returned > if late { 0 } else { WINDOW } {
            let answer =
                eventually("each datagram returns", || bench.receive(std::time::Duration::from_millis(200)));
            let word = |at: usize| u32::from_be_bytes(answer[at..at + 4].try_into().expect("four bytes"));
            let flow = word(0) as usize;
            assert_eq!(word(4), next[flow], "flow {flow} is out of order: {:#}", bench.stats());
            next[flow] += 1;
            returned += 1;
        }
    }
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn services_lose_and_reorder_no_frame_while_batch_jobs_take_their_cores() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let count = kthreads();
    let services: Vec<Role> = (0..4)
        .map(|number| {
            let name = format!("service-{number}");
            bench.child_with("echo", &name, "latency-critical", &[("TAILWATER_KTHREADS", &count)])
        })
        .collect();
    let mut jobs = ["one", "other"].map(|name| crunch(&bench, name, "best-effort"));
    let before = jobs.each_mut().map(|job| progress(job).0);
    check_echoes(&bench, &services, 2_000);
    for (job, before) in jobs.iter_mut().zip(before) {
        until("each thread computes", || progress(job).0 > before);
    }
    let stats = bench.stats();
    assert_no_defect(&stats);
    for counter in ["dropped_full", "dropped_torn", "dropped_malformed"] {
        assert_eq!(stats["switch"][counter], 0, "{stats:#}");
    }
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn a_program_keeps_its_guaranteed_cores_among_services_that_want_all() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let count = kthreads();
    let variables = [("TAILWATER_KTHREADS", &*count), ("TAILWATER_GUARANTEED", "2"), NO_STALLS];
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

/// Returns the logical CPUs of each physical core among the lent ones.
fn pairs() -> Vec<Vec<u16>> {
    let lent = lent();
    let mut pairs: Vec<Vec<u16>> = Vec::new();
    for &core in &lent {
        if pairs.iter().any(|pair| pair.contains(&core)) {
            continue;
        }
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let text = fs::read_to_string(path).unwrap_or_default();
        let numbers = text.trim().split([',', '-']).filter_map(|number| number.parse().ok());
        let own: Vec<u16> = numbers.filter(|cpu| lent.contains(cpu)).collect();
        pairs.push(if own.is_empty() { vec![core] } else { own });
    }
    pairs
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
            bench.child_with("crunch 1", &format!("service-{number}"), "latency-critical", &[NO_STALLS])
        })
        .collect();
    for _ in 0..20 {
        let cores: Vec<u16> = services.iter_mut().flat_map(|service| progress(service).1).collect();
        let shared = pairs.iter().any(|pair| cores.iter().filter(|core| pair.contains(core)).count() > 1);
        assert!(!shared, "{cores:?} of {pairs:?}");
    }
}

fn iokernel(socket: &str) -> Program {
    let cores: Vec<String> = lent().iter().map(|core| format!("core={core}")).collect();
    start_iokernel(socket, &cores.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn programs_on_all_cores_go_on_when_a_killed_iokernel_returns() {
    if !has_cpus(CPUS) {
        return;
    }
    let _turn = turn();
    let socket = socket_name("many");
    let mut running = iokernel(&socket);
    let count = kthreads();
    let variables = [("TAILWATER_KTHREADS", &*count), ("TAILWATER_IOKERNEL_WAIT_MS", "0"), NO_STALLS];
    let role = crunch_role();
    let mut jobs = ["one", "two", "three", "four"].map(|name| Role::start(&socket, &role, name, &variables));
    for _ in 0..3 {
        running.kill();
        running = iokernel(&socket);
        let mut held: Vec<u16> = Vec::new();
        until("all cores are lent again", || {
            held.clear();
            held.extend(jobs.iter_mut().flat_map(|job| progress(job).1));
            held.sort_unstable();
            held.dedup();
            held == lent()
        });
        check_progress(&mut jobs);
    }
}

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
    let sum = |bench: &Bench, jobs: &[Role; 2]| Sample::take(bench, &jobs.each_ref()).sum();
    until("all cores are lent", || sum(&bench, &jobs) == all.len() as u64);
    let Some(off_line) = OffLine::take(gone) else { return };
    until("it is noticed", || bench.stats()["cores"]["absent"] == 1);
    until("the others are lent", || sum(&bench, &jobs) == all.len() as u64 - 1);
    check_progress(&mut jobs);
    drop(off_line);
    until("it is back", || bench.stats()["cores"]["absent"] == 0);
    until("all cores are lent", || sum(&bench, &jobs) == all.len() as u64);
    assert_no_defect(&bench.stats());
}
