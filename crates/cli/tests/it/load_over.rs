//! `tailwater load --over tailwater` and `--over port` against services in processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::common::{agent, fails_with, iokernel, run, stats, tailwater};
use clap::Parser;
use rustix::process::Signal;
use serde_json::Value;
use tailwater_testkit::{PATIENCE, Program, eventually, socket_name, text, unless_too_busy, until};

// The store's threads are user threads.
/// Two IOKernels on one machine would share its cores.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the command that starts a program with this address.
fn service(socket: &str, ip: &str, program: &[&str]) -> Command {
    let settings = ["run", "--iokernel", socket, "--kthreads", "1", "--ip", ip, "--"];
    tailwater(&[&settings[..], program].concat())
}

fn spin(socket: &str, ip: &str) -> Program {
    let program = [env!("CARGO_BIN_EXE_tailwater"), "app", "spin", "--listen", "0.0.0.0:5000"];
    Program::start(&mut service(socket, ip, &program))
}

/// Options of the store that a test starts.
pub const STORE: &str = "TEST_STORE_OPTIONS";

/// Words by which this test program is the store.
pub const STORE_WORDS: [&str; 4] =
    ["--exact", "load_over::the_store_as_a_process", "--ignored", "--nocapture"];

/// Starts the store, which is this test program, run once more with the store's options in the
/// environment.
fn store(socket: &str, ip: &str, options: &str) -> Program {
    let program = std::env::current_exe().unwrap();
    let program = [&[program.to_str().unwrap()][..], &STORE_WORDS].concat();
    Program::start(service(socket, ip, &program).env(STORE, options))
}

#[test]
#[ignore = "the other tests start it"]
fn the_store_as_a_process() {
    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        options: tailwater_kv::cli::Options,
    }
    // Absent when all ignored tests are run.
    if let Ok(options) = std::env::var(STORE) {
        let words = ["kv"].into_iter().chain(options.split_whitespace());
        tailwater_kv::cli::run(&Command::parse_from(words).options).unwrap();
    }
}

fn await_iokernel(socket: &str) {
    until("an IOKernel answers", || stats(socket).is_some());
}

/// A running measurement of 200 requests.
struct Load {
    program: Program,
    folder: tempfile::TempDir,
}

impl Load {
    /// Starts it. Its time-outs are longer than any wait of a test: a request that is lost keeps
    /// the command from ending.
    fn start(server: &str, words: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixed = ["load", server, "--warm-up", "100ms", "--arrivals", "const"];
        let rate = ["--rate", "1k", "--duration", "300ms", "--timeout", "900s", "--wait", "900s"];
        let mut command = tailwater(&[&fixed[..], &rate, words].concat());
        let program = Program::start(command.arg("--json").arg(folder.path().join("load.json")));
        Self { program, folder }
    }

    /// Returns its document, or the command's message.
    fn finish(self) -> Result<Value, String> {
        let output = self.program.finish();
        if !output.status.success() {
            return Err(text(&output.stderr));
        }
        Ok(serde_json::from_slice(&std::fs::read(self.folder.path().join("load.json")).unwrap()).unwrap())
    }
}

/// Returns the measurement of 200 requests; `None` if it gets no core for minutes.
#[track_caller]
fn load(server: &str, words: &[&str]) -> Option<Value> {
    unless_too_busy(|| Load::start(server, words).finish())
}

fn assert_all_answered(document: &Value, over: &str) {
    assert_eq!(document["over"], over);
    let report = &document["points"][0]["report"];
    assert_eq!((&report["completed"], &report["lost"]), (&200.into(), &0.into()), "{report}");
    assert_eq!(report["oddities"]["wrong"], 0, "{report}");
}

#[test]
fn a_client_on_linux_reaches_a_published_service_and_hears_of_one_that_is_not_there() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket_name("publish");
    let _iokernel = iokernel(&socket, &[]);
    let _service = store(&socket, "10.77.0.9", "-m 64");
    let rules = ["publish", "--iokernel", &socket, "0=10.77.0.9:11211", "0=10.77.0.9:9"];
    let mut relay = Program::start(&mut tailwater(&rules));
    let (mut service, mut nothing) = (String::new(), String::new());
    for _ in 0..2 {
        let line = relay.line_with(" is published at ");
        let (name, address) = line.split_once(" is published at ").unwrap();
        *(if name.ends_with(":9") { &mut nothing } else { &mut service }) = address.to_owned();
    }
    // The store may not listen yet: then the relay closes the connection, and tries for the next.
    let value = vec![b'v'; 600_000];
    let answer = unless_too_busy(|| {
        let mut client = TcpStream::connect(&service).map_err(|error| error.to_string())?;
        client.write_all(b"set a 0 0 600000\r\n").map_err(|error| error.to_string())?;
        client.write_all(&value).map_err(|error| error.to_string())?;
        client.write_all(b"\r\nget a\r\nquit\r\n").map_err(|error| error.to_string())?;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).map_err(|error| error.to_string())?;
        if answer.starts_with(b"STORED") { Ok(answer) } else { Err("no answer".to_owned()) }
    });
    let Some(answer) = answer else { return };
    assert_eq!(answer, [b"STORED\r\nVALUE a 0 600000\r\n", &value[..], b"\r\nEND\r\n"].concat());
    let mut refused = TcpStream::connect(&nothing).unwrap();
    assert_eq!(refused.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
    let message = relay.error_line_with("10.77.0.9:9");
    assert!(message.contains("cannot connect to 10.77.0.9:9"), "{message}");
    relay.signal(Signal::TERM);
    assert!(relay.wait().success(), "it ends in good order");
}

#[test]
fn a_program_on_tailwater_is_asked_over_tailwater_by_udp_and_tcp() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket_name("tailwater");
    let _iokernel = iokernel(&socket, &[]);
    let _service = store(&socket, "10.77.0.9", "-m 16");
    let over = ["--over", "tailwater", "--iokernel", &socket, "--protocol", "memcached:etc,keys=200,get=0.5"];
    let server = "10.77.0.9:11211";
    let tcp = [&over[..], &["--tcp", "--connections", "5"]].concat();
    let Some(document) = load(server, &tcp) else { return };
    assert_all_answered(&document, "tailwater");
    // Several runs of one process, and several processes, each a program of the IOKernel.
    let Some(document) = load(server, &[&over[..], &["--tcp", "--agents", "2"]].concat()) else { return };
    assert_all_answered(&document, "tailwater");
    let _echo = spin(&socket, "10.77.0.10");
    let spin = ["--over", "tailwater", "--iokernel", &socket, "--service", "const:1us", "--flows", "3"];
    let Some(document) = load("10.77.0.10:5000", &spin) else { return };
    assert_all_answered(&document, "tailwater");
}

#[test]
fn a_service_that_attaches_to_the_generators_own_iokernel_is_measured_as_from_a_port() {
    const TCP: [&str; 4] = ["--tcp", "--connections", "5", "--no-preload"];
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Without a preload the items are missing, which is an answer.
    for (name, words) in [("udp", &["--flows", "3"][..]), ("tcp", &TCP[..3]), ("tcp-missing", &TCP[..])] {
        let document = unless_too_busy(|| {
            let socket = socket_name(name);
            let over = ["--over", "port", "--iokernel", &socket, "--protocol", "memcached:usr,keys=100"];
            let mut generator = Load::start("10.77.0.9:11211", &[&over[..], words].concat());
            until("an IOKernel answers, or the generator ends", || {
                !generator.program.is_running() || stats(&socket).is_some()
            });
            let _service = store(&socket, "10.77.0.9", "-m 16 -U 11211");
            generator.finish()
        });
        let Some(document) = document else { return };
        assert_all_answered(&document, "port");
        let missed = document["points"][0]["report"]["oddities"]["missed"].as_u64().unwrap();
        assert_eq!(missed > 0, name == "tcp-missing", "{name}: {missed}");
    }
}

/// Frames that the only program has received, and cores it was lent.
fn frames_and_grants(socket: &str) -> (u64, u64) {
    let stats = eventually("the IOKernel answers", || stats(socket));
    let counter = |name: &str| stats["runtimes"][0]["counters"][name].as_u64().unwrap_or(0);
    (counter("rx_frames"), counter("grants"))
}

#[test]
fn a_lone_request_over_tcp_costs_a_core_twice_and_not_for_a_needless_timer() {
    const FRAMES: u64 = 10;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket_name("handoffs");
    let server = "10.77.0.9:11211";
    let plan = ["load", server, "--rate", "40", "--duration", "1h", "--arrivals", "const", "--quiet"];
    let plan = [&plan[..], &["--wait", "900s"]].concat();
    let over = ["--over", "port", "--iokernel", &socket, "--protocol", "memcached:usr,keys=10", "--tcp"];
    let _generator = Program::start(&mut tailwater(&[&plan[..], &over].concat()));
    await_iokernel(&socket);
    let _service = store(&socket, "10.77.0.9", "-m 16");
    until("requests come", || frames_and_grants(&socket).0 > 40);
    // Two frames for each request: itself, and the acknowledgment of its answer, 2 ms later. On a
    // busy machine that may come too late for the retransmission timer, which is then needed; so
    // one good eighth of a second is enough. With a timer for each answer all have three grants or
    // more for two frames.
    let (mut seen, deadline) = (Vec::new(), Instant::now() + 3 * PATIENCE);
    while Instant::now() < deadline {
        let before = frames_and_grants(&socket);
        until("more requests come", || frames_and_grants(&socket).0 >= before.0 + FRAMES);
        let after = frames_and_grants(&socket);
        let (frames, grants) = (after.0 - before.0, after.1 - before.1);
        if grants > 0 && grants * 5 < frames * 6 {
            return;
        }
        seen.push((frames, grants));
    }
    panic!("frames and grants: {seen:?}");
}

#[test]
fn an_agent_that_is_attached_to_one_iokernel_refuses_another() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket_name("one");
    let _iokernel = iokernel(&socket, &[]);
    let _service = spin(&socket, "10.77.0.9");
    let (_agent, address) = agent();
    let over = |socket| {
        ["--over", "tailwater", "--service", "const:1us", "--coordinate", &address, "--iokernel", socket]
    };
    let Some(document) = load("10.77.0.9:5000", &over(&socket)) else { return };
    assert_all_answered(&document, "tailwater");
    let elsewhere = ["load", "10.77.0.9:5000", "--rate", "1k"];
    fails_with(&[&elsewhere[..], &over("@elsewhere")].concat(), &[&socket, "@elsewhere"]);
}

#[test]
fn an_interrupt_ends_a_generator_that_waits_for_its_server() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket_name("no-server");
    for more in [&[][..], &["--tcp", "--connections", "3"]] {
        let words = [
            "load",
            "10.77.0.9:5000",
            "--rate",
            "1k",
            "--over",
            "port",
            "--wait",
            "1h",
            "--iokernel",
            &socket,
        ];
        let mut command = Program::start(&mut tailwater(&[&words[..], more].concat()));
        // The IOKernel runs, and the server may attach.
        command.error_line().expect("a line about the IOKernel");
        await_iokernel(&socket);
        command.signal(Signal::INT);
        assert_eq!(command.wait().code(), Some(130), "{more:?}");
    }
}

#[test]
fn without_an_iokernel_the_generator_says_so() {
    let words = [
        "load",
        "10.77.0.9:1",
        "--rate",
        "1k",
        "--over",
        "tailwater",
        "--iokernel",
        "@tailwater-is-not-here",
    ];
    let output = run(&words);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("cannot attach to the IOKernel"), "{error}");
}
