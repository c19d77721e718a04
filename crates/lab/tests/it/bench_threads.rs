//! `bench threads` measures every operation, in processes that end with it.

use std::process::Stdio;

use crate::common::{bench, lab};
use serde_json::Value;
use tailwater_testkit::{Program, children, eventually, is_running, until};

/// Returns the only row of an operation of a system, whose numbers agree with each other.
fn only_row(rows: &[Value], op: &str, system: &str) -> Value {
    let mut found = rows.iter().filter(|row| row["op"] == op && row["system"] == system);
    let row = found.next().unwrap_or_else(|| panic!("no {op} of {system} in {rows:?}"));
    assert!(found.next().is_none(), "two rows of {op} of {system}");
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row} is not a number"));
    assert!(0.0 < number("min_ns") && number("min_ns") <= number("ns"), "{row}");
    assert!(number("spread") >= 0.0, "{row}");
    row.clone()
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_quick_run_has_a_row_for_every_operation_of_every_system() {
    let words = ["threads", "--quick", "--systems", "tailwater,std,tokio,go"];
    let Some((report, shown)) = bench(&words) else { return };
    assert!(shown.contains("(Shenango)") && shown.contains("(Arachne)"), "{shown}");
    let rows = report["rows"].as_array().unwrap();
    let row = |op: &str, system: &str| only_row(rows, op, system);
    let two_cores = report["machine"]["usable_cores"].as_array().unwrap().len() > 1;
    // On one core every system has a figure for every operation that it offers.
    let common = [
        "mutex",
        "yield",
        "condvar",
        "channel",
        "channel_hop",
        "rwlock_read",
        "rwlock_write",
        "spawn_join",
        "fan_out",
        "null_yield",
        "throughput_1",
    ];
    let measured: &[&str] = match report["go"].is_string() {
        true => &["tailwater", "std", "tokio", "go"],
        false => &["tailwater", "std", "tokio"],
    };
    for system in measured {
        for op in common {
            row(op, system);
        }
        if *system != "std" {
            row("select", system);
        }
    }
    for op in ["channel_many", "rcu_read", "rcu_replace"] {
        row(op, "tailwater");
    }
    for system in ["tailwater", "std"] {
        // Operations across cores may have no figure on a busy machine; if there is one, it is a
        // number.
        if two_cores {
            row("throughput_2", system);
        }
        for op in ["idle_fresh", "idle_recycled"] {
            assert!(row(op, system)["kib"].as_f64().unwrap() > 0.5, "{op} of {system} takes no memory");
        }
    }
    row("exit_turnaround", "tailwater");
    row("cas_pair", "machine");
    assert!(report["commit"].is_string() && report["idle_threads"] == 1000);
    let known = |row: &Value| {
        let system = row["system"].as_str().unwrap();
        system == "machine" || measured.contains(&system)
    };
    assert!(rows.iter().all(known), "{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn the_measured_processes_end_with_one_that_is_killed() {
    let mut command = lab(&["bench", "threads", "--rounds", "1000", "--systems", "tailwater"]);
    let mut bench = Program::spawn(command.stdout(Stdio::null()));
    let started = eventually("two processes are measured", || {
        assert!(bench.is_running(), "it ended");
        Some(children(bench.pid())).filter(|started| started.len() >= 2)
    });
    bench.kill();
    until("the measured processes end", || started.iter().all(|&pid| !is_running(pid)));
}
