//! The IOKernel dies and returns under running programs: all as processes, over one managed core.

use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{ChildStdin, Stdio};
use tailwater_testkit::{cpu_numbers, eventually, has_two_cpus, socket_name, until};
use tailwater_tests::{Bench, Role, start_iokernel, turn};

/// Connections that are busy while the IOKernel is killed.
const CONNECTIONS: usize = 64;
/// How often it is killed.
const TIMES: u32 = 5;
/// A program waits for the next IOKernel for as long as its test takes.
const FOR_EVER: (&str, &str) = ("TAILWATER_IOKERNEL_WAIT_MS", "0");

/// Returns the exchanges of the slowest connection, as the next line of the client has it.
fn least(client: &mut Role) -> u64 {
    let line = client.line().expect("the client runs");
    let words: Vec<&str> = line.split(' ').collect();
    let ["least", least, "sum", _] = words[..] else { panic!("{line}") };
    least.parse().expect("a number")
}

/// Waits until each connection has completed three more exchanges since this call. One may have
/// been answered before.
fn wait_for_progress(client: &mut Role, input: &mut ChildStdin) {
    writeln!(input, "here").expect("the client reads");
    // The lines before were printed at an unknown time.
    while client.line().expect("the client runs") != "read" {}
    let before = least(client);
    until("each connection goes on", || least(client) >= before + 3);
}

#[test]
fn connections_and_datagrams_go_on_when_a_killed_iokernel_returns() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("restart");
    let mut running = start_iokernel(&socket, &[]);
    let tcp = Role::start(&socket, "tcp-serve", "tcp", &[FOR_EVER]);
    let udp = Role::start(&socket, "echo", "udp", &[FOR_EVER]);
    let (peer, udp_peer) = (format!("{}:7", tcp.ip), format!("{}:7", udp.ip));
    let variables = [("PEER", &*peer), ("UDP_PEER", &*udp_peer), FOR_EVER];
    let mut client = Role::start(&socket, &format!("steady {CONNECTIONS}"), "client", &variables);
    let mut input = client.take_input();
    wait_for_progress(&mut client, &mut input);
    for _ in 0..TIMES {
        running.kill();
        running = start_iokernel(&socket, &[]);
        wait_for_progress(&mut client, &mut input);
    }
    drop(input);
    let rest: Vec<String> = std::iter::from_fn(|| client.line()).collect();
    assert_eq!(rest.last().map(String::as_str), Some("intact"), "{rest:?}");
}

/// Returns the number of rounds in the next line of a batch job.
fn rounds(job: &mut Role) -> u64 {
    let line = job.line().expect("the job runs");
    line.strip_prefix("rounds ").and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn user_threads_that_never_poll_go_on() {
    check_job("soundness");
}

#[test]
fn threads_that_sleep_wake_beside_others_that_never_do_also_with_fewer_cores() {
    check_job("sleepers");
}

/// Checks that all threads of a job with more kthreads than the IOKernel lends cores go on when it
/// is killed, and when it returns.
fn check_job(role: &str) {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name(role);
    let mut running = start_iokernel(&socket, &[]);
    let variables = [("TAILWATER_KTHREADS", "3"), ("TAILWATER_QUANTUM_US", "500"), FOR_EVER];
    for class in ["best-effort", "latency-critical"] {
        let mut job = Role::start_heard(&socket, role, "job", class, &variables);
        for time in 1..=2 {
            let before = rounds(&mut job);
            running.kill();
            until("the job goes on without an IOKernel", || rounds(&mut job) > before);
            running = start_iokernel(&socket, &[]);
            until("the job is attached", || job.errors().matches("attached to").count() >= time);
            let before = rounds(&mut job);
            until("the job goes on with another IOKernel", || rounds(&mut job) > before);
        }
        job.kill();
    }
}

#[test]
fn a_refusal_is_reported_and_the_registration_tried_again() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("restart-refused");
    let mut running = start_iokernel(&socket, &[]);
    let variables = [("TAILWATER_KTHREADS", "2"), FOR_EVER];
    let service = Role::start_heard(&socket, "echo", "service", "latency-critical", &variables);
    running.kill();
    let refuse = |c: &mut tailwater_iokernel::Config| {
        c.socket = socket.clone();
        c.max_kthreads = 1;
    };
    let mut bench = Bench::start_beside(refuse, vec![]);
    until("the refusal is written", || service.errors().contains("accepts 1 to 1 (max-kthreads)"));
    assert_eq!(bench.registered(), 0);
    bench.stop();
    drop(bench);
    let bench = Bench::start_beside(|c| c.socket = socket.clone(), vec![]);
    bench.echo(&service, b"after all");
}

#[test]
fn a_request_for_cores_outlives_the_iokernel_and_the_cores_do_not() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("restart-request");
    let start = || start_iokernel(&socket, &["arbiter"]);
    let mut running = start();
    let mut service = Role::start(&socket, "keep-request", "service", &[FOR_EVER]);
    let core = cpu_numbers().last().copied().expect("two");
    let mut expect = |state: String| {
        while service.line().expect("the service runs") != state {}
    };
    for _ in 0..2 {
        expect(format!("requested 1 granted 1 held [{core}]"));
        running.kill();
        expect("requested 1 granted 0 held []".to_owned());
        running = start();
    }
    expect(format!("requested 1 granted 1 held [{core}]"));
}

/// Returns both ends of a pipe that takes no more.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("flags");
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("a flag is set");
    while rustix::io::write(&writer, &[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).expect("a flag is cleared");
    (reader, writer)
}

#[test]
fn standard_error_that_nobody_reads_stops_no_program() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("restart-unread");
    let mut running = start_iokernel(&socket, &["arbiter"]);
    let (_unread, full) = full_pipe();
    let start = |name, variable| {
        let stderr = Stdio::from(full.try_clone().expect("a descriptor"));
        // A report of a stall would wait for a reader.
        let no_reports = ("TAILWATER_STALL_TIMEOUT_MS", "0");
        Role::start_with_errors_to(stderr, &socket, "keep-request", name, &[variable, no_reports])
    };
    let mut leaving = start("leaving", ("TAILWATER_ON_IOKERNEL_LOSS", "exit"));
    let mut staying = start("staying", FOR_EVER);
    running.kill();
    assert_eq!(leaving.wait().code(), Some(75));
    while staying.line().expect("it runs") != "requested 1 granted 0 held []" {}
    let _running = start_iokernel(&socket, &["arbiter"]);
    while !staying.line().expect("it runs").starts_with("requested 1 granted 1") {}
}

/// Returns the CPUs on which each thread of a process may run that is no kthread, as Linux writes
/// them.
fn cpus_of_ordinary_threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        // Fails if the thread has ended.
        std::fs::read_to_string(task.ok()?.path().join("status")).ok()
    };
    let field = |status: &str, name: &str| -> String {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).expect("proc_pid_status(5)");
        value.trim().to_owned()
    };
    let is_kthread = |status: &str| {
        let name = field(status, "Name:");
        name.strip_prefix("tailwater/").is_some_and(|index| index.parse::<u16>().is_ok())
    };
    let ordinary = tasks.filter_map(status).filter(|status| !is_kthread(status));
    ordinary.map(|status| field(&status, "Cpus_allowed_list:")).collect()
}

#[test]
fn ordinary_threads_leave_the_cores_that_the_next_iokernel_manages() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("restart-cores");
    let cpus = cpu_numbers();
    let mut running = start_iokernel(&socket, &[]);
    let mut service = Role::start(&socket, "keep-request", "service", &[FOR_EVER]);
    let pid = service.pid();
    // All alike, but for one that is just being started by a kthread.
    let alike = || {
        let masks = cpus_of_ordinary_threads(pid);
        (masks.len() > 2 && masks.iter().all(|mask| *mask == masks[0])).then(|| masks[0].clone())
    };
    let before = eventually("all ordinary threads are off the managed core", alike);
    assert!(service.line().is_some());
    running.kill();
    let _running = start_iokernel(&socket, &[&format!("core={}", cpus[0])]);
    until("all ordinary threads have moved", || alike().is_some_and(|mask| mask != before));
}
