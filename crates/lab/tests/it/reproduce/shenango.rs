//! Shenango's figures and tables.

use super::kit::{all_answer, distinct, has_arbiter, has_memcached, reproduce, rows, set};

#[test]
#[ignore = "a measurement: .ci/full"]
fn shenango_fig3_has_our_store_on_both_systems_and_memcached() {
    let Some(json) = reproduce("shenango-fig3", true) else { return };
    let mut systems = set(&["Tailwater, kv", "Linux, kv"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
        systems.insert("Linux, memcached, nothing beside".to_owned());
    }
    all_answer("shenango-fig3", &json, &systems);
    has_arbiter("shenango-fig3", &json, systems);
    for row in rows(&json) {
        let is_alone = row["system"] == "Linux, memcached, nothing beside";
        assert_eq!(row["batch_share"].is_number(), !is_alone, "{row}");
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shenango_fig4_has_three_systems_and_the_arbiter_under_three_distributions() {
    let Some(json) = reproduce("shenango-fig4", true) else { return };
    assert_eq!(distinct(&json, "panel"), set(&["constant", "exponential", "bimodal"]));
    let systems = set(&["Tailwater", "Linux", "Tokio on Linux"]);
    has_arbiter("shenango-fig4", &json, systems.clone());
    for row in rows(&json) {
        assert!(row["batch_share"].as_f64().is_some_and(|share| share >= 0.0), "{row}");
    }
    all_answer("shenango-fig4", &json, &systems);
    // Two loads lie on any line.
    let straight = json["claims"]
        .as_array()
        .unwrap()
        .iter()
        .find(|claim| claim["paper"].as_str().unwrap().contains("linearly"));
    assert_eq!(straight.unwrap()["verdict"], "not-comparable", "{json:#}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shenango_fig5_has_every_window_of_all_systems() {
    let Some(json) = reproduce("shenango-fig5", true) else { return };
    let rows = rows(&json);
    for system in ["Tailwater", "Linux", "Tailwater, arbiter"] {
        let at: Vec<u64> = rows
            .iter()
            .filter(|row| row["system"] == system)
            .map(|row| row["at_ms"].as_f64().unwrap() as u64)
            .collect();
        assert_eq!(at, (0..210).map(|window| window * 10).collect::<Vec<_>>(), "{system}");
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shenango_fig6_has_eight_ways_to_answer() {
    let Some(json) = reproduce("shenango-fig6", true) else { return };
    assert_eq!(distinct(&json, "way").len(), 8);
    assert!(rows(&json).iter().all(|row| row["p99_us"].as_f64() >= row["p50_us"].as_f64()));
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shenango_fig7_has_many_and_few_flows_with_and_without_stealing() {
    let Some(json) = reproduce("shenango-fig7", true) else { return };
    assert_eq!(distinct(&json, "system").len(), 5);
    all_answer("shenango-fig7", &json, &distinct(&json, "system"));
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shenango_fig8_has_five_intervals_the_arbiter_and_linux() {
    let Some(json) = reproduce("shenango-fig8", true) else { return };
    let systems = set(&["5 us", "25 us", "50 us", "100 us", "1 ms", "Linux"]);
    has_arbiter("shenango-fig8", &json, systems.clone());
    all_answer("shenango-fig8", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn shenango_table2_has_four_operations() {
    let Some(json) = reproduce("shenango-table2", true) else { return };
    assert_eq!(distinct(&json, "operation"), set(&["mutex", "yield", "condvar", "spawn_join"]));
    assert!(distinct(&json, "system").is_superset(&set(&["tailwater", "std", "tokio", "may"])));
    // The figure needs no testbed, but is judged only after the machine's noise has been measured.
    let notes = json["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().starts_with("Before the run core")), "{json:#}");
}
