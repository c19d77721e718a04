//! A trace of a running service: every stage of real requests, and the reason why one that came behind a long one was slow.

mod common;

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Guard, eventually, run, stats, tailwater, text};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde_json::Value;
use tailwater_workload::spin::Request;

/// The client's and the service's addresses.
const CLIENT: [u8; 4] = [10, 77, 0, 8];
const SERVICE: [u8; 4] = [10, 77, 0, 9];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
/// As the IOKernel derives it from the address.
const SERVICE_MAC: [u8; 6] = [2, 0x74, 10, 77, 0, 9];
/// How long every long request works.
const LONG_NS: u64 = 2_000_000;

/// A request for `work_ns` of work.
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

/// The client's answer to the question that the service asks about it.
fn arp_reply() -> Vec<u8> {
    let mut frame = [&SERVICE_MAC[..], &CLIENT_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    frame.extend([&CLIENT_MAC[..], &CLIENT, &SERVICE_MAC, &SERVICE].concat());
    frame
}

/// Ten minutes in which, every 50 ms, a long request comes with a short one right behind it.
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

fn start(folder: &Path, socket: &str, words: &[&str]) -> (Guard, Guard) {
    let file = folder.join("in.pcap");
    write_capture(&file);
    // What is sent is recorded: a port that records nothing takes nothing.
    let replay = format!("replay={},record={}", file.display(), folder.join("out.pcap").display());
    let iokernel = ["iokernel", "--socket", socket, "--log", "warn", "--pcap", &replay];
    let iokernel = Guard(tailwater(&iokernel).spawn().unwrap());
    eventually("the IOKernel answers", || stats(socket).is_some());
    let service = tailwater(&["app", "spin", "--listen", "0.0.0.0:5000"])
        .args(words)
        .env("TAILWATER_IOKERNEL", socket)
        .env("TAILWATER_NAME", "web")
        .env("TAILWATER_KTHREADS", "1")
        .env("TAILWATER_IP", "10.77.0.9")
        .spawn()
        .unwrap();
    let service = Guard(service);
    let answers = || stats(socket).unwrap()["ports"][0]["transmitted"].as_u64().unwrap();
    eventually("the service answers", || answers() > 20);
    (iokernel, service)
}

fn trace(socket: &str, words: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let output =
        tailwater(&["trace", "--iokernel", socket, "--slowest", "1000", "--out", file.to_str().unwrap()])
            .args(words)
            .output()
            .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap())
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
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_short_request_behind_a_long_one_says_what_it_waited_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("@tailwater-trace-test-{}", std::process::id());
    let _running = start(folder.path(), &socket, &[]);
    let (report, document) = trace(&socket, &["--sample", "1", "--duration", "1s", "--runtime", "web"]);
    assert!(report.contains(" answered"), "{report}");
    // Where it waits is a matter of whether both came in one batch.
    let ring = "bytes: kthread 0 of web had a core and ran something else";
    let queue = "us in its socket behind 1 others: no thread was waiting to receive";
    assert!(report.contains(ring) || report.contains(queue), "{report}");
    assert!(report.contains("to web: ") && report.contains("ran for "), "{report}");
    // The long ones worked, the short ones waited for them: less the 50 us between them, and what clocks disagree.
    let least = LONG_NS as f64 / 1000.0 * 0.9;
    assert!(durations(&document, "run").iter().any(|&us| us > least), "{report}");
    let waits = [durations(&document, "ring"), durations(&document, "socket")].concat();
    assert!(waits.iter().any(|&us| us > least - 50.0), "{report}");
    for stage in ["switch", "stack", "egress ring", "out"] {
        assert!(!durations(&document, stage).is_empty(), "nobody was in {stage}: {report}");
    }

    // One trace at a time, and the end of one makes room.
    let first = Guard(tailwater(&["trace", "--iokernel", &socket, "--duration", "60s"]).spawn().unwrap());
    eventually("the first trace goes on", || !stats(&socket).unwrap()["trace"].is_null());
    let second = run(&["trace", "--iokernel", &socket]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("a trace is going on already"), "{}", text(&second.stderr));
    drop(first);
    eventually("the trace of the dead is ended", || stats(&socket).unwrap()["trace"].is_null());
    let (report, _) = trace(&socket, &["--sample", "1", "--duration", "200ms", "--runtime", "nobody"]);
    assert!(report.starts_with("0 requests traced, 0 answered; 0 events missing"), "{report}");
}

#[test]
fn a_request_is_followed_into_the_thread_that_is_started_for_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("@tailwater-trace-spawn-test-{}", std::process::id());
    let _running = start(folder.path(), &socket, &["--spawn"]);
    let (report, document) = trace(&socket, &["--sample", "1", "--duration", "500ms"]);
    let least = LONG_NS as f64 / 1000.0 * 0.9;
    assert!(durations(&document, "run").iter().any(|&us| us > least), "{report}");
    assert!(!report.contains("without a reply"), "{report}");
}
