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
