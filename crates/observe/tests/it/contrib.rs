//! Alert rules and dashboard name metrics that there are.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tailwater_stats::schema::{Kind, PARTS};
use tailwater_testkit::{is_installed, text};

/// Metrics that are no numbers of the document.
const FACTS: [&str; 4] =
    ["tailwater_up", "tailwater_managed_cores", "tailwater_iokernel_info", "tailwater_program_info"];

fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the names of all series that are served.
fn served() -> HashSet<String> {
    let mut names: HashSet<String> = FACTS.map(str::to_owned).into();
    for part in PARTS {
        for field in part.shape.metrics() {
            let name = field.metric(part);
            if field.kind == Kind::Histogram {
                names.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")));
            }
            names.insert(name);
        }
    }
    names
}

/// Returns the names of metrics in a text.
fn named(text: &str) -> HashSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("tailwater_"));
    words.filter(|word| !word.ends_with('_')).map(str::to_owned).collect()
}

#[test]
fn rules_and_dashboard_name_metrics_that_are_served() {
    let served = served();
    for path in [
        "contrib/prometheus/tailwater.rules.yml",
        "contrib/prometheus/tailwater.test.yml",
        "contrib/grafana/tailwater.json",
    ] {
        let names = named(&fs::read_to_string(file(path)).unwrap());
        assert!(names.len() > 10, "{path}: {names:?}");
        for name in names {
            assert!(served.contains(&name), "{path} names {name}, which is not served");
        }
    }
}

#[test]
fn every_rule_is_a_row_of_the_troubleshooting_page() {
    let rules = fs::read_to_string(file("contrib/prometheus/tailwater.rules.yml")).unwrap();
    let page = fs::read_to_string(file("docs/src/guide/troubleshooting.md")).unwrap();
    for rule in rules.split("- alert: ").skip(1) {
        let alert = rule.lines().next().unwrap();
        assert!(page.contains(&format!("`{alert}`")), "{alert} is on no row of the page");
        assert!(rule.contains("summary: ") && rule.contains("do: "), "{alert} has no remedy");
    }
}

#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    if !is_installed("promtool", "prometheus") {
        return;
    }
    for words in [["check", "rules", "tailwater.rules.yml"], ["test", "rules", "tailwater.test.yml"]] {
        let mut promtool = Command::new("promtool");
        let output = promtool.current_dir(file("contrib/prometheus")).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
    }
}
