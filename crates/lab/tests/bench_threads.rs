//! `bench threads` measures every operation, in processes that end with it.

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::lab;
use serde_json::Value;
use tailwater_testkit::{Program, children, eventually, is_running, text, until};

#[test]
fn a_quick_run_has_a_row_for_every_operation_of_every_system() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("threads.json");
    let mut command = lab(&["bench", "threads", "--quick", "--systems", "tailwater,std", "--json"]);
    let output = Program::start(command.arg(&file)).finish_within(Duration::from_secs(600));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("(Shenango)") && shown.contains("(Arachne)"), "{shown}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = |op: &str, system: &str| {
        let mut found = rows.iter().filter(|row| row["op"] == op && row["system"] == system);
        let row = found.next().unwrap_or_else(|| panic!("no {op} of {system} in\n{shown}"));
        assert!(found.next().is_none(), "two rows of {op} of {system}");
        let number =
            |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row} is not a number"));
        assert!(0.0 < number("min_ns") && number("min_ns") <= number("ns"), "{row}");
        assert!(number("spread") >= 0.0, "{row}");
        row.clone()
    };
    let two_cores = report["machine"]["usable_cores"].as_array().unwrap().len() > 1;
    for system in ["tailwater", "std"] {
        for op in ["mutex", "yield", "condvar", "spawn_join", "fan_out", "null_yield", "throughput_1"] {
            row(op, system);
        }
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
    assert!(
        rows.iter().all(|row| ["tailwater", "std", "machine"].contains(&row["system"].as_str().unwrap()))
    );
}

#[test]
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
