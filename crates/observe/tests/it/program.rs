//! `tailwater-observe` as a process, beside a socket that answers as an IOKernel does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use rustix::net::{SocketFlags, accept_with};
use rustix::process::Signal;
use serde_json::{Value, json};
use tailwater_shm::control::{ClientMessage, ServerMessage, receive, send, serve};
use tailwater_testkit::{Program, run, socket_name, text, until};

fn observe(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-observe"));
    command.args(words);
    command
}

fn document() -> Value {
    json!({
        "bucket_bounds_ns": tailwater_stats::BOUNDS_NS,
        "iokernel": { "version": "0.1.0", "iokernel_core": 0, "managed_cores": [1], "policy": "adaptive" },
        "account": [{ "core": 1, "ns": { "free": 7 } }],
        "switch": { "dropped_full": 3 },
        "runtimes": [{ "id": 0, "name": "we\u{1b}[2Jb\"", "pid": 1, "class": "latency-critical",
            "counters": { "cores": 1, "core_ns": 5 } }],
    })
}

/// Answers each question at a new address, from a thread, as long as this process runs.
fn answering(name: &str) -> String {
    let address = socket_name(name);
    let listener = serve(&address, |_| {}).unwrap();
    std::thread::spawn(move || {
        loop {
            let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) else { continue };
            if let Ok((ClientMessage::Stats, _)) = receive(&socket) {
                let _ = send(&socket, &ServerMessage::Stats(document()), &[]);
            }
        }
    });
    address
}

#[test]
fn a_pipe_gets_lines_without_what_a_name_would_do_to_a_terminal() {
    let socket = answering("top");
    let output = run(&mut observe(&["top", "--once", "--interval", "250ms", "--iokernel", &socket]), b"");
    let lines = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        lines.contains("we?[2Jb\"") && lines.contains("IOKernel 0.1.0") && !lines.contains('\x1b'),
        "{lines}"
    );
    let absent = run(&mut observe(&["top", "--once", "--iokernel", "@tailwater-is-not-here"]), b"");
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("start one with"), "{}", text(&absent.stderr));
}

#[test]
fn metrics_are_printed_written_and_served() {
    let socket = answering("metrics");
    let printed = run(&mut observe(&["metrics", "--once", "--iokernel", &socket]), b"");
    let series = r#"tailwater_program_cores{program="we"#;
    assert!(text(&printed.stdout).contains(series), "{}", text(&printed.stdout));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tailwater.prom");
    let words = ["metrics", "--listen", "127.0.0.1:0", "--iokernel", &socket, "--textfile"];
    let mut server = Program::start(observe(&words).arg(&file));
    until("the file is written", || std::fs::read_to_string(&file).is_ok_and(|text| text.contains(series)));
    let mut address = String::new();
    until("the address is printed", || {
        let said = server.errors();
        let found = said.split("serving http://").nth(1).and_then(|rest| rest.split_once('/'));
        found.is_some_and(|(found, _)| {
            found.clone_into(&mut address);
            true
        })
    });
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("tailwater_switch_dropped_full_total 3"),
        "{answer}"
    );
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "a stop is no failure");
    assert!(!file.exists(), "a file that stayed would be read as the present");
}

#[test]
fn an_address_that_others_reach_is_warned_of_and_one_that_is_taken_is_explained() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&mut observe(&["metrics", "--listen", &address, "--iokernel", "@x"]), b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--listen"), "{}", text(&output.stderr));
    let server = Program::start(&mut observe(&["metrics", "--listen", "0.0.0.0:0", "--iokernel", "@x"]));
    until("the warning is printed", || server.errors().contains("reached from other machines"));
}
