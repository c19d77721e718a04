//! `bench hostile` measures a service beside an attacker, and replaces the IOKernel under busy
//! programs, which lose no connection.

use std::time::Duration;

use crate::common::{lab, turn};
use serde_json::Value;
use tailwater_testkit::{Program, has_two_cpus, text};

#[test]
#[ignore = "a measurement: .ci/full"]
fn connections_outlive_an_iokernel_that_is_killed_and_one_that_is_taken_over_from() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hostile.json");
    let mut command =
        lab(&["bench", "hostile", "--only", "restart,takeover,fallback", "--times", "1", "--json"]);
    let output = Program::start(command.arg(&file)).finish_within(Duration::from_secs(900));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
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
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hostile.json");
    let mut command =
        lab(&["bench", "hostile", "--only", "attacks", "--attack", "spoofed", "--seconds", "3", "--json"]);
    let output = Program::start(command.arg(&file)).finish_within(Duration::from_secs(900));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let attacks = report["attacks"].as_array().unwrap();
    assert!(matches!(attacks.len(), 1 | 2), "{report:#}");
    for (attacked, fresh_users) in attacks.iter().zip([false, true]) {
        assert_eq!(attacked["name"], "spoofed frames");
        assert_eq!(attacked["fresh_users"], fresh_users);
        for time in ["before", "during"] {
            assert!(attacked[time]["p50_us"].as_f64() > Some(0.0), "{report:#}");
            assert!(attacked[time]["lost"].is_u64(), "{report:#}");
        }
        let share = attacked["attack_share"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{report:#}");
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
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hostile.json");
    let names = "moved-sleepers,woken-sleepers,emptied-doorbell,stopped-program,memory,false-errors";
    let mut command =
        lab(&["bench", "hostile", "--only", "attacks", "--attack", names, "--seconds", "3", "--json"]);
    let output = Program::start(command.arg(&file)).finish_within(Duration::from_secs(900));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let attacks = report["attacks"].as_array().unwrap();
    let measured: Vec<&Value> = attacks.iter().filter(|attacked| attacked["fresh_users"] == false).collect();
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
        // One that is expelled has attacked before.
        let share = attacked["attack_share"].as_f64().unwrap();
        assert!(share > 0.9 || attacked["expelled"] == true, "{report:#}");
        assert!(shown.contains(name), "{shown}");
    }
}
