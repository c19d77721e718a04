//! An IOKernel and programs in PID namespaces, as in containers: it serves those of its own
//! namespace and of those below, and says why not to others.

use rustix::process::{Signal, kill_process};
use rustix::thread::{Pid, sched_getaffinity};
use std::process::Command;
use tailwater_iokernel_testing::RawSpec;
use tailwater_testkit::{
    CpuQuota, children, cpu_numbers, eventually, has_two_cpus, is_installed, thread_named, until,
};
use tailwater_tests::attack::{Offer, Target, pid_namespace};
use tailwater_tests::{Role, start_iokernel, turn};

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
    // The service last: beside it the batch job has no core.
    for (name, class) in [("batch", "best-effort"), ("service", "latency-critical")] {
        // It has run its first lines, for which it needs a core.
        let role = Role::start_beside(iokernel, &target.socket, "burn", name, class);
        wait_until_bound(child_of(role.pid()));
        until("the statistics have its core", || {
            let stats = target.stats();
            let runtimes = stats["runtimes"].as_array().expect("an array");
            runtimes.iter().any(|runtime| runtime["name"] == name && runtime["counters"]["cores"] == 1)
        });
    }
}

/// Waits until the first kthread of a process is bound to the managed core.
fn wait_until_bound(pid: u32) {
    let managed = usize::from(*cpu_numbers().last().expect("this process runs somewhere"));
    let kthread = thread_named(pid, "tailwater/0").expect("it has a kthread");
    until("its kthread is bound to the managed core", || {
        let cores = sched_getaffinity(Pid::from_raw(kthread)).expect("it runs");
        cores.count() == 1 && cores.is_set(managed)
    });
}

/// Returns the process of a program in the statistics; `None` if it is not registered.
fn registered(stats: &serde_json::Value, name: &str) -> Option<u64> {
    let mut runtimes = stats["runtimes"].as_array().expect("an array").iter();
    runtimes.find(|runtime| runtime["name"] == name)?["pid"].as_u64()
}

#[test]
fn programs_in_pid_namespaces_of_their_own_are_bound_preempted_and_released() {
    if !has_two_cpus() {
        return;
    }
    let (Some(first), Some(second)) = (pid_namespace(), pid_namespace()) else { return };
    let target = Target::start();
    let start = |command, role, name, class| {
        let role = Role::start_by(command, &target.socket, role, name, class, &[]);
        let pid = child_of(role.pid());
        wait_until_bound(pid);
        assert_eq!(registered(&target.stats(), name), Some(pid.into()), "by its number outside");
        (role, pid)
    };
    // The job has no poll points: it gives the core up for the signal only. Within their
    // namespaces, the threads of the two have the same numbers.
    let _job = start(first, "hog", "job", "best-effort");
    let (_service, pid) = start(second, "burn", "service", "latency-critical");
    // Process 1 of its namespace.
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a number"), Signal::KILL).expect("it runs");
    until("the killed program is released", || registered(&target.stats(), "service").is_none());
    assert!(registered(&target.stats(), "job").is_some());
    target.admits("newcomer");
}

#[test]
fn a_program_with_namespaces_of_every_kind_and_no_rights_is_lent_cores() {
    if !has_two_cpus() || !is_installed("setpriv", "util-linux") {
        return;
    }
    let Some(mut inside) = pid_namespace() else { return };
    let words = ["--user", "--map-root-user", "--net", "--ipc", "--uts", "--cgroup", "--", "setpriv"];
    inside.args(words).args(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]);
    // A network namespace has abstract addresses of its own: a file it is.
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let socket = folder.path().join("socket").to_str().expect("Unicode").to_owned();
    let _turn = turn();
    let _iokernel = start_iokernel(&socket, &[]);
    let role = Role::start_by(inside, &socket, "burn", "confined", "latency-critical", &[]);
    wait_until_bound(child_of(role.pid()));
}

#[test]
fn a_cpu_quota_below_the_kthreads_is_told_when_a_program_registers() {
    if !has_two_cpus() {
        return;
    }
    let Some(quota) = CpuQuota::new("registered") else { return };
    let mut target = Target::start_command();
    let enter = format!("echo $$ > {} && exec \"$0\" \"$@\"", quota.procs().display());
    let mut command = Command::new("sh");
    command.args(["-c", &enter]);
    let _role = Role::start_by(command, &target.socket, "echo", "limited", "latency-critical", &[]);
    let said = target.program.error_line_with("CPU quota");
    for part in ["limited", "0.20 cores", "--cpus", "limits.cpu"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
