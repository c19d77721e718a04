//! `bench dispatch` has every figure of the parts that take seconds.

use crate::common::bench;
use serde_json::Value;
use tailwater_testkit::has_two_cpus;

/// Runs a round of one part, if there is a core for the polling thread and one to lend.
fn part(name: &str) -> Option<(Value, String)> {
    has_two_cpus().then(|| bench(&["dispatch", "--rounds", "1", "--only", name])).flatten()
}

fn positive(value: &Value, shown: &str) {
    assert!(value.as_f64().is_some_and(|number| number > 0.0), "{value} in\n{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn threads_and_requests_take_turns() {
    let Some((report, shown)) = part("threads") else { return };
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
#[ignore = "a measurement: .ci/full"]
fn the_server_is_measured_with_preemption_and_without() {
    let Some((report, shown)) = part("service") else { return };
    // Beside other tests a server may sustain no load, and the batch job may do nothing.
    for policy in ["off", "on_5us"] {
        assert!(report["fixed_1us_mrps"][policy].as_f64().is_some_and(|rate| rate >= 0.0), "{shown}");
    }
    assert!(report["batch_beside"].get("ratio").is_some(), "{shown}");
    for variant in ["no_quantum_us", "quantum_15us_us", "dispatch_5us_us"] {
        assert!(report["low_load"][variant].get("p50").is_some(), "{shown}");
    }
}
