//! Every subcommand explains itself, and misuse is explained.

use crate::common::lab;
use tailwater_testkit::{run, text};

#[test]
fn every_subcommand_has_help_with_examples() {
    for words in [
        &["--help"][..],
        &["bench", "--help"],
        &["bench", "handoff", "--help"],
        &["bench", "switch", "--help"],
        &["bench", "cores", "--help"],
        &["bench", "dispatch", "--help"],
        &["bench", "energy", "--help"],
        &["bench", "events", "--help"],
        &["bench", "hostile", "--help"],
        &["bench", "neighbour", "--help"],
        &["bench", "ports", "--help"],
        &["bench", "programs", "--help"],
        &["bench", "scale", "--help"],
        &["bench", "tcp", "--help"],
        &["bench", "threads", "--help"],
        &["measure", "--help"],
        &["pareto", "--help"],
        &["publish", "--help"],
        &["sim", "--help"],
        &["reproduce", "--help"],
    ] {
        let output = run(&mut lab(words), b"");
        let help = text(&output.stdout);
        assert!(output.status.success(), "{words:?}");
        assert!(help.contains("Usage:") && help.contains("Example"), "{words:?}:\n{help}");
        assert!(!help.contains("tailwater-lab app"), "the hidden command shows in {words:?}");
    }
}

#[test]
fn the_list_of_figures_says_of_each_its_kind_duration_and_title() {
    let output = run(&mut lab(&["reproduce", "--list"]), b"");
    let list = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (head, rows) = list.split_once('\n').expect("a head and rows");
    let head: Vec<_> = head.split_whitespace().collect();
    assert_eq!(head, ["name", "kind", "s", "s,", "quick", "title"]);
    let is_row = |line: &&str| line.starts_with(char::is_alphabetic);
    let rows: Vec<_> = rows.lines().filter(is_row).collect();
    let kind_of = |name: &str| {
        let row = rows.iter().find(|row| row.split_whitespace().next() == Some(name));
        let words: Vec<_> = row.unwrap_or_else(|| panic!("{name}: {list}")).split_whitespace().collect();
        let [_, kind, full, quick, title @ ..] = &words[..] else { panic!("{words:?}") };
        let seconds = [full, quick].map(|text| text.parse::<f64>().unwrap_or_else(|_| panic!("{words:?}")));
        assert!(seconds.iter().all(|&s| s > 0.0) && title.len() > 2, "{words:?}");
        (*kind).to_owned()
    };
    assert_eq!(kind_of("shenango-fig1"), "simulated");
    assert_eq!(kind_of("shenango-fig4"), "measured");
    // Those that can be named, and no others.
    let help = text(&run(&mut lab(&["reproduce", "no-such-figure"]), b"").stderr);
    for row in &rows {
        let name = row.split_whitespace().next().unwrap_or_default();
        kind_of(name);
        assert!(help.contains(name), "{name}: {help}");
    }
    assert!(rows.len() > 30 && list.contains("minutes in all"), "{list}");
}

#[test]
fn misuse_is_explained() {
    let output = run(&mut lab(&["bench", "threads", "--systems", "pthreads"]), b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("tailwater-shared-tls"), "{}", text(&output.stderr));
}

#[test]
fn an_iokernel_takes_the_steps_of_the_static_frontier() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.toml");
    let machine = ["--cores", "1", "--threads", "2", "--mhz", "1200,2400", "--turbo", "2800"];
    let effort = ["--levels", "4", "--requests", "300", "--config", path.to_str().unwrap()];
    let output = run(lab(&["pareto"]).args(machine).args(effort), b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let config = std::fs::read_to_string(&path).unwrap();
    let config = tailwater_iokernel::Config::from_toml(&config).unwrap_or_else(|e| panic!("{e}: {config}"));
    assert_eq!(config.policy.as_str(), "ix-energy");
    let last = config.ix.steps.last().unwrap();
    assert!(last.turbo && last.threads == 2, "{:?}", config.ix.steps);
}
