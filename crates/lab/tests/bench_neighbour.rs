//! `bench neighbour` measures what was asked for, and every figure of it.

mod common;

use common::bench;
use serde_json::Value;
use tailwater_testkit::has_two_cpus;

/// Fails unless these keys are there; values of a busy machine are not judged.
#[track_caller]
fn has(document: &Value, keys: &[&str]) {
    for key in keys {
        assert!(document.get(key).is_some(), "{key}: {document}");
    }
}

#[test]
fn a_batch_job_alone_is_compared_with_linux() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, _)) = bench(&["neighbour", "--seconds", "1", "--only", "batch"]) else { return };
    assert!(report["quiet_ms"].as_f64().is_some_and(|ms| ms >= 100.0), "{report}");
    let keys = ["process_ms", "linux_process_ms", "iokernel_cpu_percent", "batch_over_linux"];
    has(&report["batch_only"], &keys);
    has(&report["batch_only"], &["pinned_wake_p99_ms", "linux_pinned_wake_p99_ms"]);
    assert!(report.get("service_30").is_none() && report.get("shell_p99_ms").is_none(), "{report}");
}

#[test]
fn a_service_is_measured_beside_programs_that_are_confined() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, _)) =
        bench(&["neighbour", "--seconds", "1", "--only", "service", "--confine", "lent", "--share", "0"])
    else {
        return;
    };
    has(&report, &["quiet_ms", "shell_p99_ms"]);
    let keys = ["process_ms", "linux_process_ms", "service_win_p999_us", "service_win_p999_alone_us"];
    has(&report["service_30"], &keys);
    has(&report["service_30"], &["batch_share", "linux_batch_share"]);
    assert!(report.get("batch_only").is_none(), "{report}");
}
