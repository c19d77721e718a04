//! `bench dispatch` has every figure of the parts that take seconds.

mod common;

use std::time::Duration;

use common::lab;
use serde_json::Value;
use tailwater_testkit::{Program, has_two_cpus, text};

/// Runs a round of one part; returns its document and what it printed, or `None` if other programs
/// have the cores for minutes.
fn bench(part: &str) -> Option<(Value, String)> {
    if !has_two_cpus() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dispatch.json");
    let mut command = lab(&["bench", "dispatch", "--rounds", "1", "--only", part]);
    let output = Program::start(command.arg("--json").arg(&file)).finish_within(Duration::from_secs(600));
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    if errors.contains("the machine is overloaded") {
        println!("skipped: {errors}");
        return None;
    }
    assert!(output.status.success(), "{shown}{errors}");
    Some((serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap(), shown))
}

fn positive(value: &Value, shown: &str) {
    assert!(value.as_f64().is_some_and(|number| number > 0.0), "{value} in\n{shown}");
}

#[test]
fn threads_and_requests_take_turns() {
    let Some((report, shown)) = bench("threads") else { return };
    for key in ["quantum_error_us", "request_quantum_error_us"] {
        // A quantum may end a little early, by what the clock is read apart.
        let [p50, p99] = ["p50", "p99"].map(|quantile| report[key][quantile].as_f64().unwrap());
        assert!(-5.0 < p50 && p50 <= p99, "{shown}");
    }
    positive(&report["switch_ns"], &shown);
    positive(&report["request_switch_ns"], &shown);
    assert!(report["poll_overhead_percent"].as_object().unwrap().len() > 2, "{shown}");
    assert!(report.get("bimodal").is_none(), "{shown}");
}

#[test]
fn the_server_is_measured_with_preemption_and_without() {
    let Some((report, shown)) = bench("service") else { return };
    for policy in ["off", "on_5us"] {
        positive(&report["fixed_1us_mrps"][policy], &shown);
    }
    assert!(report["batch_beside"]["ratio"].is_number(), "{shown}");
    for variant in ["no_quantum_us", "quantum_15us_us", "dispatch_5us_us"] {
        positive(&report["low_load"][variant]["p50"], &shown);
    }
}
