//! `bench energy` measures every load in all three ways.

use crate::common::bench;
use tailwater_testkit::has_two_cpus;

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_round_has_every_load_in_all_ways() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["energy", "--rounds", "1", "--seconds", "1"]) else { return };
    let rows = report["loads"].as_array().unwrap();
    let loads: Vec<f64> = rows.iter().filter_map(|row| row["load"].as_f64()).collect();
    assert_eq!(loads, [0.0, 0.01, 0.1, 0.5, 1.0], "{shown}");
    // No figure is judged: on a busy machine requests stay unanswered at any load.
    for row in rows {
        for way in ["sleeping", "unannounced", "polling"] {
            let latency = row[way].get("p99_us").unwrap_or_else(|| panic!("{row}"));
            assert!(latency.is_null() || row["load"].as_f64() > Some(0.0), "{row}");
            assert!(row[way].get("busy").is_some(), "{row}");
        }
        assert!(row["met"].is_boolean() && row["met_unannounced"].is_boolean(), "{row}");
    }
}
