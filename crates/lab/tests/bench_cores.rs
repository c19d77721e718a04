//! `bench cores` measures every placement under every load, and the background.

mod common;

use std::time::Duration;

use common::lab;
use serde_json::Value;
use tailwater_testkit::{Program, has_two_cpus, text};

#[test]
fn a_round_has_a_row_for_every_placement_under_every_load() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cores.json");
    let mut command = lab(&["bench", "cores", "--rounds", "1", "--json"]);
    let output = Program::start(command.arg(&file)).finish_within(Duration::from_secs(600));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
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
    assert!(report["background_switch_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{shown}");
}
