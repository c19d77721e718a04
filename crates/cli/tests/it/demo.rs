//! The demo, run to its end and interrupted. Either way it leaves nothing behind.
//!
//! Numbers are not judged: they depend on what else runs on the test machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::tailwater;
use rustix::process::Signal;
use serde_json::Value;
use tailwater_testkit::{Program, children, cpu_numbers, is_running, run, text, unless_too_busy, until};

/// Demos take turns: two at a time would take each other's cores.
static TURN: Mutex<()> = Mutex::new(());

/// How long a whole demo may take on a busy machine.
const BOUND: Duration = Duration::from_secs(600);

fn start(folder: &Path, options: &[&str]) -> Program {
    Program::start(tailwater(&["demo"]).args(options).current_dir(folder))
}

/// Abstract sockets of a demo.
fn sockets(pid: u32) -> Vec<String> {
    let name = format!("@tailwater-testbed-{pid}");
    let list = fs::read_to_string("/proc/net/unix").unwrap();
    list.lines()
        .filter_map(|line| line.split(' ').next_back())
        .filter(|last| *last == name)
        .map(str::to_owned)
        .collect()
}

fn all_finite(value: &Value, at: &str) {
    match value {
        Value::Null => panic!("{at} is null: a number was not finite"),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(i, v)| all_finite(v, &format!("{at}[{i}]")));
        }
        Value::Object(fields) => fields.iter().for_each(|(name, v)| all_finite(v, &format!("{at}.{name}"))),
        _ => {}
    }
}

/// Removes the figures of cores with the machine's stalls if there are none: a machine whose cores
/// stood still during the whole probe has no such bound.
fn without_absent_stalls(json: &mut Value) {
    for ideal in json["ideal"].as_array_mut().unwrap() {
        let fields = ideal.as_object_mut().unwrap();
        if fields["stalled"].is_null() {
            fields.remove("stalled");
        }
    }
}

#[test]
fn a_quick_demo_runs_to_its_end_and_writes_what_it_found() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let finished = unless_too_busy(|| {
        let demo = start(folder.path(), &["--quick", "--loads", "20,50"]);
        let pid = demo.pid();
        let output = demo.finish_within(BOUND);
        let shown = text(&output.stdout);
        let success = output.status.success();
        if success { Ok((pid, shown)) } else { Err(format!("{shown}{}", text(&output.stderr))) }
    });
    let Some((pid, text)) = finished else { return };
    for part in [
        "win p99.9",
        "where the time of",
        "Tailwater",
        "Linux",
        "ideal",
        "  stalled",
        "demo.json",
        "demo.svg",
    ] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    let mut json: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("demo.json")).unwrap()).unwrap();
    without_absent_stalls(&mut json);
    all_finite(&json, "demo");
    let points = json["points"].as_array().unwrap();
    let systems: Vec<_> = points.iter().map(|p| p["system"].as_str().unwrap()).collect();
    assert_eq!(systems, ["tailwater", "linux", "tailwater", "linux"]);
    for point in points {
        assert_eq!(point["service"], "exp:10us");
        for key in [
            "offered_rps",
            "achieved_rps",
            "p50_us",
            "p99_us",
            "p999_us",
            "win_p999_us",
            "batch_share",
            "lost",
            "late",
        ] {
            assert!(point[key].as_f64().is_some_and(|v| v >= 0.0), "{key} in {point}");
        }
        let tailwater = point["system"] == "tailwater";
        let account = point["account"].as_array().unwrap();
        assert_eq!(!account.is_empty(), tailwater, "{point}");
        for shares in account {
            let parts = shares.as_object().unwrap().iter();
            let parts = parts.filter(|(name, _)| *name != "core" && *name != "sampling_error");
            let sum: f64 = parts.map(|(_, share)| share.as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{shares}");
        }
        // A batch job that held no core beside the service has no speed.
        let speed = &point["speed"];
        assert!(speed.is_null() || (tailwater && speed["batch"].is_number()), "{point}");
    }
    let ideals = json["ideal"].as_array().unwrap();
    assert_eq!(ideals.len(), 2);
    for ideal in ideals {
        let Some(stalled) = ideal.get("stalled") else { continue };
        for key in ["p50_us", "p99_us", "p999_us", "win_p999_us"] {
            let of = |figures: &Value| figures[key].as_f64().unwrap();
            assert!(of(stalled) >= of(ideal), "{key}: stalls make nothing faster: {ideal}");
        }
    }
    assert!(json["handoff_us"]["p50"].is_f64() && json["handoff_us"]["p99"].is_f64());
    assert!(json["machine"]["cpu_model"].is_string() && json["commit"].is_string());
    assert!(fs::read_to_string(folder.path().join("demo.svg")).unwrap().contains("</svg>"));
    assert_eq!(sockets(pid), [""; 0]);
}

/// Starts a demo with all loads: it has more than a minute left when it is interrupted.
fn start_full(folder: &Path) -> Program {
    start(folder, &["--linux-wait", "block"])
}

/// Waits until the demo prints `marker` and has child processes; returns these, or what it wrote if
/// it ends before.
fn children_after(demo: &mut Program, marker: &str) -> Result<BTreeSet<u32>, String> {
    let mut reached = false;
    while !reached {
        let Some(line) = demo.line() else { return Err(demo.output() + &demo.errors()) };
        reached = line.contains(marker);
    }
    let mut started = BTreeSet::new();
    until("the demo has a child process, or ends", || {
        started = children(demo.pid());
        !started.is_empty() || !demo.is_running()
    });
    if started.is_empty() { Err(demo.output() + &demo.errors()) } else { Ok(started) }
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // While the batch job runs alone, and in the middle of a point.
    for (marker, signal) in [("noise:", Signal::INT), ("win p99.9", Signal::TERM)] {
        unless_too_busy(|| {
            let folder = tempfile::tempdir().unwrap();
            let mut demo = start_full(folder.path());
            let pid = demo.pid();
            let started = children_after(&mut demo, marker)?;
            demo.signal(signal);
            assert_eq!(demo.wait().code(), Some(130), "after `{marker}`");
            assert!(started.iter().all(|&child| !is_running(child)), "left {started:?}");
            assert_eq!(sockets(pid), [""; 0]);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "an interrupted demo writes nothing");
            Ok(())
        });
    }
}

#[test]
fn children_die_with_a_demo_that_is_killed() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    unless_too_busy(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut demo = start_full(folder.path());
        let pid = demo.pid();
        let started = children_after(&mut demo, "win p99.9")?;
        demo.kill();
        until("its children end", || started.iter().all(|&child| !is_running(child)));
        assert_eq!(sockets(pid), [""; 0]);
        Ok(())
    });
}

#[test]
fn one_core_is_not_enough_and_the_demo_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("taskset");
    command
        .args(["-c", &cpu_numbers()[0].to_string(), env!("CARGO_BIN_EXE_tailwater"), "demo", "--quick"])
        .current_dir(folder.path());
    let output = run(&mut command, b"");
    assert_eq!(output.status.code(), Some(2));
    let errors = text(&output.stderr);
    assert!(errors.contains("this process may use 1"), "{errors}");
}
