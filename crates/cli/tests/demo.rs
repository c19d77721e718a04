//! The demo as a person runs it: to its end, and interrupted. Both leave nothing behind.
//!
//! Numbers are not judged: they depend on what else runs on the test machine.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{children, is_alive, signal, tailwater};
use serde_json::Value;

/// Demos take turns: two at a time would take each other's cores.
static TURN: Mutex<()> = Mutex::new(());

/// Bound on everything here that waits.
const PATIENCE: Duration = Duration::from_secs(120);

fn start(folder: &Path, options: &[&str]) -> Child {
    tailwater(&["demo"]).args(options).current_dir(folder).stdout(Stdio::piped()).spawn().unwrap()
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the demo does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Abstract sockets of a demo.
fn sockets(pid: u32) -> Vec<String> {
    let name = format!("@tailwater-testbed-{pid}");
    let list = fs::read_to_string("/proc/net/unix").unwrap();
    list.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect()
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

#[test]
fn a_quick_demo_runs_to_its_end_and_writes_what_it_found() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(folder.path(), &["--quick", "--loads", "20,50"]);
    let pid = child.id();
    let status = wait(&mut child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(status.success(), "{status}\n{text}");
    for part in ["win p99.9", "Tailwater", "Linux", "ideal", "  stalled", "demo.json", "demo.svg"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    let json: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("demo.json")).unwrap()).unwrap();
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
    }
    let ideals = json["ideal"].as_array().unwrap();
    assert_eq!(ideals.len(), 2);
    for ideal in ideals {
        // A machine that stood still for all of the probe has no such bound.
        let keys = if ideal["stalled"].is_null() {
            &[][..]
        } else {
            &["p50_us", "p99_us", "p999_us", "win_p999_us"]
        };
        for key in keys {
            let of = |figures: &Value| figures[key].as_f64().unwrap();
            assert!(of(&ideal["stalled"]) >= of(ideal), "{key}: stalls make nothing faster: {ideal}");
        }
    }
    assert!(json["handoff_us"]["p50"].is_f64() && json["handoff_us"]["p99"].is_f64());
    assert!(json["machine"]["cpu_model"].is_string() && json["commit"].is_string());
    assert!(fs::read_to_string(folder.path().join("demo.svg")).unwrap().contains("</svg>"));
    assert_eq!(sockets(pid), [""; 0]);
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // While the batch job runs alone, and in the middle of a point.
    for (marker, name) in [("noise:", "INT"), ("win p99.9", "TERM")] {
        let folder = tempfile::tempdir().unwrap();
        let mut demo = start(folder.path(), &["--quick", "--loads", "50", "--linux-wait", "block"]);
        let pid = demo.id();
        let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().any(|line| line.unwrap().contains(marker)), "`{marker}` never came");
        let deadline = Instant::now() + PATIENCE;
        let mut started = BTreeSet::new();
        while started.is_empty() {
            started = children(pid);
            assert!(Instant::now() < deadline && is_alive(pid), "no child process after `{marker}`");
        }
        signal(pid, name);
        let begin = Instant::now();
        let status = wait(&mut demo);
        assert_eq!(status.code(), Some(130), "after `{marker}`");
        assert!(begin.elapsed() < Duration::from_secs(20), "took {:?}", begin.elapsed());
        assert!(started.iter().all(|&child| !is_alive(child)), "left {started:?}");
        assert_eq!(sockets(pid), [""; 0]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "an interrupted demo writes nothing");
    }
}

#[test]
fn children_die_with_a_demo_that_is_killed() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start(folder.path(), &["--quick", "--loads", "50", "--linux-wait", "block"]);
    let pid = demo.id();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().contains("win p99.9")));
    let deadline = Instant::now() + PATIENCE;
    let mut started = BTreeSet::new();
    while started.is_empty() {
        started = children(pid);
        assert!(Instant::now() < deadline, "no child process");
    }
    demo.kill().unwrap();
    demo.wait().unwrap();
    while started.iter().any(|&child| is_alive(child)) {
        assert!(Instant::now() < deadline, "{started:?} survive");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(sockets(pid), [""; 0]);
}

#[test]
fn one_core_is_not_enough_and_the_demo_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("taskset")
        .args(["-c", "0", env!("CARGO_BIN_EXE_tailwater"), "demo", "--quick"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("this process may use 1"), "{errors}");
}
