//! `tailwater load --over tailwater` and `--over port` against services that are processes of their own.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use common::{Guard, eventually, stats, text};
use serde_json::Value;

/// Two IOKernels on one machine would share its cores.
static ALONE: Mutex<()> = Mutex::new(());

fn tailwater(words: &[&str]) -> Command {
    let mut command = common::tailwater(words);
    command.stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TAILWATER_")) {
        command.env_remove(name);
    }
    command
}

/// A program with an address.
fn service(socket: &str, ip: &str, words: &[&str]) -> Guard {
    let settings = ["run", "--iokernel", socket, "--kthreads", "1", "--ip", ip, "--"];
    let program = [env!("CARGO_BIN_EXE_tailwater")];
    Guard(tailwater(&[&settings[..], &program, words].concat()).stdout(Stdio::null()).spawn().unwrap())
}

fn socket(name: &str) -> String {
    format!("@tailwater-load-{name}-{}", std::process::id())
}

/// An IOKernel that programs can attach to.
fn iokernel(socket: &str) -> Guard {
    let started = Guard(tailwater(&["iokernel", "--socket", socket, "--log", "warn"]).spawn().unwrap());
    await_iokernel(socket);
    started
}

fn await_iokernel(socket: &str) {
    eventually("an IOKernel answers", || stats(socket).is_some());
}

/// What `tailwater load` measured of 200 requests. The timeout is one that no busy test machine reaches.
fn load(server: &str, words: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("load.json");
    let fixed =
        ["load", server, "--warm-up", "100ms", "--timeout", "20s", "--arrivals", "const", "--wait", "60s"];
    let rate = ["--rate", "1k", "--duration", "300ms", "--json", file.to_str().unwrap()];
    let output: Output = tailwater(&[&fixed[..], &rate, words].concat()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
}

fn assert_all_answered(document: &Value, over: &str) {
    assert_eq!(document["over"], over);
    let report = &document["points"][0]["report"];
    assert_eq!((&report["completed"], &report["lost"]), (&200.into(), &0.into()), "{report}");
    assert_eq!(report["oddities"]["wrong"], 0, "{report}");
}

#[test]
fn a_program_on_tailwater_is_asked_over_tailwater_by_udp_and_tcp() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket("tailwater");
    let _iokernel = iokernel(&socket);
    let _service = service(&socket, "10.77.0.9", &["app", "kv", "-m", "16"]);
    let over = ["--over", "tailwater", "--iokernel", &socket, "--protocol", "memcached:etc,keys=200,get=0.5"];
    let server = "10.77.0.9:11211";
    assert_all_answered(&load(server, &[&over[..], &["--tcp", "--connections", "5"]].concat()), "tailwater");
    // Several runs of one process, and several processes, each a program of its own.
    assert_all_answered(&load(server, &[&over[..], &["--tcp", "--agents", "2"]].concat()), "tailwater");
    let _echo = service(&socket, "10.77.0.10", &["app", "spin", "--listen", "0.0.0.0:5000"]);
    let spin = ["--over", "tailwater", "--iokernel", &socket, "--service", "const:1us", "--flows", "3"];
    assert_all_answered(&load("10.77.0.10:5000", &spin), "tailwater");
}

#[test]
fn a_service_that_attaches_to_the_generators_own_iokernel_is_measured_as_from_a_port() {
    const TCP: [&str; 4] = ["--tcp", "--connections", "5", "--no-preload"];
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // What is not stored is missing, which is an answer.
    for (name, words) in [("udp", &["--flows", "3"][..]), ("tcp", &TCP[..3]), ("tcp-missing", &TCP[..])] {
        let socket = socket(name);
        let generator = std::thread::spawn({
            let socket = socket.clone();
            move || {
                let over = ["--over", "port", "--iokernel", &socket, "--protocol", "memcached:usr,keys=100"];
                load("10.77.0.9:11211", &[&over[..], words].concat())
            }
        });
        await_iokernel(&socket);
        let _service = service(&socket, "10.77.0.9", &["app", "kv", "-m", "16", "-U", "11211"]);
        let document = generator.join().unwrap();
        assert_all_answered(&document, "port");
        let missed = document["points"][0]["report"]["oddities"]["missed"].as_u64().unwrap();
        assert_eq!(missed > 0, name == "tcp-missing", "{name}: {missed}");
    }
}

/// Frames that the only program has received, and cores it was lent.
fn frames_and_grants(socket: &str) -> (u64, u64) {
    let stats = stats(socket).expect("the IOKernel runs");
    let counter = |name: &str| stats["runtimes"][0]["counters"][name].as_u64().unwrap_or(0);
    (counter("rx_frames"), counter("grants"))
}

#[test]
fn a_lone_request_over_tcp_costs_a_core_twice_and_not_for_a_timer_that_nobody_needs() {
    const FRAMES: u64 = 80;
    const WINDOWS: usize = 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket("handoffs");
    let server = "10.77.0.9:11211";
    let plan = ["load", server, "--rate", "40", "--duration", "60s", "--arrivals", "const", "--quiet"];
    let over = ["--over", "port", "--iokernel", &socket, "--protocol", "memcached:usr,keys=10", "--tcp"];
    let _generator = Guard(tailwater(&[&plan[..], &over].concat()).stdout(Stdio::null()).spawn().unwrap());
    await_iokernel(&socket);
    let _service = service(&socket, "10.77.0.9", &["app", "kv", "-m", "16"]);
    eventually("requests come", || frames_and_grants(&socket).0 > 40);
    // Two frames for each request: itself, and the acknowledgment of its answer, 2 ms later. On a busy machine that may come too
    // late for the retransmission timer, which is then needed; so one good second is enough. A timer for each answer makes
    // it three grants or more for two frames in all of them.
    let mut seen = Vec::new();
    for _ in 0..WINDOWS {
        let before = frames_and_grants(&socket);
        eventually("more requests come", || frames_and_grants(&socket).0 >= before.0 + FRAMES);
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
    let socket = socket("one");
    let _iokernel = iokernel(&socket);
    let _service = service(&socket, "10.77.0.9", &["app", "spin", "--listen", "0.0.0.0:5000"]);
    let mut agent =
        Guard(tailwater(&["load", "--agent", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(agent.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("agent listening on ").unwrap();
    let over = |socket| {
        ["--over", "tailwater", "--service", "const:1us", "--coordinate", address, "--iokernel", socket]
    };
    assert_all_answered(&load("10.77.0.9:5000", &over(&socket)), "tailwater");
    let elsewhere = ["load", "10.77.0.9:5000", "--rate", "1k"];
    let output = tailwater(&[&elsewhere[..], &over("@elsewhere")].concat()).output().unwrap();
    let message = text(&output.stderr);
    assert!(
        !output.status.success() && message.contains(&socket) && message.contains("@elsewhere"),
        "{message}"
    );
}

#[test]
fn an_interrupt_ends_a_generator_that_waits_for_its_server() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = socket("nobody");
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
        let mut command =
            Guard(tailwater(&[&words[..], more].concat()).stderr(Stdio::piped()).spawn().unwrap());
        // The IOKernel runs, and the server may attach.
        let mut line = String::new();
        BufReader::new(command.0.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        await_iokernel(&socket);
        let pid = rustix::process::Pid::from_child(&command.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        eventually("it ends", || command.0.try_wait().unwrap().is_some());
        assert_eq!(command.0.wait().unwrap().code(), Some(130), "{more:?}");
    }
}

#[test]
fn without_an_iokernel_the_generator_says_so() {
    let words =
        ["load", "10.77.0.9:1", "--rate", "1k", "--over", "tailwater", "--iokernel", "@nobody-listens"];
    let output = tailwater(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("cannot attach to the IOKernel"), "{error}");
}
