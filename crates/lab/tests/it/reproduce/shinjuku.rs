//! Shinjuku's figures and tables.

use std::collections::BTreeSet;

use serde_json::Value;

use super::kit::{all_answer, distinct, has_rocks, has_simulated_claims, number, reproduce, rows, set};

#[test]
fn shinjuku_fig4_is_simulated() {
    let Some(json) = reproduce("shinjuku-fig4", false) else { return };
    assert!(json["claims"].as_array().unwrap().iter().all(|claim| claim["verdict"] == "reached"), "{json:#}");
}

#[test]
fn shinjuku_fig6_has_three_systems_under_two_mixtures() {
    let Some(json) = reproduce("shinjuku-fig6", false) else { return };
    assert_eq!((distinct(&json, "workload").len(), distinct(&json, "system").len()), (2, 3));
}

#[test]
fn shinjuku_fig7_has_three_quanta_and_two_costs_of_a_dispatcher() {
    let Some(json) = reproduce("shinjuku-fig7", false) else { return };
    let rows = rows(&json);
    let of = |part: &str| rows.iter().filter(|row| row["part"] == part).count();
    assert_eq!((of("a"), of("b")), (2 * 3 * 3, 2 * 2 * 3));
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shinjuku_fig8_is_simulated_and_measured_where_rocksdb_is() {
    let Some(json) = reproduce("shinjuku-fig8", has_rocks()) else { return };
    let rows = rows(&json).iter();
    let (simulated, measured): (Vec<_>, Vec<_>) = rows.partition(|row| row["workload"].is_string());
    let of = |rows: &[&Value], key: &str| -> BTreeSet<String> {
        rows.iter().map(|row| row[key].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((of(&simulated, "workload").len(), of(&simulated, "system").len()), (3, 5));
    has_simulated_claims(&json, 6);
    if measured.is_empty() {
        let mut notes = json["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap());
        assert!(notes.any(|note| note.starts_with("RocksDB itself is not measured: ")), "{json:#}");
        return;
    }
    assert_eq!((of(&measured, "panel").len(), of(&measured, "system").len()), (2, 4));
    assert!(measured.iter().all(|row| number(row, "class0_p99_us") > 0.0), "{json:#}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shinjuku_table1_has_a_flag_and_signals() {
    let Some(json) = reproduce("shinjuku-table1", true) else { return };
    let mechanisms = set(&["flag at a poll point", "signal from another core", "timer signal"]);
    assert_eq!(distinct(&json, "mechanism"), mechanisms);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shinjuku_table2_has_one_switch_of_each_system() {
    let Some(json) = reproduce("shinjuku-table2", true) else { return };
    assert!(distinct(&json, "system").is_superset(&set(&["tailwater", "std", "tokio", "may"])));
    assert_eq!(rows(&json).len(), distinct(&json, "system").len());
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shinjuku_fig5_has_three_ways_on_tailwater_and_linux() {
    let Some(json) = reproduce("shinjuku-fig5", true) else { return };
    assert_eq!(distinct(&json, "panel").len(), 3);
    let mut systems = set(&[
        "Tailwater, SQ 5 us",
        "Tailwater, c-FCFS",
        "Tailwater, d-FCFS with stealing",
        "Linux, threads",
    ]);
    let found = distinct(&json, "system");
    // Only where there is a Go toolchain.
    systems.extend(found.get("Linux, Go").cloned());
    assert_eq!(found, systems);
    all_answer("shinjuku-fig5", &json, &systems);
}
