//! Each figure as a person reproduces it, in its quick form: its files exist and agree with each other, and nothing is left behind.
//!
//! Verdicts are not judged: they depend on what else runs on the test machine.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{children, is_alive, signal, tailwater, text};
use serde_json::Value;

/// Runs take turns: two at a time would take each other's cores.
static TURN: Mutex<()> = Mutex::new(());

/// Bound on everything here that waits.
const PATIENCE: Duration = Duration::from_secs(240);

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = tailwater(&["reproduce"]);
    command.args(words).arg("--out").arg(folder.join("figures"));
    command
}

/// Started, with what it prints kept.
fn started(folder: &Path, words: &[&str]) -> Child {
    command(folder, words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn read(folder: &Path, file: &str) -> String {
    let path = folder.join("figures").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs one figure and checks its files against each other; its JSON.
fn reproduce(name: &str, measured: bool) -> Value {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let run = started(folder.path(), &[name, "--quick"]);
    let pid = run.id();
    let Output { status, stdout, stderr } = run.wait_with_output().unwrap();
    let (shown, errors) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{status}\n{shown}\n{errors}");
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
    let rows = json["rows"].as_array().unwrap();
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
            other => panic!("{other} is no verdict"),
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
    json
}

/// At its lowest load every one of the `systems` gave right answers, in every panel.
fn all_answer(json: &Value, systems: &BTreeSet<String>) {
    let rows = json["rows"].as_array().unwrap();
    for panel in distinct(json, "panel") {
        for system in systems {
            let own = rows.iter().filter(|row| row["panel"] == *panel && row["system"] == **system);
            let own: Vec<_> = own.map(|row| (number(row, "load"), number(row, "completed"))).collect();
            let lowest = own.iter().map(|&(load, _)| load).fold(f64::INFINITY, f64::min);
            let answered = own.iter().any(|&(load, completed)| load == lowest && completed > 0.0);
            assert!(answered, "{system} gave no right answer at {lowest}, {panel}: {json:#}");
        }
    }
}

/// Every one of the `systems` gave right answers in some trial.
fn all_answer_somewhere(json: &Value, systems: &BTreeSet<String>) {
    let rows = json["rows"].as_array().unwrap();
    for system in systems {
        let mut own = rows.iter().filter(|row| row["system"] == **system);
        assert!(own.any(|row| number(row, "completed") > 0.0), "{system} gave no right answer: {json:#}");
    }
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is no number: {row}"))
}

/// No file, script or address outside the document is asked for; drawings do not share ids.
fn is_self_contained(html: &str) {
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
fn sockets(pid: u32) -> Vec<String> {
    let list = fs::read_to_string("/proc/net/unix").unwrap();
    let is_its = |name: &&str| {
        let parts: Vec<&str> = name.split('-').collect();
        name.starts_with("@tailwater-") && parts.contains(&pid.to_string().as_str())
    };
    list.lines().filter_map(|line| line.split_whitespace().last()).filter(is_its).map(str::to_owned).collect()
}

/// Values of `key` over the rows, each once.
fn distinct(json: &Value, key: &str) -> BTreeSet<String> {
    let rows = json["rows"].as_array().unwrap().iter();
    rows.map(|row| row[key].as_str().map_or_else(|| row[key].to_string(), str::to_owned)).collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[test]
fn shinjuku_fig4_is_simulated() {
    let json = reproduce("shinjuku-fig4", false);
    assert!(json["claims"].as_array().unwrap().iter().all(|claim| claim["verdict"] == "reached"), "{json:#}");
}

/// Whether the system has this program; where it has not, figures leave it out.
fn is_installed(program: &str) -> bool {
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    let found = folders.iter().any(|folder| Path::new(folder).join(program).is_file());
    if !found {
        println!("{program} is not installed: its part is left out");
    }
    found
}

fn has_memcached() -> bool {
    is_installed("memcached")
}

#[test]
fn dns_slo_has_our_server_and_another() {
    let json = reproduce("dns-slo", true);
    let mut systems = set(&["Tailwater"]);
    if is_installed("nsd") {
        systems.insert("NSD on Linux".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    all_answer(&json, &systems);
}

#[test]
fn shenango_fig3_has_our_store_on_both_systems_and_memcached() {
    let json = reproduce("shenango-fig3", true);
    let mut systems = set(&["Tailwater, kv", "Linux, kv"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
        systems.insert("Linux, memcached, nothing beside".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    all_answer(&json, &systems);
    for row in json["rows"].as_array().unwrap() {
        let is_alone = row["system"] == "Linux, memcached, nothing beside";
        assert_eq!(row["batch_share"].is_number(), !is_alone, "{row}");
    }
}

#[test]
fn ix_table3_searches_for_both_systems() {
    let json = reproduce("ix-table3", true);
    let mut systems = set(&["Tailwater"]);
    if has_memcached() {
        systems.insert("memcached on Linux".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    assert!(distinct(&json, "verdict").is_subset(&set(&["Met", "Missed", "GeneratorBehind", "null"])));
    all_answer_somewhere(&json, &systems);
}

#[test]
fn arachne_fig3_has_both_stores_alone_and_beside_a_batch_job() {
    let json = reproduce("arachne-fig3", true);
    let mut systems = set(&["Tailwater, kv"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    assert_eq!(distinct(&json, "panel"), set(&["ETC, alone", "ETC, beside a batch job"]));
    for row in json["rows"].as_array().unwrap() {
        let is_beside = row["panel"] == "ETC, beside a batch job";
        assert_eq!(row["batch_share"].is_number(), is_beside, "{row}");
    }
    all_answer(&json, &systems);
}

#[test]
fn ix_connections_has_both_systems_under_every_number_of_connections() {
    let json = reproduce("ix-connections", true);
    assert_eq!(distinct(&json, "system"), set(&["Tailwater", "Linux"]));
    assert_eq!(distinct(&json, "connections").len(), 3);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["rate_rps"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
}

#[test]
fn shenango_fig4_has_three_systems_under_three_distributions() {
    let json = reproduce("shenango-fig4", true);
    assert_eq!(distinct(&json, "panel"), set(&["constant", "exponential", "bimodal"]));
    let systems = set(&["Tailwater", "Linux", "Tokio on Linux"]);
    assert_eq!(distinct(&json, "system"), systems);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["batch_share"].as_f64().is_some_and(|share| share >= 0.0), "{row}");
    }
    all_answer(&json, &systems);
    // Two loads are on any line.
    let straight = json["claims"]
        .as_array()
        .unwrap()
        .iter()
        .find(|claim| claim["paper"].as_str().unwrap().contains("linearly"));
    assert_eq!(straight.unwrap()["verdict"], "not-comparable", "{json:#}");
}

#[test]
fn shenango_fig5_has_every_window_of_both_systems() {
    let json = reproduce("shenango-fig5", true);
    let rows = json["rows"].as_array().unwrap();
    for system in ["Tailwater", "Linux"] {
        let at: Vec<u64> = rows
            .iter()
            .filter(|row| row["system"] == system)
            .map(|row| row["at_ms"].as_f64().unwrap() as u64)
            .collect();
        assert_eq!(at, (0..210).map(|window| window * 10).collect::<Vec<_>>(), "{system}");
    }
}

#[test]
fn shenango_fig6_has_seven_ways_to_answer() {
    let json = reproduce("shenango-fig6", true);
    assert_eq!(distinct(&json, "way").len(), 7);
    assert!(
        json["rows"].as_array().unwrap().iter().all(|row| row["p99_us"].as_f64() >= row["p50_us"].as_f64())
    );
}

#[test]
fn shenango_fig7_has_many_and_few_flows_with_and_without_stealing() {
    let json = reproduce("shenango-fig7", true);
    assert_eq!(distinct(&json, "system").len(), 5);
    all_answer(&json, &distinct(&json, "system"));
}

#[test]
fn shenango_fig8_has_five_intervals_and_linux() {
    let json = reproduce("shenango-fig8", true);
    let systems = set(&["5 us", "25 us", "50 us", "100 us", "1 ms", "Linux"]);
    assert_eq!(distinct(&json, "system"), systems);
    all_answer(&json, &systems);
}

#[test]
fn shenango_table2_has_four_operations() {
    let json = reproduce("shenango-table2", true);
    assert_eq!(distinct(&json, "operation"), set(&["mutex", "yield", "condvar", "spawn_join"]));
    assert!(distinct(&json, "system").is_superset(&set(&["tailwater", "std", "tokio", "may"])));
    // It needs no testbed, but is judged only on a machine that was looked at before.
    let notes = json["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().starts_with("Before the run core")), "{json:#}");
}

fn first_children(run: &Child) -> BTreeSet<u32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let started = children(run.id());
        if !started.is_empty() {
            return started;
        }
        assert!(Instant::now() < deadline, "no child process");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_interrupted_run_leaves_no_process_and_keeps_the_figures_it_has() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let mut run = started(folder.path(), &["shinjuku-fig4", "shenango-fig8", "--quick"]);
    let pid = run.id();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("shinjuku-fig4.svg")), "the first figure never ended");
    // Its IOKernel runs.
    let deadline = Instant::now() + PATIENCE;
    while sockets(pid).is_empty() {
        assert!(Instant::now() < deadline, "no testbed of process {pid}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let started = first_children(&run);
    signal(pid, "INT");
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(text(&output.stderr).contains("1 of the figures are complete"), "{}", text(&output.stderr));
    assert!(started.iter().all(|&child| !is_alive(child)), "left {started:?}");
    assert!(read(folder.path(), "shinjuku-fig4.svg").contains("</svg>"));
    assert!(!folder.path().join("figures/shenango-fig8.svg").exists());
    assert_eq!(sockets(pid), [""; 0]);
}

#[test]
fn a_service_that_dies_fails_its_figure_and_no_other() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let run = started(folder.path(), &["shinjuku-fig4", "shenango-fig8", "--quick"]);
    let victim = first_children(&run).pop_first().unwrap();
    signal(victim, "KILL");
    let output = run.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("ended early") && errors.contains("not reproduced: shenango-fig8"), "{errors}");
    let report = read(folder.path(), "report.html");
    is_self_contained(&report);
    assert!(report.contains("Failed: ") && report.contains("<h2 id=\"shinjuku-fig4\">"), "{report}");
}

#[test]
fn one_core_is_enough_for_what_is_simulated_and_for_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let on_one_core = |name: &str| {
        let binary = env!("CARGO_BIN_EXE_tailwater");
        let out = folder.path().join("figures");
        Command::new("taskset")
            .args(["-c", "0", binary, "reproduce", name, "--quick", "--out"])
            .arg(out)
            .output()
            .unwrap()
    };
    let refused = on_one_core("shenango-fig6");
    let errors = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("this process may use 1") && errors.contains("shinjuku-fig4"), "{errors}");
    assert!(on_one_core("shinjuku-fig4").status.success());
}

#[test]
fn an_unknown_figure_is_refused_with_the_names_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path(), &["shenango-fig99"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("shenango-fig8"), "{}", text(&output.stderr));
}
