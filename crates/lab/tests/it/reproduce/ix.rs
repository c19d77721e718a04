//! IX's figures and tables, and this project's own.

use std::collections::BTreeSet;

use tailwater_testkit::{cpu_numbers, is_installed};

use super::kit::{
    all_answer, all_answer_somewhere, distinct, has_memcached, has_simulated_claims, number, places,
    reproduce, rows, set,
};

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_table3_searches_for_both_systems() {
    let Some(json) = reproduce("ix-table3", true) else { return };
    let mut systems = set(&["Tailwater"]);
    if has_memcached() {
        systems.insert("memcached on Linux".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    assert!(distinct(&json, "verdict").is_subset(&set(&["Met", "Missed", "GeneratorBehind", "null"])));
    all_answer_somewhere("ix-table3", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_connections_has_both_systems_under_every_number_of_connections() {
    let Some(json) = reproduce("ix-connections", true) else { return };
    assert_eq!(distinct(&json, "system"), set(&["Tailwater", "Linux"]));
    // A point exists only if every connection has answered. The counted 200 ms may be without an
    // answer on a machine that stands still for as long.
    let mut points = Vec::new();
    for row in rows(&json) {
        assert!(number(row, "rate_rps") >= 0.0 && number(row, "p99_us") >= number(row, "p50_us"), "{row}");
        points.push((row["system"].as_str().unwrap(), number(row, "connections")));
    }
    // Linux needs a file for each connection, of which the machine may allow fewer.
    points.retain(|&(system, connections)| system == "Tailwater" || connections < 1_000.0);
    points.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let tailwater = [10.0, 1_000.0, 5_000.0].map(|connections| ("Tailwater", connections));
    assert_eq!(points, [&[("Linux", 10.0)][..], &tailwater].concat());
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_fig13_has_every_bound_under_the_least_and_the_most_load() {
    let Some(json) = reproduce("ix-fig13", true) else { return };
    let mut points: Vec<_> = rows(&json).iter().collect();
    points.sort_by_key(|row| (number(row, "bound") as u64, number(row, "outstanding") as u64));
    let points: Vec<_> =
        points.iter().map(|row| (number(row, "bound"), number(row, "outstanding"))).collect();
    let expected = [1.0, 16.0, 64.0].map(|bound| [(bound, 1.0), (bound, 64.0)]);
    assert_eq!(points, expected.concat());
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_fig4_has_every_length_on_tailwater_and_on_linux_in_both_ways() {
    let Some(json) = reproduce("ix-fig4", true) else { return };
    assert_eq!(distinct(&json, "system"), set(&["Tailwater", "Linux", "Linux, both sides spin"]));
    for system in distinct(&json, "system") {
        assert_eq!(places(&json, &system, "bytes"), [64, 4 << 10, 64 << 10, 512 << 10], "{system}");
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_fig5_has_cores_messages_by_number_and_by_length_on_both_systems() {
    let Some(json) = reproduce("ix-fig5", true) else { return };
    assert_eq!(distinct(&json, "panel").len(), 3);
    let serving = cpu_numbers().len() as u64 - 1;
    for system in ["Tailwater", "Linux"] {
        let others = [1, 64, 1_024, 8 << 10];
        let all: BTreeSet<u64> = (1..=serving).chain(others).collect();
        let places = places(&json, system, "cores_messages_or_bytes");
        assert_eq!(places.into_iter().collect::<BTreeSet<_>>(), all, "{system}");
    }
    for system in ["Tailwater, simulated", "IX's policy, simulated"] {
        assert_eq!(places(&json, system, "cores_messages_or_bytes"), [1, 8, 16], "{system}");
    }
    has_simulated_claims(&json, 2);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_fig6b_has_rounds_with_pressure_and_without() {
    let Some(json) = reproduce("ix-fig6b", true) else { return };
    let mut points = Vec::new();
    for row in rows(&json) {
        assert!(number(row, "conditions") >= 1.0 && number(row, "conditions") <= 64.0, "{row}");
        assert!(number(row, "cycles") > 0.0, "{row}");
        points.push((number(row, "connections") as u64, number(row, "outstanding") as u64));
    }
    points.sort_unstable();
    assert_eq!(points, [(1, 1), (64, 1), (64, 64), (1_000, 432)]);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_fig7_has_the_store_and_memcached_where_it_is_installed() {
    let Some(json) = reproduce("ix-fig7", true) else { return };
    let mut systems = set(&["Tailwater, kv"]);
    systems.extend(has_memcached().then(|| "Linux, memcached".to_owned()));
    assert_eq!(distinct(&json, "system"), systems);
    all_answer("ix-fig7", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn ix_table5_counts_moves_and_claims_nothing_with_one_shared_core() {
    let Some(json) = reproduce("ix-table5", true) else { return };
    for row in rows(&json) {
        assert!(number(row, "fenced") <= number(row, "moved"), "{row}");
    }
    if cpu_numbers().len() < 3 {
        assert!(json["claims"].as_array().unwrap().iter().all(|claim| claim["verdict"] == "not-comparable"));
    }
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn dns_slo_has_our_server_and_another() {
    let Some(json) = reproduce("dns-slo", true) else { return };
    let mut systems = set(&["Tailwater"]);
    if is_installed("nsd", "nsd") {
        systems.insert("NSD on Linux".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    all_answer("dns-slo", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn foreign_batch_has_both_systems_beside_each_job() {
    if !is_installed("cc", "gcc") {
        return;
    }
    let Some(json) = reproduce("foreign-batch", true) else { return };
    let systems = set(&["Tailwater", "Linux"]);
    assert_eq!(distinct(&json, "system"), systems);
    assert!(distinct(&json, "panel").contains("cc -O2"));
    all_answer("foreign-batch", &json, &systems);
}
