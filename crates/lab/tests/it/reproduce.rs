//! Each figure in its quick form: its files exist and agree with each other, they have the figure's
//! systems and points, and nothing is left behind.
//!
//! Verdicts are not judged: they depend on what else runs on the test machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tailwater_testkit::{
    Program, children, cpu_numbers, eventually, is_running, run, text, unless_too_busy, until,
};

use crate::common::{BOUND, lab, turn};
use crate::shape::differences;

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

/// Runs one figure, checks its files against each other, and returns its JSON; `None` if other
/// programs have the cores for minutes.
fn reproduce(name: &str) -> Option<Value> {
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
    assert_eq!((&json["name"], &json["quick"]), (&name.into(), &true.into()));
    assert!(json["measured"].is_boolean() && json["paper"].is_string() && json["commit"].is_string());
    // A quoted cell may have a comma but no line feed: a line is a row.
    assert_eq!(rows(&json).len() + 1, read("csv").lines().count(), "a row for each line below the head");
    let claims = json["claims"].as_array().unwrap();
    assert!(!claims.is_empty() && !rows(&json).is_empty());
    for claim in claims {
        let verdict = match claim["verdict"].as_str().unwrap() {
            "reached" => "reached",
            "not-reached" => "NOT REACHED",
            "not-comparable" => "not comparable",
            other => panic!("{other} is not a verdict"),
        };
        let paper = claim["paper"].as_str().unwrap();
        assert!(page.contains(paper) && shown.contains(&format!("[{verdict}] paper: {paper}")), "{shown}");
        assert!(page.contains(claim["ours"].as_str().unwrap()), "{claim}\n{page}");
    }
    is_self_contained(&report);
    assert!(report.contains(&format!("<h2 id=\"{name}\">")) && report.contains("<svg"));
    assert_eq!(sockets(pid), [""; 0]);
    Some(json)
}

/// Returns the rows of a figure's document.
fn rows(json: &Value) -> &[Value] {
    json["rows"].as_array().unwrap()
}

/// Runs of a figure in which each system must give a right answer once. In one run it may have
/// none, while other programs have its core.
const TRIES: usize = 10;

/// Returns the panels and systems of a document: all, or those with a right answer.
fn pairs(json: &Value, answered: bool) -> BTreeSet<String> {
    let counts = |row: &&Value| match row["completed"].as_f64() {
        None => false,
        Some(count) => !answered || count > 0.0,
    };
    rows(json).iter().filter(counts).map(|row| format!("{} {}", row["panel"], row["system"])).collect()
}

/// Fails unless a figure has its shape, and each system in each panel answers in one of several
/// runs.
fn has_shape(name: &str) {
    let Some(json) = reproduce(name) else { return };
    let differ = differences(name, &json);
    assert!(differ.is_empty(), "{differ:#?}");
    let mut silent = &pairs(&json, false) - &pairs(&json, true);
    for _ in 1..TRIES {
        if silent.is_empty() {
            return;
        }
        let Some(json) = reproduce(name) else { return };
        silent = &silent - &pairs(&json, true);
    }
    assert!(silent.is_empty(), "no right answer in {TRIES} runs: {silent:?}");
}

/// A test for each figure. Those that take seconds are ignored, as measurements.
macro_rules! figures {
    ($($name:ident;)* [ignored] $($ignored:ident;)*) => {
        $(
            #[test]
            fn $name() {
                has_shape(&stringify!($name).replace('_', "-"));
            }
        )*
        $(
            #[test]
            #[ignore = "a measurement: .ci/full"]
            fn $ignored() {
                has_shape(&stringify!($ignored).replace('_', "-"));
            }
        )*
    };
}

figures! {
    shinjuku_fig4;
    shinjuku_fig6;
    shinjuku_fig7;
    arachne_fig4;
    arachne_fig6;
    [ignored]
    shenango_fig1;
    shinjuku_fig1;
    shinjuku_fig2;
    ix_fig8;
    ix_fig9;
    ix_fig10;
    ix_fig11;
    ix_fig12;
    ix_table4;
    shenango_table2;
    shenango_fig3;
    shenango_fig4;
    shenango_fig5;
    shenango_fig6;
    shenango_fig7;
    shenango_fig8;
    shinjuku_table1;
    shinjuku_table2;
    shinjuku_fig5;
    shinjuku_fig8;
    arachne_table2;
    arachne_fig2;
    arachne_fig2a;
    arachne_fig3;
    arachne_fig3b;
    arachne_fig5;
    arachne_fig8;
    arachne_fig9;
    arachne_fig10;
    arachne_fig11;
    ix_fig4;
    ix_fig5;
    ix_fig6b;
    ix_fig7;
    ix_table3;
    ix_table5;
    ix_connections;
    ix_fig13;
    dns_slo;
    foreign_batch;
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
