//! TCP of programs whose IOKernel is killed: all as processes, over one managed core.

use tailwater_testkit::{has_two_cpus, socket_name, until};
use tailwater_tests::{Role, start_iokernel, turn};

#[test]
fn connections_to_others_fail_when_the_iokernel_is_killed_and_those_within_a_program_go_on() {
    check(("TAILWATER_ON_IOKERNEL_LOSS", "continue"));
}

#[test]
fn they_fail_later_if_another_iokernel_is_waited_for_in_vain() {
    check(("TAILWATER_IOKERNEL_WAIT_MS", "200"));
}

#[test]
fn a_service_that_has_waited_in_vain_says_so_and_serves_again_when_there_is_an_iokernel() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("late");
    let first = start_iokernel(&socket, &[]);
    let wait = [("TAILWATER_IOKERNEL_WAIT_MS", "100")];
    let mut service = Role::start_heard(&socket, "tcp-late", "service", "latency-critical", &wait);
    drop(first);
    assert_eq!(service.line().as_deref(), Some("accept Err(NetworkDown)"));
    assert_eq!(service.line().as_deref(), Some("recv Err(NetworkDown)"));
    let _second = start_iokernel(&socket, &[]);
    until("the service is attached again", || service.errors().contains("again after"));
    let peer = format!("{}:7", service.ip);
    let mut client = Role::start(&socket, "tcp-call", "client", &[("PEER", &peer), ("LEN", "100000")]);
    let line = client.line().expect("an outcome");
    let hashes = line.strip_prefix("sent ").and_then(|rest| rest.split_once(" received "));
    assert!(hashes.is_some_and(|(sent, received)| sent == received), "{line}");
    assert!(service.succeeded());
}

/// Checks a program with this variable in its environment.
fn check(variable: (&str, &str)) {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("orphans");
    let iokernel = start_iokernel(&socket, &[]);
    let server = Role::start(&socket, "tcp-serve", "server", &[]);
    let peer = format!("{}:7", server.ip);
    let mut program = Role::start(&socket, "tcp-orphan", "program", &[("PEER", &peer), variable]);
    assert_eq!(program.line().as_deref(), Some("talking"));
    drop(iokernel);
    for expected in [
        "a waiting read failed NetworkDown",
        "a later write failed BrokenPipe",
        "a new connection failed NetworkDown",
        "1000 answers within the program",
    ] {
        assert_eq!(program.line().as_deref(), Some(expected));
    }
    assert!(program.succeeded());
}
