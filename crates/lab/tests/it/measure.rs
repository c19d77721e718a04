//! A session over two cheap experiments, and the pages that are made from it.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::lab;
use serde_json::Value;
use tailwater_testkit::{run, text};

/// Figures that are simulated within a moment.
const CHEAP: &str = "shinjuku-fig4,arachne-fig6";
const PAGE: &str = "docs/src/reproduce.md";

fn in_folder(folder: &Path, words: &[&str]) -> Output {
    run(lab(words).current_dir(folder), b"")
}

/// Measures the cheap experiments; returns what a user sees.
fn measure(folder: &Path, more: &[&str]) -> String {
    let words =
        [&["measure", "--quick", "--only", CHEAP, "--machine", "test-1", "--out", "results"], more].concat();
    let output = in_folder(folder, &words);
    let shown = text(&output.stderr);
    assert!(output.status.success(), "{shown}");
    shown
}

/// Returns true if the result is of a commit: a tree with changes is measured anew each time.
fn is_exact(result: &Value) -> bool {
    let commit = result["commit"].as_str().unwrap();
    !commit.ends_with("-dirty") && commit != "unknown"
}

fn result(folder: &Path, experiment: &str) -> Value {
    let path = folder.join(format!("results/test-1/{experiment}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Writes the pages of a clone, with one region.
fn write_pages(folder: &Path) {
    fs::create_dir_all(folder.join("docs/src/guide")).unwrap();
    fs::write(folder.join("docs/src/numbers.md"), "# Measured\n").unwrap();
    fs::write(folder.join("docs/src/guide/batch.md"), "# Batch jobs\n").unwrap();
    fs::write(folder.join("docs/src/guide/programs.md"), "# Bring your program\n").unwrap();
    fs::write(folder.join("README.md"), "# Tailwater\n").unwrap();
    let regions = ["figures-shinjuku", "figures-arachne"]
        .map(|name| format!("<!-- figures: {name} -->\n<!-- end figures -->\n"));
    fs::write(folder.join(PAGE), format!("# Figures\n\nBy hand.\n\n{}", regions.concat())).unwrap();
}

#[test]
fn a_session_is_measured_once_and_published() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let shown = measure(folder, &[]);
    assert!(shown.contains("[1/2] shinjuku-fig4") && shown.contains("[2/2] arachne-fig6"), "{shown}");
    let figure = result(folder, "shinjuku-fig4");
    assert_eq!(
        (&figure["schema"], &figure["kind"], &figure["quick"]),
        (&1.into(), &"simulated".into(), &true.into())
    );
    assert_eq!(figure["command"], "tailwater-lab reproduce shinjuku-fig4 --quick");
    assert!(figure["machine"]["cpu_model"].is_string() && figure["report"]["claims"].is_array(), "{figure}");
    let shown = measure(folder, &[]);
    assert_eq!(shown.matches("is measured").count(), if is_exact(&figure) { 2 } else { 0 }, "{shown}");
    assert!(!measure(folder, &["--again"]).contains("is measured"));

    write_pages(folder);
    let output = in_folder(folder, &["publish", "--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(PAGE) && text(&output.stderr).contains("README.md has no region"));
    assert!(!fs::read_to_string(folder.join(PAGE)).unwrap().contains("reached"), "--check writes nothing");

    assert!(in_folder(folder, &["publish"]).status.success());
    let page = fs::read_to_string(folder.join(PAGE)).unwrap();
    assert!(page.contains("By hand.") && page.contains("24 queues need 16,000 connections"), "{page}");
    assert!(in_folder(folder, &["publish", "--check"]).status.success());

    fs::write(folder.join(PAGE), page.replace("16128 connections", "16129 connections")).unwrap();
    let output = in_folder(folder, &["publish", "--check"]);
    assert_eq!(output.status.code(), Some(1), "a digit differs");
    assert!(text(&output.stderr).contains(PAGE), "{}", text(&output.stderr));
}

#[test]
fn results_of_several_commits_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    measure(folder, &[]);
    write_pages(folder);
    let mut other = result(folder, "arachne-fig6");
    other["commit"] = "0123456789ab".into();
    fs::write(folder.join("results/test-1/arachne-fig6.json"), other.to_string()).unwrap();
    let output = in_folder(folder, &["publish"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(
        errors.contains(PAGE) && errors.contains(".json (") && errors.contains("measure these again"),
        "{errors}"
    );
    // A session of this commit measures what is not of it.
    let shown = measure(folder, &[]);
    let figure = result(folder, "shinjuku-fig4");
    assert_eq!(shown.matches("is measured").count(), usize::from(is_exact(&figure)), "{shown}");
    assert!(in_folder(folder, &["publish"]).status.success());
}

#[test]
fn without_results_the_command_that_makes_them_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write_pages(folder.path());
    let output = in_folder(folder.path(), &["publish", "--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("run `tailwater-lab measure`"), "{}", text(&output.stderr));
    fs::create_dir_all(folder.path().join("results/epyc-2")).unwrap();
    let output = in_folder(folder.path(), &["publish", "--machine", "xeon-2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("no results of a machine xeon-2; there are epyc-2"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_list_names_what_runs_and_for_how_long() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_folder(folder.path(), &["measure", "--list"]);
    let list = text(&output.stdout);
    assert!(output.status.success() && list.contains("tailwater-lab bench handoff"), "{list}");
    assert!(list.contains("shenango-fig4") && list.trim_end().ends_with("minutes in all"), "{list}");
    let output = in_folder(folder.path(), &["measure", "--only", "fig99"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!folder.path().join("results").exists());
}
