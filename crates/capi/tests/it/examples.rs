//! The programs in `examples/`: compiled as a user would, attached to an IOKernel, and asked by
//! another program.

use crate::compile::{Installed, Language, compilers};
use std::path::Path;
use std::process::Command;
use tailwater_iokernel::Config;
use tailwater_testbed::embedded::Embedded;
use tailwater_testkit::{PATIENCE, Program, cpu_numbers, has_two_cpus, socket_name, text};

/// An IOKernel that lends one core, on a thread of the test.
struct Kernel {
    socket: String,
    _iokernel: Embedded,
}

impl Kernel {
    fn start() -> Self {
        let socket = socket_name("capi");
        let config = Config {
            socket: socket.clone(),
            managed_cores: Some(vec![*cpu_numbers().last().expect("a core")]),
            neighbour_share: 0,
            ..Config::default()
        };
        let iokernel = Embedded::with_ports(config, Vec::new(), None).expect("an IOKernel");
        Self { socket, _iokernel: iokernel }
    }

    /// Returns a command that runs a program attached.
    fn attach(&self, program: &Path, name: &str, ip: &str) -> Command {
        let mut command = Command::new(program);
        command.envs([
            ("TAILWATER_IOKERNEL", self.socket.as_str()),
            ("TAILWATER_NAME", name),
            ("TAILWATER_IP", ip),
            ("TAILWATER_KTHREADS", "1"),
            ("TAILWATER_STALL_TIMEOUT_MS", "0"),
        ]);
        command
    }
}

#[test]
fn servers_answer_other_programs_over_an_iokernel() {
    let Some(installed) = Installed::get() else { return };
    if !has_two_cpus() {
        return;
    }
    let compiler = compilers(Language::C)[0];
    let client = installed.compile(compiler, "tests/programs/client.c", &["-O2"]);
    let kernel = Kernel::start();
    let cases = [
        ("echo", "tcp", "come back"),
        ("dispatch", "udp", "S"),
        ("dispatch", "udp", "G"),
        ("spin", "udp", "#1"),
    ];
    for (number, (example, protocol, request)) in cases.into_iter().enumerate() {
        let program = installed.compile(compiler, &format!("examples/{example}.c"), &["-O2"]);
        let ip = format!("10.77.0.{}", 10 + number);
        let mut server = Program::start(kernel.attach(&program, &format!("server-{number}"), &ip).arg("0"));
        let port = server.line_after(&format!("{example}: port "));
        let mut command = kernel.attach(&client, &format!("client-{number}"), "10.77.0.9");
        let output = Program::start(command.args([protocol, &ip, &port, request])).finish_within(PATIENCE);
        let replies = text(&output.stdout);
        assert!(output.status.success(), "{example}: {replies}{}", text(&output.stderr));
        assert_eq!(replies, format!("{request}\n"), "{example}");
        server.kill();
    }
}

#[test]
fn the_batch_job_computes_prices_as_the_formula_has_them() {
    let Some(installed) = Installed::get() else { return };
    for compiler in compilers(Language::Cpp) {
        let program = installed.compile(compiler, "examples/options.cpp", &["-O2"]);
        let output = Program::start(Command::new(program).arg("20000")).finish_within(PATIENCE);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().count(), 8);
    }
}

#[test]
fn a_program_that_requests_cores_counts_primes() {
    let Some(installed) = Installed::get() else { return };
    let program = installed.compile(compilers(Language::C)[0], "examples/cores.c", &["-O2"]);
    let output = Program::start(Command::new(program).arg("10000")).finish_within(PATIENCE);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).ends_with("1229 primes below 10000\n"), "{}", text(&output.stdout));
}

#[test]
fn examples_of_published_interfaces_have_at_most_80_lines() {
    for example in ["dispatch.c", "cores.c"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example);
        assert!(std::fs::read_to_string(path).unwrap().lines().count() <= 80, "{example}");
    }
}
