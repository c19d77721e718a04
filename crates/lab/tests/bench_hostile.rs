//! `bench hostile` replaces the IOKernel under busy programs, which lose no connection.

mod common;

use std::time::Duration;

use common::lab;
use serde_json::Value;
use tailwater_testkit::{Program, has_two_cpus, text};

#[test]
fn connections_outlive_an_iokernel_that_is_killed_and_one_that_is_taken_over_from() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hostile.json");
    let mut command = lab(&["bench", "hostile", "--only", "restart,takeover", "--times", "1", "--json"]);
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
    assert!(report["attacks"].is_null() && report["kills"].is_null(), "{report:#}");
    assert!(shown.contains("kill -9 and restart"), "{shown}");
}
