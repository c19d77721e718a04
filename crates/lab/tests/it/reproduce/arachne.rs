//! Arachne's figures and tables.

use std::collections::BTreeSet;

use super::kit::{
    all_answer, all_answer_somewhere, distinct, has_arbiter, has_memcached, number, reproduce, rows, set,
};

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig10_has_every_request_of_a_free_and_of_a_held_core() {
    let Some(json) = reproduce("arachne-fig10", true) else { return };
    assert_eq!(distinct(&json, "situation"), set(&["free core", "core held by a batch job"]));
    assert_eq!(rows(&json).len(), 2 * 10);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig11_has_the_steps_from_the_request_to_the_user_thread() {
    let Some(json) = reproduce("arachne-fig11", true) else { return };
    // On a busy machine a program may keep its core from one request to the next, without the rest.
    let steps = distinct(&json, "step");
    assert!(steps.is_superset(&set(&["work is runnable", "user thread runs"])), "{steps:?}");
}

#[test]
fn arachne_fig4_has_every_window_of_six_systems() {
    let Some(json) = reproduce("arachne-fig4", false) else { return };
    assert_eq!(distinct(&json, "system").len(), 6);
    let rows = rows(&json);
    assert_eq!(rows.len(), 6 * 16);
    let requests = rows.iter().filter(|row| row["requested_cores"].is_number());
    assert_eq!(requests.count(), 2 * 16, "those of the arbiter");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig2a_has_every_system_on_one_core_and_two_placements() {
    let Some(json) = reproduce("arachne-fig2a", true) else { return };
    let rows = rows(&json);
    let systems = distinct(&json, "system");
    let expected = set(&["tailwater", "tailwater, least loaded", "std", "tokio", "may"]);
    assert!(systems.is_superset(&expected), "{systems:?}");
    assert!(rows.iter().all(|row| number(row, "threads_per_s") > 0.0), "{json:#}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig3b_has_both_stores_with_threads_for_the_cores_and_for_twice_as_many() {
    let Some(json) = reproduce("arachne-fig3b", true) else { return };
    let mut systems = set(&["Tailwater, kv", "Tailwater, kv, kthreads for twice the cores"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
        systems.insert("Linux, memcached, twice the threads".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    all_answer("arachne-fig3b", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig5_has_windows_of_five_systems() {
    let Some(json) = reproduce("arachne-fig5", true) else { return };
    let systems = set(&[
        "arbiter",
        "arbiter, batch job",
        "no arbiter",
        "no arbiter, batch job at nice 10",
        "Linux, batch job at nice 10",
    ]);
    all_answer_somewhere("arachne-fig5", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig9_has_a_signal_alone_and_among_56_threads() {
    let Some(json) = reproduce("arachne-fig9", true) else { return };
    // On a busy machine a system may have no figure.
    let others = distinct(&json, "others");
    assert!(others.is_subset(&set(&["0.0", "56.0"])), "{others:?}");
    assert!(rows(&json).iter().all(|row| number(row, "ns") > 0.0), "{json:#}");
}

#[test]
fn arachne_fig6_has_three_systems_under_eight_skews() {
    let Some(json) = reproduce("arachne-fig6", false) else { return };
    assert_eq!((distinct(&json, "system").len(), distinct(&json, "hot_part").len()), (3, 8));
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig3_has_both_stores_alone_and_beside_a_batch_job() {
    let Some(json) = reproduce("arachne-fig3", true) else { return };
    let mut systems = set(&["Tailwater, kv"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
    }
    has_arbiter("arachne-fig3", &json, systems.clone());
    assert_eq!(distinct(&json, "panel"), set(&["ETC, alone", "ETC, beside a batch job"]));
    for row in rows(&json) {
        let is_beside = row["panel"] == "ETC, beside a batch job";
        assert_eq!(row["batch_share"].is_number(), is_beside, "{row}");
    }
    all_answer("arachne-fig3", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig8_has_a_store_with_and_without_backups_on_both_systems() {
    let Some(json) = reproduce("arachne-fig8", true) else { return };
    let systems =
        set(&["Tailwater, two backups", "Linux, two backups", "Tailwater, no backup", "Linux, no backup"]);
    assert_eq!(distinct(&json, "system"), systems);
    assert_eq!(distinct(&json, "panel"), set(&["writes only", "YCSB-A, half writes"]));
    all_answer_somewhere("arachne-fig8", &json, &systems);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_table2_has_the_papers_primitives() {
    let Some(json) = reproduce("arachne-table2", true) else { return };
    // Those across cores may have no figure on a busy machine.
    let operations = distinct(&json, "operation");
    assert!(operations.is_superset(&set(&["yield", "null_yield", "exit_turnaround"])), "{operations:?}");
    assert!(!operations.contains("mutex"));
    assert!(distinct(&json, "system").is_superset(&set(&["tailwater", "std", "tokio", "may"])));
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn arachne_fig2_has_every_system_on_one_core() {
    let Some(json) = reproduce("arachne-fig2", true) else { return };
    let on_one_core = rows(&json).iter().filter(|row| row["cores"] == 1.0);
    let systems: BTreeSet<String> =
        on_one_core.map(|row| row["system"].as_str().unwrap().to_owned()).collect();
    assert!(systems.is_superset(&set(&["tailwater", "std", "tokio", "may"])), "{systems:?}");
    assert!(rows(&json).iter().all(|row| number(row, "threads_per_s") > 0.0), "{json:#}");
}
