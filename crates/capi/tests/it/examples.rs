//! The programs in `examples/`: compiled as a user would, attached to an IOKernel, and asked by
//! another program.

use crate::compile::{Installed, Language, compilers, with_levels};
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
    let kernel = Kernel::start();
    for (number, (compiler, level)) in with_levels(Language::C).into_iter().enumerate() {
        answered(installed, &kernel, compiler, level, 10 + 10 * number);
    }
}

/// Compiles and asks each server, whose addresses end with `first` and the numbers after it.
fn answered(installed: &Installed, kernel: &Kernel, compiler: &str, level: &str, first: usize) {
    let client = installed.compile(compiler, "tests/programs/client.c", &[level]);
    let cases = [
        ("echo", "tcp", "come back"),
        ("events", "tcp", "come back"),
        ("dispatch", "udp", "S"),
        ("dispatch", "udp", "G"),
        ("spin", "udp", "#1"),
    ];
    for (number, (example, protocol, request)) in cases.into_iter().enumerate() {
        let program = installed.compile(compiler, &format!("examples/{example}.c"), &[level]);
        let ip = format!("10.77.0.{}", first + number);
        let mut server = Program::start(kernel.attach(&program, &format!("server-{number}"), &ip).arg("0"));
        let port = server.line_after(&format!("{example}: port "));
        let mut command = kernel.attach(&client, &format!("client-{number}"), "10.77.0.9");
        let output = Program::start(command.args([protocol, &ip, &port, request])).finish_within(PATIENCE);
        let replies = text(&output.stdout);
        let how = format!("{example}, {compiler} {level}");
        assert!(output.status.success(), "{how}: {replies}{}", text(&output.stderr));
        assert_eq!(replies, format!("{request}\n"), "{how}");
        server.kill();
    }
}

#[test]
fn the_batch_job_computes_prices_as_the_formula_has_them() {
    let Some(installed) = Installed::get() else { return };
    for (compiler, level) in with_levels(Language::Cpp) {
        let program = installed.compile(compiler, "examples/options.cpp", &[level]);
        let output = Program::start(Command::new(program).arg("20000")).finish_within(PATIENCE);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().count(), 8);
    }
}

/// By each compiler: the same prices, and at the edges of the loops the hook is called.
#[test]
fn the_kernel_whose_poll_points_the_compiler_makes_computes_the_same_prices() {
    let Some(installed) = Installed::get() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/swaptions");
    let file = |name: &str| folder.join(name).display().to_string();
    for compiler in compilers(Language::C) {
        let object = installed.prefix().join(format!("{compiler}-kernel.o")).display().to_string();
        let options = ["-O2", "-fsanitize-coverage=trace-pc", "-c", &file("kernel.c"), "-o", &object];
        tailwater_xtask::run(Command::new(compiler).args(options))
            .unwrap_or_else(|error| panic!("{error:#}"));
        let kernels = [[file("kernel.c")].to_vec(), [object, file("poll.c")].to_vec()];
        let prices = kernels.map(|kernel| {
            let libraries = [kernel, installed.shared()].concat();
            let program = installed.compile_with(compiler, "examples/swaptions/main.c", &["-O2"], &libraries);
            let output = Program::start(Command::new(program).arg("4000")).finish_within(PATIENCE);
            assert!(output.status.success(), "{}", text(&output.stderr));
            text(&output.stdout)
        });
        assert_eq!(prices[0], prices[1], "{compiler}");
        assert!(prices[0].starts_with("price 0.0"), "{compiler}: {}", prices[0]);
    }
}

/// The pass is for the clang whose LLVM has its headers here.
#[test]
fn the_pass_of_clang_puts_poll_points_in_loops_and_changes_no_price() {
    let Some(installed) = Installed::get() else { return };
    let printed = |program, argument| {
        let output = Command::new(program).arg(argument).output();
        output.map_or(String::new(), |output| text(&output.stdout).trim().to_owned())
    };
    let clang = printed("clang++", "-dumpversion");
    let header = Path::new(&printed("llvm-config", "--includedir")).join("llvm/IR/Function.h");
    if clang.is_empty() || clang != printed("llvm-config", "--version") || !header.is_file() {
        return println!("skipped: no clang with the headers of its LLVM (Debian: clang, llvm-dev)");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/swaptions");
    let file = |name: &str| folder.join(name).display().to_string();
    let made = |name: &str| installed.prefix().join(name).display().to_string();
    let compile = |compiler: &str, options: &[&str]| {
        tailwater_xtask::run(Command::new(compiler).args(options))
            .unwrap_or_else(|error| panic!("{error:#}"));
    };
    let flags = printed("llvm-config", "--cxxflags");
    let pass = made("pass.so");
    let own = ["-std=c++17", "-O1", "-fPIC", "-shared", &file("pass.cpp"), "-o", &pass];
    compile("clang++", &flags.split_whitespace().chain(own).collect::<Vec<_>>());
    let plugin = format!("-fpass-plugin={pass}");
    let loops = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/loops.c").display().to_string();
    for target in registers() {
        for level in ["-O0", "-O3"] {
            let outputs = [("plain", &[][..]), ("passed", &[plugin.as_str()])].map(|(name, options)| {
                let objects =
                    [("kernel", file("kernel.c")), ("loops", loops.clone())].map(|(part, source)| {
                        let object = made(&format!("{name}-{part}.o"));
                        let all = [&[level, target, "-c", &source, "-o", &object][..], options].concat();
                        compile("clang", &all);
                        object
                    });
                polls(installed, "clang", &[level, target], &objects)
            });
            let results = outputs[0].strip_suffix("; kernel not polled, loops not polled\n");
            let results = results.expect("nothing polls by itself");
            assert_eq!(outputs[1], format!("{results}; kernel polled, loops polled\n"), "{level} {target}");
        }
    }
}

/// Returns the options of compilers by which programs use registers that this CPU has.
fn registers() -> Vec<&'static str> {
    if !std::arch::is_x86_feature_detected!("avx512f") {
        println!("skipped: poll points in code for AVX-512, which this CPU does not have");
        return vec!["-mno-avx512f"];
    }
    vec!["-mno-avx512f", "-mavx512f"]
}

/// Links `tests/programs/polls.c` with objects of its kernel and loops; returns what it prints.
fn polls(installed: &Installed, compiler: &str, options: &[&str], objects: &[String]) -> String {
    let program = installed.compile_with(compiler, "tests/programs/polls.c", options, objects);
    let output = Program::start(&mut Command::new(program)).finish_within(PATIENCE);
    assert!(output.status.success(), "{compiler} {options:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn loops_keep_what_they_compute_across_poll_points_of_the_header() {
    let Some(installed) = Installed::get() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = |name: &str| folder.join(name).display().to_string();
    let include = installed.prefix().join("include").display().to_string();
    for (compiler, level) in with_levels(Language::C) {
        for target in registers() {
            let outputs = [("silent", "-UBY_HAND"), ("by-hand", "-DBY_HAND")].map(|(name, by_hand)| {
                let loops = installed.prefix().join(format!("{name}-loops.o")).display().to_string();
                let source = file("tests/programs/loops.c");
                let options = [level, target, by_hand, "-I", &include, "-c", &source, "-o", &loops];
                tailwater_xtask::run(Command::new(compiler).args(options))
                    .unwrap_or_else(|error| panic!("{error:#}"));
                polls(installed, compiler, &[level, target], &[loops, file("examples/swaptions/kernel.c")])
            });
            let results = outputs[0].strip_suffix("loops not polled\n").expect("nothing polls by itself");
            assert_eq!(outputs[1], format!("{results}loops polled\n"), "{compiler} {level} {target}");
        }
    }
}

#[test]
fn a_program_that_requests_cores_counts_primes() {
    let Some(installed) = Installed::get() else { return };
    for (compiler, level) in with_levels(Language::C) {
        let program = installed.compile(compiler, "examples/cores.c", &[level]);
        let output = Program::start(Command::new(program).arg("10000")).finish_within(PATIENCE);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).ends_with("1229 primes below 10000\n"), "{}", text(&output.stdout));
    }
}

#[test]
fn examples_of_published_interfaces_have_at_most_80_lines() {
    for example in ["dispatch.c", "cores.c", "events.c"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example);
        assert!(std::fs::read_to_string(path).unwrap().lines().count() <= 80, "{example}");
    }
}
