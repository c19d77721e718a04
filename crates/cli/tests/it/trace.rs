//! A trace of a running service: every stage of real requests, and why a request behind a long one
//! was slow.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{fails_with, iokernel, stats, succeeds, tailwater};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde_json::Value;
use tailwater_testkit::{PATIENCE, Program, socket_name, text, until};
use tailwater_workload::spin::Request;

/// The client's and the service's addresses.
const CLIENT: [u8; 4] = [10, 77, 0, 8];
const SERVICE: [u8; 4] = [10, 77, 0, 9];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
/// The address that the IOKernel derives from the IP address.
const SERVICE_MAC: [u8; 6] = [2, 0x74, 10, 77, 0, 9];
/// Service time of every long request.
const LONG_NS: u64 = 2_000_000;

/// Returns a request for `work_ns` of work.
fn request(id: u64, work_ns: u64) -> Vec<u8> {
    let mut frame = [&SERVICE_MAC[..], &CLIENT_MAC, &[8, 0]].concat();
    frame.extend([0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([CLIENT, SERVICE].concat());
    let sum: u32 = frame[14..].chunks(2).map(|w| u32::from(w[0]) * 256 + u32::from(w[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    // No UDP checksum (RFC 768).
    frame.extend([0x9c, 0x40, 0x13, 0x88, 0, 40, 0, 0]);
    frame.extend(Request { id, work_ns, sent_ns: 0 }.encode());
    frame
}

/// Returns the client's answer to the service's ARP request.
fn arp_reply() -> Vec<u8> {
    let mut frame = [&SERVICE_MAC[..], &CLIENT_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    frame.extend([&CLIENT_MAC[..], &CLIENT, &SERVICE_MAC, &SERVICE].concat());
    frame
}

/// Writes ten minutes in which, every 50 ms, a long request is followed at once by a short one.
fn write_capture(path: &Path) {
    let mut writer = PcapWriter::new(File::create(path).unwrap()).unwrap();
    for round in 0..12_000u64 {
        let at = |us| Duration::from_millis(round * 50) + Duration::from_micros(us);
        for (us, frame) in
            [(0, request(round * 2 + 1, LONG_NS)), (50, request(round * 2 + 2, 1_000)), (15_000, arp_reply())]
        {
            writer.write_packet(&PcapPacket::new(at(us), frame.len() as u32, &frame)).unwrap();
        }
    }
}

/// Writes a minute of requests of so much work.
pub fn write_requests(path: &Path, every: Duration, work_ns: u64) {
    let mut writer = PcapWriter::new(File::create(path).unwrap()).unwrap();
    let count = Duration::from_secs(60).as_nanos() / every.as_nanos();
    for id in 0..count as u64 {
        let at = every * id as u32;
        // The service asks for the client's address again and again.
        for frame in [request(id, work_ns), arp_reply()] {
            writer.write_packet(&PcapPacket::new(at, frame.len() as u32, &frame)).unwrap();
        }
    }
}

fn start(folder: &Path, socket: &str, words: &[&str]) -> (Program, Program) {
    let file = folder.join("in.pcap");
    write_capture(&file);
    // Sent frames are recorded: a port without a record accepts none.
    let replay = format!("replay={},record={}", file.display(), folder.join("out.pcap").display());
    let iokernel = iokernel(socket, &["--pcap", &replay]);
    let mut service = tailwater(&["app", "spin", "--listen", "0.0.0.0:5000"]);
    service.args(words).envs([
        ("TAILWATER_IOKERNEL", socket),
        ("TAILWATER_NAME", "web"),
        ("TAILWATER_KTHREADS", "1"),
        ("TAILWATER_IP", "10.77.0.9"),
    ]);
    let service = Program::start(&mut service);
    let answers = |stats: Value| stats["ports"][0]["transmitted"].as_u64().unwrap();
    until("the service answers", || stats(socket).is_some_and(|stats| answers(stats) > 20));
    (iokernel, service)
}

/// Returns the report and the document of a trace; `None` if the command gets no core for minutes.
#[track_caller]
fn trace(socket: &str, words: &[&str]) -> Option<(String, Value)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let fixed = ["trace", "--iokernel", socket, "--slowest", "1000", "--out", file.to_str().unwrap()];
    let output = succeeds(&[&fixed[..], words].concat())?;
    Some((text(&output.stdout), serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()))
}

/// Microseconds of the asynchronous slices of this name.
fn durations(document: &Value, name: &str) -> Vec<f64> {
    let events = document["traceEvents"].as_array().unwrap();
    let of = |phase: &str| -> Vec<f64> {
        let slices = events.iter().filter(|event| event["ph"] == *phase && event["name"] == *name);
        slices.map(|event| event["ts"].as_f64().unwrap()).collect()
    };
    of("b").iter().zip(of("e")).map(|(from, to)| to - from).collect()
}

/// Two IOKernels on one machine would share its cores.
pub static ALONE: Mutex<()> = Mutex::new(());

/// Repeats the trace until `lacks`, which returns what is missing, finds nothing. On a busy machine
/// other programs may keep the service from running for a whole trace.
#[track_caller]
fn trace_until(socket: &str, words: &[&str], lacks: impl Fn(&str, &Value) -> Option<&'static str>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Some((report, document)) = trace(socket, words) else { return };
        let Some(missing) = lacks(&report, &document) else { return };
        assert!(Instant::now() < deadline, "no trace has {missing}; the last one:\n{report}");
    }
}

/// Least time of a long request in microseconds: its service time less the difference between
/// clocks.
const LONG_US: f64 = LONG_NS as f64 / 1000.0 * 0.9;

#[test]
fn a_short_request_behind_a_long_one_says_what_it_waited_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = socket_name("trace");
    let _running = start(folder.path(), &socket, &[]);
    // Where the short request waits depends on whether both came in one batch.
    let (ring, queue) = ("kthread 0 of web had a core", "no thread was waiting");
    trace_until(&socket, &["--sample", "1", "--duration", "1s", "--program", "web"], |report, document| {
        let of = |stage| durations(document, stage);
        let waits = [of("ring"), of("socket")].concat();
        let wanted = [
            ("an answer", report.contains(" answered")),
            ("the reason of a wait", report.contains(ring) || report.contains(queue)),
            ("where a request went", report.contains("to web: ") && report.contains("ran for ")),
            ("a long request", of("run").iter().any(|&us| us > LONG_US)),
            // Without the 50 us between the two.
            ("a short request that waited for it", waits.iter().any(|&us| us > LONG_US - 50.0)),
            (
                "all stages",
                ["switch", "stack", "egress ring", "out"].iter().all(|stage| !of(stage).is_empty()),
            ),
        ];
        wanted.iter().find(|(_, is_there)| !is_there).map(|(what, _)| *what)
    });

    // What was traced is in the record, which is read without a trace.
    let Some((report, document)) = trace(&socket, &["--last", "600s", "--program", "web"]) else { return };
    assert!(!report.starts_with("0 requests") && !durations(&document, "run").is_empty(), "{report}");
    let names = document["traceEvents"].as_array().unwrap().iter().map(|event| &event["name"]);
    assert!(names.into_iter().any(|name| name == "web kthread 0"), "no core was ever its");
    let Some((report, _)) = trace(&socket, &["--last", "600s", "--program", "absent"]) else { return };
    assert!(report.starts_with("0 requests traced"), "{report}");
    let verdict = succeeds(&["why", "web", "--iokernel", &socket, "--last", "600s"]);
    let Some(verdict) = verdict.map(|output| text(&output.stdout)) else { return };
    assert!(verdict.starts_with("web, in ") && verdict.contains("which only a watch sees"), "{verdict}");
    let Some((report, _)) = trace(&socket, &["--last", "1us"]) else { return };
    assert!(report.starts_with("0 requests traced") || report.starts_with("1 requests"), "{report}");

    // One trace at a time, and the end of one makes room.
    let start = || Program::start(&mut tailwater(&["trace", "--iokernel", &socket, "--duration", "600s"]));
    // The IOKernel notices a moment later that the command of the last trace has ended.
    until("no trace goes on", || stats(&socket).is_some_and(|all| all["trace"].is_null()));
    let mut first = start();
    until("the first trace goes on", || {
        // It gives up if the IOKernel does not answer in time.
        if !first.is_running() {
            first = start();
        }
        stats(&socket).is_some_and(|all| !all["trace"].is_null())
    });
    if fails_with(&["trace", "--iokernel", &socket], &["a trace is going on already"]).is_none() {
        return;
    }
    drop(first);
    until("the trace of the dead command is ended", || {
        stats(&socket).is_some_and(|all| all["trace"].is_null())
    });
    let words = ["--sample", "1", "--duration", "200ms", "--program", "absent"];
    let Some((report, _)) = trace(&socket, &words) else { return };
    assert!(report.contains("0 requests traced") && report.contains("0 events missing"), "{report}");
}

#[test]
fn a_trace_has_what_linux_did_and_a_program_that_has_ended_keeps_its_name() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = socket_name("trace-linux");
    let (_iokernel, mut web) = start(folder.path(), &socket, &[]);
    let file = folder.path().join("trace.json");
    let words = ["trace", "--iokernel", &socket, "--duration", "200ms", "--out", file.to_str().unwrap()];
    let Some(output) = succeeds(&words) else { return };
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let is_there = |document: &Value, name: &str| {
        let events = document["traceEvents"].as_array().unwrap();
        events.iter().any(|event| event["name"] == name || event["args"]["name"] == name)
    };
    let refusal = text(&output.stderr).contains("is not in the file: ");
    assert!(!text(&output.stderr).contains("refuses the program"), "{}", text(&output.stderr));
    assert_ne!(is_there(&document, "Linux on managed cores"), refusal, "{}", text(&output.stderr));

    let piped = succeeds(&["trace", "--iokernel", &socket, "--duration", "200ms", "--out", "-"]).unwrap();
    assert!(is_there(&serde_json::from_slice(&piped.stdout).unwrap(), "web kthread 0"), "{piped:?}");
    assert!(text(&piped.stderr).contains("requests traced"), "{}", text(&piped.stderr));
    // A reader that has gone, as `head`, costs no report.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread = tailwater(&["trace", "--iokernel", &socket, "--duration", "200ms", "--out", "-"]);
    let unread = unread.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(unread.status.code(), Some(141), "{}", text(&unread.stderr));
    assert!(text(&unread.stderr).contains("requests traced"), "{}", text(&unread.stderr));

    // Another program gets its place.
    web.kill();
    until("the program is gone", || {
        stats(&socket).is_some_and(|all| all["runtimes"] == serde_json::json!([]))
    });
    let mut next = tailwater(&["app", "spin", "--listen", "0.0.0.0:5001"]);
    next.envs([("TAILWATER_IOKERNEL", &*socket), ("TAILWATER_NAME", "next"), ("TAILWATER_KTHREADS", "1")]);
    let _next = Program::start(&mut next);
    until("the other program is there", || {
        stats(&socket)
            .is_some_and(|all| all["runtimes"][0]["name"] == "next" && all["runtimes"][0]["id"] == 0)
    });
    trace_until(&socket, &["--last", "600s"], |_, document| {
        let wanted = [("the ended program", "web kthread 0"), ("its successor", "next kthread 0")];
        wanted.into_iter().find(|(_, name)| !is_there(document, name)).map(|(what, _)| what)
    });
}

#[test]
fn a_signal_or_slow_hand_offs_have_a_file_written_and_files_are_bounded() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let (socket, into) = (socket_name("trace-on"), folder.path().join("traces"));
    let _running = start(folder.path(), &socket, &[]);
    let words = ["trace", "--iokernel", &socket, "--on", "eviction,handoff=10s", "--files", "2", "--folder"];
    let mut waiting = Program::start(tailwater(&words).arg(&into));
    waiting.error_line_with("waiting; SIGUSR2 to process");
    let files = || -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(&into).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    assert!(files().is_empty(), "nothing has gone wrong");
    for _ in 0..3 {
        waiting.signal(rustix::process::Signal::USR2);
        waiting.error_line_with("SIGUSR2 arrived: wrote ");
    }
    let files = files();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(document["otherData"]["why"], "SIGUSR2 arrived");
        assert!(document["traceEvents"].is_array());
    }
    waiting.signal(rustix::process::Signal::INT);
    waiting.wait();
    fails_with(&["trace", "--on", "nothing", "--iokernel", &socket], &["eviction, stall, slo"]);
    // No hand-off is as fast as that.
    let words = ["trace", "--iokernel", &socket, "--on", "handoff=200ns", "--last", "1s", "--folder"];
    let mut waiting = Program::start(tailwater(&words).arg(&into));
    let line = waiting.error_line_with("the 99th percentile of hand-offs");
    assert!(line.contains("-1-handoff.json"), "{line}");
}

#[test]
fn a_request_is_followed_into_the_thread_that_is_started_for_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = socket_name("trace-spawn");
    let _running = start(folder.path(), &socket, &["--spawn"]);
    trace_until(&socket, &["--sample", "1", "--duration", "500ms"], |report, document| {
        let is_long = durations(document, "run").iter().any(|&us| us > LONG_US);
        let wanted = [("a long request", is_long), ("a reply to each", !report.contains("without a reply"))];
        wanted.iter().find(|(_, is_there)| !is_there).map(|(what, _)| *what)
    });
}

#[test]
fn a_request_is_followed_through_a_dispatcher() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = socket_name("trace-dispatch");
    let _running = start(folder.path(), &socket, &["--dispatch", "sq:15us"]);
    trace_until(&socket, &["--sample", "1", "--duration", "500ms"], |report, document| {
        let has = |stage| !durations(document, stage).is_empty();
        let ran: f64 = durations(document, "run").iter().sum();
        let wanted = [
            ("a reply to each", !report.contains("without a reply")),
            ("a wait in the dispatcher", has("dispatch queue")),
            ("a long request that gave way", has("preempted")),
            ("the work of a long request", ran > LONG_US),
        ];
        wanted.iter().find(|(_, is_there)| !is_there).map(|(what, _)| *what)
    });
}
