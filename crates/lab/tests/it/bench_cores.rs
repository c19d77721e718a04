//! `bench cores` measures every placement under every load, the background, a ramp of load,
//! requests, the estimate of cores, memory and an exclusive thread.

use crate::common::{bench, lab};
use serde_json::Value;
use tailwater_testkit::{Program, cpus, has_two_cpus, text};

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_round_has_a_row_for_every_placement_under_every_load() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["cores", "--rounds", "1", "--only", "creation"]) else { return };
    let rows = report["creation"].as_array().unwrap();
    for load in ["bursts", "skew"] {
        for placement in ["parent", "least_loaded"] {
            let row = rows.iter().find(|row| row["load"] == load && row["placement"] == placement);
            let row = row.unwrap_or_else(|| panic!("no {placement} under {load} in\n{shown}"));
            let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{row}"));
            let (p50, p99) = (number(&row["start_us"]["p50"]), number(&row["start_us"]["p99"]));
            assert!(0.0 < p50 && p50 <= p99 && number(&row["create_ns"]) > 0.0, "{row}");
        }
    }
    assert_eq!(rows.len(), 4, "{shown}");
    assert!(report.get("ramp").is_none() && report.get("background_switch_ns").is_none(), "{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn the_background_gives_way() {
    let Some((report, shown)) = bench(&["cores", "--rounds", "1", "--only", "background"]) else { return };
    assert!(report["background_switch_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_ramp_is_compared_with_constant_loads() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["cores", "--rounds", "1", "--only", "ramp", "--seconds", "1"]) else {
        return;
    };
    for ramp in [&report["ramp"], &report["ramp_arbiter"]] {
        assert!(ramp["capacity_rps"].as_f64().is_some_and(|rps| rps > 0.0), "{shown}");
        // Beside other tests any of these may have no value, for lack of answers or of the batch
        // job's.
        for key in ["follow_ms", "p999_over_steady", "batch_of_rest"] {
            assert!(ramp.get(key).is_some(), "{key}: {ramp}");
        }
        assert_eq!(ramp["steady"].as_array().map(Vec::len), Some(7), "{ramp}");
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn every_requested_core_runs_a_user_thread() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["cores", "--rounds", "1", "--only", "request", "--requests", "4"])
    else {
        return;
    };
    let figures = &report["request_to_first_thread_us"];
    for latencies in [figures, &figures["work_alone"]] {
        for key in ["idle_p50", "busy_p50", "p99"] {
            assert!(latencies[key].as_f64().is_some_and(|us| us > 0.0), "{key}: {figures}");
        }
        assert_eq!(latencies["count"], 4, "{shown}");
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_batch_job_runs_in_the_background_of_a_service_and_beside_it() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["cores", "--rounds", "1", "--only", "demo-background"]) else {
        return;
    };
    let figures = &report["demo_background"];
    for way in ["two_programs", "one_program"] {
        // Beside other tests either may have no value.
        for key in ["batch_share", "p50_us"] {
            assert!(figures[way].get(key).is_some(), "{way}: {shown}");
        }
    }
    assert!(figures["ideal_p50_us"].as_f64().is_some_and(|us| us > 0.0), "{figures}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn the_estimate_follows_steps_and_memory_is_counted() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["cores", "--rounds", "1", "--only", "estimator"]) else { return };
    let figures = &report["estimator"];
    for key in ["raise_ms", "lower_ms"] {
        assert!(figures[key].as_f64().is_some_and(|ms| ms > 0.0), "{key}: {shown}");
    }
    // Beside other tests the difference of two timings may be negative.
    assert!(figures["switch_more_ns"].as_f64().is_some(), "{shown}");
    assert_eq!(figures["count"], 10, "{shown}");
    let Some((report, shown)) = bench(&["cores", "--rounds", "1", "--only", "memory"]) else { return };
    for key in ["program_kib", "kthread_kib", "thread_kib"] {
        assert!(report["memory"][key].as_f64().is_some_and(|kib| kib > 0.0), "{key}: {shown}");
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn an_exclusive_thread_is_alone_or_the_machine_is_too_small() {
    let words = ["cores", "--only", "exclusive", "--seconds", "1"];
    if cpus() < 3 {
        let output = Program::start(lab(&["bench"]).args(words)).finish();
        let errors = text(&output.stderr);
        assert!(!output.status.success() && errors.contains("needs three CPUs"), "{errors}");
        return;
    }
    let Some((report, shown)) = bench(&words) else { return };
    let figures = &report["exclusive"];
    assert_eq!(figures["other_user_threads"], 0, "{shown}");
    assert_eq!(figures["kept_off"], false, "{shown}");
    assert!(figures["looks"].as_u64() > Some(0) && figures["seconds"].as_f64() >= Some(1.0), "{shown}");
    assert!(figures["core_moves"].as_u64().is_some(), "{shown}");
    // Either all figures of the scheduler's trace are there, or why none is.
    let traced =
        ["ordinary_switches", "ordinary_ns", "kernel_switches"].map(|key| figures.get(key).is_some());
    assert!(traced == [true; 3] || (traced == [false; 3] && shown.contains("not counted: ")), "{shown}");
}
