//! Every subcommand explains itself, and misuse is explained.

mod common;

use common::lab;
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
        &["bench", "hostile", "--help"],
        &["bench", "neighbour", "--help"],
        &["bench", "ports", "--help"],
        &["bench", "tcp", "--help"],
        &["bench", "threads", "--help"],
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
