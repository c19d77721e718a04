//! `bench energy` measures every load in both ways.

mod common;

use std::time::Duration;

use common::lab;
use serde_json::Value;
use tailwater_testkit::{Program, has_two_cpus, text};

#[test]
fn a_round_has_every_load_in_both_ways() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("energy.json");
    let mut command = lab(&["bench", "energy", "--rounds", "1", "--seconds", "1", "--json"]);
    let output = Program::start(command.arg(&file)).finish_within(Duration::from_secs(600));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let rows = report["loads"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{shown}");
    // No figure is judged: on a busy machine requests stay unanswered at any load.
    for row in rows {
        for way in ["sleeping", "polling"] {
            let latency = row[way].get("p99_us").unwrap_or_else(|| panic!("{row}"));
            assert!(latency.is_null() || row["load"].as_f64() > Some(0.0), "{row}");
            assert!(row[way].get("busy").is_some(), "{row}");
        }
        assert!(row["met"].is_boolean(), "{row}");
    }
}
