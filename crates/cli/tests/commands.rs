//! Every subcommand explains itself, and the daemon, services and statistics work together.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Guard, eventually, run, signal, stats, tailwater, text};

#[test]
fn every_subcommand_has_help_with_examples() {
    for words in [
        &["--help"][..],
        &["demo", "--help"],
        &["iokernel", "--help"],
        &["run", "--help"],
        &["load", "--help"],
        &["compare", "--help"],
        &["stats", "--help"],
        &["capture", "--help"],
        &["kv", "--help"],
        &["doctor", "--help"],
        &["bench", "--help"],
        &["bench", "handoff", "--help"],
        &["bench", "switch", "--help"],
        &["bench", "threads", "--help"],
        &["sim", "--help"],
        &["reproduce", "--help"],
    ] {
        let output = run(words);
        let help = text(&output.stdout);
        assert!(output.status.success(), "{words:?}");
        assert!(help.contains("Usage:") && help.contains("Example"), "{words:?}:\n{help}");
        assert!(!help.contains("tailwater app"), "the hidden command shows in {words:?}");
    }
}

#[test]
fn misuse_is_explained() {
    for (words, part) in [
        (&["demo", "--loads", "0"][..], "percentage"),
        (&["demo", "--service", "exp:1s"], "mean"),
        (&["load", "127.0.0.1:1"], "--rate"),
        (&["iokernel", "--managed-cores", "x"], "core number"),
        (&["iokernel", "--tap", "tw0"], "--host-ip"),
        (&["iokernel", "--xdp", "eth1", "--tap", "tw0", "--host-ip", "10.77.0.1"], "cannot be used with"),
        (&["capture"], "--write"),
        (&["run"], "PROGRAM"),
        (&["bench", "threads", "--systems", "pthreads"], "tailwater-shared-tls"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(part), "{words:?}: {}", text(&output.stderr));
    }
    let output = run(&["stats", "--iokernel", "@tailwater-nobody-here"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("start one with"), "{}", text(&output.stderr));
}

#[test]
fn the_printed_configuration_is_one_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tailwater.toml");
    let first = run(&["iokernel", "--print-config", "--core", "3", "--managed-cores", "4-6"]);
    std::fs::write(&file, &first.stdout).unwrap();
    let second = run(&["iokernel", "--print-config", "--config", file.to_str().unwrap()]);
    assert_eq!(text(&first.stdout), text(&second.stdout));
    assert!(text(&first.stdout).contains("managed-cores = [4, 5, 6]"), "{}", text(&first.stdout));
}

#[test]
fn a_started_service_shows_in_the_statistics_and_everything_ends_when_told() {
    let socket = format!("@tailwater-test-{}", std::process::id());
    let mut iokernel = Guard(tailwater(&["iokernel", "--socket", &socket, "--log", "warn"]).spawn().unwrap());
    eventually("the IOKernel answers", || stats(&socket).is_some());
    let exe = env!("CARGO_BIN_EXE_tailwater");
    let run_it = ["run", "--iokernel", &socket, "--name", "spin-under-test", "--kthreads", "1", "--", exe];
    let service =
        tailwater(&run_it).args(["app", "spin", "--listen", "0.0.0.0:5000"]).stdout(Stdio::piped()).spawn();
    let mut service = Guard(service.unwrap());
    let mut line = String::new();
    BufReader::new(service.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");
    let shown = text(&run(&["stats", "--iokernel", &socket]).stdout);
    assert!(shown.contains("spin-under-test") && shown.contains("latency-critical"), "{shown}");
    let json = stats(&socket).unwrap();
    assert_eq!(json["runtimes"][0]["name"], "spin-under-test");
    for child in [&mut service.0, &mut iokernel.0] {
        signal(child.id(), "TERM");
        eventually("a process ends when told", || child.try_wait().unwrap().is_some());
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}
