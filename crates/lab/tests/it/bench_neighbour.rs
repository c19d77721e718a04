//! `bench neighbour` measures what was asked for, and every figure of it.

use crate::common::bench;
use serde_json::Value;
use tailwater_testkit::has_two_cpus;

/// Fails unless these are the keys, in the order of the alphabet, and those not in `may_lack` have
/// values; values of a busy machine are not judged.
#[track_caller]
fn has(document: &Value, keys: &[&str], may_lack: &[&str]) {
    let object = document.as_object().expect("an object");
    let mut found: Vec<&str> = object.keys().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, keys, "{document}");
    for key in keys.iter().filter(|key| !may_lack.contains(key)) {
        assert!(!object[*key].is_null(), "{key}: {document}");
    }
}

/// Tails of a service that was saturated, as on a busy machine, have no values.
const TAILS: [&str; 7] = [
    "linux_service_p99_us",
    "linux_service_win_p999_us",
    "service_p99_alone_us",
    "service_p99_us",
    "service_win_p999_alone_us",
    "service_win_p999_over_alone",
    "service_win_p999_us",
];

#[track_caller]
fn has_all_of_a_service(document: &Value) {
    assert!(document["shell_p99_ms"].is_number() && document.get("batch_only").is_none(), "{document}");
    let service = &document["service_30"];
    let keys = [
        "batch_share",
        "batch_share_alone",
        "handoffs",
        "linux_batch_share",
        "linux_idle",
        "linux_process_ms",
        "linux_service_p99_us",
        "linux_service_win_p999_us",
        "linux_shell_p99_ms",
        "process_ms",
        "service_p99_alone_us",
        "service_p99_us",
        "service_win_p999_alone_us",
        "service_win_p999_over_alone",
        "service_win_p999_us",
    ];
    has(service, &keys, &TAILS);
    let keys = ["batch_share", "process_ms", "service_p99_us", "service_win_p999_us", "shell_p99_ms"];
    has(&service["linux_idle"], &keys, &TAILS);
    has(&service["handoffs"], &["bypass", "evict", "idle", "polling", "signal", "wake"], &[]);
    has(&service["handoffs"]["bypass"], &["count", "p50", "p99"], &[]);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_batch_job_alone_is_compared_with_linux() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["neighbour", "--seconds", "1", "--only", "batch"]) else { return };
    assert!(report["quiet_ms"].as_f64().is_some_and(|ms| ms >= 100.0), "{report}");
    let keys = [
        "batch_cpu_percent",
        "batch_over_linux",
        "batch_speed_over_linux",
        "iokernel_cpu_percent",
        "linux_batch_cpu_percent",
        "linux_pinned_wake_p99_ms",
        "linux_process_ms",
        "linux_shell_p99_ms",
        "pinned_wake_p99_ms",
        "process_ms",
        "shell_p99_ms",
    ];
    // A job that does no trial in a round has no speed.
    has(&report["batch_only"], &keys, &["batch_over_linux", "batch_speed_over_linux"]);
    assert!(report.get("service_30").is_none() && report.get("shell_p99_ms").is_none(), "{report}");
    assert!(shown.contains("The IOKernel beside the batch job"), "{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_service_is_measured_beside_programs_that_are_confined() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) =
        bench(&["neighbour", "--seconds", "1", "--only", "service", "--confine", "lent", "--share", "0"])
    else {
        return;
    };
    assert!(report["quiet_ms"].is_number(), "{report}");
    has_all_of_a_service(&report);
    for words in ["nothing", "(bypass): ", "median of the rounds' ratios", "the batch job in SCHED_IDLE"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn linux_gives_the_share_in_turns_where_it_may_be_told_to() {
    if !has_two_cpus() {
        return;
    }
    let words = ["neighbour", "--seconds", "1", "--only", "service", "--confine", "polled", "--turns"];
    if !may_raise() {
        return println!("skipped: nice values below 0 are refused here");
    }
    // The polling thread has a small weight then, and none of the ranks that keep it on time: on a
    // busy machine the IOKernel may not answer a program that registers before its time is over.
    let Some((report, _)) = bench(&words) else { return };
    has_all_of_a_service(&report);
}

/// Returns whether this process may raise its threads and its session.
fn may_raise() -> bool {
    let raise = || {
        let own = rustix::process::getpriority_process(None).unwrap_or(0);
        rustix::process::setpriority_process(None, own - 1).is_ok()
    };
    std::thread::spawn(raise).join().unwrap()
}
