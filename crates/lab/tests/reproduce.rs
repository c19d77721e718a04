//! Each figure in its quick form: its files exist and agree with each other, and nothing is left
//! behind.
//!
//! Verdicts are not judged: they depend on what else runs on the test machine.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{lab, until_it_gets_cores};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tailwater_testkit::{
    Program, children, cpu_numbers, eventually, is_installed, is_running, run, text, until,
};

/// Runs take turns: two at a time would take each other's cores.
static TURN: Mutex<()> = Mutex::new(());

/// How long a whole figure may take on a busy machine.
const BOUND: Duration = Duration::from_secs(900);

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = lab(&["reproduce"]);
    command.args(words).arg("--out").arg(folder.join("figures"));
    command
}

fn start(folder: &Path, words: &[&str]) -> Program {
    Program::start(&mut command(folder, words))
}

fn read(folder: &Path, file: &str) -> String {
    let path = folder.join("figures").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs one figure, checks its files against each other, and returns its JSON.
fn reproduce(name: &str, measured: bool) -> Value {
    let _turn = turn();
    let ((folder, pid), output) = until_it_gets_cores(|| {
        let folder = tempfile::tempdir().unwrap();
        let run = start(folder.path(), &[name, "--quick"]);
        let pid = run.pid();
        ((folder, pid), run.finish_within(BOUND))
    });
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{shown}\n{errors}", output.status);
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
    json
}

/// Runs of a figure in which each system must give a right answer once. In one run it may have
/// none, while other programs have its core.
const TRIES: usize = 10;

/// Checks that all `systems` gave right answers in every panel, in `json` or in another run of the
/// figure.
fn all_answer(name: &str, json: &Value, systems: &BTreeSet<String>) {
    let panels = distinct(json, "panel");
    let pairs = panels.iter().flat_map(|panel| systems.iter().map(move |system| (panel, system)));
    let answered = |json: &Value, &(panel, system): &(&String, &String)| {
        let rows = json["rows"].as_array().unwrap().iter();
        let mut own = rows.filter(|row| row["panel"] == **panel && row["system"] == **system);
        own.any(|row| number(row, "completed") > 0.0)
    };
    answer_once(name, json, pairs.collect(), answered);
}

/// Checks that all `systems` gave right answers in some trial, in `json` or in another run of the
/// figure.
fn all_answer_somewhere(name: &str, json: &Value, systems: &BTreeSet<String>) {
    let answered = |json: &Value, system: &&String| {
        let mut rows = json["rows"].as_array().unwrap().iter();
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
        let json = reproduce(name, true);
        silent.retain(|one| !answered(&json, one));
    }
    assert!(silent.is_empty(), "no right answer in {TRIES} runs: {silent:?}");
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is not a number: {row}"))
}

/// Checks that the document refers to no file, script or address outside it, and that drawings
/// share no ids.
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

#[test]
fn shinjuku_fig6_has_three_systems_under_two_mixtures() {
    let json = reproduce("shinjuku-fig6", false);
    assert_eq!((distinct(&json, "workload").len(), distinct(&json, "system").len()), (2, 3));
}

#[test]
fn shinjuku_fig7_has_three_quanta_and_two_costs_of_a_dispatcher() {
    let json = reproduce("shinjuku-fig7", false);
    let rows = json["rows"].as_array().unwrap();
    let of = |part: &str| rows.iter().filter(|row| row["part"] == part).count();
    assert_eq!((of("a"), of("b")), (2 * 3 * 3, 2 * 2 * 3));
}

#[test]
fn shinjuku_fig8_has_three_mixtures() {
    let json = reproduce("shinjuku-fig8", false);
    assert_eq!((distinct(&json, "workload").len(), distinct(&json, "system").len()), (3, 5));
}

#[test]
fn arachne_fig10_has_every_request_of_a_free_and_of_a_held_core() {
    let json = reproduce("arachne-fig10", true);
    assert_eq!(distinct(&json, "situation"), set(&["free core", "core held by a batch job"]));
    assert_eq!(json["rows"].as_array().unwrap().len(), 2 * 10);
}

#[test]
fn arachne_fig11_has_the_steps_from_the_request_to_the_user_thread() {
    let json = reproduce("arachne-fig11", true);
    // On a busy machine a program may keep its core from one request to the next, without the rest.
    let steps = distinct(&json, "step");
    assert!(steps.is_superset(&set(&["work is runnable", "user thread runs"])), "{steps:?}");
}

#[test]
fn arachne_fig4_has_every_window_of_six_systems() {
    let json = reproduce("arachne-fig4", false);
    assert_eq!(distinct(&json, "system").len(), 6);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6 * 16);
    let requests = rows.iter().filter(|row| row["requested_cores"].is_number());
    assert_eq!(requests.count(), 2 * 16, "those of the arbiter");
}

#[test]
fn arachne_fig2a_has_every_system_on_one_core_and_two_placements() {
    let json = reproduce("arachne-fig2a", true);
    let rows = json["rows"].as_array().unwrap();
    let systems = distinct(&json, "system");
    let expected = set(&["tailwater", "tailwater, least loaded", "std", "tokio", "may"]);
    assert!(systems.is_superset(&expected), "{systems:?}");
    assert!(rows.iter().all(|row| number(row, "threads_per_s") > 0.0), "{json:#}");
}

#[test]
fn arachne_fig3b_has_both_stores_with_threads_for_the_cores_and_for_twice_as_many() {
    let json = reproduce("arachne-fig3b", true);
    let mut systems = set(&["Tailwater, kv", "Tailwater, kv, kthreads for twice the cores"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
        systems.insert("Linux, memcached, twice the threads".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    all_answer("arachne-fig3b", &json, &systems);
}

#[test]
fn arachne_fig5_has_windows_of_five_systems() {
    let json = reproduce("arachne-fig5", true);
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
fn arachne_fig9_has_a_signal_alone_and_among_56_threads() {
    let json = reproduce("arachne-fig9", true);
    // On a busy machine a system may have no figure.
    let others = distinct(&json, "others");
    assert!(others.is_subset(&set(&["0.0", "56.0"])), "{others:?}");
    assert!(json["rows"].as_array().unwrap().iter().all(|row| number(row, "ns") > 0.0), "{json:#}");
}

/// Checks that a figure with a batch job has the arbiter's curve, in one of its panels.
fn has_arbiter(name: &str, json: &Value, mut systems: BTreeSet<String>) {
    let arbiter = set(&["Tailwater, arbiter"]);
    all_answer_somewhere(name, json, &arbiter);
    systems.extend(arbiter);
    assert_eq!(distinct(json, "system"), systems);
}

#[test]
fn arachne_fig6_has_three_systems_under_eight_skews() {
    let json = reproduce("arachne-fig6", false);
    assert_eq!((distinct(&json, "system").len(), distinct(&json, "hot_part").len()), (3, 8));
}

/// Returns whether memcached is installed; figures leave it out elsewhere.
fn has_memcached() -> bool {
    is_installed("memcached", "memcached")
}

#[test]
fn dns_slo_has_our_server_and_another() {
    let json = reproduce("dns-slo", true);
    let mut systems = set(&["Tailwater"]);
    if is_installed("nsd", "nsd") {
        systems.insert("NSD on Linux".to_owned());
    }
    assert_eq!(distinct(&json, "system"), systems);
    all_answer("dns-slo", &json, &systems);
}

#[test]
fn shenango_fig3_has_our_store_on_both_systems_and_memcached() {
    let json = reproduce("shenango-fig3", true);
    let mut systems = set(&["Tailwater, kv", "Linux, kv"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
        systems.insert("Linux, memcached, nothing beside".to_owned());
    }
    all_answer("shenango-fig3", &json, &systems);
    has_arbiter("shenango-fig3", &json, systems);
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
    all_answer_somewhere("ix-table3", &json, &systems);
}

#[test]
fn arachne_fig3_has_both_stores_alone_and_beside_a_batch_job() {
    let json = reproduce("arachne-fig3", true);
    let mut systems = set(&["Tailwater, kv"]);
    if has_memcached() {
        systems.insert("Linux, memcached".to_owned());
    }
    has_arbiter("arachne-fig3", &json, systems.clone());
    assert_eq!(distinct(&json, "panel"), set(&["ETC, alone", "ETC, beside a batch job"]));
    for row in json["rows"].as_array().unwrap() {
        let is_beside = row["panel"] == "ETC, beside a batch job";
        assert_eq!(row["batch_share"].is_number(), is_beside, "{row}");
    }
    all_answer("arachne-fig3", &json, &systems);
}

#[test]
fn arachne_fig8_has_a_store_with_and_without_backups_on_both_systems() {
    let json = reproduce("arachne-fig8", true);
    let systems =
        set(&["Tailwater, two backups", "Linux, two backups", "Tailwater, no backup", "Linux, no backup"]);
    assert_eq!(distinct(&json, "system"), systems);
    assert_eq!(distinct(&json, "panel"), set(&["writes only", "YCSB-A, half writes"]));
    all_answer_somewhere("arachne-fig8", &json, &systems);
}

#[test]
fn ix_connections_has_both_systems_under_every_number_of_connections() {
    let json = reproduce("ix-connections", true);
    assert_eq!(distinct(&json, "system"), set(&["Tailwater", "Linux"]));
    // A point exists only if every connection has answered. The counted 200 ms may be without an
    // answer on a machine that stands still for as long.
    let mut points = Vec::new();
    for row in json["rows"].as_array().unwrap() {
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
fn ix_fig13_has_every_bound_under_the_least_and_the_most_load() {
    let json = reproduce("ix-fig13", true);
    let mut points: Vec<_> = json["rows"].as_array().unwrap().iter().collect();
    points.sort_by_key(|row| (number(row, "bound") as u64, number(row, "outstanding") as u64));
    let points: Vec<_> =
        points.iter().map(|row| (number(row, "bound"), number(row, "outstanding"))).collect();
    let expected = [1.0, 16.0, 64.0].map(|bound| [(bound, 1.0), (bound, 64.0)]);
    assert_eq!(points, expected.concat());
}

#[test]
fn shenango_fig4_has_three_systems_and_the_arbiter_under_three_distributions() {
    let json = reproduce("shenango-fig4", true);
    assert_eq!(distinct(&json, "panel"), set(&["constant", "exponential", "bimodal"]));
    let systems = set(&["Tailwater", "Linux", "Tokio on Linux"]);
    has_arbiter("shenango-fig4", &json, systems.clone());
    for row in json["rows"].as_array().unwrap() {
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
fn shenango_fig5_has_every_window_of_all_systems() {
    let json = reproduce("shenango-fig5", true);
    let rows = json["rows"].as_array().unwrap();
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
    all_answer("shenango-fig7", &json, &distinct(&json, "system"));
}

#[test]
fn shenango_fig8_has_five_intervals_and_linux() {
    let json = reproduce("shenango-fig8", true);
    let systems = set(&["5 us", "25 us", "50 us", "100 us", "1 ms", "Linux"]);
    assert_eq!(distinct(&json, "system"), systems);
    all_answer("shenango-fig8", &json, &systems);
}

#[test]
fn shinjuku_table1_has_a_flag_and_signals() {
    let json = reproduce("shinjuku-table1", true);
    let mechanisms = set(&["flag at a poll point", "signal from another core", "timer signal"]);
    assert_eq!(distinct(&json, "mechanism"), mechanisms);
}

#[test]
fn shinjuku_table2_has_one_switch_of_each_system() {
    let json = reproduce("shinjuku-table2", true);
    assert!(distinct(&json, "system").is_superset(&set(&["tailwater", "std", "tokio", "may"])));
    assert_eq!(json["rows"].as_array().unwrap().len(), distinct(&json, "system").len());
}

#[test]
fn shinjuku_fig5_has_three_ways_on_tailwater_and_linux() {
    let json = reproduce("shinjuku-fig5", true);
    assert_eq!(distinct(&json, "panel").len(), 3);
    let mut systems = set(&[
        "Tailwater, SQ 5 us",
        "Tailwater, c-FCFS",
        "Tailwater, d-FCFS with stealing",
        "Linux, threads",
    ]);
    let found = distinct(&json, "system");
    // Only where there is a Go toolchain.
    systems.extend(found.get("Linux, Go").cloned());
    assert_eq!(found, systems);
    all_answer("shinjuku-fig5", &json, &systems);
}

#[test]
fn shenango_table2_has_four_operations() {
    let json = reproduce("shenango-table2", true);
    assert_eq!(distinct(&json, "operation"), set(&["mutex", "yield", "condvar", "spawn_join"]));
    assert!(distinct(&json, "system").is_superset(&set(&["tailwater", "std", "tokio", "may"])));
    // The figure needs no testbed, but is judged only after the machine's noise has been measured.
    let notes = json["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().starts_with("Before the run core")), "{json:#}");
}

#[test]
fn arachne_table2_has_the_papers_primitives() {
    let json = reproduce("arachne-table2", true);
    // Those across cores may have no figure on a busy machine.
    let operations = distinct(&json, "operation");
    assert!(operations.is_superset(&set(&["yield", "null_yield", "exit_turnaround"])), "{operations:?}");
    assert!(!operations.contains("mutex"));
    assert!(distinct(&json, "system").is_superset(&set(&["tailwater", "std", "tokio", "may"])));
}

#[test]
fn arachne_fig2_has_every_system_on_one_core() {
    let json = reproduce("arachne-fig2", true);
    let rows = json["rows"].as_array().unwrap().iter().filter(|row| row["cores"] == 1.0);
    let systems: BTreeSet<String> = rows.map(|row| row["system"].as_str().unwrap().to_owned()).collect();
    assert!(systems.is_superset(&set(&["tailwater", "std", "tokio", "may"])), "{systems:?}");
    assert!(
        json["rows"].as_array().unwrap().iter().all(|row| number(row, "threads_per_s") > 0.0),
        "{json:#}"
    );
}

/// Returns the children of a run, as soon as there are any.
fn first_children(run: &mut Program) -> BTreeSet<u32> {
    eventually("the run has a child process", || {
        assert!(run.is_running(), "it ended: {}{}", run.output(), run.errors());
        Some(children(run.pid())).filter(|children| !children.is_empty())
    })
}

#[test]
fn an_interrupted_run_leaves_no_process_and_keeps_the_figures_it_has() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let mut run = start(folder.path(), &["shinjuku-fig4", "shenango-fig8", "--quick"]);
    let pid = run.pid();
    run.line_with("shinjuku-fig4.svg");
    until("the IOKernel of the second figure runs", || !sockets(pid).is_empty());
    let started = first_children(&mut run);
    run.signal(Signal::INT);
    let output = run.finish();
    assert_eq!(output.status.code(), Some(130));
    assert!(text(&output.stderr).contains("1 of the figures are complete"), "{}", text(&output.stderr));
    assert!(started.iter().all(|&child| !is_running(child)), "left {started:?}");
    assert!(read(folder.path(), "shinjuku-fig4.svg").contains("</svg>"));
    assert!(!folder.path().join("figures/shenango-fig8.svg").exists());
    assert_eq!(sockets(pid), [""; 0]);
}

#[test]
fn a_service_that_dies_fails_its_figure_and_no_other() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let mut run = start(folder.path(), &["shinjuku-fig4", "shenango-fig8", "--quick"]);
    // A child may end between the look and the signal.
    eventually("a child is killed", || {
        let victim = first_children(&mut run).pop_first()?;
        kill_process(Pid::from_raw(victim as i32)?, Signal::KILL).ok()
    });
    let output = run.finish_within(BOUND);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("ended early") && errors.contains("not reproduced: shenango-fig8"), "{errors}");
    let report = read(folder.path(), "report.html");
    is_self_contained(&report);
    assert!(report.contains("Failed: ") && report.contains("<h2 id=\"shinjuku-fig4\">"), "{report}");
}

#[test]
fn one_core_is_enough_for_what_is_simulated_and_for_nothing_else() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let on_one_core = |name: &str| {
        let binary = env!("CARGO_BIN_EXE_tailwater-lab");
        let out = folder.path().join("figures");
        let mut command = Command::new("taskset");
        command
            .args(["-c", &cpu_numbers()[0].to_string(), binary, "reproduce", name, "--quick", "--out"])
            .arg(out);
        Program::start(&mut command).finish_within(BOUND)
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
    let output = run(&mut command(folder.path(), &["shenango-fig99"]), b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("shenango-fig8"), "{}", text(&output.stderr));
}

#[test]
fn ix_fig4_has_every_length_on_tailwater_and_on_linux_in_both_ways() {
    let json = reproduce("ix-fig4", true);
    assert_eq!(distinct(&json, "system"), set(&["Tailwater", "Linux", "Linux, both sides spin"]));
    for system in distinct(&json, "system") {
        assert_eq!(places(&json, &system, "bytes"), [64, 4 << 10, 64 << 10, 512 << 10], "{system}");
    }
}

#[test]
fn ix_fig5_has_messages_by_number_and_by_length_on_both_systems() {
    let json = reproduce("ix-fig5", true);
    assert_eq!(distinct(&json, "panel").len(), 2);
    for system in ["Tailwater", "Linux"] {
        assert_eq!(places(&json, system, "messages_or_bytes"), [1, 64, 1_024, 8 << 10], "{system}");
    }
}

#[test]
fn ix_fig6b_has_rounds_with_pressure_and_without() {
    let json = reproduce("ix-fig6b", true);
    let mut points = Vec::new();
    for row in json["rows"].as_array().unwrap() {
        assert!(number(row, "conditions") >= 1.0 && number(row, "conditions") <= 64.0, "{row}");
        assert!(number(row, "cycles") > 0.0, "{row}");
        points.push((number(row, "connections") as u64, number(row, "outstanding") as u64));
    }
    points.sort_unstable();
    assert_eq!(points, [(1, 1), (64, 1), (64, 64), (1_000, 432)]);
}

#[test]
fn ix_fig7_has_the_store_and_memcached_where_it_is_installed() {
    let json = reproduce("ix-fig7", true);
    let mut systems = set(&["Tailwater, kv"]);
    systems.extend(has_memcached().then(|| "Linux, memcached".to_owned()));
    assert_eq!(distinct(&json, "system"), systems);
    all_answer("ix-fig7", &json, &systems);
}

#[test]
fn ix_table5_counts_moves_and_claims_nothing_with_one_shared_core() {
    let json = reproduce("ix-table5", true);
    for row in json["rows"].as_array().unwrap() {
        assert!(number(row, "fenced") <= number(row, "moved"), "{row}");
    }
    if cpu_numbers().len() < 3 {
        assert!(json["claims"].as_array().unwrap().iter().all(|claim| claim["verdict"] == "not-comparable"));
    }
}

/// Returns a system's positions in order, each once.
fn places(json: &Value, system: &str, column: &str) -> Vec<u64> {
    let rows = json["rows"].as_array().unwrap().iter().filter(|row| row["system"] == system);
    let places: BTreeSet<u64> = rows.map(|row| number(row, column) as u64).collect();
    places.into_iter().collect()
}
