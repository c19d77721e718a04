//! `bench hostile` measures a service beside an attacker, and replaces the IOKernel under busy
//! programs, which lose no connection.

use crate::common::{bench, bench_until};
use serde_json::Value;
use tailwater_testkit::has_two_cpus;

fn attacks(report: &Value) -> &[Value] {
    report["attacks"].as_array().unwrap()
}

/// Returns the part of the measured time in which an attacker attacked. One that is expelled has
/// attacked before.
fn share(attacked: &Value) -> f64 {
    attacked["attack_share"].as_f64().unwrap()
}

/// Returns an attack during which, or before which, the service was not answered at all.
fn unanswered(report: &Value) -> Option<String> {
    let is_silent =
        |attacked: &&Value| ["before", "during"].iter().any(|time| attacked[time]["p50_us"].is_null());
    attacks(report).iter().find(is_silent).map(|one| format!("the service beside {}", one["name"]))
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn connections_outlive_an_iokernel_that_is_killed_and_one_that_is_taken_over_from() {
    if !has_two_cpus() {
        return;
    }
    let words = ["hostile", "--only", "restart,takeover,fallback", "--times", "1"];
    let Some((report, shown)) = bench(&words) else { return };
    for way in ["restart", "takeover"] {
        let figures = &report[way];
        assert_eq!((&figures["times"], &figures["connections_lost"]), (&1.into(), &0.into()), "{report:#}");
        assert!(figures["requests_lost"].is_u64(), "{report:#}");
        let ms = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{key} of {report:#}"));
        assert!(0.0 < ms("pause_p50_ms") && ms("pause_p50_ms") <= ms("pause_max_ms"), "{report:#}");
        assert!(ms("from_start_max_ms") <= ms("pause_max_ms"), "{report:#}");
    }
    for program in ["sleeper", "batch"] {
        assert!(report["fallback"][program]["p50_ms"].as_f64() > Some(0.0), "{report:#}");
    }
    assert!(report["fallback"]["batch_speed"].as_f64() > Some(0.0), "{report:#}");
    assert!(report["attacks"].is_null() && report["kills"].is_null(), "{report:#}");
    assert!(shown.contains("kill -9 and restart"), "{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_service_is_measured_alone_and_beside_an_attacker_from_its_first_frame_on() {
    if !has_two_cpus() {
        return;
    }
    let words = ["hostile", "--only", "attacks", "--attack", "spoofed", "--seconds", "3"];
    let Some((report, shown)) = bench_until(&words, unanswered) else { return };
    let attacks = attacks(&report);
    assert!(matches!(attacks.len(), 1 | 2), "{report:#}");
    for (attacked, fresh_users) in attacks.iter().zip([false, true]) {
        assert_eq!(attacked["name"], "spoofed frames");
        assert_eq!(attacked["fresh_users"], fresh_users);
        for time in ["before", "during"] {
            assert!(attacked[time]["p50_us"].as_f64() > Some(0.0), "{report:#}");
            assert!(attacked[time]["lost"].is_u64(), "{report:#}");
        }
        assert!((0.0..=1.0).contains(&share(attacked)), "{report:#}");
        assert_eq!(attacked["expelled"], attacked["expulsions"] != 0);
    }
    assert!(report["kills"].is_null() && report["restart"].is_null(), "{report:#}");
    assert!(shown.contains("spoofed frames"), "{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn attackers_of_shared_words_memory_and_stopped_programs_attack_all_the_time_that_is_measured() {
    if !has_two_cpus() {
        return;
    }
    let names = "moved-sleepers,woken-sleepers,emptied-doorbell,stopped-program,memory,false-errors";
    let words = ["hostile", "--only", "attacks", "--attack", names, "--seconds", "3"];
    let Some((report, shown)) = bench_until(&words, |report| {
        let few = attacks(report).iter().find(|one| one["expelled"] == false && share(one) <= 0.9);
        let attacker = few.map(|one| format!("an attack all the time: {}", one["name"]));
        attacker.or_else(|| unanswered(report))
    }) else {
        return;
    };
    let measured: Vec<&Value> =
        attacks(&report).iter().filter(|attacked| attacked["fresh_users"] == false).collect();
    let shown_as = [
        "sleepers moved",
        "sleepers woken",
        "doorbell emptied",
        "frames to a stopped program",
        "memory",
        "false errors of routers",
    ];
    assert_eq!(measured.len(), shown_as.len(), "{report:#}");
    for (attacked, name) in measured.into_iter().zip(shown_as) {
        assert_eq!(attacked["name"], name);
        assert!(attacked["during"]["p50_us"].as_f64() > Some(0.0), "{report:#}");
        assert!(shown.contains(name), "{shown}");
    }
}
