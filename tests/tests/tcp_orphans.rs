//! TCP of programs whose IOKernel is killed: all as processes, over one managed core.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tailwater_tests::{Role, binary, cpus};

/// An IOKernel in a process; killed when dropped.
struct Daemon(Child);

impl Daemon {
    fn start(socket: &str) -> Self {
        let mut child = Command::new(binary("iokernel"))
            .arg(socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the IOKernel's binary starts");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("it says something");
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails when it was waited for already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn connections_to_others_fail_when_the_iokernel_is_killed_and_those_within_a_program_go_on() {
    if cpus() < 2 {
        return eprintln!("skipped: needs 2 CPUs, this machine lets us use {}", cpus());
    }
    let socket = format!("@tailwater-orphans-{}", std::process::id());
    let iokernel = Daemon::start(&socket);
    let server = Role::start(&socket, "tcp-serve", "server", &[]);
    let peer = format!("{}:7", server.ip);
    let mut program = Role::start(&socket, "tcp-orphan", "program", &[("PEER", &peer)]);
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
