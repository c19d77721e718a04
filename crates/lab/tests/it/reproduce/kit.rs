//! What the tests of figures share: running one, and looking at its document.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tailwater_testkit::{Program, is_installed, text, unless_too_busy};

use crate::common::lab;
pub use crate::common::{BOUND, turn};

pub fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = lab(&["reproduce"]);
    command.args(words).arg("--out").arg(folder.join("figures"));
    command
}

pub fn start(folder: &Path, words: &[&str]) -> Program {
    Program::start(&mut command(folder, words))
}

pub fn read(folder: &Path, file: &str) -> String {
    let path = folder.join("figures").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs one figure, checks its files against each other, and returns its JSON; `None` if other
/// programs have the cores for minutes.
#[track_caller]
pub fn reproduce(name: &str, measured: bool) -> Option<Value> {
    let _turn = turn();
    let (folder, pid, shown) = unless_too_busy(|| {
        let folder = tempfile::tempdir().unwrap();
        let run = start(folder.path(), &[name, "--quick"]);
        let pid = run.pid();
        let output = run.finish_within(BOUND);
        let (shown, errors) = (text(&output.stdout), text(&output.stderr));
        if output.status.success() { Ok((folder, pid, shown)) } else { Err(format!("{shown}\n{errors}")) }
    })?;
    let read = |extension: &str| read(folder.path(), &format!("{name}.{extension}"));
    let json: Value = serde_json::from_str(&read("json")).unwrap();
    let page = read("md");
    let report = self::read(folder.path(), "report.html");
    assert!(read("svg").contains("</svg>"));
    assert_eq!(
        (&json["name"], &json["measured"], &json["quick"]),
        (&name.into(), &measured.into(), &true.into())
    );
    assert!(
        json["machine"]["cpu_model"].is_string() && json["commit"].is_string() && json["paper"].is_string()
    );
    let rows = rows(&json);
    // A quoted cell may have a comma but no line feed: a line is a row.
    assert_eq!(rows.len() + 1, read("csv").lines().count(), "a row for each line below the head");
    assert!(!rows.is_empty());
    let claims = json["claims"].as_array().unwrap();
    assert!(!claims.is_empty());
    for claim in claims {
        let verdict = match claim["verdict"].as_str().unwrap() {
            "reached" => "reached",
            "not-reached" => "NOT REACHED",
            "not-comparable" => "not comparable",
            other => panic!("{other} is not a verdict"),
        };
        let paper = claim["paper"].as_str().unwrap();
        assert!(
            page.contains(paper) && shown.contains(&format!("[{verdict}] paper: {paper}")),
            "{paper}\n{shown}"
        );
        assert!(page.contains(claim["ours"].as_str().unwrap()), "{claim}\n{page}");
    }
    is_self_contained(&report);
    assert!(report.contains(&format!("<h2 id=\"{name}\">")) && report.contains("<svg"));
    assert_eq!(sockets(pid), [""; 0]);
    Some(json)
}

/// Returns the rows of a figure's document.
pub fn rows(json: &Value) -> &[Value] {
    json["rows"].as_array().unwrap()
}

/// Checks that so many claims are on simulated numbers, and say so.
pub fn has_simulated_claims(json: &Value, count: usize) {
    let claims = json["claims"].as_array().unwrap().iter().filter(|claim| claim["simulated"] == true);
    assert!(claims.clone().all(|claim| claim["ours"].as_str().unwrap().starts_with("simulated: ")));
    assert_eq!(claims.count(), count);
}

/// Runs of a figure in which each system must give a right answer once. In one run it may have
/// none, while other programs have its core.
const TRIES: usize = 10;

/// Checks that all `systems` gave right answers in every panel, in `json` or in another run of the
/// figure.
pub fn all_answer(name: &str, json: &Value, systems: &BTreeSet<String>) {
    let panels = distinct(json, "panel");
    let pairs = panels.iter().flat_map(|panel| systems.iter().map(move |system| (panel, system)));
    let answered = |json: &Value, &(panel, system): &(&String, &String)| {
        let rows = rows(json).iter();
        let mut own = rows.filter(|row| row["panel"] == **panel && row["system"] == **system);
        own.any(|row| number(row, "completed") > 0.0)
    };
    answer_once(name, json, pairs.collect(), answered);
}

/// Checks that all `systems` gave right answers in some trial, in `json` or in another run of the
/// figure.
pub fn all_answer_somewhere(name: &str, json: &Value, systems: &BTreeSet<String>) {
    let answered = |json: &Value, system: &&String| {
        let mut rows = rows(json).iter();
        rows.any(|row| row["system"] == ***system && number(row, "completed") > 0.0)
    };
    answer_once(name, json, systems.iter().collect(), answered);
}

/// Runs the figure again for those of `silent` that have not `answered`, until all have.
fn answer_once<T: core::fmt::Debug>(
    name: &str,
    json: &Value,
    mut silent: Vec<T>,
    answered: impl Fn(&Value, &T) -> bool,
) {
    silent.retain(|one| !answered(json, one));
    for _ in 1..TRIES {
        if silent.is_empty() {
            return;
        }
        let Some(json) = reproduce(name, true) else { return };
        silent.retain(|one| !answered(&json, one));
    }
    assert!(silent.is_empty(), "no right answer in {TRIES} runs: {silent:?}");
}

pub fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is not a number: {row}"))
}

/// Checks that the document refers to no file, script or address outside it, and that drawings
/// share no ids.
pub fn is_self_contained(html: &str) {
    for outside in ["<script", "<link", "<img", "<iframe", "@import", "src=", "<?xml"] {
        assert!(!html.contains(outside), "{outside}");
    }
    for (_, rest) in html.match_indices("href=\"").map(|(at, found)| (at, &html[at + found.len()..])) {
        assert!(rest.starts_with('#'), "a reference to {}", &rest[..rest.len().min(60)]);
    }
    let ids: Vec<&str> = html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let distinct: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), distinct.len(), "two elements share an id: {ids:?}");
    assert!(html.trim_end().ends_with("</html>"));
}

/// Abstract sockets of testbeds and benches of process `pid`, which are named after it.
pub fn sockets(pid: u32) -> Vec<String> {
    let list = fs::read_to_string("/proc/net/unix").unwrap();
    let is_its = |name: &&str| {
        let parts: Vec<&str> = name.split('-').collect();
        name.starts_with("@tailwater-") && parts.contains(&pid.to_string().as_str())
    };
    list.lines().filter_map(|line| line.split_whitespace().last()).filter(is_its).map(str::to_owned).collect()
}

/// Values of `key` over the rows, each once.
pub fn distinct(json: &Value, key: &str) -> BTreeSet<String> {
    let rows = rows(json).iter();
    rows.map(|row| row[key].as_str().map_or_else(|| row[key].to_string(), str::to_owned)).collect()
}

pub fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Checks that a figure with a batch job has the arbiter's curve, in one of its panels.
pub fn has_arbiter(name: &str, json: &Value, mut systems: BTreeSet<String>) {
    let arbiter = set(&["Tailwater, arbiter"]);
    all_answer_somewhere(name, json, &arbiter);
    systems.extend(arbiter);
    assert_eq!(distinct(json, "system"), systems);
}

/// Returns whether memcached is installed; figures leave it out elsewhere.
pub fn has_memcached() -> bool {
    is_installed("memcached", "memcached")
}

/// Returns whether the RocksDB service is built; figures leave it out elsewhere.
pub fn has_rocks() -> bool {
    let name = "tailwater-rocks";
    let folders: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let beside = Path::new(env!("CARGO_BIN_EXE_tailwater-lab")).with_file_name(name);
    beside.is_file() || folders.iter().any(|folder| folder.join(name).is_file())
}

/// Returns a system's positions in order, each once.
pub fn places(json: &Value, system: &str, column: &str) -> Vec<u64> {
    let rows = rows(json).iter().filter(|row| row["system"] == system);
    let places: BTreeSet<u64> = rows.map(|row| number(row, column) as u64).collect();
    places.into_iter().collect()
}
