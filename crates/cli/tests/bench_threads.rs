//! `bench threads` measures what it says, in processes that end with it.

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{PATIENCE, children, is_alive, tailwater, text};
use serde_json::Value;

#[test]
fn a_quick_run_has_a_row_for_every_operation_of_every_system() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("threads.json");
    let output = tailwater(&["bench", "threads", "--quick", "--systems", "tailwater,std", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("(Shenango)") && shown.contains("(Arachne)"), "{shown}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = |op: &str, system: &str| {
        let mut found = rows.iter().filter(|row| row["op"] == op && row["system"] == system);
        let row = found.next().unwrap_or_else(|| panic!("no {op} of {system} in\n{shown}"));
        assert!(found.next().is_none(), "two rows of {op} of {system}");
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row} is no number"));
        assert!(0.0 < number("min_ns") && number("min_ns") <= number("ns"), "{row}");
        assert!(number("spread") >= 0.0, "{row}");
        row.clone()
    };
    let two_cores = report["machine"]["usable_cores"].as_array().unwrap().len() > 1;
    for system in ["tailwater", "std"] {
        for op in ["mutex", "yield", "condvar", "spawn_join", "fan_out", "null_yield", "throughput_1"] {
            row(op, system);
        }
        // What crosses cores can fail to on a machine that others use; where it is there, it is a number.
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
    let mut bench = tailwater(&["bench", "threads", "--rounds", "1000", "--systems", "tailwater"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    let started = loop {
        let started = children(bench.id());
        if started.len() >= 2 {
            break started;
        }
        assert!(Instant::now() < deadline && bench.try_wait().unwrap().is_none(), "no processes start");
        std::thread::sleep(Duration::from_millis(5));
    };
    bench.kill().unwrap();
    bench.wait().unwrap();
    while let Some(pid) = started.iter().find(|&&pid| is_alive(pid)) {
        assert!(Instant::now() < deadline, "process {pid} outlives the one that started it");
        std::thread::sleep(Duration::from_millis(5));
    }
}
