//! `bench events` measures event loops, user threads, futures and the kernel, every size of a
//! round, large answers, and hyper where `tailwater-hello` is built.

use std::path::Path;

use crate::common::bench;
use serde_json::Value;
use tailwater_testkit::has_two_cpus;

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_round_has_an_echo_and_a_round_trip_of_each_service_and_every_size() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["events", "--rounds", "1"]) else { return };
    // The services answer, or the command fails; how much in a moment is the machine's.
    let is_there = |of: &Value, key: &str| of.get(key).is_some_and(|figure| !figure.is_null());
    for service in ["events", "threads", "async", "kernel_epoll"] {
        assert!(is_there(&report["echo_rps"], service), "echo of {service}: {shown}");
        assert!(report["rr_p50_us"].get(service).is_some(), "round trip of {service}: {shown}");
    }
    assert!(is_there(&report, "async_rr_p50_us"), "{shown}");
    for way in ["copied", "shared"] {
        assert!(is_there(&report["large_rps"], way), "large answers, {way}: {shown}");
    }
    for size in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        assert!(is_there(&report["batch"], &size.to_string()), "batch of {size}: {shown}");
    }
    let built = Path::new(env!("CARGO_BIN_EXE_tailwater-lab")).with_file_name("tailwater-hello").is_file();
    for key in ["hyper_rps", "tokio_hyper_rps"] {
        assert!(report.get(key).is_some(), "{key}: {report}");
        if built {
            assert!(is_there(&report, key), "{key}: {shown}");
        }
    }
    if !is_there(&report, "hyper_rps") {
        assert!(shown.contains("cargo build --release --manifest-path tests/hello/Cargo.toml"), "{shown}");
    }
}
