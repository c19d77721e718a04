//! IOKernels with many cores that are killed, and that run at once.

use super::{CPUS, NO_STALLS, SLICES, check_progress, crunch_role, kthreads, lent, progress};
use std::fs;
use tailwater_host::parse_list;
use tailwater_testkit::{Program, has_cpus, socket_name, until};
use tailwater_tests::{Role, start_iokernel, turn};

/// Starts four programs that each want all cores, and go on without an IOKernel.
fn crunch_beside(socket: &str) -> [Role; 4] {
    let count = kthreads();
    let variables = [("TAILWATER_KTHREADS", &*count), ("TAILWATER_IOKERNEL_WAIT_MS", "0"), NO_STALLS, SLICES];
    let role = crunch_role();
    ["one", "two", "three", "four"].map(|name| Role::start(socket, &role, name, &variables))
}

/// Waits until these programs together have exactly these cores.
fn await_all_lent(jobs: &mut [Role], cores: &[u16]) {
    until("all cores are lent", || {
        let mut held: Vec<u16> = jobs.iter_mut().flat_map(|job| progress(job).1).collect();
        held.sort_unstable();
        held.dedup();
        held == cores
    });
}

/// Starts an IOKernel that lends all cores.
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
    let mut jobs = crunch_beside(&socket);
    for _ in 0..3 {
        running.kill();
        running = iokernel(&socket);
        await_all_lent(&mut jobs, &lent());
        check_progress(&mut jobs);
    }
}

/// Returns the CPUs of each NUMA node.
fn nodes() -> Vec<Vec<u16>> {
    let list = |file: &str| {
        let text = fs::read_to_string(format!("/sys/devices/system/node/{file}")).unwrap_or_default();
        parse_list(&text).into_iter().map(|number| number.0).collect::<Vec<u16>>()
    };
    list("online").into_iter().map(|node| list(&format!("node{node}/cpulist"))).collect()
}

/// Returns the lines of a process's shared memory with pages on another node than this one.
fn pages_elsewhere(pid: u32, node: usize) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).expect("a kernel with NUMA nodes");
    let is_elsewhere = |word: &str| {
        let number = word.strip_prefix('N').and_then(|rest| rest.split_once('=')?.0.parse::<usize>().ok());
        number.is_some_and(|number| number != node)
    };
    let shared = maps.lines().filter(|line| line.contains("memfd:tailwater"));
    shared.filter(|line| line.split(' ').any(is_elsewhere)).map(str::to_owned).collect()
}

#[test]
#[ignore = "for machines with two NUMA nodes, emulated ones as a rule: .ci/full machine"]
fn two_iokernels_have_the_cores_and_the_memory_of_a_node_each() {
    let nodes = nodes();
    if nodes.len() < 2 || nodes.iter().any(|cores| cores.len() < 4) {
        eprintln!("skipped: needs two NUMA nodes of four CPUs each");
        return;
    }
    let _turn = turn();
    let mut sides = Vec::new();
    for (node, cores) in nodes.iter().enumerate() {
        let socket = socket_name("node");
        let iokernel = start_iokernel(&socket, &[format!("node={node}").as_str()]);
        let count = (cores.len() - 1).to_string();
        let variables = [("TAILWATER_KTHREADS", &*count), NO_STALLS, SLICES];
        let job = Role::start(&socket, &format!("crunch {}", 2 * cores.len()), "job", &variables);
        sides.push((iokernel, job));
    }
    for (node, ((iokernel, job), cores)) in sides.iter_mut().zip(&nodes).enumerate() {
        // The first one of each polls.
        await_all_lent(std::slice::from_mut(job), &cores[1..]);
        check_progress(std::slice::from_mut(job));
        assert_eq!(pages_elsewhere(iokernel.pid(), node), Vec::<String>::new());
    }
}
