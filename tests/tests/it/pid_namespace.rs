//! An IOKernel and programs in PID namespaces, as in containers: it serves those of its own
//! namespace, and says why not to others.

use rustix::thread::{Pid, sched_getaffinity};
use std::process::Command;
use tailwater_iokernel_testing::RawSpec;
use tailwater_testkit::{
    Program, binary, children, cpu_numbers, eventually, has_two_cpus, is_installed, text, thread_named, until,
};
use tailwater_tests::Role;
use tailwater_tests::attack::{Offer, Target, pid_namespace};

/// Returns the only child of a process.
fn child_of(pid: u32) -> u32 {
    eventually("it has a child", || children(pid).first().copied())
}

#[test]
fn an_iokernel_in_a_pid_namespace_lends_cores_to_programs_inside_and_refuses_those_outside() {
    if !has_two_cpus() || !is_installed("nsenter", "util-linux") {
        return;
    }
    let Some(target) = Target::start_in_pid_namespace() else { return };
    let why = Offer::ask(&target.socket, &RawSpec::new("outside").register).map(drop).unwrap_err();
    assert!(why.contains("PID namespace that the IOKernel does not see"), "{why}");
    // Process 1 of the namespace.
    let iokernel = child_of(target.program.pid());
    let managed = usize::from(*cpu_numbers().last().expect("this process runs somewhere"));
    // The service last: beside it the batch job has no core.
    for (name, class) in [("batch", "best-effort"), ("service", "latency-critical")] {
        // It has run its first lines, for which it needs a core.
        let role = Role::start_beside(iokernel, &target.socket, "burn", name, class);
        let kthread = thread_named(child_of(role.pid()), "tailwater/0").expect("it has a kthread");
        until("its kthread is bound to the managed core", || {
            let cores = sched_getaffinity(Pid::from_raw(kthread)).expect("it runs");
            cores.count() == 1 && cores.is_set(managed)
        });
        until("the statistics have its core", || {
            let stats = target.stats();
            let runtimes = stats["runtimes"].as_array().expect("an array");
            runtimes.iter().any(|runtime| runtime["name"] == name && runtime["counters"]["cores"] == 1)
        });
    }
}

#[test]
fn a_program_in_a_pid_namespace_of_its_own_is_refused_with_what_to_do() {
    if !has_two_cpus() {
        return;
    }
    let Some(mut inside) = pid_namespace() else { return };
    let target = Target::start();
    let variables = [("TAILWATER_IOKERNEL", target.socket.as_str()), ("TAILWATER_NAME", "inside")];
    let role: &mut Command = inside.arg(binary("tailwater-tests", "role")).arg("burn").envs(variables);
    let output = Program::start(role.env("TAILWATER_KTHREADS", "1")).finish();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("start both in one PID namespace"), "{said}");
    target.admits("newcomer");
}
